//! Counters that are parts of a source's counters ([`SourceCounters`](crate::SourceCounters)):
//! counts for each arc, and the read position in a file.

use crate::loss_ranges::LossRanges;
use filter::Amount;

/// Counts of one arc on which blocks leave a source: blocks, and frames that did not become blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ArcCounts {
    /// Amount of blocks that have left the source on this arc.
    pub taken: Amount,
    /// Number of frames that were overwritten before they were copied.
    pub lapped: u64,
    /// Number of frames that were still in the rings when the path ended.
    pub unread: u64,
    /// Positions at which frames on this arc were overwritten. Each processor numbers its own
    /// frames.
    pub missing: LossRanges,
}

/// A read position in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileReadPosition {
    /// Number of bytes of the file that have been read so far.
    pub read: u64,
    /// Current size of the file in bytes.
    pub size: u64,
}
