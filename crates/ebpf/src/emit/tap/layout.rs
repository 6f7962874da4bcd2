//! Where things lie in the memory of a tap, and how much there is of them: what programs write and
//! processes read. [CONTRACT 29]

/// Where things lie in the region of a processor, in bytes.
pub mod at {
    /// Eight bytes: the position up to which the program may be writing.
    pub const RESERVED: i16 = 0;
    /// Eight bytes: the position up to which records are whole.
    pub const COMMITTED: i16 = 8;
    /// Eight bytes: the position from which on it is asked whether anybody takes bells out, and 0
    /// while nobody does.
    pub const ASK: i16 = 16;
    /// Eight bytes: how far bells were taken out when that was asked last, and one more.
    pub const TAKEN: i16 = 24;
    /// Eight bytes: at which position that was seen first.
    pub const TAKEN_AT: i16 = 32;
    /// Eight bytes for each reader: how many pointers were written for it.
    pub const HEADS: i16 = 64;
    /// To whom the frame goes that is looked at, one bit each.
    pub const CHOSEN: i16 = HEADS + 8 * super::READERS_MAX as i16;
    /// Frames that could not be copied.
    pub const FAILED: i16 = CHOSEN + 8;
    /// Frames since the last bell, when that was, and at which position.
    pub const SINCE_BELL: i16 = CHOSEN + 16;
    /// See [`SINCE_BELL`].
    pub const BELL_TIME: i16 = CHOSEN + 24;
    /// See [`SINCE_BELL`].
    pub const BELL_POSITION: i16 = CHOSEN + 32;
    /// Bells that rang.
    pub const BELLS: i16 = CHOSEN + 40;
    /// Bells that did not, because nobody took the ones before away.
    pub const BELLS_FAILED: i16 = CHOSEN + 48;
    /// What each of those to whom the frame goes shall see of it: 16 bytes each.
    pub const HANDED: i16 = CHOSEN + 64;
    /// Eight bytes for each way that shares a reader: how many pointers were written for it. Only
    /// in a map in which nothing is noted and tallied.
    pub const COUNTS: i16 = HANDED;
    /// Four bytes: the number of the interface by which a taken frame goes out; 0: by none.
    pub const DEVICE: i16 = CHOSEN + 56;
    /// Tallies: blocks and bytes, eight each.
    pub const TALLIES: i16 = HANDED + 16 * super::HANDED_MAX as i16;
    /// The end of the page.
    pub const END: i16 = 4096;
}

/// What lies before the frame in a record, in bytes from its beginning.
pub mod record {
    /// Eight bytes: its position, or -1 while it is written.
    pub const STAMP: i16 = 0;
    /// Four bytes: the length of the frame.
    pub const LENGTH: i16 = 8;
    /// Four bytes: how much of it is here.
    pub const KEPT: i16 = 12;
    /// Eight bytes: nanoseconds of the machine's monotonic clock.
    pub const TIME: i16 = 16;
    /// Two bytes: the VLAN tag that lies beside the frame, and two for its protocol in network
    /// order.
    pub const TAG: i16 = 24;
    /// See [`TAG`].
    pub const TAG_PROTOCOL: i16 = 26;
    /// Two bytes: into segments of how many bytes the frame is yet to be cut.
    pub const SEGMENT: i16 = 28;
    /// Two bytes of marks: [`TAGGED`], [`SENT`].
    pub const MARKS: i16 = 30;
    /// There is a tag beside the frame.
    pub const TAGGED: u16 = 1;
    /// The host sends it.
    pub const SENT: u16 = 2;
    /// Bytes of all this.
    pub const HEADER: u32 = 32;
    /// Records begin at multiples of this.
    pub const ALIGNED: u32 = 16;
}

/// Bytes of a pointer: position (8), length of the view and class (4, 4), offset of the view in the
/// frame and number of the way (4, 4), and how many pointers were written before it for that way,
/// if it shares its reader (8).
pub const POINTER: u32 = 32;
/// Where the number of the way stands in what was noted of a frame.
pub(in crate::emit) const WAY: i16 = 12;
/// The most readers of one ring.
pub const READERS_MAX: u32 = 32;
/// To so many at most a frame can go by one outlet.
pub const HANDED_MAX: u32 = 31;
/// So many ways an outlet can have, however few of them a frame takes. A chain of as many filters
/// is about what one program can tally.
pub const WAYS_MAX: u32 = 320;
const _: () = assert!(at::COUNTS as u32 + 8 * WAYS_MAX <= at::END as u32);
/// So many tallies a tap has.
pub const TALLIES_MAX: u16 = ((at::END - at::TALLIES) / 16) as u16;
