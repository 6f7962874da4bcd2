//! A flag in the memory of a pool, which is set during an in-place edit.

use crate::atomic::{AtomicU32, Ordering};

/// A flag that is set while a block of the pool is edited in place. While it is set, no lease can
/// be created from an address. If the edit is leaked (`mem::forget`), the flag stays set
/// permanently.
#[derive(Debug, Default)]
pub(crate) struct EditFlag(AtomicU32);

impl EditFlag {
    pub(super) fn set(&self, editing: bool) {
        self.0.store(u32::from(editing), Ordering::Relaxed);
    }

    /// Returns true during an edit. A caller that has a slice of the edited block obtained it from
    /// the `EditedBlock`, and therefore after the flag was set.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}
