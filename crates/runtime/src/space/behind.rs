//! The last of a join: what replicas let out at their end, merged in the order that one instance
//! would keep. [Th §5.4; CONTRACT 16]
//!
//! In: from each replica elsewhere blocks that bear a step and a rank, ascending; the sessions of
//! the replica here, which ends one of them when it comes first ([`super::replica`]). Out: all of
//! it, ascending. A replica that has neither ended nor given anything is waited for: what it gives
//! may be first.

use super::copies::Gather;
use super::graph::LocalGraph;
use super::node::{Node, NodeId, Part};
use super::replica::Leaving;
use buffer::Fault;
use filter::{Filter, LANES, Time};

/// A step of the end, and a rank in it.
type Place = (u32, u32);
/// Behind everything.
const END: Place = (u32::MAX, u32::MAX);

/// The part of the replica beside a join that is yet to end.
#[derive(Debug)]
pub(crate) struct Behind {
    /// Its filters that are yet to end, the last first.
    filters: Vec<NodeId>,
    /// The node that is ending, and its sessions.
    ends: Option<(NodeId, Leaving)>,
    step: u32,
    /// The path's time at the end.
    now: Time,
}

impl Behind {
    /// Collects the filters of the replica among these nodes, given in graph order.
    fn new(nodes: &[Node], order: &[NodeId], now: Time) -> Self {
        let lets_out = |at: &NodeId| {
            let node: &Node = &nodes[*at];
            node.copied && matches!(node.part, Part::Filter(Filter::Stream(_)))
        };
        let filters = order.iter().copied().filter(lets_out).rev().collect();
        Self { filters, ends: None, step: 0, now }
    }

    /// Returns true if all its sessions have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.filters.is_empty() && self.ends.is_none()
    }
}

impl LocalGraph {
    /// Lets out what comes first of what is behind all bursts; answers whether there was anything.
    pub(super) fn join_behind(&mut self, gather: &mut Gather) -> Result<bool, Fault> {
        let Some((way, place, end)) = first_elsewhere(gather)? else { return Ok(false) };
        let mut behind = match gather.behind.take() {
            Some(behind) => behind,
            None => self.ends_here(gather),
        };
        let mut moved = false;
        while self.turn.failure.is_none() && self.next_here(&mut behind).is_some_and(|p| p < place)
        {
            self.let_out_one(&mut behind);
            moved = true;
        }
        let end = self.next_here(&mut behind).map_or(end, |here| here.min(end));
        gather.behind = Some(behind);
        if place == END || moved {
            return Ok(moved);
        }
        let node = gather.ways[way].node;
        let taken = gather.ways[way].import.look(LANES)?;
        let ours =
            (0..taken.len()).take_while(|at| *at == 0 || taken.entry(*at).marks.end_step() < end);
        let count = ours.count();
        let taken = gather.ways[way].import.look(count)?;
        self.walk_taken(&[taken], &[node]);
        gather.ways[way].import.release(count)?;
        Ok(true)
    }

    /// The end of the replica here begins.
    fn ends_here(&mut self, gather: &Gather) -> Behind {
        self.turn.end = gather.board.end();
        let live = self.live();
        let now = self.clock.not_before(gather.board.clock(), live);
        Behind::new(&self.nodes, &self.shape.order, now)
    }

    /// Returns the position of the next session to end here, if one is left.
    fn next_here(&mut self, behind: &mut Behind) -> Option<Place> {
        loop {
            if let Some((_, leaving)) = &behind.ends
                && let Some(rank) = leaving.next()
            {
                return Some((behind.step, rank));
            }
            behind.ends = None;
            let at = behind.filters.pop()?;
            behind.step += 1;
            let leaving = Leaving::of(&mut self.nodes[at], &self.turn.births, self.turn.end);
            behind.ends = Some((at, leaving));
        }
    }

    /// Ends the next session here.
    fn let_out_one(&mut self, behind: &mut Behind) {
        let Some((at, leaving)) = &mut behind.ends else { return };
        let at = *at;
        self.walk(behind.now, &[], |walk| walk.finish_session(at, leaving));
        self.turn_pools();
    }
}

/// The replica elsewhere whose next block comes first, where that stands, and where the next of any
/// other one does. None: one that has not ended has given nothing yet.
fn first_elsewhere(gather: &mut Gather) -> Result<Option<(usize, Place, Place)>, Fault> {
    let (mut first, mut second) = ((0, END), END);
    for (number, way) in gather.ways.iter_mut().enumerate() {
        if way.own.is_some() || way.import.is_finished()? {
            continue;
        }
        let taken = way.import.look(1)?;
        if taken.is_empty() {
            return Ok(None);
        }
        let place = taken.entry(0).marks.end_step();
        if place < first.1 {
            (first, second) = ((number, place), first.1);
        } else {
            second = second.min(place);
        }
    }
    Ok(Some((first.0, first.1, second)))
}
