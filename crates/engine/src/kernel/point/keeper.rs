//! The interface of the store that holds a point's descriptors, and the names of these descriptors.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;

/// A store that holds descriptors by name while this process restarts.
pub trait Keeper: Debug + Send + Sync {
    /// Stores a descriptor. A failure is not reported; the descriptor is then missing after a
    /// restart.
    fn keep(&self, name: &str, descriptor: BorrowedFd<'_>);
    /// Discards a descriptor.
    fn forget(&self, name: &str);
}

/// The prefix of all names.
pub const PERSISTED_PREFIX: &str = "kernel-";
/// Names of the descriptors that the keeper holds for a point.
#[derive(Debug, Default)]
pub(super) struct StoredNames {
    pub(super) names: BTreeSet<String>,
    /// The number of the latest note.
    pub(super) notes: u64,
}
