//! Latency of blocks, compared with the bound that the request sets. [Th §5.2.2]
//!
//! A request with `--latency` has a **gauge** at each ring between its spaces, at each source that
//! reads a kernel ring, and at each sink. A ring gauge watches one block at a time: the writer
//! stamps the block, the reader measures its age, and any other thread can read how long a block
//! has waited so far. A source gauge and a sink gauge measure every block, by comparing the block's
//! time with a clock that is read once per batch. In a path that uses block times as its clock (a
//! replayed capture), only rings have gauges.
//!
//! A **breach** is a block that reaches a sink later than the bound permits, or that waits at one
//! gauge for longer than the entire bound. A block that exceeds only the share of one gauge is
//! counted at that gauge, but is not a breach, because it may have used less than the shares of
//! other gauges.
//!
//! A request without a bound has no gauges and reads no clock for them.

use filter::{Batch, Columns, LaneMask, Time, lanes};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The latency bound of a path, and its gauges.
#[derive(Debug, Default)]
pub struct LatencyBudget {
    gauges: Mutex<Vec<Arc<LatencyGauge>>>,
    /// Requested bound on the latency, in nanoseconds; 0 if there is no bound.
    bound_ns: AtomicU64,
    breaches: AtomicU64,
}

/// A latency gauge at a ring, a source or a sink of a path.
#[derive(Debug)]
pub struct LatencyGauge {
    name: String,
    /// True if the gauge measures the latency of blocks from source to sink. False if it measures
    /// how long blocks wait at one ring or source.
    end_to_end: bool,
    /// Part of the path's latency bound that blocks may use at this gauge, in nanoseconds.
    share_ns: u64,
    /// Number of the block that the gauge of a ring is watching, counted from 1. If the value is 0,
    /// no block is watched, and the writer may choose one. [`READER_CLOSED`] means that the reader
    /// will take no more blocks.
    watched: AtomicU64,
    /// Monotonic time, in nanoseconds, at which the writer stamped the watched block, just before
    /// it put the block into the ring.
    since: AtomicU64,
    /// Monotonic time, in nanoseconds, of the reader's last call if it left blocks in the ring; 0
    /// if it left none.
    left_since: AtomicU64,
    /// Number of blocks that the gauge has measured.
    measured: AtomicU64,
    /// Number of measured blocks whose latency exceeded `share_ns`.
    exceeded: AtomicU64,
    /// Longest latency that the gauge has measured, in nanoseconds.
    worst_ns: AtomicU64,
    /// Longest latency measured since the last call of [`LatencyBudget::take_breach`], in
    /// nanoseconds.
    recent_ns: AtomicU64,
}

/// Value of [`LatencyGauge::watched`] once the reader takes no more blocks.
const READER_CLOSED: u64 = u64::MAX;

/// A gauge that measures the age of blocks, by comparing their times with the clock.
#[derive(Clone, Debug)]
pub struct AgeGauge {
    gauge: Arc<LatencyGauge>,
    /// Difference between block time and the monotonic clock, in nanoseconds.
    epoch: Time,
}

/// The latencies measured in a path, and the number of breaches.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Latency bound that the request sets, in nanoseconds.
    pub asked_ns: u64,
    /// Number of breaches that [`LatencyBudget::take_breach`] has returned so far. All late blocks
    /// between two calls count as one breach.
    #[serde(rename = "alarms")]
    pub breaches: u64,
    /// End-to-end latency of each sink, measured from the sources.
    #[serde(rename = "ways")]
    pub sinks: Vec<GaugeLatency>,
    /// Times for which blocks waited at each ring and source that has a gauge.
    pub waits: Vec<GaugeLatency>,
}

/// The measurements of one latency gauge.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GaugeLatency {
    /// Name of the sink or source; for a ring, the names of the nodes at both ends of its edge.
    pub name: String,
    /// Part of the path's latency bound that is assigned to the gauge, in nanoseconds.
    pub share_ns: u64,
    /// Number of blocks that the gauge has measured.
    #[serde(rename = "blocks")]
    pub measured: u64,
    /// Number of blocks whose latency exceeded `share_ns`.
    #[serde(rename = "late")]
    pub exceeded: u64,
    /// Longest latency that the gauge has measured, in nanoseconds.
    pub worst_ns: u64,
}

