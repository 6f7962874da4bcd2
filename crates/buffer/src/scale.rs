//! Sizing of a ring, decided once a round from how full it was. [SL §5.4]
//!
//! A larger ring saves task switches, a smaller one cache misses; which of them costs more is known
//! only while it runs. A *round* ends when the writer comes to the end of the ring. *Pressure* is
//! the distance between writer and slowest reader over the size of the ring. Above the high-water
//! mark the ring doubles, below the low one it halves. Where it moves in place (deck-cut), the
//! marks lie closer together.
//!
//! This is the decision alone: it knows no ring, no clock and no machine; figures come in, a step
//! comes out, and why. Deviations, measured on today's machines (BASELINES, working set):
//! - A writer that found the ring full once in a round counts as pressure 100 %: its distance when
//!   it wraps says only where in their turns the two sides are.
//! - What fits is not one cache. Two sides that take turns on one processor want few turns: the
//!   ring grows beyond the second level, whose misses cost less than a task switch. A reader that
//!   takes each block at once never lets it grow, and gets what fits the second level. On two
//!   processors, what one writes the other fetches best from the third level, which they share: out
//!   of the other's second level it comes at a fraction of that rate, and half of the third is more
//!   than others leave. So there one size is best, whatever the pressure; and where the reader was
//!   last seen says which range holds. Processors that share no cache are another matter (`far`).
//! - A ring that was full does not become smaller for some rounds, and for more of them each time
//!   that this was too soon: else sides that take turns, where the ring is full in one round and
//!   nearly empty in the next, would change its size for ever.

mod far;

pub use far::Taken;

use far::Far;
use std::fmt;
use std::ops::RangeInclusive;

/// The rule by which a ring is sized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scaling {
    /// Least and largest size in bytes where both sides share a processor.
    pub together: (usize, usize),
    /// Least and largest size in bytes where they do not.
    pub apart: (usize, usize),
    /// The size where they do not, and no cache is near to both; less than `apart`: the same.
    pub far: usize,
    /// Below this pressure, in per cent, the ring becomes smaller.
    pub low: u8,
    /// Above this pressure, in per cent, the ring becomes larger.
    pub high: u8,
}

impl Scaling {
    /// For a machine with these data caches, level 1 first, where a ring moves to new memory.
    #[must_use]
    pub fn reallocation(caches: &[usize]) -> Self {
        let level = |at: usize| caches.get(at).copied().filter(|b| (1..=CACHE_MAX).contains(b));
        let private = level(1).unwrap_or(1 << 20);
        let shared = level(2).unwrap_or(4 * private);
        let size = |bytes: usize| (bytes.max(LEAST) + 1).next_power_of_two() / 2;
        Self {
            together: (size(private / 4), size(shared / 8)),
            apart: (size(shared / 8), size(shared / 8)),
            far: if shared <= FAR_MAX / 2 { size(2 * shared) } else { size(shared / 8) },
            low: 25,
            high: 75,
        }
    }

    /// As [`Scaling::reallocation`], where the size changes in place: the marks lie closer
    /// together, as a step costs next to nothing.
    #[must_use]
    pub fn deck_cut(caches: &[usize]) -> Self {
        // Memory for the case that processors are far would have to be there from the beginning.
        Self { low: 40, high: 60, far: 0, ..Self::reallocation(caches) }
    }

    const fn range(&self, sides: Sides) -> RangeInclusive<usize> {
        let (least, most) = match sides {
            Sides::Together => self.together,
            Sides::Apart => self.apart,
        };
        least..=most
    }
}

/// A larger figure is no cache.
const CACHE_MAX: usize = 1 << 32;
/// No ring becomes larger than this because processors are far from each other.
const FAR_MAX: usize = 256 << 20;
/// No ring becomes smaller than this by itself.
const LEAST: usize = 16 << 10;

/// The relative location of writer and reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sides {
    /// On the same processor.
    Together,
    /// On two, as far as is known.
    Apart,
}

/// The observations of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round {
    /// Bytes that the ring holds.
    pub capacity: usize,
    /// Bytes between the writer and the slowest reader when the writer wrapped.
    pub distance: usize,
    /// True if the writer found the ring full.
    pub was_full: bool,
    /// Relative location of both sides.
    pub sides: Sides,
    /// Time per block; `None`: the writer never wrote two batches without a wait.
    pub taken: Option<Taken>,
}

/// The reason for which a ring became larger or smaller, or did not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Pressure between the marks.
    Fits,
    /// Pressure above the high-water mark.
    Pressure,
    /// Pressure below the low-water mark.
    Slack,
    /// Larger than what caches hold.
    Cache,
    /// Smaller than what is worth it for two processors.
    Small,
    /// The processors share no cache, and what none holds is faster, or may be.
    Far,
    /// As large or as small as it may be.
    Bound,
    /// It was full not long ago.
    WasFull,
}

