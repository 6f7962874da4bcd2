//! Adaptive spinning: the number of polls before a sleep follows the success of past polls. A party
//! polls while blocks arrive often, and sleeps while they arrive rarely. [SL §6.2], FEATURES K10
//!
//! Polling finds a block that arrives sooner than a sleep and a wake-up take (2 to 25 µs:
//! BASELINES), so a party first polls for that long. After several fruitless waits in a row,
//! polling wastes processor time, so each further fruitless wait halves the number of polls, down
//! to none. Periodically the full number is tried again, because nothing else would detect that
//! blocks arrive often again. One successful poll restores the full number, so a steady stream is
//! always polled.
//!
//! A reader that is faster than its writer catches up after each batch. Then both compete for two
//! cache lines, that of the position and that of the header being written. This competition costs
//! the writer more than the copy (`bench pipe`, short blocks on two cores). While blocks flow, a
//! reader that has caught up therefore doubles the pauses before each poll, which lets the writer
//! get ahead. When single blocks arrive, the pauses are halved again.
//!
//! No clock is read: polls and pauses are counted.

use super::spin_limit_for_processors;
use crate::Fault;

/// The state of adaptive spinning in a writer or reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpinState {
    /// Number of polls that the user has set; `None` if the number is adaptive.
    fixed: Option<u32>,
    /// Number of waits since the last wait in which a poll succeeded.
    fruitless: u32,
    /// Number of spin-loop pauses before each poll, minus one.
    extra_pauses: u32,
    /// Total number of blocks that this party had taken when its last wait began.
    taken_at_last_wait: u64,
}

/// Number of consecutive waits without a successful poll (fruitless waits) that do not yet reduce
/// the number of polls.
const FRUITLESS_WAITS_IGNORED: u32 = 4;
/// Number of consecutive waits without a successful poll (fruitless waits) after which the full
/// number of polls is tried once more.
const RETRY_INTERVAL: u32 = 32;
/// Minimum number of blocks since the last wait for which the blocks count as a continuous flow.
const FLOW_BLOCKS_MIN: u64 = 8;
/// Maximum number of extra pauses. Together they take about as long as a sleep and a wake-up.
const EXTRA_PAUSES_MAX: u32 = 127;

impl SpinState {
    /// Fixes the number of polls. With `u32::MAX` the party in practice never sleeps (busy
    /// polling).
    pub const fn fix_polls(&mut self, polls: u32) {
        self.fixed = Some(polls);
    }

    /// Returns the number of polls for this wait. If the user has set a number, returns this
    /// number. Otherwise returns 0 if both parties share a processor (`shares_processor`), because
    /// the other party cannot run during polling. In all other cases returns the adaptive number.
    pub(crate) fn poll_count(&self, shares_processor: bool) -> u32 {
        match (self.fixed, shares_processor) {
            (Some(polls), _) => polls,
            (None, true) => 0,
            (None, false) if self.fruitless.is_multiple_of(RETRY_INTERVAL) => {
                spin_limit_for_processors(2)
            }
            (None, false) => {
                let halved = self.fruitless.saturating_sub(FRUITLESS_WAITS_IGNORED);
                spin_limit_for_processors(2).checked_shr(halved).unwrap_or(0)
            }
        }
    }

    /// Polls `ready` until it returns true, with pauses in between. Returns true if `ready` did,
    /// and false if it never did. Fails if `ready` fails. [`SpinState::poll_count`] limits the
    /// total number of pauses, so longer pauses mean fewer polls. `taken` is the total number of
    /// blocks that this party has taken so far.
    pub fn poll(
        &mut self,
        shares_processor: bool,
        taken: u64,
        mut ready: impl FnMut() -> Result<bool, Fault>,
    ) -> Result<bool, Fault> {
        let arrived = taken.wrapping_sub(std::mem::replace(&mut self.taken_at_last_wait, taken));
        let mut left = self.poll_count(shares_processor);
        let pauses = self.pause_count(arrived);
        while left > 0 {
            for _ in 0..pauses {
                std::hint::spin_loop();
            }
            if ready()? {
                self.record_success();
                return Ok(true);
            }
            left = left.saturating_sub(pauses);
        }
        self.record_failure();
        Ok(false)
    }

