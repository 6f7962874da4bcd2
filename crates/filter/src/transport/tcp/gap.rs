//! Gaps of one side of a connection: how long missing bytes are waited for, and what follows when
//! they are abandoned.
//!
//! An acknowledgement does not end the wait at once: a capture from several queues may contain it
//! before the bytes that it acknowledges ([`ACKNOWLEDGED_WAIT`]). The answer of the other end may
//! therefore leave before data that waits for bytes which were never captured.

use super::connection::{FIN, StreamSide, is_after};
use super::outcomes::OUT_OF_WINDOW;
use super::reassembly::{Rules, SideOutput};
use crate::contract::Time;

/// Time in ns after an acknowledgement at which the acknowledged bytes, if still missing, are
/// abandoned. Queues of a network card are emptied µs apart, and under load some ms.
pub(super) const ACKNOWLEDGED_WAIT: Time = 10_000_000;

impl StreamSide {
    /// Records the start time of a gap, unless a gap has already begun.
    pub(super) fn mark_gap(&mut self, output: &SideOutput<'_, '_, '_>) {
        if self.held.is_empty() {
            self.begin_gap(output);
        }
    }

    /// Records the start of a gap at `next`.
    pub(super) fn begin_gap(&mut self, output: &SideOutput<'_, '_, '_>) {
        (self.gap_start, self.gap_acknowledged) = (output.cx.now, 0);
        self.note_acknowledged(output);
    }

    /// Limits the wait for missing bytes if the other end has acknowledged some of them: they were
    /// sent, and arrive soon or were not captured.
    pub(super) fn note_acknowledged(&mut self, output: &SideOutput<'_, '_, '_>) {
        let Some(number) = self.acknowledged().filter(|_| self.gap_acknowledged == 0) else {
            return;
        };
        let acknowledged = match self.held.is_empty() {
            true => self.has_flags(FIN) && number == self.fin && number != self.next,
            false => is_after(number, self.next),
        };
        let until = output.context.time.saturating_add(ACKNOWLEDGED_WAIT);
        if acknowledged && until < self.gap_due(output.rules) {
            let lag = output.cx.now.saturating_sub(output.context.time);
            self.gap_start = output.context.time;
            self.gap_acknowledged =
                1 + lag.checked_next_power_of_two().unwrap_or(0).trailing_zeros() as u8;
        }
    }

    /// Returns the time, as segments have it, after which the current gap is abandoned.
    pub(super) fn gap_due(&self, rules: Rules) -> Time {
        let wait = match self.gap_acknowledged {
            0 => rules.gap_timeout,
            _ => rules.gap_timeout.min(ACKNOWLEDGED_WAIT),
        };
        self.gap_start.saturating_add(wait)
    }

    /// Returns the time on the path's clock at which an acknowledged gap is abandoned if no segment
    /// of the connection arrives. The clock is ahead of the segments, of which late ones may not
    /// have been read yet.
    pub(super) fn acknowledged_due(&self, rules: Rules) -> Time {
        let lag_log2 = u32::from(self.gap_acknowledged.saturating_sub(1));
        self.gap_due(rules).saturating_add(1_u64.checked_shl(lag_log2).unwrap_or(Time::MAX))
    }

    /// Abandons the gap before the first held block or, if no block is held, before the end. If the
    /// other end would not accept this block or end, or if the block begins after the end, drops it
    /// instead.
    pub(super) fn abandon_gap(&mut self, output: &mut SideOutput<'_, '_, '_>) {
        let front = output.cx.front(&self.held).map(|(key, _)| key);
        // Each call removes a gap, a held block or the FIN, even from forged state, so that callers
        // can repeat the call until nothing is pending.
        let ahead = |place: u32| is_after(place, self.next) && self.may_be_accepted(place);
        match front {
            Some(front) if ahead(front) && (!self.has_flags(FIN) || is_after(self.fin, front)) => {
                self.skip(output, front);
            }
            Some(_) => {
                let mut list = self.held;
                if let Some((_, block)) = output.cx.front(&list) {
                    self.held_bytes = self.held_bytes.saturating_sub(block.length());
                    output.cx.drop_front(&mut list, OUT_OF_WINDOW);
                }
                self.held = list;
            }
            None if ahead(self.fin) => self.skip(output, self.fin),
            None => self.flags &= !FIN,
        }
    }

    /// Abandons all gaps whose bytes the other end has acknowledged, since these bytes were sent
    /// but not captured: only gaps before held data, or before a known end.
    pub(super) fn abandon_acknowledged(&mut self, output: &mut SideOutput<'_, '_, '_>) {
        // What is left of the gap begins now.
        (self.gap_start, self.gap_acknowledged) = (output.cx.now, 0);
        let Some(number) = self.acknowledged() else { return };
        while !self.held.is_empty() && is_after(number, self.next) {
            let front = output.cx.front(&self.held).map_or(number, |(key, _)| key);
            self.advance(output, if is_after(front, number) { number } else { front });
        }
        if self.has_flags(FIN) && number == self.fin {
            self.skip(output, number);
        }
    }
}
