//! Adaptive spinning: how often to look before sleeping, by what looking yielded: polling where
//! much comes, events where little does. [SL §6.2], FEATURES K10
//!
//! A look finds what comes sooner than a sleep and a wake take (2 to 25 us: BASELINES). So who
//! waits first looks for as long as that. Where that was in vain some times in a row, little comes,
//! and looking is processor time for nothing: it is halved each time, down to none. Now and then
//! all looks are made again, since nothing else would find out that more comes now. One look that
//! finds something is enough to begin anew, so a stream that flows never learns to sleep.
//!
//! A reader that is faster than its writer catches up with it after each batch, and then the two
//! pull at the same lines: the position, the header that is just being written. That costs the
//! writer more than the copy (`bench pipe`, short blocks on two cores). So where blocks flow, who
//! finds nothing lets the writer get ahead: there are more pauses before each look, twice as many
//! each time. Where single blocks come, there are fewer again.
//!
//! No clock is read: looks are counted, and pauses.

use super::spins;
use crate::Fault;

/// The spinning of one party.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spin {
    /// Number of looks that was set by hand.
    fixed: Option<u32>,
    /// Waits in a row in which looking was in vain.
    vain: u32,
    /// Pauses before each look, less one.
    pace: u32,
    /// Count of blocks at the last wait.
    waited_at: u64,
}

/// So many waits in vain mean nothing.
const HARMLESS: u32 = 4;
/// Each so many of them all looks are made.
const AGAIN: u32 = 32;
/// So many blocks in one go are a flow.
const FLOW: u64 = 8;
/// So many pauses more than one are made at most: together about what a sleep and a wake take.
const PACE_MAX: u32 = 127;

impl Spin {
    /// Looks so often each time. As often as one can: whoever waits so never sleeps in practice
    /// (busy polling).
    pub const fn fix(&mut self, looks: u32) {
        self.fixed = Some(looks);
    }

    /// Returns how often to look this time: never where both parties share a processor, since the
    /// other one cannot run meanwhile.
    pub(crate) fn looks(&self, together: bool) -> u32 {
        match (self.fixed, together) {
            (Some(looks), _) => looks,
            (None, true) => 0,
            (None, false) if self.vain.is_multiple_of(AGAIN) => spins(2),
            (None, false) => {
                let halved = self.vain.saturating_sub(HARMLESS);
                spins(2).checked_shr(halved).unwrap_or(0)
            }
        }
    }

    /// Looks as often as that has been worth it, and answers whether something is `ready`; so many
    /// blocks have been `taken` in all.
    pub fn look(
        &mut self,
        together: bool,
        taken: u64,
        mut ready: impl FnMut() -> Result<bool, Fault>,
    ) -> Result<bool, Fault> {
        let came = taken.wrapping_sub(std::mem::replace(&mut self.waited_at, taken));
        let mut left = self.looks(together);
        let pauses = self.pauses(came);
        while left > 0 {
            for _ in 0..pauses {
                std::hint::spin_loop();
            }
            if ready()? {
                self.has_found();
                return Ok(true);
            }
            left = left.saturating_sub(pauses);
        }
        self.was_vain();
        Ok(false)
    }

    /// Returns the pauses before each look, given the blocks since the last wait.
    fn pauses(&mut self, came: u64) -> u32 {
        self.pace = if came >= FLOW { (self.pace * 2 + 1).min(PACE_MAX) } else { self.pace / 2 };
        self.pace + 1
    }

    /// Returns true if it was set by hand to yield to the other side; `None`: it was not set.
    pub(crate) fn yields(&self) -> Option<bool> {
        self.fixed.map(|looks| looks == 0)
    }

    /// A look has found what was waited for.
    pub(crate) const fn has_found(&mut self) {
        self.vain = 0;
    }

    /// All looks were in vain.
    pub(crate) const fn was_vain(&mut self) {
        self.vain = self.vain.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many looks are made in as many waits; every look before this one is in vain.
    fn made(spin: &mut Spin, waits: u32, found_at: u32) -> u64 {
        let mut all = 0;
        for _ in 0..waits {
            let looks = spin.looks(false);
            if found_at < looks {
                all += u64::from(found_at) + 1;
                spin.has_found();
            } else {
                all += u64::from(looks);
                spin.was_vain();
            }
        }
        all
    }

    #[test]
    fn k10_who_finds_something_polls_and_who_does_not_sleeps() {
        let mut spin = Spin::default();
        assert_eq!(spin.looks(false), 2000);
        assert_eq!(made(&mut spin, 1000, 5), 6000, "what flows is polled for");
        assert_eq!(spin.looks(false), 2000);
        // A trickle: nothing is ever found by looking.
        let vain = made(&mut spin, 1000, u32::MAX);
        assert!(vain < 1000 * 2000 / 20, "a twentieth: {vain}");
        assert_eq!(spin.looks(true), 0, "nor does anybody look on one processor");
        // More comes: found out within some waits, and polled for again from then on.
        let (waits, mut asleep) = (100, 0);
        for _ in 0..waits {
            asleep += u32::from(made(&mut spin, 1, 50) != 51);
        }
        assert!(asleep < AGAIN, "{asleep} of {waits}");
        assert_eq!(spin.looks(false), 2000);
    }

    #[test]
    fn k10_where_blocks_flow_the_writer_gets_ahead() {
        let mut spin = Spin::default();
        assert_eq!(spin.pauses(0), 1, "who waits for a single block looks at once");
        let flow: Vec<u32> = (0..9).map(|_| spin.pauses(32)).collect();
        assert_eq!(flow, [2, 4, 8, 16, 32, 64, 128, 128, 128]);
        let trickle: Vec<u32> = (0..8).map(|_| spin.pauses(1)).collect();
        assert_eq!(trickle, [64, 32, 16, 8, 4, 2, 1, 1]);
    }

    #[test]
    fn k10_one_look_in_vain_now_and_then_changes_nothing() {
        let mut spin = Spin::default();
        for wait in 0..1000 {
            assert_eq!(spin.looks(false), 2000);
            if wait % 4 == 0 { spin.has_found() } else { spin.was_vain() }
        }
    }

    #[test]
    fn k10_what_somebody_said_holds() {
        let mut spin = Spin::default();
        for looks in [0, 7, u32::MAX] {
            spin.fix(looks);
            (0..100).for_each(|_| spin.was_vain());
            assert_eq!([spin.looks(false), spin.looks(true)], [looks; 2]);
        }
    }
}
