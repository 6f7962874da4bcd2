//! Positions of what is missing: ranges of block numbers, in bounded memory.
//!
//! In: one gap after the other, as whoever noticed it names it. Out: the first and the last of
//! them, and how many were between. A position counts the blocks of one stream from 0, missing ones
//! included, so that the ranges and what arrived are all that was put. Where a stream is one per
//! processor, a range says which.

use std::collections::VecDeque;

/// Blocks that are missing one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The position of the first, and of the last.
    pub from: u64,
    /// The position of the last.
    pub to: u64,
    /// The processor whose stream it is, where each has one.
    pub processor: Option<u32>,
}

/// The positions at which blocks are missing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Missing {
    first: Vec<Gap>,
    last: VecDeque<Gap>,
    more: u64,
}

impl Missing {
    /// Ranges stored at each end.
    pub const KEPT: usize = 64;

    /// Adds `count` blocks from this position on. What follows the gap before directly is one gap
    /// with it.
    pub fn add(&mut self, from: u64, count: u64, processor: Option<u32>) {
        let Some(to) = count.checked_sub(1).map(|more| from.saturating_add(more)) else { return };
        let newest = self.last.back_mut().or_else(|| self.first.last_mut());
        if let Some(newest) = newest
            && newest.processor == processor
            && newest.to.checked_add(1) == Some(from)
        {
            newest.to = to;
            return;
        }
        self.push(Gap { from, to, processor });
    }

    /// Adds a range behind the others.
    pub fn push(&mut self, gap: Gap) {
        if self.first.len() < Self::KEPT {
            self.first.push(gap);
            return;
        }
        if self.last.len() == Self::KEPT {
            self.last.pop_front();
            self.more += 1;
        }
        self.last.push_back(gap);
    }

    /// Adds what another stream of the same kind misses.
    pub fn join(&mut self, other: &Self) {
        other.gaps().for_each(|gap| self.push(gap));
        self.more += other.more;
    }

    /// The ranges that are kept.
    pub fn gaps(&self) -> impl Iterator<Item = Gap> {
        self.first.iter().chain(&self.last).copied()
    }

    /// Returns the number of ranges behind the first [`Self::kept_first`] that are not stored.
    #[must_use]
    pub const fn more(&self) -> u64 {
        self.more
    }

    /// Says that so many ranges are not kept.
    pub fn leave_out(&mut self, more: u64) {
        self.more += more;
    }

    /// Returns the number of stored ranges before those that are not stored.
    #[must_use]
    pub fn kept_first(&self) -> usize {
        self.first.len()
    }

    /// Returns true if nothing is known to be missing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

/// `4211 to 4260, 5000 of processor 1, 12 more ranges, 9000`.
impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, Gap { from, to, processor }) in self.gaps().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            if self.more > 0 && at == self.kept_first() {
                write!(f, "{} more ranges, ", self.more)?;
            }
            write!(f, "{from}")?;
            if to > from {
                write!(f, " to {to}")?;
            }
            if let Some(processor) = processor {
                write!(f, " of processor {processor}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_what_follows_directly_is_one_range() {
        let mut missing = Missing::default();
        missing.add(5, 0, None);
        assert!(missing.is_empty());
        missing.add(4211, 40, None);
        missing.add(4251, 10, None);
        missing.add(4262, 1, None);
        missing.add(4263, 1, Some(1));
        assert_eq!(missing.to_string(), "4211 to 4260, 4262, 4263 of processor 1");
    }

    #[test]
    fn v2_the_first_and_the_last_ranges_are_kept_and_the_rest_is_counted() {
        let mut missing = Missing::default();
        (0..1000).for_each(|at| missing.add(at * 10, 2, None));
        let gaps: Vec<Gap> = missing.gaps().collect();
        assert_eq!(
            (gaps.len(), missing.more()),
            (2 * Missing::KEPT, 1000 - 2 * Missing::KEPT as u64)
        );
        assert_eq!((gaps[0].from, gaps[Missing::KEPT - 1].from), (0, 630));
        assert_eq!((gaps[Missing::KEPT].from, gaps[2 * Missing::KEPT - 1].to), (9360, 9991));
        let text = missing.to_string();
        assert!(text.contains("630 to 631, 872 more ranges, 9360 to 9361"), "{text}");
    }
}
