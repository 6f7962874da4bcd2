//! What can be told without a kernel: which checksums are those of a stack that leaves them to its
//! card. Rings and live frames are in the end-to-end tests.

use super::is_unset;
use testkit::Frame;
use wire::link::LinkType;

#[test]
fn a_checksum_is_unset_where_the_pseudo_header_is_all_that_was_summed() {
    let whole = Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(1000, 53, b"who");
    assert!(!is_unset(LinkType::ETHERNET, &whole));
    let mut left = whole.clone();
    // Addresses, protocol and length, in one's complement.
    let words = left[26..34].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
    let sum: u32 = words.sum::<u32>() + 17 + (8 + 3);
    let folded = (sum & 0xffff) + (sum >> 16);
    left[40..42].copy_from_slice(&(folded as u16).to_be_bytes());
    assert!(is_unset(LinkType::ETHERNET, &left));
    left[41] ^= 1;
    assert!(!is_unset(LinkType::ETHERNET, &left));
    for cut in 0..whole.len() {
        assert!(!is_unset(LinkType::ETHERNET, &whole[..cut]), "{cut}");
    }
}
