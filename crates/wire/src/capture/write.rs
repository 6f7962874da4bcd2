//! Headers for writers of the classic pcap format. Files have nanosecond times and are little
//! endian on every machine, so the same packets yield the same file.
//!
//! The functions return header bytes, to be written before the data. At most [`SNAP_LENGTH_MAX`]
//! bytes of a packet may be written, because libpcap stops reading a file at a longer record.

use crate::link::LinkType;

/// Maximum number of captured bytes in a record that every reader accepts. Also the snap length in
/// the file header.
pub const SNAP_LENGTH_MAX: u32 = 262_144;
/// Length of the pcap file header in bytes.
pub const FILE_HEADER_SIZE: usize = 24;
/// Length of a pcap record header in bytes.
pub const RECORD_HEADER_SIZE: usize = 16;

/// Returns the header of a pcap file for frames of this link type.
pub fn encode_file_header(link: LinkType) -> [u8; FILE_HEADER_SIZE] {
    const PCAP_MAGIC_NS: u32 = 0xa1b2_3c4d;
    const PCAP_VERSION: u32 = 4 << 16 | 2;
    let words = [PCAP_MAGIC_NS, PCAP_VERSION, 0, 0, SNAP_LENGTH_MAX, u32::from(link.0)];
    encode_little_endian(words)
}

/// Returns the header of a pcap record. Times after 2106 are clamped to the last time that the
/// format can represent.
pub fn encode_record_header(
    time_ns: u64,
    captured: u32,
    wire_length: u32,
) -> [u8; RECORD_HEADER_SIZE] {
    const NS_PER_SECOND: u64 = 1_000_000_000;
    let last = u64::from(u32::MAX) * NS_PER_SECOND + (NS_PER_SECOND - 1);
    let time = time_ns.min(last);
    let seconds = u32::try_from(time / NS_PER_SECOND).unwrap_or(u32::MAX);
    let rest = u32::try_from(time % NS_PER_SECOND).unwrap_or(0);
    encode_little_endian([seconds, rest, captured, wire_length])
}

fn encode_little_endian<const WORDS: usize, const BYTES: usize>(
    words: [u32; WORDS],
) -> [u8; BYTES] {
    const { assert!(WORDS * 4 == BYTES) };
    let mut bytes = [0; BYTES];
    for (slot, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *slot = word.to_le_bytes();
    }
    bytes
}
