//! The file format of a recording: blocks of pcapng (draft-ietf-opsawg-pcapng), little-endian.
//!
//! Frames are enhanced packet blocks, so that tcpdump and Wireshark open a recording as a capture.
//! Everything else is in blocks of one type from the range for local use, which other readers skip,
//! and in a local option of the packet blocks:
//!
//! ```text
//! section header, HEAD
//! { interface description | CHUNK { EVENT { frame | BYTES } } | CHANGE }
//! END
//! ```
//!
//! A chunk holds events of one space and starts with its length, so that the replay of another
//! space can skip it. An event ([`super::event`]) is one step of a space, followed by its blocks. A
//! change ([`super::change`]) follows all events that the affected spaces had written until then,
//! so a file that contains the change contains everything needed to repeat it.

use abi::{BLOCK_MAX, BlockMetadata, Class, DbufId, Entry, Extent, Flags, Marks, RichPointer};
use filter::Time;

/// The type of local blocks; the highest bit marks local use.
pub(super) const LOCAL: u32 = 0x8000_4c53;
/// The code of our packet option; the highest bit marks local use.
const OPTION: u16 = 0x8053;

/// Block type of a section header.
const SECTION: u32 = 0x0a0d_0d0a;
/// Block type of an interface description.
const INTERFACE: u32 = 1;
/// Block type of an enhanced packet.
const PACKET: u32 = 6;
/// The byte-order magic of a section header.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Code of the option if_name.
const NAME: u16 = 2;
/// Code of the option if_tsresol.
const RESOLUTION: u16 = 9;
/// Code of the option shb_userappl.
const PROGRAM: u16 = 4;
/// Minimum length of a block: type, length, length.
const BLOCK_MIN: usize = 12;
/// Maximum length of a block: a block of data with its metadata.
const BLOCK_LIMIT: usize = BLOCK_MAX + (1 << 20);

/// The kind of a local block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LocalKind {
    Head = 1,
    Chunk,
    Event,
    Bytes,
    End,
    /// A change of the path, written once the old graph was finished.
    Change,
}

impl LocalKind {
    const ALL: [Self; 6] =
        [Self::Head, Self::Chunk, Self::Event, Self::Bytes, Self::End, Self::Change];
}

/// Extension methods that append values, in little-endian order, to a buffer.
pub(super) trait WriteValues {
    fn words(&mut self, values: &[u32]);
    fn longs(&mut self, values: &[u64]);
    fn shorts(&mut self, values: &[u16]);
    fn text(&mut self, text: &str);
}