/// The decision after a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The size from now on.
    pub capacity: usize,
    /// The reason.
    pub why: Why,
}

/// The state of the decisions so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scale {
    scaling: Scaling,
    /// Rounds that have ended.
    pub rounds: u64,
    /// Times that the ring became larger.
    pub grown: u64,
    /// Times that the ring became smaller.
    pub shrunk: u64,
    /// The last round and its decision.
    pub last: Option<(Round, Step)>,
    /// Before this round the ring does not become smaller.
    patient_until: u64,
    /// For how many rounds it does not, once it was full.
    patience: u64,
    /// It has become smaller since it was last full.
    has_shrunk: bool,
    far: Far,
}

impl Scale {
    /// Nothing yet.
    #[must_use]
    pub const fn new(scaling: Scaling) -> Self {
        Self {
            scaling,
            rounds: 0,
            grown: 0,
            shrunk: 0,
            last: None,
            patient_until: 0,
            patience: PATIENCE,
            has_shrunk: false,
            far: Far::new(),
        }
    }

    /// Decides after a round.
    pub fn decide(&mut self, round: Round) -> Step {
        self.rounds += 1;
        let step = if self.is_far(&round) {
            Step { capacity: self.scaling.far, why: Why::Far }
        } else {
            self.step(round)
        };
        if round.was_full {
            if std::mem::take(&mut self.has_shrunk) {
                self.patience = (self.patience * 2).min(PATIENCE_MAX);
            }
            self.patient_until = self.rounds + self.patience;
        }
        self.has_shrunk |= step.why == Why::Slack;
        self.last = Some((round, step));
        step
    }

    /// Says that the last step was taken: not every ring can always follow.
    pub fn taken(&mut self) {
        if let Some((round, step)) = &self.last {
            self.grown += u64::from(step.capacity > round.capacity);
            self.shrunk += u64::from(step.capacity < round.capacity);
        }
    }

    /// Returns true if the ring is to exceed the caches. The cost is known of the two sizes that
    /// are compared, and of no other.
    fn is_far(&mut self, round: &Round) -> bool {
        let range = self.scaling.range(Sides::Apart);
        if round.sides == Sides::Together || self.scaling.far <= *range.end() {
            self.far.is_near();
            return false;
        }
        let settled = if self.far.is_on {
            round.capacity == self.scaling.far
        } else {
            range.contains(&round.capacity)
        };
        if settled { self.far.note(round.taken) } else { self.far.is_on }
    }

    fn step(&self, round: Round) -> Step {
        let Round { capacity, sides, .. } = round;
        let range = self.scaling.range(sides);
        let to = |capacity, why| Step { capacity, why };
        if capacity > *range.end() {
            return to(capacity / 2, Why::Cache);
        }
        if capacity < *range.start() {
            return to(capacity * 2, Why::Small);
        }
        let pressure = pressure(&round);
        if pressure > self.scaling.high {
            return if capacity == *range.end() {
                to(capacity, Why::Bound)
            } else {
                to(capacity * 2, Why::Pressure)
            };
        }
        if pressure >= self.scaling.low {
            return to(capacity, Why::Fits);
        }
        match capacity / 2 {
            half if half < *range.start() => to(capacity, Why::Bound),
            _ if self.rounds < self.patient_until => to(capacity, Why::WasFull),
            half => to(half, Why::Slack),
        }
    }
}

/// So many rounds a ring that was full does not become smaller, at first and at most.
const PATIENCE: u64 = 64;
const PATIENCE_MAX: u64 = 1 << 20;

