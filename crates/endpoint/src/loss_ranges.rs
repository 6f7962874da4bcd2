//! Positions of lost blocks as ranges, in bounded memory.
//!
//! Gaps are added in the order of detection. The first and the last ranges are stored, and the
//! ranges between them are only counted. A position is the number of earlier blocks of the stream,
//! lost blocks included, so the ranges and the received blocks together cover the stream. If each
//! processor has its own stream, a range names its processor.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A range of consecutive lost blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Gap {
    /// Position of the first lost block.
    pub from: u64,
    /// Position of the last lost block, inclusive.
    pub to: u64,
    /// Index of the processor in whose stream the blocks were lost, or `None` if all processors
    /// share one stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<u32>,
}

/// Ranges of lost blocks in a stream. Stores the first and the last [`Self::RANGES_PER_END_MAX`]
/// ranges, and the number of ranges between them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LossRanges {
    first: Vec<Gap>,
    last: VecDeque<Gap>,
    more: u64,
}

impl LossRanges {
    /// Maximum number of ranges stored at each end of the list: of the first ranges, and of the
    /// last ranges.
    pub const RANGES_PER_END_MAX: usize = 64;

    /// Adds `count` lost blocks, starting at position `from`. If they continue the newest range,
    /// that range is extended.
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
        self.push_gap(Gap { from, to, processor });
    }

    /// Appends a range of lost blocks without merging it with the newest range. If the list is
    /// full, discards and counts its oldest range after the first [`Self::RANGES_PER_END_MAX`]
    /// ones.
    pub fn push_gap(&mut self, gap: Gap) {
        if self.first.len() < Self::RANGES_PER_END_MAX {
            self.first.push(gap);
            return;
        }
        if self.last.len() == Self::RANGES_PER_END_MAX {
            self.last.pop_front();
            self.more += 1;
        }
        self.last.push_back(gap);
    }

    /// Appends the ranges of another stream to this list. Adds the number of ranges that `other`
    /// has discarded to the number that this list has discarded.
    pub fn append(&mut self, other: &Self) {
        other.gaps().for_each(|gap| self.push_gap(gap));
        self.more += other.more;
    }

    /// Returns the stored ranges of lost blocks, in order.
    pub fn gaps(&self) -> impl Iterator<Item = Gap> {
        self.first.iter().chain(&self.last).copied()
    }

    /// Returns the number of discarded ranges. These lie between the first
    /// [`Self::leading_range_count`] stored ranges and the remaining stored ranges.
    #[must_use]
    pub const fn discarded_range_count(&self) -> u64 {
        self.more
    }

    /// Adds `more` to the number of discarded ranges.
    pub fn add_discarded_ranges(&mut self, more: u64) {
        self.more += more;
    }

    /// Returns the number of stored ranges that precede the discarded ones, at most
    /// [`Self::RANGES_PER_END_MAX`].
    #[must_use]
    pub fn leading_range_count(&self) -> usize {
        self.first.len()
    }

    /// Returns true if no loss has been recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

/// Formats the ranges, for example `4211 to 4260, 5000 of processor 1, 12 more ranges, 9000`.
impl std::fmt::Display for LossRanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, Gap { from, to, processor }) in self.gaps().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            if self.more > 0 && at == self.leading_range_count() {
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
    fn v2_adjacent_losses_form_one_range() {
        let mut missing = LossRanges::default();
        missing.add(5, 0, None);
        assert!(missing.is_empty());
        missing.add(4211, 40, None);
        missing.add(4251, 10, None);
        missing.add(4262, 1, None);
        missing.add(4263, 1, Some(1));
        assert_eq!(missing.to_string(), "4211 to 4260, 4262, 4263 of processor 1");
    }

    #[test]
    fn v2_first_and_last_ranges_are_stored_and_others_counted() {
        let mut missing = LossRanges::default();
        (0..1000).for_each(|at| missing.add(at * 10, 2, None));
        let gaps: Vec<Gap> = missing.gaps().collect();
        assert_eq!(
            (gaps.len(), missing.discarded_range_count()),
            (2 * LossRanges::RANGES_PER_END_MAX, 1000 - 2 * LossRanges::RANGES_PER_END_MAX as u64)
        );
        assert_eq!((gaps[0].from, gaps[LossRanges::RANGES_PER_END_MAX - 1].from), (0, 630));
        assert_eq!(
            (
                gaps[LossRanges::RANGES_PER_END_MAX].from,
                gaps[2 * LossRanges::RANGES_PER_END_MAX - 1].to
            ),
            (9360, 9991)
        );
        let text = missing.to_string();
        assert!(text.contains("630 to 631, 872 more ranges, 9360 to 9361"), "{text}");
    }
}
