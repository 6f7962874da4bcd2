//! Reasons for the end of blocks before a sink, as the ledger counts them.

use std::fmt;

/// A reason for drops, or the place of a loss.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum DropReason {
    /// The request has them dropped.
    ByRequest,
    /// The number that was asked for (`-c`) had been reached.
    BeyondCount,
    /// The program had ended, or had closed its standard input.
    ProgramEnded,
    /// Holes, which have no bytes to be written: they were lost before.
    NeverSeen,
    /// A source had them when its path ended.
    Unread,
    /// The interface had no room for them, or its driver.
    Driver,
    /// The kernel's queue of its processor was full.
    Backlog,
    /// The ring that the kernel fills was full.
    Ring,
    /// A filter threw out what it held, for want of room.
    Evicted,
    /// There was no memory for what a filter makes.
    NoRoom,
    /// A filter or sink failed on them.
    Failed,
    /// Lost for a reason that a filter, a source, a sink or an edge names.
    Other(&'static str),
}

impl DropReason {
    const NAMED: [(Self, &'static str); 11] = [
        (Self::ByRequest, "by request"),
        (Self::BeyondCount, "beyond count"),
        (Self::ProgramEnded, "program ended"),
        (Self::NeverSeen, "never seen"),
        (Self::Unread, "unread"),
        (Self::Driver, "driver"),
        (Self::Backlog, "backlog"),
        (Self::Ring, "ring"),
        (Self::Evicted, "evicted"),
        (Self::NoRoom, "no room"),
        (Self::Failed, "failed"),
    ];

    /// The reason as it is printed.
    #[must_use]
    pub fn text(self) -> &'static str {
        if let Self::Other(text) = self {
            return text;
        }
        let known = Self::NAMED.iter().find(|(reason, _)| *reason == self);
        known.map_or("", |(_, text)| text)
    }

    /// The reason of this text, which came from a file or another process, unless it is one of
    /// those that only the party knows that drops.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let known = Self::NAMED.iter().find(|(_, known)| *known == text);
        known.map(|(reason, _)| *reason)
    }

    /// Returns true if the blocks were wanted. What the request has dropped, what came behind the
    /// number that was asked for, or after a program had seen enough, or is left when the path
    /// ends, was not; a hole was lost before.
    #[must_use]
    pub const fn is_lost(self) -> bool {
        match self {
            Self::ByRequest
            | Self::BeyondCount
            | Self::ProgramEnded
            | Self::NeverSeen
            | Self::Unread => false,
            Self::Driver
            | Self::Backlog
            | Self::Ring
            | Self::Evicted
            | Self::NoRoom
            | Self::Failed
            | Self::Other(_) => true,
        }
    }
}

impl From<&'static str> for DropReason {
    fn from(text: &'static str) -> Self {
        Self::read(text).unwrap_or(Self::Other(text))
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
