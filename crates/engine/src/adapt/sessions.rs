//! Load balancing between replicas: sessions move from the busiest replica to the least busy one.
//!
//! The dispatcher counts the blocks of each bucket of sessions. Several times a second this module
//! reads the counts; if two consecutive readings name the same two replicas, sessions move between
//! them ([`crate::change::move_sessions`]). A move pauses the path until the replicas have
//! processed the blocks in their queues. A minimum pause therefore separates two moves; it doubles
//! after each move that follows the previous one closely.
//!
//! docs/book/decisions/0114-moving-sessions.md

use super::{ObserverMessage, PathObserver, SPACE_WAIT_MAX};
use crate::change::{ChangeError, move_sessions, session_shares};
use crate::live::PathHandle;
use pipeline::explain::format_short_duration;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Interval between two readings of the block counts in the dispatcher of a replicated chain, in
/// ns.
const DISPATCH_READING_INTERVAL_NS: u64 = 200_000_000;
/// Maximum time for which the path is paused while the replicas empty their queues. The move of
/// sessions is abandoned after it.
const MOVE_WAIT_MAX: Duration = Duration::from_millis(50);
/// Minimum length of the pause that follows a move of sessions before the next move, in ns.
const SESSION_MOVE_PAUSE_MIN_NS: u64 = 1_000_000_000;
/// Maximum length of the pause that follows a move of sessions before the next move, in ns.
const SESSION_MOVE_PAUSE_MAX_NS: u64 = 64_000_000_000;

/// The state of the load balancing between the replicas of a path.
#[derive(Debug, Default)]
pub(super) struct SessionBalance {
    /// The two replicas, from and to, between which the last reading of the block counts proposed
    /// to move sessions. `None` if it proposed no move.
    proposed: Option<(u8, u8)>,
    /// Pause that must separate the next move of sessions from the last one, in ns.
    pause_ns: u64,
    /// Time of the last move of sessions on the monotonic clock, in ns; 0 if there was none.
    last_ns: u64,
}

impl SessionBalance {
    /// Records the move of sessions that the current reading of the block counts proposes.
    /// `proposed` contains the two replicas between which sessions should move, or `None`. Returns
    /// true if the move is due: the previous reading proposed the same two replicas, and the pause
    /// since the last move is over.
    fn record_proposal(&mut self, now: u64, proposed: Option<(u8, u8)>) -> bool {
        let agrees = std::mem::replace(&mut self.proposed, proposed) == proposed;
        proposed.is_some() && agrees && now.saturating_sub(self.last_ns) >= self.pause_ns
    }

    /// Records a move. If less than four pauses have passed since the previous move, doubles the
    /// pause, up to [`SESSION_MOVE_PAUSE_MAX_NS`]; otherwise resets it to
    /// [`SESSION_MOVE_PAUSE_MIN_NS`].
    fn record_move(&mut self, now: u64) {
        let is_close = now.saturating_sub(self.last_ns) < 4 * self.pause_ns;
        let doubled = self.pause_ns.saturating_mul(2).min(SESSION_MOVE_PAUSE_MAX_NS);
        self.pause_ns = if is_close { doubled } else { SESSION_MOVE_PAUSE_MIN_NS };
        (self.last_ns, self.proposed) = (now, None);
    }
}

impl PathObserver {
    /// Balances the replicas for as long as the path runs, and moves stalled sinks in the meantime.
    pub(super) fn balance_sessions(&mut self, wakes: &Receiver<ObserverMessage>) {
        while !self.sleep_or_stop(wakes, DISPATCH_READING_INTERVAL_NS)
            && !self.lives.iter().all(PathHandle::has_ended)
        {
            self.balance_sessions_once();
        }
    }

    /// Reads how many blocks have been dispatched to each bucket of sessions since the last call.
    /// Moves sessions between two replicas if these numbers call for a move and its pause is over.
    pub(super) fn balance_sessions_once(&mut self) {
        let Some(live) = self.lives.first().filter(|_| self.adapt.may_move_sessions) else {
            return;
        };
        let shares = session_shares(live, SPACE_WAIT_MAX);
        let chosen = shares.and_then(|shares| shares.choose_move());
        let ends = chosen.as_ref().map(|chosen| (chosen.from, chosen.to));
        let now = sys::clock::monotonic_ns();
        let is_due = self.session_balance.record_proposal(now, ends);
        let Some(chosen) = chosen.filter(|_| is_due) else { return };
        self.session_balance.record_move(now);
        match move_sessions(live, &chosen, MOVE_WAIT_MAX) {
            Ok(moved) => live.add_adaptation(format!(
                "{} sessions to {}: {} received {} % of the blocks, {} % without them; {} held \
                 blocks moved along; paused {}",
                moved.sessions,
                moved.to,
                moved.from,
                chosen.before,
                chosen.after,
                moved.held,
                format_short_duration(moved.paused_ns as f64),
            )),
            // Either the path is ending or a space was busy. A later reading tries again.
            Err(ChangeError::SpaceUnavailable(_) | ChangeError::KernelHostRestarted(_)) => {}
            Err(refused) => live.add_adaptation(format!("no sessions were moved: {refused}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n3_session_moves_need_two_readings_and_a_pause() {
        let mut balance = SessionBalance::default();
        let second = 1_000_000_000;
        assert!(!balance.record_proposal(second, Some((0, 1))), "one reading is not enough");
        assert!(!balance.record_proposal(second, Some((1, 0))), "another one");
        assert!(
            !balance.record_proposal(second, None)
                && !balance.record_proposal(second, Some((1, 0)))
        );
        assert!(balance.record_proposal(second, Some((1, 0))));
        balance.record_move(10 * second);
        for (now, due) in [(10, false), (10, false), (11, true)] {
            assert_eq!(balance.record_proposal(now * second, Some((0, 1))), due, "{now}");
        }
        // Moves in close succession double the pause: 2 s, 4 s, and so on.
        balance.record_move(11 * second);
        assert_eq!(balance.pause_ns, 2 * second);
        balance.record_move(13 * second);
        assert_eq!(balance.pause_ns, 4 * second);
        balance.record_move(100 * second);
        assert_eq!(balance.pause_ns, second);
        (0..100).for_each(|_| balance.record_move(100 * second));
        assert_eq!(balance.pause_ns, SESSION_MOVE_PAUSE_MAX_NS);
    }
}
