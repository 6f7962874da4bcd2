//! Reader for the classic pcap format: a file header of 24 bytes, then records, each with a header
//! of 16 bytes and data.
//!
//! Reading must keep up with memory bandwidth. Per record, the reader makes one bounds check for
//! the header and one for the data, and writes no state.

use super::{FaultKind, NoPacketReason, Packet, RECORD_DATA_MAX, ReadResult};
use crate::link::LinkType;
use crate::read::{decode16, decode32, read_array};

/// Length of the file header in bytes.
pub(super) const FILE_HEADER_LENGTH: usize = 24;

/// A parsed pcap file header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pcap {
    big: bool,
    /// Number of nanoseconds in one unit of a record's fraction field.
    tick_ns: u64,
    /// Length of a record header in bytes: 16, or 24 with Kuznetzov's extension.
    record_header_length: usize,
    lengths: LengthOrder,
    link: LinkType,
    /// Maximum length of a valid record in bytes.
    length_max: u32,
}

/// The order of the two packet lengths in a record of a pcap file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LengthOrder {
    /// The captured length precedes the wire length.
    CapturedFirst,
    /// The wire length precedes the captured length, as in versions before 2.3 and in version
    /// 543.0.
    WireFirst,
    /// The order is unknown (version 2.3). The smaller length is the captured length.
    UnknownOrder,
}

impl Pcap {
    /// Parses the pcap file header at the beginning of `buffer`.
    pub(super) fn read(buffer: &[u8]) -> Result<Self, NoPacketReason> {
        let bad = |why| NoPacketReason::Invalid { at: 0, why };
        let magic: [u8; 4] =
            read_array(buffer, 0).ok_or(NoPacketReason::Incomplete { consumed: 0, wanted: 4 })?;
        let (big, tick_ns, record) =
            decode_magic(magic).ok_or_else(|| bad(FaultKind::NotACapture { magic }))?;
        let Some(header) = buffer.first_chunk::<FILE_HEADER_LENGTH>() else {
            return Err(NoPacketReason::Incomplete { consumed: 0, wanted: FILE_HEADER_LENGTH });
        };
        let u16_at = |at| read_array(header, at).map_or(0, |bytes| decode16(big, bytes));
        let u32_at = |at| read_array(header, at).map_or(0, |bytes| decode32(big, bytes));
        let (major, minor) = (u16_at(4), u16_at(6));
        let lengths = length_order(major, minor)
            .ok_or_else(|| bad(FaultKind::Version { format: "pcap", major, minor }))?;
        // The upper four bits contain the length of a frame check sequence, and bit 26 indicates
        // its presence.
        let reserved = u32_at(20) & 0x03ff_0000;
        if reserved != 0 {
            return Err(bad(FaultKind::Reserved { bits: reserved }));
        }
        let link = LinkType(u16_at(if big { 22 } else { 20 }));
        let length_max = link.record_length_max().min(RECORD_DATA_MAX);
        // The snapshot length is not read: some writers exceed it, and libpcap then silently drops
        // the rest of the record.
        Ok(Self { big, tick_ns, record_header_length: record, lengths, link, length_max })
    }

    pub(super) const fn link(&self) -> LinkType {
        self.link
    }

    /// Reads the record at offset `at` in the buffer.
    #[inline]
    pub(super) fn next(&self, buffer: &[u8], at: usize) -> ReadResult {
        let short = |wanted| NoPacketReason::Incomplete { consumed: at, wanted };
        let Some(header) =
            buffer.get(at..at + self.record_header_length).and_then(<[u8]>::first_chunk::<16>)
        else {
            return Err(short(self.record_header_length));
        };
        let [seconds, fraction, captured, wire] = self.header_words(header);
        let (captured, wire) = match self.lengths {
            LengthOrder::CapturedFirst => (captured, wire),
            other => order_lengths(other, captured, wire),
        };
        if captured > self.length_max {
            return Err(NoPacketReason::Invalid {
                at,
                why: FaultKind::TooLong { length: captured, max: self.length_max },
            });
        }
        let start = at + self.record_header_length;
        let end = start + captured as usize;
        if end > buffer.len() {
            return Err(short(self.record_header_length + captured as usize));
        }
        Ok(Packet {
            time_ns: u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.tick_ns,
            wire_length: wire,
            link: self.link,
            interface: 0,
            data: start..end,
            consumed: end,
        })
    }

    #[inline]
    fn header_words(&self, header: &[u8; 16]) -> [u32; 4] {
        let (words, _) = header.as_chunks::<4>();
        let mut decoded = [0u32; 4];
        for (number, word) in decoded.iter_mut().zip(words) {
            *number = decode32(self.big, *word);
        }
        decoded
    }
}

/// Decodes the magic number of a pcap file. Returns true for big endian, the number of nanoseconds
/// per tick, and the length of a record header in bytes; `None` if the magic number is unknown.
fn decode_magic(magic: [u8; 4]) -> Option<(bool, u64, usize)> {
    let number = u32::from_be_bytes(magic);
    [(number, true), (number.swap_bytes(), false)].into_iter().find_map(|(number, big)| {
        match number {
            // Navtel's magic number denotes the same format.
            0xa1b2_c3d4 | 0xa12b_3c4d => Some((big, 1_000, 16)),
            0xa1b2_3c4d => Some((big, 1, 16)),
            0xa1b2_cd34 => Some((big, 1_000, 24)),
            _ => None,
        }
    })
}

const fn length_order(major: u16, minor: u16) -> Option<LengthOrder> {
    match (major, minor) {
        (2, 4) => Some(LengthOrder::CapturedFirst),
        (2, 3) => Some(LengthOrder::UnknownOrder),
        (2, 0..3) | (543, 0) => Some(LengthOrder::WireFirst),
        _ => None,
    }
}

#[cold]
fn order_lengths(lengths: LengthOrder, first: u32, second: u32) -> (u32, u32) {
    if lengths == LengthOrder::WireFirst || first > second {
        (second, first)
    } else {
        (first, second)
    }
}
