//! Parts of the counters of a source ([`SourceCounters`](crate::SourceCounters)).

use crate::loss_ranges::LossRanges;
use filter::Amount;

/// Frame and block counts of one arc.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ArcCounts {
    /// Blocks that the source has emitted into the space on this arc.
    pub taken: Amount,
    /// Number of frames that were overwritten before they were copied.
    pub lapped: u64,
    /// Number of frames that were still in the rings when the path ended.
    pub unread: u64,
    /// Positions of the overwritten frames on this arc, per processor.
    pub missing: LossRanges,
}

/// A read position in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// Number of bytes of the file that have been read so far.
    pub read: u64,
    /// Current size of the file in bytes.
    pub size: u64,
}
