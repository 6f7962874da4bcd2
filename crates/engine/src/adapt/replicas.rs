//! Policy that decides after each observation whether to add or remove replicas.
//!
//! Input: the result of an observation. Output: the decision to add or to remove replicas, if one
//! is due. Replicas are added when the busiest thread has no spare capacity and the planner
//! predicts a gain, in several consecutive observations. The measured rate then decides: if
//! throughput does not rise, the replicas are removed, and each such failure multiplies the wait
//! before the next attempt by eight. Replicas are also removed if all threads together use less
//! than half of one processor.

use crate::path::RatePolicy;

/// Maximum sleep between two observations, as a multiple of the length of one observation.
const SLEEP_FACTOR_MAX: u64 = 80;
/// Maximum pause between two changes to the replicas or to the placement of a path, in ns.
pub(super) const CHANGE_PAUSE_MAX_NS: u64 = 3_600_000_000_000;
/// Factor by which the pause before the next change grows after each change that was undone.
pub(super) const PAUSE_GROWTH_FACTOR: u64 = 8;
/// Minimum fraction of an interval that a thread sleeps for it to count as having spare capacity.
const SPARE_IDLE_RATIO_MIN: f64 = 0.3;
/// Minimum ratio of the throughput with replicas to the throughput without, for the replicas to
/// stay.
const THROUGHPUT_RATIO_MIN: f64 = 1.08;
/// Maximum processor time of all threads together, as a fraction of one processor, for the replicas
/// to be removed. A single instance can then process all blocks.
const SINGLE_INSTANCE_BUSY_RATIO_MAX: f64 = 0.5;

/// The results of an observation by which the replica policy decides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ReplicaInputs {
    /// True if the path currently has replicas.
    pub(super) has_replicas: bool,
    /// True if the planner predicts that replicas would pay off.
    pub(super) gain_predicted: bool,
    /// Blocks per second from all sources.
    pub(super) rate: f64,
    /// Processor time that all threads used together, as a fraction of wall time.
    pub(super) busy_ratio: f64,
    /// Fraction of the observed interval during which the busiest thread slept.
    pub(super) idle_ratio: f64,
}

/// A decision: add replicas, or remove them for a stated reason.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum ReplicaStep {
    Add,
    Remove(String),
}

impl ReplicaStep {
    #[cfg(test)]
    const fn adds_replicas(&self) -> bool {
        matches!(self, Self::Add)
    }
}

/// The policy that decides about replicas. It keeps its state from one observation to the next.
#[derive(Debug)]
pub(super) struct ReplicaPolicy {
    rate_policy: RatePolicy,
    /// Blocks per second in consecutive observations. Before replicas are added, these are the
    /// observations that agree on adding replicas; afterwards, the observations that measure the
    /// effect of the replicas.
    votes: Vec<f64>,
    /// Number of consecutive observations in which all threads together used less than
    /// [`SINGLE_INSTANCE_BUSY_RATIO_MAX`] of a processor and every thread had spare capacity.
    underused: u32,
    /// The rate without replicas, measured before replicas were added. `None` if there are no
    /// replicas, or once the replicas have proved worthwhile.
    rate_without_replicas: Option<f64>,
    /// Time in ns at which the current pause ends. Until then, no replicas are added, and none are
    /// removed for lack of work.
    pause_until_ns: u64,
    pause_ns: u64,
    sleep: u64,
}

impl ReplicaPolicy {
    pub(super) const fn new(rate_policy: RatePolicy) -> Self {
        Self {
            rate_policy,
            votes: Vec::new(),
            underused: 0,
            rate_without_replicas: None,
            pause_until_ns: 0,
            pause_ns: rate_policy.pause_ns,
            sleep: 0,
        }
    }

    /// Returns the time in ns to sleep until the next observation. If a change is pending and needs
    /// another observation (`soon`), the time is 0. Otherwise, it is twice the previous time,
    /// within limits.
    pub(super) fn next_sleep_ns(&mut self, soon: bool) -> u64 {
        let next = (self.sleep * 2).clamp(
            self.rate_policy.observation_ns,
            self.rate_policy.observation_ns * SLEEP_FACTOR_MAX,
        );
        self.sleep = if soon { 0 } else { next };
        self.sleep
    }

