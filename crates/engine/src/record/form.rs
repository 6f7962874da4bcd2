//! The bytes of a record: blocks of pcapng (draft-ietf-opsawg-pcapng), little-endian.
//!
//! Frames are enhanced packet blocks, so that tcpdump and Wireshark open a record as a capture.
//! What only we understand stands in blocks of one type from the range that the format leaves to
//! local use, which other readers skip, and beside frames in an option of that kind:
//!
//! ```text
//! section header, HEAD
//! { interface description | CHUNK { EVENT { frame | BYTES } } | CHANGE }
//! END
//! ```
//!
//! A chunk is what one space wrote at once, with its length, so that who plays another space passes
//! over it. An event is one turn of a space ([`super::event`]); behind it stand the blocks that
//! came in it. A change ([`super::change`]) stands behind all turns that the spaces which it
//! differs in had taken until then, so a file that has it can make it again.

use abi::{BLOCK_MAX, BlockMetadata, Class, DbufId, Entry, Extent, Flags, Marks, RichPointer};
use filter::Time;

/// The type of blocks that are only for us: the highest bit says local use.
pub(super) const LOCAL: u32 = 0x8000_4c53;
/// The option beside a frame that is only for us, likewise.
const OPTION: u16 = 0x8053;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// if_name, if_tsresol, shb_userappl.
const NAME: u16 = 2;
const RESOLUTION: u16 = 9;
const PROGRAM: u16 = 4;
/// The least block: type, length, length.
const LEAST: usize = 12;
/// No block is longer: a block of data, and what stands around it.
const MOST: usize = BLOCK_MAX + (1 << 20);

/// The type of a local block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Local {
    Head,
    Chunk,
    Event,
    Bytes,
    End,
    /// A change of the path, when the old graph had settled its accounts.
    Change,
}

impl Local {
    const ALL: [Self; 6] =
        [Self::Head, Self::Chunk, Self::Event, Self::Bytes, Self::End, Self::Change];

    fn word(self) -> u32 {
        match self {
            Self::Head => 1,
            Self::Chunk => 2,
            Self::Event => 3,
            Self::Bytes => 4,
            Self::End => 5,
            Self::Change => 6,
        }
    }
}

/// Puts values one behind the other.
pub(super) trait Put {
    fn word(&mut self, value: u32);
    fn long(&mut self, value: u64);
    fn short(&mut self, value: u16);
    fn text(&mut self, text: &str);
}

