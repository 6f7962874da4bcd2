//! Session numbers, unique within a request. Each filter that assigns session numbers owns a part
//! of the number range (CONTRACT 8).
//!
//! A part is an arithmetic progression, disjoint from all other parts, and determined by the
//! indices of the filter, its replica and its process. Filters therefore assign numbers without
//! locks, atomics or messages between threads and processes, and a repeated run assigns the same
//! numbers.
//!
//! ```text
//! 1 ...                          2^31 - 1 | 2^31 ...                        2^32 - 1
//! initial filters of a path:              | filters added while it runs:
//! i + 1, i + 1 + n, ... for filter i of n | one of 64 ranges of 2^25 for each
//! ```
//!
//! The number of filters that will be added at run time is unknown at the start. Each of them
//! therefore uses its own range, and the parts of the initial filters never change. Rationale:
//! docs/book/decisions/0046-session-numbers.md.

use serde::{Deserialize, Serialize};

/// The session numbers of one filter: `first`, `first + step`, and so on, up to
/// `last`. The number 0 means that a block has no session, and is never included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct SessionNumbers {
    first: u32,
    step: u32,
    last: u32,
}

/// Lowest session number in the ranges of filters that are added at run time.
const ADDED_NUMBERS_START: u32 = 1 << 31;
/// Number of session numbers in the range of a filter added at run time. No filter has as many
/// sessions at the same time.
const NUMBERS_PER_ADDED_FILTER: u32 = 1 << 25;

impl SessionNumbers {
    /// All session numbers. Used if a request has a single filter that assigns session numbers.
    pub const ALL: Self = Self { first: 1, step: 1, last: u32::MAX };
    /// Number of filters that can be added at run time before a range of session numbers is used
    /// for a second filter.
    pub const ADDED_FILTERS_MAX: u32 =
        (u32::MAX - ADDED_NUMBERS_START) / NUMBERS_PER_ADDED_FILTER + 1;

    /// Returns the session numbers of a filter that belongs to the path from the start. `number` is
    /// the index of the filter among all `of` filters of this kind.
    #[must_use]
    pub const fn for_initial_filter(number: u32, of: u32) -> Self {
        Self { first: 1, step: 1, last: ADDED_NUMBERS_START - 1 }.nth_share(number, of)
    }

    /// Returns the session numbers of a filter added at run time. `range` is the index of the
    /// filter among those added. Ranges repeat after [`Self::ADDED_FILTERS_MAX`] filters.
    #[must_use]
    pub const fn for_added_filter(range: u32) -> Self {
        let first =
            ADDED_NUMBERS_START + range % Self::ADDED_FILTERS_MAX * NUMBERS_PER_ADDED_FILTER;
        Self { first, step: 1, last: first + (NUMBERS_PER_ADDED_FILTER - 1) }
    }

    /// Returns one share of these session numbers, for a replica or a process. `of` is the number
    /// of shares, and `number` the index of this one. The share contains every `of`-th number,
    /// beginning with the number at index `number`.
    #[must_use]
    pub const fn nth_share(self, number: u32, of: u32) -> Self {
        let of = if of == 0 { 1 } else { of };
        let first = self.first.saturating_add((number % of).saturating_mul(self.step));
        let first = if first > self.last { self.last } else { first };
        Self { first, step: self.step.saturating_mul(of), last: self.last }
    }

    /// Returns the lowest of these session numbers.
    #[must_use]
    pub const fn first(self) -> u32 {
        self.first
    }

    /// Returns the number that follows `given`, or the first number if `given` is 0. Returns `None`
    /// if `given` is the last number.
    #[inline]
    #[must_use]
    pub const fn next_after(self, given: u32) -> Option<u32> {
        if given == 0 {
            return Some(self.first);
        }
        match given.checked_add(self.step) {
            Some(next) if next <= self.last => Some(next),
            _ => None,
        }
    }

    /// Returns true if `given` is 0 or one of these session numbers.
    #[must_use]
    pub const fn contains(self, given: u32) -> bool {
        let within = self.first <= given && given <= self.last;
        given == 0 || within && (given - self.first).is_multiple_of(self.step)
    }

    /// Returns how many session numbers there are in this set, which is at least 1.
    #[must_use]
    pub const fn count(self) -> u32 {
        (self.last - self.first) / self.step + 1
    }

