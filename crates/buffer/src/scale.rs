//! Sizing of a ring, decided once per lap from its fill level. [SL §5.4]
//!
//! A larger ring saves task switches, a smaller ring saves cache misses; which of the two costs
//! more is known only at run time. A *round* ends when the writer reaches the end of the ring.
//! *Pressure* is the distance between writer and slowest reader relative to the size of the ring.
//! Above the high-water mark the ring doubles, below the low-water mark it halves. If the capacity
//! changes in place (deck-cut), the marks are closer together.
//!
//! This module only decides on the size: its input is the measurements of a round, its output the
//! new size with a reason. It accesses neither a ring nor a clock. Deviations from the paper,
//! measured on current machines (BASELINES, working set):
//! - If the writer found the ring full once in a round, the pressure counts as 100 %, because the
//!   distance when the writer wraps then depends only on the phase of the two sides.
//! - More than one cache matters. A writer and a reader that alternate on one processor benefit
//!   from few task switches: their ring grows beyond the second-level cache, whose misses cost less
//!   than a task switch. If the reader takes each block immediately, the ring never grows and fits
//!   into the second-level cache. On two processors, the reader fetches data fastest from the
//!   shared third-level cache: data that is still in the writer's second-level cache arrives at a
//!   fraction of that rate, and other programs leave less than half of the third-level cache free.
//!   On two processors, one size is therefore best at any pressure. The reader's last published
//!   processor selects the size range. For processors without a shared cache see `remote`.
//! - A ring that was full does not shrink for some rounds. The number of rounds doubles each time
//!   the ring is full again after it has shrunk. Otherwise a writer and a reader that alternate, so
//!   that the ring is full in one round and nearly empty in the next, would resize it forever.

#[cfg(not(loom))]
mod lap;
mod remote;
#[cfg(not(loom))]
mod window;

#[cfg(not(loom))]
pub(crate) use lap::Scaler;
pub use remote::LapTiming;
#[cfg(not(loom))]
pub use window::SegmentWindow;

use remote::RemoteTrial;
use std::fmt;
use std::ops::RangeInclusive;

/// Parameters for sizing a ring automatically: ranges of sizes, and water marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScalingParameters {
    /// Minimum and maximum size in bytes if the writer and the reader share a processor.
    pub same_processor: (usize, usize),
    /// Minimum and maximum size in bytes if the writer and the reader run on different processors
    /// that share a cache.
    pub shared_cache: (usize, usize),
    /// Size in bytes if the writer and the reader share no cache. If this size does not exceed the
    /// maximum of `shared_cache`, the sizes of `shared_cache` apply.
    pub remote: usize,
    /// Low-water mark: pressure in percent below which the ring shrinks.
    pub low: u8,
    /// High-water mark: pressure in percent above which the ring grows.
    pub high: u8,
}

impl ScalingParameters {
    /// Returns parameters for a ring that is resized by reallocation, given the sizes of the data
    /// caches in bytes, level 1 first.
    #[must_use]
    pub fn for_reallocation(caches: &[usize]) -> Self {
        let level =
            |at: usize| caches.get(at).copied().filter(|b| (1..=CACHE_SIZE_MAX).contains(b));
        let private = level(1).unwrap_or(1 << 20);
        let shared = level(2).unwrap_or(4 * private);
        let size = |bytes: usize| (bytes.max(SIZE_MIN) + 1).next_power_of_two() / 2;
        Self {
            same_processor: (size(private / 4), size(shared / 8)),
            shared_cache: (size(shared / 8), size(shared / 8)),
            remote: if shared <= REMOTE_SIZE_MAX / 2 { size(2 * shared) } else { size(shared / 8) },
            low: 25,
            high: 75,
        }
    }

    /// Returns parameters for a ring that is resized in place, given the sizes of the data caches
    /// in bytes, level 1 first. The water marks are closer together than in
    /// [`ScalingParameters::for_reallocation`], because resizing in place costs almost nothing. The
    /// ring never exceeds the caches, since the memory for a larger ring would have to be reserved
    /// from the start.
    #[must_use]
    pub fn for_in_place_resizing(caches: &[usize]) -> Self {
        Self { low: 40, high: 60, remote: 0, ..Self::for_reallocation(caches) }
    }

