//! The graph of a space. It includes the memory and state for walks, each of which passes one batch
//! through the graph.

use super::Clock;
use super::graph_shape::GraphShape;
use super::memory::Memory;
use super::node::{Node, Operator};
use super::pass::PassState;
use super::pause::PausedWalk;
use super::walk::Walk;
use buffer::crossing::Batch as RingBatch;
use buffer::pool::Pool;
use endpoint::BatchLimit;
use filter::{Columns, Filter, Time};

/// The graph of a space, with the memory, clock and pass state that walks need. A walk passes one
/// batch through the graph.
#[derive(Debug)]
pub(crate) struct LocalGraph {
    pub(super) nodes: Vec<Node>,
    pub(super) shape: GraphShape,
    /// Pools for input. The first one serves all sources that have no memory of their own.
    pub(super) intakes: Vec<Pool>,
    /// Pool for blocks that filters create.
    pub(super) work: Pool,
    pub(super) pass: PassState,
    pub(super) clock: Clock,
    /// Offset from the monotonic clock to the time of day, in nanoseconds, measured when the path
    /// was built.
    pub(super) epoch: Time,
}

impl LocalGraph {
    /// Runs a walk, which begins by calling `act`. If the walk pauses for a deferred edit, makes
    /// the edit and continues the walk, until no block is in flight. `imported` contains the ring
    /// batches that the walk reads.
    pub(super) fn walk(
        &mut self,
        now: Time,
        imported: &[RingBatch<'_>],
        act: impl FnOnce(&mut Walk<'_, '_>),
    ) {
        let mut paused = self.walk_once(now, imported, act);
        while let Some(mut at_rest) = paused.take() {
            self.run_first_editor(&mut at_rest, imported, now);
            paused = self.walk_once(now, imported, |walk| walk.resume(at_rest));
        }
    }

    fn walk_once(
        &mut self,
        now: Time,
        imported: &[RingBatch<'_>],
        act: impl FnOnce(&mut Walk<'_, '_>),
    ) -> Option<PausedWalk> {
        let Self { nodes, shape, intakes, work, pass, .. } = self;
        let mut memory = Memory { intakes, work, imported };
        let mut walk = Walk::new(nodes, &mut memory, shape, now, pass);
        act(&mut walk);
        walk.pause()
    }

    /// Calls the filters whose timers have expired at time `now`. Passes their output through the
    /// graph.
    pub(super) fn run_expired_timers(&mut self, now: Time, imported: &[RingBatch<'_>]) {
        if self.nodes.iter().any(|node| node.wake.is_some()) {
            self.walk(now, imported, |walk| walk.run_expired_timers());
        }
    }

    /// Returns the limit of the next batch in block time. Returns `None` if the path's clock does
    /// not advance with blocks, or if no filter that gets the blocks from this space can have
    /// timers.
    pub(super) fn batch_limit(&self) -> Option<BatchLimit> {
        // The filters behind a dispatcher, which are in other spaces, may have timers.
        let may_have_timers = |node: &Node| {
            matches!(node.operator, Operator::Filter(Filter::Stream(_)) | Operator::Dispatch(_))
        };
        match self.clock {
            Clock::BlockTime(_) if self.nodes.iter().any(may_have_timers) => {
                Some(BatchLimit::new(self.nodes.iter().filter_map(|node| node.wake).min()))
            }
            _ => None,
        }
    }

    /// Advances the clock to the time of the newest block of a batch. Returns the time on the
    /// path's clock, in nanoseconds.
    pub(super) fn advance_clock(&mut self, columns: &Columns) -> Time {
        let live = self.wall_clock_time();
        self.clock.advance(columns, live)
    }

    /// Returns the time of day in nanoseconds: monotonic time plus `epoch`.
    pub(super) fn wall_clock_time(&self) -> Time {
        sys::clock::monotonic_ns().wrapping_add(self.epoch)
    }

    /// Ends a pass over the inputs. No block is borrowed any more, so the pools may reuse unpinned
    /// memory.
    pub(super) fn end_pass(&mut self) {
        self.intakes.iter_mut().for_each(Pool::end_pass);
        self.work.end_pass();
    }
}