impl WriteValues for Vec<u8> {
    fn words(&mut self, values: &[u32]) {
        self.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn longs(&mut self, values: &[u64]) {
        self.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn shorts(&mut self, values: &[u16]) {
        self.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn text(&mut self, text: &str) {
        self.words(&[word(text.len())]);
        self.extend_from_slice(text.as_bytes());
    }
}

/// Converts a count or a number to a word; `u32::MAX` if it is larger.
pub(super) fn word(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A reader of values from a buffer. Each method returns `None` once the buffer is exhausted.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueReader<'b>(pub(super) &'b [u8]);

impl<'b> ValueReader<'b> {
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'b [u8]> {
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn word(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn short(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn size(&mut self) -> Option<usize> {
        usize::try_from(self.word()?).ok()
    }

    pub(super) fn text(&mut self) -> Option<&'b str> {
        let length = self.size()?;
        std::str::from_utf8(self.bytes(length)?).ok()
    }
}

/// Appends a block whose body `fill` writes.
fn block(out: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.words(&[kind, 0]);
    fill(out);
    pad(out, at);
    let length = word(out.len() - at + 4);
    out.words(&[length]);
    if let Some(place) = out.get_mut(at + 4..at + 8) {
        place.copy_from_slice(&length.to_le_bytes());
    }
}

fn pad(out: &mut Vec<u8>, from: usize) {
    let length = (out.len() - from).next_multiple_of(4);
    out.resize(from + length, 0);
}

/// Appends an option, padded to 32 bits.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let at = out.len();
    out.shorts(&[code, u16::try_from(value.len()).unwrap_or(0)]);
    out.extend_from_slice(value);
    pad(out, at);
}

/// Appends a local block.
pub(super) fn local(out: &mut Vec<u8>, what: LocalKind, fill: impl FnOnce(&mut Vec<u8>)) {
    block(out, LOCAL, |out| {
        out.words(&[what as u32]);
        fill(out);
    });
}

/// Appends the file header.
pub(super) fn section(out: &mut Vec<u8>) {
    block(out, SECTION, |out| {
        out.words(&[BYTE_ORDER]);
        out.shorts(&[1, 0]);
        // The length of the section is unknown.
        out.longs(&[u64::MAX]);
        let program = concat!("streamline ", env!("CARGO_PKG_VERSION"));
        option(out, PROGRAM, program.as_bytes());
        option(out, 0, &[]);
    });
}

/// Appends the description of an interface: frames of a link type from one source.
pub(super) fn interface(out: &mut Vec<u8>, link: u16, name: &str) {
    block(out, INTERFACE, |out| {
        out.shorts(&[link, 0]);
        // Snap length: unlimited.
        out.words(&[0]);
        option(out, NAME, name.as_bytes());
        // Nanoseconds.
        option(out, RESOLUTION, &[9]);
        option(out, 0, &[]);
    });
}

/// Appends a received block with its bytes: as a frame of this interface, or as raw bytes.
pub(super) fn entry(out: &mut Vec<u8>, entry: &Entry, bytes: &[u8], interface: Option<u32>) {
    let (length, time) = (word(bytes.len()), entry.context.time);
    match interface {
        Some(interface) => block(out, PACKET, |out| {
            out.words(&[interface, (time >> 32) as u32, time as u32]);
            out.words(&[length, entry.marks.wire_length.max(length)]);
            let at = out.len();
            out.extend_from_slice(bytes);
            pad(out, at);
            option(out, OPTION, &encode_metadata(entry));
            option(out, 0, &[]);
        }),
        None => local(out, LocalKind::Bytes, |out| {
            out.longs(&[time]);
            out.words(&[length]);
            out.extend_from_slice(&encode_metadata(entry));
            out.extend_from_slice(bytes);
        }),
    }
}

/// The memory id in the pointer of a block that is not yet in memory. It differs from the id of a
/// hole, which is a block without bytes.
pub(super) const NOWHERE: DbufId = DbufId::MAX;

/// Length of the encoded metadata of a block, in bytes.
const METADATA_BYTES: usize = 40;

/// Encodes the metadata of a block, except its bytes and its time.
fn encode_metadata(entry: &Entry) -> [u8; METADATA_BYTES] {
    let Entry { pointer, context, marks } = entry;
    let mut out = Vec::with_capacity(METADATA_BYTES);
    let (class, length) = (pointer.class.0, pointer.length());
    let Marks { view, captured, wire_length, .. } = *marks;
    out.words(&[class, length, view, captured, wire_length, context.session]);
    out.shorts(&[context.origin, context.flags.0]);
    out.shorts(&[marks.link, marks.network, marks.transport, marks.payload]);
    out.words(&[u32::from(pointer.is_hole())]);
    out.try_into().unwrap_or([0; METADATA_BYTES])
}

/// A block of the file: its type, and its body with padding.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileBlock<'b> {
    pub(super) kind: u32,
    pub(super) body: &'b [u8],
    /// Total length in bytes, from the type to the final length.
    pub(super) length: usize,
}

/// Returns the type and the length of the block at the start of `bytes`; `None` if no block starts
/// there.
pub(super) fn length(bytes: &[u8]) -> Option<(u32, usize)> {
    let mut take = ValueReader(bytes);
    let (kind, length) = (take.word()?, take.size()?);
    ((BLOCK_MIN..=BLOCK_LIMIT).contains(&length) && length % 4 == 0).then_some((kind, length))
}

/// Returns the block at the start of `bytes`; `None` if it is truncated or malformed.
pub(super) fn block_at(bytes: &[u8]) -> Option<FileBlock<'_>> {
    let (kind, length) = length(bytes)?;
    let whole = bytes.get(..length)?;
    let body = whole.get(8..length - 4)?;
    let last = ValueReader(whole.get(length - 4..)?).size()?;
    (last == length).then_some(FileBlock { kind, body, length })
}

impl<'b> FileBlock<'b> {
    /// Returns the kind and the rest of the body of a local block; `None` for other blocks.
    pub(super) fn local(&self) -> Option<(LocalKind, ValueReader<'b>)> {
        if self.kind != LOCAL {
            return None;
        }
        let mut take = ValueReader(self.body);
        let word = take.word()?;
        let what = LocalKind::ALL.into_iter().find(|local| *local as u32 == word)?;
        Some((what, take))
    }

