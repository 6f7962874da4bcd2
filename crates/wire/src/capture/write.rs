//! Writes the classic format: nanoseconds, little-endian on every machine, so that the same packets
//! give the same file everywhere.
//!
//! Out: the bytes of the file's header and of a record's header; the caller writes them and then
//! the packet. More than [`SNAP_LENGTH`] bytes of one packet must not be written: libpcap, and
//! whoever reads through it, refuses the rest of a file that holds more.

use crate::link::LinkType;

/// The longest record that any reader accepts, and the snap length that the header states.
pub const SNAP_LENGTH: u32 = 262_144;
/// The length of the file's header.
pub const HEADER: usize = 24;
/// The length of a record's header.
pub const RECORD: usize = 16;

/// The header of a file.
pub fn header(link: LinkType) -> [u8; HEADER] {
    const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
    const VERSION: u32 = 4 << 16 | 2;
    let words = [MAGIC_NANOSECONDS, VERSION, 0, 0, SNAP_LENGTH, u32::from(link.0)];
    little_endian(words)
}

/// The header of a record. Times behind the year 2106 are written as the last that fits.
pub fn record(time_ns: u64, captured: u32, wire_length: u32) -> [u8; RECORD] {
    const SECOND: u64 = 1_000_000_000;
    let last = u64::from(u32::MAX) * SECOND + (SECOND - 1);
    let time = time_ns.min(last);
    let seconds = u32::try_from(time / SECOND).unwrap_or(u32::MAX);
    let rest = u32::try_from(time % SECOND).unwrap_or(0);
    little_endian([seconds, rest, captured, wire_length])
}

fn little_endian<const WORDS: usize, const BYTES: usize>(words: [u32; WORDS]) -> [u8; BYTES] {
    const { assert!(WORDS * 4 == BYTES) };
    let mut bytes = [0; BYTES];
    for (slot, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *slot = word.to_le_bytes();
    }
    bytes
}
