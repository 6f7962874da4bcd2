//! Acceptance of resets.
//!
//! In: a RST and the following segments. Out: a decision whether the connection has ended. Both a
//! sender and an accepting receiver of a RST have dropped the connection, so further segments prove
//! that the RST was forged or ignored. A RST that the other end may accept therefore ends the
//! connection only after `gap` has passed without further segments; until then segments are
//! processed as before. A RST that the other end certainly ignores has no effect:
//!
//! - its number is outside of the window (RFC 9293 §3.5.3, RFC 5961 §3);
//! - it is signed although its side's SYN was not, or the reverse: a host without a key drops
//!   signed segments, and one with a key drops unsigned ones (RFC 2385, RFC 5925, Linux).
//!
//! If a connection continues after it was considered closed, the rest is a new session, which
//! begins in midstream.

use super::connection::{ANY_RESET, CLOSED, OPEN, PROBED, RESET, SCALED, TcpConnection, after};
use super::lifecycle::CLIENT;
use super::outcomes::{IGNORED, TAKEN_BACK};
use super::reassembly::Rules;
use super::segment_info::SegmentInfo;
use crate::contract::{StreamContext, Time};
use wire::tcp::flag;

impl TcpConnection {
    /// Returns true if a RST is pending.
    pub(super) const fn is_reset(&self) -> bool {
        self.has(ANY_RESET) && !self.has(CLOSED)
    }

    /// Returns the time at which a pending RST takes effect.
    pub(super) fn reset_until(&self, rules: Rules) -> Option<Time> {
        self.is_reset().then(|| self.identity.word.saturating_add(rules.gap))
    }

    /// Processes a RST. If the other end may accept it, it becomes pending, and its time replaces
    /// that of the last segment.
    #[cold]
    pub(super) fn reset(
        &mut self,
        sender: usize,
        info: &SegmentInfo,
        rules: Rules,
        cx: &mut StreamContext<'_, '_>,
    ) {
        if self.has(CLOSED) {
            return;
        }
        let [client, server] = &self.sides;
        let (side, other) = if sender == CLIENT { (client, server) } else { (server, client) };
        let answers = info.has(flag::ACK) && other.next == info.acknowledgement;
        if !side.may_reset(info.span.from, answers) || !self.may_be_signed(sender, info) {
            return cx.count(IGNORED, 1);
        }
        if info.has(flag::ACK) {
            self.acknowledged(sender, info, rules, cx);
        }
        self.identity.flags = self.identity.flags & !PROBED | by(sender);
        self.identity.word = info.time;
        let refuses = !self.has_emitted() && !self.sides.iter().all(|side| side.has(OPEN));
        if refuses || rules.gap == 0 {
            self.close(info.time, rules, cx);
        }
    }

    /// Returns true if the other end may accept a segment with this signature status. Without an
    /// observed SYN that is unknown.
    pub(super) fn may_be_signed(&self, sender: usize, info: &SegmentInfo) -> bool {
        let [client, server] = &self.sides;
        let side = if sender == CLIENT { client } else { server };
        !side.has(SCALED) || info.signed == (side.signed != 0)
    }

    /// Withdraws a pending RST if this segment shows that the connection continues.
    #[inline]
    pub(super) fn weigh(
        &mut self,
        info: &SegmentInfo,
        rules: Rules,
        cx: &mut StreamContext<'_, '_>,
    ) {
        if self.is_reset() && self.goes_on_nevertheless(info, rules) {
            self.identity.flags &= !ANY_RESET;
            self.identity.word = self.identity.word.max(info.time);
            cx.count(TAKEN_BACK, 1);
        }
    }

    /// Returns true if a segment shows that the RST was forged or ignored: new data or a new
    /// acknowledgement from the RST's sender; from the other end only after half of `gap`, since
    /// segments may be in flight, or if it acknowledges later data.
    #[cold]
    pub(super) fn goes_on_nevertheless(&self, info: &SegmentInfo, rules: Rules) -> bool {
        if info.has(flag::SYN) || info.has(flag::RST) || !self.may_be_signed_at_all(info) {
            return false;
        }
        let sender = self.sender(info);
        let [client, server] = &self.sides;
        let (side, other) = if sender == CLIENT { (client, server) } else { (server, client) };
        let new = side.is_new(info.span.from, info.span.to);
        let number = info.acknowledgement;
        let more = info.has(flag::ACK)
            && other.acknowledged().is_none_or(|known| after(number, known))
            && other.may_be_taken(number);
        if self.has(CLOSED) && !new {
            return false;
        }
        if self.has(by(sender)) {
            return new || more;
        }
        let late = info.time > self.identity.word.saturating_add(rules.gap / 2);
        late || (more && other.has(OPEN) && after(number, other.next))
    }

    /// Returns true if the segment's FIN, if any, has its side's signature status.
    fn may_be_signed_at_all(&self, info: &SegmentInfo) -> bool {
        !info.has(flag::FIN) || self.may_be_signed(self.sender(info), info)
    }
}

/// Returns the flag for a RST from this side.
const fn by(sender: usize) -> u8 {
    if sender == CLIENT { RESET[0] } else { RESET[1] }
}
