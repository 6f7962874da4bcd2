//! Copies of a chain of filters that share its work, each in a space of its own: what they and the
//! spaces before and behind them agree on. [Th §5.4], [Par §IV], CONTRACT 16
//!
//! What comes to the chain in one batch is a **burst**. Bursts are numbered, and blocks in them: a
//! block's **turn** is both numbers in one word. It travels in the marks of the block between the
//! spaces and as the block's order within them, so what a filter makes of a block has the turn of
//! that block, whatever it makes. [`deal`] gives a burst to one copy as a whole or to each copy the
//! sessions that are its own. The join ([`crate::space::copies`]) takes burst after burst from
//! those who had a part in it, and sorts what it takes by turn: the order is that in which the
//! blocks came, exactly, and depends neither on the number of copies nor on how fast they are.
//! Deviation: the sources' joins give up the order ("implied by Fig 5.3"), CONTRACT 16 asks for it
//! within T_t between sessions. Nobody waits by the clock here, because nobody need: rings are
//! bounded, so who is slow holds the others up before they are far ahead.
//!
//! When nothing more comes, each copy ends its filters one session at a time, and the join merges
//! them in the order in which their sessions began ([`crate::space::replica`]).
//!
//! The [`Board`] says which copy has a part in which burst, and how far each is. No lock: each word
//! has one writer.

pub mod deal;

use buffer::signal::Doorbell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits that number the blocks of a burst: enough for the lanes of a batch.
const LANE_BITS: u32 = filter::LANES.trailing_zeros();
/// The number of a burst as far as a turn holds it.
const BURST_MASK: u64 = (1 << (u32::BITS - LANE_BITS)) - 1;
/// The rank of what a filter lets out at its end that is of no session: behind all sessions.
pub const BEHIND: u32 = u32::MAX;

/// The turn of the first block of a burst.
pub const fn first_of(burst: u64) -> u32 {
    ((burst & BURST_MASK) << LANE_BITS) as u32
}

/// The turn of the last block of a burst.
pub const fn last_of(burst: u64) -> u32 {
    first_of(burst) | (filter::LANES as u32 - 1)
}

/// The number of the burst behind this one: that which [`BEHIND`] would be in is left out.
pub const fn after(burst: u64) -> u64 {
    let next = burst + 1;
    if next & BURST_MASK == BURST_MASK { next + 1 } else { next }
}

/// The burst of a turn: the nearest to `near`, before it or behind it.
pub const fn burst_of(turn: u32, near: u64) -> u64 {
    const SHIFT: u32 = u64::BITS - (u32::BITS - LANE_BITS);
    let low = (turn >> LANE_BITS) as u64;
    let ahead = (low.wrapping_sub(near) << SHIFT) as i64 >> SHIFT;
    near.wrapping_add_signed(ahead)
}

/// Progress of a replica chain, shared by dispatcher, replicas and join.
#[derive(Debug)]
pub struct Board {
    /// Number of the first burst that nobody has got yet. Written by who shares out.
    shared: Word,
    copies: Box<[Copied]>,
    /// Number of the burst behind the one that the join waits for. Written by the join.
    awaited: Word,
    /// True if nothing more is shared out, and the newest time of a block by then. Written by who
    /// shares out.
    closed: Word,
    clock: Word,
    /// Doorbell on which the join sleeps.
    join: Arc<Doorbell>,
}

/// Progress of one replica.
#[derive(Debug, Default)]
struct Copied {
    /// Number of the burst behind the last that it got. Written by who shares out.
    given: Word,
    /// It has finished every burst below this that it got. Written by the copy.
    done: Word,
}

/// A word that has a line of the cache for itself.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Word(AtomicU64);

impl Word {
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

impl Board {
    /// For so many copies, and a join that sleeps on this bell.
    pub fn new(copies: usize, join: Arc<Doorbell>) -> Self {
        let copies = (0..copies).map(|_| Copied::default()).collect();
        let [shared, awaited, closed, clock] = std::array::from_fn(|_| Word::default());
        Self { shared, copies, awaited, closed, clock, join }
    }

    /// Says that nothing more is shared out, and what the newest time of a block is.
    ///
    /// SYNC POINT *all is shared out*: the Release of `closed` comes after that of `shared` for the
    /// last burst and of `clock`, and pairs with the Acquire in [`Board::is_closed`]: who sees it
    /// and then looks at the others sees their last values.
    pub fn close(&self, clock: u64) {
        self.clock.store(clock);
        self.closed.store(1);
        if self.join.is_awaited() {
            self.join.notify();
        }
    }

