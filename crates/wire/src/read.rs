//! Functions that read integers at an offset, for parsers of formats without a fixed header. A read
//! beyond the end returns `None`.

/// Reads a big-endian u16 at offset `at`; `None` if the value extends beyond the end.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(read_array(bytes, at)?))
}

/// Reads a big-endian u32 at offset `at`; `None` if the value extends beyond the end.
#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(read_array(bytes, at)?))
}

/// Reads `N` bytes at offset `at`; `None` if they extend beyond the end.
#[inline]
pub(crate) fn read_array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

/// Decodes a u16 in the byte order of a capture, big endian if `big` is true.
#[inline]
pub(crate) const fn decode16(big: bool, bytes: [u8; 2]) -> u16 {
    if big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
}

/// Decodes a u32 in the byte order of a capture, big endian if `big` is true.
#[inline]
pub(crate) const fn decode32(big: bool, bytes: [u8; 4]) -> u32 {
    if big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}

/// Decodes a u64 in the byte order of a capture, big endian if `big` is true.
#[inline]
pub(crate) const fn decode64(big: bool, bytes: [u8; 8]) -> u64 {
    if big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
}

/// Returns a length or offset in a packet as 16 bits. No bits are lost, because packet formats
/// limit such values to far less than 65,536.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the truncation is the purpose of the function"
)]
#[inline]
pub(crate) const fn truncate_to_u16(value: usize) -> u16 {
    value as u16
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the truncation is the purpose of the function"
)]
#[inline]
pub(crate) const fn truncate_to_u64(value: u128) -> u64 {
    value as u64
}
