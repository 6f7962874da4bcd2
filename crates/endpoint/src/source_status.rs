//! The state of a source between two calls of [`Source::produce`](crate::Source::produce).

use filter::Time;

/// Result of a call to [`Source::produce`](crate::Source::produce).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceStatus {
    /// The call of `produce` has appended at least one block.
    Blocks,
    /// The call found no input. The space calls `produce` again at time `until` on the path's
    /// clock, or earlier if the descriptor becomes readable.
    Wait {
        /// Latest time of the next call of `produce`; `None` if only the descriptor of the source
        /// ends the wait.
        until: Option<Time>,
        /// True if the space calls `produce` earlier when
        /// [`Source::descriptor`](crate::Source::descriptor) becomes readable.
        readable: bool,
    },
    /// The input has ended. The same call may have appended blocks.
    End,
}

impl SourceStatus {
    /// Status of a source that waits for input on its descriptor, without a time limit.
    pub const AWAITS_INPUT: Self = Self::Wait { until: None, readable: true };

    /// Returns the status of a source that waits only until this time, not for its descriptor.
    #[must_use]
    pub const fn retry_at(time: Time) -> Self {
        Self::Wait { until: Some(time), readable: false }
    }
}

/// The time of a source's next block. A space reads blocks from the source whose next block is the
/// earliest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextBlockTime {
    /// The space reads blocks from the source in order of arrival, regardless of their timestamps.
    Unordered,
    /// The time of the source's next block is unknown, because the source has not read this block
    /// yet. It will read the block in the next call of [`Source::produce`](crate::Source::produce).
    Unknown,
    /// The timestamp of the next block.
    At(Time),
}