    /// Returns parameters for rings of pointers within one process, with sizes from `least` to
    /// `most` bytes. The size depends only on the pressure, and not on the processors of the writer
    /// and the reader: the caches matter little, because only the entries, not the blocks, pass
    /// through the ring (decision 0093).
    #[must_use]
    pub const fn for_pointers(least: usize, most: usize) -> Self {
        let range = (least, most);
        Self { same_processor: range, shared_cache: range, remote: 0, low: 25, high: 75 }
    }

    /// Returns these parameters with a lower bound of `least` bytes on every size except `remote`.
    #[must_use]
    pub fn with_minimum_size(self, least: usize) -> Self {
        let beyond = |(low, high): (usize, usize)| (low.max(least), high.max(least));
        Self {
            same_processor: beyond(self.same_processor),
            shared_cache: beyond(self.shared_cache),
            ..self
        }
    }

    /// Returns these parameters with every size limited to `most` bytes.
    #[must_use]
    pub fn with_maximum_size(self, most: usize) -> Self {
        let within = |(low, high): (usize, usize)| (low.min(most), high.min(most));
        let (same_processor, shared_cache) =
            (within(self.same_processor), within(self.shared_cache));
        Self { same_processor, shared_cache, remote: self.remote.min(most), ..self }
    }

    /// Returns the minimum and maximum size in bytes, whichever processors the writer and the
    /// reader run on.
    #[must_use]
    pub fn size_bounds(&self) -> (usize, usize) {
        let most = self.same_processor.1.max(self.shared_cache.1).max(self.remote);
        (self.same_processor.0.min(self.shared_cache.0), most)
    }

    const fn size_range(&self, sides: SidePlacement) -> RangeInclusive<usize> {
        let (least, most) = match sides {
            SidePlacement::SameProcessor => self.same_processor,
            SidePlacement::DifferentProcessors => self.shared_cache,
        };
        least..=most
    }
}

/// Largest plausible cache size in bytes.
const CACHE_SIZE_MAX: usize = 1 << 32;
/// Maximum size in bytes of a ring between processors without a shared cache.
const REMOTE_SIZE_MAX: usize = 256 << 20;
/// Minimum size in bytes of a self-sizing ring.
const SIZE_MIN: usize = 16 << 10;

/// The relative placement of a ring's writer and reader: on one processor, or on different ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SidePlacement {
    /// The writer and the reader run on the same processor.
    SameProcessor,
    /// The writer and the reader run on different processors, or their processors are unknown.
    DifferentProcessors,
}

/// The measurements of a ring in one round, which ends when the writer reaches the end of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoundMeasurements {
    /// Size of the ring in bytes.
    pub capacity: usize,
    /// Distance in bytes between the writer and the slowest reader at the moment when the writer
    /// reached the end of the ring.
    pub distance: usize,
    /// True if the writer found the ring full in this round.
    pub was_full: bool,
    /// Placement of the writer and the reader in this round.
    pub sides: SidePlacement,
    /// Time that the writer took to write some bytes of the round; `None` if the writer never wrote
    /// two batches without a wait in between.
    pub timing: Option<LapTiming>,
}

/// A reason for the size of a ring. The pressure is the unread part of the ring in
/// percent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeReason {
    /// The ring keeps its size, because the pressure is between the low-water and the high-water
    /// mark.
    Fits,
    /// The ring grows, because the pressure is above the high-water mark.
    Pressure,
    /// The ring shrinks, because the pressure is below the low-water mark.
    Slack,
    /// The ring shrinks, because it is larger than the parameters allow for the caches of the
    /// writer's and reader's processors.
    AboveMaximum,
    /// The ring grows, because it is smaller than the minimum that the parameters set for the
    /// writer's and reader's processors.
    BelowMinimum,
    /// The ring is larger than all caches, because its processors share no cache and the larger
    /// ring is faster or on trial.
    Remote,
    /// The ring keeps its size, because the pressure calls for a size beyond its minimum or
    /// maximum.
    Bound,
    /// The ring keeps its size, because it was full recently and may not shrink yet.
    WasFull,
}

/// The decision on the size after a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeDecision {
    /// Size of the ring in bytes after the decision; may equal the previous size.
    pub capacity: usize,
    /// Reason why the ring gets this size.
    pub why: SizeReason,
}

