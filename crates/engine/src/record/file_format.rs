//! The file format of a recording: blocks of pcapng (draft-ietf-opsawg-pcapng), little-endian.
//!
//! Frames are enhanced packet blocks, so that tcpdump and Wireshark open a recording as a capture.
//! Everything else is in blocks of a single type from the range for local use, which other readers
//! skip, and in a local option of the packet blocks:
//!
//! ```text
//! section header, HEAD
//! { interface description | CHUNK { EVENT { frame | BYTES } } | CHANGE }
//! END
//! ```
//!
//! A chunk holds events of one space. It starts with the number of this space and its length, so
//! that the replay of another space can skip the chunk. An event ([`super::event`]) is one step of
//! a space, followed by its blocks. A change ([`super::change`]) follows all earlier events of the
//! affected spaces, so a file that contains a change contains everything needed to repeat it.

use abi::{
    BLOCK_LENGTH_MAX, BlockFlags, BlockMetadata, Class, DbufId, Entry, Extent, Marks, RichPointer,
};
use filter::Time;

/// Block type of local blocks. The highest bit marks a type as local.
pub(super) const LOCAL_BLOCK_TYPE: u32 = 0x8000_4c53;
/// Code of the local option of packet blocks. The highest bit marks a code as local.
const LOCAL_OPTION_CODE: u16 = 0x8053;

/// Block type of a section header.
const SECTION_HEADER_TYPE: u32 = 0x0a0d_0d0a;
/// Block type of an interface description.
const INTERFACE_BLOCK_TYPE: u32 = 1;
/// Block type of an enhanced packet.
const PACKET_BLOCK_TYPE: u32 = 6;
/// The byte-order magic of a section header.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Code of the pcapng option if_name, the name of an interface.
const IF_NAME_CODE: u16 = 2;
/// Code of the pcapng option if_tsresol, the resolution of an interface's timestamps.
const IF_TSRESOL_CODE: u16 = 9;
/// Code of the pcapng option shb_userappl, which names the program that wrote the file.
const SHB_USERAPPL_CODE: u16 = 4;
/// Minimum length of a block in bytes: its type, and its length twice.
const BLOCK_LENGTH_MIN: usize = 12;
/// Maximum length of a block in bytes: a block of data with its metadata.
const FILE_BLOCK_BYTES_MAX: usize = BLOCK_LENGTH_MAX + (1 << 20);

/// The kind of a pcapng block of the local block type, which only Streamline reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LocalBlockKind {
    RecordingHead = 1,
    Chunk,
    Event,
    Bytes,
    End,
    /// A change to the path, written after all earlier events of the spaces that it affects.
    Change,
}

impl LocalBlockKind {
    const ALL: [Self; 6] =
        [Self::RecordingHead, Self::Chunk, Self::Event, Self::Bytes, Self::End, Self::Change];
}

/// Methods that append values to a buffer. All integers are little-endian.
pub(super) trait WriteValues {
    fn put_u32s(&mut self, values: &[u32]);
    fn put_u64s(&mut self, values: &[u64]);
    fn put_u16s(&mut self, values: &[u16]);
    fn put_text(&mut self, text: &str);
}

impl WriteValues for Vec<u8> {
    fn put_u32s(&mut self, values: &[u32]) {
        self.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn put_u64s(&mut self, values: &[u64]) {
        self.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn put_u16s(&mut self, values: &[u16]) {
        self.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn put_text(&mut self, text: &str) {
        self.put_u32s(&[saturating_u32(text.len())]);
        self.extend_from_slice(text.as_bytes());
    }
}

/// Converts a count or a number to 32 bits. Returns `u32::MAX` if it does not fit.
pub(super) fn saturating_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A reader of values from a buffer. Each method returns `None` if too few bytes remain.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueReader<'b>(pub(super) &'b [u8]);

impl<'b> ValueReader<'b> {
    pub(super) fn read_bytes(&mut self, count: usize) -> Option<&'b [u8]> {
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }

    fn read_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.read_bytes(N)?.try_into().ok()
    }

    pub(super) fn read_u32(&mut self) -> Option<u32> {
        self.read_array().map(u32::from_le_bytes)
    }

    pub(super) fn read_u64(&mut self) -> Option<u64> {
        self.read_array().map(u64::from_le_bytes)
    }

    fn read_u16(&mut self) -> Option<u16> {
        self.read_array().map(u16::from_le_bytes)
    }

    pub(super) fn read_size(&mut self) -> Option<usize> {
        usize::try_from(self.read_u32()?).ok()
    }

    pub(super) fn read_text(&mut self) -> Option<&'b str> {
        let length = self.read_size()?;
        std::str::from_utf8(self.read_bytes(length)?).ok()
    }
}

