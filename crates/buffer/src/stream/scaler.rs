//! A stream that finds its size by itself: what its writer sees at the end of each lap, and that it
//! follows what was decided. [SL §5.4]

use super::Output;
use crate::atomic::acquire;
use crate::scale::{Round, Scale, Scaling, Sides, Taken};
use abi::ring::reader;

/// The writer's notes between two decisions on the size.
#[derive(Debug)]
pub(super) struct Scaler {
    scale: Scale,
    /// The ring was full since the last decision.
    was_full: bool,
    /// Head position at the last decision.
    decided_at: Option<u64>,
    /// Head position and time at which the measurement of blocks began.
    begun: Option<(u64, u64)>,
    /// Time that they took.
    taken: Option<Taken>,
}

impl Scaler {
    pub(super) const fn new(scaling: Scaling) -> Self {
        Self {
            scale: Scale::new(scaling),
            was_full: false,
            decided_at: None,
            begun: None,
            taken: None,
        }
    }

    /// The writer goes on with the head at this position: looks at the clock, twice in each lap.
    pub(super) fn goes_on(&mut self, head: u64) {
        if self.taken.is_some() {
            return;
        }
        let now = sys::clock::monotonic();
        match self.begun.take() {
            Some((from, then)) if head > from => {
                self.taken = Some(Taken { bytes: head - from, ns: now.saturating_sub(then) });
            }
            _ => self.begun = Some((head, now)),
        }
    }

    /// The writer waits: the ring was full, and what blocks take cannot be told from this.
    pub(super) const fn waits(&mut self) {
        (self.was_full, self.begun) = (true, None);
    }
}

impl Output {
    /// Returns the decisions on the size so far; `None`: the ring does not size itself.
    #[must_use]
    pub fn scale(&self) -> Option<&Scale> {
        self.scaler.as_ref().map(|scaler| &scaler.scale)
    }

    /// The writer is about to wrap: looks how full the ring was, decides and follows.
    #[cold]
    pub(super) fn end_round(&mut self) {
        let (head, capacity, sides) = (self.ring.head(), self.capacity(), self.sides());
        let Some(scaler) = &mut self.scaler else { return };
        if scaler.decided_at == Some(head) {
            return;
        }
        scaler.decided_at = Some(head);
        let side = self.ring.side();
        // A lie is told by the next look for room, and the liar is shut out by this one.
        let _ = side.refresh();
        let distance = usize::try_from(head.saturating_sub(side.oldest())).unwrap_or(usize::MAX);
        let was_full = std::mem::take(&mut scaler.was_full);
        let taken = scaler.taken.take();
        scaler.begun = None;
        let step = scaler.scale.decide(Round { capacity, distance, was_full, sides, taken });
        if step.capacity != capacity
            && self.resize(step.capacity).is_ok()
            && let Some(scaler) = &mut self.scaler
        {
            scaler.scale.taken();
        }
    }

    /// Returns the relative location of the readers: ours if all were last observed on our
    /// processor. An unobserved reader is where the spins say, or elsewhere if we may run on
    /// others.
    pub(super) fn sides(&mut self) -> Sides {
        let here = sys::machine::current_processor() as u64 + 1;
        // Whether we may run on others is asked of the kernel, and of its files: not at each wait.
        let spin = self.spin;
        let unseen = || spin.yields().unwrap_or_else(super::is_alone);
        let present: Vec<usize> =
            self.ends.iter().enumerate().filter(|(_, end)| !end.gone).map(|(at, _)| at).collect();
        let side = self.ring.side();
        let together =
            present.into_iter().filter_map(|at| side.page(at)).all(|page| {
                match acquire(page.word(reader::PROCESSOR)) {
                    0 => unseen(),
                    there => there == here,
                }
            });
        if together { Sides::Together } else { Sides::Apart }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
