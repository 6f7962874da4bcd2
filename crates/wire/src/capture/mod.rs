//! Capture files: pcap and pcapng, parsed incrementally.
//!
//! The reader takes chunks of any size, from a file, pipe or ring, and yields one [`Packet`] per
//! record, whose data stays in the chunk. It owns no bytes, does no I/O, and allocates only for the
//! interfaces of a pcapng section.
//!
//! Supported as in libpcap: both byte orders, micro- and nanoseconds, Kuznetzov's extended records,
//! old versions with swapped lengths; pcapng with several sections, interfaces of different link
//! types, and enhanced, simple and obsolete packet blocks. Other blocks are skipped, however long.
//! Captures that libpcap rejects (versions, reserved bits, lengths beyond the maximum of the link
//! type) are rejected with the same facts. Deviations:
//! - a record longer than [`DATA_MAX`] is rejected even for link types where libpcap accepts 128
//!   MB, because a rich pointer has 20 bits of length (USB and D-Bus captures only);
//! - interfaces of one pcapng file may differ in link type and snap length;
//! - a timestamp resolution finer than 64 bits can represent is accepted.
//!
//! The reasons for a parser of its own: `docs/book/decisions/0002-capture-reader.md`.

mod fault;
mod pcap;
mod pcapng;
pub mod write;

#[cfg(test)]
mod tests;

use core::ops::Range;

pub use fault::{CaptureFault, FaultKind};

use crate::link::LinkType;

/// Longest accepted record in bytes: the limit of a rich pointer.
pub const DATA_MAX: u32 = (1 << 20) - 1;
/// Maximum length in bytes of a pcapng block that must be complete in the buffer: data, plus 128 KB
/// of options as in libpcap.
pub const BLOCK_MAX: u32 = DATA_MAX + 128 * 1024;

/// A packet record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Timestamp in ns since 1970; 0 if the capture has none.
    pub time_ns: u64,
    /// Length on the wire in bytes; may exceed the captured length.
    pub wire_length: u32,
    /// Link type.
    pub link: LinkType,
    /// Interface number within its section; always 0 in pcap.
    pub interface: u16,
    /// Range of the captured bytes in the buffer.
    pub data: Range<usize>,
    /// Number of bytes of the buffer consumed by this record.
    pub consumed: usize,
}

/// Result of [`Reader::next`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A packet. The next call takes the bytes after `consumed`.
    Packet(Packet),
    /// The buffer holds no complete record. The next call takes at least `wanted` bytes (never more
    /// than [`BLOCK_MAX`]), from the first byte after `consumed` on. At the end of the input, call
    /// [`Reader::finish`] instead.
    NeedMore {
        /// Number of bytes of the buffer that are consumed.
        consumed: usize,
        /// Number of bytes that the next call needs to progress.
        wanted: usize,
    },
    /// The capture cannot be read further; later calls return the same.
    Error(CaptureFault),
}

/// An incremental reader of a capture.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    state: ReaderState,
    /// Number of bytes consumed so far.
    at: u64,
    /// Number of packets read so far.
    packets: u64,
}

#[derive(Clone, Debug, Default)]
enum ReaderState {
    #[default]
    Start,
    Pcap(pcap::Pcap),
    Pcapng(pcapng::Pcapng),
    Failed(CaptureFault),
}

/// Result of a format's reader: a packet, or the reason why the buffer yields none.
type ReadResult = Result<Packet, Short>;

/// Reason why the buffer yields no packet.
enum Short {
    /// Like [`Step::NeedMore`].
    More { consumed: usize, wanted: usize },
    /// The record at this offset of the buffer is invalid.
    Bad { at: usize, why: FaultKind },
}

impl Reader {
    /// Creates a reader at the beginning of a capture.
    pub const fn new() -> Self {
        Self { state: ReaderState::Start, at: 0, packets: 0 }
    }

    /// Reads the next packet. `buffer` begins with the first byte that the previous call did not
    /// consume.
    #[inline]
    pub fn next(&mut self, buffer: &[u8]) -> Step {
        if let ReaderState::Pcap(pcap) = &self.state {
            let found = pcap.next(buffer, 0);
            return self.advance(found);
        }
        self.next_uncommon(buffer)
    }

