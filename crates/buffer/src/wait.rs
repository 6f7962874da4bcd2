//! Waiting between processes that do not trust each other: the sleeper publishes that it sleeps,
//! and from which position on it wants to be woken, in two words of its own page.
//!
//! No word has two writers here, so no peer can clear the flag of another one, as a
//! `signal::Doorbell` does. Instead the sleeper counts *turns*: odd while it sleeps. A peer that
//! sees an odd turn for which it has not notified yet, and a position that was reached, notifies
//! once.
//!
//! SYNC POINT *falling asleep*: the sleeper stores its turn, makes a fence, and looks once more for
//! what it waits for; the other one stores its position, makes a fence, and looks at the turn. The
//! fences are sequentially consistent: at least one of the two sees what the other one stored, so
//! no wake-up is lost. A lie in these words costs its peer one notification, which does not block.

use crate::atomic::{Ordering, acquire, fence};
use crate::region::Region;
use abi::ring::wait::{SLEEP_COUNT, UNTIL};

/// The sleeper's side.
#[derive(Debug, Default)]
pub struct Sleeper {
    turn: u64,
}

impl Sleeper {
    /// Says that we are about to sleep until the other party has come to `until`. Look once more,
    /// then sleep, then [`Sleeper::wakes`].
    pub fn falls_asleep(&mut self, page: &Region, at: usize, until: u64) {
        self.turn += 1;
        page.word(at + UNTIL).store(until, Ordering::Relaxed);
        page.word(at + SLEEP_COUNT).store(self.turn, Ordering::Release);
        // SYNC POINT: falling asleep; pairs with the fence in `is_due`.
        fence(Ordering::SeqCst);
    }

    /// Says that we are awake.
    pub fn wakes(&mut self, page: &Region, at: usize) {
        self.turn += 1;
        page.word(at + SLEEP_COUNT).store(self.turn, Ordering::Release);
    }
}

/// The urgency of a publication: whether more is about to follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// More comes at once, and then this is asked again, at the end with one of the other two: who
    /// sleeps is woken when it is as much as was asked for. Who falls asleep in this moment may be
    /// seen the next time only, because no fence is made: it would hold the writer up until the
    /// other processor has let go of all lines that were just written.
    Flow,
    /// More may come: who sleeps is woken when it is as much as was asked for.
    More,
    /// It may be a while: who sleeps is woken for what there is.
    Last,
}

/// The side of who rings.
#[derive(Debug, Default)]
pub struct Ringer {
    rung: u64,
}

impl Ringer {
    /// Returns true if the other party sleeps and has not been notified. Called after a
    /// publication.
    pub(crate) fn is_awaited(&self, page: &Region, at: usize) -> bool {
        // SYNC POINT: falling asleep; pairs with the fence in `falls_asleep`.
        fence(Ordering::SeqCst);
        let turn = acquire(page.word(at + SLEEP_COUNT));
        !turn.is_multiple_of(2) && turn != self.rung
    }

    /// Returns true if the other party sleeps, wants to be woken at `position`, which we have
    /// published, and has not been notified. Called after the publication.
    pub fn is_due(&mut self, page: &Region, at: usize, position: u64, urgency: Urgency) -> bool {
        if urgency != Urgency::Flow {
            // SYNC POINT: falling asleep; pairs with the fence in `falls_asleep`.
            fence(Ordering::SeqCst);
        }
        let turn = acquire(page.word(at + SLEEP_COUNT));
        if turn.is_multiple_of(2) || turn == self.rung {
            return false;
        }
        let until = page.word(at + UNTIL).load(Ordering::Relaxed);
        let due = urgency == Urgency::Last || position >= until;
        if due {
            self.rung = turn;
        }
        due
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
