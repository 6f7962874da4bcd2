//! A limit on the number of blocks that a path delivers (`-c`). The spaces of the path claim blocks
//! from it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of blocks that the sinks of a path may still accept, shared by all of its spaces.
#[derive(Debug)]
pub struct CountLimit(AtomicU64);

impl CountLimit {
    /// Creates a limit of `blocks` blocks for a path.
    #[must_use]
    pub const fn new(blocks: u64) -> Self {
        Self(AtomicU64::new(blocks))
    }

    /// Claims up to `wanted` blocks for delivery. Returns the number of blocks that may be
    /// delivered.
    pub(super) fn claim(&self, wanted: u32) -> u32 {
        let claim = |left: u64| Some(left - left.min(u64::from(wanted)));
        // Relaxed suffices: the counter guards no other memory.
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim);
        let before = before.unwrap_or_else(|unchanged| unchanged);
        u32::try_from(before).map_or(wanted, |left| left.min(wanted))
    }

    /// Returns true if the path may deliver no more blocks, because its limit is used up.
    pub(crate) fn is_used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// The policy by which a space claims blocks from the [`CountLimit`] of its path. If a path has
/// several spaces, the numbers of granted blocks depend on timing. They are therefore part of the
/// record of a run.
#[derive(Debug, Default)]
pub(crate) enum ClaimPolicy {
    /// The claims of spaces to blocks are granted in the order in which they arrive. Nothing is
    /// recorded.
    #[default]
    Free,
    /// The claims of spaces to blocks are granted in the order in which they arrive. The granted
    /// numbers are collected for the record of the run.
    Recorded(Vec<u32>),
    /// The claims of spaces to blocks are granted as in the recorded run that is being repeated.
    /// The field is the number of blocks that the space may still claim in this pass.
    Replayed(u32),
}
