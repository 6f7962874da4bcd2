//! The last phase of a join: final output of the replicas, merged in the order of a single
//! instance. [Th §5.4; CONTRACT 16]
//!
//! In: from each replica in another space, blocks marked with step and rank in ascending order;
//! from the replica in this space, its sessions, which are ended on demand
//! ([`super::replica_end`]). Out: all blocks in ascending order. The merge waits for a replica that
//! has neither ended nor delivered a block, since its next block may come first.

use super::final_sessions::{END, EndPosition, FinalSessions};
use super::graph::LocalGraph;
use super::join_state::ReplicaJoin;
use super::sessions::SessionEnds;
use buffer::Fault;
use filter::LANES;

impl LocalGraph {
    /// Emits the next part of the final output. Returns false if it must wait for a replica, or if
    /// nothing is left.
    pub(super) fn join_final(&mut self, gather: &mut ReplicaJoin) -> Result<bool, Fault> {
        let Some((way, place, end)) = first_elsewhere(gather)? else { return Ok(false) };
        let mut behind = match gather.behind.take() {
            Some(behind) => behind,
            None => self.begin_end(gather),
        };
        let mut moved = false;
        while self.pass.failure.is_none() && self.next_here(&mut behind).is_some_and(|p| p < place)
        {
            self.end_next_session(&mut behind);
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

    /// Begins the end of the replica in this space.
    fn begin_end(&mut self, gather: &ReplicaJoin) -> FinalSessions {
        self.pass.end = gather.board.end();
        let live = self.live();
        let now = self.clock.not_before(gather.board.clock(), live);
        FinalSessions::new(&self.nodes, &self.shape.order, now)
    }

    /// Returns the position of the next session of the replica in this space, beginning the end of
    /// the next filter if need be; `None` if no session is left.
    fn next_here(&mut self, behind: &mut FinalSessions) -> Option<EndPosition> {
        loop {
            if let Some((_, leaving)) = &behind.ends
                && let Some(rank) = leaving.next()
            {
                return Some((behind.step, rank));
            }
            behind.ends = None;
            let at = behind.filters.pop()?;
            behind.step += 1;
            let leaving = SessionEnds::of(&mut self.nodes[at], &self.pass.births, self.pass.end);
            behind.ends = Some((at, leaving));
        }
    }

    /// Ends the next session of the replica in this space and walks its output.
    fn end_next_session(&mut self, behind: &mut FinalSessions) {
        let Some((at, leaving)) = &mut behind.ends else { return };
        let at = *at;
        self.walk(behind.now, &[], |walk| walk.finish_session(at, leaving));
        self.end_pass();
    }
}

/// Returns the replica in another space whose next block comes first, the position of that block,
/// and the second lowest position. `None` if a replica that has not ended has delivered nothing
/// yet.
fn first_elsewhere(
    gather: &mut ReplicaJoin,
) -> Result<Option<(usize, EndPosition, EndPosition)>, Fault> {
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
