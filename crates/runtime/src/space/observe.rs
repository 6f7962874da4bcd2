//! Observers of the walk: one interface for tracing, taps and timing.
//!
//! An observer is called when a batch enters a node, when the node has run, and when the node's
//! output is routed. If there are no observers, the interface costs one load and one branch at up
//! to three points per node.

use super::node::Node;
use super::taps::Taps;
use endpoint::RetainedFrames;
use filter::{Batch, LaneMask, Time};
use std::fmt;

/// An observer of the walks of one space, called in the space's thread. Calls of
/// [`Observer::before_node`] and [`Observer::after_node`] are nested.
pub trait Observer: fmt::Debug + Send {
    /// Called before a node runs on a batch.
    fn before_node(&mut self, _: &Node, _: &Batch<'_>) {}

    /// Called after a node has run on a batch.
    fn after_node(&mut self, _: &mut Node, _: Time) {}

    /// Called with the output of a node before the output is routed. `_wanted` contains the lanes
    /// that at least one arc accepts.
    fn before_routing(&mut self, _: &Node, _: &Batch<'_>, _wanted: LaneMask, _: Time) {}

    /// Returns true if this observer requires nodes to emit their blocks one at a time.
    fn splits_batches(&self) -> bool {
        false
    }
}

/// The observers of a space: the time measurement, the taps, and a tracer.
#[derive(Debug, Default)]
pub struct Observers {
    /// True if at least one observer is set.
    active: bool,
    timing: Option<TimingObserver>,
    taps: Option<Box<Taps>>,
    tracer: Option<Box<dyn Observer>>,
}

impl Observers {
    /// Creates the observers of a new space. Measures time if `timed` is true or there is a tracer.
    pub(super) fn new(timed: bool, tracer: Option<Box<dyn Observer>>) -> Self {
        let timing = (timed || tracer.is_some()).then(TimingObserver::default);
        let active = timing.is_some() || tracer.is_some();
        Self { active, timing, taps: None, tracer }
    }

    /// Returns true if the walk has an observer.
    #[inline]
    pub(super) const fn is_active(&self) -> bool {
        self.active
    }

    /// Returns true if the time spent in filters is measured.
    pub(super) const fn measures_time(&self) -> bool {
        self.timing.is_some()
    }

    /// Enables or disables the measurement of the time spent in filters.
    pub(super) fn set_time_measurement(&mut self, on: bool) {
        self.timing = on.then(TimingObserver::default);
        self.update_active_flag();
    }

    /// Returns true if an observer reads the bytes of blocks.
    pub(super) const fn reads_bytes(&self) -> bool {
        self.taps.is_some() || self.tracer.is_some()
    }

    /// Returns the observer that serves taps and stores past output for them ([`super::taps`]), or
    /// `None` if there are no taps and no stored output.
    pub(super) fn existing_taps(&mut self) -> Option<&mut Taps> {
        self.taps.as_deref_mut()
    }

    /// Returns the frames that are stored in histories of past output. Each history is paired with
    /// the number of its node.
    pub(crate) fn retained_frames(&self) -> Vec<(usize, RetainedFrames)> {
        self.taps.as_ref().map_or_else(Vec::new, |taps| taps.retained_frames())
    }

    /// Returns the observer that serves taps. Creates it if there is none.
    pub(super) fn get_or_create_taps(&mut self) -> &mut Taps {
        self.active = true;
        self.taps.get_or_insert_default()
    }

    /// Ends the taps on nodes that have left the space. `is_here` returns true for the numbers of
    /// the remaining nodes. Removes the tap observer if no tap and no stored output remains.
    pub(super) fn retain_taps(&mut self, is_here: impl Fn(usize) -> bool) {
        if let Some(taps) = &mut self.taps {
            taps.retain(is_here);
        }
        self.taps = self.taps.take().filter(|taps| !taps.is_empty());
        self.update_active_flag();
    }

    fn update_active_flag(&mut self) {
        self.active = self.timing.is_some() || self.taps.is_some() || self.tracer.is_some();
    }

    /// Iterates over the active observers. The observer that measures time comes last, so that its
    /// measurements exclude the work of the other observers.
    fn active_observers(&mut self) -> impl Iterator<Item = &mut dyn Observer> {
        let tracer = self.tracer.as_mut().map(|one| &mut **one as &mut dyn Observer);
        let taps = self.taps.as_mut().map(|one| &mut **one as &mut dyn Observer);
        let timing = self.timing.as_mut().map(|one| one as &mut dyn Observer);
        [tracer, taps, timing].into_iter().flatten()
    }

    #[cold]
    pub(super) fn before_node(&mut self, node: &Node, batch: &Batch<'_>) {
        self.active_observers().for_each(|one| one.before_node(node, batch));
    }

    #[cold]
    pub(super) fn after_node(&mut self, node: &mut Node, now: Time) {
        if let Some(timing) = &mut self.timing {
            timing.after_node(node, now);
        }
        if let Some(tracer) = &mut self.tracer {
            tracer.after_node(node, now);
        }
    }

    #[cold]
    pub(super) fn before_routing(
        &mut self,
        node: &Node,
        batch: &Batch<'_>,
        wanted: LaneMask,
        now: Time,
    ) {
        self.active_observers().for_each(|one| one.before_routing(node, batch, wanted, now));
    }

    #[cold]
    pub(super) fn must_split_batches(&mut self) -> bool {
        self.active_observers().any(|one| one.splits_batches())
    }
}

/// The observer that measures the time spent in each filter.
#[derive(Debug, Default)]
struct TimingObserver {
    /// Monotonic start times, in nanoseconds, of the calls of nodes that are in progress. The
    /// innermost call is last.
    start_times: Vec<u64>,
}

impl Observer for TimingObserver {
    fn before_node(&mut self, _: &Node, _: &Batch<'_>) {
        self.start_times.push(sys::clock::monotonic_ns());
    }

    fn after_node(&mut self, node: &mut Node, _: Time) {
        if let Some(begun) = self.start_times.pop() {
            node.flow.busy_ns += sys::clock::monotonic_ns().saturating_sub(begun);
        }
    }
}
