//! Columns that accompany a rich pointer: metadata and marks.
//!
//! Within a space both are columns of a batch. An ibuf carries them if a filter downstream needs
//! them. An entry thus has 16 bytes (pointer), 32 bytes (with metadata) or 64 bytes (with metadata
//! and marks). Since these are powers of two, no entry straddles a cache line (CONTRACT 4, 7).
//! Marks extend the contract's columns because a `pcap` sink in another space needs the frame
//! around the view; see docs/book/decisions/0001-rich-pointer.md.

use crate::RichPointer;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The metadata of a block: time, session, origin and flags.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct BlockMetadata {
    /// Time in nanoseconds: since the Unix epoch for captured blocks, otherwise on the path's
    /// clock.
    pub time: u64,
    /// Session id assigned by the last session filter; 0 if no filter has assigned one (CONTRACT
    /// 8).
    pub session: u32,
    /// Index of the source or interface that the block came from; the path assigns the indexes.
    pub origin: u16,
    /// Direction, fragment and checksum flags.
    pub flags: BlockFlags,
}

const _: () = assert!(size_of::<BlockMetadata>() == 16);

impl BlockMetadata {
    /// Returns this metadata without the flags that are set in `others`.
    #[must_use]
    pub const fn without_flags(self, others: BlockFlags) -> Self {
        Self { flags: self.flags.without(others), ..self }
    }
}

/// Bit flags of a block: direction, fragmentation, checksum and end of session.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct BlockFlags(pub u16);

impl BlockFlags {
    /// The empty set of flags.
    pub const NONE: Self = Self(0);
    /// Set on the first fragment of a message (CONTRACT 6).
    pub const FIRST: Self = Self(1);
    /// Set on the last fragment of a message.
    pub const LAST: Self = Self(1 << 1);
    /// Set on a block that travels from server to client in a session, or that this host sent.
    pub const BACKWARD: Self = Self(1 << 2);
    /// Set if the sender left the checksum to the network device. The checksum field is then not
    /// yet filled in, which does not make the packet invalid (CONTRACT 3).
    pub const CHECKSUM_UNSET: Self = Self(1 << 3);
    /// Set on the last block of a session. If the block is a fragment without [`BlockFlags::LAST`],
    /// the message is truncated after this fragment.
    pub const SESSION_END: Self = Self(1 << 4);
    /// Set together with [`BlockFlags::SESSION_END`]: the session was aborted (reset, timeout, end
    /// of capture) rather than closed by its sender.
    pub const BROKEN: Self = Self(1 << 5);
    /// Set on bytes of a message body from which a filter has removed the content coding, such as
    /// gzip.
    pub const DECODED: Self = Self(1 << 6);
    /// The flags [`BlockFlags::SESSION_END`] and [`BlockFlags::BROKEN`] together.
    pub const SESSION_END_MASK: Self = Self(Self::SESSION_END.0 | Self::BROKEN.0);

    /// Returns true if all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the flags that are set in `self` or in `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the flags that are set in `self` but not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the direction of the block, which [`BlockFlags::BACKWARD`] encodes.
    #[must_use]
    pub const fn direction(self) -> Direction {
        if self.contains(Self::BACKWARD) { Direction::Backward } else { Direction::Forward }
    }
}

/// A direction within a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From client to server, or received by this host.
    Forward,
    /// From server to client, or sent by this host.
    Backward,
}

/// The offsets of a block's view and of the protocol layers in the block's frame (CONTRACT 4).
///
/// Offsets are measured from the start of the frame; [`Marks::UNKNOWN_OFFSET`] stands for a layer
/// that was not found.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(16))]
pub struct Marks {
    /// Offset of the view in bytes.
    pub view: u32,
    /// Captured length of the frame in bytes.
    pub captured: u32,
    /// Length of the frame on the wire in bytes; larger than `captured` for a truncated frame.
    pub wire_length: u32,
    /// Link type as in the pcap registry (`LINKTYPE_*`), [`Marks::NO_LINK_TYPE`] or
    /// [`Marks::DESCRIPTION_LINK_TYPE`].
    pub link: u16,
    /// Offset of layer 3 in bytes.
    pub network: u16,
    /// Offset of layer 4 in bytes.
    pub transport: u16,
    /// Offset of the layer 4 payload in bytes.
    pub payload: u16,
    /// Sequence number of the block among all blocks that the dispatcher distributes to a filter's
    /// replicas ([`Marks::with_seq`]). Used only in rings to and from the replicas.
    seq: u32,
    /// A number whose meaning depends on the ring. In a ring to a replica, it is 1 for the last
    /// block of a batch, otherwise 0. In a ring from a replica, it is 0 until the replica shuts
    /// down. From then on, it is the position in the chain of the filter that emitted the block
    /// ([`Marks::with_end_step`]).
    last: u32,
    /// Number of the block in a Boolean section, while the operands of the section evaluate a copy
    /// of the block ([`Marks::with_section_ticket`]); 0 outside sections. The field also pads the
    /// marks to two 16-byte words, so that two moves copy the marks.
    ticket: u32,
}

