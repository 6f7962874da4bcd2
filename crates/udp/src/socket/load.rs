//! Decisions that depend on the load of a socket: its promotion, the waking of its ring, and its
//! return to the kernel at low rates.

use super::{PromotionStage, Socket, SocketState};
use crate::control::ReceiveFormat;
use crate::descriptor_waits;
use crate::promotion::{PromotionConditions, PromotionRefusal, promote_socket};
use crate::registration::Registration;
use crate::report;
use crate::ring::Ring;
use crate::socket_table;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use sys::preload;
use sys::preload::udp::{self, ControlMessages};

/// Load above which a socket is promoted: this number of datagrams within this time. Below this
/// load, a ring costs more than it saves (docs/book/decisions/0122).
const PROMOTION_LOAD: (u32, Duration) = (512, Duration::from_micros(25_600));
/// Load above which a socket is promoted if the user has requested a ring at any rate (`always` or
/// `spin`): this number of datagrams within this time.
const PROMOTION_LOAD_AT_ANY_RATE: (u32, Duration) = (64, Duration::from_secs(10));
/// Number of datagrams per second below which a promoted socket gives up its ring.
const DEMOTION_RATE: f64 = 5_000.0;
/// Interval over which the rate of datagrams of a promoted socket is measured.
const RATE_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum fraction of the received datagrams that comes from the ring, from 0 to 1. A promoted
/// socket with a smaller fraction returns to the kernel.
const RING_SHARE_MIN: f64 = 0.25;

/// Minimum time over which the ring's share of the received datagrams is measured.
const RING_SHARE_INTERVAL: Duration = Duration::from_millis(250);

/// Minimum number of received datagrams for a measurement of the ring's share.
const RING_SHARE_DATAGRAMS_MIN: u64 = 1024;
/// Minimum time until the next promotion of a socket whose ring has ended because it had a small
/// share of the datagrams.
const REPROMOTION_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// Maximum time between two receptions from the placeholder (kernel socket) for the second one to
/// wake the ring. It corresponds to the rate of [`PROMOTION_LOAD`].
const WAKING_INTERVAL: Duration = Duration::from_micros(50);
/// Size in bytes to which the receive buffer of the kernel socket (the placeholder) is set while
/// the socket is being promoted. The promotion takes milliseconds, during which the program does
/// not read the socket.
const PROMOTION_BUFFER_SIZE: i32 = 8 << 20;
/// Minimum time between two checks that the conditions under which a socket was promoted still
/// apply.
const CONDITIONS_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Time between the end of a ring or a refused promotion and the next attempt to promote the
/// socket, if the reason for the end or refusal may have ceased to apply.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Returns the load above which a socket is promoted: a number of datagrams within a time. If the
/// user has requested a delay, the load may be as low as two datagrams per delay, because one
/// wake-up of the program then serves several datagrams.
fn promotion_load() -> (u32, Duration) {
    if report::is_rate_ignored() {
        return PROMOTION_LOAD_AT_ANY_RATE;
    }
    (PROMOTION_LOAD.0, waking_interval() * PROMOTION_LOAD.0)
}

/// Returns the maximum time between two receptions from the placeholder (kernel socket) for the
/// second one to wake the ring.
fn waking_interval() -> Duration {
    report::ring_delay().map_or(WAKING_INTERVAL, |delay| WAKING_INTERVAL.max(delay / 2))
}

/// Returns the rate, in datagrams per second, below which a promoted socket returns to the kernel.
fn demotion_rate() -> f64 {
    DEMOTION_RATE * WAKING_INTERVAL.as_secs_f64() / waking_interval().as_secs_f64()
}

