//! The latest figures of all paths, and the viewers that wait for them.

use crate::collector;
use crate::history::{History, RateColumns};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use streamline::paths::rates::Rate;
use streamline::paths::{
    Client, ClientError, Counters, DaemonDescription, PathEnd, RegisteredPath, Totals, user_name,
};
use tokio::sync::watch;

/// The counters and rates of all paths at one point in time.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Time in ms since 1970; 0 before the first sample.
    pub time_ms: u64,
    /// Description of the daemon, or `None` if the daemon did not reply.
    pub daemon: Option<DaemonDescription>,
    /// Reason for missing figures; `None` if they are complete.
    pub failure: Option<String>,
    /// Paths that are visible to this user, by their number in the daemon's registry.
    pub paths: BTreeMap<u32, PathFigures>,
    /// Paths of this user that have ended, oldest first.
    pub ended: Vec<EndedPath>,
}

/// The latest counters and rates of a path.
#[derive(Clone, Debug)]
pub struct PathFigures {
    /// The path as listed by the daemon.
    pub path: RegisteredPath,
    /// The state of the connection to the path.
    pub state: PathState,
    /// The latest totals, or `None` if the path has sent none yet.
    pub totals: Option<Totals>,
    /// The latest counters, or `None` if the path has sent none yet. They are up to date only while
    /// a viewer has selected the path.
    pub counters: Option<Arc<Counters>>,
    /// Output rate of the path's sources.
    pub rate: Rate,
    /// Lost blocks per second.
    pub lost_rate: f64,
}

/// The state of the connection to a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PathState {
    /// The path runs, and its process sends counters.
    Running,
    /// The process of the path has sent no counters for some seconds.
    Silent,
    /// The path belongs to another user.
    Hidden,
}

/// A path that ended while a browser was showing the page.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct EndedPath {
    /// The path as last listed by the daemon.
    pub path: RegisteredPath,
    /// Exit status and report, if the path sent them.
    pub ended: Option<PathEnd>,
    /// Time at which the path ended, in ms since 1970.
    pub time_ms: u64,
}

/// An entry in the list of paths that browsers receive.
#[derive(Serialize)]
struct ListedPath<'f> {
    #[serde(flatten)]
    path: &'f RegisteredPath,
    user: String,
    state: PathState,
    rate: Rate,
    lost: Option<u64>,
    lost_rate: f64,
}

/// The figures of the path that a viewer has selected.
#[derive(Serialize)]
struct SelectedPath<'f> {
    number: u32,
    /// Hash of the path's request and plan ([`plan_hash`]). When it changes, the browser loads the
    /// plan again.
    plan: String,
    counters: &'f Counters,
    /// Reasons for drops that the request itself specifies. Drops for any other reason count as
    /// losses.
    by_request: BTreeSet<&'f str>,
}

/// The data of the server-sent event that a viewer receives for each sample.
#[derive(Serialize)]
struct LiveEvent<'f> {
    time_ms: u64,
    daemon: Option<&'f DaemonDescription>,
    failure: Option<&'f str>,
    paths: Vec<ListedPath<'f>>,
    ended: &'f [EndedPath],
    selected: Option<SelectedPath<'f>>,
}

impl Figures {
    /// Formats the figures as the JSON event for a viewer, with all counters of the selected path.
    #[must_use]
    pub fn to_event(&self, selected: Option<u32>) -> String {
        let list = self.paths.values().map(|known| ListedPath {
            path: &known.path,
            user: user_name(known.path.uid).unwrap_or_else(|| known.path.uid.to_string()),
            state: known.state,
            rate: known.rate,
            lost: known.totals.map(|totals| totals.lost),
            lost_rate: known.lost_rate,
        });
        let selected = selected.and_then(|number| {
            let known = self.paths.get(&number)?;
            let counters = known.counters.as_ref()?;
            let plan = plan_hash(known.path.line.as_deref().unwrap_or_default(), counters);
            Some(SelectedPath {
                number,
                plan,
                counters,
                by_request: requested_drop_reasons(counters),
            })
        });
        let event = LiveEvent {
            time_ms: self.time_ms,
            daemon: self.daemon.as_ref(),
            failure: self.failure.as_deref(),
            paths: list.collect(),
            ended: &self.ended,
            selected,
        };
        // Serialization of numbers, strings and lists cannot fail.
        serde_json::to_string(&event).unwrap_or_default()
    }
}

