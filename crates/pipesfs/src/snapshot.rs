//! Snapshots of the paths of the machine, and of their counters. Paths are queried only while a
//! program uses the file system.

use crate::content::CountersByPath;
use crate::tree::{Tree, sort_paths};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use streamline::paths::{
    self, ChangedNodes, Client, ClientError, Counters, IdleConnections, PathClient, PathView,
};

/// Maximum age of a snapshot of the tree that is still used. The kernel caches names for the same
/// time.
pub const SNAPSHOT_LIFETIME: Duration = Duration::from_millis(100);
/// Maximum age at which stored counters of a path still answer a request.
pub const COUNTERS_LIFETIME: Duration = Duration::from_millis(10);
/// Minimum time for which the result of a query is used, as a multiple of the query's duration.
/// Without this minimum, a traversal of a large tree would spend most of its time on queries.
const QUERY_RATIO_MIN: u32 = 5;
/// Time between the two samples from which rates are computed.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(150);
const SAMPLE_LIFETIME: Duration = Duration::from_secs(1);
/// Maximum time to wait for the replies of all paths together.
pub const REPLY_TIMEOUT: Duration = Duration::from_millis(800);

/// The tree at one point in time.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Number of the snapshot, which increases with each change to the paths.
    pub generation: u64,
    /// The directories of PipesFS for the paths of the snapshot.
    pub tree: Arc<Tree>,
    /// The reason for an empty tree, if the daemon did not reply.
    pub failure: Option<String>,
    taken_at: Option<Instant>,
    /// Duration of the query that returned the paths.
    query_time: Duration,
}

/// Two samples of a path's counters, with the time of the second sample: (time, first counters,
/// second counters).
type CounterSamples = (Instant, Arc<Counters>, Arc<Counters>);

/// The latest counters of a path.
#[derive(Debug)]
struct CachedCounters {
    taken_at: Instant,
    /// Duration of the query that returned the counters.
    query_time: Duration,
    /// The counters that the query returned, or `None` if the path did not reply.
    counters: Option<Arc<Counters>>,
}

impl CachedCounters {
    /// Returns true if the counters are young enough to be used: younger than `age`, or younger
    /// than [`QUERY_RATIO_MIN`] times the duration of their query.
    fn is_current(&self, age: Duration) -> bool {
        self.taken_at.elapsed() < age.max(self.query_time * QUERY_RATIO_MIN)
    }
}

/// The latest snapshot of the tree, and the latest counters of the paths.
#[derive(Debug)]
pub struct SnapshotCache {
    directory: Option<PathBuf>,
    latest: RwLock<Arc<Snapshot>>,
    /// Connection to the daemon, or `None` before the first query. The lock ensures that only one
    /// query runs at a time.
    client: Mutex<Option<Client>>,
    /// Latest counters of each path, by path number.
    counters: Mutex<HashMap<u32, CachedCounters>>,
    /// Two samples of each path's counters, from which rates are computed, by path number.
    samples: Mutex<HashMap<u32, CounterSamples>>,
    /// Idle connections to paths, for reuse by later queries.
    connections: IdleConnections,
    changed: Mutex<ChangedPaths>,
}

/// The paths that this process has changed, and whose new state it has not received yet.
#[derive(Debug, Default)]
struct ChangedPaths {
    numbers: BTreeSet<u32>,
    /// Numbers of those changed paths that are being queried now.
    queried: BTreeSet<u32>,
}

impl SnapshotCache {
    /// Creates an empty snapshot of the paths of the daemon in `directory`, or of the first
    /// standard directory in which a daemon listens if `directory` is `None`.
    #[must_use]
    pub fn new(directory: Option<PathBuf>) -> Self {
        let (latest, client) = Default::default();
        let (counters, samples, connections, changed) = Default::default();
        Self { directory, latest, client, counters, samples, connections, changed }
    }