    /// Returns true if the policy has begun to collect evidence: for adding replicas, or for
    /// keeping the replicas that it has added.
    pub(super) const fn is_imminent(&self) -> bool {
        !self.votes.is_empty() || self.rate_without_replicas.is_some()
    }

    /// Records a permanent refusal: from now on, the policy adds no replicas and removes none for
    /// lack of work. Replicas whose gain has not been evaluated yet may still be removed.
    pub(super) fn record_refusal(&mut self) {
        self.pause_until_ns = u64::MAX;
    }

    /// Decides from an observation that ended at `at` (in ns) whether to add or remove replicas.
    /// Returns `None` if the replicas should stay as they are.
    pub(super) fn decide(&mut self, at: u64, inputs: &ReplicaInputs) -> Option<ReplicaStep> {
        let step = match inputs.has_replicas {
            false => self.should_add_replicas(at, inputs).then_some(ReplicaStep::Add),
            true => self.reason_to_remove_replicas(at, inputs).map(ReplicaStep::Remove),
        };
        if step.is_some() {
            self.votes.clear();
            self.underused = 0;
        }
        if matches!(step, Some(ReplicaStep::Remove(_))) {
            self.rate_without_replicas = None;
        }
        if step == Some(ReplicaStep::Add) {
            self.pause_until_ns = at.saturating_add(self.rate_policy.pause_ns);
        }
        step
    }

    fn should_add_replicas(&mut self, at: u64, inputs: &ReplicaInputs) -> bool {
        if !inputs.gain_predicted
            || inputs.idle_ratio > SPARE_IDLE_RATIO_MIN
            || at < self.pause_until_ns
        {
            self.votes.clear();
            return false;
        }
        self.votes.push(inputs.rate);
        let enough = self.votes.len() >= self.rate_policy.agreeing_observations as usize;
        if enough {
            self.rate_without_replicas = Some(mean_rate(&self.votes));
        }
        enough
    }

    fn reason_to_remove_replicas(&mut self, at: u64, inputs: &ReplicaInputs) -> Option<String> {
        let little = inputs.busy_ratio < SINGLE_INSTANCE_BUSY_RATIO_MAX
            && inputs.idle_ratio > SPARE_IDLE_RATIO_MIN;
        self.underused = if little { self.underused + 1 } else { 0 };
        if self.underused >= 2 * self.rate_policy.agreeing_observations && at >= self.pause_until_ns
        {
            let percent = inputs.busy_ratio * 100.0;
            self.lengthen_pause(at);
            return Some(format!("all threads together keep {percent:.0} % of one processor busy"));
        }
        let rate_without_replicas =
            self.rate_without_replicas.filter(|_| inputs.idle_ratio <= SPARE_IDLE_RATIO_MIN)?;
        self.votes.push(inputs.rate);
        if self.votes.len() < self.rate_policy.agreeing_observations as usize {
            return None;
        }
        let rate = mean_rate(&self.votes);
        self.votes.clear();
        if rate >= rate_without_replicas * THROUGHPUT_RATIO_MIN {
            // The replicas pay off, so the pause is reset.
            (self.rate_without_replicas, self.pause_ns) = (None, self.rate_policy.pause_ns);
            return None;
        }
        self.lengthen_pause(at);
        Some(format!(
            "with more threads {rate:.0} blocks a second, without {rate_without_replicas:.0}"
        ))
    }

    /// Begins a longer pause before the next change. The pause begins at `at` (in ns). It is
    /// [`PAUSE_GROWTH_FACTOR`] times as long as the previous one, up to [`CHANGE_PAUSE_MAX_NS`].
    fn lengthen_pause(&mut self, at: u64) {
        self.pause_ns = self.pause_ns.saturating_mul(PAUSE_GROWTH_FACTOR).min(CHANGE_PAUSE_MAX_NS);
        self.pause_until_ns = at.saturating_add(self.pause_ns);
    }
}

