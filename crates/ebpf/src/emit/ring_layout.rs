//! Layout and limits of a tap's memory, which programs write and processes read. [CONTRACT 29]

/// Byte offsets in the region of a processor.
pub mod offset {
    /// Eight bytes: position up to which the program may be writing.
    pub const RESERVED: i16 = 0;
    /// Eight bytes: position up to which records are complete.
    pub const COMMITTED: i16 = 8;
    /// Eight bytes: position from which on the program polls for drained doorbells; 0 while no
    /// doorbell has been drained.
    pub const ASK: i16 = 16;
    /// Eight bytes: number of drained doorbell bytes at the last poll, plus one.
    pub const TAKEN: i16 = 24;
    /// Eight bytes: position at which that number was first observed.
    pub const TAKEN_AT: i16 = 32;
    /// Eight bytes per reader: number of pointers written.
    pub const HEADS: i16 = 64;
    /// Bit set of the current frame's deliveries.
    pub const CHOSEN: i16 = HEADS + 8 * super::READERS_MAX as i16;
    /// Number of frames that could not be copied.
    pub const FAILED: i16 = CHOSEN + 8;
    /// Number of frames since the last doorbell.
    pub const SINCE_DOORBELL: i16 = CHOSEN + 16;
    /// Monotonic time of the last doorbell, in nanoseconds.
    pub const DOORBELL_TIME: i16 = CHOSEN + 24;
    /// Position of the last doorbell.
    pub const DOORBELL_POSITION: i16 = CHOSEN + 32;
    /// Number of doorbells sent.
    pub const DOORBELLS: i16 = CHOSEN + 40;
    /// Number of doorbells dropped because earlier ones were not drained.
    pub const DOORBELLS_FAILED: i16 = CHOSEN + 48;
    /// View of the current frame per delivery: 16 bytes each.
    pub const HANDED: i16 = CHOSEN + 64;
    /// Eight bytes per exit that shares a reader: number of pointers written for it. Only in a map
    /// without scratch and tallies.
    pub const COUNTS: i16 = HANDED;
    /// Four bytes: interface to which the frame is redirected; 0 for none.
    pub const DEVICE: i16 = CHOSEN + 56;
    /// Tallies: blocks and bytes, eight bytes each.
    pub const TALLIES: i16 = HANDED + 16 * super::DELIVERIES_MAX as i16;
    /// End of the page.
    pub const END: i16 = 4096;
}

/// Byte offsets in the header of a record, before the frame.
pub mod record {
    /// Eight bytes: the record's position, or -1 while it is written.
    pub const STAMP: i16 = 0;
    /// Four bytes: frame length.
    pub const LENGTH: i16 = 8;
    /// Four bytes: captured length.
    pub const KEPT: i16 = 12;
    /// Eight bytes: monotonic time in nanoseconds.
    pub const TIME: i16 = 16;
    /// Two bytes: VLAN tag beside the frame.
    pub const TAG: i16 = 24;
    /// Two bytes: its protocol, in network order.
    pub const TAG_PROTOCOL: i16 = 26;
    /// Two bytes: GSO segment size, or 0.
    pub const SEGMENT: i16 = 28;
    /// Two bytes of marks: [`TAGGED`], [`SENT`].
    pub const MARKS: i16 = 30;
    /// A tag is beside the frame.
    pub const TAGGED: u16 = 1;
    /// The host sends the frame.
    pub const SENT: u16 = 2;
    /// Size of the header.
    pub const HEADER: u32 = 32;
    /// Alignment of records.
    pub const ALIGNMENT: u32 = 16;
}

/// Size of a pointer: position (8), view length and class (4, 4), view offset and exit number (4,
/// 4), and the number of earlier pointers for that exit if it shares its reader (8).
pub const POINTER: u32 = 32;
/// Offset of the exit number in a recorded delivery.
pub(in crate::emit) const EXIT: i16 = 12;
/// Maximum number of readers of one ring.
pub const READERS_MAX: u32 = 32;
/// Maximum number of deliveries of a frame through one pointer ring.
pub const DELIVERIES_MAX: u32 = 31;
/// Maximum number of exits of one pointer ring. One program can tally a chain of about as many
/// filters.
pub const EXITS_MAX: u32 = 320;
const _: () = assert!(offset::COUNTS as u32 + 8 * EXITS_MAX <= offset::END as u32);
/// Number of tallies in a [`Tap`](super::Tap).
pub const TALLIES_MAX: u16 = ((offset::END - offset::TALLIES) / 16) as u16;
/// Number of laps of the ring, as a power of two, that are copied without a drained doorbell before
/// frames are only counted.
pub const UNREAD_LAPS: u32 = 4;
