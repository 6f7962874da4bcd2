//! Records: all that a path was given, in one file, so that it can be run again and give the same
//! output bit for bit.
//!
//! A filter sees blocks, their order and the time it is told, and nothing else (no clock, no I/O),
//! and a space is one thread. So what a space does is decided by the sequence of its turns: which
//! input gave how many blocks, at which time, with which bytes. That is what is written: of sources
//! all bytes, of rings only how many blocks were taken, since the space before gives them again.
//! Beside it stand the request, what the machine is for the planner, and the seed of what filters
//! would take from chance.
//!
//! - [`form`]: the bytes of the file, a pcapng capture that any reader of captures opens;
//! - `head`: the request, the machine and the plan;
//! - `event`: the events of a space as bytes;
//! - [`change`]: changes of the path;
//! - [`write`]: writing it beside a running path, in bounds;
//! - [`read`]: opening it, whole, cut or damaged;
//! - [`play`]: the turns of a space, taken from it;
//!
//! While a path is recorded nothing of it runs in the kernel: what a program refuses there never
//! comes to the process, and a record without it could not tell why something is missing. Why all
//! this: docs/book/decisions/0023-record.md.

pub mod change;
pub(crate) mod event;
pub mod form;
mod head;
pub mod play;
pub mod read;
pub mod write;

pub use change::Change;
pub use head::{Head, VERSION, layout, zone};
pub use play::Replay;
pub use read::{Broken, Record, Whole};
pub use write::{Recording, Summary};

use runtime::space::events::EventPort;
use std::sync::Arc;

/// The mode in which a path is built, besides its plan: live, recorded or replayed.
#[derive(Clone, Default, Debug)]
pub enum Tape {
    /// Nothing is kept.
    #[default]
    Off,
    /// Everything is written down.
    Record(Arc<Recording>),
    /// Everything comes from a record.
    Play(Arc<Replay>),
}

impl Tape {
    /// Returns true if it repeats a run in which filters numbered sessions each for itself.
    #[must_use]
    pub fn numbers_each_for_itself(&self) -> bool {
        matches!(self, Self::Play(replay) if replay.record().version < head::NUMBERS)
    }

    /// Opens the port for events of the space of this number.
    pub(crate) fn port(&self, space: usize) -> EventPort {
        match self {
            Self::Off => EventPort::Off,
            Self::Record(recording) => {
                EventPort::Journal(Box::new(write::Recorder::new(Arc::clone(recording), space)))
            }
            Self::Play(replay) => {
                EventPort::Script(Some(Box::new(play::Player::new(Arc::clone(replay), space))))
            }
        }
    }

    /// Returns the seed that replaces a filter's randomness, where runs must be repeatable.
    pub(crate) fn seed(&self, node: usize) -> Option<u64> {
        let seed = match self {
            Self::Off => return None,
            Self::Record(recording) => recording.seed(),
            Self::Play(replay) => replay.record().head.seed,
        };
        // Another one for every filter, as chance would have it: splitmix64.
        let mut mixed = seed.wrapping_add((node as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ (mixed >> 31))
    }
}

#[cfg(test)]
mod tests;
