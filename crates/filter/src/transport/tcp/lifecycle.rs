//! Life cycle of a TCP connection: its start, the effect of each segment, and its end.
//!
//! A side ends with its FIN, or with the connection. A connection without data emits nothing. A
//! connection that has emitted data also emits an end for each side, even for a side that was not
//! observed.

use super::connection::{
    ACK_OBSERVED_FLAG, ANY_RESET_FLAGS, CLOSED_FLAG, DATA_EMITTED_FLAG, END_EMITTED_FLAG,
    FIN_KNOWN_FLAG, NO_WINDOW_SCALE, OPEN_FLAG, START_KNOWN_FLAG, SYN_OBSERVED_FLAG,
    SYN_PROBED_FLAG, StreamSide, TcpConnection,
};
use super::outcomes::CONNECTION_CLOSED;
use super::reassembly::{ReassemblyRules, SegmentData, SideOutput};
use super::segment_info::SegmentInfo;
use super::timestamp_lag::TimestampLag;
use crate::contract::{Block, StreamContext, Time};
use abi::{BlockFlags, BlockMetadata, Class};
use wire::tcp::flag;

/// Time in ns for which the record of an ended connection is retained, so that late segments do not
/// begin a new connection. Linux uses the same value for the TIME-WAIT state.
const LINGER_TIME: Time = 60_000_000_000;
/// Index of the client's side in the state of a connection.
pub(super) const CLIENT_SIDE: usize = 0;
/// Index of the server's side in the state of a connection.
pub(super) const SERVER_SIDE: usize = 1;

impl TcpConnection {
    /// Returns the index of the side that sent a segment.
    #[inline]
    pub(super) fn sender_side(&self, info: &SegmentInfo) -> usize {
        if info.is_down == (self.identity.is_forward_down != 0) { CLIENT_SIDE } else { SERVER_SIDE }
    }

    /// Returns the time at which the connection expires if no further segments arrive.
    pub(super) const fn expiry_time(&self, timeout: Time) -> Time {
        let silence = if self.has_flags(CLOSED_FLAG) && LINGER_TIME < timeout {
            LINGER_TIME
        } else {
            timeout
        };
        self.identity.word.saturating_add(silence)
    }

    /// Returns true if a segment belongs to a later connection between the same endpoints. A SYN
    /// alone does not prove this while this connection is open (RFC 9293 §3.10.7.4): the server
    /// must have confirmed the SYN, or the server's side must be unobserved.
    pub(super) fn is_superseded(&self, info: &SegmentInfo) -> bool {
        let [client, server] = &self.sides;
        let probed = self.has_flags(SYN_PROBED_FLAG);
        let closed = self.has_flags(CLOSED_FLAG) || self.has_pending_reset();
        if !info.has_flags(flag::SYN) {
            let unheard = !server.has_flags(OPEN_FLAG) && info.has_data();
            return probed && unheard && info.span.from == self.probe;
        }
        let sender = self.sender_side(info);
        let side = if sender == CLIENT_SIDE { client } else { server };
        if side.has_flags(START_KNOWN_FLAG) && side.start == info.span.from {
            return closed && !info.has_flags(flag::ACK) && !self.has_emitted();
        }
        match info.has_flags(flag::ACK) {
            _ if closed => true,
            true => sender == SERVER_SIDE && probed && info.acknowledgement == self.probe,
            false => sender == CLIENT_SIDE && !self.has_emitted() && !server.has_flags(OPEN_FLAG),
        }
    }

    /// Returns true if any side of the connection has emitted a block.
    pub(super) fn has_emitted(&self) -> bool {
        self.sides.iter().any(|side| side.has_flags(DATA_EMITTED_FLAG))
    }

    /// Processes a segment on a fast path, and returns the index of the side that sent it. The
    /// segment must be a plain ACK without data, or with data that is next in order and completely
    /// captured (`here` bytes), while nothing is held or pending. Returns `None`, without effect,
    /// for other segments, which [`TcpConnection::process_segment`] must process. That function has
    /// the same effect on the segments that are accepted here.
    #[inline]
    pub(super) fn process_common_segment(
        &mut self,
        info: &SegmentInfo,
        here: u32,
        timeout: Time,
    ) -> Option<usize> {
        const PLAIN_FLAGS: u8 = flag::ACK;
        let sender = self.sender_side(info);
        let shift = self.window_scale(sender);
        let [client, server] = &mut self.sides;
        let (side, other) = if sender == CLIENT_SIDE { (client, server) } else { (server, client) };
        let next = info.span.from == side.next && here == info.length();
        let plain = info.flags & (flag::SYN | flag::FIN | flag::RST | flag::ACK) == PLAIN_FLAGS
            && (side.flags | other.flags) & FIN_KNOWN_FLAG == 0
            && side.is_fin_pending | other.is_fin_pending == 0
            && side.held.is_empty()
            && other.held.is_empty()
            && ((next && side.has_flags(OPEN_FLAG)) || !info.has_data());
        let open = self.identity.flags & (CLOSED_FLAG | SYN_PROBED_FLAG | ANY_RESET_FLAGS) == 0;
        if !plain || !open || info.time > self.identity.word.saturating_add(timeout) {
            return None;
        }
        other.acknowledge(info.acknowledgement, info.window << shift);
        self.identity.word = self.identity.word.max(info.time);
        Some(sender)
    }