    /// Returns true if the block is the header of a file of this format and byte order.
    pub(super) fn is_section(&self) -> bool {
        self.kind == SECTION && ValueReader(self.body).word() == Some(BYTE_ORDER)
    }

    /// Decodes a block of data with its bytes. Its pointer refers to [`NOWHERE`].
    pub(super) fn entry(&self) -> Option<(Entry, &'b [u8])> {
        let mut take = ValueReader(self.body);
        let (time, bytes, lanes) = if self.kind == PACKET {
            take.word()?;
            let time = u64::from(take.word()?) << 32 | u64::from(take.word()?);
            let length = take.size()?;
            take.word()?;
            let bytes = take.bytes(length)?;
            take.bytes(length.next_multiple_of(4) - length)?;
            (time, bytes, find_option(take)?)
        } else {
            let (LocalKind::Bytes, mut take) = self.local()? else { return None };
            let (time, length) = (take.long()?, take.size()?);
            let lanes = take.bytes(METADATA_BYTES)?;
            (time, take.bytes(length)?, lanes)
        };
        Some((decode_metadata(time, ValueReader(lanes), bytes.len())?, bytes))
    }
}

/// Returns the value of our option among the options of a packet.
fn find_option(mut take: ValueReader<'_>) -> Option<&[u8]> {
    loop {
        let (code, length) = (take.short()?, usize::from(take.short()?));
        let value = take.bytes(length)?;
        take.bytes(length.next_multiple_of(4) - length)?;
        match code {
            0 => return None,
            OPTION => return Some(value),
            _ => {}
        }
    }
}

/// Decodes the metadata of a block of `bytes` bytes; `None` if the lengths contradict each other.
fn decode_metadata(time: Time, mut take: ValueReader<'_>, bytes: usize) -> Option<Entry> {
    let (class, length, view) = (take.word()?, take.word()?, take.word()?);
    let (captured, wire_length, session) = (take.word()?, take.word()?, take.word()?);
    let (origin, flags, link) = (take.short()?, take.short()?, take.short()?);
    let (network, transport, payload) = (take.short()?, take.short()?, take.short()?);
    let hole = take.word()? != 0;
    let fits = view.checked_add(length)? <= captured && captured as usize == bytes;
    if !(hole || fits) {
        return None;
    }
    let mut marks = Marks::frame(link, captured, wire_length);
    (marks.view, marks.network) = (view, network);
    (marks.transport, marks.payload) = (transport, payload);
    let pointer = match hole {
        true => RichPointer::hole(length),
        false => RichPointer::new(NOWHERE, Extent::new(0, length), Class::NONE),
    };
    let context = BlockMetadata { time, session, origin, flags: Flags(flags) };
    Some(Entry::new(pointer.with_class(Class(class)), context, marks))
}