impl Socket {
    /// Counts datagrams that one call has received from the kernel. If the socket is not promoted
    /// and its load exceeds [`promotion_load`], promotes it. Returns true if the socket has been
    /// promoted by this call. Wakes the ring of a promoted socket if the datagrams arrive at a high
    /// rate.
    pub(crate) fn count_datagrams(&self, number: i32, count: u32) -> bool {
        let Some(mut locked) = self.lock() else { return false };
        let state = &mut *locked.state;
        let PromotionStage::Unpromoted { datagrams, since, not_before } = &mut state.stage else {
            self.count_placeholder_datagrams(state, count);
            return false;
        };
        let begun = *since.get_or_insert_with(Instant::now);
        *datagrams += count;
        let (hot, interval) = promotion_load();
        if *datagrams < hot {
            return false;
        }
        (*datagrams, *since) = (0, None);
        let is_early = not_before.is_some_and(|earliest| Instant::now() < earliest);
        if is_early || begun.elapsed() > interval {
            return false;
        }
        let Some(facts) = udp::udp_socket_facts(number) else { return false };
        state.local = Some(facts.local);
        state.is_connected = facts.peer.is_some();
        state.stage = PromotionStage::Kernel;
        let is_waited_for =
            !state.registrations.is_empty() || descriptor_waits::has_been_waited_for(number);
        match open_socket_ring(number, &facts, &state.registrations, is_waited_for) {
            Ok((ring, conditions)) => {
                state.conditions = Some((conditions, Instant::now()));
                let (is_v6, control) =
                    (facts.local.is_ipv6(), ControlMessages::requested_by(number));
                state.receive_format = ReceiveFormat { is_v6, control };
                state.note_descriptor(number);
                (state.rate_sample, state.share_sample, state.last_from_kernel) =
                    (None, None, None);
                state.stage = PromotionStage::Promoted(Box::new(ring));
                socket_table::update_promoted_count(true);
                // Sync point: waiting.
                self.is_promoted.store(true, Ordering::SeqCst);
                true
            }
            Err(PromotionRefusal { why, is_temporary: may_end }) => {
                if may_end {
                    state.stage = PromotionStage::unpromoted(Some(Instant::now() + RETRY_INTERVAL));
                }
                report::report_refusal(facts.local, &why);
                false
            }
        }
    }

    /// Counts datagrams that one call has received from the placeholder (kernel socket) of a
    /// promoted socket. Wakes its ring if datagrams arrive at a high rate, unless a thread sleeps
    /// until the placeholder is readable.
    fn count_placeholder_datagrams(&self, state: &mut SocketState, count: u32) {
        let PromotionStage::Promoted(ring) = &mut state.stage else { return };
        state.from_kernel += u64::from(count);
        if state.is_awake {
            return;
        }
        let now = Instant::now();
        let last = state.last_from_kernel.replace(now);
        let is_fast = count > 1
            || last.is_some_and(|last| now.duration_since(last) < waking_interval())
            || report::is_rate_ignored();
        // Sync point: waiting.
        let mut numbers = state.numbers.iter().copied();
        let mut sets = state.registrations.iter().map(|known| known.set);
        let is_waited_for =
            numbers.any(descriptor_waits::has_waiter) || sets.any(descriptor_waits::has_waiter);
        if !is_fast || is_waited_for || ring.is_detached() || ring.read_until_datagram_pending() {
            return;
        }
        state.is_awake = true;
        self.has_older.store(true, Ordering::Relaxed);
        self.may_have_datagrams.store(true, Ordering::SeqCst);
        ring.wake_up();
    }

