//! Completion of TCP and UDP checksums that the sender has left to the network device (CONTRACT 3).
//!
//! The frame must be complete. The completion does not read the old value of the field, which is
//! usually the sum over the pseudo header.

use wire::dissect;
use wire::flow::Flow;
use wire::ip::protocol;
use wire::link::LinkType;

/// Computes the TCP or UDP checksum of a frame and stores it in the frame. If the frame has no such
/// checksum or is malformed, leaves it unchanged and returns `None`. Does not modify packets inside
/// a tunnel.
pub(super) fn complete_checksum(link: LinkType, frame: &mut [u8]) -> Option<()> {
    let layers = dissect::layers(link, frame);
    if layers.faults != dissect::FrameFaults::default() {
        return None;
    }
    let (at, pseudo) = Flow::checksum_location(&layers, frame)?;
    frame.get_mut(at..at + 2)?.fill(0);
    let sum = pseudo.with_bytes(layers.transport(frame)?).checksum();
    // 0 would mean that there is no checksum (RFC 768); TCP accepts both forms of zero.
    let sum = if sum == 0 && layers.protocol == Some(protocol::UDP) { 0xffff } else { sum };
    frame.get_mut(at..at + 2)?.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::decode_hex;
    use testkit::random::Random;

    /// A UDP datagram over IPv4, without an Ethernet header; the payload is `ab cd ef`.
    const IPV4_DATAGRAM: &str =
        "4500001f 00010000 40110000 0a000001 0a000002  04d2 0035 000b 1234  abcdef";
    /// A UDP datagram over IPv6, without an Ethernet header; the payload is `ab cd ef`.
    const IPV6_DATAGRAM: &str = "60000000 000b1140 fd000000000000000000000000000001
        fd000000000000000000000000000002  04d2 0035 000b 0000  abcdef";

    /// Returns true if the checksum of the UDP datagram at offset `at` is valid (RFC 768).
    fn is_checksum_valid(packet: &[u8], addresses: &[u8], at: usize) -> bool {
        let datagram = &packet[at..];
        let mut all = addresses.to_vec();
        all.extend([0, 17, 0, datagram.len() as u8]);
        all.extend(datagram);
        all.resize(all.len().next_multiple_of(2), 0);
        let words = all.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = words.sum();
        (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    #[test]
    fn completed_checksum_verifies() {
        for (packet, addresses, at) in
            [(decode_hex(IPV4_DATAGRAM), 12..20, 20), (decode_hex(IPV6_DATAGRAM), 8..40, 40)]
        {
            let mut sent = packet.clone();
            complete_checksum(LinkType::RAW, &mut sent).unwrap();
            let addresses = packet[addresses].to_vec();
            assert!(
                is_checksum_valid(&sent, &addresses, at)
                    && !is_checksum_valid(&packet, &addresses, at)
            );
            assert_eq!([&sent[..at + 6], &sent[at + 8..]], [&packet[..at + 6], &packet[at + 8..]]);
        }
    }

    #[test]
    fn padding_is_not_summed_and_zero_is_written_as_ones() {
        let mut padded = decode_hex(IPV4_DATAGRAM);
        padded.extend([9; 15]);
        complete_checksum(LinkType::RAW, &mut padded).unwrap();
        let mut plain = decode_hex(IPV4_DATAGRAM);
        complete_checksum(LinkType::RAW, &mut plain).unwrap();
        assert_eq!(padded[..31], plain[..]);
        // A payload that makes the sum zero: its own complement.
        let mut zero = decode_hex(IPV4_DATAGRAM);
        zero[28..30].fill(0);
        zero[30] = 0;
        complete_checksum(LinkType::RAW, &mut zero).unwrap();
        let sum = [zero[26], zero[27]];
        zero[28..30].copy_from_slice(&sum);
        complete_checksum(LinkType::RAW, &mut zero).unwrap();
        assert_eq!(zero[26..28], [0xff, 0xff]);
    }

    #[test]
    fn packet_without_checksum_is_unchanged() {
        let fragment =
            decode_hex("4500001f 00012000 40110000 0a000001 0a000002 04d20035000b1234abcdef");
        let icmp =
            decode_hex("4500001f 00010000 40010000 0a000001 0a000002 04d20035000b1234abcdef");
        for packet in
            [fragment, icmp, decode_hex(IPV4_DATAGRAM)[..27].to_vec(), vec![0; 60], vec![]]
        {
            let mut sent = packet.clone();
            assert_eq!(complete_checksum(LinkType::RAW, &mut sent), None);
            assert_eq!(sent, packet);
        }
    }

    #[test]
    fn mutated_packets_do_not_panic() {
        let mut random = Random::with_replayable_seed();
        for _ in 0..20_000 {
            let mut packet =
                decode_hex(if random.one_in(2) { IPV4_DATAGRAM } else { IPV6_DATAGRAM });
            for _ in 0..random.below(4) {
                let at = random.within(0..packet.len());
                packet[at] = random.below(256) as u8;
            }
            packet.truncate(random.within(0..packet.len() + 1));
            complete_checksum(LinkType::RAW, &mut packet);
        }
    }
}
