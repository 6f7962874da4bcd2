//! Reassembly of one side of a connection: from segments to an ordered stream.
//!
//! Input: a segment with its sequence number. Output: views of the frames in order, each byte once;
//! **holes** for bytes that were sent but not captured; the end of the stream. Segments that arrive
//! early are held. Missing bytes are abandoned when the peer has acknowledged them, when the
//! capture truncated their frame, when too much data, or too old data, is held after them, and when
//! the connection ends.

use super::connection::{
    BROKEN_FLAG, DATA_EMITTED_FLAG, END_EMITTED_FLAG, FIN_KNOWN_FLAG, SEQUENCE_DISTANCE_MAX,
    START_KNOWN_FLAG, SYN_OBSERVED_FLAG, StreamSide, is_sequence_after, sequence_distance,
};
use super::outcomes::{
    CONNECTION_CLOSED, DUPLICATES, GAPS, LATE_SEGMENT, OUT_OF_WINDOW, STREAM_BYTES_MISSING,
};
use super::overlap::{SegmentPolicy, SequenceSpan, held_span};
use crate::contract::{Block, StreamContext, Time};
use crate::layers;
use abi::{BLOCK_LENGTH_MAX, BlockFlags, BlockMetadata, Class, Marks, RichPointer};

/// Rules of reassembly, from the filter's arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReassemblyRules {
    pub(super) policy: SegmentPolicy,
    /// Maximum number of bytes held per side of a connection.
    pub(super) held_bytes_max: u32,
    /// Time after which a gap is abandoned, in ns.
    pub(super) gap_timeout: Time,
}

/// Maximum number of blocks held per side of a connection.
pub(super) const HELD_BLOCKS_MAX: u32 = 4096;

/// Output for the blocks of one side: the filter's context, and the class and metadata that these
/// blocks receive.
pub(super) struct SideOutput<'w, 'c, 'a> {
    pub(super) cx: &'w mut StreamContext<'c, 'a>,
    pub(super) rules: ReassemblyRules,
    /// Class of all blocks that this side of the connection emits.
    pub(super) class: Class,
    /// Metadata of all blocks that this side of the connection emits: time, session and direction.
    pub(super) context: BlockMetadata,
}

/// The data of a TCP segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentData {
    /// Sequence numbers of the data as sent, part of which may not have been captured.
    pub(super) span: SequenceSpan,
    /// True if the segment carries a FIN.
    pub(super) fin: bool,
}

/// Flags that this filter sets in its output, and therefore clears in input blocks.
const OUTPUT_FLAGS: BlockFlags = BlockFlags::FIRST
    .with(BlockFlags::LAST)
    .with(BlockFlags::BACKWARD)
    .with(BlockFlags::SESSION_END_MASK);