/// Returns a hash of a request and of the nodes, edges and spaces in its counters. A browser
/// compares hashes to detect a change to the plan.
#[must_use]
pub fn plan_hash(line: &str, counters: &Counters) -> String {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    for filter in &counters.filters {
        (filter.node, &filter.name).hash(&mut hasher);
    }
    for edge in &counters.edges {
        (edge.edge, &edge.from, &edge.to, &edge.kind).hash(&mut hasher);
    }
    for space in &counters.spaces {
        space.name.hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

fn requested_drop_reasons(counters: &Counters) -> BTreeSet<&str> {
    let sources = counters.sources.iter().map(|source| &source.lost);
    let edges = counters.edges.iter().map(|edge| &edge.lost);
    let filters = counters.filters.iter().map(|filter| &filter.lost);
    let drops = sources.chain(edges).chain(filters).flatten();
    drops.filter(|drop| !drop.is_lost()).map(|drop| drop.why.as_str()).collect()
}

/// The figures that the page shows. They are collected only while there is a viewer.
#[derive(Debug)]
pub struct LiveFigures {
    directory: Option<PathBuf>,
    latest: watch::Sender<Arc<Figures>>,
    viewers: Mutex<Viewers>,
    histories: Mutex<HashMap<u32, History>>,
}

#[derive(Debug, Default)]
struct Viewers {
    count: usize,
    /// Number of viewers that have selected a path, by path number.
    selected: BTreeMap<u32, usize>,
    /// True while a collector is running.
    is_collecting: bool,
}

impl LiveFigures {
    /// Creates empty figures for the paths of the daemon in `directory`. If `directory` is `None`,
    /// uses the first standard directory in which a daemon listens.
    #[must_use]
    pub fn new(directory: Option<PathBuf>) -> Arc<Self> {
        let latest = watch::Sender::new(Arc::default());
        let (viewers, histories) = Default::default();
        Arc::new(Self { directory, latest, viewers, histories })
    }

    /// Opens a connection to the daemon.
    pub fn connect(&self) -> Result<Client, ClientError> {
        Client::find(self.directory.as_deref())
    }

    /// Adds a viewer, with the path that it has selected. Starts the collector if none is running.
    pub fn add_viewer(self: &Arc<Self>, selected: Option<u32>) -> Viewer {
        let mut viewers = lock(&self.viewers);
        viewers.count += 1;
        if let Some(number) = selected {
            *viewers.selected.entry(number).or_default() += 1;
        }
        if !viewers.is_collecting {
            let live = Arc::clone(self);
            // If the thread cannot be started, the viewer receives no figures and retries later.
            let thread = std::thread::Builder::new().name("collector".to_owned());
            viewers.is_collecting = thread.spawn(move || collector::collect_figures(&live)).is_ok();
        }
        Viewer { live: Arc::clone(self), selected, figures: self.latest.subscribe() }
    }

    /// Returns true if a collector is running, and thus paths are sending figures to this process.
    #[must_use]
    pub fn is_collecting(&self) -> bool {
        lock(&self.viewers).is_collecting
    }

    /// Returns the request of a path as last listed, or `None` if the path is unknown or its
    /// request is hidden from this user.
    pub(crate) fn listed_request(&self, number: u32) -> Option<String> {
        self.latest.borrow().paths.get(&number)?.path.line.clone()
    }

    /// Returns the numbers of the paths that a viewer has selected.
    pub(crate) fn selected_paths(&self) -> BTreeSet<u32> {
        lock(&self.viewers).selected.keys().copied().collect()
    }

    /// Returns true if there is a viewer. Otherwise, marks the collector as ended, so that the next
    /// viewer starts a new collector.
    pub(crate) fn continue_collecting(&self) -> bool {
        let mut viewers = lock(&self.viewers);
        viewers.is_collecting = viewers.count > 0;
        viewers.is_collecting
    }

    /// Publishes figures, and adds them to the histories.
    pub(crate) fn publish(&self, figures: Figures) {
        let mut histories = lock(&self.histories);
        if figures.failure.is_none() {
            histories.retain(|number, _| figures.paths.contains_key(number));
        }
        for (number, known) in &figures.paths {
            if let (Some(totals), PathState::Running) = (&known.totals, known.state) {
                let history = histories.entry(*number).or_default();
                history.push_totals(figures.time_ms, totals);
                let counters = known.counters.iter();
                counters.for_each(|counters| history.push_edges(figures.time_ms, counters));
            }
        }
        drop(histories);
        self.latest.send_replace(Arc::new(figures));
    }

    /// Returns the history of the edge with index `edge` in a path's plan, or of the path's sources
    /// if `edge` is `None`. The history is empty if there are no samples.
    #[must_use]
    pub fn history(&self, number: u32, edge: Option<usize>) -> RateColumns {
        lock(&self.histories).get(&number).map(|history| history.columns(edge)).unwrap_or_default()
    }
}

/// A browser that shows the page. The figures of the paths are collected while there is at least
/// one viewer.
#[derive(Debug)]
pub struct Viewer {
    live: Arc<LiveFigures>,
    selected: Option<u32>,
    figures: watch::Receiver<Arc<Figures>>,
}

impl Viewer {
    /// Waits for the next figures. Returns `None` if no further figures will be published.
    pub async fn next(&mut self) -> Option<Arc<Figures>> {
        self.figures.changed().await.ok()?;
        Some(Arc::clone(&self.figures.borrow_and_update()))
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut viewers = lock(&self.live.viewers);
        viewers.count -= 1;
        let Some(number) = self.selected else { return };
        if let Some(count) = viewers.selected.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                viewers.selected.remove(&number);
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
