//! Self-sizing of a crossing. [SL §5.4, reallocation]
//!
//! The writer decides once per lap, and when it finds the ring full, as for a stream
//! ([`crate::scale`]). It continues in other memory and does not wait for readers: they finish the
//! entries before the change and follow by themselves. Bytes are not affected, since positions go
//! on (C2, C3).

use super::CrossingWriter;
use crate::scale::{Scale, Scaler, Scaling, Sides};

/// The policy for the size of a crossing.
#[derive(Debug)]
pub(super) enum Sizing {
    /// The size never changes.
    Fixed,
    /// The size follows the pressure. The position is the end of the current lap.
    Scaled(Box<Scaler>, u64),
}

impl CrossingWriter {
    /// Lets the writer resize the ring according to its fill level. Sizes in `scaling` are those of
    /// the entries in bytes.
    #[must_use]
    pub fn scaling(mut self, scaling: Scaling) -> Self {
        let lap = self.ring().side.head + self.capacity() as u64;
        self.sizing = Sizing::Scaled(Box::new(Scaler::new(scaling)), lap);
        self
    }

    /// Returns the state of self-sizing, or `None` if the size is fixed.
    #[must_use]
    pub fn scale(&self) -> Option<&Scale> {
        match &self.sizing {
            Sizing::Fixed => None,
            Sizing::Scaled(scaler, _) => Some(&scaler.scale),
        }
    }

    /// Makes room in a full ring by growing it. Returns false if the size is fixed or at its
    /// maximum, or if a reader has not yet followed the last change: then the writer has to wait.
    pub fn grow(&mut self) -> bool {
        let before = self.capacity();
        if let Sizing::Scaled(scaler, _) = &mut self.sizing {
            scaler.record_wait();
            self.decide();
        }
        self.capacity() > before
    }

    /// Decides on the size if the lap has ended.
    #[inline]
    pub(super) fn end_lap(&mut self) {
        if let Sizing::Scaled(_, end) = self.sizing
            && self.ring().side.head >= end
        {
            self.decide();
        }
    }

    #[cold]
    fn decide(&mut self) {
        let (capacity, stride) = (self.capacity(), self.ring().lanes.stride());
        let Sizing::Scaled(mut scaler, _) = std::mem::replace(&mut self.sizing, Sizing::Fixed)
        else {
            return;
        };
        let head = self.ring().side.head;
        let distance = || self.ring().distance() * stride;
        // The range is the same for both placements.
        let step = scaler.end_lap(head, capacity * stride, Sides::Apart, distance);
        if let Some(step) = step.filter(|step| step.capacity != capacity * stride)
            && self.ring().resize(step.capacity / stride)
        {
            scaler.scale.count_step();
        }
        let lap = head + self.capacity() as u64;
        self.sizing = Sizing::Scaled(scaler, lap);
    }
}
