//! The order in which datagrams are read from the ring and from the placeholder. Datagrams of one
//! sender may reach either of them; this module decides which of the two is read first, and when
//! the ring may fall asleep. (docs/book/decisions/0122)

use super::{PromotionStage, Socket, SocketState};
use crate::report;
use crate::socket_table;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use sys::preload;

/// Number of receive calls of which one reads the placeholder (kernel socket) before the ring, so
/// that datagrams in the placeholder are not delayed indefinitely.
const CALLS_PER_PLACEHOLDER_READ: u32 = 64;

impl Socket {
    /// Puts the ring to sleep, so that datagrams reach the placeholder (kernel socket), before the
    /// caller reads the placeholder or waits for it. Returns false if an older datagram must be
    /// received first. This is a datagram in the ring, or one that has been in the placeholder
    /// since before the ring woke up.
    pub(crate) fn fall_asleep(&self) -> bool {
        // Sync point: waiting.
        if !self.may_have_datagrams.load(Ordering::SeqCst) {
            return true;
        }
        let Some(mut locked) = self.lock() else { return true };
        let state = &mut *locked.state;
        let PromotionStage::Promoted(ring) = &mut state.stage else { return true };
        if ring.read_until_datagram_pending() {
            return false;
        }
        if state.is_awake {
            // Once the ring sleeps, newer datagrams follow the older ones in the placeholder.
            if self.has_older_datagrams() && self.is_placeholder_readable(&state.numbers) {
                return false;
            }
            state.is_awake = false;
            self.has_older.store(false, Ordering::Relaxed);
            // A datagram that has entered the ring meanwhile is older than all in the placeholder.
            if !ring.fall_asleep() {
                return false;
            }
        }
        if ring.is_detached() {
            self.end_ring(state);
        }
        self.has_older.store(false, Ordering::Relaxed);
        self.may_have_datagrams.store(false, Ordering::SeqCst);
        true
    }

    /// Returns the time for which the caller may wait until the placeholder (kernel socket) is
    /// readable, although the ring is awake. Returns `None` if the user has requested no delay, if
    /// no datagrams enter the ring, or if the ring contains a datagram. After this time, the caller
    /// must read the ring, and put it to sleep before it waits again. (docs/book/decisions/0132)
    pub(crate) fn placeholder_wait_time(&self) -> Option<Duration> {
        let delay = report::ring_delay()?;
        if !self.may_have_datagrams.load(Ordering::SeqCst) {
            return None;
        }
        let mut locked = self.lock()?;
        let state = &mut *locked.state;
        let PromotionStage::Promoted(ring) = &mut state.stage else { return None };
        let may_nap = state.is_awake && !ring.is_detached() && !ring.read_until_datagram_pending();
        may_nap.then_some(delay)
    }

    /// Returns true if the placeholder (kernel socket) has a datagram. `numbers` are descriptors of
    /// the socket, some of which may have been closed and reused.
    pub(super) fn is_placeholder_readable(&self, numbers: &[i32]) -> bool {
        let errno = preload::errno();
        let is_own = |number: i32| {
            socket_table::find_socket(number)
                .is_some_and(|socket| std::ptr::eq(Arc::as_ptr(&socket), self))
        };
        let own = numbers.iter().copied().find(|number| is_own(*number));
        let readiness = own.and_then(|number| preload::poll_pair([number, -1], false));
        preload::set_errno(errno);
        readiness.is_some_and(|[placeholder, _]| placeholder.readable)
    }

    /// Returns true if the placeholder may have datagrams that arrived before the ring woke up.
    pub(crate) fn has_older_datagrams(&self) -> bool {
        self.has_older.load(Ordering::Relaxed)
    }

    /// Returns true if the placeholder has no datagrams from before the ring woke up. Records this,
    /// so that the ring is read first.
    pub(super) fn is_placeholder_drained(&self, state: &mut SocketState) -> bool {
        let PromotionStage::Promoted(ring) = &mut state.stage else { return true };
        // The ring is read before the placeholder: until a newer datagram is in the ring, an older
        // one may be on its way to the placeholder.
        ring.read_until_datagram_pending();
        if self.has_older_datagrams() && self.is_placeholder_readable(&state.numbers) {
            return false;
        }
        self.has_older.store(false, Ordering::Relaxed);
        true
    }

    /// Returns true if this call must read the placeholder (kernel socket) before the ring,
    /// whatever the ring contains. This is true once in [`CALLS_PER_PLACEHOLDER_READ`] calls. It is
    /// never true while the ring is asleep, because the datagrams in the placeholder are then
    /// newer. Once in that period, also checks the rate of datagrams, the ring's share and the
    /// conditions of the promotion. Returns the socket to the kernel if a check fails.
    pub(crate) fn must_read_placeholder_first(&self, number: i32) -> bool {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call % CALLS_PER_PLACEHOLDER_READ != CALLS_PER_PLACEHOLDER_READ - 1 {
            return false;
        }
        self.demote_on_low_rate();
        self.demote_on_low_ring_share();
        self.demote_on_changed_conditions(number);
        self.lock().is_some_and(|locked| locked.state.is_awake)
    }

    /// Records that the placeholder (kernel socket) contains no datagrams older than those in the
    /// ring. Called after a call has found a datagram in the ring, and then the placeholder empty.
    pub(crate) fn record_empty_placeholder(&self) {
        self.has_older.store(false, Ordering::Relaxed);
    }
}
