//! Observers of the walk: one interface for all that looks at blocks on their way.
//!
//! A node begins with a batch, has done with it, and what leaves it is routed; an observer hears of
//! each. While nothing observes, a walk pays one load and a branch per node.

use super::node::Node;
use super::taps::Taps;
use filter::{Batch, LaneMask, Time};
use std::fmt;

/// An observer of the walk of one space, called in its thread. Calls of [`Observer::begins`] and
/// [`Observer::done`] nest.
pub trait Observer: fmt::Debug + Send {
    /// Observes a batch that comes to a node, before the node runs.
    fn begins(&mut self, _: &Node, _: &Batch<'_>) {}

    /// Observes a node that has run.
    fn done(&mut self, _: &mut Node, _: Time) {}

    /// Observes the live blocks that leave a node, of which arcs take those that are `wanted`.
    fn routed(&mut self, _: &Node, _: &Batch<'_>, _wanted: LaneMask, _: Time) {}

    /// Returns true if blocks must leave nodes one at a time.
    fn splits_batches(&self) -> bool {
        false
    }
}

/// The observers of a space.
#[derive(Debug, Default)]
pub struct Observers {
    /// True if there is one.
    active: bool,
    timing: Option<Timing>,
    taps: Option<Box<Taps>>,
    tracer: Option<Box<dyn Observer>>,
}

impl Observers {
    /// Observers that measure time in filters, if `timed`, and trace blocks.
    pub(super) fn new(timed: bool, tracer: Option<Box<dyn Observer>>) -> Self {
        let timing = (timed || tracer.is_some()).then(Timing::default);
        let active = timing.is_some() || tracer.is_some();
        Self { active, timing, taps: None, tracer }
    }

    /// Returns true if the walk has an observer.
    #[inline]
    pub(super) const fn are_active(&self) -> bool {
        self.active
    }

    /// Returns true if the time in filters is measured.
    pub(super) const fn measure_time(&self) -> bool {
        self.timing.is_some()
    }

    /// Measures the time in filters from now on, or no more.
    pub(super) fn set_timed(&mut self, on: bool) {
        self.timing = on.then(Timing::default);
        self.update();
    }

    /// Returns true if an observer looks at bytes.
    pub(super) const fn look(&self) -> bool {
        self.taps.is_some() || self.tracer.is_some()
    }

    /// Returns the taps, which are made if there are none.
    pub(super) fn taps(&mut self) -> &mut Taps {
        self.active = true;
        self.taps.get_or_insert_default()
    }

    /// Keeps the taps for which there is something to do.
    pub(super) fn keep_taps(&mut self, is_here: impl Fn(usize) -> bool) {
        if let Some(taps) = &mut self.taps {
            taps.stay(is_here);
        }
        self.taps = self.taps.take().filter(|taps| !taps.is_empty());
        self.update();
    }

    fn update(&mut self) {
        self.active = self.timing.is_some() || self.taps.is_some() || self.tracer.is_some();
    }

    /// The innermost last: the time of other observers is not that of filters.
    fn each(&mut self) -> impl Iterator<Item = &mut dyn Observer> {
        let tracer = self.tracer.as_mut().map(|one| &mut **one as &mut dyn Observer);
        let taps = self.taps.as_mut().map(|one| &mut **one as &mut dyn Observer);
        let timing = self.timing.as_mut().map(|one| one as &mut dyn Observer);
        [tracer, taps, timing].into_iter().flatten()
    }

    #[cold]
    pub(super) fn begins(&mut self, node: &Node, batch: &Batch<'_>) {
        self.each().for_each(|one| one.begins(node, batch));
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
        self.each().for_each(|one| one.routed(node, batch, wanted, now));
    }

    #[cold]
    pub(super) fn split_batches(&mut self) -> bool {
        self.each().any(|one| one.splits_batches())
    }
}

/// The time in filters.
#[derive(Debug, Default)]
struct Timing {
    /// The time at which the nodes that run began, in ns.
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
