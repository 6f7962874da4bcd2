//! Comparison of the costs of two placements, measured in the same rounds. The verdict is that the
//! ratio of the costs is within a limit, beyond it, or undecided.
//!
//! The input is the processor time per frame of both placements in each round. The output is the
//! median of their ratios, with a 99 % confidence interval from order statistics, which assumes
//! nothing about the distribution. A lasting disturbance affects both placements of a round, so
//! disturbed rounds count as much as quiet ones.

use crate::harness::median;

/// Half width of a 99 % confidence interval of the median, in standard deviations. The interval
/// consists of ranks of the sorted samples. The standard deviation is that of the number of samples
/// below the median.
const CONFIDENCE_SIGMAS: f64 = 2.576;
/// Maximum half width of a confidence interval that counts as narrow: the distance from the median
/// to either end, as a fraction of the median.
const HALF_WIDTH_MAX: f64 = 0.03;

/// The cost of the placement that a policy chose, divided by the cost of another placement: the
/// median over the rounds, with its confidence interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct CostRatio {
    pub(super) median: f64,
    /// The 99 % confidence interval of `median`.
    pub(super) interval: [f64; 2],
    /// Number of rounds from which the ratio was computed.
    pub(super) rounds: usize,
}

/// The verdict on a placement that a policy has chosen, by the ratio of its cost to that of another
/// placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The ratio is certainly within the limit, because its whole confidence interval is.
    WithinLimit,
    /// The ratio is certainly beyond the limit, because its whole confidence interval is.
    BeyondLimit,
    /// The ratio may be within or beyond the limit, which lies inside its confidence interval.
    Undecided,
}

impl CostRatio {
    /// Compares the costs of the placement that a policy chose with the costs of another placement,
    /// round by round. Returns `None` if there are no rounds.
    pub(super) fn compare(choice: &[f64], other: &[f64]) -> Option<Self> {
        let mut all: Vec<f64> = choice.iter().zip(other).map(|(one, other)| one / other).collect();
        all.sort_by(f64::total_cmp);
        let rounds = all.len();
        let below = (rounds as f64 - CONFIDENCE_SIGMAS * (rounds as f64).sqrt()) / 2.0;
        // Number of samples outside the interval at each end; 0 for few rounds.
        let outside = (below.max(0.0) as usize).min(rounds.saturating_sub(1) / 2);
        let interval = [*all.get(outside)?, *all.get(rounds - 1 - outside)?];
        Some(Self { median: median(&all), interval, rounds })
    }

    pub(super) fn verdict(&self, limit: f64) -> Verdict {
        match self.interval {
            [_, high] if high <= limit => Verdict::WithinLimit,
            [low, _] if low > limit => Verdict::BeyondLimit,
            _ => Verdict::Undecided,
        }
    }

    /// Returns true if the comparison needs no more rounds, because its verdict is certain or its
    /// confidence interval is narrow.
    pub(super) fn is_decided(&self, limit: f64) -> bool {
        let [low, high] = self.interval.map(|end| end / self.median - 1.0);
        self.verdict(limit) != Verdict::Undecided
            || (low >= -HALF_WIDTH_MAX && high <= HALF_WIDTH_MAX)
    }
}

/// Returns the comparison that is least favorable to the chosen placement. The worst ratio is one
/// that is certainly beyond the limit, then an undecided ratio, then a ratio within the limit.
/// Among ratios with the same verdict, the largest median is the worst. Returns `None` if there are
/// no comparisons.
pub(super) fn worst_comparison(
    all: impl IntoIterator<Item = CostRatio>,
    limit: f64,
) -> Option<CostRatio> {
    let rank = |times: &CostRatio| match times.verdict(limit) {
        Verdict::BeyondLimit => 2,
        Verdict::Undecided => 1,
        Verdict::WithinLimit => 0,
    };
    all.into_iter()
        .max_by(|one, other| rank(one).cmp(&rank(other)).then(one.median.total_cmp(&other.median)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rounds_bound_the_ratio_loosely() {
        let times = CostRatio::compare(&[2.0, 3.0, 4.0], &[2.0; 3]).unwrap();
        assert_eq!(times, CostRatio { median: 1.5, interval: [1.0, 2.0], rounds: 3 });
        assert_eq!(times.verdict(1.1), Verdict::Undecided);
        assert_eq!(
            (times.verdict(2.0), times.verdict(0.9)),
            (Verdict::WithinLimit, Verdict::BeyondLimit)
        );
        assert!(CostRatio::compare(&[], &[]).is_none());
    }

    #[test]
    fn disturbed_rounds_do_not_widen_the_bounds_of_many() {
        let mut choice = vec![1.0; 41];
        choice[3] = 9.0;
        choice[17] = 0.1;
        let times = CostRatio::compare(&choice, &[1.0; 41]).unwrap();
        assert_eq!(times.interval, [1.0, 1.0]);
        assert!(times.is_decided(1.0) && times.is_decided(1.001));
    }

    #[test]
    fn paired_ratios_cancel_common_disturbances() {
        let other: Vec<f64> = (1..=41).map(|round| f64::from(round * round)).collect();
        let choice: Vec<f64> = other.iter().map(|ns| 1.05 * ns).collect();
        let times = CostRatio::compare(&choice, &other).unwrap();
        assert!((times.median - 1.05).abs() < 1e-9 && times.verdict(1.1) == Verdict::WithinLimit);
        assert_eq!(times.verdict(1.04), Verdict::BeyondLimit);
    }

    #[test]
    fn ratio_beyond_limit_is_worse_than_an_undecided_one() {
        let of =
            |median: f64, by| CostRatio { median, interval: [median - by, median + by], rounds: 9 };
        let all = [of(1.0, 0.0), of(1.2, 0.01), of(1.3, 0.9)];
        assert_eq!(worst_comparison(all, 1.1), Some(all[1]));
        assert_eq!(worst_comparison([all[0], all[2]], 1.1), Some(all[2]));
        assert_eq!(worst_comparison([all[0], of(0.9, 0.0)], 1.1), Some(all[0]));
        assert_eq!(worst_comparison([], 1.1), None);
    }
}