    #[cfg(test)]
    pub(crate) const fn to_words(self) -> [u32; 3] {
        [self.first, self.step, self.last]
    }

    #[cfg(test)]
    pub(crate) const fn from_words([first, step, last]: [u32; 3]) -> Self {
        Self { first, step, last }
    }
}

impl Default for SessionNumbers {
    fn default() -> Self {
        Self::ALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Random;

    /// Returns the lowest session numbers, at most `most` of them.
    fn lowest_numbers(numbers: SessionNumbers, most: usize) -> Vec<u32> {
        let next = |given: &u32| numbers.next_after(*given);
        std::iter::successors(numbers.next_after(0), next).take(most).collect()
    }

    /// Returns true if any session number is in both sets.
    fn have_common_number(one: SessionNumbers, other: SessionNumbers) -> bool {
        let ([a, step, last], [b, other_step, other_last]) = (one.to_words(), other.to_words());
        let mut number = a.max(b);
        // By the Chinese remainder theorem a common number lies within one common step.
        let common = u64::from(step) * u64::from(other_step);
        let end = u64::from(number).saturating_add(common).min(last.min(other_last).into());
        while u64::from(number) <= end {
            if (number - a).is_multiple_of(step) && (number - b).is_multiple_of(other_step) {
                return true;
            }
            let Some(next) = number.checked_add(1) else { return false };
            number = next;
        }
        false
    }

    #[test]
    fn single_filter_numbers_sessions_from_1() {
        assert_eq!(lowest_numbers(SessionNumbers::for_initial_filter(0, 1), 4), [1, 2, 3, 4]);
        assert_eq!(
            lowest_numbers(SessionNumbers::for_initial_filter(0, 1).nth_share(1, 2), 3),
            [2, 4, 6]
        );
        assert_eq!(lowest_numbers(SessionNumbers::for_initial_filter(1, 2), 3), [2, 4, 6]);
        assert_eq!(
            lowest_numbers(SessionNumbers::for_initial_filter(1, 2).nth_share(1, 3), 3),
            [4, 10, 16]
        );
        assert_eq!(
            lowest_numbers(SessionNumbers::for_added_filter(1), 2),
            [
                ADDED_NUMBERS_START + NUMBERS_PER_ADDED_FILTER,
                ADDED_NUMBERS_START + NUMBERS_PER_ADDED_FILTER + 1
            ]
        );
    }

    #[test]
    fn filters_of_a_request_share_no_session_number() {
        let mut random = Random::with_replayable_seed();
        for _ in 0..50 {
            let (filters, parts) = (random.within(1..5) as u32, random.within(1..5) as u32);
            let initial =
                (0..filters).map(|filter| SessionNumbers::for_initial_filter(filter, filters));
            let later = [random.below(64) as u32, 63];
            let later = later.into_iter().take(if later[0] == 63 { 1 } else { 2 });
            let filters = initial.chain(later.map(SessionNumbers::for_added_filter));
            let all: Vec<_> = filters
                .flat_map(|own| (0..parts).map(move |part| own.nth_share(part, parts)))
                .collect();
            for (at, one) in all.iter().enumerate() {
                assert_eq!(one.count() as usize, {
                    let [first, step, last] = one.to_words();
                    ((last - first) / step + 1) as usize
                });
                let met = all[at + 1..].iter().find(|other| have_common_number(*one, **other));
                assert_eq!(met, None, "{one:?}");
            }
        }
    }

    #[test]
    fn session_numbers_are_finite_and_never_0() {
        for numbers in [SessionNumbers::ALL, SessionNumbers::for_added_filter(63).nth_share(2, 3)] {
            let [first, step, last] = numbers.to_words();
            let end = first + (last - first) / step * step;
            assert_eq!(
                (numbers.next_after(end - step), numbers.next_after(end)),
                (Some(end), None)
            );
            assert!(first > 0 && numbers.count() > 1 << 23);
            assert!([0, first, end].into_iter().all(|number| numbers.contains(number)));
            assert!(!numbers.contains(first - 1) || first == 1);
            assert!(!numbers.contains(first + 1) || step == 1);
        }
        assert_eq!(SessionNumbers::ADDED_FILTERS_MAX, 64);
        let absurd = SessionNumbers::for_added_filter(0).nth_share(u32::MAX - 1, u32::MAX);
        assert_eq!((absurd.count(), absurd.next_after(absurd.first())), (1, None));
    }
}