const _: () = assert!(size_of::<Marks>() == 32);

impl Marks {
    /// Link type of a block that is not a frame, for example a message or a record.
    pub const NO_LINK_TYPE: u16 = u16::MAX;
    /// Link type of a description: a block with an empty view, whose frame is a record
    /// (`wire::record`) about the message that follows.
    pub const DESCRIPTION_LINK_TYPE: u16 = u16::MAX - 1;
    /// Value that stands for the offset of a layer that was not found.
    pub const UNKNOWN_OFFSET: u16 = u16::MAX;

    /// Creates the marks of a block of `length` bytes that is not a frame. The view covers the
    /// entire block.
    #[must_use]
    pub const fn for_plain_block(length: u32) -> Self {
        Self::frame(Self::NO_LINK_TYPE, length, length)
    }

    /// Creates the marks of a description of `length` bytes, with an empty view.
    #[must_use]
    pub const fn for_description(length: u32) -> Self {
        Self::frame(Self::DESCRIPTION_LINK_TYPE, length, length)
    }

    /// Creates the marks of a frame whose layers are unknown. The view covers all captured bytes.
    #[must_use]
    pub const fn frame(link: u16, captured: u32, wire_length: u32) -> Self {
        Self {
            view: 0,
            captured,
            wire_length,
            link,
            network: Self::UNKNOWN_OFFSET,
            transport: Self::UNKNOWN_OFFSET,
            payload: Self::UNKNOWN_OFFSET,
            seq: 0,
            last: 0,
            ticket: 0,
        }
    }

    /// Returns the marks with the sequence number of a block among the blocks dispatched to
    /// replicas. `last` is true if the block is the last of a batch dispatched to one replica
    /// (CONTRACT 16).
    #[inline]
    #[must_use]
    pub const fn with_seq(self, seq: u32, last: bool) -> Self {
        Self { seq, last: last as u32, ..self }
    }

    /// Returns the marks of a block that leaves a replica. Before the replica shuts down, `step` is
    /// 0 and `seq` is the number from [`Marks::with_seq`]. During the shutdown, each filter of the
    /// replica's chain emits its last blocks. For such a block, `step` is the position of the
    /// filter in the chain, counted from 1, and `seq` is the rank of the block's session.
    #[inline]
    #[must_use]
    pub const fn with_end_step(self, seq: u32, step: u32) -> Self {
        Self { seq, last: step, ..self }
    }

    /// Returns `(step, seq)` of a block from a replica, as stored by [`Marks::with_end_step`].
    #[inline]
    #[must_use]
    pub const fn end_step(&self) -> (u32, u32) {
        (self.last, self.seq)
    }

    /// Returns the sequence number that [`Marks::with_seq`] stored, and true if the block is the
    /// last of a batch dispatched to one replica.
    #[inline]
    #[must_use]
    pub const fn seq(&self) -> (u32, bool) {
        (self.seq, self.last != 0)
    }

    /// Returns the marks with the block's number in a Boolean section (its ticket). A filter that
    /// replaces the marks of a block must copy the ticket.
    #[inline]
    #[must_use]
    pub const fn with_section_ticket(self, ticket: u32) -> Self {
        Self { ticket, ..self }
    }

    /// Returns the number of the block in a section; 0 if the block is outside all sections.
    #[inline]
    #[must_use]
    pub const fn section_ticket(&self) -> u32 {
        self.ticket
    }

    /// Returns true if the block is a frame or a view into one.
    #[must_use]
    pub const fn is_frame(&self) -> bool {
        self.link < Self::DESCRIPTION_LINK_TYPE
    }

    /// Returns true if the block is a description of the message that follows.
    #[must_use]
    pub const fn is_description(&self) -> bool {
        self.link == Self::DESCRIPTION_LINK_TYPE
    }
}

/// The pointer, metadata and marks of one block, as passed between spaces: 64 bytes, one cache
/// line.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Entry {
    /// Rich pointer to the block's view.
    pub pointer: RichPointer,
    /// Metadata of the block: time, session, origin and flags.
    pub context: BlockMetadata,
    /// Extent and layers of the frame that contains the view.
    pub marks: Marks,
}

const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    /// Creates the entry of a block from its pointer, metadata and marks.
    #[must_use]
    pub const fn new(pointer: RichPointer, context: BlockMetadata, marks: Marks) -> Self {
        Self { pointer, context, marks }
    }

    /// Returns a pointer to all captured bytes of the frame.
    #[must_use]
    pub const fn frame(&self) -> RichPointer {
        self.pointer.extended_back(self.marks.view, self.marks.captured)
    }
}
