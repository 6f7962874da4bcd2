//! Numbered frames in the format of `generate seq=yes`.

use serde_json::Value;
use std::collections::BTreeSet;
use testkit::Frame;

/// Offset of the number in a numbered frame, after the headers of Ethernet, IPv4 and UDP.
const NUMBER_OFFSET: usize = 42;

/// Length in bytes of the numbered frames, unless a test needs another length.
pub(crate) const FRAME_LENGTH: usize = 64;

/// Returns frames of `length` bytes with the numbers in `range`.
pub(crate) fn numbered_frames(range: std::ops::Range<u64>, length: usize) -> Vec<Vec<u8>> {
    range
        .map(|number| {
            let payload =
                [&number.to_be_bytes()[..], &vec![0; length - NUMBER_OFFSET - 8]].concat();
            Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(10_000, 9, &payload)
        })
        .collect()
}

/// Returns the number of a frame, or `u64::MAX` if the frame is too short.
pub(crate) fn frame_number(frame: &[u8]) -> u64 {
    let bytes = frame.get(NUMBER_OFFSET..NUMBER_OFFSET + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(u64::MAX, u64::from_be_bytes)
}

/// Asserts that the numbers in `received` and the ranges in `missing` together are exactly the
/// numbers below `sent`. `missing` is the field of this name of a source or an edge. Returns the
/// processor numbers that the ranges name; `None` for a range without one.
pub(crate) fn assert_missing_is_reported(
    received: &[u64],
    missing: &Value,
    sent: u64,
) -> BTreeSet<Option<u64>> {
    assert_eq!(missing["more"], 0, "{missing}");
    let ranges = missing["ranges"].as_array().expect("ranges");
    let ends = |range: &Value| ["from", "to"].map(|end| range[end].as_u64().expect("a position"));
    let gone = ranges.iter().map(ends).flat_map(|[from, to]| from..=to);
    let mut all: Vec<u64> = received.iter().copied().chain(gone).collect();
    all.sort_unstable();
    let wrong = all.iter().zip(0..).find(|(number, place)| *number != place);
    assert_eq!((wrong, all.len() as u64), (None, sent), "{missing}");
    ranges.iter().map(|range| range["processor"].as_u64()).collect()
}

/// Returns the numbers of the frames.
pub(crate) fn frame_numbers(frames: &[Vec<u8>]) -> Vec<u64> {
    frames.iter().map(|frame| frame_number(frame)).collect()
}
