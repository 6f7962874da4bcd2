//! The last phase of a join, which merges the final output of the replicas in the order in which a
//! single instance would emit it. [Th §5.4; CONTRACT 16]
//!
//! The position of a block in that order consists of the number of the filter that emitted it and
//! the rank of its session ([`super::replica_shutdown`]). The input from each replica in another
//! space is a sequence of blocks marked with their positions, in ascending order. The input from
//! the replica in this space is its sessions, which are ended on demand. The output is all blocks
//! in ascending order. If a replica has neither ended nor put a block into its ring, the merge
//! waits for it, because its next block may precede all others.

use super::final_sessions::{FINAL_OUTPUT_POSITION_MAX, FinalOutputPosition, FinalSessions};
use super::graph::LocalGraph;
use super::join_state::ReplicaJoin;
use super::sessions::SessionEnds;
use buffer::Fault;
use filter::LANES;

impl LocalGraph {
    /// Emits the next part of the final output of a replica chain. Returns false if nothing was
    /// emitted, because the join must wait for a replica or because no output remains.
    pub(super) fn merge_final_output(&mut self, gather: &mut ReplicaJoin) -> Result<bool, Fault> {
        let Some((way, place, end)) = lowest_remote_position(gather)? else { return Ok(false) };
        let mut final_sessions = match gather.final_sessions.take() {
            Some(final_sessions) => final_sessions,
            None => self.begin_local_shutdown(gather),
        };
        let mut moved = false;
        while self.pass.failure.is_none()
            && self.next_local_position(&mut final_sessions).is_some_and(|p| p < place)
        {
            self.end_next_session(&mut final_sessions);
            moved = true;
        }
        let end = self.next_local_position(&mut final_sessions).map_or(end, |here| here.min(end));
        gather.final_sessions = Some(final_sessions);
        if place == FINAL_OUTPUT_POSITION_MAX || moved {
            return Ok(moved);
        }
        let node = gather.inputs[way].node;
        let taken = gather.inputs[way].import.peek_up_to(LANES)?;
        let ours =
            (0..taken.len()).take_while(|at| *at == 0 || taken.entry(*at).marks.end_step() < end);
        let count = ours.count();
        let taken = gather.inputs[way].import.peek_up_to(count)?;
        self.walk_ring_batches(&[taken], &[node], true);
        gather.inputs[way].import.release(count)?;
        Ok(true)
    }

    /// Begins the shutdown of the replica in this space. Returns the sessions that remain to be
    /// ended.
    fn begin_local_shutdown(&mut self, gather: &ReplicaJoin) -> FinalSessions {
        self.pass.end_sequence_number = gather.progress.end_sequence_number();
        let live = self.wall_clock_time();
        let now = self.clock.advance_to(gather.progress.final_block_time(), live);
        FinalSessions::new(&self.nodes, &self.shape.order, now)
    }

    /// Returns the position, in the final output, of the session that the replica in this space
    /// ends next. If a filter has no sessions left, continues with the next filter of the chain.
    /// Returns `None` if no filter has any more sessions.
    fn next_local_position(
        &mut self,
        final_sessions: &mut FinalSessions,
    ) -> Option<FinalOutputPosition> {
        loop {
            if let Some((_, leaving)) = &final_sessions.current
                && let Some(rank) = leaving.next_rank()
            {
                return Some((final_sessions.step, rank));
            }
            final_sessions.current = None;
            let at = final_sessions.filters.pop()?;
            final_sessions.step += 1;
            let leaving = SessionEnds::take_all_sessions(
                &mut self.nodes[at],
                &self.pass.births,
                self.pass.end_sequence_number,
            );
            final_sessions.current = Some((at, leaving));
        }
    }

    /// Ends one session of the replica in this space, the next in order, and passes the session's
    /// output through the graph.
    fn end_next_session(&mut self, final_sessions: &mut FinalSessions) {
        let Some((at, leaving)) = &mut final_sessions.current else { return };
        let at = *at;
        self.walk(final_sessions.now, &[], |walk| walk.finish_session(at, leaving));
        self.end_pass();
    }
}

/// Finds the replica in another space whose next block comes first in the final output. Returns the
/// index of this replica, the position of its next block, and the second lowest position of a next
/// block. A position is [`FINAL_OUTPUT_POSITION_MAX`] if too few replicas have output left. Returns
/// `None` if a replica that has not ended has put no block into its ring.
fn lowest_remote_position(
    gather: &mut ReplicaJoin,
) -> Result<Option<(usize, FinalOutputPosition, FinalOutputPosition)>, Fault> {
    let (mut first, mut second) = ((0, FINAL_OUTPUT_POSITION_MAX), FINAL_OUTPUT_POSITION_MAX);
    for (number, way) in gather.inputs.iter_mut().enumerate() {
        if way.local_replica.is_some() || way.import.is_finished()? {
            continue;
        }
        let taken = way.import.peek_up_to(1)?;
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
