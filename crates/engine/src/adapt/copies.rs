//! Decision logic that adds and removes filter replicas, one observation after the other.
//!
//! In: the result of an observation. Out: to add replicas, to remove them, or nothing. Replicas are
//! added when every thread that would have to be faster is busy, and the planner predicts a gain in
//! several observations in a row. The measured rate then decides: if throughput does not rise, the
//! replicas are removed, and each such failure multiplies the wait before the next attempt by
//! eight. Replicas whose work fits one processor are removed, too.

use crate::path::Pace;

/// Longest sleep between two observations, in multiples of the observation time.
const SLEEP_MAX: u64 = 80;
/// Longest wait after a change, in ns.
pub(super) const REST_MAX: u64 = 3_600_000_000_000;
/// Factor by which the wait grows after each change that was undone.
pub(super) const LONGER: u64 = 8;
/// Fraction of time asleep above which a thread has capacity to spare.
const IDLE: f64 = 0.3;
/// Minimum ratio of throughput with replicas to throughput without.
const GAINS: f64 = 1.08;
/// Fraction of one processor below which the replicas' total work fits a single instance.
const LITTLE: f64 = 0.5;

/// The result of one observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sight {
    /// True if replicas exist.
    pub(super) shared: bool,
    /// True if the planner predicts that replicas would pay.
    pub(super) worth: bool,
    /// Blocks of sources a second.
    pub(super) rate: f64,
    /// Processor time used per unit of wall time, over all threads.
    pub(super) busy: f64,
    /// Fraction of time for which the busiest thread slept.
    pub(super) idle: f64,
}

/// A decision: add replicas, or remove them for a stated reason.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Step {
    Share,
    Join(String),
}

impl Step {
    pub(super) const fn shares(&self) -> bool {
        matches!(self, Self::Share)
    }
}

/// State kept between observations.
#[derive(Debug)]
pub(super) struct Copies {
    pace: Pace,
    /// The looks in a row that say the same, by the rate they saw.
    votes: Vec<f64>,
    /// Consecutive observations with little to do.
    little: u32,
    /// The rate of one copy, when it was left.
    alone: Option<f64>,
    /// Time before which nothing is changed, and the length of the next wait, in ns.
    rests_until: u64,
    rest: u64,
    sleep: u64,
}

impl Copies {
    pub(super) const fn new(pace: Pace) -> Self {
        Self {
            pace,
            votes: Vec::new(),
            little: 0,
            alone: None,
            rests_until: 0,
            rest: pace.rest_ns,
            sleep: 0,
        }
    }

    /// Returns the sleep until the next observation, in ns: none while a change is imminent, then
    /// longer and longer.
    pub(super) fn sleeps(&mut self, soon: bool) -> u64 {
        let next = (self.sleep * 2).clamp(self.pace.look_ns, self.pace.look_ns * SLEEP_MAX);
        self.sleep = if soon { 0 } else { next };
        self.sleep
    }

    /// Returns true if a change is imminent, or the last one is still being judged.
    pub(super) const fn is_near(&self) -> bool {
        !self.votes.is_empty() || self.alone.is_some()
    }

    /// Records that a change was refused for a permanent reason.
    pub(super) fn is_refused(&mut self) {
        self.rests_until = u64::MAX;
    }

    /// Decides the next step from an observation made at `at`, in ns.
    pub(super) fn next(&mut self, at: u64, sight: &Sight) -> Option<Step> {
        let step = match sight.shared {
            false => self.shares(at, sight).then_some(Step::Share),
            true => self.joins(at, sight).map(Step::Join),
        };
        if step.is_some() {
            self.votes.clear();
            self.little = 0;
            self.rests_until = at.saturating_add(self.pace.rest_ns);
        }
        step
    }

    fn shares(&mut self, at: u64, sight: &Sight) -> bool {
        if !sight.worth || sight.idle > IDLE || at < self.rests_until {
            self.votes.clear();
            return false;
        }
        self.votes.push(sight.rate);
        let enough = self.votes.len() >= self.pace.looks as usize;
        if enough {
            self.alone = Some(mean(&self.votes));
        }
        enough
    }

