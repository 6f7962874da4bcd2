//! The mark of memory in which a block is being edited.

use crate::atomic::{AtomicU32, Ordering};

/// A flag that is set while a block of a memory is edited in place. If the end of the edit is
/// forgotten (`mem::forget`) it stays set: then no lease is ever made from an address again.
#[derive(Debug)]
pub(crate) struct Mark(AtomicU32);

impl Default for Mark {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl Mark {
    pub(super) fn set(&self, editing: bool) {
        self.0.store(u32::from(editing), Ordering::Relaxed);
    }

    /// Returns true during an edit. The caller has a slice: if it is the edited one, it came from
    /// the `Editing`, hence after the mark was set.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}
