//! Bitmap of the parts of a datagram that have been received. Each bit stands for a unit of 8
//! bytes, since fragments begin at multiples of 8 bytes. The bitmap is plain data in the state of
//! the datagram.

use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The set of those units of 8 bytes of a datagram that have been received.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Coverage([u64; Self::WORD_COUNT]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; Self::WORD_COUNT])
    }
}

impl Coverage {
    const WORD_COUNT: usize = 65_536 / 8 / 64;

    /// Marks these units of 8 bytes of the datagram as received.
    pub(super) fn add(&mut self, units: Range<u32>) {
        for (word, mask) in self.0.iter_mut().zip(word_masks(units)) {
            *word |= mask;
        }
    }

    /// Returns true if any of these units of 8 bytes has been received.
    pub(super) fn covers_any(&self, units: Range<u32>) -> bool {
        self.0.iter().zip(word_masks(units)).any(|(word, mask)| word & mask != 0)
    }

    /// Returns true if any unit of 8 bytes from index `from` on has been received.
    pub(super) fn covers_any_from(&self, from: u32) -> bool {
        self.covers_any(from..8 * 65_536)
    }

    /// Returns true if all units of 8 bytes before index `before` have been received.
    pub(super) fn covers_all_before(&self, before: u32) -> bool {
        self.0.iter().zip(word_masks(0..before)).all(|(word, mask)| word & mask == mask)
    }
}

/// Yields a mask for each word of the bitmap. The mask has a bit set for each unit of 8 bytes in
/// the range `units`.
fn word_masks(units: Range<u32>) -> impl Iterator<Item = u64> {
    (0..).step_by(64).map(move |first: u32| {
        let below = |end: u32| match end.saturating_sub(first) {
            bits @ 0..64 => (1u64 << bits) - 1,
            _ => u64::MAX,
        };
        below(units.end) & !below(units.start)
    })
}
