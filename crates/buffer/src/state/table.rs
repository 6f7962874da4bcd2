//! A table as both of its ends have it: memory with a name, and what lies where in it.

use super::layout::Shape;
use crate::atomic::AtomicU64;
use crate::name::{Address, SharedRegion};

/// A table, whoever looks at it.
#[derive(Debug)]
pub struct Table {
    pub(super) region: SharedRegion,
    pub(super) address: Address,
    pub(super) shape: Shape,
    /// The word at which the first row begins.
    pub(super) first: usize,
}

impl Table {
    /// Its name.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the shape.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// All of its words.
    pub(super) fn words(&self) -> &[AtomicU64] {
        self.region.words()
    }

    /// The words of the row at this place; none where there is no such place.
    pub(super) fn row(&self, at: usize) -> &[AtomicU64] {
        let from = self.first + at * self.shape.width();
        self.words().get(from..from + self.shape.width()).unwrap_or_default()
    }
}
