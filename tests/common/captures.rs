//! Distribution of captures over threads, one thread per processor.

use std::path::Path;
use std::sync::Mutex;
use testkit::Captures;

/// Calls `examine` for each capture. Returns the results that are not `None`, in the order of the
/// captures' names. Setting the variable `CASES` selects the captures whose name contains its
/// value.
pub(crate) fn examine_captures<T: Send>(
    captures: &Captures,
    examine: impl Fn(&Path) -> Option<T> + Sync,
) -> Vec<(String, T)> {
    let filter = std::env::var("CASES").unwrap_or_default();
    let name = |path: &Path| captures.name(path);
    let wanted = captures.paths.iter().filter(|path| name(path).contains(&filter));
    let next = Mutex::new(wanted);
    let outcomes = Mutex::new(Vec::new());
    let share = || {
        loop {
            let path = next.lock().expect("no thread panics here").next();
            let Some(path) = path else { break };
            if let Some(outcome) = examine(path) {
                outcomes.lock().expect("no thread panics here").push((name(path), outcome));
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(share)).collect();
        for worker in workers {
            worker.join().expect("no thread panics here");
        }
    });
    let mut outcomes = outcomes.into_inner().expect("no thread panics here");
    outcomes.sort_by(|(one, _), (other, _)| one.cmp(other));
    outcomes
}
