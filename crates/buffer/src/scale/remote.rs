//! Trial of a ring larger than all caches, for processors that share no cache.
//!
//! A line that one processor has just read or written reaches a processor without a shared cache at
//! a fraction of the rate of memory, because the owner must first release it. The lines of a ring
//! larger than both caches have been evicted when the writer starts the next lap, and are written
//! at the rate of memory (`bench scale`: on two cores without a shared cache, 64 MB is five times
//! as fast as 4 MB; with a shared cache, a third as fast).
//!
//! The kernel does not report which case applies, and it may change at run time. The writer
//! therefore measures the time of some blocks in each lap, including its own work. If most laps
//! take as long as transfers between remote caches would take, the largest ring is tried. If blocks
//! are much faster in that ring, it is retained. Otherwise the time was spent on the writer's own
//! work, and the ring shrinks again. It also shrinks periodically, because nothing else would
//! detect that the processors now share a cache.

use super::{INITIAL_PATIENCE_ROUNDS, PATIENCE_ROUNDS_MAX};

/// The time that the writer took for some blocks of a lap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LapTiming {
    /// Number of bytes that the writer wrote in the measured time.
    pub bytes: u64,
    /// Time to write the bytes, in nanoseconds.
    pub ns: u64,
}

impl LapTiming {
    /// Returns the time that the writer took per 4 KB, in nanoseconds.
    fn cost_per_4kb_ns(self) -> u64 {
        self.ns.saturating_mul(4096) / self.bytes.max(1)
    }
}

/// Range of costs, in nanoseconds per 4 KB, that indicates transfers between remote caches. 4 KB
/// take 80 to 120 ns between processors that share a cache, and 1500 to 2500 ns between others;
/// higher costs indicate the writer's own work.
const REMOTE_COST_NS: std::ops::Range<u64> = 600..5000;
/// Number of laps of the smaller ring after which the writer decides whether to try a larger ring.
const EVALUATION_LAPS: u64 = 16;
/// Minimum number of slow laps, among [`EVALUATION_LAPS`] laps of the smaller ring, for which the
/// writer tries a larger ring.
const SLOW_LAPS_MIN: u64 = 12;
/// Number of laps of a larger ring on trial that are ignored at first, because its pages are
/// faulted in.
const WARMUP_LAPS: u64 = 2;
/// Number of laps of a larger ring on trial, after [`WARMUP_LAPS`], whose times decide whether the
/// larger ring is retained.
const TRIAL_LAPS: u64 = 4;
/// Maximum cost per byte in a larger ring, in percent of the cost in the smaller ring, for which
/// the larger ring is retained after its trial.
const COST_PERCENT_MAX: u64 = 70;
/// Number of laps in a larger ring after which the ring shrinks, so that the cost in the smaller
/// ring is measured again.
const RECHECK_LAPS: u64 = 256;

/// The comparison between a ring that fits into the caches (the smaller ring) and one that exceeds
/// them (the larger ring). The larger ring is on trial until its cost is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RemoteTrial {
    /// True if the ring should now be larger than the caches (the larger ring).
    pub(super) is_on: bool,
    /// Number of laps since the ring last changed between the smaller and the larger ring, or since
    /// the last decision in the smaller ring.
    laps: u64,
    /// Number of slow laps of the smaller ring: laps whose cost indicates transfers between caches
    /// of processors that share none.
    slow_laps: u64,
    /// Cost in nanoseconds per 4 KB. In the smaller ring, it is the sum over the slow laps, whose
    /// cost indicates transfers between remote caches. In the larger ring, it is the minimum over
    /// the laps of the trial.
    cost: u64,
    /// Average cost of the slow laps in the smaller ring, in nanoseconds per 4 KB. The cost in the
    /// larger ring is compared with it.
    smaller_ring_cost: u64,
    /// Number of laps of the smaller ring that must pass before a larger ring may be tried again.
    pause: u64,
    /// Number of laps that the writer waits in the smaller ring after the next failed trial of a
    /// larger ring.
    patience: u64,
}

impl RemoteTrial {
    pub(super) const fn new() -> Self {
        Self {
            is_on: false,
            laps: 0,
            slow_laps: 0,
            cost: 0,
            smaller_ring_cost: 0,
            pause: 0,
            patience: INITIAL_PATIENCE_ROUNDS,
        }
    }

    /// Records the time that the writer took for some blocks of a lap; `None` if it was not
    /// measured. Returns true if the ring should now exceed the caches.
    pub(super) fn record(&mut self, timing: Option<LapTiming>) -> bool {
        let cost = timing.map(LapTiming::cost_per_4kb_ns);
        if self.is_on {
            self.evaluate_trial(cost);
        } else {
            self.evaluate_smaller_ring(cost);
        }
        self.is_on
    }

    /// Ends the trial of a larger ring. Called when the writer and the reader share a processor, or
    /// if the parameters allow no ring beyond the caches.
    pub(super) fn stop(&mut self) {
        self.set_trial(false);
    }

