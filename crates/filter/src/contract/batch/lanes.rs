//! Lanes and masks of lanes.

/// How many lanes a batch has at most. 128 lanes behind a `u128` were slower.
pub const LANES: usize = 64;

/// The number of a lane, below [`LANES`].
pub type Lane = usize;

/// One bit per lane.
pub type LaneMask = u64;

/// The numbers of the lanes in a mask, ascending.
#[inline]
pub fn lanes(mut mask: LaneMask) -> impl Iterator<Item = Lane> {
    core::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let l = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(l)
    })
}

/// The mask of the first `len` lanes.
#[inline]
#[must_use]
pub fn mask_of(len: usize) -> LaneMask {
    if len >= LANES { LaneMask::MAX } else { (1 << len) - 1 }
}
