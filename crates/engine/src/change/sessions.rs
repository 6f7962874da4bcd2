//! Moves of sessions, with their state and held blocks, from the busiest replica of a chain to
//! another replica. [Th §5.4], RSS++
//!
//! ```text
//! pause the dispatcher → the replicas process their queues → pause two replicas
//!   → copy the sessions, remove them, dispatch their buckets elsewhere → resume
//! ```
//!
//! No block is in flight to a replica while sessions move, so every block finds its session, and
//! the join receives the same batches in the same order. Blocks that the replicas have emitted stay
//! in their rings.
//!
//! docs/book/decisions/0114-moving-sessions.md

use super::outcome::ChangeError;
use super::running_path;
use crate::live::PathHandle;
use crate::path::running_path::PathState;
use pipeline::plan::ReplicaChain;
use runtime::commands::{CommandError, CommandQueue, ExclusiveBorrow};
use runtime::replicas::balance::{SessionMove, SessionShares};
use runtime::space::Space;
use runtime::space::session_moves::MovedSessions;
use std::sync::Arc;
use std::time::Duration;

/// The result of a move of sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionMoveReport {
    /// Number of sessions that moved.
    pub sessions: usize,
    /// Number of blocks that the moved sessions hold.
    pub held: u64,
    /// Name of the space to which the sessions moved.
    pub to: String,
    /// Name of the space from which the sessions moved.
    pub from: String,
    /// Duration for which the dispatcher was paused, in ns.
    pub paused_ns: u64,
}

/// Returns the load of each bucket of sessions: its replica, and the number of blocks dispatched to
/// the bucket since the last call. Returns `None` if the path has no replicas whose sessions can
/// move, or if their dispatcher does not respond within `limit`.
#[must_use]
pub fn session_shares(live: &PathHandle, limit: Duration) -> Option<SessionShares> {
    let commands = {
        let state = live.running_path()?.lock_state();
        replica_command_queue(&state, session_replicas(&state)?, 0)?
    };
    commands.execute(limit, Space::take_session_shares).ok()?
}

/// Moves the sessions of the buckets in `chosen` from one replica to another. Blocks for at most
/// `limit` until the replicas have processed the blocks dispatched to them.
///
/// # Errors
///
/// Fails if the path has no replicas whose sessions can move or has ended, if the replicas do not
/// finish in time, or if the receiving replica has no memory for the held blocks. The path then
/// runs as before.
pub fn move_sessions(
    live: &PathHandle,
    chosen: &SessionMove,
    limit: Duration,
) -> Result<SessionMoveReport, ChangeError> {
    let state = running_path(live)?.lock_state();
    let replicas = session_replicas(&state)
        .ok_or_else(|| ChangeError::Refused("it has no replicas by session".to_owned()))?;
    let queue =
        |copy: usize| replica_command_queue(&state, replicas, copy).ok_or(CommandError::Ended);
    let name = |copy: u8| {
        let space = replicas.spaces.get(usize::from(copy));
        space.map_or_else(String::new, |space| state.plan.spaces[*space].name.clone())
    };
    let begin = sys::clock::monotonic_ns();
    let end = begin.saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    let left = || Duration::from_nanos(end.saturating_sub(sys::clock::monotonic_ns()));
    let mut taken =
        StoppedReplicaSpaces { first: queue(0)?.borrow_space(limit)?, others: Vec::new() };
    let begin = sys::clock::monotonic_ns();
    let mut moved = taken.wait_for_replicas(&left);
    for copy in [chosen.from, chosen.to] {
        if moved.is_ok() && copy != 0 {
            let lent = queue(copy.into()).and_then(|queue| queue.borrow_space(left()));
            moved = lent.map(|lent| taken.others.push((copy, lent))).map_err(ChangeError::from);
        }
    }
    let moved = moved.and_then(|()| taken.move_sessions(replicas, chosen));
    taken.give_back();
    let moved = moved?;
    Ok(SessionMoveReport {
        sessions: moved.sessions,
        held: moved.held_amount().blocks,
        to: name(chosen.to),
        from: name(chosen.from),
        paused_ns: sys::clock::monotonic_ns().saturating_sub(begin),
    })
}

/// The spaces that a move of sessions has stopped: the space that runs the dispatcher and replica
/// 0, and the spaces of other replicas.
struct StoppedReplicaSpaces {
    first: ExclusiveBorrow,
    others: Vec<(u8, ExclusiveBorrow)>,
}

impl StoppedReplicaSpaces {
    /// Waits until the replicas have processed all blocks that were dispatched to them.
    fn wait_for_replicas(&mut self, left: &dyn Fn() -> Duration) -> Result<(), ChangeError> {
        self.first.space.flush_outputs();
        match self.first.space.wait_for_replicas(left()) {
            true => Ok(()),
            false => {
                let space = "a replica that finishes its blocks".to_owned();
                Err(CommandError::TimedOut { space }.into())
            }
        }
    }

    fn move_sessions(
        &mut self,
        replicas: &ReplicaChain,
        chosen: &SessionMove,
    ) -> Result<MovedSessions, ChangeError> {
        let Some(sharing) = replicas.shard_key else { return Err(CommandError::Ended.into()) };
        let moved = self.space(chosen.from)?.copy_sessions(sharing, &chosen.buckets);
        self.space(chosen.to)?.add_sessions(&moved).map_err(ChangeError::Refused)?;
        self.space(chosen.from)?.remove_moved_sessions(&moved);
        self.first.space.reassign_buckets(chosen);
        Ok(moved)
    }

    /// Returns the stopped space of the replica with index `copy`. Fails if there is no such space.
    fn space(&mut self, copy: u8) -> Result<&mut Space, CommandError> {
        if copy == 0 {
            return Ok(&mut self.first.space);
        }
        let other = self.others.iter_mut().find(|(number, _)| *number == copy);
        other.map(|(_, lent)| &mut *lent.space).ok_or(CommandError::Ended)
    }

    /// Resumes all stopped spaces, the dispatcher's space last.
    fn give_back(self) {
        self.others.into_iter().for_each(|(_, lent)| lent.give_back());
        self.first.give_back();
    }
}

/// Returns the replicas whose sessions can move, or `None` if the path has none.
fn session_replicas(state: &PathState) -> Option<&ReplicaChain> {
    let mut all = state.plan.replicas.iter();
    all.find(|replicas| replicas.shard_key.is_some_and(|sharing| sharing.can_find_sessions()))
}

/// Returns the command queue of the space that runs the replica with index `copy`, or `None` if
/// there is no such space.
fn replica_command_queue(
    state: &PathState,
    replicas: &ReplicaChain,
    copy: usize,
) -> Option<Arc<CommandQueue>> {
    let planned = &state.plan.spaces[*replicas.spaces.get(copy)?];
    let part = state.parts.get(planned.component)?;
    let space = part.spaces.iter().find(|space| space.name == planned.name)?;
    Some(Arc::clone(&space.commands))
}
