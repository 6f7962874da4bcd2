//! The Internet checksum (RFC 1071): over complete data, updated incrementally, and with the pseudo
//! headers of TCP and UDP.
//!
//! The functions add eight bytes at a time to a 128-bit accumulator and fold the carries at the
//! end. The byte order does not matter to a one's complement sum until the result is stored.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::read::truncate_to_u64;

/// A one's complement sum to which bytes can be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OnesComplementSum {
    total: u64,
    odd: bool,
}

impl OnesComplementSum {
    /// Creates the sum of no bytes.
    pub const fn new() -> Self {
        Self { total: 0, odd: false }
    }

    /// Returns the sum with `bytes` appended to the bytes already added. The number of bytes in any
    /// call may be odd.
    #[must_use]
    pub fn with_bytes(self, bytes: &[u8]) -> Self {
        let part = sum_big_endian_words(bytes);
        let part = if self.odd { part.swap_bytes() } else { part };
        Self { total: self.total + u64::from(part), odd: self.odd ^ (bytes.len() % 2 == 1) }
    }

    /// Returns the sum folded to 16 bits, not complemented.
    pub const fn fold_to_16_bits(self) -> u16 {
        fold_carries(self.total)
    }

    /// Returns the checksum: the complement of the folded sum.
    pub const fn checksum(self) -> u16 {
        !self.fold_to_16_bits()
    }
}

/// Returns the Internet checksum of `bytes`. The result is 0 if `bytes` contain their own valid
/// checksum.
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    OnesComplementSum::new().with_bytes(bytes).checksum()
}

/// Returns the sum over the pseudo header of a transport protocol (RFC 9293 §3.1, RFC 8200 §8.1);
/// `None` if the addresses are of different IP versions.
pub fn pseudo_header_sum(
    source: IpAddr,
    target: IpAddr,
    protocol: u8,
    length: u32,
) -> Option<OnesComplementSum> {
    match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            Some(ipv4_pseudo_header_sum(source, target, protocol, length))
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            Some(ipv6_pseudo_header_sum(source, target, protocol, length))
        }
        _ => None,
    }
}

/// Sums the IPv4 pseudo header. Its length field has 16 bits, but yields the same sum as a 32-bit
/// length.
fn ipv4_pseudo_header_sum(
    source: Ipv4Addr,
    target: Ipv4Addr,
    protocol: u8,
    length: u32,
) -> OnesComplementSum {
    let sum = OnesComplementSum::new().with_bytes(&source.octets()).with_bytes(&target.octets());
    sum.with_bytes(&[0, protocol]).with_bytes(&length.to_be_bytes())
}

fn ipv6_pseudo_header_sum(
    source: Ipv6Addr,
    target: Ipv6Addr,
    protocol: u8,
    length: u32,
) -> OnesComplementSum {
    let sum = OnesComplementSum::new().with_bytes(&source.octets()).with_bytes(&target.octets());
    sum.with_bytes(&length.to_be_bytes()).with_bytes(&[0, 0, 0, protocol])
}

/// Updates a checksum after a change to one of the 16-bit words that it covers (RFC 1624, equation
/// 3). Bit-identical to Linux's `csum_replace2`, including the choice between the two
/// representations of zero.
#[must_use]
pub const fn update_checksum_u16(checksum: u16, old: u16, new: u16) -> u16 {
    !fold_carries(!checksum as u64 + !old as u64 + new as u64)
}

/// Updates a checksum after a change to one of the 32-bit words that it covers. Bit-identical to
/// Linux's `csum_replace4`, which never yields 0xffff.
#[must_use]
pub const fn update_checksum_u32(checksum: u16, old: u32, new: u32) -> u16 {
    !fold_carries(0xffff + !checksum as u64 + !old as u64 + new as u64)
}

/// Updates the sum of a pseudo header after a change to a 32-bit word that it covers. The checksum
/// field of a packet contains the sum of its pseudo header until a device completes the checksum.
#[must_use]
pub const fn update_pseudo_header_sum_u32(sum: u16, old: u32, new: u32) -> u16 {
    fold_carries(sum as u64 + !old as u64 + new as u64)
}

/// Returns the one's complement sum of `bytes` as big-endian 16-bit words. An odd last byte is
/// padded with a zero byte.
fn sum_big_endian_words(bytes: &[u8]) -> u16 {
    let (words, tail) = bytes.as_chunks::<8>();
    let wide: u128 = words.iter().map(|word| u128::from(u64::from_be_bytes(*word))).sum();
    let mut last = [0u8; 8];
    for (slot, byte) in last.iter_mut().zip(tail) {
        *slot = *byte;
    }
    let wide = wide + u128::from(u64::from_be_bytes(last));
    fold_carries(truncate_to_u64(wide >> 64) + u64::from(fold_carries(truncate_to_u64(wide))))
}

/// Folds the carries of a one's complement sum into its low 16 bits.
const fn fold_carries(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum & 0xffff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the one's complement sum of `bytes`, computed word by word as a reference.
    fn reference_sum(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for word in bytes.chunks(2) {
            sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
            sum = (sum >> 16) + (sum & 0xffff);
        }
        (sum & 0xffff) as u16
    }

    #[test]
    fn checksum_of_the_rfc_1071_example_is_correct() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(OnesComplementSum::new().with_bytes(&bytes).fold_to_16_bits(), 0xddf2);
        assert_eq!(internet_checksum(&[]), 0xffff);
    }

    proptest::proptest! {
        #[test]
        fn sum_of_parts_equals_sum_of_the_whole(bytes: Vec<u8>, cuts: (usize, usize)) {
            let first = cuts.0 % (bytes.len() + 1);
            let second = first + cuts.1 % (bytes.len() - first + 1);
            let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]];
            let sum = parts.iter().fold(OnesComplementSum::new(), |sum, part| sum.with_bytes(part));
            // Zero has two representations in one's complement. Receivers treat both as equal.
            let sum = sum.fold_to_16_bits();
            proptest::prop_assert_eq!(sum % 0xffff, reference_sum(&bytes) % 0xffff);
            proptest::prop_assert_eq!(sum == 0, bytes.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn checksum_of_all_ones_does_not_overflow() {
        let bytes = vec![0xff; 1 << 20];
        assert_eq!(OnesComplementSum::new().with_bytes(&bytes).fold_to_16_bits(), 0xffff);
    }

    #[test]
    fn pseudo_header_needs_addresses_of_one_version() {
        let four = "1.2.3.4".parse().unwrap();
        assert_eq!(pseudo_header_sum(four, "::1".parse().unwrap(), 6, 20), None);
        let sum = pseudo_header_sum(four, "5.6.7.8".parse().unwrap(), 17, 9).unwrap();
        assert_eq!(sum.fold_to_16_bits(), reference_sum(&[1, 2, 3, 4, 5, 6, 7, 8, 0, 17, 0, 9]));
    }
}
