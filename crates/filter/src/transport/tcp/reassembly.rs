//! One side of a connection: from segments to an ordered stream.
//!
//! In: a segment with its sequence number. Out: views of the frames in order, each byte once;
//! **holes** for bytes that were sent but not captured; the end. An early segment is held. Missing
//! bytes are abandoned when the other end has acknowledged them, when the frame was truncated by
//! the capture, when the data held after them are too many or too old, and when the connection
//! ends.

use super::connection::{
    BEGUN, BROKEN, EMITTED, END_EMITTED, FAR, FIN, SCALED, StreamSide, after, distance,
};
use super::outcomes::{CLOSED_BEFORE, DUPLICATE, FAR_AWAY, GAPS, MISSING};
use super::overlap::{SegmentPolicy, Span, span};
use crate::contract::{Block, StreamContext, Time};
use crate::layers;
use abi::{BLOCK_MAX, BlockMetadata, Class, Flags, Marks, RichPointer};

/// Reassembly rules, from the filter's arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) policy: SegmentPolicy,
    /// Maximum bytes held per side.
    pub(super) held: u32,
    /// Timeout of a gap, in ns.
    pub(super) gap: Time,
}

/// Maximum blocks held per side.
pub(super) const HELD_BLOCKS: u32 = 4096;

/// Output of one side: context, class and metadata of its blocks.
pub(super) struct SideOutput<'w, 'c, 'a> {
    pub(super) cx: &'w mut StreamContext<'c, 'a>,
    pub(super) rules: Rules,
    /// Class of all its blocks.
    pub(super) class: Class,
    /// Metadata of all its blocks: time, session and direction.
    pub(super) context: BlockMetadata,
}

/// The data of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentData {
    /// Sequence numbers of the data as sent, captured or not.
    pub(super) span: Span,
    /// True if the segment carries a FIN.
    pub(super) fin: bool,
}

/// Flags owned by this filter.
const OURS: Flags = Flags::FIRST.with(Flags::LAST).with(Flags::BACKWARD).with(Flags::END_MASK);

