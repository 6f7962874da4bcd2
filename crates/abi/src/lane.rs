//! What travels beside a rich pointer: the context lane and the marks.
//!
//! Inside a space both are call arguments (columns of a batch). An ibuf carries them when a filter
//! behind it needs them, so that an entry is 16 bytes (pointer), 32 (with context) or 64 (with
//! marks): a power of two that never straddles a cache line (CONTRACT 4, 7). The marks are an
//! addition to the contract's lanes: a `pcap` sink in a space of its own needs the frame around the
//! view. docs/book/decisions/0001-rich-pointer.md.

use crate::RichPointer;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The context lane: when, which session, where from, how it travels.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ContextLane {
    /// Time of the block in ns: since the epoch for captured blocks, the path's clock otherwise.
    pub time: u64,
    /// The session that the last session filter found; 0: none (CONTRACT 8).
    pub session: u32,
    /// Which source or interface the block came from, numbered by the path.
    pub origin: u16,
    /// Direction, first and last fragment, checksum state.
    pub flags: Flags,
}

const _: () = assert!(size_of::<ContextLane>() == 16);

/// Flags of a block in flight.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Flags(pub u16);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// First fragment of a message (CONTRACT 6).
    pub const FIRST: Self = Self(1);
    /// Last fragment of a message.
    pub const LAST: Self = Self(1 << 1);
    /// The block goes from server to client (or was sent by this host).
    pub const BACKWARD: Self = Self(1 << 2);
    /// The sender left the checksum to its device: it is not filled in, not wrong (CONTRACT 3).
    pub const CHECKSUM_UNSET: Self = Self(1 << 3);
    /// The session ends with this block; of a message: it ends here, and is not whole.
    pub const END: Self = Self(1 << 4);
    /// Beside [`Flags::END`]: the session broke off (a reset, silence, the end of the capture), and
    /// its sender has not said that nothing follows.
    pub const BROKEN: Self = Self(1 << 5);
    /// The flags that tell of the end of a session.
    pub const ENDING: Self = Self(Self::END.0 | Self::BROKEN.0);

    /// Whether all flags of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags and those of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These flags without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Which way the block goes.
    #[must_use]
    pub const fn direction(self) -> Direction {
        if self.has(Self::BACKWARD) { Direction::Backward } else { Direction::Forward }
    }
}

/// Which way a block of a session goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From client to server, or received.
    Forward,
    /// From server to client, or sent.
    Backward,
}

/// The marks of a block: where its view lies in its frame and where the layers begin (CONTRACT 4).
///
/// All offsets count from the first byte of the frame; [`Marks::UNKNOWN`] stands for
/// a layer that nobody has found.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(16))]
pub struct Marks {
    /// Offset of the view in the frame, in bytes.
    pub view: u32,
    /// Length of the frame as captured, in bytes.
    pub captured: u32,
    /// Length of the frame on the wire, in bytes; more than was captured where it was cut short.
    pub wire_length: u32,
    /// Link type of the frame (number of the pcap registry); [`Marks::NO_LINK`]: not a frame.
    pub link: u16,
    /// Where layer 3 begins.
    pub network: u16,
    /// Where layer 4 begins.
    pub transport: u16,
    /// Where the payload begins.
    pub payload: u16,
    /// The place of the block among those that copies of a filter share ([`Marks::at_turn`]); it
    /// travels between their spaces only.
    turn: u32,
    /// On the way to a replica, whether it is the last of those that were handed over together; on
    /// the way from one, in which step of its end it left ([`Marks::at_step`]).
    last: u32,
    /// The number of the block in a Boolean section while its operands are asked about a copy
    /// ([`Marks::with_ticket`]); 0: nobody asked. It never leaves the section. With it marks fill
    /// two words of 16 bytes, and are copied in two moves.
    ticket: u32,
}

const _: () = assert!(size_of::<Marks>() == 32);

impl Marks {
    /// The link type of a block that is no frame (a message, a record, bytes).
    pub const NO_LINK: u16 = u16::MAX;
    /// The link type of a block whose frame is a record (`wire::record`) that describes the message
    /// that it begins; nothing of it is in view.
    pub const DESCRIBED: u16 = u16::MAX - 1;
    /// A layer that nobody has found.
    pub const UNKNOWN: u16 = u16::MAX;

    /// Marks of a block of `length` bytes that is no frame, whole in view.
    #[must_use]
    pub const fn bare(length: u32) -> Self {
        Self::frame(Self::NO_LINK, length, length)
    }

    /// Marks of a description of `length` bytes, nothing in view.
    #[must_use]
    pub const fn described(length: u32) -> Self {
        Self::frame(Self::DESCRIBED, length, length)
    }

    /// Marks of a fresh frame: whole in view, no layer found yet.
    #[must_use]
    pub const fn frame(link: u16, captured: u32, wire_length: u32) -> Self {
        Self {
            view: 0,
            captured,
            wire_length,
            link,
            network: Self::UNKNOWN,
            transport: Self::UNKNOWN,
            payload: Self::UNKNOWN,
            turn: 0,
            last: 0,
            ticket: 0,
        }
    }

    /// The same marks with the block's place among those that copies of a filter share, and whether
    /// it is the last that one of them got at once (CONTRACT 16).
    #[inline]
    #[must_use]
    pub const fn at_turn(self, turn: u32, last: bool) -> Self {
        Self { turn, last: last as u32, ..self }
    }

    /// The same marks with the block's place among those that left a replica in this step of its
    /// end; step 0 is before the end, where places are those of [`Marks::at_turn`].
    #[inline]
    #[must_use]
    pub const fn at_step(self, turn: u32, step: u32) -> Self {
        Self { turn, last: step, ..self }
    }

    /// In which step of the end of a replica the block left, and its place there.
    #[inline]
    #[must_use]
    pub const fn step(&self) -> (u32, u32) {
        (self.last, self.turn)
    }

    /// The block's place among those that copies of a filter share, and whether it is the last that
    /// one of them got at once.
    #[inline]
    #[must_use]
    pub const fn turn(&self) -> (u32, bool) {
        (self.turn, self.last != 0)
    }

    /// The same marks of a block that a section knows by this number. A filter that makes new marks
    /// for a block that it lets through gives them the ticket of the old ones.
    #[inline]
    #[must_use]
    pub const fn with_ticket(self, ticket: u32) -> Self {
        Self { ticket, ..self }
    }

    /// The number of the block in its section; 0: none asked about it, or it was made inside.
    #[inline]
    #[must_use]
    pub const fn ticket(&self) -> u32 {
        self.ticket
    }

    /// Whether the block lies in a frame.
    #[must_use]
    pub const fn is_frame(&self) -> bool {
        self.link < Self::DESCRIBED
    }

    /// Whether the block describes the message that it begins.
    #[must_use]
    pub const fn is_description(&self) -> bool {
        self.link == Self::DESCRIBED
    }
}

/// One block as it crosses from a source to a space, or from a space to another: all lanes, one
/// cache line.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Entry {
    /// The view.
    pub pointer: RichPointer,
    /// When, which session, where from.
    pub context: ContextLane,
    /// The frame around the view.
    pub marks: Marks,
}

const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    /// One block with all its lanes.
    #[must_use]
    pub const fn new(pointer: RichPointer, context: ContextLane, marks: Marks) -> Self {
        Self { pointer, context, marks }
    }

    /// The rich pointer to the whole captured frame.
    #[must_use]
    pub const fn frame(&self) -> RichPointer {
        self.pointer.around(self.marks.view, self.marks.captured)
    }
}
