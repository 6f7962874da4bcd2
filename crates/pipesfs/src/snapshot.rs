//! The paths of the machine as of a moment, asked only while somebody looks.

use crate::content::CountersByPath;
use crate::tree::Tree;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use streamline::paths::{self, Client, ClientError, Counters, PathClient};

/// Time for which a snapshot of the tree is current. The kernel keeps names as long.
pub const CURRENT: Duration = Duration::from_millis(100);
/// Time for which counters are current.
const COUNTERS_CURRENT: Duration = Duration::from_millis(10);
/// Time between the two samples from which rates are computed, and for which they are kept.
const SAMPLE_TIME: Duration = Duration::from_millis(150);
const SAMPLE_CURRENT: Duration = Duration::from_secs(1);
/// Maximum wait for the replies of all paths.
const REPLY_LIMIT: Duration = Duration::from_millis(800);

/// The tree as of a moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Number of the snapshot; it grows with each change of the paths.
    pub generation: u64,
    /// The tree.
    pub tree: Tree,
    /// Reason why the tree is empty, if no daemon replied.
    pub failure: Option<String>,
    taken: Option<Instant>,
}

/// Two samples of the counters of a path, and the time of the second.
type Samples = (Instant, Arc<Counters>, Arc<Counters>);

/// The latest snapshot and counters.
#[derive(Debug)]
pub struct Snapshots {
    directory: Option<PathBuf>,
    latest: RwLock<Arc<Snapshot>>,
    /// Connection to the daemon. Its lock lets one thread at a time ask.
    client: Mutex<Option<Client>>,
    counters: Mutex<HashMap<u32, (Instant, Arc<Counters>)>>,
    /// Two samples of the counters of each path.
    samples: Mutex<HashMap<u32, Samples>>,
}

impl Snapshots {
    /// Creates an empty snapshot of the daemon in `directory`, or else in the standard directories.
    #[must_use]
    pub fn new(directory: Option<PathBuf>) -> Self {
        let (latest, client) = Default::default();
        let (counters, samples) = Default::default();
        Self { directory, latest, client, counters, samples }
    }

    /// Returns the latest snapshot. Does not block.
    #[must_use]
    pub fn latest(&self) -> Arc<Snapshot> {
        Arc::clone(&self.latest.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if the latest snapshot is younger than `age`.
    #[must_use]
    pub fn is_current(&self, age: Duration) -> bool {
        self.latest().taken.is_some_and(|taken| taken.elapsed() < age)
    }

    /// Asks all paths, unless the latest snapshot is younger than `age`. Blocks until they have
    /// replied, for a limited time.
    pub fn refresh(&self, age: Duration) -> Arc<Snapshot> {
        let mut client = lock(&self.client);
        if self.is_current(age) {
            return self.latest();
        }
        let before = self.latest();
        let taken = Some(Instant::now());
        let asked = self.ask(&mut client, |client| paths::query_paths(client, REPLY_LIMIT));
        let (mut views, failure) = match asked {
            Ok(views) => (views, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        // A path that does not reply at the moment keeps its directories.
        for view in views.iter_mut().filter(|view| view.silent) {
            let known = before.tree.paths.iter().find(|known| {
                (known.path.number, known.path.started) == (view.path.number, view.path.started)
            });
            if let Some(known) = known {
                view.nodes.clone_from(&known.nodes);
                view.line.clone_from(&known.line);
            }
        }
        let tree = Tree::new(views);
        let same = tree.paths == before.tree.paths && before.taken.is_some();
        let generation = before.generation + u64::from(!same);
        let snapshot = Arc::new(Snapshot { generation, tree, failure, taken });
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&snapshot);
        snapshot
    }

    /// Returns the counters of paths, given by owner and number; a path that does not reply is
    /// omitted. Blocks for a limited time.
    pub fn counters(&self, wanted: &[(u32, u32)]) -> CountersByPath {
        let mut client = lock(&self.client);
        let mut known = lock(&self.counters);
        known.retain(|_, (taken, _)| taken.elapsed() < COUNTERS_CURRENT);
        let missing = wanted.iter().filter(|(_, number)| !known.contains_key(number)).copied();
        let missing: Vec<(u32, u32)> = missing.collect();
        if !missing.is_empty() {
            let asked = self.ask(&mut client, |client| {
                Ok(paths::query_counters(client, &missing, REPLY_LIMIT))
            });
            for ((_, number), reply) in missing.iter().zip(asked.unwrap_or_default()) {
                if let Ok(counters) = reply {
                    known.insert(*number, (Instant::now(), Arc::new(counters)));
                }
            }
        }
        let found = wanted
            .iter()
            .filter_map(|(_, number)| Some((*number, Arc::clone(&known.get(number)?.1))));
        found.collect()
    }

    /// Returns the counters of paths twice, some time apart, during which the time in their filters
    /// is measured. A sample is kept for a second. Blocks for a limited time.
    pub fn two_samples(&self, wanted: &[(u32, u32)]) -> (CountersByPath, CountersByPath) {
        let mut samples = lock(&self.samples);
        samples.retain(|_, (taken, _, _)| taken.elapsed() < SAMPLE_CURRENT);
        let missing = wanted.iter().filter(|(_, number)| !samples.contains_key(number));
        let connected: Vec<(u32, PathClient)> = missing
            .filter_map(|(_, number)| {
                let client = self.connect().ok()?;
                Some((*number, paths::connect(&client, &number.to_string()).ok()?))
            })
            .collect();
        let count = || connected.iter().map(|(_, to)| to.counters().ok().map(Arc::new));
        let first: Vec<_> = count().collect();
        if !connected.is_empty() {
            // Until a path ends, or the time is over.
            let processes: Vec<_> = connected.iter().map(|(_, to)| to.process()).collect();
            sys::poll::readable_within(&processes, Some(SAMPLE_TIME));
        }
        for (((number, _), first), second) in connected.iter().zip(first).zip(count()) {
            if let (Some(first), Some(second)) = (first, second) {
                samples.insert(*number, (Instant::now(), first, second));
            }
        }
        let found =
            || wanted.iter().filter_map(|(_, number)| Some((*number, samples.get(number)?)));
        let first = found().map(|(number, (_, first, _))| (number, Arc::clone(first)));
        let second = found().map(|(number, (_, _, second))| (number, Arc::clone(second)));
        (first.collect(), second.collect())
    }

    /// Opens a connection of its own to the daemon.
    pub fn connect(&self) -> Result<Client, ClientError> {
        Client::find(self.directory.as_deref())
    }

    /// Asks over the kept connection, and once more over a new one if the daemon has restarted.
    fn ask<T>(
        &self,
        client: &mut Option<Client>,
        question: impl Fn(&Client) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        if let Some(Ok(reply)) = client.as_ref().map(&question) {
            return Ok(reply);
        }
        question(client.insert(self.connect()?))
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
