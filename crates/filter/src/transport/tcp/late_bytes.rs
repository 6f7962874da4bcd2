//! Late bytes of one side: bytes that are captured after their gap was abandoned, or before the
//! first byte that was observed. They cannot be emitted in order, and are counted.

use super::connection::{SEQUENCE_DISTANCE_MAX, StreamSide, is_sequence_after, sequence_distance};
use super::outcomes::LATE_BYTES;
use super::overlap::SequenceSpan;
use super::reassembly::SideOutput;
use crate::contract::Block;

impl StreamSide {
    /// Counts the captured bytes of a segment that were abandoned earlier, and can therefore not be
    /// emitted in order. Returns true if there are any.
    pub(super) fn count_late_bytes(
        &mut self,
        output: &mut SideOutput<'_, '_, '_>,
        block: &Block<'_>,
        span: SequenceSpan,
    ) -> bool {
        let age = sequence_distance(self.abandoned.to, self.next);
        if !(0..=SEQUENCE_DISTANCE_MAX.cast_signed()).contains(&age) {
            // Sequence numbers have wrapped around since the range was abandoned.
            self.abandoned = SequenceSpan { from: self.next, to: self.next };
        }
        let here = block.length().min(span.to.wrapping_sub(span.from));
        let captured = SequenceSpan { to: span.from.wrapping_add(here), ..span };
        let late = captured.shared_byte_count(self.abandoned);
        if late > 0 {
            output.cx.count(LATE_BYTES, late.into());
        }
        late > 0
    }

    /// Extends the range of abandoned bytes back to `from`. Called after several gaps were
    /// abandoned together; `from` is the beginning of the first one.
    pub(super) fn extend_abandoned_range(&mut self, from: u32) {
        if is_sequence_after(self.abandoned.from, from) {
            self.abandoned.from = from;
        }
    }
}
