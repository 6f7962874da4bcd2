//! The sessions of a replica's filters, in the order of their first blocks.

use super::node::{Node, Operator};
use filter::{Filter, MovedSession, PRIVATE_SESSION_KEY};
use std::collections::HashMap;

/// For each session, the sequence number of its first block, which is called the session's birth.
#[derive(Debug, Default)]
pub(crate) struct SessionBirths {
    /// Sequence number of the first block of each session, by session number.
    pub(super) first_seqs: HashMap<u32, u32>,
    /// Maximum number of entries in `first_seqs`. When it is exceeded, the entries of ended
    /// sessions are removed from the map.
    pub(super) entries_max: usize,
}

/// Number of session entries up to which the entries of ended sessions are never removed. It
/// prevents frequent removals while few sessions are live.
const SESSION_ENTRIES_LIMIT_MIN: usize = 4096;

impl SessionBirths {
    /// Adds an entry for each new session: its number, and the sequence number of its first block.
    pub(super) fn add(&mut self, begun: Vec<(u32, u32)>) {
        self.first_seqs.extend(begun);
    }

    /// Returns true if the number of entries exceeds the limit. The caller should then remove the
    /// entries of ended sessions.
    pub(super) fn is_over_entry_limit(&self) -> bool {
        self.first_seqs.len() > self.entries_max.max(SESSION_ENTRIES_LIMIT_MIN)
    }

    /// Removes the entries of sessions that have ended. `live` contains the numbers of the live
    /// sessions. Then sets the maximum number of entries to twice the number of remaining entries.
    pub(super) fn retain_sessions(&mut self, live: impl Iterator<Item = u32>) {
        let live = live.filter_map(|session| Some((session, *self.first_seqs.get(&session)?)));
        self.first_seqs = live.collect();
        self.entries_max = 2 * self.first_seqs.len();
    }

    /// Returns the rank of a session in the order of the sessions' first blocks. The rank is the
    /// sequence number of the first block relative to `end`, the first number after the last batch.
    /// The rank of a session without an entry is its number.
    pub(super) fn rank(&self, session: u64, end: u32) -> u32 {
        let number = u32::try_from(session).unwrap_or(u32::MAX);
        // Sessions that were numbered upstream of the chain have the same numbers in all replicas.
        self.first_seqs.get(&number).map_or(number, |sequence| sequence.wrapping_sub(end))
    }
}

/// The sessions removed from a replicated filter in order to be ended one by one.
#[derive(Debug, Default)]
pub(crate) struct SessionEnds {
    /// The removed sessions with their ranks, in descending order of rank. The last session is
    /// ended next.
    pub(super) sessions: Vec<(u32, MovedSession)>,
}

impl SessionEnds {
    /// Removes all sessions from a filter and sorts them by rank, which follows the order of their
    /// first blocks. The filter keeps its other state.
    pub(super) fn take_all_sessions(node: &mut Node, births: &SessionBirths, end: u32) -> Self {
        let Operator::Filter(Filter::Stream(filter)) = &mut node.operator else {
            return Self::default();
        };
        let Some(state) = filter.state() else { return Self::default() };
        let keys = state.session_keys().into_iter().filter(|key| *key != PRIVATE_SESSION_KEY);
        let mut ranked: Vec<(u32, u64)> =
            keys.map(|key| (births.rank(state.session_number(key), end), key)).collect();
        ranked.sort_unstable_by(|one, other| other.cmp(one));
        let taken = ranked.into_iter().filter_map(|(rank, key)| {
            let moved = state.take_session(key, &mut node.holds)?;
            Some((rank, moved))
        });
        Self { sessions: taken.collect() }
    }

    /// Returns the rank of the session that is ended next, or `None` if no sessions remain.
    /// Sessions are ranked by their first blocks.
    pub(super) fn next_rank(&self) -> Option<u32> {
        self.sessions.last().map(|(rank, _)| *rank)
    }
}
