//! Capture files: pcap and pcapng, parsed incrementally.
//!
//! The reader accepts chunks of any size, from a file, pipe or ring, and returns one [`Packet`] per
//! record, whose data stay in the chunk. The reader owns no bytes, does no I/O, and allocates only
//! for the interfaces of a pcapng section.
//!
//! Supported as in libpcap: both byte orders, micro- and nanoseconds, Kuznetzov's extended records,
//! old versions with swapped lengths; pcapng with several sections, interfaces of different link
//! types, and enhanced, simple and obsolete packet blocks. Other blocks are skipped, however long.
//! Captures that libpcap rejects (versions, reserved bits, lengths beyond the maximum of the link
//! type) are rejected here too, and the errors state the same facts. Deviations from libpcap:
//! - a record longer than [`RECORD_DATA_MAX`] is rejected even for link types where libpcap accepts
//!   128 MB, because a rich pointer has 20 bits of length (USB and D-Bus captures only);
//! - interfaces of one pcapng file may differ in link type and snap length;
//! - a timestamp resolution finer than 64 bits can represent is accepted.
//!
//! `docs/book/decisions/0002-capture-reader.md` explains why this crate does not use libpcap.

mod fault;
mod pcap;
mod pcapng;
pub mod write;

#[cfg(test)]
mod tests;

use core::ops::Range;

pub use fault::{CaptureFault, FaultKind};

use crate::link::LinkType;

/// Maximum length in bytes of an accepted record, which is also the maximum length of a rich
/// pointer's data.
pub const RECORD_DATA_MAX: u32 = (1 << 20) - 1;
/// Maximum length in bytes of a pcapng block that must be complete in the buffer: the data plus 128
/// KB of options, as in libpcap.
pub const BLOCK_LENGTH_MAX: u32 = RECORD_DATA_MAX + 128 * 1024;

/// A packet record of a capture file, whose bytes stay in the caller's buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Timestamp in ns since 1970; 0 if the record has none.
    pub time_ns: u64,
    /// Length on the wire in bytes. May exceed the captured length.
    pub wire_length: u32,
    /// Link type of the packet's interface.
    pub link: LinkType,
    /// Number of the interface within its section; always 0 in pcap.
    pub interface: u16,
    /// Range of the captured bytes in the buffer.
    pub data: Range<usize>,
    /// Number of bytes in the buffer that this record consumes.
    pub consumed: usize,
}

/// The result of [`Reader::next`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadOutcome {
    /// A packet. The buffer of the next call must begin after the `consumed` bytes.
    Packet(Packet),
    /// The buffer contains no complete record. The buffer of the next call must begin after the
    /// `consumed` bytes and have at least `wanted` bytes (never more than [`BLOCK_LENGTH_MAX`]). At
    /// the end of the input, [`Reader::finish`] must be called instead.
    NeedMore {
        /// Number of bytes that this call has consumed from the buffer.
        consumed: usize,
        /// Number of bytes that the next call needs to make progress.
        wanted: usize,
    },
    /// The capture cannot be read further. Later calls return the same fault.
    Error(CaptureFault),
}

/// An incremental reader of a capture.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    state: ReaderState,
    /// Number of bytes of the capture consumed so far.
    at: u64,
    /// Number of packets read so far.
    packets: u64,
}

#[derive(Clone, Debug, Default)]
enum ReaderState {
    #[default]
    Start,
    Pcap(pcap::Pcap),
    Pcapng(pcapng::PcapngReader),
    Failed(CaptureFault),
}

/// The result of the reader of one capture format: a packet, or the reason why the buffer yields
/// none.
type ReadResult = Result<Packet, NoPacketReason>;

/// The reason the buffer yields no packet.
enum NoPacketReason {
    /// The buffer contains no complete record, as in [`ReadOutcome::NeedMore`].
    Incomplete { consumed: usize, wanted: usize },
    /// The record at this offset in the buffer is invalid.
    Invalid { at: usize, why: FaultKind },
}

impl Reader {
    /// Creates a reader at the beginning of a capture.
    pub const fn new() -> Self {
        Self { state: ReaderState::Start, at: 0, packets: 0 }
    }

    /// Reads the next packet. `buffer` must begin with the first byte that the previous call has
    /// not consumed.
    #[inline]
    pub fn next(&mut self, buffer: &[u8]) -> ReadOutcome {
        if let ReaderState::Pcap(pcap) = &self.state {
            let found = pcap.next(buffer, 0);
            return self.finish_step(found);
        }
        self.next_in_uncommon_state(buffer)
    }