/// The state of the automatic sizing of one ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizingState {
    scaling: ScalingParameters,
    /// Number of rounds so far.
    pub rounds: u64,
    /// Number of times that the ring has grown.
    pub grown: u64,
    /// Number of times that the ring has shrunk.
    pub shrunk: u64,
    /// Measurements of the last round, and the decision that followed them. `None` before the end
    /// of the first round.
    pub last: Option<(RoundMeasurements, SizeDecision)>,
    /// Measurements of the last round after which the size of the ring changed, and the decision
    /// that followed the round. `None` if the size has not changed.
    last_change: Option<(RoundMeasurements, SizeDecision)>,
    /// Number of the round from which on the ring may shrink again. Until then it may not, because
    /// it was full recently.
    shrinkable_from_round: u64,
    /// Number of rounds for which the ring may not shrink after it was full. Doubles if the ring is
    /// full again after it has shrunk.
    shrink_pause_rounds: u64,
    /// True if the ring has shrunk since it was last full.
    has_shrunk: bool,
    remote: RemoteTrial,
}

impl SizingState {
    /// Creates the state before the first round.
    #[must_use]
    pub const fn new(scaling: ScalingParameters) -> Self {
        Self {
            scaling,
            rounds: 0,
            grown: 0,
            shrunk: 0,
            last: None,
            last_change: None,
            shrinkable_from_round: 0,
            shrink_pause_rounds: INITIAL_PATIENCE_ROUNDS,
            has_shrunk: false,
            remote: RemoteTrial::new(),
        }
    }

    /// Returns the minimum and maximum size of the ring in bytes, whichever processors the writer
    /// and the reader run on.
    #[must_use]
    pub fn size_bounds(&self) -> (usize, usize) {
        self.scaling.size_bounds()
    }

    /// Decides on the size of the ring at the end of a round, from the measurements of this round.
    pub fn decide_size(&mut self, round: RoundMeasurements) -> SizeDecision {
        self.rounds += 1;
        let step = if self.should_exceed_caches(&round) {
            SizeDecision { capacity: self.scaling.remote, why: SizeReason::Remote }
        } else {
            self.next_size_decision(round)
        };
        if round.was_full {
            if std::mem::take(&mut self.has_shrunk) {
                self.shrink_pause_rounds = (self.shrink_pause_rounds * 2).min(PATIENCE_ROUNDS_MAX);
            }
            self.shrinkable_from_round = self.rounds + self.shrink_pause_rounds;
        }
        self.has_shrunk |= step.why == SizeReason::Slack;
        self.last = Some((round, step));
        step
    }

    /// Counts the last decision as a growth or a shrinkage of the ring. Call this after the ring
    /// was resized as decided, and not if the resize failed.
    pub fn count_applied_change(&mut self) {
        if let Some((round, step)) = &self.last {
            self.grown += u64::from(step.capacity > round.capacity);
            self.shrunk += u64::from(step.capacity < round.capacity);
            self.last_change = self.last;
        }
    }

    /// Describes the reason for the last change of size. Returns an empty string if the size has
    /// not changed.
    #[must_use]
    pub fn last_change_reason(&self) -> String {
        self.last_change.map_or_else(String::new, |(round, step)| self.describe(&round, step.why))
    }

    fn describe(&self, round: &RoundMeasurements, why: SizeReason) -> String {
        let (pressure, ScalingParameters { low, high, .. }) =
            (pressure_percent(round), self.scaling);
        match why {
            SizeReason::Fits => format!("pressure {pressure} % is between {low} and {high} %"),
            SizeReason::Pressure if round.was_full => "the ring was full".to_owned(),
            SizeReason::Pressure => format!("pressure {pressure} % is above {high} %"),
            SizeReason::Slack => format!("pressure {pressure} % is below {low} %"),
            SizeReason::AboveMaximum => "the ring was larger than the cache".to_owned(),
            SizeReason::BelowMinimum => "two processors share a larger cache".to_owned(),
            SizeReason::Remote => "two processors share no cache, and memory is faster".to_owned(),
            SizeReason::Bound => format!("pressure {pressure} %, but the size is at its limit"),
            SizeReason::WasFull => format!("pressure {pressure} %, but it was full not long ago"),
        }
    }

