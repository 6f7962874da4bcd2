//! The flag that a pool's memory carries during an in-place edit.

use crate::atomic::{AtomicU32, Ordering};

/// A flag that is set while a block of a pool is edited in place. If the edit is leaked
/// (`mem::forget`), the flag stays set and leases can no longer be created from addresses.
#[derive(Debug, Default)]
pub(crate) struct EditFlag(AtomicU32);

impl EditFlag {
    pub(super) fn set(&self, editing: bool) {
        self.0.store(u32::from(editing), Ordering::Relaxed);
    }

    /// Returns true during an edit. If the caller's slice is the edited block, the slice came from
    /// the `Editing`, hence after the flag was set.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}
