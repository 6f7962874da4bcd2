//! Two processors that have no cache in common: whether a ring that no cache holds is better.
//!
//! What one processor has just read or written, another one that is far away gets at a fraction of
//! the rate of memory: a line has to be asked for, and given up. A ring that is larger than both
//! their caches has left them when the writer comes round again, and is written at the rate of
//! memory (`bench scale`, two cores, far: 64 MB five times as fast as 4 MB; near, a third).
//!
//! Which of them it is nobody says, and it may change while it runs. So the writer looks how long
//! some blocks take in each lap, its own work included. Where that is as long as lines from far
//! away would take, in most laps, the largest ring is tried, kept if blocks are much faster there,
//! and given up again where they are not: it was the writer's work. It is given up now and then
//! also where they are, since nothing else would find out that the processors have come near.

use super::{PATIENCE, PATIENCE_MAX};

/// The time that some blocks took, in a lap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Their bytes.
    pub bytes: u64,
    /// Time to write them, in ns.
    pub ns: u64,
}

impl Taken {
    /// In ns for 4 KB.
    fn cost(self) -> u64 {
        self.ns.saturating_mul(4096) / self.bytes.max(1)
    }
}

/// 4 KB take 80 to 120 ns where processors are near, and 1500 to 2500 where they are far. Who
/// takes longer than that does something else.
const WAITS: std::ops::Range<u64> = 600..5000;
/// So many laps are looked at together.
const LAPS: u64 = 16;
/// So many slow ones among them are no accident.
const SLOW: u64 = 12;
/// The first laps in new memory are those in which it is given its pages.
const FRESH: u64 = 2;
/// So many laps after those are judged.
const JUDGED: u64 = 4;
/// The larger ring is kept where a copy takes at most so many per cent of what it took.
const ENOUGH: u64 = 70;
/// After so many laps in the larger ring the other one is looked at again.
const AGAIN: u64 = 256;

/// The comparison of sizes within and beyond the caches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Far {
    /// True if the ring is to exceed the caches.
    pub(super) is_on: bool,
    /// Laps since that changed, or of those that are looked at together.
    laps: u64,
    /// Slow laps among them.
    slow: u64,
    /// Cost of blocks: summed over slow laps, the least of them on trial.
    cost: u64,
    /// Their cost in the smaller ring.
    before: u64,
    /// In the smaller ring: laps before the larger one is tried again.
    pause: u64,
    patience: u64,
}

impl Far {
    pub(super) const fn new() -> Self {
        Self { is_on: false, laps: 0, slow: 0, cost: 0, before: 0, pause: 0, patience: PATIENCE }
    }

    /// Takes note of a lap, and answers whether the ring is to be larger than the caches.
    pub(super) fn note(&mut self, taken: Option<Taken>) -> bool {
        let cost = taken.map(Taken::cost);
        if self.is_on {
            self.judge(cost);
        } else {
            self.look(cost);
        }
        self.is_on
    }

    /// Both sides share a processor, or too little is known.
    pub(super) fn is_near(&mut self) {
        self.turn(false);
    }

    fn turn(&mut self, is_on: bool) {
        (self.is_on, self.laps, self.slow, self.cost) = (is_on, 0, 0, 0);
    }

    fn look(&mut self, cost: Option<u64>) {
        self.pause = self.pause.saturating_sub(1);
        self.laps += 1;
        if let Some(cost) = cost.filter(|cost| WAITS.contains(cost)) {
            self.cost += cost;
            self.slow += 1;
        }
        if self.laps < LAPS {
            return;
        }
        let is_slow = self.slow >= SLOW && self.pause == 0;
        self.before = self.cost / self.slow.max(1);
        self.turn(is_slow);
    }

    fn judge(&mut self, cost: Option<u64>) {
        self.laps += 1;
        if (FRESH + 1..=FRESH + JUDGED).contains(&self.laps)
            && let Some(cost) = cost
        {
            self.cost = if self.cost == 0 { cost.max(1) } else { self.cost.min(cost) };
        }
        if self.laps == FRESH + JUDGED {
            // Nothing was copied that could be looked at: nothing was gained either.
            let is_better = self.cost > 0 && self.cost * 100 <= self.before * ENOUGH;
            if is_better {
                self.patience = PATIENCE;
            } else {
                self.pause = self.patience;
                self.patience = (self.patience * 2).min(PATIENCE_MAX);
                self.turn(false);
            }
        } else if self.laps >= AGAIN {
            self.turn(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR_COST: u64 = 80;

    fn lap(far: &mut Far, ns: u64) -> bool {
        far.note(Some(Taken { bytes: 65_536, ns: 16 * ns }))
    }

    /// Laps until this becomes so; none: it does not within a thousand.
    fn until(far: &mut Far, ns: u64, is_on: bool) -> Option<u64> {
        (1..1000).find(|_| lap(far, ns) == is_on)
    }

    #[test]
    fn f1_who_waits_for_lines_tries_the_largest_ring_and_keeps_it_where_that_helps() {
        let mut far = Far::new();
        assert!((0..1000).all(|_| !lap(&mut far, NEAR_COST)), "near nothing is ever tried");
        assert!(until(&mut far, 2000, true).is_some_and(|laps| laps < 2 * LAPS));
        // First touches of memory count for nothing; then it is much faster.
        assert!((0..FRESH).all(|_| lap(&mut far, 9000)));
        assert!((0..AGAIN - FRESH - 1).all(|_| lap(&mut far, 400)));
        assert!(!lap(&mut far, 400), "now and then the other one is looked at");
        assert_eq!(until(&mut far, 2000, true), Some(LAPS), "and left again");
        // Meanwhile the processors have come near: the larger one is no faster now than it was.
        assert!(until(&mut far, 400, false).is_some());
        assert!((0..1000).all(|_| !lap(&mut far, NEAR_COST)));
    }

    #[test]
    fn f1_where_the_largest_ring_does_not_help_it_is_tried_ever_more_seldom() {
        let mut far = Far::new();
        let tried: Vec<u64> = (0..4)
            .map(|_| {
                let tried = until(&mut far, 2000, true).unwrap();
                assert_eq!(until(&mut far, 1900, false), Some(FRESH + JUDGED));
                tried
            })
            .collect();
        assert_eq!(tried, [LAPS, PATIENCE, 2 * PATIENCE, 4 * PATIENCE]);
    }

    #[test]
    fn f1_a_writer_with_work_of_its_own_and_one_without_a_figure_keep_their_size() {
        let mut far = Far::new();
        assert!((0..1000).all(|at| !lap(&mut far, if at % 3 == 0 { NEAR_COST } else { 2000 })));
        assert!((0..1000).all(|_| !lap(&mut far, 100_000)), "slower than any line");
        assert!((0..1000).all(|_| !far.note(None)));
    }
}
