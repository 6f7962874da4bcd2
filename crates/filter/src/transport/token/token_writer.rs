//! Test support that creates datagrams with valid tokens.

use super::{NUMBER_SIZE, TOKEN_SIZE, TokenView};
use crate::contract::Key;
use wire::{ipv4, ipv6};

/// Writes a token with this number into the first 16 bytes of the UDP payload of an untagged
/// Ethernet frame. The tag of the token is computed with `key`, and covers at most `covers` bytes
/// of the data.
///
/// # Panics
///
/// Panics if the frame has no such payload.
pub fn write_token(frame: &mut [u8], key: &Key, number: u64, covers: usize) {
    let (addresses, udp) = match frame[14] >> 4 {
        4 => (14 + ipv4::SRC_OFFSET..14 + ipv4::HEADER_LENGTH_MIN, 14 + ipv4::HEADER_LENGTH_MIN),
        _ => (14 + ipv6::SRC_OFFSET..14 + ipv6::HEADER_LENGTH, 14 + ipv6::HEADER_LENGTH),
    };
    let stated = usize::from(u16::from_be_bytes([frame[udp + 4], frame[udp + 5]]));
    let (payload, end) = (udp + wire::udp::HEADER_LENGTH, udp + stated);
    let data = payload + TOKEN_SIZE;
    let found = TokenView {
        number: number.to_be_bytes(),
        tag: 0,
        ports: *frame[udp..].first_chunk().expect("a header"),
        addresses: &frame[addresses],
        data: &frame[data..data + covers.min(end - data)],
    };
    let tag = found.expected_tag(key, (end - data) as u32);
    frame[payload..payload + NUMBER_SIZE].copy_from_slice(&number.to_be_bytes());
    frame[payload + NUMBER_SIZE..data].copy_from_slice(&tag.to_le_bytes());
}
