//! Automatic sizing of a crossing. [SL §5.4, reallocation]
//!
//! The writer decides on the size once per lap, and whenever the ring is full, by the same rules as
//! for a stream ([`crate::scale`]). To resize the ring, the writer continues in new memory without
//! waiting for the readers, which read the remaining entries from the old memory and then follow.
//! Positions continue, so the bytes of blocks are not affected (C2, C3).

use super::CrossingWriter;
use crate::scale::{Scaler, ScalingParameters, SidePlacement, SizingState};

/// The policy for the size of a crossing: fixed or automatic.
#[derive(Debug)]
pub(super) enum Sizing {
    /// The ring keeps its initial size.
    Fixed,
    /// The size follows the fill level. Contains the sizing state, and the position at which the
    /// current lap ends.
    Automatic(Box<Scaler>, u64),
}

impl CrossingWriter {
    /// Permits the writer to resize the ring of entries according to its fill level. The sizes in
    /// `scaling` are those of the entries in bytes, without the bytes of the blocks.
    #[must_use]
    pub fn with_scaling(mut self, scaling: ScalingParameters) -> Self {
        let lap = self.ring().cursor.head + self.capacity() as u64;
        self.sizing = Sizing::Automatic(Box::new(Scaler::new(scaling)), lap);
        self
    }

    /// Returns the state of automatic sizing, or `None` if the size is fixed.
    #[must_use]
    pub fn sizing_state(&self) -> Option<&SizingState> {
        match &self.sizing {
            Sizing::Fixed => None,
            Sizing::Automatic(scaler, _) => Some(&scaler.scale),
        }
    }

    /// Makes room in a full ring by growing it. Returns false if the writer must wait instead: the
    /// size is fixed or at its maximum, or a reader has not yet followed the last change.
    pub fn grow(&mut self) -> bool {
        let before = self.capacity();
        if let Sizing::Automatic(scaler, _) = &mut self.sizing {
            scaler.record_wait();
            self.decide_size();
        }
        self.capacity() > before
    }

    /// Decides on the size of the ring if the current lap has ended; otherwise does nothing.
    #[inline]
    pub(super) fn resize_at_lap_end(&mut self) {
        if let Sizing::Automatic(_, end) = self.sizing
            && self.ring().cursor.head >= end
        {
            self.decide_size();
        }
    }

    #[cold]
    fn decide_size(&mut self) {
        let (capacity, stride) = (self.capacity(), self.ring().lanes.stride());
        let Sizing::Automatic(mut scaler, _) = std::mem::replace(&mut self.sizing, Sizing::Fixed)
        else {
            return;
        };
        let head = self.ring().cursor.head;
        let distance = || self.ring().unreleased_entries() * stride;
        // Any placement will do here: the size range is the same for both.
        let step =
            scaler.end_lap(head, capacity * stride, SidePlacement::DifferentProcessors, distance);
        if let Some(step) = step.filter(|step| step.capacity != capacity * stride)
            && self.ring().resize(step.capacity / stride)
        {
            scaler.scale.count_applied_change();
        }
        let lap = head + self.capacity() as u64;
        self.sizing = Sizing::Automatic(scaler, lap);
    }
}
