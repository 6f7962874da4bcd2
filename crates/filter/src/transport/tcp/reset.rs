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
    ANY_RESET_FLAGS, CLOSED_FLAG, OPEN_FLAG, RESET_FLAGS, SYN_OBSERVED_FLAG, SYN_PROBED_FLAG,
    TcpConnection, is_sequence_after,
};
use super::lifecycle::CLIENT_SIDE;
use super::outcomes::{RESETS_IGNORED, RESETS_WITHDRAWN};
use super::reassembly::ReassemblyRules;
use super::segment_info::SegmentInfo;
use crate::contract::{StreamContext, Time};
use wire::tcp::flag;

impl TcpConnection {
    /// Returns true if a RST is pending.
    pub(super) const fn has_pending_reset(&self) -> bool {
        self.has_flags(ANY_RESET_FLAGS) && !self.has_flags(CLOSED_FLAG)
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
        if self.has_flags(CLOSED_FLAG) {
            return;
        }
        let [client, server] = &self.sides;
        let (side, other) = if sender == CLIENT_SIDE { (client, server) } else { (server, client) };
        let answers = info.has_flags(flag::ACK) && other.next == info.acknowledgement;
        if !side.is_acceptable_reset(info.span.from, answers)
            || !self.has_plausible_signature(sender, info)
        {
            return cx.count(RESETS_IGNORED, 1);
        }
        if info.has_flags(flag::ACK) {
            self.process_acknowledgement(sender, info, rules, cx);
        }
        self.identity.flags = self.identity.flags & !SYN_PROBED_FLAG | reset_flag(sender);
        self.identity.word = info.time;
        let refuses =
            !self.has_emitted() && !self.sides.iter().all(|side| side.has_flags(OPEN_FLAG));
        if refuses || rules.gap_timeout == 0 {
            self.close(rules, cx);
        }
    }

    /// Returns true if the segment is signed and the SYN of its side was too, or if both are
    /// unsigned. Also returns true if that SYN was not observed. The peer drops any other segment.
    pub(super) fn has_plausible_signature(&self, sender: usize, info: &SegmentInfo) -> bool {
        let [client, server] = &self.sides;
        let side = if sender == CLIENT_SIDE { client } else { server };
        !side.has_flags(SYN_OBSERVED_FLAG) || info.is_signed == (side.is_syn_signed != 0)
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
            self.identity.flags &= !ANY_RESET_FLAGS;
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
        if info.has_flags(flag::SYN) || info.has_flags(flag::RST) || !self.has_plausible_fin(info) {
            return false;
        }
        let sender = self.sender_side(info);
        let [client, server] = &self.sides;
        let (side, other) = if sender == CLIENT_SIDE { (client, server) } else { (server, client) };
        let new = side.has_new_data(info.span.from, info.span.to);
        let number = info.acknowledgement;
        let more = info.has_flags(flag::ACK)
            && other.acknowledged_sequence().is_none_or(|known| is_sequence_after(number, known))
            && other.is_acceptable_sequence(number);
        if self.has_flags(CLOSED_FLAG) && !new {
            return false;
        }
        if self.has_flags(reset_flag(sender)) {
            return new || more;
        }
        let late = info.time > self.identity.word.saturating_add(rules.gap_timeout / 2);
        late || (more && other.has_flags(OPEN_FLAG) && is_sequence_after(number, other.next))
    }

    /// Returns false for a FIN that the peer drops because of its signature: either the FIN or the
    /// SYN of the same side is signed, but not both. Returns true for every other segment.
    fn has_plausible_fin(&self, info: &SegmentInfo) -> bool {
        !info.has_flags(flag::FIN) || self.has_plausible_signature(self.sender_side(info), info)
    }
}

/// Returns the flag that records a RST sent by the side with index `sender`.
const fn reset_flag(sender: usize) -> u8 {
    if sender == CLIENT_SIDE { RESET_FLAGS[0] } else { RESET_FLAGS[1] }
}
