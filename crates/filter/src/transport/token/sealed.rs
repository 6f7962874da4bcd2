//! Datagrams with tokens, for tests.

use super::{LENGTH, NUMBER, TokenView};
use crate::contract::Key;
use wire::{ipv4, ipv6};

/// Writes a token into an untagged Ethernet frame whose UDP payload begins with 16 bytes for it:
/// under this key, with this number, covering `covers` bytes.
///
/// # Panics
/// Panics if the frame has no such payload.
pub fn seal(frame: &mut [u8], key: &Key, number: u64, covers: usize) {
    let (addresses, udp) = match frame[14] >> 4 {
        4 => (14 + ipv4::SRC..14 + ipv4::LENGTH_MIN, 14 + ipv4::LENGTH_MIN),
        _ => (14 + ipv6::SRC..14 + ipv6::LENGTH, 14 + ipv6::LENGTH),
    };
    let stated = usize::from(u16::from_be_bytes([frame[udp + 4], frame[udp + 5]]));
    let (payload, end) = (udp + wire::udp::LENGTH, udp + stated);
    let data = payload + LENGTH;
    let found = TokenView {
        number: number.to_be_bytes(),
        tag: 0,
        ports: *frame[udp..].first_chunk().expect("a header"),
        addresses: &frame[addresses],
        data: &frame[data..data + covers.min(end - data)],
    };
    let tag = found.signed(key, (end - data) as u32);
    frame[payload..payload + NUMBER].copy_from_slice(&number.to_be_bytes());
    frame[payload + NUMBER..data].copy_from_slice(&tag.to_le_bytes());
}
