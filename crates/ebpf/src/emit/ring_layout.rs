//! Layout and limits of a tap's memory, which programs write and processes read. [CONTRACT 29]

/// Byte offsets in a processor's memory region.
pub mod offset {
    /// Position up to which the program may be writing (eight bytes).
    pub const RESERVED: i16 = 0;
    /// Position up to which records are complete (eight bytes).
    pub const COMMITTED: i16 = 8;
    /// Position from which the program polls for drained doorbells (eight bytes); 0 before the
    /// first poll, and while frames are only counted because no doorbell is drained.
    pub const POLL_FROM: i16 = 16;
    /// Number of drained doorbell bytes at the last poll, plus one (eight bytes).
    pub const DRAINED_AT_POLL: i16 = 24;
    /// Position at which the number in [`DRAINED_AT_POLL`] was first observed (eight bytes).
    pub const TAKEN_AT: i16 = 32;
    /// Number of pointers written, per reader (eight bytes each).
    pub const HEADS: i16 = 64;
    /// Bit set of the current frame's deliveries (eight bytes).
    pub const DELIVERED: i16 = HEADS + 8 * super::READERS_MAX as i16;
    /// Number of frames that could not be copied (eight bytes).
    pub const FAILED: i16 = DELIVERED + 8;
    /// Number of frames since the last doorbell (eight bytes).
    pub const SINCE_DOORBELL: i16 = DELIVERED + 16;
    /// Monotonic time of the last doorbell in ns (eight bytes).
    pub const DOORBELL_TIME: i16 = DELIVERED + 24;
    /// Position of the last doorbell (eight bytes).
    pub const DOORBELL_POSITION: i16 = DELIVERED + 32;
    /// Number of doorbells sent (eight bytes).
    pub const DOORBELLS: i16 = DELIVERED + 40;
    /// Number of doorbells dropped because earlier ones were not drained (eight bytes).
    pub const DOORBELLS_FAILED: i16 = DELIVERED + 48;
    /// View of the current frame, per delivery (16 bytes each).
    pub const VIEWS: i16 = DELIVERED + 64;
    /// Number of pointers written, per exit that shares a reader (eight bytes each). Used only in a
    /// map without scratch memory and tallies.
    pub const COUNTS: i16 = VIEWS;
    /// Index of the interface to which the frame is redirected; 0 for none (four bytes).
    pub const DEVICE: i16 = DELIVERED + 56;
    /// Tallies, each of which is a pair of counters: blocks, then bytes (eight bytes each).
    pub const TALLIES: i16 = VIEWS + 16 * super::DELIVERIES_MAX as i16;
    /// Size in bytes of the page that contains these fields. All offsets are below this size.
    pub const END: i16 = 4096;
}

/// Byte offsets in the header of a record, before the frame.
pub mod record {
    /// Position of the record, or -1 while it is being written (eight bytes).
    pub const STAMP: i16 = 0;
    /// Length of the frame (four bytes).
    pub const LENGTH: i16 = 8;
    /// Number of captured bytes of the frame (four bytes).
    pub const KEPT: i16 = 12;
    /// Monotonic time at which the frame was copied, in ns (eight bytes).
    pub const TIME: i16 = 16;
    /// VLAN tag that is stored outside the frame (two bytes).
    pub const TAG: i16 = 24;
    /// Protocol of this tag, in network order (two bytes).
    pub const TAG_PROTOCOL: i16 = 26;
    /// GSO segment size, or 0 (two bytes).
    pub const SEGMENT: i16 = 28;
    /// Flags of the frame, [`TAGGED`] and [`SENT`] (two bytes).
    pub const MARKS: i16 = 30;
    /// Flag of a frame whose tag is stored outside the frame.
    pub const TAGGED: u16 = 1;
    /// Flag of a frame that this host sends.
    pub const SENT: u16 = 2;
    /// Size of the header in bytes.
    pub const HEADER_SIZE: u32 = 32;
    /// Alignment of records in bytes.
    pub const ALIGNMENT: u32 = 16;
}

/// Size of a pointer in bytes. Its fields, with their sizes: position (8), view length (4), class
/// (4), view offset (4), exit number (4), and, if the exit shares its reader, the number of earlier
/// pointers for this exit (8).
pub const POINTER_SIZE: u32 = 32;
/// Offset of the exit number in a delivery's scratch memory.
pub(in crate::emit) const EXIT: i16 = 12;
/// Maximum number of readers per pointer ring.
pub const READERS_MAX: u32 = 32;
/// Maximum number of deliveries per frame to one pointer ring.
pub const DELIVERIES_MAX: u32 = 31;
/// Maximum number of exits per pointer ring. A program can count the blocks of a chain of about
/// this many filters.
pub const EXITS_MAX: u32 = 320;
const _: () = assert!(offset::COUNTS as u32 + 8 * EXITS_MAX <= offset::END as u32);
/// Number of tallies of a [`Tap`](super::config::Tap).
pub const TALLIES_MAX: u16 = ((offset::END - offset::TALLIES) / 16) as u16;
/// Base-2 logarithm of the number of ring laps in which frames are copied although no doorbell is
/// drained. Later frames are only counted.
pub const UNREAD_LAPS: u32 = 4;
