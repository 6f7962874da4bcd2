//! Capture files: pcap and pcapng as a state machine over chunks of bytes.
//!
//! In: the bytes of a capture, in pieces of any size, as they come from a file, a pipe or a ring.
//! Out: one [`Packet`] per record, whose data stay where they are. The reader owns no bytes, does
//! no I/O and allocates only for the interfaces that a pcapng section describes.
//!
//! Both byte orders, micro- and nanoseconds, Kuznetzov's extended records, and the old versions
//! with swapped lengths are read as libpcap reads them; pcapng with several sections, interfaces of
//! different link types, enhanced, simple and obsolete packet blocks; other blocks are skipped,
//! however long. What libpcap refuses (versions, reserved bits, lengths that no link type allows)
//! is refused with the same facts. Where we deviate:
//! - a record longer than [`DATA_MAX`] is refused even for link types where libpcap takes 128 MB,
//!   because a rich pointer has 20 bits of length (USB and D-Bus captures only);
//! - interfaces of one pcapng file may differ in link type and snap length;
//! - a resolution of time stamps finer than 64 bits can count is read, not refused.
//!
//! Own code instead of a crate: `docs/book/decisions/0002-capture-reader.md`.

mod fault;
mod pcap;
mod pcapng;
pub mod write;

#[cfg(test)]
mod tests;

use core::ops::Range;

pub use fault::{Fault, Why};

use crate::link::LinkType;

/// The longest record that is accepted, in bytes: what a rich pointer can say.
pub const DATA_MAX: u32 = (1 << 20) - 1;
/// The longest pcapng block that must be whole in the buffer: data, and 128 KB of options as in
/// libpcap.
pub const BLOCK_MAX: u32 = DATA_MAX + 128 * 1024;

/// One packet of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// When it was captured, in nanoseconds since 1970. Zero where the capture does not say.
    pub time_ns: u64,
    /// How long it was on the wire, which may be more than was captured.
    pub wire_length: u32,
    /// Its link type.
    pub link: LinkType,
    /// Its interface, counted from zero within a section; always zero in pcap.
    pub interface: u16,
    /// Where its bytes are in the buffer.
    pub data: Range<usize>,
    /// How many bytes of the buffer are done with.
    pub consumed: usize,
}

/// What a call found in the buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A packet. The next call wants the bytes behind `consumed`.
    Packet(Packet),
    /// The buffer holds no whole record. The next call wants the bytes behind `consumed`, at least
    /// `wanted` of them, which is never more than [`BLOCK_MAX`]. If there are none left, call
    /// [`Reader::finish`].
    NeedMore {
        /// How many bytes of the buffer are done with.
        consumed: usize,
        /// How many bytes the next call needs to get anywhere.
        wanted: usize,
    },
    /// The capture cannot be read further; every later call says the same.
    Error(Fault),
}

/// Reads a capture.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    state: State,
    /// How many bytes of the capture are done with.
    at: u64,
    /// How many packets were read.
    packets: u64,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Start,
    Pcap(pcap::Pcap),
    Pcapng(pcapng::Pcapng),
    Failed(Fault),
}

/// What a format answers: a packet, or why there is none in this buffer.
type Found = Result<Packet, Short>;

/// Why a format has no packet for us.
enum Short {
    /// See [`Step::NeedMore`].
    More { consumed: usize, wanted: usize },
    /// The record at this offset of the buffer cannot be read.
    Bad { at: usize, why: Why },
}

impl Reader {
    /// A reader at the beginning of a capture.
    pub const fn new() -> Self {
        Self { state: State::Start, at: 0, packets: 0 }
    }

    /// Reads the next packet. `buffer` begins where the last call's `consumed` ended.
    #[inline]
    pub fn next(&mut self, buffer: &[u8]) -> Step {
        if let State::Pcap(pcap) = &self.state {
            let found = pcap.next(buffer, 0);
            return self.take(found);
        }
        self.next_uncommon(buffer)
    }

    /// Says whether the capture may end here, `rest` bytes behind what was consumed.
    pub fn finish(&self, rest: usize) -> Result<(), Fault> {
        let between = match &self.state {
            State::Start => false,
            State::Pcap(_) => rest == 0,
            State::Pcapng(pcapng) => rest == 0 && pcapng.is_between_blocks(),
            State::Failed(fault) => return Err(*fault),
        };
        if between { Ok(()) } else { Err(self.fault(rest, Why::Ends)) }
    }

    /// How many bytes of the capture are done with.
    pub const fn position(&self) -> u64 {
        self.at
    }

    /// How many packets were read.
    pub const fn packets(&self) -> u64 {
        self.packets
    }

    /// The link types that the capture has named so far: of pcapng those of the interfaces of the
    /// current section.
    pub fn links(&self) -> impl Iterator<Item = LinkType> {
        let (one, several) = match &self.state {
            State::Pcap(pcap) => (Some(pcap.link()), None),
            State::Pcapng(pcapng) => (None, Some(pcapng.links())),
            State::Start | State::Failed(_) => (None, None),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// The beginning of the capture, pcapng, and calls after a fault.
    #[inline(never)]
    fn next_uncommon(&mut self, buffer: &[u8]) -> Step {
        let found = match &mut self.state {
            State::Start => return self.start(buffer),
            State::Pcap(pcap) => pcap.next(buffer, 0),
            State::Pcapng(pcapng) => pcapng.next(buffer),
            State::Failed(fault) => return Step::Error(*fault),
        };
        self.take(found)
    }

    /// Tells the formats apart and reads the header of the file.
    fn start(&mut self, buffer: &[u8]) -> Step {
        let found = match buffer.first_chunk::<4>() {
            None => Err(Short::More { consumed: 0, wanted: 4 }),
            Some(&pcapng::SECTION) => {
                let mut pcapng = pcapng::Pcapng::new();
                let found = pcapng.next(buffer);
                self.state = State::Pcapng(pcapng);
                found
            }
            Some(_) => match pcap::Pcap::read(buffer) {
                Err(short) => Err(short),
                Ok(pcap) => {
                    let found = pcap.next(buffer, pcap::HEADER);
                    self.state = State::Pcap(pcap);
                    found
                }
            },
        };
        self.take(found)
    }

    #[inline]
    fn take(&mut self, found: Found) -> Step {
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
                self.state = State::Failed(fault);
                Step::Error(fault)
            }
        }
    }

    fn fault(&self, behind: usize, why: Why) -> Fault {
        let in_header = match self.state {
            State::Start => true,
            _ => self.at == 0 && why == Why::Ends,
        };
        let record = if in_header { 0 } else { self.packets + 1 };
        Fault { at: self.at + behind as u64, record, why }
    }
}

/// Reads a capture that is whole in memory.
pub const fn packets(capture: &[u8]) -> Packets<'_> {
    Packets { reader: Reader::new(), rest: capture, done: false }
}

/// The packets of a capture in memory, with their bytes. Ends after the first fault.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    reader: Reader,
    rest: &'a [u8],
    done: bool,
}

impl<'a> Iterator for Packets<'a> {
    type Item = Result<(Packet, &'a [u8]), Fault>;

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
