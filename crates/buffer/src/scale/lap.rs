//! Measurements of a ring's writer between two decisions on the size, for rings of bytes and rings
//! of pointers.

use super::{
    LapTiming, RoundMeasurements, ScalingParameters, SidePlacement, SizeDecision, SizingState,
};

/// The automatic sizing of a ring, as its writer uses it: the sizing state, and the measurements in
/// the current lap.
#[derive(Debug)]
pub(crate) struct Scaler {
    pub(crate) scale: SizingState,
    /// True if the writer has found the ring full since the last decision on the size.
    was_full: bool,
    /// Head position at the last decision on the size; 0 before the first block, when there is
    /// nothing to decide.
    decided_at: u64,
    /// Start of the time measurement that is running: head position, and time in nanoseconds.
    /// `None` if none is running.
    started: Option<(u64, u64)>,
    /// Result of the time measurement in this lap. `None` until the measurement has ended.
    timing: Option<LapTiming>,
}

impl Scaler {
    pub(crate) const fn new(scaling: ScalingParameters) -> Self {
        Self {
            scale: SizingState::new(scaling),
            was_full: false,
            decided_at: 0,
            started: None,
            timing: None,
        }
    }

    /// Starts the time measurement of this lap, or ends it if it is running. Does nothing if it has
    /// ended. The writer calls this at position `head` whenever it takes its slow path, and the
    /// clock is read at most twice per lap, and once more for each wait.
    pub(crate) fn measure_lap(&mut self, head: u64) {
        if self.timing.is_some() {
            return;
        }
        let now = sys::clock::monotonic_ns();
        match self.started.take() {
            Some((from, then)) if head > from => {
                self.timing = Some(LapTiming { bytes: head - from, ns: now.saturating_sub(then) });
            }
            _ => self.started = Some((head, now)),
        }
    }

    /// Records that the writer is waiting because the ring is full. Cancels the time measurement of
    /// this lap, because the time would include the wait.
    pub(crate) const fn record_wait(&mut self) {
        (self.was_full, self.started) = (true, None);
    }

    /// Decides on the size of the ring at the end of a lap, at position `head`. `capacity` is the
    /// size of the ring in bytes, and `distance` returns the number of unread bytes. Returns `None`
    /// if a decision has already been made at this position.
    pub(crate) fn end_lap(
        &mut self,
        head: u64,
        capacity: usize,
        sides: SidePlacement,
        distance: impl FnOnce() -> usize,
    ) -> Option<SizeDecision> {
        if self.decided_at == head {
            return None;
        }
        self.decided_at = head;
        let distance = distance();
        let was_full = std::mem::take(&mut self.was_full);
        let timing = self.timing.take();
        self.started = None;
        Some(self.scale.decide_size(RoundMeasurements {
            capacity,
            distance,
            was_full,
            sides,
            timing,
        }))
    }
}
