//! Automatic sizing of a stream: resizes the ring according to the measurements of each lap. [SL
//! §5.4]

use super::Output;
use crate::scale::{SidePlacement, SizingState};

impl Output {
    /// Returns the state of automatic sizing, or `None` if the size is fixed.
    #[must_use]
    pub fn sizing_state(&self) -> Option<&SizingState> {
        self.scaler.as_ref().map(|scaler| &scaler.scale)
    }

    /// Records that the writer has found the ring full, for a caller that waits for room by other
    /// means than [`Output::wait`].
    pub fn record_full_ring(&mut self) {
        if let Some(scaler) = &mut self.scaler {
            scaler.record_wait();
        }
    }

    /// Fixes the ring at its current size. The writer then neither resizes the ring nor makes
    /// system calls for an earlier resize. Intended for programs that are about to give up the
    /// permission to make such calls.
    pub fn fix_size(&mut self) {
        (self.scaler, self.segments.file) = (None, None);
    }

    /// Decides on the size of the ring at the end of a lap, from the fill level, and resizes the
    /// ring.
    #[cold]
    pub(super) fn resize_at_lap_end(&mut self) {
        let (head, capacity, sides) = (self.ring.head(), self.capacity(), self.side_placement());
        let Some(scaler) = &mut self.scaler else { return };
        let side = self.ring.cursor_mut();
        let distance = || {
            // The refresh evicts a lying reader; the next check for room reports the eviction.
            let _ = side.refresh_reader_positions();
            usize::try_from(head.saturating_sub(side.oldest_needed_position()))
                .unwrap_or(usize::MAX)
        };
        let Some(step) = scaler.end_lap(head, capacity, sides, distance) else { return };
        if step.capacity != capacity
            && self.resize(step.capacity).is_ok()
            && let Some(scaler) = &mut self.scaler
        {
            scaler.scale.count_applied_change();
        }
    }

    /// Determines whether the writer and its readers share a processor. Returns
    /// [`SidePlacement::SameProcessor`] if all present readers last ran on this processor. A reader
    /// whose processor is unknown counts as sharing this one in two cases: if the user has set 0
    /// spins, or if spinning is adaptive and this process may run on one processor only.
    pub(super) fn side_placement(&mut self) -> SidePlacement {
        // Called only if a processor is unknown: it reads files of the kernel, which is too slow
        // for each wait.
        let spin = self.spin;
        let unknown = || spin.is_fixed_to_zero().unwrap_or_else(super::has_single_processor);
        let own = sys::machine::current_processor();
        let shares_processor = self.ring.cursor_mut().are_readers_on_processor(own, unknown);
        if shares_processor {
            SidePlacement::SameProcessor
        } else {
            SidePlacement::DifferentProcessors
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
