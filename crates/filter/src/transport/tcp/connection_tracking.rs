//! Connection tracking: the `tcp` filter looks up the connection of each segment and handles
//! timeouts.

use super::connection::{
    ANY_RESET_FLAGS, CLOSED_FLAG, GAP_TIMER_SET_FLAG, StreamSide, TcpConnection,
};
use super::outcomes::{
    NEW_SESSIONS, NOT_TCP, RESETS_WITHDRAWN, SESSIONS_EVICTED, SESSIONS_TIMED_OUT, WRONG_CHECKSUM,
};
use super::reassembly::ReassemblyRules;
use super::reassembly_rules_and_timeout;
use super::segment_info::{SegmentInfo, has_valid_checksum};
use super::timer_wheel::{TimerEntry, TimerWheel};
use super::timestamp_lag::TimestampLag;
use crate::layers::{self, Segment};
use crate::prelude::*;
use crate::transport::flows::FlowTable;
use wire::ports::Ports;

/// The filter `tcp`, with its connections and timers.
#[derive(Debug)]
pub(super) struct Tcp {
    flows: FlowTable<TcpConnection>,
    rules: ReassemblyRules,
    timeout: Time,
    checksum: bool,
    /// Timers that end idle connections.
    idle_timeouts: TimerWheel,
    /// Lag of the timestamps behind the path's clock. While the timestamps lag, no idle timer ends
    /// a connection.
    lag: TimestampLag,
    /// Timers for connections with a gap or a pending RST.
    gap_timeouts: TimerWheel,
    /// Lookups for all blocks of a batch, which the filter makes before it processes the first
    /// block. The vector is reused for every batch.
    lookups: Vec<SegmentLookup>,
}

/// The result of parsing one block: a segment and the key of its connection, or the reason why
/// there is no segment.
#[derive(Clone, Copy, Default, Debug)]
struct SegmentLookup {
    /// Reason why the block contains no segment, or `None` if it contains one.
    reason: Option<Reason>,
    key: u64,
    info: SegmentInfo,
    /// Offset of the segment's data in the frame.
    payload: u32,
}

impl SegmentLookup {
    #[inline]
    fn new(frame: &[u8], segment: &Segment<'_>, seed: u64, time: Time) -> Self {
        let (key, down) = FlowTable::<TcpConnection>::flow_key_and_direction(&segment.flow, seed);
        let info = SegmentInfo::new(frame, segment, down, time);
        Self { reason: None, key, info, payload: segment.payload }
    }

    #[inline(never)]
    fn from_any_block(block: &mut Block<'_>, seed: u64, time: Time) -> Self {
        let reason = match layers::segment(block) {
            Ok(Some(segment)) => return Self::new(block.frame, &segment, seed, time),
            Ok(None) => NOT_TCP,
            Err(why) => why.reason(),
        };
        Self { reason: Some(reason), ..Self::default() }
    }
}

impl HoldingLanes for Tcp {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut StreamContext<'_, 'a>) {
        let mut found = std::mem::take(&mut self.lookups);
        self.prefetch(batch, cx.now, &mut found);
        let mut next = found.iter();
        cx.for_each_block(batch, |cx, block| match next.next() {
            Some(found) => self.process_lane(block, found, cx),
            None => {
                cx.consume(&block);
                None
            }
        });
        self.lookups = found;
        self.request_tick(cx);
    }

    fn tick<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        let mut over = Vec::new();
        let now = cx.now;
        let timers = match self.lag.is_zero() {
            true => self.idle_timeouts.take_due_timers(now),
            false => Vec::new(),
        };
        for timer in timers {
            let Some(connection) = self.connection_of_timer(timer) else { continue };
            let due = connection.expiry_time(self.timeout);
            match self.idle_timeouts.is_due(due, now) {
                true => over.push((timer.session, timer.key)),
                false => self.idle_timeouts.add(timer, due, now),
            }
        }
        over.sort_unstable();
        over.dedup();
        for (_, key) in over {
            self.end_connection(key, now, cx);
        }
        let mut old = self.gap_timeouts.take_due_timers(cx.now);
        old.sort_unstable_by_key(|timer| timer.session);
        for timer in old {
            self.handle_gap_timer(timer, cx);
        }
        self.request_tick(cx);
    }

    fn finish<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        for key in self.flows.keys_by_session() {
            if let Some(mut connection) = self.flows.remove(key) {
                connection.close(self.rules, cx);
            }
        }
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(self)
    }

    fn set(&mut self, arguments: &Arguments) -> Result<(), Mistake> {
        (self.rules, self.timeout) = reassembly_rules_and_timeout(arguments);
        (self.idle_timeouts, self.gap_timeouts) =
            (TimerWheel::new(self.timeout), TimerWheel::new(self.rules.gap_timeout));
        for key in self.flows.keys_by_session() {
            self.start_timers(key);
        }
        Ok(())
    }
}

