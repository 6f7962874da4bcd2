//! The end of one side of a connection by FIN.
//!
//! Input: the FIN of a segment. Output: the sequence number at which the stream ends, or a pending
//! FIN whose acceptance depends on the bytes that are still missing before it.

use super::connection::{
    FIN_KNOWN_FLAG, SEQUENCE_DISTANCE_MAX, StreamSide, is_sequence_after, sequence_distance,
};
use super::overlap::{SequenceSpan, held_span};
use super::reassembly::SideOutput;

impl StreamSide {
    /// Records the FIN of a segment whose data covers `span`, if the peer may accept the FIN. A FIN
    /// in sequence ends the stream at once: the peer then drops later bytes, even those that it
    /// holds (RFC 9293 §3.10.7.4). An early FIN is pending if later bytes have been received or
    /// acknowledged. Otherwise, it ends the stream too.
    pub(super) fn record_fin(&mut self, output: &mut SideOutput<'_, '_, '_>, span: SequenceSpan) {
        let fin = span.to;
        let is_ahead = |fin: u32| {
            (0..=SEQUENCE_DISTANCE_MAX.cast_signed()).contains(&sequence_distance(self.next, fin))
        };
        if !is_ahead(fin) || !self.is_acceptable_sequence(fin) {
            return;
        }
        let held = output.cx.back_block(&self.held);
        let behind =
            held.is_some_and(|(key, block)| is_sequence_after(held_span(key, &block).to, fin));
        let early = is_sequence_after(span.from, self.next);
        if early && (behind || self.is_acknowledged_beyond(fin)) {
            // The stream reaches the first of several pending FINs.
            let pending = self.is_fin_pending != 0 && is_ahead(self.fin);
            if !pending || is_sequence_after(self.fin, fin) {
                (self.fin, self.is_fin_pending) = (fin, 1);
            }
            return;
        }
        self.accept_fin(fin);
        self.record_gap_start(output);
        if self.is_at_end() {
            self.emit_held_segments(output);
        }
    }

    /// Sets the end of the stream to sequence number `fin`.
    pub(super) const fn accept_fin(&mut self, fin: u32) {
        (self.fin, self.is_fin_pending) = (fin, 0);
        self.flags |= FIN_KNOWN_FLAG;
    }

    /// Updates a pending FIN before the stream advances to sequence number `to`. If the FIN has
    /// this number, accepts the FIN. If the FIN has a lower number, discards it, because the peer
    /// treats it as part of older data.
    pub(super) const fn update_pending_fin(&mut self, to: u32) {
        if self.is_fin_pending != 0 && !is_sequence_after(self.fin, to) {
            self.is_fin_pending = 0;
            if self.fin == to {
                self.flags |= FIN_KNOWN_FLAG;
            }
        }
    }

    /// Returns true if a segment begins at or after the end of the stream, and contains bytes after
    /// this end.
    pub(super) const fn is_after_end(&self, span: SequenceSpan) -> bool {
        self.has_flags(FIN_KNOWN_FLAG)
            && !is_sequence_after(self.fin, span.from)
            && is_sequence_after(span.to, self.fin)
    }

    /// Returns true if the peer has acknowledged bytes that follow a FIN with sequence number
    /// `fin`.
    pub(super) fn is_acknowledged_beyond(&self, fin: u32) -> bool {
        self.acknowledged_sequence().is_some_and(|number| sequence_distance(fin, number) > 1)
    }

    /// Returns `to` or, if the stream ends before `to`, the end of the stream.
    pub(super) const fn limit_to_end(&self, to: u32) -> u32 {
        if self.has_flags(FIN_KNOWN_FLAG) && is_sequence_after(to, self.fin) {
            self.fin
        } else {
            to
        }
    }
}