    fn joins(&mut self, at: u64, sight: &Sight) -> Option<String> {
        let little = sight.busy < LITTLE && sight.idle > IDLE;
        self.little = if little { self.little + 1 } else { 0 };
        if self.little >= 2 * self.pace.looks && at >= self.rests_until {
            let percent = sight.busy * 100.0;
            self.longer(at);
            return Some(format!("all of it keeps {percent:.0} % of one processor busy"));
        }
        let alone = self.alone.filter(|_| sight.idle <= IDLE)?;
        self.votes.push(sight.rate);
        if self.votes.len() < self.pace.looks as usize {
            return None;
        }
        let rate = mean(&self.votes);
        self.votes.clear();
        if rate >= alone * GAINS {
            // It has paid: it may do so again.
            (self.alone, self.rest) = (None, self.pace.rest_ns);
            return None;
        }
        self.longer(at);
        Some(format!("with copies {rate:.0} blocks a second, without {alone:.0}"))
    }

    /// Lengthens the wait after a change that did not pay.
    fn longer(&mut self, at: u64) {
        self.rest = self.rest.saturating_mul(LONGER).min(REST_MAX);
        self.pace.rest_ns = self.rest;
        self.rests_until = at.saturating_add(self.rest);
    }
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn pace() -> Pace {
        Pace { look_ns: 1, looks: 2, rest_ns: SECOND }
    }

    fn alone(rate: f64) -> Sight {
        Sight { shared: false, worth: true, rate, busy: 1.0, idle: 0.0 }
    }

    #[test]
    fn n1_copies_come_when_several_looks_say_so_and_nobody_sleeps() {
        let mut copies = Copies::new(pace());
        let sleeps = Sight { idle: 0.5, ..alone(100.0) };
        assert_eq!(copies.next(0, &alone(100.0)), None, "one look is none");
        assert_eq!(copies.next(1, &sleeps), None);
        assert_eq!(copies.next(2, &alone(100.0)), None, "in a row");
        assert_eq!(copies.next(3, &alone(100.0)), Some(Step::Share));
        let pays_not = Sight { worth: false, ..alone(100.0) };
        let mut copies = Copies::new(pace());
        assert!((0..9).all(|at| copies.next(at, &pays_not).is_none()));
    }

    #[test]
    fn n1_copies_that_do_not_pay_go_and_come_later_and_later() {
        let mut copies = Copies::new(pace());
        let (mut at, mut shared, mut steps) = (0, false, Vec::new());
        while at < 1000 * SECOND {
            let sight = Sight { shared, ..alone(100.0) };
            if let Some(step) = copies.next(at, &sight) {
                shared = step.shares();
                steps.push((at / SECOND, shared));
            }
            at += SECOND / 10;
        }
        let tries: Vec<u64> = steps.iter().filter(|(_, share)| *share).map(|(at, _)| *at).collect();
        assert_eq!(tries, [0, 8, 72, 585], "each wait is eight times the one before");
        assert!(!shared, "{steps:?}");
    }

    #[test]
    fn n1_copies_that_pay_stay_until_there_is_little_to_do() {
        let mut copies = Copies::new(pace());
        assert_eq!(copies.next(0, &alone(100.0)), None);
        assert_eq!(copies.next(1, &alone(100.0)), Some(Step::Share));
        let busy = Sight { shared: true, busy: 1.9, ..alone(180.0) };
        assert!((2..50).all(|at| copies.next(at, &busy).is_none()));
        let little = Sight { shared: true, worth: false, rate: 9.0, busy: 0.1, idle: 0.9 };
        let joins = (2..9).find_map(|at| copies.next(at * SECOND, &little));
        let why = "all of it keeps 10 % of one processor busy".to_owned();
        assert_eq!(joins, Some(Step::Join(why)));
    }
}
