//! Counters of a filter: blocks, bytes, and reasons for drops and missing classes.

use serde::{Deserialize, Serialize};
use std::iter::Sum;
use std::ops::{Add, AddAssign};

/// A counter of a filter. The number is an index into the counters of the filter's description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter(pub(crate) u8);

/// A filter's reason for a drop or a missing class. The number is an index into the reasons of the
/// filter's description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reason(pub(crate) u8);

/// The counts of one filter, in blocks and bytes. The engine counts the same blocks independently.
/// When the path stops, the filter's and the engine's counts must agree (CONTRACT 19).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Blocks that the filter created and emitted.
    pub made: Amount,
    /// Input blocks that the filter used up on purpose.
    pub consumed: Amount,
    /// Blocks that the filter currently holds.
    pub held: Amount,
    /// Dropped blocks, per reason in the order of the description.
    pub dropped: Vec<Amount>,
    /// Number of blocks without a class, per reason in the order of the description.
    pub unanswered: Vec<u64>,
    /// The filter's own counters, in the order of the description.
    pub counters: Vec<u64>,
    /// Held blocks that were evicted because a limit was exceeded, because they were too old, or
    /// because their ring was about to be overwritten.
    pub evicted: Amount,
    /// Blocks lost because the space had no memory for a copy or a new block.
    pub no_room: Amount,
}

/// A number of blocks, and the total number of bytes in their views.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Amount {
    /// Number of blocks in this amount.
    pub blocks: u64,
    /// Number of bytes in the views of the blocks.
    pub bytes: u64,
}

impl Amount {
    /// Adds one block with `bytes` bytes in view.
    #[inline]
    pub fn add_block(&mut self, bytes: u32) {
        self.blocks += 1;
        self.bytes += u64::from(bytes);
    }

    /// Subtracts one block with `bytes` bytes in view.
    #[inline]
    pub fn subtract_block(&mut self, bytes: u32) {
        self.blocks = self.blocks.wrapping_sub(1);
        self.bytes = self.bytes.wrapping_sub(u64::from(bytes));
    }

    /// Returns this amount minus `part`. Both numbers saturate at 0.
    #[must_use]
    pub const fn saturating_sub(self, part: Self) -> Self {
        let blocks = self.blocks.saturating_sub(part.blocks);
        Self { blocks, bytes: self.bytes.saturating_sub(part.bytes) }
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self { blocks: self.blocks + more.blocks, bytes: self.bytes + more.bytes }
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, more: Self) {
        *self = *self + more;
    }
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), <Self as Add>::add)
    }
}

impl Counts {
    /// Creates zeroed counts for this many reasons and counters.
    #[must_use]
    pub fn new(reasons: usize, counters: usize) -> Self {
        Self {
            dropped: vec![Amount::default(); reasons],
            unanswered: vec![0; reasons],
            counters: vec![0; counters],
            ..Self::default()
        }
    }

    pub(super) fn add_to_counter(&mut self, counter: Counter, n: u64) {
        if let Some(c) = self.counters.get_mut(usize::from(counter.0)) {
            *c += n;
        }
    }

    pub(super) fn count_unanswered(&mut self, reason: Reason, blocks: u64) {
        let last = self.unanswered.len().saturating_sub(1);
        if let Some(c) = self.unanswered.get_mut(usize::from(reason.0).min(last)) {
            *c += blocks;
        }
    }

    /// Counts a dropped block under `reason`. If the description lacks this reason, which is
    /// possible only if saved session state is forged, counts the block under the last reason, so
    /// that the ledger balances. If the description has no reasons at all, counts the block as
    /// consumed.
    pub(super) fn count_dropped(&mut self, reason: Reason, bytes: u32) {
        let last = self.dropped.len().saturating_sub(1);
        let counted = self.dropped.get_mut(usize::from(reason.0).min(last));
        counted.unwrap_or(&mut self.consumed).add_block(bytes);
    }
}

impl Counter {
    /// Returns the counter whose name is `name` in the list `names`. Panics if the list lacks the
    /// name; in a constant, this is a compile error.
    pub(crate) const fn from_name(names: &[&str], name: &str) -> Self {
        Self(index_of_name(names, name))
    }
}

impl Reason {
    /// Returns the reason whose name is `name` in the list `names`. Panics if the list lacks the
    /// name; in a constant, this is a compile error.
    pub(crate) const fn from_name(names: &[&str], name: &str) -> Self {
        Self(index_of_name(names, name))
    }

    /// Encodes the reason as a number for session state: the index of the reason plus 1, since 0
    /// means that there is no reason.
    pub(crate) const fn to_code(self) -> u8 {
        self.0 + 1
    }

    /// Returns the reason whose [`Reason::to_code`] is this number, or `None` for 0.
    pub(crate) fn from_code(mark: u8) -> Option<Self> {
        mark.checked_sub(1).map(Self)
    }
}

/// Returns the index of `name` in `names`. Panics if the list lacks the name; in a constant, this
/// is a compile error.
#[expect(clippy::cast_possible_truncation, reason = "descriptions have a handful of names")]
#[expect(clippy::panic, reason = "at build time only: every caller is a constant")]
const fn index_of_name(names: &[&str], name: &str) -> u8 {
    let mut i = 0;
    while i < names.len() {
        if equal_bytes(names[i].as_bytes(), name.as_bytes()) {
            return i as u8;
        }
        i += 1;
    }
    panic!("the description has no such name")
}

const fn equal_bytes(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v18_block_dropped_for_a_forged_reason_is_counted() {
        let mut counts = Counts::new(2, 0);
        counts.count_dropped(Reason::from_code(200).unwrap(), 7);
        counts.count_unanswered(Reason::from_code(200).unwrap(), 3);
        assert_eq!(counts.dropped, [Amount::default(), Amount { blocks: 1, bytes: 7 }]);
        assert_eq!(counts.unanswered, [0, 3]);
        let mut none = Counts::new(0, 0);
        none.count_dropped(Reason::from_code(1).unwrap(), 7);
        assert_eq!(none.consumed, Amount { blocks: 1, bytes: 7 });
    }
}