    /// Returns true if the ring should be larger than the caches, as decided by a trial that
    /// compares the two sizes. Passes the timing of the round to the trial if the ring already has
    /// the size to be measured. Ends the trial and returns false if the writer and the reader share
    /// a processor, or if the parameters allow no size beyond the caches.
    fn should_exceed_caches(&mut self, round: &RoundMeasurements) -> bool {
        let range = self.scaling.size_range(SidePlacement::DifferentProcessors);
        if round.sides == SidePlacement::SameProcessor || self.scaling.remote <= *range.end() {
            self.remote.stop();
            return false;
        }
        let settled = if self.remote.is_on {
            round.capacity == self.scaling.remote
        } else {
            range.contains(&round.capacity)
        };
        if settled { self.remote.record(round.timing) } else { self.remote.is_on }
    }

    fn next_size_decision(&self, round: RoundMeasurements) -> SizeDecision {
        let RoundMeasurements { capacity, sides, .. } = round;
        let range = self.scaling.size_range(sides);
        let to = |capacity, why| SizeDecision { capacity, why };
        if capacity > *range.end() {
            return to(capacity / 2, SizeReason::AboveMaximum);
        }
        if capacity < *range.start() {
            return to(capacity * 2, SizeReason::BelowMinimum);
        }
        let pressure = pressure_percent(&round);
        if pressure > self.scaling.high {
            return if capacity == *range.end() {
                to(capacity, SizeReason::Bound)
            } else {
                to(capacity * 2, SizeReason::Pressure)
            };
        }
        if pressure >= self.scaling.low {
            return to(capacity, SizeReason::Fits);
        }
        match capacity / 2 {
            half if half < *range.start() => to(capacity, SizeReason::Bound),
            _ if self.rounds < self.shrinkable_from_round => to(capacity, SizeReason::WasFull),
            half => to(half, SizeReason::Slack),
        }
    }
}

/// Initial number of rounds for which a ring may not shrink after it was full.
const INITIAL_PATIENCE_ROUNDS: u64 = 64;
const PATIENCE_ROUNDS_MAX: u64 = 1 << 20;

/// Returns the pressure of a round in percent.
fn pressure_percent(round: &RoundMeasurements) -> u8 {
    if round.was_full {
        return 100;
    }
    let share = round.distance.saturating_mul(100) / round.capacity.max(1);
    u8::try_from(share.min(100)).unwrap_or(100)
}

