//! Acceptance of TCP resets.
//!
//! Input: a RST and the segments after it. Output: a decision whether the connection has ended. The
//! sender of a RST drops the connection, and so does a receiver that accepts the RST. Further
//! segments therefore prove that the RST was forged, or that its receiver ignored it. A RST that
//! the peer may accept ends the connection only after `gap` has passed without further segments.
//! Until then, segments are processed as usual. A RST that the peer certainly ignores has no
//! effect:
//!
//! - its sequence number is outside of the window (RFC 9293 §3.5.3, RFC 5961 §3);
//! - it is signed and the SYN of the same side was not, or the reverse. A host without a key drops
//!   signed segments, and a host with a key drops unsigned segments (RFC 2385, RFC 5925, Linux).
//!
//! If a connection continues after it was considered closed, its remaining segments form a new
//! session, which begins in midstream.

use super::connection::{
    ANY_RESET, CLOSED, OPEN, RESET, SYN_OBSERVED, SYN_PROBED, TcpConnection, is_sequence_after,
};
use super::lifecycle::CLIENT;
use super::outcomes::{RESETS_IGNORED, RESETS_WITHDRAWN};
use super::reassembly::ReassemblyRules;
use super::segment_info::SegmentInfo;
use crate::contract::{StreamContext, Time};
use wire::tcp::flag;

impl TcpConnection {
    /// Returns true if a RST is pending.
    pub(super) const fn has_pending_reset(&self) -> bool {
        self.has_flags(ANY_RESET) && !self.has_flags(CLOSED)
    }

    /// Returns the time at which a pending RST takes effect, or `None` if no RST is pending.
    pub(super) fn reset_effect_time(&self, rules: ReassemblyRules) -> Option<Time> {
        self.has_pending_reset().then(|| self.identity.word.saturating_add(rules.gap_timeout))
    }

    /// Processes a RST. If the peer may accept the RST, it becomes pending, and its time replaces
    /// the time of the last segment. It takes effect at once if the gap timeout is 0, or if it
    /// rejects the opening of the connection. If the peer must ignore the RST, only counts it. Does
    /// nothing if the connection is closed.
    #[cold]
    pub(super) fn process_reset(
        &mut self,
        sender: usize,
        info: &SegmentInfo,
        rules: ReassemblyRules,
        cx: &mut StreamContext<'_, '_>,
    ) {
        if self.has_flags(CLOSED) {
            return;
        }
        let [client, server] = &self.sides;
        let (side, other) = if sender == CLIENT { (client, server) } else { (server, client) };
        let answers = info.has(flag::ACK) && other.next == info.acknowledgement;
        if !side.may_accept_reset(info.span.from, answers)
            || !self.has_plausible_signature(sender, info)
        {
            return cx.count(RESETS_IGNORED, 1);
        }
        if info.has(flag::ACK) {
            self.process_acknowledgement(sender, info, rules, cx);
        }
        self.identity.flags = self.identity.flags & !SYN_PROBED | reset_flag(sender);
        self.identity.word = info.time;
        let refuses = !self.has_emitted() && !self.sides.iter().all(|side| side.has_flags(OPEN));
        if refuses || rules.gap_timeout == 0 {
            self.close(rules, cx);
        }
    }

    /// Returns true if the segment is signed and the SYN of its side was too, or if both are
    /// unsigned. Also returns true if that SYN was not observed. The peer drops any other segment.
    pub(super) fn has_plausible_signature(&self, sender: usize, info: &SegmentInfo) -> bool {
        let [client, server] = &self.sides;
        let side = if sender == CLIENT { client } else { server };
        !side.has_flags(SYN_OBSERVED) || info.is_signed == (side.is_syn_signed != 0)
    }

    /// Withdraws a pending RST if the segment `info` proves that the connection continues.
    #[inline]
    pub(super) fn withdraw_disproved_reset(
        &mut self,
        info: &SegmentInfo,
        rules: ReassemblyRules,
        cx: &mut StreamContext<'_, '_>,
    ) {
        if self.has_pending_reset() && self.disproves_reset(info, rules) {
            self.identity.flags &= !ANY_RESET;
            self.identity.word = self.identity.word.max(info.time);
            cx.count(RESETS_WITHDRAWN, 1);
        }
    }

    /// Returns true if a segment proves that a RST was forged, or that the receiver of the RST
    /// ignored it. If the segment comes from the sender of the RST, new data or a new
    /// acknowledgement is proof. Segments of the peer may have been in flight when the RST was
    /// sent. If the segment comes from the peer, it is therefore proof only if it arrives more than
    /// half of the gap timeout after the RST, or acknowledges data sent after the RST. On a closed
    /// connection, the segment must also carry new data. A SYN or RST is never proof.
    #[cold]
    pub(super) fn disproves_reset(&self, info: &SegmentInfo, rules: ReassemblyRules) -> bool {
        if info.has(flag::SYN) || info.has(flag::RST) || !self.has_plausible_fin(info) {
            return false;
        }
        let sender = self.sender(info);
        let [client, server] = &self.sides;
        let (side, other) = if sender == CLIENT { (client, server) } else { (server, client) };
        let new = side.is_new(info.span.from, info.span.to);
        let number = info.acknowledgement;
        let more = info.has(flag::ACK)
            && other.acknowledged().is_none_or(|known| is_sequence_after(number, known))
            && other.may_be_accepted(number);
        if self.has_flags(CLOSED) && !new {
            return false;
        }
        if self.has_flags(reset_flag(sender)) {
            return new || more;
        }
        let late = info.time > self.identity.word.saturating_add(rules.gap_timeout / 2);
        late || (more && other.has_flags(OPEN) && is_sequence_after(number, other.next))
    }

    /// Returns false for a FIN that the peer drops because of its signature: either the FIN or the
    /// SYN of the same side is signed, but not both. Returns true for every other segment.
    fn has_plausible_fin(&self, info: &SegmentInfo) -> bool {
        !info.has(flag::FIN) || self.has_plausible_signature(self.sender(info), info)
    }
}

/// Returns the flag that records a RST sent by the side with index `sender`.
const fn reset_flag(sender: usize) -> u8 {
    if sender == CLIENT { RESET[0] } else { RESET[1] }
}
