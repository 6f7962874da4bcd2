//! The state common to the reader and the writer of a table: the region, its name, and its layout.

use super::layout::TableShape;
use crate::atomic::AtomicU64;
use crate::name::{Address, SharedRegion};

/// A table of filter state, mapped by its writer or by a reader.
#[derive(Debug)]
pub struct Table {
    pub(super) region: SharedRegion,
    pub(super) address: Address,
    pub(super) shape: TableShape,
    /// Index of the first row's first word.
    pub(super) first: usize,
}

impl Table {
    /// Returns the name of the table.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the shape of the table: its filter, columns, and maximum number of rows.
    #[must_use]
    pub const fn shape(&self) -> &TableShape {
        &self.shape
    }

    /// Returns all words of the table's region.
    pub(super) fn words(&self) -> &[AtomicU64] {
        self.region.words()
    }

    /// Returns the words of row `at`, or an empty slice if there is no such row.
    pub(super) fn row(&self, at: usize) -> &[AtomicU64] {
        let from = self.first + at * self.shape.row_words();
        self.words().get(from..from + self.shape.row_words()).unwrap_or_default()
    }
}