/// In per cent.
fn pressure(round: &Round) -> u8 {
    if round.was_full {
        return 100;
    }
    let share = round.distance.saturating_mul(100) / round.capacity.max(1);
    u8::try_from(share.min(100)).unwrap_or(100)
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rounds, grown {}, shrunk {}", self.rounds, self.grown, self.shrunk)?;
        let Some((round, step)) = &self.last else { return Ok(()) };
        let (pressure, Scaling { low, high, .. }) = (pressure(round), self.scaling);
        write!(f, "; {} KB", step.capacity >> 10)?;
        match step.why {
            Why::Fits => write!(f, ": pressure {pressure} % is between {low} and {high} %"),
            Why::Pressure => write!(f, ": pressure {pressure} % is above {high} %"),
            Why::Slack => write!(f, ": pressure {pressure} % is below {low} %"),
            Why::Cache => f.write_str(": the ring was larger than the cache"),
            Why::Small => f.write_str(": two processors share a larger cache"),
            Why::Far => f.write_str(": two processors share no cache, and memory is faster"),
            Why::Bound => write!(f, ": pressure {pressure} %, and as far as it may go"),
            Why::WasFull => write!(f, ": pressure {pressure} %, but it was full not long ago"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 48 KB, 1 MB and 32 MB.
    const CACHES: [usize; 3] = [48 << 10, 1 << 20, 32 << 20];

    /// The sizes of so many rounds, of a ring that is so full each time.
    fn sizes(
        scale: &mut Scale,
        from: usize,
        rounds: usize,
        round: impl Fn(usize) -> Round,
    ) -> Vec<usize> {
        let mut capacity = from;
        let next = |_| {
            capacity = scale.decide(round(capacity)).capacity;
            scale.taken();
            capacity
        };
        (0..rounds).map(next).collect()
    }

    fn seen(capacity: usize, distance: usize, sides: Sides) -> Round {
        Round { capacity, distance, was_full: false, sides, taken: None }
    }

    /// A reader of each block at once needs the smallest ring; one that is always behind gets what
    /// the cache holds.
    #[test]
    fn f1_f5_pressure_decides_between_the_bounds_of_the_caches() {
        let mut scale = Scale::new(Scaling::reallocation(&CACHES));
        let together = |distance: usize| move |c| seen(c, distance, Sides::Together);
        let down = sizes(&mut scale, 16 << 20, 12, together(64));
        assert_eq!(down[..4], [8 << 20, 4 << 20, 2 << 20, 1 << 20], "half of it each round");
        assert_eq!(down[11], 256 << 10);
        let full = |c| Round { was_full: true, ..seen(c, 0, Sides::Together) };
        assert_eq!(sizes(&mut scale, LEAST, 9, full)[8], 4 << 20);
        let apart = |c| seen(c, c * 9 / 10, Sides::Apart);
        assert_eq!(sizes(&mut scale, LEAST, 20, apart)[19], 4 << 20);
        let slack = |c| seen(c, 0, Sides::Apart);
        let mut fresh = Scale::new(Scaling::reallocation(&CACHES));
        assert_eq!(sizes(&mut fresh, 64 << 20, 20, slack)[19], 4 << 20);
        assert!(scale.to_string().starts_with("41 rounds, grown "), "{scale}");
    }

    /// Processors that share no cache get what no cache holds; on one it becomes small again.
    #[test]
    fn f1_far_processors_get_a_ring_that_no_cache_holds() {
        let mut scale = Scale::new(Scaling::reallocation(&CACHES));
        let slow = |capacity: usize| Round {
            taken: Some(Taken { bytes: 4096, ns: if capacity > 8 << 20 { 400 } else { 2000 } }),
            ..seen(capacity, 0, Sides::Apart)
        };
        let sizes_apart = sizes(&mut scale, 16 << 20, 60, slow);
        assert_eq!(sizes_apart[..3], [8 << 20, 4 << 20, 4 << 20], "near, as far as is known");
        assert_eq!(sizes_apart[59], 64 << 20, "{scale}");
        let together = |c| seen(c, 0, Sides::Together);
        assert_eq!(sizes(&mut scale, 64 << 20, 9, together)[8], 256 << 10);
        let mut cut = Scale::new(Scaling::deck_cut(&CACHES));
        assert_eq!(sizes(&mut cut, 16 << 20, 60, slow)[59], 4 << 20, "there is no such memory");
    }

    /// Marks of a cut lie closer together: where a step costs little the ring follows closer.
    #[test]
    fn f3_marks_of_a_cut_lie_closer_together() {
        let third = |c| seen(c, c / 3, Sides::Together);
        let mut moved = Scale::new(Scaling::reallocation(&CACHES));
        assert_eq!(sizes(&mut moved, 512 << 10, 9, third)[8], 512 << 10);
        let mut cut = Scale::new(Scaling::deck_cut(&CACHES));
        assert_eq!(sizes(&mut cut, 512 << 10, 9, third)[8], 256 << 10);
    }

    #[test]
    fn a_size_that_was_full_is_tried_again_ever_more_seldom() {
        let mut scale =
            Scale::new(Scaling { together: (LEAST, 1 << 20), ..Scaling::reallocation(&CACHES) });
        // Full at 64 KB, nearly empty at twice that.
        let round = |c| Round { was_full: c <= 64 << 10, ..seen(c, 0, Sides::Together) };
        let changes = |sizes: &[usize]| sizes.windows(2).filter(|two| two[0] != two[1]).count();
        let early = sizes(&mut scale, 256 << 10, 200, round);
        let late = sizes(&mut scale, *early.last().unwrap(), 2000, round);
        assert!(early.iter().chain(&late).all(|size| (64 << 10..=256 << 10).contains(size)));
        assert!(changes(&early) >= 3 && changes(&late) < 12, "{}", changes(&late));
    }

    #[test]
    fn every_machine_gets_bounds_that_are_sizes_of_rings() {
        for caches in
            [&[][..], &[0], &[32 << 10], &[32 << 10, 256 << 10], &CACHES, &[usize::MAX; 3]]
        {
            let scaling = Scaling::reallocation(caches);
            for (least, most) in [scaling.together, scaling.apart] {
                assert!(least.is_power_of_two() && most.is_power_of_two() && least <= most);
            }
        }
    }
}