impl fmt::Display for SizingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rounds, grown {}, shrunk {}", self.rounds, self.grown, self.shrunk)?;
        let Some((round, step)) = &self.last else { return Ok(()) };
        write!(f, "; {} KB: {}", step.capacity >> 10, self.describe(round, step.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of the data caches in these tests: 48 KB, 1 MB and 32 MB.
    const CACHES: [usize; 3] = [48 << 10, 1 << 20, 32 << 20];

    /// Simulates a ring of initially `from` bytes for `rounds` rounds. Returns the size of the ring
    /// after each round. `round` returns the measurements of a round, given the current size.
    fn sizes_after_rounds(
        scale: &mut SizingState,
        from: usize,
        rounds: usize,
        round: impl Fn(usize) -> RoundMeasurements,
    ) -> Vec<usize> {
        let mut capacity = from;
        let next = |_| {
            capacity = scale.decide_size(round(capacity)).capacity;
            scale.count_applied_change();
            capacity
        };
        (0..rounds).map(next).collect()
    }

    fn round_at(capacity: usize, distance: usize, sides: SidePlacement) -> RoundMeasurements {
        RoundMeasurements { capacity, distance, was_full: false, sides, timing: None }
    }

    /// The ring shrinks to its smallest size if the reader takes each block immediately, and grows
    /// to the largest size that fits into the cache if the reader is always late.
    #[test]
    fn f1_f5_pressure_decides_within_cache_bounds() {
        let mut scale = SizingState::new(ScalingParameters::for_reallocation(&CACHES));
        let on_same =
            |distance: usize| move |c| round_at(c, distance, SidePlacement::SameProcessor);
        let down = sizes_after_rounds(&mut scale, 16 << 20, 12, on_same(64));
        assert_eq!(down[..4], [8 << 20, 4 << 20, 2 << 20, 1 << 20], "half of it each round");
        assert_eq!(down[11], 256 << 10);
        let full = |c| RoundMeasurements {
            was_full: true,
            ..round_at(c, 0, SidePlacement::SameProcessor)
        };
        assert_eq!(sizes_after_rounds(&mut scale, SIZE_MIN, 9, full)[8], 4 << 20);
        let on_different = |c| round_at(c, c * 9 / 10, SidePlacement::DifferentProcessors);
        assert_eq!(sizes_after_rounds(&mut scale, SIZE_MIN, 20, on_different)[19], 4 << 20);
        let slack = |c| round_at(c, 0, SidePlacement::DifferentProcessors);
        let mut fresh = SizingState::new(ScalingParameters::for_reallocation(&CACHES));
        assert_eq!(sizes_after_rounds(&mut fresh, 64 << 20, 20, slack)[19], 4 << 20);
        assert!(scale.to_string().starts_with("41 rounds, grown "), "{scale}");
    }

    /// Processors without a shared cache get a ring that exceeds all caches. The ring shrinks again
    /// when the writer and the reader run on one processor.
    #[test]
    fn f1_remote_processors_get_ring_beyond_all_caches() {
        let mut scale = SizingState::new(ScalingParameters::for_reallocation(&CACHES));
        let slow = |capacity: usize| RoundMeasurements {
            timing: Some(LapTiming {
                bytes: 4096,
                ns: if capacity > 8 << 20 { 400 } else { 2000 },
            }),
            ..round_at(capacity, 0, SidePlacement::DifferentProcessors)
        };
        let sizes_apart = sizes_after_rounds(&mut scale, 16 << 20, 60, slow);
        assert_eq!(sizes_apart[..3], [8 << 20, 4 << 20, 4 << 20], "near, as far as is known");
        assert_eq!(sizes_apart[59], 64 << 20, "{scale}");
        let on_same = |c| round_at(c, 0, SidePlacement::SameProcessor);
        assert_eq!(sizes_after_rounds(&mut scale, 64 << 20, 9, on_same)[8], 256 << 10);
        let mut cut = SizingState::new(ScalingParameters::for_in_place_resizing(&CACHES));
        assert_eq!(
            sizes_after_rounds(&mut cut, 16 << 20, 60, slow)[59],
            4 << 20,
            "there is no such memory"
        );
    }

    /// The water marks for resizing in place (deck-cut) are closer together than those for
    /// reallocation: a resize in place is nearly free, so the ring follows the pressure more
    /// closely.
    #[test]
    fn f3_deck_cut_has_closer_marks() {
        let third = |c| round_at(c, c / 3, SidePlacement::SameProcessor);
        let mut moved = SizingState::new(ScalingParameters::for_reallocation(&CACHES));
        assert_eq!(sizes_after_rounds(&mut moved, 512 << 10, 9, third)[8], 512 << 10);
        let mut cut = SizingState::new(ScalingParameters::for_in_place_resizing(&CACHES));
        assert_eq!(sizes_after_rounds(&mut cut, 512 << 10, 9, third)[8], 256 << 10);
    }

    #[test]
    fn ring_that_was_full_shrinks_less_and_less_often() {
        let mut scale = SizingState::new(ScalingParameters {
            same_processor: (SIZE_MIN, 1 << 20),
            ..ScalingParameters::for_reallocation(&CACHES)
        });
        // Full at 64 KB, nearly empty at twice that.
        let round = |c| RoundMeasurements {
            was_full: c <= 64 << 10,
            ..round_at(c, 0, SidePlacement::SameProcessor)
        };
        let changes = |sizes: &[usize]| sizes.windows(2).filter(|two| two[0] != two[1]).count();
        let early = sizes_after_rounds(&mut scale, 256 << 10, 200, round);
        let late = sizes_after_rounds(&mut scale, *early.last().unwrap(), 2000, round);
        assert!(early.iter().chain(&late).all(|size| (64 << 10..=256 << 10).contains(size)));
        assert!(changes(&early) >= 3 && changes(&late) < 12, "{}", changes(&late));
    }

    #[test]
    fn every_machine_gets_valid_bounds() {
        for caches in
            [&[][..], &[0], &[32 << 10], &[32 << 10, 256 << 10], &CACHES, &[usize::MAX; 3]]
        {
            let scaling = ScalingParameters::for_reallocation(caches);
            for (least, most) in [scaling.same_processor, scaling.shared_cache] {
                assert!(least.is_power_of_two() && most.is_power_of_two() && least <= most);
            }
        }
    }
}
