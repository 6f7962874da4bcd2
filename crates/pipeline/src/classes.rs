//! Sets of classes.
//!
//! A set is a sorted list of disjoint ranges over the classes that a block can have: 0 (no answer)
//! to 2³²−2 (`zero`, which represents the number 0). Class 2³²−1 (held) never leaves a filter, so
//! no set contains it. Complements include 0 (CONTRACT 9). [SL §4.2]

use std::fmt::{self, Display, Formatter, Write as _};

use filter::ValueRange;
use filter::prelude::Class;

/// The largest class that a block can have.
const CLASS_MAX: u32 = Class::ZERO.0;

/// A set of classes, for example the classes that an arc passes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClassSet {
    /// The ranges of classes in the set, sorted, with a gap between neighbours.
    ranges: Vec<(u32, u32)>,
}

impl ClassSet {
    /// Returns the empty set.
    pub fn empty() -> Self {
        Self { ranges: Vec::new() }
    }

    /// Returns the set of all classes, including 0: `|all`.
    pub fn all() -> Self {
        Self::range(0, CLASS_MAX)
    }

    /// Returns the set that a plain pipe passes: all classes except 0.
    pub fn plain_pipe() -> Self {
        Self::range(1, CLASS_MAX)
    }

    /// Returns the set that contains only `class`.
    pub fn single(class: u32) -> Self {
        Self::range(class, class)
    }

    /// Returns the classes from `low` to `high` inclusive, or the empty set if `low` exceeds
    /// `high`.
    pub fn range(low: u32, high: u32) -> Self {
        let high = high.min(CLASS_MAX);
        if low > high { Self::empty() } else { Self { ranges: vec![(low, high)] } }
    }

    /// Returns the union of this set and `other`.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::union_of([self, other])
    }

    /// Returns the union of all sets.
    #[must_use]
    pub fn union_of<'a>(sets: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all: Vec<(u32, u32)> = Vec::new();
        for set in sets {
            all.extend(&set.ranges);
        }
        all.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::with_capacity(all.len());
        for (low, high) in all {
            match ranges.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => ranges.push((low, high)),
            }
        }
        Self { ranges }
    }

    /// Returns the intersection of this set and `other`.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.complement().union(&other.complement()).complement()
    }

    /// Returns true if the set explicitly names classes within `bounds`, that is, if one of its
    /// ranges lies within them. A plain pipe, `|all` and `|!80` name none, although they contain
    /// these classes.
    pub fn names_class_within(&self, bounds: ValueRange) -> bool {
        self.ranges.iter().any(|range| bounds.contains(*range))
    }

    /// Returns the classes of the blocks that pass an arc with this set. The filter before the arc
    /// emits the classes in `on_request` only if the set names one of them; otherwise they are
    /// missing from the result.
    #[must_use]
    pub fn without_unrequested_classes(&self, on_request: Option<ValueRange>) -> Self {
        match on_request.filter(|bounds| !self.names_class_within(*bounds)) {
            Some(ValueRange { low, high }) => {
                self.intersection(&Self::range(low, high).complement())
            }
            None => self.clone(),
        }
    }

    /// Returns the complement, which includes 0 if the set lacks 0.
    #[must_use]
    pub fn complement(&self) -> Self {
        let mut ranges = Vec::with_capacity(self.ranges.len() + 1);
        let mut next = Some(0);
        for (low, high) in &self.ranges {
            if let Some(from) = next.filter(|from| from < low) {
                ranges.push((from, low - 1));
            }
            next = high.checked_add(1).filter(|after| *after <= CLASS_MAX);
        }
        ranges.extend(next.map(|from| (from, CLASS_MAX)));
        Self { ranges }
    }

    /// Returns true if the class is in the set.
    pub fn contains(&self, class: u32) -> bool {
        self.ranges.iter().any(|(low, high)| (*low..=*high).contains(&class))
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns true if every class is in the set.
    pub fn is_all(&self) -> bool {
        self.ranges == [(0, CLASS_MAX)]
    }

    /// Returns true if the set has all classes except 0, as for a plain pipe.
    pub fn is_plain(&self) -> bool {
        self.ranges == [(1, CLASS_MAX)]
    }

    /// Returns the ranges in ascending order; both bounds are inclusive.
    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }
}

impl Display for ClassSet {
    /// Formats the set like a label without its pipe symbol. A plain pipe is formatted as `!0`, and
    /// the empty set as `none`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.is_all() {
            return f.write_str("all");
        }
        if self.is_empty() {
            return f.write_str("none");
        }
        // For a set that includes the largest classes, the complement is easier to read.
        let open = self.contains(CLASS_MAX - 1);
        let complement = self.complement();
        if open {
            f.write_char('!')?;
        }
        let ranges = if open { &complement.ranges } else { &self.ranges };
        for (index, (low, high)) in ranges.iter().enumerate() {
            if index > 0 {
                f.write_char(',')?;
            }
            write_class(f, *low)?;
            if high > low {
                f.write_char(':')?;
                write_class(f, *high)?;
            }
        }
        Ok(())
    }
}

fn write_class(f: &mut Formatter<'_>, class: u32) -> fmt::Result {
    if class == CLASS_MAX { f.write_str("zero") } else { write!(f, "{class}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class_set(ranges: &[(u32, u32)]) -> ClassSet {
        ranges
            .iter()
            .fold(ClassSet::empty(), |set, (low, high)| set.union(&ClassSet::range(*low, *high)))
    }

    #[test]
    fn class_set_joins_and_sorts_its_ranges() {
        assert_eq!(
            class_set(&[(8, 9), (1, 2), (3, 3), (20, 30), (25, 40)]).ranges(),
            [(1, 3), (8, 9), (20, 40)]
        );
        assert!(class_set(&[(9, 8)]).is_empty());
        assert_eq!(ClassSet::single(u32::MAX), ClassSet::empty());
    }

    #[test]
    fn class_set_algebra_holds_for_all_small_sets() {
        const ENDS: [u32; 5] = [0, 1, 2, CLASS_MAX - 1, CLASS_MAX];
        let small = |bits: u32| {
            let member = |(bit, end): (usize, &u32)| (bits >> bit & 1 == 1).then_some((*end, *end));
            class_set(&ENDS.iter().enumerate().filter_map(member).collect::<Vec<_>>())
        };
        for (a, b) in (0..32).flat_map(|a| (0..32).map(move |b| (a, b))) {
            let (left, right) = (small(a), small(b));
            assert_eq!(left.union(&right), small(a | b));
            assert_eq!(left.intersection(&right), small(a & b));
            assert_eq!(left.complement().complement(), left);
            for class in ENDS {
                assert_ne!(left.contains(class), left.complement().contains(class));
            }
            assert!(!left.contains(u32::MAX) && !left.complement().contains(u32::MAX));
        }
    }

    #[test]
    fn class_set_is_formatted_like_a_label() {
        for (set, text) in [
            (ClassSet::all(), "all"),
            (ClassSet::plain_pipe(), "!0"),
            (ClassSet::empty(), "none"),
            (ClassSet::single(80).complement(), "!80"),
            (class_set(&[(22, 23), (80, 80)]), "22:23,80"),
            (ClassSet::single(CLASS_MAX), "zero"),
            (ClassSet::single(CLASS_MAX).complement(), "!zero"),
            (class_set(&[(1, 9), (CLASS_MAX, CLASS_MAX)]), "1:9,zero"),
        ] {
            assert_eq!(set.to_string(), text);
        }
    }
}
