//! The thread that collects figures from the user's paths while a browser shows the page.
//!
//! The daemon reports when a path starts or ends. The process of each path sends its totals twice a
//! second over a connection that stays open, so the daemon has no work while paths run. If a viewer
//! has selected a path, its process sends all counters instead. The processes of the other paths
//! send all counters only every 5 s, for the history of their edges.

use crate::live::{EndedPath, Figures, LiveFigures, PathFigures, PathState};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use streamline::paths::rates::{self, Rate};
use streamline::paths::{Client, ClientError, PathClient, PathUpdate, RegisteredPath, Totals};

/// Interval between two samples of the figures that the page shows.
pub const COLLECTION_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between two samples of the edges of a path that no viewer has selected.
const EDGE_SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Time without an update after which a path counts as silent.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time between two attempts to connect to the daemon or to a path.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum time to wait until the daemon has connected this process to a path.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of paths from which figures are collected.
const FOLLOWED_PATHS_MAX: usize = 512;
/// Maximum number of ended paths in the list; older ones are removed.
const ENDED_PATHS_MAX: usize = 8;

/// Collects and publishes figures until no viewer is left. If the connection to the daemon fails,
/// publishes the failure and connects again.
pub(crate) fn collect_figures(live: &LiveFigures) {
    let mut failure = None;
    while live.continue_collecting() {
        let ended = match Collector::connect(live) {
            Ok(mut collector) => collector.run(live),
            Err(error) => Err(error),
        };
        let Err(error) = ended else { return };
        failure.replace(error.to_string());
        live.publish(Figures { time_ms: now_ms(), failure: failure.clone(), ..Figures::default() });
        std::thread::sleep(RETRY_DELAY);
    }
}

struct Collector {
    /// The connection over which the daemon reports starts and ends of paths.
    events: Client,
    /// The connection over which this thread requests connections to paths.
    client: Client,
    followed: BTreeMap<u32, FollowedPath>,
    /// Paths that a viewer has selected.
    selected: BTreeSet<u32>,
    figures: Figures,
}

/// A path of this user from which figures are collected.
struct FollowedPath {
    /// The connection to the path, or the time of the next attempt to connect.
    to: Result<PathClient, Instant>,
    last: Instant,
    /// True if the path sends all its counters.
    sends_counters: bool,
}

impl Collector {
    fn connect(live: &LiveFigures) -> Result<Self, ClientError> {
        let (client, events) = (live.connect()?, live.connect()?);
        let daemon = Some(client.describe_daemon()?);
        events.watch_paths()?;
        let figures = Figures { daemon, ..Figures::default() };
        let (followed, selected) = Default::default();
        Ok(Self { events, client, followed, selected, figures })
    }

    /// Collects and publishes figures until no viewer is left. Fails if the connection to the
    /// daemon is closed.
    fn run(&mut self, live: &LiveFigures) -> Result<(), ClientError> {
        let mut next = Instant::now() + COLLECTION_INTERVAL;
        loop {
            self.wait_and_apply_updates(next.saturating_duration_since(Instant::now()))?;
            let now = Instant::now();
            if now < next {
                continue;
            }
            next = now.max(next + COLLECTION_INTERVAL);
            if !live.continue_collecting() {
                return Ok(());
            }
            self.selected = live.selected_paths();
            self.follow_waiting_paths(now);
            self.change_subscriptions(now);
            self.mark_silent_paths(now);
            self.figures.time_ms = now_ms();
            live.publish(self.figures.clone());
        }
    }

    /// Waits at most `limit` for events from the daemon and updates from paths, and applies them to
    /// the figures.
    fn wait_and_apply_updates(&mut self, limit: Duration) -> Result<(), ClientError> {
        let connected = self.followed.iter().filter_map(|(number, path)| {
            let to = path.to.as_ref().ok()?;
            Some((*number, to.as_fd()))
        });
        let (numbers, mut sockets): (Vec<u32>, Vec<_>) = connected.unzip();
        sockets.push(self.events.as_fd());
        let mut ready = sys::poll::wait_until_readable(&sockets, Some(limit));
        let has_event = ready.pop() == Some(true);
        for (number, _) in numbers.into_iter().zip(ready).filter(|(_, ready)| *ready) {
            self.receive_path_update(number);
        }
        if has_event {
            let event = self.events.next_event()?;
            self.apply_event(&event.event, event.path);
        }
        Ok(())
    }

    fn apply_event(&mut self, what: &str, path: RegisteredPath) {
        let number = path.number;
        if what == "went" {
            self.followed.remove(&number);
            if self.figures.paths.remove(&number).is_some() && path.yours {
                self.record_ended_path(EndedPath { path, ended: None, time_ms: now_ms() });
            }
            return;
        }
        let now = Instant::now();
        if path.yours && self.followed.len() < FOLLOWED_PATHS_MAX {
            let new = FollowedPath { to: Err(now), last: now, sends_counters: false };
            self.followed.entry(number).or_insert(new);
            self.follow(number, now);
        }
        let state = if path.yours { PathState::Running } else { PathState::Hidden };
        match self.figures.paths.get_mut(&number) {
            Some(known) => known.path = path,
            None => {
                let rate = Rate::default();
                let (totals, counters) = (None, None);
                let new = PathFigures { path, state, totals, counters, rate, lost_rate: 0.0 };
                self.figures.paths.insert(number, new);
            }
        }
    }

