//! Numbered frames, as `generate seq=yes` makes them.

use serde_json::Value;
use std::collections::BTreeSet;
use testkit::Frame;

/// Offset of the number, behind Ethernet, IPv4 and UDP.
const AT: usize = 42;

/// Length of frames where it does not matter.
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

/// Asserts that what arrived and the ranges that a report names (`missing` of a source or an edge)
/// are what was sent, number by number. Answers the processors by whose frames ranges are counted.
pub(crate) fn assert_told(seen: &[u64], missing: &Value, sent: u64) -> BTreeSet<Option<u64>> {
    assert_eq!(missing["more"], 0, "{missing}");
    let ranges = missing["ranges"].as_array().expect("ranges");
    let ends = |range: &Value| ["from", "to"].map(|end| range[end].as_u64().expect("a position"));
    let gone = ranges.iter().map(ends).flat_map(|[from, to]| from..=to);
    let mut all: Vec<u64> = seen.iter().copied().chain(gone).collect();
    all.sort_unstable();
    let wrong = all.iter().zip(0..).find(|(number, place)| *number != place);
    assert_eq!((wrong, all.len() as u64), (None, sent), "{missing}");
    ranges.iter().map(|range| range["processor"].as_u64()).collect()
}

/// The numbers of frames.
pub(crate) fn numbers(frames: &[Vec<u8>]) -> Vec<u64> {
    frames.iter().map(|frame| number(frame)).collect()
}