/// Moves and publishes the connections. Timeouts are not part of the moved state; the receiving
/// instance rebuilds them.
impl FilterState for Tcp {
    fn session_keys(&self) -> Vec<u64> {
        self.flows.keys()
    }

    fn take_session(&mut self, key: u64, holds: &mut HoldTable) -> Option<MovedSession> {
        self.flows.take_session(key, holds)
    }

    fn put_session(&mut self, moved: MovedSession, holds: &mut HoldTable) -> Result<(), Mistake> {
        let key = moved.key;
        self.flows.put_session(moved, holds)?;
        if key != PRIVATE_SESSION_KEY {
            self.start_timers(key);
        }
        Ok(())
    }

    fn session_number(&self, key: u64) -> u64 {
        self.flows.get(key).map_or(key, |connection| connection.identity.session.into())
    }

    fn publish(&mut self, whose: PublishedSessions, again: bool, to: &mut RowCallback<'_>) {
        self.flows.publish(whose, again, to);
    }
}

impl Tcp {
    pub(super) fn new(
        flows: FlowTable<TcpConnection>,
        rules: ReassemblyRules,
        timeout: Time,
        checksum: bool,
    ) -> Self {
        let (idle_timeouts, gap_timeouts) =
            (TimerWheel::new(timeout), TimerWheel::new(rules.gap_timeout));
        let found = vec![SegmentLookup::default(); LANES];
        let lag = TimestampLag::default();
        Self { flows, rules, timeout, checksum, idle_timeouts, lag, gap_timeouts, lookups: found }
    }

    /// Starts the timers of a connection that has no timers yet.
    fn start_timers(&mut self, key: u64) {
        let (rules, timeout) = (self.rules, self.timeout);
        if let Some(connection) = self.flows.find(key) {
            let timer = TimerEntry { key, session: connection.identity.session };
            let info = connection.identity.word;
            self.idle_timeouts.add(timer, connection.expiry_time(timeout), info);
            connection.identity.flags &= !GAP_TIMER_SET_FLAG;
            start_gap_timer(&mut self.gap_timeouts, timer, connection, rules, (info, self.lag));
        }
    }

    /// Requests a tick of the filter at the earliest time at which one of its timers may expire.
    fn request_tick(&self, cx: &mut StreamContext<'_, '_>) {
        let idle = self.idle_timeouts.next_due_time().filter(|_| self.lag.is_zero());
        for time in [idle, self.gap_timeouts.next_due_time()].into_iter().flatten() {
            cx.wake_at(time);
        }
    }

    /// Looks up the segments of a batch and prefetches the records of their connections, so that
    /// the memory accesses overlap.
    #[inline]
    fn prefetch(&mut self, batch: &mut Batch<'_>, now: Time, found: &mut [SegmentLookup]) {
        let seed = self.flows.seed();
        let timestamps =
            lanes(batch.live_lanes()).map(|l| batch.frame_and_marks(l).2.time.min(now));
        self.lag.measure(timestamps, now, self.timeout);
        for (l, found) in lanes(batch.live_lanes()).zip(found.iter_mut()) {
            let (frame, marks, BlockMetadata { time, .. }) = batch.frame_and_marks(l);
            let time = time.min(now);
            if let Some(segment) = layers::fast_path_segment(frame, marks) {
                *found = SegmentLookup::new(frame, &segment, seed, time);
                continue;
            }
            let mut block = batch.block(l);
            *found = SegmentLookup::from_any_block(&mut block, seed, time);
            batch.set_marks(l, block.marks);
        }
        let count = batch.live_lanes().count_ones() as usize;
        self.flows.prefetch(found.iter().take(count).map(|found| found.key));
    }