    /// Adds an ended path to the list of ended paths that the page shows, and removes the oldest if
    /// there are too many. If the path is already in the list, the new entry `end` replaces the old
    /// one only if `end` contains a report.
    fn record_ended_path(&mut self, end: EndedPath) {
        let same = |known: &EndedPath| {
            (known.path.number, known.path.started) == (end.path.number, end.path.started)
        };
        match self.figures.ended.iter_mut().find(|known| same(known)) {
            Some(known) if end.ended.is_some() => *known = end,
            Some(_) => {}
            None => self.figures.ended.push(end),
        }
        let surplus = self.figures.ended.len().saturating_sub(ENDED_PATHS_MAX);
        self.figures.ended.drain(..surplus);
    }

    /// Connects to a path if the path is not connected and the next attempt is due. Subscribes to
    /// the path's totals or, if a viewer has selected the path, to all its counters.
    fn follow(&mut self, number: u32, now: Instant) {
        let Some(path) = self.followed.get_mut(&number) else { return };
        if path.to.as_ref().err().is_some_and(|due| *due <= now) {
            let to = self.client.connect_within(&number.to_string(), CONNECT_TIMEOUT);
            path.sends_counters = self.selected.contains(&number);
            let subscribed = to.and_then(|to| subscribe(&to, path.sends_counters).map(|()| to));
            path.to = subscribed.map_err(|_| now + RETRY_DELAY);
        }
    }

    fn follow_waiting_paths(&mut self, now: Instant) {
        let waiting = self.followed.iter().filter(|(_, path)| path.to.is_err());
        for number in waiting.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.follow(number, now);
        }
    }

    /// Subscribes to all counters of newly selected paths, and to the totals of paths that are no
    /// longer selected.
    fn change_subscriptions(&mut self, now: Instant) {
        for (number, path) in &mut self.followed {
            let selected = self.selected.contains(number);
            if let Ok(to) = &path.to
                && selected != std::mem::replace(&mut path.sends_counters, selected)
                && subscribe(to, selected).is_err()
            {
                path.to = Err(now + RETRY_DELAY);
            }
        }
    }

    fn mark_silent_paths(&mut self, now: Instant) {
        for (number, path) in &self.followed {
            let silent = now.duration_since(path.last) > SILENCE_TIMEOUT;
            if let (true, Some(known)) = (silent, self.figures.paths.get_mut(number)) {
                known.state = PathState::Silent;
                (known.rate, known.lost_rate) = (Rate::default(), 0.0);
            }
        }
    }

    fn receive_path_update(&mut self, number: u32) {
        let Some(path) = self.followed.get_mut(&number) else { return };
        let Ok(to) = &path.to else { return };
        let now = Instant::now();
        match to.next_update() {
            Ok(PathUpdate { ended: Some(ended), .. }) => {
                path.to = Err(now + SILENCE_TIMEOUT);
                if let Some(known) = self.figures.paths.get(&number) {
                    let path = known.path.clone();
                    self.record_ended_path(EndedPath {
                        path,
                        ended: Some(ended),
                        time_ms: now_ms(),
                    });
                }
            }
            Ok(update) => {
                let known = self.figures.paths.get_mut(&number);
                if let (Some(known), Some(totals)) = (known, rates::update_totals(&update)) {
                    path.last = now;
                    store_totals(known, totals);
                    if let Some(counters) = update.counters {
                        known.counters = Some(Arc::new(counters));
                    }
                }
            }
            // The daemon reports the end of a path, so this error only causes a new attempt to
            // connect.
            Err(_) => path.to = Err(now + RETRY_DELAY),
        }
    }
}

/// Subscribes to all counters of a path, or to its totals.
fn subscribe(to: &PathClient, counters: bool) -> Result<(), ClientError> {
    if counters {
        to.subscribe_to_counters(COLLECTION_INTERVAL)
    } else {
        to.subscribe_to_totals(COLLECTION_INTERVAL, Some(EDGE_SAMPLE_INTERVAL))
    }
}

/// Stores the current totals of a path, and computes its rates since the previous totals.
fn store_totals(known: &mut PathFigures, now: Totals) {
    known.state = PathState::Running;
    if let Some(before) = known.totals.replace(now) {
        let ns = now.elapsed_ns.saturating_sub(before.elapsed_ns);
        known.rate = rates::compute_rate(before.given, now.given, ns);
        known.lost_rate = rates::compute_loss_rate(before.lost, now.lost, ns);
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
