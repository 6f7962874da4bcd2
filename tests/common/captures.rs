//! Every capture to whoever is free: as many threads as there are processors.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Calls `examine` with each of these captures; answers what it said, by the capture's name below
/// the cases, in the order of the names. `CASES=` names a part of the captures to look at.
pub(crate) fn each<T: Send>(
    captures: Vec<PathBuf>,
    examine: impl Fn(&Path) -> Option<T> + Sync,
) -> Vec<(String, T)> {
    let cases = testkit::cases().expect("the cases are here");
    let part = std::env::var("CASES").unwrap_or_default();
    let name = |path: &Path| path.strip_prefix(&cases).unwrap_or(path).display().to_string();
    let wanted = captures.into_iter().filter(|path| name(path).contains(&part));
    let next = Mutex::new(wanted);
    let told = Mutex::new(Vec::new());
    let share = || {
        loop {
            let path = next.lock().expect("no thread panics here").next();
            let Some(path) = path else { break };
            if let Some(outcome) = examine(&path) {
                told.lock().expect("no thread panics here").push((name(&path), outcome));
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(share)).collect();
        for worker in workers {
            worker.join().expect("told above");
        }
    });
    let mut told = told.into_inner().expect("no thread panics here");
    told.sort_by(|(one, _), (other, _)| one.cmp(other));
    told
}
