//! Input and result of one pass of a space, with the number of blocks that the sinks of the path
//! may still take (`-c`).

use super::observe::Observers;
use super::replica::Births;
use crate::failure::PathFailure;
use filter::Room;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// State of a pass.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Number of blocks that the sinks of the path may still take (`-c`).
    pub(crate) left: Option<Arc<Left>>,
    /// Policy by which this space claims some of them.
    pub(crate) claims: Claims,
    /// The observers of the walk.
    pub(crate) observers: Observers,
    /// Failure that ended the path, if any.
    pub(crate) failure: Option<PathFailure>,
    /// True if nothing is edited in place.
    pub(crate) copies: bool,
    /// True if the space has nothing more, and sleeps after this walk.
    pub(crate) last: bool,
    /// Memory for batches at rest.
    pub(crate) rooms: Vec<Room>,
    /// The turn of what copies of filters here give when no block causes it ([`crate::copies`]).
    pub(crate) order: u32,
    /// Birth times of the sessions of replicas here.
    pub(crate) births: Births,
    /// Current step in the end of a replica here; 0: it has not begun.
    pub(crate) step: u32,
    /// The first turn behind all that replicas got, once that is known.
    pub(crate) end: u32,
}

/// Policy by which a space claims blocks of those that are left: with several claiming spaces, the
/// result depends on which of them is faster.
#[derive(Debug, Default)]
pub(crate) enum Claims {
    /// First come, first served.
    #[default]
    Free,
    /// The same, and it is noted.
    Noted(Vec<u32>),
    /// It was decided before: so many in this turn.
    Scripted(u32),
}

/// Maximum number of idle batches whose memory is kept: what one editing filter needs at a time.
const ROOMS: usize = 4;

impl Turn {
    /// Keeps the memory of a batch for another one.
    pub(crate) fn keep(&mut self, room: Room) {
        if self.rooms.len() < ROOMS {
            self.rooms.push(room);
        }
    }
}

/// Number of blocks that the sinks of a path may still take, all together.
#[derive(Debug)]
pub struct Left(AtomicU64);

impl Left {
    /// Makes a limit of so many blocks.
    #[must_use]
    pub const fn new(blocks: u64) -> Self {
        Self(AtomicU64::new(blocks))
    }

    /// Takes up to `wanted`, and answers how many.
    pub(super) fn claim(&self, wanted: u32) -> u32 {
        let claim = |left: u64| Some(left - left.min(u64::from(wanted)));
        // The count guards no other memory.
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim);
        let before = before.unwrap_or_else(|unchanged| unchanged);
        u32::try_from(before).map_or(wanted, |left| left.min(wanted))
    }

    /// Returns true if nothing is left.
    pub(crate) fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}