    /// Processes the block of a lane. `found` is the result of looking up the block's segment. If
    /// the fast path accepts the segment and the segment has data, returns the data. All other
    /// output is emitted through the context.
    #[inline]
    fn process_lane<'a>(
        &mut self,
        block: Block<'a>,
        found: &SegmentLookup,
        cx: &mut StreamContext<'_, 'a>,
    ) -> Option<Block<'a>> {
        let SegmentLookup { reason, key, info, payload } = found;
        if let Some(why) = reason {
            pass_unanswered(block, *why, cx);
            return None;
        }
        if self.checksum && !has_valid_checksum(block, cx) {
            cx.drop(&block, WRONG_CHECKSUM);
            return None;
        }
        let data = block.view_at(*payload, info.length());
        let timeout = self.timeout;
        if let Some(connection) = self.flows.find(*key)
            && let Some(side) = connection.process_common_segment(info, data.length(), timeout)
        {
            if info.has_data() {
                return Some(connection.prepare_next_output(side, data));
            }
            cx.consume(&data);
            return None;
        }
        self.process_any_block(data, *key, info, cx);
        None
    }

    fn process_any_block<'a>(
        &mut self,
        data: Block<'a>,
        key: u64,
        info: &SegmentInfo,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        if !self.update_known_connection(key, info, cx) {
            if !info.may_begin_connection() {
                return cx.consume(&data);
            }
            self.begin_connection(key, info, data.context.origin, cx);
        }
        let (rules, lag) = (self.rules, self.lag);
        let Some(connection) = self.flows.find(key) else { return cx.consume(&data) };
        let was_closed = connection.has_flags(CLOSED_FLAG);
        if !was_closed && !connection.has_pending_reset() {
            connection.identity.word = connection.identity.word.max(info.time);
        }
        connection.process_segment(info, data, rules, cx);
        let timer = TimerEntry { key, session: connection.identity.session };
        if connection.has_flags(CLOSED_FLAG) && !was_closed {
            self.idle_timeouts.add(timer, connection.expiry_time(self.timeout), cx.now);
        }
        start_gap_timer(&mut self.gap_timeouts, timer, connection, rules, (cx.now, lag));
    }

    /// Returns true if the segment belongs to a connection in the table. First updates the
    /// connection with this key: closes it if its pending RST has taken effect, reopens it if the
    /// segment disproves the RST that closed it, and ends it if it has expired or if the segment
    /// belongs to a later connection.
    fn update_known_connection(
        &mut self,
        key: u64,
        info: &SegmentInfo,
        cx: &mut StreamContext<'_, '_>,
    ) -> bool {
        let (timeout, rules) = (self.timeout, self.rules);
        let Some(connection) = self.flows.find(key) else { return false };
        if connection.reset_effect_time(rules).is_some_and(|until| until < info.time) {
            connection.close(rules, cx);
            let timer = TimerEntry { key, session: connection.identity.session };
            self.idle_timeouts.add(timer, connection.expiry_time(timeout), cx.now);
        }
        let taken_for_closed =
            connection.has_flags(CLOSED_FLAG) && connection.has_flags(ANY_RESET_FLAGS);
        if taken_for_closed && connection.disproves_reset(info, rules) {
            self.reopen_connection(key, info, cx);
            return true;
        }
        if info.time <= connection.expiry_time(timeout) && !connection.is_superseded(info) {
            return true;
        }
        self.end_connection(key, info.time, cx);
        false
    }

    #[cold]
    fn begin_connection(
        &mut self,
        key: u64,
        info: &SegmentInfo,
        origin: u16,
        cx: &mut StreamContext<'_, '_>,
    ) {
        if let Some(mut evicted) = self.flows.make_room() {
            cx.count(SESSIONS_EVICTED, 1);
            evicted.close(self.rules, cx);
        }
        let by_client = info.is_from_client();
        let Ports { source, target } = info.ports;
        let port = if by_client { target } else { source };
        self.begin_session(key, (info.is_down == by_client, port, origin), info.time, cx);
    }

    /// Continues a connection that was closed at a RST as a new session, which begins in midstream.
    /// Called when a segment has proved that the RST was forged, or that its receiver ignored it.
    #[cold]
    fn reopen_connection(&mut self, key: u64, info: &SegmentInfo, cx: &mut StreamContext<'_, '_>) {
        let Some(old) = self.flows.remove(key) else { return };
        cx.count(RESETS_WITHDRAWN, 1);
        let identity = (old.identity.is_forward_down != 0, old.identity.port, old.origin);
        let connection = self.begin_session(key, identity, info.time, cx);
        connection.sides = old.sides.map(StreamSide::reopened);
    }

    /// Begins a session at `time`. `down` is true if the client's packets go from the greater
    /// address and port to the lesser, `port` is the server's port, and `origin` the index of the
    /// source. Returns the record of the session.
    fn begin_session(
        &mut self,
        key: u64,
        (down, port, origin): (bool, u16, u16),
        time: Time,
        cx: &mut StreamContext<'_, '_>,
    ) -> &mut TcpConnection {
        cx.count(NEW_SESSIONS, 1);
        let connection = self.flows.begin_flow(key, down);
        (connection.identity.port, connection.identity.word) = (port, time);
        connection.origin = origin;
        let timer = TimerEntry { key, session: connection.identity.session };
        cx.log_session_start(timer.session);
        self.idle_timeouts.add(timer, time.saturating_add(self.timeout), cx.now);
        connection
    }

    /// Ends a connection because of a timeout, or because a new connection has the same addresses
    /// and ports.
    #[cold]
    fn end_connection(&mut self, key: u64, time: Time, cx: &mut StreamContext<'_, '_>) {
        let Some(mut connection) = self.flows.remove(key) else { return };
        if !connection.has_flags(CLOSED_FLAG) {
            cx.count(SESSIONS_TIMED_OUT, u64::from(time > connection.expiry_time(self.timeout)));
            connection.close(self.rules, cx);
        }
    }

    /// Handles the gap timer of a connection: abandons the gaps that have expired, or closes the
    /// connection if its pending RST has taken effect. Then restarts the timer if a timeout is
    /// pending. Does nothing if the connection no longer exists.
    fn handle_gap_timer(&mut self, timer: TimerEntry, cx: &mut StreamContext<'_, '_>) {
        if self.connection_of_timer(timer).is_none() {
            return;
        }
        let lag = self.lag;
        let Some(connection) = self.flows.find(timer.key) else { return };
        connection.identity.flags &= !GAP_TIMER_SET_FLAG;
        if connection
            .next_timeout(self.rules, lag)
            .is_some_and(|due| self.gap_timeouts.is_due(due, cx.now))
        {
            connection.abandon_expired_gaps((cx.now, lag), self.rules, cx);
            if connection.has_flags(CLOSED_FLAG) {
                self.idle_timeouts.add(timer, connection.expiry_time(self.timeout), cx.now);
            }
        }
        start_gap_timer(&mut self.gap_timeouts, timer, connection, self.rules, (cx.now, lag));
    }

    /// Returns the connection for which a timer was set. Returns `None` if the connection has
    /// ended, even if another session has the same key.
    fn connection_of_timer(&self, timer: TimerEntry) -> Option<&TcpConnection> {
        let connection = self.flows.get(timer.key)?;
        (connection.identity.session == timer.session).then_some(connection)
    }
}

/// Starts the gap timer of a connection with a pending timeout, unless the timer is already
/// running.
#[inline]
fn start_gap_timer(
    gaps: &mut TimerWheel,
    timer: TimerEntry,
    connection: &mut TcpConnection,
    rules: ReassemblyRules,
    (now, lag): (Time, TimestampLag),
) {
    if connection.has_flags(GAP_TIMER_SET_FLAG) {
        return;
    }
    if let Some(until) = connection.next_timeout(rules, lag) {
        connection.identity.flags |= GAP_TIMER_SET_FLAG;
        gaps.add(timer, until, now);
    }
}

#[cold]
fn pass_unanswered<'a>(block: Block<'a>, why: Reason, cx: &mut StreamContext<'_, 'a>) {
    let class = cx.answer_absent(why);
    cx.pass(block.with_class(class));
}