    /// Checks that the capture is complete, given the number `rest` of bytes at its end that have
    /// not been consumed. Returns a fault if the capture is truncated, or again the fault that
    /// [`Reader::next`] has returned.
    pub fn finish(&self, rest: usize) -> Result<(), CaptureFault> {
        let between = match &self.state {
            ReaderState::Start => false,
            ReaderState::Pcap(_) => rest == 0,
            ReaderState::Pcapng(pcapng) => rest == 0 && pcapng.is_between_blocks(),
            ReaderState::Failed(fault) => return Err(*fault),
        };
        if between { Ok(()) } else { Err(self.fault(rest, FaultKind::Truncated)) }
    }

    /// Returns the number of bytes of the capture that have been consumed so far.
    pub const fn position(&self) -> u64 {
        self.at
    }

    /// Returns the number of packets read so far.
    pub const fn packet_count(&self) -> u64 {
        self.packets
    }

    /// Iterates over the link types declared so far. For pcapng, these are the link types of the
    /// current section. Yields nothing after a fault.
    pub fn link_types(&self) -> impl Iterator<Item = LinkType> {
        let (one, several) = match &self.state {
            ReaderState::Pcap(pcap) => (Some(pcap.link()), None),
            ReaderState::Pcapng(pcapng) => (None, Some(pcapng.link_types())),
            ReaderState::Start | ReaderState::Failed(_) => (None, None),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// Reads the next packet in the uncommon states of the reader: at the beginning of the capture,
    /// in a pcapng capture, and after a fault.
    #[inline(never)]
    fn next_in_uncommon_state(&mut self, buffer: &[u8]) -> ReadOutcome {
        let found = match &mut self.state {
            ReaderState::Start => return self.read_file_header(buffer),
            ReaderState::Pcap(pcap) => pcap.next(buffer, 0),
            ReaderState::Pcapng(pcapng) => pcapng.next(buffer),
            ReaderState::Failed(fault) => return ReadOutcome::Error(*fault),
        };
        self.finish_step(found)
    }

    /// Detects the format, and reads the file header and the first packet.
    fn read_file_header(&mut self, buffer: &[u8]) -> ReadOutcome {
        let found = match buffer.first_chunk::<4>() {
            None => Err(NoPacketReason::Incomplete { consumed: 0, wanted: 4 }),
            Some(&pcapng::SECTION_MAGIC) => {
                let mut pcapng = pcapng::PcapngReader::new();
                let found = pcapng.next(buffer);
                self.state = ReaderState::Pcapng(pcapng);
                found
            }
            Some(_) => match pcap::Pcap::read(buffer) {
                Err(short) => Err(short),
                Ok(pcap) => {
                    let found = pcap.next(buffer, pcap::FILE_HEADER_LENGTH);
                    self.state = ReaderState::Pcap(pcap);
                    found
                }
            },
        };
        self.finish_step(found)
    }

    #[inline]
    fn finish_step(&mut self, found: ReadResult) -> ReadOutcome {
        match found {
            Ok(packet) => {
                self.at += packet.consumed as u64;
                self.packets += 1;
                ReadOutcome::Packet(packet)
            }
            Err(short) => self.step_without_packet(short),
        }
    }

    #[cold]
    fn step_without_packet(&mut self, short: NoPacketReason) -> ReadOutcome {
        match short {
            NoPacketReason::Incomplete { consumed, wanted } => {
                self.at += consumed as u64;
                ReadOutcome::NeedMore { consumed, wanted }
            }
            NoPacketReason::Invalid { at, why } => {
                let fault = self.fault(at, why);
                self.state = ReaderState::Failed(fault);
                ReadOutcome::Error(fault)
            }
        }
    }

    fn fault(&self, offset: usize, why: FaultKind) -> CaptureFault {
        let in_header = match self.state {
            ReaderState::Start => true,
            _ => self.at == 0 && why == FaultKind::Truncated,
        };
        let record = if in_header { 0 } else { self.packets + 1 };
        CaptureFault { at: self.at + offset as u64, record, kind: why }
    }
}

/// Iterates over the packets of a capture in memory.
pub const fn packets(capture: &[u8]) -> Packets<'_> {
    Packets { reader: Reader::new(), rest: capture, done: false }
}

/// An iterator over the packets of a capture in memory, with their bytes. Ends after the first
/// fault.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    reader: Reader,
    rest: &'a [u8],
    done: bool,
}

impl<'a> Iterator for Packets<'a> {
    type Item = Result<(Packet, &'a [u8]), CaptureFault>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let consumed = match self.reader.next(self.rest) {
            ReadOutcome::Packet(packet) => {
                let data = self.rest.get(packet.data.clone()).unwrap_or_default();
                self.rest = self.rest.get(packet.consumed..).unwrap_or_default();
                return Some(Ok((packet, data)));
            }
            ReadOutcome::NeedMore { consumed, .. } => consumed,
            ReadOutcome::Error(fault) => {
                self.done = true;
                return Some(Err(fault));
            }
        };
        self.done = true;
        self.reader.finish(self.rest.len() - consumed).err().map(Err)
    }
}
