//! Lanes and masks of lanes.

/// Maximum number of lanes in a batch. 128 lanes behind a `u128` were slower.
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

/// The lanes whose byte is `wanted`.
#[inline]
pub(super) fn lanes_of(bytes: &[u8; LANES], wanted: impl Fn(u8) -> bool) -> LaneMask {
    // Multiplied so, the lowest bits of eight bytes come to stand side by side in the highest byte;
    // no two of their products meet in a bit.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let mut yes = [0; LANES];
    for (yes, byte) in yes.iter_mut().zip(bytes) {
        *yes = u8::from(wanted(*byte));
    }
    let mut mask = 0;
    for (number, eight) in yes.as_chunks::<8>().0.iter().enumerate() {
        mask |= (u64::from_le_bytes(*eight).wrapping_mul(GATHER) >> 56) << (8 * number);
    }
    mask
}
