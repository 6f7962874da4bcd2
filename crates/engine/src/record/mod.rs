//! Recordings: the complete input of a path in one file, for replays with bit-identical output.
//!
//! A filter depends only on its blocks, their order, and the time passed to it (it has no clock and
//! does no I/O), and a space is one thread. The run of a space is therefore determined by its
//! sequence of passes, and each pass by the input that it read, the number of blocks, their bytes,
//! and the time. A recording contains this sequence: all bytes from sources, but only the number of
//! blocks from rings, because the replay of the writing space reproduces these blocks. It also
//! contains the request, the machine as the planner saw it, and the seed that replaces randomness
//! in filters.
//!
//! - [`file_format`]: the file format, a pcapng capture that any capture reader opens;
//! - `head`: the request, the machine and the plan;
//! - `event`: the encoding of a space's events;
//! - [`change`]: changes to the path;
//! - [`mod@write`]: writes a file of bounded size while a path runs;
//! - [`read`]: opens a complete, truncated or damaged file;
//! - [`event_player`]: reads the events of a space from a file.
//!
//! A recorded path runs entirely in user space: frames that a kernel program drops never reach the
//! process, so a recording could not explain why they are absent. Rationale:
//! docs/book/decisions/0023-record.md.

pub mod change;
pub(crate) mod event;
pub mod event_player;
pub mod file_format;
mod head;
pub mod read;
pub mod write;

pub use change::RecordedChange;
pub use event_player::Replay;
pub use head::{FORMAT_VERSION, RecordingHead, format_placement, local_time_zone};
pub use read::{Completeness, Record, RecordError};
pub use write::{Recording, RecordingSummary};

use runtime::space::events::EventPort;
use std::sync::Arc;

/// The mode in which a path is built: live, recorded or replayed.
#[derive(Clone, Default, Debug)]
pub enum RecordMode {
    /// A live path that is not recorded.
    #[default]
    Off,
    /// A live path that is recorded.
    Record(Arc<Recording>),
    /// A path that replays a recording.
    Replay(Arc<Replay>),
}

impl RecordMode {
    /// Returns true if a recording is replayed in which each filter numbered its sessions
    /// independently of the others.
    #[must_use]
    pub fn has_independent_session_numbers(&self) -> bool {
        let Self::Replay(replay) = self else { return false };
        replay.record().version < head::UNIQUE_SESSION_NUMBERS_VERSION
    }

    /// Returns the port of the space with this number, through which the space records its events,
    /// replays recorded ones, or does neither.
    pub(crate) fn event_port(&self, space: usize) -> EventPort {
        match self {
            Self::Off => EventPort::Off,
            Self::Record(recording) => EventPort::Journal(Box::new(write::EventRecorder::new(
                Arc::clone(recording),
                space,
            ))),
            Self::Replay(replay) => EventPort::Replay(Some(Box::new(
                event_player::EventPlayer::new(Arc::clone(replay), space),
            ))),
        }
    }

    /// Returns the seed that replaces the randomness of a filter in recorded and replayed paths, or
    /// `None` if the path is neither recorded nor replayed.
    pub(crate) fn filter_seed(&self, node: usize) -> Option<u64> {
        let seed = match self {
            Self::Off => return None,
            Self::Record(recording) => recording.seed,
            Self::Replay(replay) => replay.record().head.seed,
        };
        // Splitmix64 derives a separate seed for each filter.
        let mut mixed = seed.wrapping_add((node as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ (mixed >> 31))
    }
}

#[cfg(test)]
mod tests;