/// Appends a pcapng block of type `kind`, whose body `fill` writes.
fn append_block(out: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.put_u32s(&[kind, 0]);
    fill(out);
    append_padding(out, at);
    let length = saturating_u32(out.len() - at + 4);
    out.put_u32s(&[length]);
    if let Some(place) = out.get_mut(at + 4..at + 8) {
        place.copy_from_slice(&length.to_le_bytes());
    }
}

fn append_padding(out: &mut Vec<u8>, from: usize) {
    let length = (out.len() - from).next_multiple_of(4);
    out.resize(from + length, 0);
}

/// Appends a pcapng option, padded to a multiple of 32 bits.
fn append_option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let at = out.len();
    out.put_u16s(&[code, u16::try_from(value.len()).unwrap_or(0)]);
    out.extend_from_slice(value);
    append_padding(out, at);
}

/// Appends a block of the local block type. `what` is its kind, and `fill` writes its contents.
pub(super) fn append_local_block(
    out: &mut Vec<u8>,
    what: LocalBlockKind,
    fill: impl FnOnce(&mut Vec<u8>),
) {
    append_block(out, LOCAL_BLOCK_TYPE, |out| {
        out.put_u32s(&[what as u32]);
        fill(out);
    });
}

/// Appends the section header with which a file begins.
pub(super) fn append_section_header(out: &mut Vec<u8>) {
    append_block(out, SECTION_HEADER_TYPE, |out| {
        out.put_u32s(&[BYTE_ORDER_MAGIC]);
        out.put_u16s(&[1, 0]);
        // The length of the section is unknown.
        out.put_u64s(&[u64::MAX]);
        let program = concat!("streamline ", env!("CARGO_PKG_VERSION"));
        append_option(out, SHB_USERAPPL_CODE, program.as_bytes());
        append_option(out, 0, &[]);
    });
}

/// Appends the description of an interface: frames of a link type from one source.
pub(super) fn append_interface(out: &mut Vec<u8>, link: u16, name: &str) {
    append_block(out, INTERFACE_BLOCK_TYPE, |out| {
        out.put_u16s(&[link, 0]);
        // The snap length is unlimited.
        out.put_u32s(&[0]);
        append_option(out, IF_NAME_CODE, name.as_bytes());
        // Timestamps are in nanoseconds.
        append_option(out, IF_TSRESOL_CODE, &[9]);
        append_option(out, 0, &[]);
    });
}

/// Appends a block that a source emitted, with its bytes. The bytes are stored as a frame of the
/// interface `interface`, or as raw bytes if `interface` is `None`.
pub(super) fn append_entry(out: &mut Vec<u8>, entry: &Entry, bytes: &[u8], interface: Option<u32>) {
    let (length, time) = (saturating_u32(bytes.len()), entry.context.time);
    match interface {
        Some(interface) => append_block(out, PACKET_BLOCK_TYPE, |out| {
            out.put_u32s(&[interface, (time >> 32) as u32, time as u32]);
            out.put_u32s(&[length, entry.marks.wire_length.max(length)]);
            let at = out.len();
            out.extend_from_slice(bytes);
            append_padding(out, at);
            append_option(out, LOCAL_OPTION_CODE, &encode_metadata(entry));
            append_option(out, 0, &[]);
        }),
        None => append_local_block(out, LocalBlockKind::Bytes, |out| {
            out.put_u64s(&[time]);
            out.put_u32s(&[length]);
            out.extend_from_slice(&encode_metadata(entry));
            out.extend_from_slice(bytes);
        }),
    }
}

/// The dbuf id in the rich pointer of a block that has not been copied into memory yet. It differs
/// from the id of a hole, which is a block without bytes.
pub(super) const NOT_IN_MEMORY_DBUF_ID: DbufId = DbufId::MAX;

/// Length of the encoded metadata of a block, in bytes.
const METADATA_BYTES: usize = 40;

/// Encodes the metadata of a block. The bytes and the time are encoded elsewhere.
fn encode_metadata(entry: &Entry) -> [u8; METADATA_BYTES] {
    let Entry { pointer, context, marks } = entry;
    let mut out = Vec::with_capacity(METADATA_BYTES);
    let (class, length) = (pointer.class.0, pointer.length());
    let Marks { view, captured, wire_length, .. } = *marks;
    out.put_u32s(&[class, length, view, captured, wire_length, context.session]);
    out.put_u16s(&[context.origin, context.flags.0]);
    out.put_u16s(&[marks.link, marks.network, marks.transport, marks.payload]);
    out.put_u32s(&[u32::from(pointer.is_hole())]);
    out.try_into().unwrap_or([0; METADATA_BYTES])
}

/// A block of the file: its type, and its body with padding.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileBlock<'b> {
    pub(super) kind: u32,
    pub(super) body: &'b [u8],
    /// Total length of the block in bytes, from its type to the length that ends it.
    pub(super) length: usize,
}