impl LatencyReport {
    /// Adds the latency measurements of another process that runs the same request. Merges
    /// measurements whose gauges have the same name.
    pub fn add(&mut self, other: Self) {
        self.asked_ns = other.asked_ns;
        self.breaches += other.breaches;
        for (all, more) in [(&mut self.sinks, other.sinks), (&mut self.waits, other.waits)] {
            more.into_iter().for_each(|at| merge_measurement(all, at));
        }
    }
}

/// A report of a breach of the latency bound. It names the sink that received the oldest late
/// block, and the ring or source where blocks exceeded their share of the bound most.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LatencyBreach {
    /// Latency bound that the request sets, in nanoseconds.
    pub asked_ns: u64,
    /// The sink that received the oldest late block, and the block's age on arrival, in
    /// nanoseconds; `None` if no late block has arrived.
    pub late_sink: Option<(String, u64)>,
    /// The ring or source where a wait exceeded the gauge's share most, with the wait and the share
    /// in nanoseconds; `None` if no wait exceeded a share.
    pub worst_wait: Option<(String, u64, u64)>,
}

impl LatencyBudget {
    /// Sets the requested bound on the latency, in nanoseconds.
    pub fn set_bound(&self, ns: u64) {
        self.bound_ns.store(ns, Ordering::Relaxed);
    }

    /// Adds a gauge of the wait at one ring or source. `share_ns` is the share of the bound
    /// assigned to the gauge, in nanoseconds.
    pub fn add_wait_gauge(&self, name: String, share_ns: u64) -> Arc<LatencyGauge> {
        self.add_gauge(name, false, share_ns)
    }

    /// Adds a gauge of the latency from the sources to the sink `name`.
    pub fn add_sink_gauge(&self, name: String) -> Arc<LatencyGauge> {
        self.add_gauge(name, true, self.bound_ns.load(Ordering::Relaxed))
    }

    fn add_gauge(&self, name: String, end_to_end: bool, share_ns: u64) -> Arc<LatencyGauge> {
        let gauge = Arc::new(LatencyGauge::new(name, end_to_end, share_ns));
        self.with_gauges(|gauges| gauges.push(Arc::clone(&gauge)));
        gauge
    }

