//! The numbers of sessions: one space of them per request, of which every filter that gives numbers
//! has a part (CONTRACT 8).
//!
//! In: which of how many such filters one is, and which of how many replicas or processes. Out: an
//! arithmetic progression that shares no number with that of any other. So a filter needs no lock,
//! no atomic word and no message to give a number that nobody else gives, whichever thread or
//! process it runs in, and a run that is repeated gives the same ones.
//!
//! ```text
//! 1 ...                        2^31 - 1 | 2^31 ...                          2^32 - 1
//! filters that a path begins with:      | filters that come while it runs:
//! filter i of n gives i + 1, i + 1 + n, | filter k gives one of 64 ranges of 2^25
//! ```
//!
//! How many come while a path runs nobody knows at its beginning. So they get ranges of their own,
//! and what the others give stays as it is. Why: docs/book/decisions/0046-session-numbers.md.

/// The numbers that one filter may give to sessions; 0, which means no session, is never one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionNumbers {
    first: u32,
    step: u32,
    last: u32,
}

/// The first number of the ranges for filters that come while a path runs.
const LATER: u32 = 1 << 31;
/// Size of such a range: more than the sessions that any filter knows at once.
const RANGE: u32 = 1 << 25;

impl SessionNumbers {
    /// All numbers, for a filter that shares them with no other.
    pub const ALL: Self = Self { first: 1, step: 1, last: u32::MAX };
    /// Maximum number of filters, added to a running path, with numbers of their own at one time.
    pub const LATER_MAX: u32 = (u32::MAX - LATER) / RANGE + 1;

    /// The numbers of filter `number`, from 0, of `of` filters that a path begins with.
    #[must_use]
    pub const fn initial(number: u32, of: u32) -> Self {
        Self { first: 1, step: 1, last: LATER - 1 }.split(number, of)
    }

    /// The numbers of a filter that comes while the path runs: one of [`Self::LATER_MAX`] ranges.
    #[must_use]
    pub const fn later(range: u32) -> Self {
        let first = LATER + range % Self::LATER_MAX * RANGE;
        Self { first, step: 1, last: first + (RANGE - 1) }
    }

    /// Returns the share of part `number`, from 0, of `of` parts: every `of`-th number.
    #[must_use]
    pub const fn split(self, number: u32, of: u32) -> Self {
        let of = if of == 0 { 1 } else { of };
        let first = self.first.saturating_add((number % of).saturating_mul(self.step));
        let first = if first > self.last { self.last } else { first };
        Self { first, step: self.step.saturating_mul(of), last: self.last }
    }

    /// The lowest of them.
    #[must_use]
    pub const fn first(self) -> u32 {
        self.first
    }

    /// The next behind `given`, which is one of them or 0, if there is one.
    #[inline]
    #[must_use]
    pub const fn after(self, given: u32) -> Option<u32> {
        if given == 0 {
            return Some(self.first);
        }
        match given.checked_add(self.step) {
            Some(next) if next <= self.last => Some(next),
            _ => None,
        }
    }

    /// Returns true if `given` is one of them, or 0, as before the first.
    #[must_use]
    pub const fn has(self, given: u32) -> bool {
        let within = self.first <= given && given <= self.last;
        given == 0 || within && (given - self.first).is_multiple_of(self.step)
    }

    /// Returns the number of numbers, at least one.
    #[must_use]
    pub const fn count(self) -> u32 {
        (self.last - self.first) / self.step + 1
    }

    /// The same as words, for another process.
    #[must_use]
    pub const fn words(self) -> [u32; 3] {
        [self.first, self.step, self.last]
    }

    /// Returns the numbers from the output of [`Self::words`]; `None` for anything else.
    #[must_use]
    pub const fn of_words([first, step, last]: [u32; 3]) -> Option<Self> {
        match first > 0 && step > 0 && first <= last {
            true => Some(Self { first, step, last }),
            false => None,
        }
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

    /// Up to `most` of the numbers, from the lowest.
    fn given(numbers: SessionNumbers, most: usize) -> Vec<u32> {
        let next = |given: &u32| numbers.after(*given);
        std::iter::successors(numbers.after(0), next).take(most).collect()
    }

    fn meet(one: SessionNumbers, other: SessionNumbers) -> bool {
        let ([a, step, last], [b, other_step, other_last]) = (one.words(), other.words());
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
    fn a_lone_filter_counts_from_1() {
        assert_eq!(given(SessionNumbers::initial(0, 1), 4), [1, 2, 3, 4]);
        assert_eq!(given(SessionNumbers::initial(0, 1).split(1, 2), 3), [2, 4, 6]);
        assert_eq!(given(SessionNumbers::initial(1, 2), 3), [2, 4, 6]);
        assert_eq!(given(SessionNumbers::initial(1, 2).split(1, 3), 3), [4, 10, 16]);
        assert_eq!(given(SessionNumbers::later(1), 2), [LATER + RANGE, LATER + RANGE + 1]);
    }

    #[test]
    fn no_two_parts_of_a_request_have_a_number_in_common() {
        let mut random = Random::replayable();
        for _ in 0..50 {
            let (filters, parts) = (random.within(1..5) as u32, random.within(1..5) as u32);
            let initial = (0..filters).map(|filter| SessionNumbers::initial(filter, filters));
            let later = [random.below(64) as u32, 63];
            let later = later.into_iter().take(if later[0] == 63 { 1 } else { 2 });
            let filters = initial.chain(later.map(SessionNumbers::later));
            let all: Vec<_> = filters
                .flat_map(|own| (0..parts).map(move |part| own.split(part, parts)))
                .collect();
            for (at, one) in all.iter().enumerate() {
                assert_eq!(one.count() as usize, {
                    let [first, step, last] = one.words();
                    ((last - first) / step + 1) as usize
                });
                let met = all[at + 1..].iter().find(|other| meet(*one, **other));
                assert_eq!(met, None, "{one:?}");
            }
        }
    }

    #[test]
    fn numbers_end_and_are_never_0() {
        for numbers in [SessionNumbers::ALL, SessionNumbers::later(63).split(2, 3)] {
            let [first, step, last] = numbers.words();
            let end = first + (last - first) / step * step;
            assert_eq!((numbers.after(end - step), numbers.after(end)), (Some(end), None));
            assert!(first > 0 && numbers.count() > 1 << 23);
            assert!([0, first, end].into_iter().all(|number| numbers.has(number)));
            assert!(!numbers.has(first - 1) || first == 1);
            assert!(!numbers.has(first + 1) || step == 1);
            assert_eq!(SessionNumbers::of_words(numbers.words()), Some(numbers));
        }
        assert_eq!(SessionNumbers::LATER_MAX, 64);
        assert_eq!(SessionNumbers::of_words([0, 1, 5]), None);
        assert_eq!(SessionNumbers::of_words([2, 1, 1]), None);
        let absurd = SessionNumbers::later(0).split(u32::MAX - 1, u32::MAX);
        assert_eq!((absurd.count(), absurd.after(absurd.first())), (1, None));
    }
}
