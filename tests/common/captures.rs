//! Every capture to whoever is free: as many threads as there are processors.

use std::path::Path;
use std::sync::Mutex;
use testkit::Captures;

/// Calls `examine` with each of these captures; answers what it said, by the capture's name below
/// their folder, in the order of the names. `CASES=` names a part of the captures to look at.
pub(crate) fn each<T: Send>(
    captures: &Captures,
    examine: impl Fn(&Path) -> Option<T> + Sync,
) -> Vec<(String, T)> {
    let part = std::env::var("CASES").unwrap_or_default();
    let name = |path: &Path| captures.name(path);
    let wanted = captures.paths.iter().filter(|path| name(path).contains(&part));
    let next = Mutex::new(wanted);
    let told = Mutex::new(Vec::new());
    let share = || {
        loop {
            let path = next.lock().expect("no thread panics here").next();
            let Some(path) = path else { break };
            if let Some(outcome) = examine(path) {
                told.lock().expect("no thread panics here").push((name(path), outcome));
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
