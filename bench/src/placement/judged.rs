//! The verdict on a choice: within a multiple of every other placement or not, by the costs of both
//! in the same rounds.
//!
//! In: processor time for a frame of both, round by round. Out: the median of their ratios, and
//! where it lies with 99 % of certainty: the interval of order statistics, which supposes nothing
//! about how the samples are spread. What disturbs the machine for a while disturbs both of a
//! round, and one round in which it did not counts as much as one in which it did.

use crate::harness::median;

/// So far from the middle do the ends of the interval lie, in standard deviations of how many of
/// the samples lie below the median.
const CERTAIN: f64 = 2.576;
/// An interval that reaches no further than this to both sides is narrow enough.
const NARROW: f64 = 0.03;

/// The ratio of the cost of a choice to that of another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Times {
    pub(super) median: f64,
    /// The median.
    pub(super) interval: [f64; 2],
    /// In how many rounds.
    pub(super) rounds: usize,
}

/// The verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It is within the limit.
    Holds,
    /// It is beyond.
    Loses,
    /// The limit lies in the interval.
    Unknown,
}

impl Times {
    /// Compares the choice with another, round by round; `None` without rounds.
    pub(super) fn of(choice: &[f64], other: &[f64]) -> Option<Self> {
        let mut all: Vec<f64> = choice.iter().zip(other).map(|(one, other)| one / other).collect();
        all.sort_by(f64::total_cmp);
        let rounds = all.len();
        let below = (rounds as f64 - CERTAIN * (rounds as f64).sqrt()) / 2.0;
        // So many lie outside at each end; of few, none.
        let outside = (below.max(0.0) as usize).min(rounds.saturating_sub(1) / 2);
        let interval = [*all.get(outside)?, *all.get(rounds - 1 - outside)?];
        Some(Self { median: median(&all), interval, rounds })
    }

    pub(super) fn verdict(&self, limit: f64) -> Verdict {
        match self.interval {
            [_, high] if high <= limit => Verdict::Holds,
            [low, _] if low > limit => Verdict::Loses,
            _ => Verdict::Unknown,
        }
    }

    /// Returns true if more rounds would not change the verdict.
    pub(super) fn is_told(&self, limit: f64) -> bool {
        let [low, high] = self.interval.map(|end| end / self.median - 1.0);
        self.verdict(limit) != Verdict::Unknown || (low >= -NARROW && high <= NARROW)
    }
}

/// Returns the strongest comparison against a choice: a sure loss, then a possible one, then the
/// largest ratio.
pub(super) fn worst(all: impl IntoIterator<Item = Times>, limit: f64) -> Option<Times> {
    let rank = |times: &Times| match times.verdict(limit) {
        Verdict::Loses => 2,
        Verdict::Unknown => 1,
        Verdict::Holds => 0,
    };
    all.into_iter()
        .max_by(|one, other| rank(one).cmp(&rank(other)).then(one.median.total_cmp(&other.median)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rounds_bound_the_ratio_loosely() {
        let times = Times::of(&[2.0, 3.0, 4.0], &[2.0; 3]).unwrap();
        assert_eq!(times, Times { median: 1.5, interval: [1.0, 2.0], rounds: 3 });
        assert_eq!(times.verdict(1.1), Verdict::Unknown);
        assert_eq!((times.verdict(2.0), times.verdict(0.9)), (Verdict::Holds, Verdict::Loses));
        assert!(Times::of(&[], &[]).is_none());
    }

    #[test]
    fn disturbed_rounds_do_not_widen_the_bounds_of_many() {
        let mut choice = vec![1.0; 41];
        choice[3] = 9.0;
        choice[17] = 0.1;
        let times = Times::of(&choice, &[1.0; 41]).unwrap();
        assert_eq!(times.interval, [1.0, 1.0]);
        assert!(times.is_told(1.0) && times.is_told(1.001));
    }

    #[test]
    fn pairs_see_through_what_disturbs_both() {
        let other: Vec<f64> = (1..=41).map(|round| f64::from(round * round)).collect();
        let choice: Vec<f64> = other.iter().map(|ns| 1.05 * ns).collect();
        let times = Times::of(&choice, &other).unwrap();
        assert!((times.median - 1.05).abs() < 1e-9 && times.verdict(1.1) == Verdict::Holds);
        assert_eq!(times.verdict(1.04), Verdict::Loses);
    }

    #[test]
    fn sure_loss_outweighs_possible_loss() {
        let of =
            |median: f64, by| Times { median, interval: [median - by, median + by], rounds: 9 };
        let all = [of(1.0, 0.0), of(1.2, 0.01), of(1.3, 0.9)];
        assert_eq!(worst(all, 1.1), Some(all[1]));
        assert_eq!(worst([all[0], all[2]], 1.1), Some(all[2]));
        assert_eq!(worst([all[0], of(0.9, 0.0)], 1.1), Some(all[0]));
        assert_eq!(worst([], 1.1), None);
    }
}
