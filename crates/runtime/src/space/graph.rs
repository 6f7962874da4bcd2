//! The part of a graph that runs in a space, with its memory: all that a walk needs.

use super::Clock;
use super::memory::Memory;
use super::node::Node;
use super::pause::Paused;
use super::turn::Turn;
use super::walk::{Shape, Walk};
use buffer::crossing::Batch as Taken;
use buffer::pool::Pool;
use filter::{Columns, Time};

/// The nodes of a space, their memory and their clock.
#[derive(Debug)]
pub(crate) struct LocalGraph {
    pub(super) nodes: Vec<Node>,
    pub(super) shape: Shape,
    /// Memory of blocks that come in: the first for sources that bring none along.
    pub(super) intakes: Vec<Pool>,
    /// Memory of blocks that filters make.
    pub(super) work: Pool,
    pub(super) turn: Turn,
    pub(super) clock: Clock,
    /// Offset from the monotonic clock to the time of day when the path was built, in ns.
    pub(super) epoch: Time,
}

impl LocalGraph {
    /// Walks what `act` puts into the graph, edits what was put aside, and walks on until nothing
    /// is left. `imported`: what was taken off rings for it.
    pub(super) fn walk(
        &mut self,
        now: Time,
        imported: &[Taken<'_>],
        act: impl FnOnce(&mut Walk<'_, '_>),
    ) {
        let mut paused = self.walk_once(now, imported, act);
        while let Some(mut at_rest) = paused.take() {
            self.edit(&mut at_rest, imported, now);
            paused = self.walk_once(now, imported, |walk| walk.resume(at_rest));
        }
    }

    fn walk_once(
        &mut self,
        now: Time,
        imported: &[Taken<'_>],
        act: impl FnOnce(&mut Walk<'_, '_>),
    ) -> Option<Paused> {
        let Self { nodes, shape, intakes, work, turn, .. } = self;
        let mut memory = Memory { intakes, work, imported };
        let mut walk = Walk::new(nodes, &mut memory, shape, now, turn);
        act(&mut walk);
        walk.pause()
    }

    /// Calls the filters that asked to be called by now.
    pub(super) fn tick(&mut self, now: Time, imported: &[Taken<'_>]) {
        if self.nodes.iter().any(|node| node.wake.is_some()) {
            self.walk(now, imported, |walk| walk.tick());
        }
    }

    /// Advances the clock to the time of these blocks, which have just come; returns it.
    pub(super) fn advance(&mut self, columns: &Columns) -> Time {
        let live = self.live();
        self.clock.advance(columns, live)
    }

    /// Returns the live time of the path.
    pub(super) fn live(&self) -> Time {
        sys::clock::monotonic().wrapping_add(self.epoch)
    }

    /// Ends a pass: nothing looks at blocks any more, and what is not kept can be used again.
    pub(super) fn turn_pools(&mut self) {
        self.intakes.iter_mut().for_each(Pool::turn);
        self.work.turn();
    }
}
