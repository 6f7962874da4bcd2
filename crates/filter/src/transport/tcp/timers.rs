//! Timers of gaps and of pending RSTs.

use super::connection::{ACKNOWLEDGED_TIMER_SET, CLOSED, GAP_TIMER_SET, TcpConnection};
use super::gap::ACKNOWLEDGED_WAIT;
use super::reassembly::Rules;
use super::track::Tcp;
use super::wheel::{TimerEntry, Wheel};
use crate::prelude::*;

impl Tcp {
    /// Abandons the expired gaps of a connection, if it still exists, or ends it if its pending RST
    /// has taken effect. Restarts its gap timer.
    pub(super) fn check_gap(&mut self, timer: TimerEntry, cx: &mut StreamContext<'_, '_>) {
        if self.connection_of_timer(timer).is_none() {
            return;
        }
        let Some(connection) = self.flows.find(timer.key) else { return };
        connection.identity.flags &= !GAP_TIMER_SET;
        if connection
            .next_timeout(self.rules)
            .is_some_and(|due| self.gap_timeouts.is_due(due, cx.now))
        {
            connection.abandon_expired(cx.now, self.rules, cx);
            if connection.has_flags(CLOSED) {
                self.idle_timeouts.add(timer, connection.expires_at(self.timeout), cx.now);
            }
        }
        start_gap_timer(&mut self.gap_timeouts, timer, connection, self.rules, cx.now);
        let acknowledged = &mut self.acknowledged_timeouts;
        start_acknowledged_timer(acknowledged, timer, connection, self.rules, cx.now);
    }

    /// Abandons the acknowledged gaps of a connection whose wait has ended, if it still exists.
    /// Restarts its timers.
    pub(super) fn check_acknowledged(&mut self, timer: TimerEntry, cx: &mut StreamContext<'_, '_>) {
        if self.connection_of_timer(timer).is_none() {
            return;
        }
        let Some(connection) = self.flows.find(timer.key) else { return };
        connection.identity.flags &= !ACKNOWLEDGED_TIMER_SET;
        let due = connection.next_acknowledged_timeout(self.rules);
        if due.is_some_and(|due| self.acknowledged_timeouts.is_due(due, cx.now)) {
            let was_closed = connection.has_flags(CLOSED);
            connection.abandon_overdue(cx.now, self.rules, cx);
            if connection.has_flags(CLOSED) && !was_closed {
                self.idle_timeouts.add(timer, connection.expires_at(self.timeout), cx.now);
            }
        }
        start_gap_timer(&mut self.gap_timeouts, timer, connection, self.rules, cx.now);
        let acknowledged = &mut self.acknowledged_timeouts;
        start_acknowledged_timer(acknowledged, timer, connection, self.rules, cx.now);
    }

    /// Returns the connection for which a timer was set. Returns `None` if the connection has
    /// ended, even if another session has the same key.
    pub(super) fn connection_of_timer(&self, timer: TimerEntry) -> Option<&TcpConnection> {
        let connection = self.flows.get(timer.key)?;
        (connection.identity.session == timer.session).then_some(connection)
    }
}

/// Creates the wheel of the timers of acknowledged gaps.
pub(super) fn acknowledged_wheel(rules: Rules) -> Wheel {
    Wheel::new(rules.gap_timeout.min(ACKNOWLEDGED_WAIT))
}

/// Starts the gap timer of a connection with a pending timeout, unless the timer is already
/// running.
#[inline]
pub(super) fn start_gap_timer(
    gaps: &mut Wheel,
    timer: TimerEntry,
    connection: &mut TcpConnection,
    rules: Rules,
    now: Time,
) {
    if connection.has_flags(GAP_TIMER_SET) {
        return;
    }
    if let Some(until) = connection.next_timeout(rules) {
        connection.identity.flags |= GAP_TIMER_SET;
        gaps.add(timer, until, now);
    }
}

/// Starts the timer of a connection with an acknowledged gap, unless the timer is already running.
#[inline]
pub(super) fn start_acknowledged_timer(
    acknowledged: &mut Wheel,
    timer: TimerEntry,
    connection: &mut TcpConnection,
    rules: Rules,
    now: Time,
) {
    if connection.has_flags(ACKNOWLEDGED_TIMER_SET) {
        return;
    }
    if let Some(until) = connection.next_acknowledged_timeout(rules) {
        connection.identity.flags |= ACKNOWLEDGED_TIMER_SET;
        acknowledged.add(timer, until, now);
    }
}
