//! The interface of the store that keeps the descriptors of an attach point, and the names under
//! which it stores them.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;

/// A store that holds descriptors by name while this process restarts.
pub trait DescriptorKeeper: Debug + Send + Sync {
    /// Stores a descriptor. A failure is not reported; the descriptor is then missing once this
    /// process has restarted.
    fn store(&self, name: &str, descriptor: BorrowedFd<'_>);
    /// Discards the stored descriptor with this name.
    fn discard(&self, name: &str);
}

/// Prefix of the names under which descriptors are persisted.
pub const PERSISTED_NAME_PREFIX: &str = "kernel-";
/// Names of one attach point's descriptors in the store ([`DescriptorKeeper`]) that outlives this
/// process.
#[derive(Debug, Default)]
pub(super) struct StoredDescriptorNames {
    pub(super) names: BTreeSet<String>,
    /// The number of the latest note that the keeper holds.
    pub(super) notes: u64,
}