    /// Checks that the capture may end here, `rest` bytes after the last consumed byte.
    pub fn finish(&self, rest: usize) -> Result<(), CaptureFault> {
        let between = match &self.state {
            ReaderState::Start => false,
            ReaderState::Pcap(_) => rest == 0,
            ReaderState::Pcapng(pcapng) => rest == 0 && pcapng.is_between_blocks(),
            ReaderState::Failed(fault) => return Err(*fault),
        };
        if between { Ok(()) } else { Err(self.fault(rest, FaultKind::Ends)) }
    }

    /// Returns the number of bytes consumed.
    pub const fn position(&self) -> u64 {
        self.at
    }

    /// Returns the number of packets read.
    pub const fn packets(&self) -> u64 {
        self.packets
    }

    /// Iterates over the link types declared so far; for pcapng those of the current section.
    pub fn links(&self) -> impl Iterator<Item = LinkType> {
        let (one, several) = match &self.state {
            ReaderState::Pcap(pcap) => (Some(pcap.link()), None),
            ReaderState::Pcapng(pcapng) => (None, Some(pcapng.links())),
            ReaderState::Start | ReaderState::Failed(_) => (None, None),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// Handles the beginning of the capture, pcapng, and calls after a fault.
    #[inline(never)]
    fn next_uncommon(&mut self, buffer: &[u8]) -> Step {
        let found = match &mut self.state {
            ReaderState::Start => return self.start(buffer),
            ReaderState::Pcap(pcap) => pcap.next(buffer, 0),
            ReaderState::Pcapng(pcapng) => pcapng.next(buffer),
            ReaderState::Failed(fault) => return Step::Error(*fault),
        };
        self.advance(found)
    }

    /// Detects the format and reads the file header.
    fn start(&mut self, buffer: &[u8]) -> Step {
        let found = match buffer.first_chunk::<4>() {
            None => Err(Short::More { consumed: 0, wanted: 4 }),
            Some(&pcapng::SECTION) => {
                let mut pcapng = pcapng::Pcapng::new();
                let found = pcapng.next(buffer);
                self.state = ReaderState::Pcapng(pcapng);
                found
            }
            Some(_) => match pcap::Pcap::read(buffer) {
                Err(short) => Err(short),
                Ok(pcap) => {
                    let found = pcap.next(buffer, pcap::HEADER);
                    self.state = ReaderState::Pcap(pcap);
                    found
                }
            },
        };
        self.advance(found)
    }

    #[inline]
    fn advance(&mut self, found: ReadResult) -> Step {
        match found {
            Ok(packet) => {
                self.at += packet.consumed as u64;
                self.packets += 1;
                Step::Packet(packet)
            }
            Err(short) => self.stop(short),
        }
    }

    #[cold]
    fn stop(&mut self, short: Short) -> Step {
        match short {
            Short::More { consumed, wanted } => {
                self.at += consumed as u64;
                Step::NeedMore { consumed, wanted }
            }
            Short::Bad { at, why } => {
                let fault = self.fault(at, why);
                self.state = ReaderState::Failed(fault);
                Step::Error(fault)
            }
        }
    }

    fn fault(&self, offset: usize, why: FaultKind) -> CaptureFault {
        let in_header = match self.state {
            ReaderState::Start => true,
            _ => self.at == 0 && why == FaultKind::Ends,
        };
        let record = if in_header { 0 } else { self.packets + 1 };
        CaptureFault { at: self.at + offset as u64, record, why }
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
            Step::Packet(packet) => {
                let data = self.rest.get(packet.data.clone()).unwrap_or_default();
                self.rest = self.rest.get(packet.consumed..).unwrap_or_default();
                return Some(Ok((packet, data)));
            }
            Step::NeedMore { consumed, .. } => consumed,
            Step::Error(fault) => {
                self.done = true;
                return Some(Err(fault));
            }
        };
        self.done = true;
        self.reader.finish(self.rest.len() - consumed).err().map(Err)
    }
}
