//! Which bytes of a datagram are here: one bit for eight of them, since fragments begin at
//! multiples of eight. Plain data, part of what is known of a datagram.

use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Which units of 8 bytes of a datagram are here.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Covered([u64; Self::WORDS]);

impl Default for Covered {
    fn default() -> Self {
        Self([0; Self::WORDS])
    }
}

impl Covered {
    const WORDS: usize = 65_536 / 8 / 64;

    /// Notes that these units are here.
    pub(super) fn add(&mut self, units: Range<u32>) {
        for (word, mask) in self.0.iter_mut().zip(masks(units)) {
            *word |= mask;
        }
    }

    /// Whether any of these units is here.
    pub(super) fn meets(&self, units: Range<u32>) -> bool {
        self.0.iter().zip(masks(units)).any(|(word, mask)| word & mask != 0)
    }

    /// Whether anything is here from this unit on.
    pub(super) fn reaches(&self, from: u32) -> bool {
        self.meets(from..8 * 65_536)
    }

    /// Whether all units before this one are here.
    pub(super) fn has_all(&self, before: u32) -> bool {
        self.0.iter().zip(masks(0..before)).all(|(word, mask)| word & mask == mask)
    }
}

/// The units of a range as one mask per word.
fn masks(units: Range<u32>) -> impl Iterator<Item = u64> {
    (0..).step_by(64).map(move |first: u32| {
        let below = |end: u32| match end.saturating_sub(first) {
            bits @ 0..64 => (1u64 << bits) - 1,
            _ => u64::MAX,
        };
        below(units.end) & !below(units.start)
    })
}