    /// Returns the number of pauses before each poll in this wait. `arrived` is the number of
    /// blocks that arrived since the last wait.
    fn pause_count(&mut self, arrived: u64) -> u32 {
        self.extra_pauses = if arrived >= FLOW_BLOCKS_MIN {
            (self.extra_pauses * 2 + 1).min(EXTRA_PAUSES_MAX)
        } else {
            self.extra_pauses / 2
        };
        self.extra_pauses + 1
    }

    /// Returns true if the user has set the number of polls to 0, so that the party never polls.
    /// Returns false for any other number, and `None` if the number is adaptive.
    pub(crate) fn is_fixed_to_zero(&self) -> Option<bool> {
        self.fixed.map(|polls| polls == 0)
    }

    pub(crate) const fn record_success(&mut self) {
        self.fruitless = 0;
    }

    pub(crate) const fn record_failure(&mut self) {
        self.fruitless = self.fruitless.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the total number of polls in `waits` waits. In each wait, the poll with index
    /// `found_at` succeeds.
    fn total_polls(spin: &mut SpinState, waits: u32, found_at: u32) -> u64 {
        let mut all = 0;
        for _ in 0..waits {
            let polls = spin.poll_count(false);
            if found_at < polls {
                all += u64::from(found_at) + 1;
                spin.record_success();
            } else {
                all += u64::from(polls);
                spin.record_failure();
            }
        }
        all
    }

    #[test]
    fn k10_polls_adapt_to_success() {
        let mut spin = SpinState::default();
        assert_eq!(spin.poll_count(false), 2000);
        assert_eq!(total_polls(&mut spin, 1000, 5), 6000, "a flow is polled for");
        assert_eq!(spin.poll_count(false), 2000);
        // A slow stream: no poll ever succeeds.
        let fruitless = total_polls(&mut spin, 1000, u32::MAX);
        assert!(fruitless < 1000 * 2000 / 20, "a twentieth: {fruitless}");
        assert_eq!(spin.poll_count(true), 0, "no polls on one processor");
        // Once more blocks arrive, polling resumes within a few waits and then continues.
        let (waits, mut asleep) = (100, 0);
        for _ in 0..waits {
            asleep += u32::from(total_polls(&mut spin, 1, 50) != 51);
        }
        assert!(asleep < RETRY_INTERVAL, "{asleep} of {waits}");
        assert_eq!(spin.poll_count(false), 2000);
    }

    #[test]
    fn k10_flow_increases_pauses_between_polls() {
        let mut spin = SpinState::default();
        assert_eq!(spin.pause_count(0), 1, "a single block is polled for at once");
        let flow: Vec<u32> = (0..9).map(|_| spin.pause_count(32)).collect();
        assert_eq!(flow, [2, 4, 8, 16, 32, 64, 128, 128, 128]);
        let trickle: Vec<u32> = (0..8).map(|_| spin.pause_count(1)).collect();
        assert_eq!(trickle, [64, 32, 16, 8, 4, 2, 1, 1]);
    }

    #[test]
    fn k10_occasional_failures_keep_the_full_polls() {
        let mut spin = SpinState::default();
        for wait in 0..1000 {
            assert_eq!(spin.poll_count(false), 2000);
            if wait % 4 == 0 { spin.record_success() } else { spin.record_failure() }
        }
    }

    #[test]
    fn k10_fixed_number_of_polls_is_kept() {
        let mut spin = SpinState::default();
        for polls in [0, 7, u32::MAX] {
            spin.fix_polls(polls);
            (0..100).for_each(|_| spin.record_failure());
            assert_eq!([spin.poll_count(false), spin.poll_count(true)], [polls; 2]);
        }
    }
}
