//! Self-sizing of a stream: the writer's measurements in each lap, and the resize at its end. [SL
//! §5.4]

use super::Output;
use crate::atomic::acquire;
use crate::scale::{LapTiming, Round, Scale, Scaling, Sides};
use abi::ring::reader;

/// The writer's measurements since the last decision on the size.
#[derive(Debug)]
pub(super) struct Scaler {
    scale: Scale,
    /// True if the ring was full since the last decision.
    was_full: bool,
    /// Head position at the last decision.
    decided_at: Option<u64>,
    /// Head position and time in nanoseconds at the start of the current measurement.
    started: Option<(u64, u64)>,
    /// Result of the measurement in this lap; `None` until there is one.
    timing: Option<LapTiming>,
}

impl Scaler {
    pub(super) const fn new(scaling: Scaling) -> Self {
        Self {
            scale: Scale::new(scaling),
            was_full: false,
            decided_at: None,
            started: None,
            timing: None,
        }
    }

    /// Starts the time measurement of this lap, or ends it if it has started. Reads the clock twice
    /// per lap. Call this when the writer takes its slow path at `head`.
    pub(super) fn measure_lap(&mut self, head: u64) {
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

    /// Records that the writer waits: marks the ring as full, and discards the running measurement.
    pub(super) const fn record_wait(&mut self) {
        (self.was_full, self.started) = (true, None);
    }
}

impl Output {
    /// Returns the state of self-sizing, or `None` if the size is fixed.
    #[must_use]
    pub fn scale(&self) -> Option<&Scale> {
        self.scaler.as_ref().map(|scaler| &scaler.scale)
    }

    /// Decides on the size by the fill level when the writer is about to wrap, and resizes the
    /// ring.
    #[cold]
    pub(super) fn end_lap(&mut self) {
        let (head, capacity, sides) = (self.ring.head(), self.capacity(), self.sides());
        let Some(scaler) = &mut self.scaler else { return };
        if scaler.decided_at == Some(head) {
            return;
        }
        scaler.decided_at = Some(head);
        let side = self.ring.side();
        // The refresh evicts a lying reader; the next check for room reports it.
        let _ = side.refresh();
        let distance = usize::try_from(head.saturating_sub(side.oldest())).unwrap_or(usize::MAX);
        let was_full = std::mem::take(&mut scaler.was_full);
        let timing = scaler.timing.take();
        scaler.started = None;
        let step = scaler.scale.decide(Round { capacity, distance, was_full, sides, timing });
        if step.capacity != capacity
            && self.resize(step.capacity).is_ok()
            && let Some(scaler) = &mut self.scaler
        {
            scaler.scale.count_step();
        }
    }

    /// Returns [`Sides::Together`] if all present readers last ran on this processor. A reader on
    /// an unknown processor counts as sharing this one in two cases: the user has set 0 spins, or
    /// spinning is adaptive and this process may run on one processor only.
    pub(super) fn sides(&mut self) -> Sides {
        let own = sys::machine::current_processor() as u64 + 1;
        // Whether other processors are allowed is a query of the kernel's files: too slow for each
        // wait.
        let spin = self.spin;
        let unknown = || spin.is_fixed_to_zero().unwrap_or_else(super::has_single_processor);
        let present: Vec<usize> =
            self.ends.iter().enumerate().filter(|(_, end)| !end.gone).map(|(at, _)| at).collect();
        let side = self.ring.side();
        let together =
            present.into_iter().filter_map(|at| side.page(at)).all(|page| {
                match acquire(page.word(reader::PROCESSOR)) {
                    0 => unknown(),
                    processor => processor == own,
                }
            });
        if together { Sides::Together } else { Sides::Apart }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
