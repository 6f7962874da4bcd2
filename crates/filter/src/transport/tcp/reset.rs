//! Resets, weighed before they are believed.
//!
//! In: a RST, and what follows it. Out: whether the connection is over. A host that sends a RST has
//! no connection any more, and one that heeds it neither: so whoever goes on shows that the RST was
//! forged, or that it was ignored. That is seen only afterwards. So a RST that the other end may
//! heed ends the connection when nobody has gone on for `gap`; until then what comes is taken as
//! before. A RST that the other end ignores for certain changes nothing:
//!
//! - its number lies outside of the window (RFC 9293 §3.5.3, RFC 5961 §3);
//! - it is signed although the SYN of its side was not, or the other way round: who has no key
//!   drops what is signed, and who has one drops what is not (RFC 2385, RFC 5925, Linux).
//!
//! If somebody goes on after all, when the connection was taken for closed, what comes then is
//! another session, which begins in the middle.

use super::IGNORED;
use super::TAKEN_BACK;
use super::connection::{ANY_RESET, CLOSED, Connection, OPEN, PROBED, RESET, SCALED, after};
use super::course::CLIENT;
use super::heard::Heard;
use super::reassembly::Rules;
use crate::contract::{StreamContext, Time};
use wire::tcp::flag;

impl Connection {
    /// Returns true if a RST waits for what follows it.
    pub(super) const fn is_reset(&self) -> bool {
        self.has(ANY_RESET) && !self.has(CLOSED)
    }

    /// Until when somebody must go on, if a RST waits.
    pub(super) fn reset_until(&self, rules: Rules) -> Option<Time> {
        self.is_reset().then(|| self.identity.word.saturating_add(rules.gap))
    }

    /// A RST. Of one that the other end may heed the time is kept, in place of when the connection
    /// was last heard of.
    #[cold]
    pub(super) fn reset(
        &mut self,
        sender: usize,
        heard: &Heard,
        rules: Rules,
        cx: &mut StreamContext<'_, '_>,
    ) {
        if self.has(CLOSED) {
            return;
        }
        let [client, server] = &self.sides;
        let (side, other) = if sender == CLIENT { (client, server) } else { (server, client) };
        let answers = heard.has(flag::ACK) && other.next == heard.acknowledgement;
        if !side.may_reset(heard.span.from, answers) || !self.may_be_signed(sender, heard) {
            return cx.count(IGNORED, 1);
        }
        if heard.has(flag::ACK) {
            self.acknowledged(sender, heard, rules, cx);
        }
        self.identity.flags = self.identity.flags & !PROBED | by(sender);
        self.identity.word = heard.time;
        let refuses = !self.was_heard() && !self.sides.iter().all(|side| side.has(OPEN));
        if refuses || rules.gap == 0 {
            self.close(heard.time, rules, cx);
        }
    }

    /// Whether the other end takes a segment that is signed as this one is. Where the SYN was not
    /// seen, nobody can tell.
    pub(super) fn may_be_signed(&self, sender: usize, heard: &Heard) -> bool {
        let [client, server] = &self.sides;
        let side = if sender == CLIENT { client } else { server };
        !side.has(SCALED) || heard.signed == (side.signed != 0)
    }

    /// Takes a RST back if this segment shows that somebody has gone on.
    #[inline]
    pub(super) fn weigh(&mut self, heard: &Heard, rules: Rules, cx: &mut StreamContext<'_, '_>) {
        if self.is_reset() && self.goes_on_nevertheless(heard, rules) {
            self.identity.flags &= !ANY_RESET;
            self.identity.word = self.identity.word.max(heard.time);
            cx.count(TAKEN_BACK, 1);
        }
    }

    /// Whether a segment shows that the RST was forged or ignored. Its sender goes on if it sends
    /// what is new, or acknowledges more; what the other end sends may have been under way for half
    /// of `gap`, unless it acknowledges what its sender sent since.
    #[cold]
    pub(super) fn goes_on_nevertheless(&self, heard: &Heard, rules: Rules) -> bool {
        if heard.has(flag::SYN) || heard.has(flag::RST) || !self.may_be_signed_at_all(heard) {
            return false;
        }
        let sender = self.sender(heard);
        let [client, server] = &self.sides;
        let (side, other) = if sender == CLIENT { (client, server) } else { (server, client) };
        let new = side.is_new(heard.span.from, heard.span.to);
        let number = heard.acknowledgement;
        let more = heard.has(flag::ACK)
            && other.acknowledged().is_none_or(|known| after(number, known))
            && other.may_be_taken(number);
        if self.has(CLOSED) && !new {
            return false;
        }
        if self.has(by(sender)) {
            return new || more;
        }
        let late = heard.time > self.identity.word.saturating_add(rules.gap / 2);
        late || (more && other.has(OPEN) && after(number, other.next))
    }

    /// Returns true if a FIN, if the segment has one, is signed as its side is.
    fn may_be_signed_at_all(&self, heard: &Heard) -> bool {
        !heard.has(flag::FIN) || self.may_be_signed(self.sender(heard), heard)
    }
}

/// The flag that says that this side sent a RST.
const fn by(sender: usize) -> u8 {
    if sender == CLIENT { RESET[0] } else { RESET[1] }
}