    /// Returns true if nothing more is shared out.
    pub fn is_closed(&self) -> bool {
        self.closed.load() != 0
    }

    /// The first turn behind all, once nothing more is shared out.
    pub fn end(&self) -> u32 {
        first_of(self.shared())
    }

    /// The newest time of a block, once nothing more is shared out.
    pub fn clock(&self) -> u64 {
        self.clock.load()
    }

    /// Returns the number of replicas.
    pub fn copies(&self) -> usize {
        self.copies.len()
    }

    /// Says that a burst goes to these copies, before any block of it does.
    ///
    /// SYNC POINT *a burst is shared out*: the Release of `shared`, and of each `given` before it,
    /// pairs with the Acquire in [`Board::shared`] and [`Board::has_part`]: who sees the burst, or
    /// a block of it, sees who has a part in it.
    pub fn share(&self, burst: u64, to: impl Iterator<Item = usize>) {
        for copy in to {
            self.copies[copy].given.store(burst + 1);
        }
        self.shared.store(burst + 1);
    }

    /// The number of the first burst that nobody has got yet.
    pub fn shared(&self) -> u64 {
        self.shared.load()
    }

    /// Returns true if a replica may have a part in a burst, or got a later one, and is not known
    /// to have finished it.
    ///
    /// SYNC POINT *a burst is finished*: see [`Board::finish`]. A caller that gets `false` and then
    /// looks into the replica's ring sees everything that the replica made of the burst.
    pub fn has_part(&self, copy: usize, burst: u64) -> bool {
        let copy = &self.copies[copy];
        copy.done.load() <= burst && copy.given.load() > burst
    }

    /// The number of the burst behind the last that a copy got.
    pub fn given(&self, copy: usize) -> u64 {
        self.copies[copy].given.load()
    }

    /// Says that a copy has finished every burst below this one that it got: what it made of them
    /// is in its ring. Wakes the join if it waits for that.
    ///
    /// SYNC POINT *a burst is finished*: the Release of `done` comes after the Release with which
    /// the ring was published, and pairs with the Acquire in [`Board::has_part`].
    pub fn finish(&self, copy: usize, below: u64) {
        let done = &self.copies[copy].done;
        if done.load() >= below {
            return;
        }
        done.store(below);
        // Whoever falls asleep after this has looked at `done` before (`Doorbell::is_awaited`).
        if self.join.is_awaited() && self.awaited.load() <= below {
            self.join.notify();
        }
    }

    /// Says for which burst the join waits.
    pub fn wait_for(&self, burst: u64) {
        self.awaited.store(burst + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_tells_its_burst_as_long_as_it_is_near() {
        let mask = BURST_MASK;
        for near in [0, 5, mask - 2, mask + 1, 7 * mask, u64::from(u32::MAX) << 9] {
            for ahead in [-5_i64, -1, 0, 1, 40_000] {
                let Some(burst) = near.checked_add_signed(ahead) else { continue };
                for turn in [first_of(burst), first_of(burst) | 17, last_of(burst)] {
                    assert_eq!(burst_of(turn, near), burst, "{near} {ahead}");
                }
            }
        }
        let mut burst = mask - 3;
        for _ in 0..8 {
            burst = after(burst);
            assert_ne!(last_of(burst), BEHIND);
        }
    }

    #[test]
    fn who_has_a_part_is_known_before_and_after() {
        let board = Board::new(3, Arc::new(Doorbell::new()));
        assert_eq!(board.shared(), 0);
        board.share(0, [1].into_iter());
        board.share(1, [0, 2].into_iter());
        assert_eq!(board.shared(), 2);
        assert_eq!([0, 1, 2].map(|copy| board.has_part(copy, 0)), [true, true, true]);
        assert_eq!([0, 1, 2].map(|copy| board.has_part(copy, 1)), [true, false, true]);
        board.finish(0, 1);
        board.finish(1, 1);
        board.finish(2, 2);
        assert_eq!([0, 1, 2].map(|copy| board.has_part(copy, 0)), [false; 3]);
        assert_eq!([0, 1, 2].map(|copy| board.has_part(copy, 1)), [true, false, false]);
    }
}
