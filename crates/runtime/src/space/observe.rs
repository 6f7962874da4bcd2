//! Observers of the walk: one interface for tracing, taps and timing.
//!
//! An observer is called when a batch enters a node, when the node has run, and when the node's
//! output is routed. Without observers a walk pays a load and a branch at up to three sites per
//! node.

use super::node::Node;
use super::taps::Taps;
use filter::{Batch, LaneMask, Time};
use std::fmt;

/// An observer of the walk of one space, called in the thread of the space. Calls of
/// [`Observer::begins`] and [`Observer::done`] nest.
pub trait Observer: fmt::Debug + Send {
    /// Called with a batch before the node runs.
    fn begins(&mut self, _: &Node, _: &Batch<'_>) {}

    /// Called after the node has run.
    fn done(&mut self, _: &mut Node, _: Time) {}

    /// Called with the live output of a node before it is routed. `wanted` are the lanes that at
    /// least one arc accepts.
    fn routed(&mut self, _: &Node, _: &Batch<'_>, _wanted: LaneMask, _: Time) {}

    /// Returns true if nodes must emit their blocks one at a time.
    fn splits_batches(&self) -> bool {
        false
    }
}

/// The observers of a space.
#[derive(Debug, Default)]
pub struct Observers {
    /// True if at least one observer is set.
    active: bool,
    timing: Option<Timing>,
    taps: Option<Box<Taps>>,
    tracer: Option<Box<dyn Observer>>,
}

impl Observers {
    /// Creates the observers of a new space. Measures time if `timed` is true or there is a tracer.
    pub(super) fn new(timed: bool, tracer: Option<Box<dyn Observer>>) -> Self {
        let timing = (timed || tracer.is_some()).then(Timing::default);
        let active = timing.is_some() || tracer.is_some();
        Self { active, timing, taps: None, tracer }
    }

    /// Returns true if the walk has an observer.
    #[inline]
    pub(super) const fn is_active(&self) -> bool {
        self.active
    }

    /// Returns true if the time spent in filters is measured.
    pub(super) const fn measure_time(&self) -> bool {
        self.timing.is_some()
    }

    /// Enables or disables the measurement of the time spent in filters.
    pub(super) fn set_timed(&mut self, on: bool) {
        self.timing = on.then(Timing::default);
        self.update();
    }

    /// Returns true if an observer reads the bytes of blocks.
    pub(super) const fn reads_bytes(&self) -> bool {
        self.taps.is_some() || self.tracer.is_some()
    }

    /// Returns the set of taps, after creating it if there is none.
    pub(super) fn taps(&mut self) -> &mut Taps {
        self.active = true;
        self.taps.get_or_insert_default()
    }

    /// Ends the taps of nodes for which `is_here` is false. Removes the set of taps if it is then
    /// empty.
    pub(super) fn keep_taps(&mut self, is_here: impl Fn(usize) -> bool) {
        if let Some(taps) = &mut self.taps {
            taps.retain(is_here);
        }
        self.taps = self.taps.take().filter(|taps| !taps.is_empty());
        self.update();
    }

    fn update(&mut self) {
        self.active = self.timing.is_some() || self.taps.is_some() || self.tracer.is_some();
    }

    /// Iterates over the active observers. Timing begins last, so that it excludes the time of the
    /// other observers.
    fn active_observers(&mut self) -> impl Iterator<Item = &mut dyn Observer> {
        let tracer = self.tracer.as_mut().map(|one| &mut **one as &mut dyn Observer);
        let taps = self.taps.as_mut().map(|one| &mut **one as &mut dyn Observer);
        let timing = self.timing.as_mut().map(|one| one as &mut dyn Observer);
        [tracer, taps, timing].into_iter().flatten()
    }

    #[cold]
    pub(super) fn begins(&mut self, node: &Node, batch: &Batch<'_>) {
        self.active_observers().for_each(|one| one.begins(node, batch));
    }

    #[cold]
    pub(super) fn done(&mut self, node: &mut Node, now: Time) {
        if let Some(timing) = &mut self.timing {
            timing.done(node, now);
        }
        if let Some(tracer) = &mut self.tracer {
            tracer.done(node, now);
        }
    }

    #[cold]
    pub(super) fn routed(&mut self, node: &Node, batch: &Batch<'_>, wanted: LaneMask, now: Time) {
        self.active_observers().for_each(|one| one.routed(node, batch, wanted, now));
    }

    #[cold]
    pub(super) fn split_batches(&mut self) -> bool {
        self.active_observers().any(|one| one.splits_batches())
    }
}

/// An observer that measures the time spent in filters.
#[derive(Debug, Default)]
struct Timing {
    /// Monotonic start times in nanoseconds of the running nodes. The innermost node is last.
    begun: Vec<u64>,
}

impl Observer for Timing {
    fn begins(&mut self, _: &Node, _: &Batch<'_>) {
        self.begun.push(sys::clock::monotonic());
    }

    fn done(&mut self, node: &mut Node, _: Time) {
        if let Some(begun) = self.begun.pop() {
            node.flow.busy_ns += sys::clock::monotonic().saturating_sub(begun);
        }
    }
}