    fn with_gauges<A>(&self, look: impl FnOnce(&mut Vec<Arc<LatencyGauge>>) -> A) -> A {
        look(&mut self.gauges.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the measurements, or `None` if the path has no bound. `now` is monotonic time in
    /// nanoseconds.
    pub fn measurements(&self, now: u64) -> Option<LatencyReport> {
        let asked_ns = self.bound_ns.load(Ordering::Relaxed);
        let breaches = self.breaches.load(Ordering::Relaxed);
        let mut latency = LatencyReport { asked_ns, breaches, ..LatencyReport::default() };
        self.with_gauges(|gauges| {
            for gauge in gauges {
                let list = if gauge.end_to_end { &mut latency.sinks } else { &mut latency.waits };
                // Hot swaps may leave several gauges for one place.
                merge_measurement(list, gauge.measurement(now));
            }
        });
        (asked_ns > 0).then_some(latency)
    }

    /// Returns the breach of the latency bound since the last call, with the worst latencies in
    /// that time. Blocks that are still waiting are included, and all late blocks count as one
    /// breach. Returns `None` if no block exceeded the bound, or if there is no bound. `now` is
    /// monotonic time in nanoseconds.
    pub fn take_breach(&self, now: u64) -> Option<LatencyBreach> {
        let asked_ns = self.bound_ns.load(Ordering::Relaxed);
        if asked_ns == 0 {
            return None;
        }
        let mut breach = LatencyBreach { asked_ns, late_sink: None, worst_wait: None };
        let LatencyBreach { late_sink, worst_wait, .. } = &mut breach;
        let mut late = false;
        self.with_gauges(|gauges| {
            for gauge in gauges {
                let ns = gauge.recent_ns.swap(0, Ordering::Relaxed).max(gauge.waiting_ns(now));
                late |= ns > asked_ns;
                if gauge.end_to_end {
                    if ns > asked_ns && late_sink.as_ref().is_none_or(|(_, known)| ns > *known) {
                        *late_sink = Some((gauge.name.clone(), ns));
                    }
                    continue;
                }
                let beyond = ns.saturating_sub(gauge.share_ns);
                let known = worst_wait.as_ref().map_or(0, |(_, ns, share)| ns - share);
                if beyond > known {
                    *worst_wait = Some((gauge.name.clone(), ns, gauge.share_ns));
                }
            }
        });
        if !late {
            return None;
        }
        self.breaches.fetch_add(1, Ordering::Relaxed);
        Some(breach)
    }
}

impl LatencyGauge {
    const fn new(name: String, end_to_end: bool, share_ns: u64) -> Self {
        Self {
            name,
            end_to_end,
            share_ns,
            watched: AtomicU64::new(0),
            since: AtomicU64::new(0),
            left_since: AtomicU64::new(0),
            measured: AtomicU64::new(0),
            exceeded: AtomicU64::new(0),
            worst_ns: AtomicU64::new(0),
            recent_ns: AtomicU64::new(0),
        }
    }

    /// Begins to watch the block with this number, counted from 1, and records the current time as
    /// its stamp. Does nothing if a block is already being watched, or if the gauge is closed. Must
    /// be called before the block is put into the ring.
    pub fn watch_block(&self, number: u64) {
        if self.watched.load(Ordering::Relaxed) == 0 {
            self.since.store(sys::clock::monotonic_ns(), Ordering::Relaxed);
            // SYNC POINT: block watched; pairs with the Acquire in `measure_watched_block` and in
            // `waiting_ns`. The exchange fails only on a closed gauge.
            let _ = self.watched.compare_exchange(0, number, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// Records the wait of the watched block, if the reader has taken it: if its number is at most
    /// `number`. The caller must have taken all blocks up to `number`. `more` is true if the ring
    /// contains further blocks, which may have no stamp.
    ///
    /// If the watched block has not been taken, but blocks have been left in the ring for longer
    /// than the gauge's share, records this time, which is a lower bound on the wait of these
    /// blocks.
    pub fn measure_watched_block(&self, number: u64, more: bool) {
        // SYNC POINT: block watched; pairs with the Release in `stamp`.
        let watched = self.watched.load(Ordering::Acquire);
        let is_watched = watched != 0 && watched <= number;
        let left = self.left_since.load(Ordering::Relaxed);
        if !is_watched && left == 0 && !more {
            return;
        }
        let now = sys::clock::monotonic_ns();
        self.left_since.store(if more { now } else { 0 }, Ordering::Relaxed);
        if is_watched {
            let ns = now.saturating_sub(self.since.load(Ordering::Relaxed));
            self.record_measurements(1, u64::from(ns > self.share_ns), ns);
            // Relaxed suffices: the writer only tests for 0, and writes `since` before its next
            // Release.
            self.watched.store(0, Ordering::Relaxed);
        } else if left > 0 && now.saturating_sub(left) > self.share_ns {
            // This is a lower bound, because the time at which the block was put is unknown.
            self.record_measurements(1, 1, now - left);
        }
    }

    /// Closes the gauge when the reader stops taking blocks. Unread blocks then no longer count as
    /// waiting.
    pub fn close(&self) {
        self.watched.store(READER_CLOSED, Ordering::Relaxed);
        self.left_since.store(0, Ordering::Relaxed);
    }

    /// Returns the time for which the oldest known block in the ring has waited so far, in
    /// nanoseconds: the watched block, or a block that the reader has left in the ring. The result
    /// is a lower bound; 0 means that no block is waiting. `now` is monotonic time in nanoseconds.
    fn waiting_ns(&self, now: u64) -> u64 {
        // SYNC POINT: block watched; pairs with the Release in `stamp`.
        let since = match self.watched.load(Ordering::Acquire) {
            0 | READER_CLOSED => u64::MAX,
            _ => self.since.load(Ordering::Relaxed),
        };
        let left = Some(self.left_since.load(Ordering::Relaxed)).filter(|left| *left > 0);
        now.saturating_sub(since.min(left.unwrap_or(u64::MAX)))
    }

    fn record_measurements(&self, measured: u64, exceeded: u64, worst_ns: u64) {
        self.measured.fetch_add(measured, Ordering::Relaxed);
        self.exceeded.fetch_add(exceeded, Ordering::Relaxed);
        self.worst_ns.fetch_max(worst_ns, Ordering::Relaxed);
        self.recent_ns.fetch_max(worst_ns, Ordering::Relaxed);
    }

    fn measurement(&self, now: u64) -> GaugeLatency {
        let waits = self.waiting_ns(now);
        GaugeLatency {
            name: self.name.clone(),
            share_ns: self.share_ns,
            measured: self.measured.load(Ordering::Relaxed),
            exceeded: self.exceeded.load(Ordering::Relaxed),
            worst_ns: self.worst_ns.load(Ordering::Relaxed).max(waits),
        }
    }
}

/// Merges a measurement into the entry of `all` with the same name, or appends it if there is none.
fn merge_measurement(all: &mut Vec<GaugeLatency>, new: GaugeLatency) {
    match all.iter_mut().find(|known| known.name == new.name) {
        Some(known) => known.add(&new),
        None => all.push(new),
    }
}

impl GaugeLatency {
    fn add(&mut self, other: &Self) {
        self.share_ns = other.share_ns;
        self.measured += other.measured;
        self.exceeded += other.exceeded;
        self.worst_ns = self.worst_ns.max(other.worst_ns);
    }
}

impl AgeGauge {
    /// Creates a gauge that compares block times with the monotonic clock plus `epoch` nanoseconds.
    #[must_use]
    pub const fn new(gauge: Arc<LatencyGauge>, epoch: Time) -> Self {
        Self { gauge, epoch }
    }

    /// Measures the age of the blocks that a sink has taken: the blocks in the lanes of `mask`.
    /// Skips holes and blocks without a time.
    pub fn measure_taken_blocks(&self, batch: &Batch<'_>, mask: LaneMask) {
        self.measure(batch.columns(), mask, sys::clock::monotonic_ns().wrapping_add(self.epoch));
    }

    /// Measures the age, at time `now`, of the blocks that a source has emitted. Skips holes and
    /// blocks without a time.
    pub fn measure_emitted_blocks(&self, columns: &Columns, now: Time) {
        self.measure(columns, columns.live_lanes(), now);
    }

    fn measure(&self, columns: &Columns, mask: LaneMask, now: Time) {
        let (mut measured, mut exceeded, mut worst) = (0, 0, 0);
        for lane in lanes(mask) {
            // Skip blocks without a time. Skip holes, too: a hole carries the time of an earlier
            // block, so the end of a connection that timed out would count as late.
            let entry = columns.entry(lane);
            let since = entry.context.time;
            if since == 0 || entry.pointer.is_hole() {
                continue;
            }
            let age = now.saturating_sub(since);
            measured += 1;
            exceeded += u64::from(age > self.gauge.share_ns);
            worst = worst.max(age);
        }
        self.gauge.record_measurements(measured, exceeded, worst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{BlockMetadata, Class, DbufId, Extent, Marks, RichPointer};
    use filter::Block;

    const NS_PER_MS: u64 = 1_000_000;

    fn example_budget() -> LatencyBudget {
        let budget = LatencyBudget::default();
        budget.set_bound(10 * NS_PER_MS);
        budget
    }

    #[test]
    fn v14_wait_over_share_is_counted_and_over_bound_is_a_breach() {
        let budget = example_budget();
        let (ring, sink) = (
            budget.add_wait_gauge("a → b".to_owned(), 4 * NS_PER_MS),
            budget.add_sink_gauge("b".to_owned()),
        );
        ring.record_measurements(3, 1, 5 * NS_PER_MS);
        sink.record_measurements(64, 0, 9 * NS_PER_MS);
        assert_eq!(budget.take_breach(0), None, "others needed less than their share");
        ring.record_measurements(1, 1, 12 * NS_PER_MS);
        sink.record_measurements(64, 7, 14 * NS_PER_MS);
        let breach = budget.take_breach(0).expect("older than the bound");
        assert_eq!(breach.late_sink, Some(("b".to_owned(), 14 * NS_PER_MS)));
        assert_eq!(breach.worst_wait, Some(("a → b".to_owned(), 12 * NS_PER_MS, 4 * NS_PER_MS)));
        assert_eq!(budget.take_breach(0), None, "it has been told");
        let latency = budget.measurements(0).expect("there is a bound");
        let line = |name: &str, share_ns, measured, exceeded, worst_ns| GaugeLatency {
            name: name.to_owned(),
            share_ns,
            measured,
            exceeded,
            worst_ns,
        };
        assert_eq!(latency.waits, [line("a → b", 4 * NS_PER_MS, 4, 2, 12 * NS_PER_MS)]);
        assert_eq!(latency.sinks, [line("b", 10 * NS_PER_MS, 128, 7, 14 * NS_PER_MS)]);
        assert_eq!((latency.asked_ns, latency.breaches), (10 * NS_PER_MS, 1));
    }

    #[test]
    fn v14_gauge_watches_one_block_and_reports_a_stuck_one() {
        let budget = example_budget();
        let ring = budget.add_wait_gauge("a → b".to_owned(), 4 * NS_PER_MS);
        ring.watch_block(1);
        let since = ring.since.load(Ordering::Relaxed);
        ring.watch_block(65);
        assert_eq!(ring.watched.load(Ordering::Relaxed), 1, "the first is under way");
        assert_eq!(budget.take_breach(since + 10 * NS_PER_MS), None, "not longer than the whole");
        let breach = budget.take_breach(since + 11 * NS_PER_MS).expect("nobody takes it");
        assert_eq!(
            (breach.late_sink, breach.worst_wait),
            (None, Some(("a → b".to_owned(), 11 * NS_PER_MS, 4 * NS_PER_MS)))
        );
        ring.measure_watched_block(0, false);
        assert_eq!(ring.measured.load(Ordering::Relaxed), 0, "it is not among these");
        ring.measure_watched_block(64, true);
        assert_eq!(ring.measured.load(Ordering::Relaxed), 1);
        let left = ring.left_since.load(Ordering::Relaxed);
        assert_eq!(ring.waiting_ns(left + 3), 3, "those that were left wait");
        ring.measure_watched_block(128, false);
        assert_eq!(ring.waiting_ns(u64::MAX), 0, "none is left");
        ring.watch_block(129);
        ring.close();
        assert_eq!(budget.measurements(u64::MAX).map(|latency| latency.waits[0].measured), Some(1));
        ring.watch_block(130);
        assert_eq!(ring.waiting_ns(u64::MAX), 0, "nobody takes any more");
    }

    #[test]
    fn v14_end_of_a_timed_out_connection_has_no_age() {
        let budget = example_budget();
        let gauge = AgeGauge::new(budget.add_sink_gauge("b".to_owned()), 0);
        let mut batch = Batch::empty();
        for (pointer, time) in [
            (RichPointer::hole(0), 1),
            (
                RichPointer::new(DbufId::new(1).unwrap(), Extent::new(0, 9), Class::YES),
                600 * NS_PER_MS,
            ),
        ] {
            let context = BlockMetadata { time, ..BlockMetadata::default() };
            let marks = Marks::for_plain_block(pointer.length());
            batch.push(Block { pointer, frame: &[], marks, context }, 0).unwrap();
        }
        gauge.measure(batch.columns(), batch.live_lanes(), 601 * NS_PER_MS);
        assert_eq!(budget.take_breach(0), None);
        let latency = budget.measurements(0).expect("there is a bound");
        assert_eq!((latency.sinks[0].measured, latency.sinks[0].worst_ns), (1, NS_PER_MS));
    }

    #[test]
    fn v14_request_without_bound_reports_nothing() {
        let budget = LatencyBudget::default();
        assert_eq!((budget.measurements(0), budget.take_breach(0)), (None, None));
    }
}