/// Returns the type and the length of the block at the start of `bytes`, or `None` if `bytes` does
/// not start with a block.
pub(super) fn block_length(bytes: &[u8]) -> Option<(u32, usize)> {
    let mut take = ValueReader(bytes);
    let (kind, length) = (take.read_u32()?, take.read_size()?);
    ((BLOCK_LENGTH_MIN..=FILE_BLOCK_BYTES_MAX).contains(&length) && length % 4 == 0)
        .then_some((kind, length))
}

/// Returns the block at the start of `bytes`, or `None` if it is truncated or malformed.
pub(super) fn parse_block(bytes: &[u8]) -> Option<FileBlock<'_>> {
    let (kind, length) = block_length(bytes)?;
    let whole = bytes.get(..length)?;
    let body = whole.get(8..length - 4)?;
    let last = ValueReader(whole.get(length - 4..)?).read_size()?;
    (last == length).then_some(FileBlock { kind, body, length })
}

impl<'b> FileBlock<'b> {
    /// Returns the kind of this block, and the rest of its body, if it is a local block. Returns
    /// `None` for a block of another type.
    pub(super) fn local_block(&self) -> Option<(LocalBlockKind, ValueReader<'b>)> {
        if self.kind != LOCAL_BLOCK_TYPE {
            return None;
        }
        let mut take = ValueReader(self.body);
        let word = take.read_u32()?;
        let what = LocalBlockKind::ALL.into_iter().find(|local| *local as u32 == word)?;
        Some((what, take))
    }

    /// Returns true if the block is the header of a file in this format and byte order.
    pub(super) fn is_section_header(&self) -> bool {
        self.kind == SECTION_HEADER_TYPE
            && ValueReader(self.body).read_u32() == Some(BYTE_ORDER_MAGIC)
    }

    /// Decodes a block of data and its bytes. The rich pointer of the block refers to
    /// [`NOT_IN_MEMORY_DBUF_ID`] unless the block is a hole. Returns `None` for blocks of other
    /// types and for malformed blocks.
    pub(super) fn decode_entry(&self) -> Option<(Entry, &'b [u8])> {
        let mut take = ValueReader(self.body);
        let (time, bytes, lanes) = if self.kind == PACKET_BLOCK_TYPE {
            take.read_u32()?;
            let time = u64::from(take.read_u32()?) << 32 | u64::from(take.read_u32()?);
            let length = take.read_size()?;
            take.read_u32()?;
            let bytes = take.read_bytes(length)?;
            take.read_bytes(length.next_multiple_of(4) - length)?;
            (time, bytes, local_option_value(take)?)
        } else {
            let (LocalBlockKind::Bytes, mut take) = self.local_block()? else { return None };
            let (time, length) = (take.read_u64()?, take.read_size()?);
            let lanes = take.read_bytes(METADATA_BYTES)?;
            (time, take.read_bytes(length)?, lanes)
        };
        Some((decode_metadata(time, ValueReader(lanes), bytes.len())?, bytes))
    }
}

/// Returns the value of the local option from the options of a packet block. Returns `None` if the
/// block has no local option, or if an option is truncated.
fn local_option_value(mut take: ValueReader<'_>) -> Option<&[u8]> {
    loop {
        let (code, length) = (take.read_u16()?, usize::from(take.read_u16()?));
        let value = take.read_bytes(length)?;
        take.read_bytes(length.next_multiple_of(4) - length)?;
        match code {
            0 => return None,
            LOCAL_OPTION_CODE => return Some(value),
            _ => {}
        }
    }
}

/// Decodes the metadata of a block of `bytes` bytes. Returns `None` if the metadata are truncated
/// or the lengths contradict each other.
fn decode_metadata(time: Time, mut take: ValueReader<'_>, bytes: usize) -> Option<Entry> {
    let (class, length, view) = (take.read_u32()?, take.read_u32()?, take.read_u32()?);
    let (captured, wire_length, session) = (take.read_u32()?, take.read_u32()?, take.read_u32()?);
    let (origin, flags, link) = (take.read_u16()?, take.read_u16()?, take.read_u16()?);
    let (network, transport, payload) = (take.read_u16()?, take.read_u16()?, take.read_u16()?);
    let hole = take.read_u32()? != 0;
    let fits = view.checked_add(length)? <= captured && captured as usize == bytes;
    if !(hole || fits) {
        return None;
    }
    let mut marks = Marks::frame(link, captured, wire_length);
    (marks.view, marks.network) = (view, network);
    (marks.transport, marks.payload) = (transport, payload);
    let pointer = match hole {
        true => RichPointer::hole(length),
        false => RichPointer::new(NOT_IN_MEMORY_DBUF_ID, Extent::new(0, length), Class::NONE),
    };
    let context = BlockMetadata { time, session, origin, flags: BlockFlags(flags) };
    Some(Entry::new(pointer.with_class(Class(class)), context, marks))
}
