//! The walk while somebody asks what becomes of a flow ([`crate::why`]).

use super::node::{Node, NodeId, Part};
use super::turn::Turn;
use super::walk::{Ran, Walk};
use crate::why::Why;
use filter::{Batch, Block, lanes};

impl Turn {
    /// Has whatever leaves these nodes routed, and told, if somebody asks.
    pub(super) fn trace(&self, nodes: &mut [Node]) {
        if self.why.is_some() {
            nodes.iter_mut().flat_map(|node| &mut node.arcs).for_each(|arc| arc.plain = false);
        }
    }
}

impl<'a> Walk<'_, 'a> {
    /// Runs a node and tells what it did with the block. There is one block: where a filter let go
    /// several, they were routed one by one.
    pub(super) fn traced(&mut self, at: NodeId, batch: &mut Batch<'a>) -> Ran<'a> {
        let Some(why) = self.turn.why.clone() else { return self.run(at, batch) };
        let planned = self.nodes[at].planned;
        let ours = self.come(at, batch, &why);
        let before = self.nodes[at].counts.clone();
        let now = self.now;
        let ran = self.run(at, batch);
        if let [block] = ours.as_slice() {
            let node = &self.nodes[at];
            why.did(planned, (&before, &node.counts), (node.reasons, block, now));
        }
        ran
    }

    /// Tells what leaves a node; where that is several blocks they are routed here, one by one, and
    /// the answer is that it was done.
    pub(super) fn trace(&mut self, from: NodeId, batch: &mut Batch<'a>, hops: u8) -> bool {
        let Some(why) = self.turn.why.clone() else { return false };
        let live = batch.live();
        if live.count_ones() > 1 {
            for l in lanes(live) {
                let mut one = batch.duplicate();
                one.keep(1 << l);
                self.route(from, &mut one, hops);
            }
            return true;
        }
        if let (Some(l), true) = (lanes(live).next(), self.is_told(from)) {
            let wanted = self.nodes[from].arcs.iter().any(|arc| arc.wanted.select(batch) != 0);
            let block = batch.block(l);
            let node = &self.nodes[from];
            if matches!(node.part, Part::Source(_)) {
                why.begins(node.planned, &block);
            }
            why.leaves(node.planned, &block, wanted, self.now);
        }
        false
    }

    /// Tells what comes to a node; answers the blocks of the flow among it.
    fn come(&self, at: NodeId, batch: &Batch<'a>, why: &Why) -> Vec<Block<'a>> {
        let planned = self.nodes[at].planned;
        let blocks = lanes(batch.live()).map(|l| batch.block(l));
        blocks.filter(|block| self.is_told(at) && why.comes(planned, block)).collect()
    }

    /// Tells what comes to an editing filter, which is called later.
    pub(super) fn trace_coming(&self, at: NodeId, batch: &Batch<'a>) {
        if let Some(why) = &self.turn.why {
            self.come(at, batch, why);
        }
    }

    /// Whether a node is one of the request, not the end of a ring.
    fn is_told(&self, at: NodeId) -> bool {
        !matches!(self.nodes[at].part, Part::Export(_) | Part::Pass)
    }
}
