//! Sets of classes that arcs accept, in a form that allows fast tests.

use abi::Class;
use filter::{Batch, LaneMask};

/// The set of classes that an arc accepts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SelectedClasses {
    /// All nonzero classes, which a plain `|` accepts.
    Answered,
    /// All classes, which `|all` accepts.
    All,
    /// The class with this number only.
    One(u32),
    /// Sorted, disjoint ranges; both bounds are inclusive.
    Ranges(Vec<(u32, u32)>),
}

impl SelectedClasses {
    /// Creates the set of these ranges, which must be sorted and disjoint.
    #[must_use]
    pub fn from_ranges(ranges: Vec<(u32, u32)>) -> Self {
        match ranges.as_slice() {
            [(0, high)] if *high >= Class::ZERO.0 => Self::All,
            [(1, high)] if *high >= Class::ZERO.0 => Self::Answered,
            [(low, high)] if low == high => Self::One(*low),
            _ => Self::Ranges(ranges),
        }
    }

    /// Returns true if the set contains the class.
    #[must_use]
    pub fn contains(&self, class: Class) -> bool {
        match self {
            Self::All => true,
            Self::Answered => class.is_answered(),
            Self::One(value) => class.0 == *value,
            Self::Ranges(ranges) => ranges_contain(ranges, class.0),
        }
    }

    /// Returns the live lanes whose class is in the set.
    #[inline]
    #[must_use]
    pub fn select_lanes(&self, batch: &Batch<'_>) -> LaneMask {
        match self {
            Self::All => batch.live_lanes(),
            Self::Answered => batch.lanes_with_class(Class::is_answered),
            Self::One(value) => batch.lanes_with_class(|c| c.0 == *value),
            Self::Ranges(ranges) => batch.lanes_with_class(|c| ranges_contain(ranges, c.0)),
        }
    }
}

fn ranges_contain(ranges: &[(u32, u32)], value: u32) -> bool {
    let behind = ranges.partition_point(|(low, _)| *low <= value);
    behind.checked_sub(1).and_then(|i| ranges.get(i)).is_some_and(|(_, high)| value <= *high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_select_exactly_their_classes() {
        let wanted = SelectedClasses::from_ranges(vec![(0, 21), (23, 79), (81, u32::MAX)]);
        let SelectedClasses::Ranges(ranges) = &wanted else { panic!("three ranges") };
        for (value, yes) in [(0, true), (22, false), (80, false), (81, true), (u32::MAX, true)] {
            assert_eq!(ranges_contain(ranges, value), yes, "{value}");
        }
        assert_eq!(SelectedClasses::from_ranges(vec![(0, u32::MAX)]), SelectedClasses::All);
        assert_eq!(SelectedClasses::from_ranges(vec![(80, 80)]), SelectedClasses::One(80));
    }
}
