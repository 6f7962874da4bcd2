//! Flag in the memory of a pool, set during an in-place edit.

use crate::atomic::{AtomicU32, Ordering};

/// A flag that is set while a block of the pool is edited in place. If the edit is leaked
/// (`mem::forget`), the flag stays set, so that an address can no longer be used to create a lease.
#[derive(Debug, Default)]
pub(crate) struct EditFlag(AtomicU32);

impl EditFlag {
    pub(super) fn set(&self, editing: bool) {
        self.0.store(u32::from(editing), Ordering::Relaxed);
    }

    /// Returns true during an edit. A caller that holds a slice of the edited block got the slice
    /// from the `Editing`, and so after the flag was set.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}