    /// Returns the latest snapshot. Does not block.
    #[must_use]
    pub fn latest(&self) -> Arc<Snapshot> {
        Arc::clone(&self.latest.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if the latest snapshot can be used. This process must not have changed a path
    /// since ([`Self::record_path_change`]). The snapshot must be younger than `age`, or younger
    /// than [`QUERY_RATIO_MIN`] times the duration of its query. If `age` is 0, no snapshot can be
    /// used.
    #[must_use]
    pub fn is_current(&self, age: Duration) -> bool {
        !self.has_unqueried_changes() && self.has_snapshot_younger_than(age)
    }

    /// Records that this process has changed a path. The next request that needs the tree queries
    /// the path first.
    pub fn record_path_change(&self, number: u32) {
        lock(&self.changed).numbers.insert(number);
    }

    /// Returns true if this process has changed a path and has not queried the path since. Does not
    /// block.
    #[must_use]
    pub fn has_unqueried_changes(&self) -> bool {
        let changed = lock(&self.changed);
        !changed.numbers.is_empty() || !changed.queried.is_empty()
    }

    fn has_snapshot_younger_than(&self, age: Duration) -> bool {
        let latest = self.latest();
        let age = if age.is_zero() { age } else { age.max(latest.query_time * QUERY_RATIO_MIN) };
        latest.taken_at.is_some_and(|taken| taken.elapsed() < age)
    }

    /// Updates the snapshot, and returns it. Queries all paths. If the latest snapshot is younger
    /// than `age`, queries only the paths that have changed since then, over idle connections; if
    /// this fails, queries all paths. Blocks until the paths have replied, or until a time limit.
    pub fn refresh(&self, age: Duration) -> Arc<Snapshot> {
        let mut client = lock(&self.client);
        // Changes that are recorded from now on need another query.
        let changed = {
            let mut changed = lock(&self.changed);
            let ChangedPaths { numbers, queried } = &mut *changed;
            queried.append(numbers);
            queried.clone()
        };
        let is_updated = |number: &u32| self.update_over_idle_connection(*number).is_some();
        let refreshed = match self.has_snapshot_younger_than(age) && changed.iter().all(is_updated)
        {
            true => self.latest(),
            false => self.query_all(&mut client),
        };
        lock(&self.changed).queried.clear();
        refreshed
    }

    /// Queries all paths. Blocks until the paths have replied, or until a time limit.
    fn query_all(&self, client: &mut Option<Client>) -> Arc<Snapshot> {
        let before = self.latest();
        let began = Instant::now();
        let asked = self.query(client, |client| {
            paths::query_paths(client, &before.tree.paths, &self.connections, REPLY_TIMEOUT)
        });
        let (mut views, failure) = match asked {
            Ok(views) => (views, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        // If a path does not reply, its directories remain as in the previous snapshot.
        for view in views.iter_mut().filter(|view| view.silent) {
            let known = before.tree.paths.iter().find(|known| {
                (known.path.number, known.path.started) == (view.path.number, view.path.started)
            });
            if let Some(known) = known {
                view.nodes = Arc::clone(&known.nodes);
                view.version = known.version;
                view.line.clone_from(&known.line);
            }
        }
        let is_listed = |number| views.iter().any(|view| view.path.number == number);
        self.connections.retain(is_listed);
        let snapshot = Snapshot { failure, taken_at: Some(began), ..Snapshot::default() };
        self.publish(&before, views, Snapshot { query_time: began.elapsed(), ..snapshot })
    }

    /// Queries one path again after an edit. Blocks until the path has replied, or until a time
    /// limit.
    pub fn update_path(&self, number: u32) -> Arc<Snapshot> {
        let client = lock(&self.client);
        let updated = self.update_over_idle_connection(number);
        drop(client);
        updated.unwrap_or_else(|| self.refresh(Duration::ZERO))
    }

    /// Updates the view of one path in the snapshot from the reply to an edit. The edit was planned
    /// from the snapshot `planned`. If the reply does not determine all nodes, or if the path was
    /// queried in the meantime, queries the path instead.
    pub fn update_from_reply(
        &self,
        planned: &Snapshot,
        number: u32,
        reply: Option<ChangedNodes>,
    ) -> Arc<Snapshot> {
        let client = lock(&self.client);
        let version = |snapshot: &Snapshot| {
            let mut views = snapshot.tree.paths.iter();
            views.find(|view| view.path.number == number)?.version
        };
        let updated = reply
            .filter(|_| version(planned) == version(&self.latest()))
            .and_then(|reply| self.replace_path_view(number, |view| view.view_after_change(reply)));
        drop(client);
        updated.unwrap_or_else(|| self.update_path(number))
    }

    /// Queries one path over an idle connection. Returns `None` if there is no such connection or
    /// the query fails. The caller must hold the lock of `client`.
    fn update_over_idle_connection(&self, number: u32) -> Option<Arc<Snapshot>> {
        let to = self.take_idle_connection(number)?;
        let updated = self.replace_path_view(number, |view| paths::requery_path(&to, view).ok())?;
        self.store_idle_connection(to);
        Some(updated)
    }

    /// Publishes a snapshot that contains a new view of one path. `view` computes the new view from
    /// the old one. Returns `None` if the path is unknown or `view` returns `None`. The caller must
    /// hold the lock of `client`.
    fn replace_path_view(
        &self,
        number: u32,
        view: impl FnOnce(&PathView) -> Option<PathView>,
    ) -> Option<Arc<Snapshot>> {
        let before = self.latest();
        let mut views = before.tree.paths.clone();
        let known = views.iter_mut().find(|view| view.path.number == number)?;
        *known = view(known)?;
        let Snapshot { taken_at, query_time, .. } = *before;
        let failure = before.failure.clone();
        Some(self.publish(
            &before,
            views,
            Snapshot { failure, taken_at, query_time, ..Snapshot::default() },
        ))
    }

    /// Takes the idle connection to a path, if there is one.
    pub fn take_idle_connection(&self, number: u32) -> Option<PathClient> {
        self.connections.take(number)
    }

    /// Stores an idle connection of this process to a path for later use. No reply may be
    /// outstanding on the connection.
    pub fn store_idle_connection(&self, to: PathClient) {
        self.connections.store(to);
    }

    /// Makes a snapshot with these paths the latest snapshot, and returns it.
    fn publish(
        &self,
        before: &Snapshot,
        mut views: Vec<PathView>,
        snapshot: Snapshot,
    ) -> Arc<Snapshot> {
        sort_paths(&mut views);
        let same = views == before.tree.paths && before.taken_at.is_some();
        let generation = before.generation + u64::from(!same);
        let tree = match same {
            true => Arc::clone(&before.tree),
            false => Arc::new(Tree::from_paths_and_previous(views, &before.tree)),
        };
        if !same {
            // Counters refer to nodes by index, and the nodes have changed.
            lock(&self.counters).clear();
            lock(&self.samples).clear();
        }
        let snapshot = Arc::new(Snapshot { generation, tree, ..snapshot });
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&snapshot);
        snapshot
    }

    /// Returns the counters of paths; `wanted` contains the owner and the number of each path.
    /// Queries the paths whose counters are older than `age`, and omits paths that do not reply.
    /// Blocks for a limited time.
    pub fn counters(&self, wanted: &[(u32, u32)], age: Duration) -> CountersByPath {
        if self.has_counters(wanted, age) {
            return select_counters(&lock(&self.counters), wanted);
        }
        let mut client = lock(&self.client);
        let began = Instant::now();
        let missing: Vec<(u32, u32)> = {
            let known = lock(&self.counters);
            let is_missing = |(_, number): &&(u32, u32)| {
                known.get(number).is_none_or(|known| !known.is_current(age))
            };
            wanted.iter().filter(is_missing).copied().collect()
        };
        let asked = self.query(&mut client, |client| {
            Ok(paths::query_counters(client, &missing, &self.connections, REPLY_TIMEOUT))
        });
        let query_time = began.elapsed();
        let mut known = lock(&self.counters);
        for ((_, number), reply) in missing.iter().zip(asked.unwrap_or_default()) {
            let (taken_at, counters) = (Instant::now(), reply.ok().map(Arc::new));
            known.insert(*number, CachedCounters { taken_at, query_time, counters });
        }
        select_counters(&known, wanted)
    }

    /// Returns true if the latest query of each path is young enough for `age`, even if a path did
    /// not reply to it. Does not block.
    #[must_use]
    pub fn has_counters(&self, wanted: &[(u32, u32)], age: Duration) -> bool {
        let known = lock(&self.counters);
        let is_known = |number| known.get(number).is_some_and(|known| known.is_current(age));
        wanted.iter().all(|(_, number)| is_known(number))
    }

    /// Returns two samples of the counters of paths, from which rates can be computed. Samples are
    /// cached for 1 s. Blocks for a limited time.
    pub fn two_counter_samples(&self, wanted: &[(u32, u32)]) -> (CountersByPath, CountersByPath) {
        let mut samples = lock(&self.samples);
        samples.retain(|_, (taken_at, _, _)| taken_at.elapsed() < SAMPLE_LIFETIME);
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
            // Waits for the interval between the samples, or until a path ends.
            let processes: Vec<_> = connected.iter().map(|(_, to)| to.pidfd()).collect();
            sys::poll::wait_until_readable_despite_signals(&processes, Some(SAMPLE_INTERVAL));
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

    /// Returns the configured directory of the daemon, or `None` if the standard directories are
    /// searched.
    #[must_use]
    pub fn directory(&self) -> Option<&std::path::Path> {
        self.directory.as_deref()
    }

    /// Opens a new connection to the daemon.
    pub fn connect(&self) -> Result<Client, ClientError> {
        Client::find(self.directory.as_deref())
    }

    /// Sends a query over the existing connection. If the query fails, for example after a restart
    /// of the daemon, repeats the query over a new connection.
    fn query<T>(
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

/// Returns the known counters of the wanted paths.
fn select_counters(known: &HashMap<u32, CachedCounters>, wanted: &[(u32, u32)]) -> CountersByPath {
    let found = wanted
        .iter()
        .filter_map(|(_, number)| Some((*number, known.get(number)?.counters.clone()?)));
    found.collect()
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