    /// Measures the share of the datagrams that comes from the ring, once per
    /// [`RING_SHARE_INTERVAL`]. If this share is below [`RING_SHARE_MIN`], returns the socket to
    /// the kernel until the next promotion, unless the user has requested a ring regardless of the
    /// load. The share is low if the
    /// server sleeps before nearly every datagram; the kernel program of the ring then only delays
    /// the datagrams that reach the placeholder (kernel socket).
    pub(super) fn demote_on_low_ring_share(&self) {
        let Some(mut locked) = self.lock() else { return };
        let state = &mut *locked.state;
        let PromotionStage::Promoted(ring) = &state.stage else { return };
        let (all, from_ring) = (ring.read_count() + state.from_kernel, ring.read_count());
        let now = Instant::now();
        let (since, all_before, ring_before) =
            *state.share_sample.get_or_insert((now, all, from_ring));
        let received = all - all_before;
        if now.duration_since(since) < RING_SHARE_INTERVAL || received < RING_SHARE_DATAGRAMS_MIN {
            return;
        }
        state.share_sample = Some((now, all, from_ring));
        let is_low = ((from_ring - ring_before) as f64) < received as f64 * RING_SHARE_MIN;
        if is_low && !report::is_rate_ignored() {
            drop(locked);
            self.return_to_kernel_in_order(Some(now + REPROMOTION_INTERVAL_MIN));
        }
    }

    /// Measures, once in [`RATE_INTERVAL`], the rate at which datagrams arrive. If it is below
    /// [`demotion_rate`], returns the socket to the kernel until the next promotion, unless the
    /// user has requested a ring at any rate.
    pub(super) fn demote_on_low_rate(&self) {
        let Some(mut locked) = self.lock() else { return };
        let state = &mut *locked.state;
        let PromotionStage::Promoted(ring) = &state.stage else { return };
        let received = ring.read_count() + state.from_kernel;
        let (since, before) = *state.rate_sample.get_or_insert_with(|| (Instant::now(), received));
        let elapsed = since.elapsed();
        if elapsed < RATE_INTERVAL {
            return;
        }
        state.rate_sample = Some((Instant::now(), received));
        let rate = (received - before) as f64 / elapsed.as_secs_f64();
        if rate < demotion_rate() && !report::is_rate_ignored() {
            drop(locked);
            self.return_to_kernel_in_order(Some(Instant::now() + RETRY_INTERVAL));
        }
    }

    /// Checks, once in [`CONDITIONS_CHECK_INTERVAL`], that the conditions of the promotion still
    /// apply ([`PromotionConditions::still_apply`]). If they do not, returns the socket to the
    /// kernel until the next promotion.
    pub(super) fn demote_on_changed_conditions(&self, number: i32) {
        let Some(mut locked) = self.lock() else { return };
        if !matches!(locked.state.stage, PromotionStage::Promoted(_)) {
            return;
        }
        let Some((conditions, checked)) = &mut locked.state.conditions else { return };
        if checked.elapsed() < CONDITIONS_CHECK_INTERVAL {
            return;
        }
        let before = std::mem::replace(checked, Instant::now());
        let conditions = conditions.clone();
        drop(locked);
        if conditions.still_apply(number) || self.return_to_kernel_in_order(None) {
            return;
        }
        // The next check is due at once.
        if let Some(mut locked) = self.lock()
            && let Some((_, checked)) = &mut locked.state.conditions
        {
            *checked = before;
        }
    }
}

/// Opens the ring of a socket. `is_waited_for` is true if the program waits for the socket in calls
/// that this library replaces. Fails with the reason if the socket cannot be promoted.
fn open_socket_ring(
    number: i32,
    facts: &udp::UdpSocketFacts,
    registrations: &[Registration],
    is_waited_for: bool,
) -> Result<(Ring, PromotionConditions), PromotionRefusal> {
    if registrations.iter().any(|known| !known.can_have_ring()) {
        let why = "an epoll set reports it once, or to one of several waiters";
        return Err(why.to_owned().into());
    }
    if !is_waited_for && preload::is_nonblocking(number) {
        let why = "it is not known how the program waits for it".to_owned();
        return Err(PromotionRefusal { why, is_temporary: true });
    }
    let buffer = udp::replace_receive_buffer_size(number, PROMOTION_BUFFER_SIZE);
    let ring = promote_socket(number, facts);
    if let Some(buffer) = buffer {
        let _ = udp::replace_receive_buffer_size(number, buffer);
    }
    ring
}
