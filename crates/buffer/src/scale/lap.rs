//! Measurements of a ring's writer between two decisions on the size, the same for rings of bytes
//! and of pointers.

use super::{LapTiming, Round, Scale, Scaling, Sides, Step};

/// The measurements of one ring's writer in the current lap, and the state of its self-sizing.
#[derive(Debug)]
pub(crate) struct Scaler {
    pub(crate) scale: Scale,
    /// True if the ring was full since the last decision.
    was_full: bool,
    /// Head position at the last decision.
    decided_at: Option<u64>,
    /// Head position and time in nanoseconds at the start of the current measurement.
    started: Option<(u64, u64)>,
    /// Result of the measurement in this lap.
    timing: Option<LapTiming>,
}

impl Scaler {
    pub(crate) const fn new(scaling: Scaling) -> Self {
        Self {
            scale: Scale::new(scaling),
            was_full: false,
            decided_at: None,
            started: None,
            timing: None,
        }
    }

    /// Starts or ends the time measurement of this lap; reads the clock twice per lap. To be called
    /// when the writer takes its slow path at `head`.
    pub(crate) fn measure_lap(&mut self, head: u64) {
        if self.timing.is_some() {
            return;
        }
        let now = sys::clock::monotonic();
        match self.started.take() {
            Some((from, then)) if head > from => {
                self.timing = Some(LapTiming { bytes: head - from, ns: now.saturating_sub(then) });
            }
            _ => self.started = Some((head, now)),
        }
    }

    /// Records that the writer waits: the ring was full, and the running measurement is void.
    pub(crate) const fn record_wait(&mut self) {
        (self.was_full, self.started) = (true, None);
    }

    /// Decides on the size at the end of the lap at `head`. `capacity` and `distance`, the unread
    /// part, are in bytes. Returns `None` if this position has been decided on already.
    pub(crate) fn end_lap(
        &mut self,
        head: u64,
        capacity: usize,
        sides: Sides,
        distance: impl FnOnce() -> usize,
    ) -> Option<Step> {
        if self.decided_at == Some(head) {
            return None;
        }
        self.decided_at = Some(head);
        let distance = distance();
        let was_full = std::mem::take(&mut self.was_full);
        let timing = self.timing.take();
        self.started = None;
        Some(self.scale.decide(Round { capacity, distance, was_full, sides, timing }))
    }
}