impl StreamSide {
    /// Processes a segment; `block` views its captured data.
    pub(super) fn take<'a>(
        &mut self,
        way: &mut SideOutput<'_, '_, 'a>,
        block: Block<'a>,
        piece: SegmentData,
    ) {
        let SegmentData { mut span, fin } = piece;
        if fin && !self.has(FIN) && self.may_end_at(way, span.to) {
            self.fin = span.to;
            self.flags |= FIN;
            self.mark(way);
        }
        if span.from == span.to {
            return way.cx.consume(&block);
        }
        if self.has(FIN) && after(span.to, self.fin) {
            if !after(self.fin, span.from) {
                return way.cx.drop(&block, CLOSED_BEFORE);
            }
            span.to = self.fin;
        }
        if !after(span.to, self.next) {
            way.cx.count(DUPLICATE, 1);
            return way.cx.consume(&block);
        }
        if after(span.from, self.next) {
            if !self.comes_up(way, span) {
                return self.hold(way, &block, span);
            }
            if distance(self.next, span.from).unsigned_abs() > FAR {
                return way.cx.drop(&block, FAR_AWAY);
            }
        }
        self.in_order(way, block, span);
    }

    /// Returns true if a FIN is plausible: nothing after it was received or acknowledged.
    fn may_end_at(&self, way: &SideOutput<'_, '_, '_>, fin: u32) -> bool {
        let held = way.cx.back(&self.held);
        let behind = held.is_some_and(|(key, block)| after(span(key, &block).to, fin));
        let beyond = self.acknowledged().is_some_and(|number| distance(fin, number) > 1);
        let ahead = (0..=FAR.cast_signed()).contains(&distance(self.next, fin));
        ahead && self.may_be_taken(fin) && !behind && !beyond
    }

    /// Processes a segment beyond `next`: abandons the gap if waiting is pointless. Returns true if
    /// the segment is then in order, or can no longer be.
    fn comes_up(&mut self, way: &mut SideOutput<'_, '_, '_>, span: Span) -> bool {
        if distance(self.next, span.from).unsigned_abs() > FAR {
            return true;
        }
        if self.acknowledged().is_some_and(|number| !after(span.from, number)) {
            self.skip(way, span.from);
        }
        let length = span.to.wrapping_sub(span.from);
        while after(span.from, self.next)
            && !self.held.is_empty()
            && (self.held_bytes.saturating_add(length) > way.rules.held
                || self.held.len() >= HELD_BLOCKS)
        {
            let front = way.cx.front(&self.held).map_or(span.from, |(key, _)| key);
            let nearer = if after(front, span.from) { span.from } else { front };
            self.advance(way, nearer);
        }
        !after(span.from, self.next)
    }

    /// Advances to `to` ([`StreamSide::skip`]), or drops a held block: with forged state `to` may
    /// precede `next`.
    fn advance(&mut self, way: &mut SideOutput<'_, '_, '_>, to: u32) {
        let before = (self.next, self.held.len());
        self.skip(way, to);
        if (self.next, self.held.len()) == before {
            self.give_up(way);
        }
    }

    fn hold<'a>(&mut self, way: &mut SideOutput<'_, '_, 'a>, block: &Block<'a>, span: Span) {
        let here = block.length().min(span.to.wrapping_sub(span.from));
        if here == 0 {
            // No byte was captured: the acknowledgement will reveal the gap.
            return way.cx.consume(block);
        }
        self.mark(way);
        let (block, span) =
            (block.narrow(0, here), Span { to: span.from.wrapping_add(here), ..span });
        let back = way.cx.back(&self.held);
        if back.is_none_or(|(key, last)| !after(super::overlap::span(key, &last).to, span.from)) {
            let mut list = self.held;
            if way.cx.hold(&mut list, &block, span.from) {
                self.held_bytes = self.held_bytes.saturating_add(here);
            }
            self.held = list;
            return;
        }
        self.give_way(way, span);
        self.hold_between(way, &block, span);
    }

    /// Records the start of a gap, if there was none.
    fn mark(&mut self, way: &SideOutput<'_, '_, '_>) {
        if self.held.is_empty() {
            self.since = way.cx.now;
        }
    }

    /// Emits a segment that begins at or before `next`, and all held segments that are now in
    /// order.
    fn in_order<'a>(&mut self, way: &mut SideOutput<'_, '_, 'a>, block: Block<'a>, span: Span) {
        let known = self.next.wrapping_sub(span.from);
        let block = block.narrow(known, span.to.wrapping_sub(self.next));
        let here = block.length();
        if self.held.is_empty() && here > 0 {
            let block = self.leaves(way.class, way.context, block);
            way.cx.pass(block);
        } else if here > 0 {
            self.between_held(way, block);
        } else {
            way.cx.consume(&block);
        }
        if after(span.to, self.next) {
            // The capture truncated it.
            self.skip(way, span.to);
        }
    }

    /// Emits a segment that begins at `next`, interleaved with held ones.
    fn between_held<'a>(&mut self, way: &mut SideOutput<'_, '_, 'a>, block: Block<'a>) {
        let new = span(self.next, &block);
        self.give_way(way, new);
        let mut passed = false;
        while after(new.to, self.next) {
            let front = way.cx.front(&self.held).map_or(new.to, |(key, _)| key);
            let until = if after(front, new.to) { new.to } else { front };
            let from = self.next.wrapping_sub(new.from);
            let piece = block.narrow(from, until.wrapping_sub(self.next));
            let piece = self.leaves(way.class, way.context, piece);
            way.cx.give_part(piece, &mut passed);
            self.drain(way);
        }
        self.drain(way);
    }

    /// Emits held segments that are now in order.
    fn drain(&mut self, way: &mut SideOutput<'_, '_, '_>) {
        let mut list = self.held;
        while let Some((key, block)) = way.cx.front(&list) {
            let span = span(key, &block);
            if after(key, self.next) {
                self.since = way.cx.now;
                break;
            }
            self.held_bytes = self.held_bytes.saturating_sub(block.length());
            if !after(span.to, self.next) {
                way.cx.count(DUPLICATE, 1);
                way.cx.forget(&mut list);
                continue;
            }
            let known = self.next.wrapping_sub(key);
            let leaves = self.leaves(way.class, way.context, block.narrow(known, u32::MAX));
            way.cx.release(&mut list, |_| leaves);
            let missing = cut_off(block);
            if missing > 0 {
                let front = way.cx.front(&list).map(|(key, _)| key);
                let until = self.next.wrapping_add(missing);
                let until = front.filter(|front| after(until, *front)).unwrap_or(until);
                self.hole(way, until);
            }
        }
        self.held = list;
    }

    /// Advances to `to`: emits held data up to there, and holes for missing bytes.
    pub(super) fn skip(&mut self, way: &mut SideOutput<'_, '_, '_>, to: u32) {
        let to = if self.has(FIN) && after(to, self.fin) { self.fin } else { to };
        while after(to, self.next) {
            let front = way.cx.front(&self.held).map_or(to, |(key, _)| key);
            self.hole(way, if after(front, to) { to } else { front });
            self.drain(way);
        }
    }

    /// Emits a hole up to `to`.
    fn hole(&mut self, way: &mut SideOutput<'_, '_, '_>, to: u32) {
        let to = if self.has(FIN) && after(to, self.fin) { self.fin } else { to };
        if !after(to, self.next) {
            return;
        }
        let mut missing = to.wrapping_sub(self.next);
        way.cx.count(GAPS, 1);
        way.cx.count(MISSING, missing.into());
        while missing > 0 {
            let length = missing.min(BLOCK_MAX as u32);
            let hole = self.leaves(way.class, way.context, nothing(way, length));
            way.cx.make(hole);
            missing -= length;
        }
    }

    /// Abandons the gap before the first held block, or before the end. Blocks or ends that the
    /// other end would not accept are dropped instead.
    pub(super) fn give_up(&mut self, way: &mut SideOutput<'_, '_, '_>) {
        let front = way.cx.front(&self.held).map(|(key, _)| key);
        // Each call removes something, even from forged state, so that callers can repeat it until
        // nothing is pending.
        let ahead = |place: u32| after(place, self.next) && self.may_be_taken(place);
        match front {
            Some(front) if ahead(front) && (!self.has(FIN) || after(self.fin, front)) => {
                self.skip(way, front);
            }
            Some(_) => {
                let mut list = self.held;
                if let Some((_, block)) = way.cx.front(&list) {
                    self.held_bytes = self.held_bytes.saturating_sub(block.length());
                    way.cx.discard(&mut list, FAR_AWAY);
                }
                self.held = list;
            }
            None if ahead(self.fin) => self.skip(way, self.fin),
            None => self.flags &= !FIN,
        }
    }

    /// Handles a new acknowledgement: missing bytes before it were sent but not captured. Only gaps
    /// before observed data are abandoned at once.
    pub(super) fn was_acknowledged(&mut self, way: &mut SideOutput<'_, '_, '_>) {
        let Some(number) = self.acknowledged() else { return };
        while !self.held.is_empty() && after(number, self.next) {
            let front = way.cx.front(&self.held).map_or(number, |(key, _)| key);
            self.advance(way, if after(front, number) { number } else { front });
        }
        if self.has(FIN) && number == self.fin {
            self.skip(way, number);
        }
    }

    /// Finishes the side: emits held data, and holes up to the last acknowledged byte; an
    /// unobserved side emits none. One acknowledged byte may be a FIN.
    pub(super) fn finish(&mut self, way: &mut SideOutput<'_, '_, '_>) {
        while self.waits() {
            self.give_up(way);
        }
        if !self.has(FIN) {
            let number = self.acknowledged().unwrap_or(self.next);
            let info = self.has(SCALED) || self.has(EMITTED);
            let missing = info && distance(self.next, number) > 1;
            self.fin = if missing { number } else { self.next };
            self.flags |= FIN | BROKEN;
            self.skip(way, self.fin);
        }
    }

    /// Emits the end of the side, unless its last block carried it.
    pub(super) fn emit_end(&mut self, way: &mut SideOutput<'_, '_, '_>) {
        if !self.has(END_EMITTED) {
            self.fin = self.next;
            self.flags |= FIN;
            let end = self.leaves(way.class, way.context, nothing(way, 0));
            way.cx.make(end);
        }
    }

    /// Prepares a block for output and advances `next`.
    #[inline]
    pub(super) fn leaves<'a>(
        &mut self,
        class: Class,
        context: BlockMetadata,
        mut block: Block<'a>,
    ) -> Block<'a> {
        self.next = self.next.wrapping_add(block.length());
        let mut flags = block.context.flags.without(OURS).with(context.flags);
        if self.has(BEGUN) && !self.has(EMITTED) {
            flags = flags.with(Flags::FIRST);
        }
        self.flags |= EMITTED;
        if self.is_at_end() {
            flags = flags.with(Flags::END);
            if self.has(BROKEN) {
                flags = flags.with(Flags::BROKEN);
            }
            self.flags |= END_EMITTED;
        }
        block.pointer.class = class;
        block.context.session = context.session;
        block.context.flags = flags;
        block
    }
}

/// Returns a hole.
fn nothing<'a>(way: &SideOutput<'_, '_, '_>, length: u32) -> Block<'a> {
    Block {
        pointer: RichPointer::hole(length),
        frame: &[],
        marks: Marks::bare(length),
        context: way.context,
    }
}

/// Returns the number of bytes after the view that the capture truncated.
fn cut_off(mut block: Block<'_>) -> u32 {
    let end = block.marks.view + block.length();
    if block.marks.captured >= block.marks.wire_length || end != block.marks.captured {
        return 0;
    }
    match layers::segment(&mut block) {
        Ok(Some(segment)) => segment.end.saturating_sub(end),
        _ => 0,
    }
}