impl Put for Vec<u8> {
    fn word(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn long(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn short(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.word(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.extend_from_slice(text.as_bytes());
    }
}

/// Takes values one behind the other; nothing once something is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Take<'b>(pub(super) &'b [u8]);

impl<'b> Take<'b> {
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
    out.word(kind);
    out.word(0);
    fill(out);
    pad(out, at);
    let length = u32::try_from(out.len() - at + 4).unwrap_or(u32::MAX);
    out.word(length);
    if let Some(place) = out.get_mut(at + 4..at + 8) {
        place.copy_from_slice(&length.to_le_bytes());
    }
}

fn pad(out: &mut Vec<u8>, from: usize) {
    let length = (out.len() - from).next_multiple_of(4);
    out.resize(from + length, 0);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let at = out.len();
    out.short(code);
    out.short(u16::try_from(value.len()).unwrap_or(0));
    out.extend_from_slice(value);
    pad(out, at);
}

/// Appends a block of our own.
pub(super) fn local(out: &mut Vec<u8>, what: Local, fill: impl FnOnce(&mut Vec<u8>)) {
    block(out, LOCAL, |out| {
        out.word(what.word());
        fill(out);
    });
}

/// Appends the header of the file.
pub(super) fn section(out: &mut Vec<u8>) {
    block(out, SECTION, |out| {
        out.word(BYTE_ORDER);
        out.short(1);
        out.short(0);
        // The length of the section is not known yet.
        out.long(u64::MAX);
        let program = concat!("streamline ", env!("CARGO_PKG_VERSION"));
        option(out, PROGRAM, program.as_bytes());
        option(out, 0, &[]);
    });
}

/// Appends the description of an interface: frames of a link type that one source gives.
pub(super) fn interface(out: &mut Vec<u8>, link: u16, name: &str) {
    block(out, INTERFACE, |out| {
        out.short(link);
        out.short(0);
        // No frame is cut.
        out.word(0);
        option(out, NAME, name.as_bytes());
        // Nanoseconds.
        option(out, RESOLUTION, &[9]);
        option(out, 0, &[]);
    });
}

/// Appends a block that came, with its bytes: as a frame of this interface if it lies in one.
pub(super) fn entry(out: &mut Vec<u8>, entry: &Entry, bytes: &[u8], interface: Option<u32>) {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let time = entry.context.time;
    match interface {
        Some(interface) => block(out, PACKET, |out| {
            out.word(interface);
            out.word((time >> 32) as u32);
            out.word((time & u64::from(u32::MAX)) as u32);
            out.word(length);
            out.word(entry.marks.wire_length.max(length));
            let at = out.len();
            out.extend_from_slice(bytes);
            pad(out, at);
            option(out, OPTION, &lanes(entry));
            option(out, 0, &[]);
        }),
        None => local(out, Local::Bytes, |out| {
            out.long(time);
            out.word(length);
            out.extend_from_slice(&lanes(entry));
            out.extend_from_slice(bytes);
        }),
    }
}

/// Placeholder in the pointer of a block until it lies in memory again. Distinct from a hole, which
/// stands for no memory.
pub(super) const NOWHERE: DbufId = DbufId::MAX;

const LANES: usize = 40;

/// Encodes the metadata of a block besides its bytes and its time.
fn lanes(entry: &Entry) -> [u8; LANES] {
    let Entry { pointer, context, marks } = entry;
    let mut out = Vec::with_capacity(LANES);
    out.word(pointer.class.0);
    out.word(pointer.length());
    out.word(marks.view);
    out.word(marks.captured);
    out.word(marks.wire_length);
    out.word(context.session);
    out.short(context.origin);
    out.short(context.flags.0);
    out.short(marks.link);
    out.short(marks.network);
    out.short(marks.transport);
    out.short(marks.payload);
    out.word(u32::from(pointer.is_hole()));
    out.try_into().unwrap_or([0; LANES])
}

/// A block of the file: its type, and its body with what fills it up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'b> {
    pub(super) kind: u32,
    pub(super) body: &'b [u8],
    /// Bytes from type to the last length.
    pub(super) length: usize,
}

/// Returns the type and length of the block that begins here; `None` if these bytes begin none.
pub(super) fn length(bytes: &[u8]) -> Option<(u32, usize)> {
    let mut take = Take(bytes);
    let (kind, length) = (take.word()?, take.size()?);
    ((LEAST..=MOST).contains(&length) && length % 4 == 0).then_some((kind, length))
}

/// The block that begins here.
pub(super) fn found(bytes: &[u8]) -> Option<Found<'_>> {
    let (kind, length) = length(bytes)?;
    let whole = bytes.get(..length)?;
    let body = whole.get(8..length - 4)?;
    let last = Take(whole.get(length - 4..)?).size()?;
    (last == length).then_some(Found { kind, body, length })
}

impl<'b> Found<'b> {
    /// Returns the block's type and the rest of its body, if it is one of ours.
    pub(super) fn local(&self) -> Option<(Local, Take<'b>)> {
        if self.kind != LOCAL {
            return None;
        }
        let mut take = Take(self.body);
        let word = take.word()?;
        let what = Local::ALL.into_iter().find(|local| local.word() == word)?;
        Some((what, take))
    }

    /// Returns true if it begins a file of this format in this byte order.
    pub(super) fn is_section(&self) -> bool {
        self.kind == SECTION && Take(self.body).word() == Some(BYTE_ORDER)
    }

    /// The block of data that it is, with its bytes. The pointer names no memory yet.
    pub(super) fn entry(&self) -> Option<(Entry, &'b [u8])> {
        let mut take = Take(self.body);
        let (time, bytes, lanes) = if self.kind == PACKET {
            take.word()?;
            let time = u64::from(take.word()?) << 32 | u64::from(take.word()?);
            let length = take.size()?;
            take.word()?;
            let bytes = take.bytes(length)?;
            take.bytes(length.next_multiple_of(4) - length)?;
            (time, bytes, option_of(take)?)
        } else {
            let (Local::Bytes, mut take) = self.local()? else { return None };
            let (time, length) = (take.long()?, take.size()?);
            let lanes = take.bytes(LANES)?;
            (time, take.bytes(length)?, lanes)
        };
        Some((entry_of(time, Take(lanes), bytes.len())?, bytes))
    }
}

/// The value of our option among those of a packet.
fn option_of(mut take: Take<'_>) -> Option<&[u8]> {
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

/// A block with these lanes, whose frame has so many bytes. What lies about its length is none.
fn entry_of(time: Time, mut take: Take<'_>, bytes: usize) -> Option<Entry> {
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
