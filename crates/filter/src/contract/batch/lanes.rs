//! Lane indices and lane masks of a batch.

/// Maximum number of blocks in a batch, and thus of lanes. A variant with 128 lanes and `u128`
/// masks was slower.
pub const LANES: usize = 64;

/// Index of a lane, below [`LANES`].
pub type Lane = usize;

/// A set of lanes, with one bit per lane.
pub type LaneMask = u64;

/// Yields the lanes in a mask, in ascending order.
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

/// Returns the mask of the first `len` lanes.
#[inline]
#[must_use]
pub fn first_lanes_mask(len: usize) -> LaneMask {
    if len >= LANES { LaneMask::MAX } else { (1 << len) - 1 }
}

/// Returns the mask of the lanes whose byte satisfies `wanted`. `bytes` contains one byte for each
/// lane.
#[inline]
pub(super) fn lanes_with_byte(bytes: &[u8; LANES], wanted: impl Fn(u8) -> bool) -> LaneMask {
    // The multiplication gathers the lowest bits of eight bytes in the highest byte; no two
    // products share a bit.
    const GATHER_MULTIPLIER: u64 = 0x0102_0408_1020_4080;
    let mut yes = [0; LANES];
    for (yes, byte) in yes.iter_mut().zip(bytes) {
        *yes = u8::from(wanted(*byte));
    }
    let mut mask = 0;
    for (number, eight) in yes.as_chunks::<8>().0.iter().enumerate() {
        mask |= (u64::from_le_bytes(*eight).wrapping_mul(GATHER_MULTIPLIER) >> 56) << (8 * number);
    }
    mask
}