fn mean_rate(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn rate_policy() -> RatePolicy {
        RatePolicy { observation_ns: 1, agreeing_observations: 2, pause_ns: SECOND_NS }
    }

    fn inputs_without_replicas(rate: f64) -> ReplicaInputs {
        ReplicaInputs {
            has_replicas: false,
            gain_predicted: true,
            rate,
            busy_ratio: 1.0,
            idle_ratio: 0.0,
        }
    }

    #[test]
    fn n1_replicas_are_added_after_consecutive_busy_observations() {
        let mut copies = ReplicaPolicy::new(rate_policy());
        let sleeps = ReplicaInputs { idle_ratio: 0.5, ..inputs_without_replicas(100.0) };
        assert_eq!(copies.decide(0, &inputs_without_replicas(100.0)), None, "one look is none");
        assert_eq!(copies.decide(1, &sleeps), None);
        assert_eq!(copies.decide(2, &inputs_without_replicas(100.0)), None, "in a row");
        assert_eq!(copies.decide(3, &inputs_without_replicas(100.0)), Some(ReplicaStep::Add));
        let pays_not = ReplicaInputs { gain_predicted: false, ..inputs_without_replicas(100.0) };
        let mut copies = ReplicaPolicy::new(rate_policy());
        assert!((0..9).all(|at| copies.decide(at, &pays_not).is_none()));
    }

    #[test]
    fn n1_useless_replicas_are_removed_and_retried_less_often() {
        let mut copies = ReplicaPolicy::new(rate_policy());
        let (mut at, mut shared, mut steps) = (0, false, Vec::new());
        while at < 1000 * SECOND_NS {
            let inputs = ReplicaInputs { has_replicas: shared, ..inputs_without_replicas(100.0) };
            if let Some(step) = copies.decide(at, &inputs) {
                shared = step.adds_replicas();
                steps.push((at / SECOND_NS, shared));
            }
            at += SECOND_NS / 10;
        }
        let tries: Vec<u64> = steps.iter().filter(|(_, share)| *share).map(|(at, _)| *at).collect();
        assert_eq!(tries, [0, 8, 72, 585], "each wait is eight times the one before");
        assert!(!shared, "{steps:?}");
    }

    #[test]
    fn n1_useful_replicas_reset_the_retry_delay() {
        let mut copies = ReplicaPolicy::new(rate_policy());
        let shares = |copies: &mut ReplicaPolicy, from: u64| {
            (from..)
                .map(|at| (at, copies.decide(at, &inputs_without_replicas(100.0))))
                .find(|(_, step)| step.is_some())
        };
        let with = |rate, busy, idle| ReplicaInputs {
            has_replicas: true,
            rate,
            busy_ratio: busy,
            idle_ratio: idle,
            gain_predicted: true,
        };
        let (begun, _) = shares(&mut copies, 0).unwrap();
        assert_eq!(begun, 1);
        assert!((2..4).any(|at| copies.decide(at, &with(100.0, 2.0, 0.0)).is_some()), "no gain");
        assert!(!copies.is_imminent());
        let (again, _) = shares(&mut copies, 8 * SECOND_NS - 9).unwrap();
        assert!(again >= 8 * SECOND_NS, "{again}");
        assert!((0..4).all(|at| copies.decide(again + 1 + at, &with(180.0, 2.0, 0.0)).is_none()));
        let low =
            (2 * SECOND_NS..).find(|at| copies.decide(again + at, &with(9.0, 0.1, 0.9)).is_some());
        let end = again + low.unwrap();
        assert_eq!(copies.pause_until_ns, end + 8 * SECOND_NS, "not 64 s");
    }

    #[test]
    fn n1_useful_replicas_stay_until_load_drops() {
        let mut copies = ReplicaPolicy::new(rate_policy());
        assert_eq!(copies.decide(0, &inputs_without_replicas(100.0)), None);
        assert_eq!(copies.decide(1, &inputs_without_replicas(100.0)), Some(ReplicaStep::Add));
        let busy =
            ReplicaInputs { has_replicas: true, busy_ratio: 1.9, ..inputs_without_replicas(180.0) };
        assert!((2..50).all(|at| copies.decide(at, &busy).is_none()));
        let little = ReplicaInputs {
            has_replicas: true,
            gain_predicted: false,
            rate: 9.0,
            busy_ratio: 0.1,
            idle_ratio: 0.9,
        };
        let joins = (2..9).find_map(|at| copies.decide(at * SECOND_NS, &little));
        let why = "all threads together keep 10 % of one processor busy".to_owned();
        assert_eq!(joins, Some(ReplicaStep::Remove(why)));
        assert!(!copies.is_imminent());
    }
}