impl StreamSide {
    /// Processes a segment of this side: emits data that is next in order, holds data that arrived
    /// early, and consumes or drops all other data. The view of `block` is the captured data.
    pub(super) fn process_segment<'a>(
        &mut self,
        output: &mut SideOutput<'_, '_, 'a>,
        block: Block<'a>,
        piece: SegmentData,
    ) {
        let SegmentData { mut span, fin } = piece;
        if fin && !self.has_flags(FIN_KNOWN_FLAG) {
            self.record_fin(output, span);
        }
        if span.from == span.to {
            return output.cx.consume(&block);
        }
        if self.is_after_end(span) {
            return output.cx.drop(&block, CONNECTION_CLOSED);
        }
        span.to = self.limit_to_end(span.to);
        let late = self.count_late_bytes(output, &block, span);
        if !is_sequence_after(span.to, self.next) {
            if late {
                return output.cx.drop(&block, LATE_SEGMENT);
            }
            output.cx.count(DUPLICATES, 1);
            return output.cx.consume(&block);
        }
        if is_sequence_after(span.from, self.next) {
            let is_in_order = self.resolve_gap(output, span);
            // The stream may have reached a pending FIN.
            if self.is_after_end(span) {
                return output.cx.drop(&block, CONNECTION_CLOSED);
            }
            span.to = self.limit_to_end(span.to);
            if !is_in_order {
                return self.hold_segment(output, &block, span);
            }
            if sequence_distance(self.next, span.from).unsigned_abs() > SEQUENCE_DISTANCE_MAX {
                return output.cx.drop(&block, OUT_OF_WINDOW);
            }
        }
        self.emit_next_segment(output, block, span);
    }

    /// Handles a segment that begins after `next`, with a gap before it. Abandons the gap if the
    /// peer has acknowledged the missing bytes, or if the limits on held data are exceeded. Returns
    /// false if the segment must be held. Returns true if the segment is now in order, or is
    /// implausibly far ahead.
    fn resolve_gap(&mut self, output: &mut SideOutput<'_, '_, '_>, span: SequenceSpan) -> bool {
        if sequence_distance(self.next, span.from).unsigned_abs() > SEQUENCE_DISTANCE_MAX {
            return true;
        }
        if self.acknowledged_sequence().is_some_and(|number| !is_sequence_after(span.from, number))
        {
            self.skip_to(output, span.from);
        }
        let length = span.to.wrapping_sub(span.from);
        while is_sequence_after(span.from, self.next)
            && !self.held.is_empty()
            && (self.held_bytes.saturating_add(length) > output.rules.held_bytes_max
                || self.held.len() >= HELD_BLOCKS_MAX)
        {
            let front = output.cx.front_block(&self.held).map_or(span.from, |(key, _)| key);
            let nearer = if is_sequence_after(front, span.from) { span.from } else { front };
            self.advance(output, nearer);
        }
        !is_sequence_after(span.from, self.next)
    }

    /// Advances the stream to sequence number `to` ([`StreamSide::skip_to`]). With forged session
    /// state, the call of `skip` may have no effect. Then removes a gap, the first held block or
    /// the FIN instead, so that callers can repeat the call.
    fn advance(&mut self, output: &mut SideOutput<'_, '_, '_>, to: u32) {
        let before = (self.next, self.held.len());
        self.skip_to(output, to);
        if (self.next, self.held.len()) == before {
            self.abandon_gap(output);
        }
    }

    fn hold_segment<'a>(
        &mut self,
        output: &mut SideOutput<'_, '_, 'a>,
        block: &Block<'a>,
        span: SequenceSpan,
    ) {
        let here = block.length().min(span.to.wrapping_sub(span.from));
        if here == 0 {
            // No byte was captured: the acknowledgement will reveal the gap.
            return output.cx.consume(block);
        }
        self.record_gap_start(output);
        let (block, span) =
            (block.narrow(0, here), SequenceSpan { to: span.from.wrapping_add(here), ..span });
        let back = output.cx.back_block(&self.held);
        if back.is_none_or(|(key, last)| !is_sequence_after(held_span(key, &last).to, span.from)) {
            let mut list = self.held;
            if output.cx.hold(&mut list, &block, span.from) {
                self.held_bytes = self.held_bytes.saturating_add(here);
            }
            self.held = list;
            return;
        }
        self.trim_held_segments(output, span);
        self.hold_uncovered_parts(output, &block, span);
    }

    /// Records the current time as the start of a gap, unless blocks are held already.
    pub(super) fn record_gap_start(&mut self, output: &SideOutput<'_, '_, '_>) {
        if self.held.is_empty() {
            self.gap_start = output.cx.now;
        }
    }

    /// Emits a segment that begins at or before the next byte in order. Also emits a hole for the
    /// bytes of the segment that were not captured, and the held segments that are then in order.
    fn emit_next_segment<'a>(
        &mut self,
        output: &mut SideOutput<'_, '_, 'a>,
        block: Block<'a>,
        span: SequenceSpan,
    ) {
        let known = self.next.wrapping_sub(span.from);
        let block = block.narrow(known, span.to.wrapping_sub(self.next));
        let here = block.length();
        self.update_pending_fin(span.to);
        if self.held.is_empty() && here > 0 {
            let block = self.prepare_output(output.class, output.context, block);
            output.cx.pass(block);
        } else if here > 0 {
            self.emit_between_held_segments(output, block);
        } else {
            output.cx.consume(&block);
        }
        if is_sequence_after(span.to, self.next) {
            // The capture truncated the segment.
            self.skip_to(output, span.to);
        }
    }

    /// Emits a segment whose first byte is next in order. Emits the bytes of held segments at their
    /// positions within the segment, and then the held segments that are in order.
    fn emit_between_held_segments<'a>(
        &mut self,
        output: &mut SideOutput<'_, '_, 'a>,
        block: Block<'a>,
    ) {
        let new = held_span(self.next, &block);
        self.trim_held_segments(output, new);
        let mut passed = false;
        while is_sequence_after(self.limit_to_end(new.to), self.next) {
            let front = output.cx.front_block(&self.held).map_or(new.to, |(key, _)| key);
            let until = if is_sequence_after(front, new.to) { new.to } else { front };
            let from = self.next.wrapping_sub(new.from);
            let piece = block.narrow(from, until.wrapping_sub(self.next));
            let piece = self.prepare_output(output.class, output.context, piece);
            output.cx.emit_block_part(piece, &mut passed);
            self.emit_held_segments(output);
        }
        self.emit_held_segments(output);
    }

    /// Emits held segments that are now in order, with holes for their bytes that were not
    /// captured. Consumes held segments whose bytes have all been emitted, and drops bytes after
    /// the end of the stream.
    pub(super) fn emit_held_segments(&mut self, output: &mut SideOutput<'_, '_, '_>) {
        let mut list = self.held;
        while let Some((key, block)) = output.cx.front_block(&list) {
            let span = held_span(key, &block);
            if self.is_at_end() && is_sequence_after(span.to, self.next) {
                self.held_bytes = self.held_bytes.saturating_sub(block.length());
                output.cx.drop_front_block(&mut list, CONNECTION_CLOSED);
                continue;
            }
            if is_sequence_after(key, self.next) {
                self.gap_start = output.cx.now;
                break;
            }
            self.held_bytes = self.held_bytes.saturating_sub(block.length());
            if !is_sequence_after(span.to, self.next) {
                output.cx.count(DUPLICATES, 1);
                output.cx.consume_front_block(&mut list);
                continue;
            }
            self.update_pending_fin(span.to);
            let known = self.next.wrapping_sub(key);
            let length = self.limit_to_end(span.to).wrapping_sub(self.next);
            let next =
                self.prepare_output(output.class, output.context, block.narrow(known, length));
            output.cx.release_front_block(&mut list, |_| next);
            let missing = truncated_byte_count(block);
            if missing > 0 {
                let front = output.cx.front_block(&list).map(|(key, _)| key);
                let until = self.next.wrapping_add(missing);
                let until = front.filter(|front| is_sequence_after(until, *front)).unwrap_or(until);
                self.emit_hole(output, until);
            }
        }
        self.held = list;
    }

    /// Advances the stream to sequence number `to`, but not beyond the end of the stream. Emits
    /// held data up to `to`, and holes for missing bytes.
    pub(super) fn skip_to(&mut self, output: &mut SideOutput<'_, '_, '_>, to: u32) {
        let from = self.next;
        // A hole may reach a pending FIN.
        while is_sequence_after(self.limit_to_end(to), self.next) {
            let front = output.cx.front_block(&self.held).map_or(to, |(key, _)| key);
            self.emit_hole(output, if is_sequence_after(front, to) { to } else { front });
            self.emit_held_segments(output);
        }
        self.extend_abandoned_range(from);
    }

    /// Emits holes for the missing bytes before sequence number `to`, but not beyond the end of the
    /// stream. A hole has at most [`BLOCK_LENGTH_MAX`] bytes. A pending FIN among these sequence
    /// numbers ends the stream, unless the peer has acknowledged later bytes.
    fn emit_hole(&mut self, output: &mut SideOutput<'_, '_, '_>, to: u32) {
        let fin = self.fin;
        let is_between = !is_sequence_after(self.next, fin) && !is_sequence_after(fin, to);
        if self.is_fin_pending != 0 && is_between {
            match self.is_acknowledged_beyond(fin) {
                true => self.is_fin_pending = 0,
                false => self.accept_fin(fin),
            }
        }
        let to = self.limit_to_end(to);
        if !is_sequence_after(to, self.next) {
            return;
        }
        self.abandoned = SequenceSpan { from: self.next, to };
        let mut missing = to.wrapping_sub(self.next);
        output.cx.count(GAPS, 1);
        output.cx.count(STREAM_BYTES_MISSING, missing.into());
        while missing > 0 {
            let length = missing.min(BLOCK_LENGTH_MAX as u32);
            let hole = self.prepare_output(output.class, output.context, make_hole(output, length));
            output.cx.emit_created_block(hole);
            missing -= length;
        }
    }

    /// Abandons the gap before the first held block or, if no block is held, before the FIN. If the
    /// peer would not accept the held block or the FIN, discards it instead. Also discards a held
    /// block that begins at or after the end of the stream.
    pub(super) fn abandon_gap(&mut self, output: &mut SideOutput<'_, '_, '_>) {
        let front = output.cx.front_block(&self.held).map(|(key, _)| key);
        // Each call removes a gap, a held block or the FIN, even from forged state, so that callers
        // can repeat the call until nothing is pending.
        let ahead =
            |place: u32| is_sequence_after(place, self.next) && self.is_acceptable_sequence(place);
        match front {
            Some(front)
                if ahead(front)
                    && (!self.has_flags(FIN_KNOWN_FLAG) || is_sequence_after(self.fin, front)) =>
            {
                self.skip_to(output, front);
            }
            Some(_) => {
                let mut list = self.held;
                if let Some((_, block)) = output.cx.front_block(&list) {
                    self.held_bytes = self.held_bytes.saturating_sub(block.length());
                    output.cx.drop_front_block(&mut list, OUT_OF_WINDOW);
                }
                self.held = list;
            }
            None if ahead(self.fin) => self.skip_to(output, self.fin),
            None => self.flags &= !FIN_KNOWN_FLAG,
        }
    }

    /// Abandons gaps whose bytes the peer has acknowledged: these bytes were sent, but not
    /// captured. Abandons only gaps before held data, and a gap before the end of the stream if the
    /// peer has acknowledged this end.
    pub(super) fn abandon_acknowledged_gaps(&mut self, output: &mut SideOutput<'_, '_, '_>) {
        let Some(number) = self.acknowledged_sequence() else { return };
        let from = self.next;
        while !self.held.is_empty() && is_sequence_after(number, self.next) {
            let front = output.cx.front_block(&self.held).map_or(number, |(key, _)| key);
            self.advance(output, if is_sequence_after(front, number) { number } else { front });
        }
        if self.has_flags(FIN_KNOWN_FLAG) && number == self.fin {
            self.skip_to(output, number);
        }
        self.extend_abandoned_range(from);
    }

    /// Finishes the side. Emits held data, and holes for missing bytes up to the last acknowledged
    /// byte. If the end of the stream is unknown, marks the stream as broken. In this case, emits
    /// no hole at the end if the side was not observed, or if only one acknowledged byte is
    /// missing, because this byte may be a FIN.
    pub(super) fn finish_side(&mut self, output: &mut SideOutput<'_, '_, '_>) {
        while self.has_gap() {
            self.abandon_gap(output);
        }
        let fin = self.fin;
        let is_last = is_sequence_after(fin, self.next) && !self.is_acknowledged_beyond(fin);
        if self.is_fin_pending != 0 && is_last {
            // The held segments after this FIN were out of window.
            self.skip_to(output, fin);
        }
        if !self.has_flags(FIN_KNOWN_FLAG) {
            let number = self.acknowledged_sequence().unwrap_or(self.next);
            let info = self.has_flags(SYN_OBSERVED_FLAG) || self.has_flags(DATA_EMITTED_FLAG);
            let missing = info && sequence_distance(self.next, number) > 1;
            self.accept_fin(if missing { number } else { self.next });
            self.flags |= BROKEN_FLAG;
            self.skip_to(output, self.fin);
        }
    }

    /// Emits a hole of length 0 that marks the end of the side, unless the last emitted block has
    /// the end flag.
    pub(super) fn emit_end(&mut self, output: &mut SideOutput<'_, '_, '_>) {
        if !self.has_flags(END_EMITTED_FLAG) {
            self.accept_fin(self.next);
            let end = self.prepare_output(output.class, output.context, make_hole(output, 0));
            output.cx.emit_created_block(end);
        }
    }

    /// Sets the class, session and flags of an output block, and advances the stream's next
    /// sequence number past the block.
    #[inline]
    pub(super) fn prepare_output<'a>(
        &mut self,
        class: Class,
        context: BlockMetadata,
        mut block: Block<'a>,
    ) -> Block<'a> {
        self.next = self.next.wrapping_add(block.length());
        let mut flags = block.context.flags.without(OUTPUT_FLAGS).with(context.flags);
        if self.has_flags(START_KNOWN_FLAG) && !self.has_flags(DATA_EMITTED_FLAG) {
            flags = flags.with(BlockFlags::FIRST);
        }
        self.flags |= DATA_EMITTED_FLAG;
        if self.is_at_end() {
            flags = flags.with(BlockFlags::SESSION_END);
            if self.has_flags(BROKEN_FLAG) {
                flags = flags.with(BlockFlags::BROKEN);
            }
            self.flags |= END_EMITTED_FLAG;
        }
        block.pointer.class = class;
        block.context.session = context.session;
        block.context.flags = flags;
        block
    }
}

/// Returns a hole of `length` bytes.
fn make_hole<'a>(output: &SideOutput<'_, '_, '_>, length: u32) -> Block<'a> {
    Block {
        pointer: RichPointer::hole(length),
        frame: &[],
        marks: Marks::for_plain_block(length),
        context: output.context,
    }
}

/// Returns the number of bytes of a segment that were sent after the captured bytes in view.
/// `block` contains the segment.
fn truncated_byte_count(mut block: Block<'_>) -> u32 {
    let end = block.marks.view + block.length();
    if block.marks.captured >= block.marks.wire_length || end != block.marks.captured {
        return 0;
    }
    match layers::segment(&mut block) {
        Ok(Some(segment)) => segment.end.saturating_sub(end),
        _ => 0,
    }
}
