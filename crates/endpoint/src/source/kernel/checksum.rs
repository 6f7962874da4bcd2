//! Detection of frames with checksum offload. In such a frame the checksum field contains only the
//! sum over the pseudo header, because the network stack leaves the completion of the checksum to
//! the device.

use wire::dissect::Layers;
use wire::flow::Flow;

/// Returns true if the TCP or UDP checksum of the frame has been left to the device. Returns false
/// for fragments and truncated headers.
pub(super) fn is_checksum_unset(layers: &Layers, frame: &[u8]) -> bool {
    let Some((at, pseudo)) = Flow::checksum_location(layers, frame) else { return false };
    frame.get(at..at + 2) == Some(&pseudo.fold_to_16_bits().to_be_bytes())
}

#[cfg(test)]
mod tests {
    use testkit::Frame;
    use wire::link::LinkType;

    fn is_checksum_unset(frame: &[u8]) -> bool {
        super::is_checksum_unset(&wire::layers(LinkType::ETHERNET, frame), frame)
    }

    #[test]
    fn checksum_of_pseudo_header_only_is_unset() {
        let whole = Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(1000, 53, b"who");
        assert!(!is_checksum_unset(&whole));
        let mut left = whole.clone();
        // One's complement sum of addresses, protocol and length.
        let words = left[26..34].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
        let sum: u32 = words.sum::<u32>() + 17 + (8 + 3);
        let folded = (sum & 0xffff) + (sum >> 16);
        left[40..42].copy_from_slice(&(folded as u16).to_be_bytes());
        assert!(is_checksum_unset(&left));
        left[41] ^= 1;
        assert!(!is_checksum_unset(&left));
        for cut in 0..whole.len() {
            assert!(!is_checksum_unset(&whole[..cut]), "{cut}");
        }
    }
}
