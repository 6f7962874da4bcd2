//! Numbered frames, as `generate seq=yes` makes them.

use testkit::Frame;

/// Where the number stands, behind Ethernet, IPv4 and UDP.
const AT: usize = 42;

/// How long frames are where it does not matter.
pub(crate) const SHORT: usize = 64;

/// Frames of so many bytes with the numbers of this range.
pub(crate) fn numbered(range: std::ops::Range<u64>, length: usize) -> Vec<Vec<u8>> {
    range
        .map(|number| {
            let payload = [&number.to_be_bytes()[..], &vec![0; length - AT - 8]].concat();
            Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(10_000, 9, &payload)
        })
        .collect()
}

/// The number of a frame.
pub(crate) fn number(frame: &[u8]) -> u64 {
    let bytes = frame.get(AT..AT + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(u64::MAX, u64::from_be_bytes)
}

/// The numbers of frames.
pub(crate) fn numbers(frames: &[Vec<u8>]) -> Vec<u64> {
    frames.iter().map(|frame| number(frame)).collect()
}
