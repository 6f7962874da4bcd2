//! Pending writes to a block. All writes are collected before any of them is made, so that a block
//! is edited either completely or not at all.

use std::ops::Range;

/// Maximum number of changes to a block: two link addresses, a TTL, two IP addresses, two ports,
/// two checksums.
const CHANGES_MAX: usize = 9;

/// A write of a few bytes at an offset in the frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Change {
    at: usize,
    bytes: [u8; 6],
    length: usize,
}

impl Change {
    /// Creates a change that writes up to six bytes at an offset in the frame.
    pub(super) fn new(at: usize, bytes: &[u8]) -> Self {
        let mut change = Self { at, length: bytes.len().min(6), ..Self::default() };
        change.bytes.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        change
    }
}

/// All pending writes to one block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Changes {
    all: [Change; CHANGES_MAX],
    count: usize,
}

impl Changes {
    pub(super) fn push(&mut self, change: Change) {
        if let Some(free) = self.all.get_mut(self.count) {
            *free = change;
            self.count += 1;
        }
    }

    pub(super) fn extend(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| self.push(change));
    }

    fn iter(&self) -> impl Iterator<Item = &Change> {
        self.all.iter().take(self.count)
    }

    /// Returns the smallest range of the frame that contains all changes.
    pub(super) fn covered_range(&self) -> Range<usize> {
        let first = self.iter().map(|change| change.at).min().unwrap_or(0);
        let end = self.iter().map(|change| change.at + change.length).max().unwrap_or(first);
        first..end
    }

    /// Applies the writes to `part`, the part of the frame that [`Changes::covered_range`] covers.
    pub(super) fn apply(&self, part: &mut [u8]) {
        let first = self.covered_range().start;
        for Change { at, bytes, length } in self.iter() {
            let room = part.get_mut(at - first..).unwrap_or_default();
            room.iter_mut().zip(bytes.iter().take(*length)).for_each(|(to, from)| *to = *from);
        }
    }
}