    /// Prepares the block as the next output of side `number`: sets the class and the metadata of
    /// the block, and advances the stream of the side past the block.
    #[inline]
    pub(super) fn prepare_next_output<'a>(&mut self, number: usize, block: Block<'a>) -> Block<'a> {
        let (class, context) = self.output_class_and_metadata(number, block.context.time);
        let [client, server] = &mut self.sides;
        let side = if number == CLIENT_SIDE { client } else { server };
        side.prepare_output(class, context, block)
    }

    /// Processes a segment of this connection: its RST, or else its SYN, acknowledgement, data and
    /// FIN.
    pub(super) fn process_segment<'a>(
        &mut self,
        info: &SegmentInfo,
        block: Block<'a>,
        rules: ReassemblyRules,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        let sender = self.sender_side(info);
        if info.has_flags(flag::RST) {
            cx.consume(&block);
            return self.process_reset(sender, info, rules, cx);
        }
        self.withdraw_disproved_reset(info, rules, cx);
        if info.has_flags(flag::SYN) && !self.process_syn(sender, info) {
            // Within a connection the other end replies to a SYN with an ACK and ignores its data
            // (RFC 9293 §3.10.7.4).
            return cx.consume(&block);
        }
        if info.has_flags(flag::ACK) {
            self.process_acknowledgement(sender, info, rules, cx);
        }
        let fin = info.has_flags(flag::FIN) && self.has_plausible_signature(sender, info);
        let (side, mut output) = self.side_output(sender, rules, info.time, cx);
        if !side.has_flags(OPEN_FLAG) && (info.has_data() || fin) {
            if side.has_flags(FIN_KNOWN_FLAG) {
                return output.cx.drop(&block, CONNECTION_CLOSED);
            }
            side.open(info.span.from, false);
        }
        side.process_segment(&mut output, block, SegmentData { span: info.span, fin });
        self.emit_due_ends(info.time, rules, cx);
    }

    /// Records the acknowledgement number and the window of a segment in the side whose data the
    /// segment acknowledges. Abandons the gaps of this side before the acknowledgement number.
    #[inline]
    pub(super) fn process_acknowledgement(
        &mut self,
        sender: usize,
        info: &SegmentInfo,
        rules: ReassemblyRules,
        cx: &mut StreamContext<'_, '_>,
    ) {
        let shift = if info.has_flags(flag::SYN) { 0 } else { self.window_scale(sender) };
        let (side, mut output) = self.side_output(1 - sender, rules, info.time, cx);
        side.acknowledge(info.acknowledgement, info.window << shift);
        side.abandon_acknowledged_gaps(&mut output);
    }

    /// Processes a SYN. Returns true if the stream of its sender begins with the sequence number of
    /// the SYN. A SYN starts this stream unless the stream has started already. If the SYN
    /// acknowledges a SYN that was not observed, it starts the other stream too. A later SYN of a
    /// server that lost the client's first SYN restarts the server's stream. A later SYN of the
    /// client is recorded as the possible start of another connection. Any other SYN has no effect.
    #[cold]
    fn process_syn(&mut self, sender: usize, info: &SegmentInfo) -> bool {
        let [client, server] = &mut self.sides;
        let (side, other) = if sender == CLIENT_SIDE { (client, server) } else { (server, client) };
        let from = info.span.from;
        if !side.has_flags(OPEN_FLAG) {
            side.open(from, true);
            side.flags |= SYN_OBSERVED_FLAG;
            (side.window_scale, side.is_syn_signed) = (info.scale, info.is_signed.into());
            if info.has_flags(flag::ACK) && !other.has_flags(OPEN_FLAG) {
                other.open(info.acknowledgement, true);
            }
            return true;
        }
        let again = from == side.start;
        let answers = info.has_flags(flag::ACK) && info.acknowledgement == other.start;
        if sender == CLIENT_SIDE && !again && !info.has_flags(flag::ACK) {
            self.probe = from;
            self.identity.flags |= SYN_PROBED_FLAG;
        } else if sender == SERVER_SIDE && !again && answers && side.may_restart() {
            // An earlier FIN has a sequence number of the abandoned stream.
            side.flags &= !(ACK_OBSERVED_FLAG | FIN_KNOWN_FLAG);
            side.open(from, true);
            (side.window_scale, side.is_syn_signed) = (info.scale, info.is_signed.into());
        }
        side.start == from
    }

    /// Emits the end of each side whose data is complete, if the connection has emitted data.
    /// Closes the connection when both sides are complete.
    #[inline]
    pub(super) fn emit_due_ends(
        &mut self,
        time: Time,
        rules: ReassemblyRules,
        cx: &mut StreamContext<'_, '_>,
    ) {
        if self.sides.iter().any(StreamSide::is_at_end) && !self.has_flags(CLOSED_FLAG) {
            self.emit_ends_and_close(time, rules, cx);
        }
    }

    #[cold]
    fn emit_ends_and_close(
        &mut self,
        time: Time,
        rules: ReassemblyRules,
        cx: &mut StreamContext<'_, '_>,
    ) {
        if self.has_emitted() {
            for number in [CLIENT_SIDE, SERVER_SIDE] {
                let (side, mut output) = self.side_output(number, rules, time, cx);
                if side.is_at_end() && !side.has_flags(END_EMITTED_FLAG) {
                    side.emit_end(&mut output);
                }
            }
        }
        if self.sides.iter().all(StreamSide::is_at_end) {
            self.identity.flags = self.identity.flags & !ANY_RESET_FLAGS | CLOSED_FLAG;
        }
    }

    /// Closes the connection. Emits held data and, if the connection has emitted data before, the
    /// end of each side. Holes and ends have the time of the last segment, and not the time of the
    /// timeout, eviction or end of input that closes the connection.
    pub(super) fn close(&mut self, rules: ReassemblyRules, cx: &mut StreamContext<'_, '_>) {
        let time = self.identity.word;
        for number in [CLIENT_SIDE, SERVER_SIDE] {
            let (side, mut output) = self.side_output(number, rules, time, cx);
            side.finish_side(&mut output);
        }
        let reset = self.identity.flags & ANY_RESET_FLAGS;
        self.emit_ends_and_close(time, rules, cx);
        self.identity.flags |= CLOSED_FLAG | reset;
    }

    /// Abandons the gaps whose timeout has passed at `now`. If a pending RST has taken effect,
    /// closes the connection instead. The emitted holes have the time of the last segment.
    pub(super) fn abandon_expired_gaps(
        &mut self,
        (now, lag): (Time, TimestampLag),
        rules: ReassemblyRules,
        cx: &mut StreamContext<'_, '_>,
    ) {
        if self.reset_effect_time(rules).is_some_and(|until| lag.to_path_time(until) < now) {
            return self.close(rules, cx);
        }
        let time = self.identity.word;
        for number in [CLIENT_SIDE, SERVER_SIDE] {
            let (side, mut output) = self.side_output(number, rules, time, cx);
            let from = side.next;
            while side.has_gap() && side.gap_start.saturating_add(rules.gap_timeout) < now {
                side.abandon_gap(&mut output);
            }
            side.extend_abandoned_range(from);
        }
        self.emit_due_ends(time, rules, cx);
    }

    /// Returns the earliest timeout of a gap or a pending RST on the path's clock, or `None` if
    /// there is neither.
    pub(super) fn next_timeout(&self, rules: ReassemblyRules, lag: TimestampLag) -> Option<Time> {
        let waiting = self.sides.iter().filter(|side| side.has_gap());
        let gaps = waiting.map(|side| side.gap_start.saturating_add(rules.gap_timeout));
        gaps.chain(self.reset_effect_time(rules).map(|until| lag.to_path_time(until))).min()
    }

    /// Returns side `number` of the connection, and the output for the blocks of this side.
    #[inline]
    fn side_output<'s, 'w, 'c, 'a>(
        &'s mut self,
        number: usize,
        rules: ReassemblyRules,
        time: Time,
        cx: &'w mut StreamContext<'c, 'a>,
    ) -> (&'s mut StreamSide, SideOutput<'w, 'c, 'a>) {
        let (class, context) = self.output_class_and_metadata(number, time);
        let [client, server] = &mut self.sides;
        let side = if number == CLIENT_SIDE { client } else { server };
        (side, SideOutput { cx, rules, class, context })
    }

    /// Returns the class and the metadata that all output blocks of side `number` have.
    #[inline]
    fn output_class_and_metadata(&self, number: usize, time: Time) -> (Class, BlockMetadata) {
        let flags = if number == CLIENT_SIDE { BlockFlags::NONE } else { BlockFlags::BACKWARD };
        let session = self.identity.session;
        let context = BlockMetadata { time, session, origin: self.origin, flags };
        (Class::from_natural(self.identity.port.into()), context)
    }

    /// Returns the window scale of side `number`: the shift count for the windows that it
    /// advertises. The count is 0 if a SYN of either side offered no scaling (RFC 7323 §2.2). It is
    /// the maximum if the SYN of this side was not observed.
    #[inline]
    fn window_scale(&self, number: usize) -> u8 {
        let [client, server] = &self.sides;
        let side = if number == CLIENT_SIDE { client } else { server };
        let declines = |side: &StreamSide| {
            side.has_flags(SYN_OBSERVED_FLAG) && side.window_scale == NO_WINDOW_SCALE
        };
        match declines(client) || declines(server) {
            true => 0,
            false if side.has_flags(SYN_OBSERVED_FLAG) => {
                side.window_scale.min(super::connection::WINDOW_SCALE_MAX)
            }
            false => super::connection::WINDOW_SCALE_MAX,
        }
    }
}