    fn set_trial(&mut self, is_on: bool) {
        (self.is_on, self.laps, self.slow_laps, self.cost) = (is_on, 0, 0, 0);
    }

    fn evaluate_smaller_ring(&mut self, cost: Option<u64>) {
        self.pause = self.pause.saturating_sub(1);
        self.laps += 1;
        if let Some(cost) = cost.filter(|cost| REMOTE_COST_NS.contains(cost)) {
            self.cost = self.cost.saturating_add(cost);
            self.slow_laps += 1;
        }
        if self.laps < EVALUATION_LAPS {
            return;
        }
        let is_slow = self.slow_laps >= SLOW_LAPS_MIN && self.pause == 0;
        self.smaller_ring_cost = self.cost / self.slow_laps.max(1);
        self.set_trial(is_slow);
    }

    fn evaluate_trial(&mut self, cost: Option<u64>) {
        self.laps += 1;
        if (WARMUP_LAPS + 1..=WARMUP_LAPS + TRIAL_LAPS).contains(&self.laps)
            && let Some(cost) = cost
        {
            self.cost = if self.cost == 0 { cost.max(1) } else { self.cost.min(cost) };
        }
        if self.laps == WARMUP_LAPS + TRIAL_LAPS {
            // A trial without a measurement fails as well.
            let is_better = self.cost > 0
                && self.cost.saturating_mul(100)
                    <= self.smaller_ring_cost.saturating_mul(COST_PERCENT_MAX);
            if is_better {
                self.patience = INITIAL_PATIENCE_ROUNDS;
            } else {
                self.pause = self.patience;
                self.patience = (self.patience * 2).min(PATIENCE_ROUNDS_MAX);
                self.set_trial(false);
            }
        } else if self.laps >= RECHECK_LAPS {
            self.set_trial(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED_CACHE_COST: u64 = 80;

    fn record_lap(trial: &mut RemoteTrial, ns: u64) -> bool {
        trial.record(Some(LapTiming { bytes: 65_536, ns: 16 * ns }))
    }

    /// Records laps that cost `ns` nanoseconds per 4 KB, until the trial of a larger ring is on (or
    /// off, if `is_on` is false). Returns the number of laps, or `None` if a thousand laps are not
    /// enough.
    fn laps_until(trial: &mut RemoteTrial, ns: u64, is_on: bool) -> Option<u64> {
        (1..1000).find(|_| record_lap(trial, ns) == is_on)
    }

    #[test]
    fn f1_slow_laps_start_a_trial_that_is_retained_if_faster() {
        let mut trial = RemoteTrial::new();
        assert!(
            (0..1000).all(|_| !record_lap(&mut trial, SHARED_CACHE_COST)),
            "no trial with a shared cache"
        );
        assert!(laps_until(&mut trial, 2000, true).is_some_and(|laps| laps < 2 * EVALUATION_LAPS));
        // Laps that touch memory for the first time do not count; later ones are much faster.
        assert!((0..WARMUP_LAPS).all(|_| record_lap(&mut trial, 9000)));
        assert!((0..RECHECK_LAPS - WARMUP_LAPS - 1).all(|_| record_lap(&mut trial, 400)));
        assert!(!record_lap(&mut trial, 400), "the smaller ring is measured again");
        assert_eq!(laps_until(&mut trial, 2000, true), Some(EVALUATION_LAPS), "and left again");
        // Now the processors share a cache: the larger ring is no faster than before.
        assert!(laps_until(&mut trial, 400, false).is_some());
        assert!((0..1000).all(|_| !record_lap(&mut trial, SHARED_CACHE_COST)));
    }

    #[test]
    fn f1_failed_trials_become_less_and_less_frequent() {
        let mut trial = RemoteTrial::new();
        let tried: Vec<u64> = (0..4)
            .map(|_| {
                let tried = laps_until(&mut trial, 2000, true).unwrap();
                assert_eq!(laps_until(&mut trial, 1900, false), Some(WARMUP_LAPS + TRIAL_LAPS));
                tried
            })
            .collect();
        assert_eq!(
            tried,
            [
                EVALUATION_LAPS,
                INITIAL_PATIENCE_ROUNDS,
                2 * INITIAL_PATIENCE_ROUNDS,
                4 * INITIAL_PATIENCE_ROUNDS
            ]
        );
    }

    #[test]
    fn f1_busy_or_unmeasured_writer_starts_no_trial() {
        let mut trial = RemoteTrial::new();
        assert!(
            (0..1000).all(|at| !record_lap(
                &mut trial,
                if at % 3 == 0 { SHARED_CACHE_COST } else { 2000 }
            ))
        );
        assert!((0..1000).all(|_| !record_lap(&mut trial, 100_000)), "slower than any line");
        assert!((0..1000).all(|_| !trial.record(None)));
    }
}
