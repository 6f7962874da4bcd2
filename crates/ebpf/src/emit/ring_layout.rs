//! Layout and limits of a tap's memory, which programs write and processes read. [CONTRACT 29]
//!
//! A *position* is a number of bytes written to the ring of records so far, over all laps. An
//! *exit* is a point of the filter tree where frames leave the kernel (see `config`).

/// Byte offsets of the fields in a processor's memory region. In parentheses, the size of each
/// field.
pub mod offset {
    /// Offset of the position up to which the program may be writing (eight bytes).
    pub const RESERVED: i16 = 0;
    /// Offset of the position up to which records are complete (eight bytes).
    pub const COMMITTED: i16 = 8;
    /// Offset of the position from which on the program polls for drained doorbells (eight bytes).
    /// The position is 0 before the first poll. It is also 0 while the program only counts frames,
    /// because the reader drains no doorbell.
    pub const POLL_POSITION: i16 = 16;
    /// Offset of the number of doorbell bytes that the reader had drained at the program's last
    /// poll, plus one (eight bytes).
    pub const DRAINED_AT_POLL: i16 = 24;
    /// Offset of the position at which the number at [`DRAINED_AT_POLL`] was first observed (eight
    /// bytes).
    pub const DRAIN_OBSERVED_POSITION: i16 = 32;
    /// Offset of the flag that is 1 while the program may be writing a frame for a consumer that it
    /// has found awake (eight bytes).
    pub const WRITING: i16 = 40;
    /// Offset of the counts of pointers written, one per reader (eight bytes each).
    pub const HEADS: i16 = 64;
    /// Offset of the bit set of the deliveries that the body of the program has recorded for the
    /// current frame (eight bytes).
    pub const DELIVERY_BITS: i16 = HEADS + 8 * super::READERS_MAX as i16;
    /// Offset of the number of frames that the program could not copy into the ring (eight bytes).
    pub const FAILED_COPIES: i16 = DELIVERY_BITS + 8;
    /// Offset of the number of frames written since the last doorbell (eight bytes).
    pub const FRAMES_SINCE_DOORBELL: i16 = DELIVERY_BITS + 16;
    /// Offset of the monotonic time of the last doorbell, in ns (eight bytes).
    pub const DOORBELL_TIME: i16 = DELIVERY_BITS + 24;
    /// Offset of the position at which the last doorbell was sent (eight bytes).
    pub const DOORBELL_POSITION: i16 = DELIVERY_BITS + 32;
    /// Offset of the number of doorbells sent (eight bytes).
    pub const DOORBELLS_SENT: i16 = DELIVERY_BITS + 40;
    /// Offset of the number of doorbells dropped because earlier ones were not drained (eight
    /// bytes).
    pub const DOORBELLS_DROPPED: i16 = DELIVERY_BITS + 48;
    /// Offset of the views that the body of the program has recorded for the current frame, one per
    /// delivery (16 bytes each).
    pub const VIEWS: i16 = DELIVERY_BITS + 64;
    /// Offset of the counts of pointers written, one per exit that shares a reader (eight bytes
    /// each). Used only in a map that contains neither scratch memory nor tallies.
    pub const EXIT_POINTER_COUNTS: i16 = VIEWS;
    /// Offset of the index of the interface to which the frame is redirected (four bytes). The
    /// index is 0 if the frame is not redirected to an interface.
    pub const INTERFACE: i16 = DELIVERY_BITS + 56;
    /// Offset of the tallies. A tally is a pair of counters: blocks, then bytes (eight bytes each).
    pub const TALLIES: i16 = VIEWS + 16 * super::DELIVERIES_MAX as i16;
    /// Size in bytes of the page at the beginning of a region, which contains the fields of this
    /// module.
    pub const PAGE_SIZE: i16 = 4096;
}

/// Byte offsets of the fields in the header of a record, which precedes the frame. In parentheses,
/// the size of each field.
pub mod record {
    /// Offset of the record's position (eight bytes). The position is -1 while the record is being
    /// written.
    pub const RECORD_POSITION: i16 = 0;
    /// Offset of the length of the frame in bytes (four bytes).
    pub const LENGTH: i16 = 8;
    /// Offset of the number of captured bytes of the frame (four bytes).
    pub const CAPTURED_LENGTH: i16 = 12;
    /// Offset of the monotonic time at which the frame was copied, in ns (eight bytes).
    pub const TIME: i16 = 16;
    /// Offset of the VLAN tag that is stored outside the frame (two bytes).
    pub const TAG: i16 = 24;
    /// Offset of the protocol of the VLAN tag that is stored outside the frame, in network order
    /// (two bytes).
    pub const TAG_PROTOCOL: i16 = 26;
    /// Offset of the GSO segment size in bytes (two bytes), which is 0 if the frame is a single
    /// segment.
    pub const GSO_SIZE: i16 = 28;
    /// Offset of the flags of the frame, [`TAGGED_FLAG`] and [`SENT_FLAG`] (two bytes).
    pub const FLAGS: i16 = 30;
    /// Flag of a frame whose tag is stored outside the frame.
    pub const TAGGED_FLAG: u16 = 1;
    /// Flag of a frame that this host sends.
    pub const SENT_FLAG: u16 = 2;
    /// Size of a record's header in bytes.
    pub const HEADER_SIZE: u32 = 32;
    /// Alignment of records in the ring, in bytes.
    pub const ALIGNMENT: u32 = 16;
}

/// Size of a pointer in bytes. Its fields, with their sizes: position (8), view length (4), class
/// (4), view offset (4, with [`AFTER_TAG_FLAG`]), exit number (4), and, if the exit shares its
/// reader, the number of earlier pointers for this exit (8).
pub const POINTER_SIZE: u32 = 32;
/// Flag in the view offset of a pointer: the view begins after a tag that may be stored outside the
/// frame. If that tag is inserted, the view begins four bytes later.
pub const AFTER_TAG_FLAG: u32 = 1 << 31;
/// Byte offset of the exit number in the view that the scratch memory holds for a delivery.
pub(in crate::emit) const EXIT_OFFSET: i16 = 12;
/// Maximum number of readers per pointer ring.
pub const READERS_MAX: u32 = 32;
/// Maximum number of deliveries per frame to one pointer ring.
pub const DELIVERIES_MAX: u32 = 31;
/// Maximum number of slots for switched exits, which user space opens and closes at run time. Each
/// place in the filter tree with open exits uses a slot. A power of two.
pub const SWITCHED_SLOTS_MAX: u32 = 16;
/// Maximum number of switched exits of one pointer ring that user space can open at once.
pub const SWITCHED_EXITS_MAX: u32 = 4;
/// Size in bytes of a word in the map with which user space opens and closes switched exits.
pub const SWITCHED_WORD_SIZE: u32 = 4;
/// Maximum number of exits (points of the filter tree where frames leave the kernel) per pointer
/// ring. Every filter of a chain in the kernel may have an exit, so this also limits the length of
/// a chain.
pub const EXITS_MAX: u32 = 320;
const _: () =
    assert!(offset::EXIT_POINTER_COUNTS as u32 + 8 * EXITS_MAX <= offset::PAGE_SIZE as u32);
/// Number of tallies, which are pairs of counters, of a [`Tap`](super::config::Tap).
pub const TALLIES_MAX: u16 = ((offset::PAGE_SIZE - offset::TALLIES) / 16) as u16;
/// Base-2 logarithm of a number of laps around the ring. After so many laps in which no doorbell
/// has been drained, the program only counts frames and no longer copies them.
pub const UNREAD_LAPS_LOG2: u32 = 4;
