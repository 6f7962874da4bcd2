//! The state of a UDP socket.

mod epoll_registrations;
mod load;
mod read_order;

use crate::control::ReceiveFormat;
use crate::drops::DropCounts;
use crate::promotion::PromotionConditions;
use crate::registration::Registration;
use crate::report::{self, DatagramTotals};
use crate::ring::{Datagram, Ring};
use crate::socket_table;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use sys::preload;
use sys::preload::udp::{ControlMessage, ControlMessages};

/// A UDP socket of the program: its kernel socket, called the *placeholder*, and, while the socket
/// is promoted, its ring. The socket *returns to the kernel* when its ring ends.
#[derive(Debug)]
pub(crate) struct Socket {
    state: Mutex<SocketState>,
    is_promoted: AtomicBool,
    /// True while the ring is awake, or may contain datagrams. It is written only with the lock of
    /// `state` held, and may be read without the lock.
    may_have_datagrams: AtomicBool,
    /// Id of the thread that holds the lock of `state`; 0 if none does. A signal handler on this
    /// thread must not wait for the lock.
    owner: AtomicUsize,
    calls: AtomicU32,
    /// True while the placeholder (kernel socket) may contain datagrams that arrived before the
    /// ring woke up. These datagrams must be read before the ring.
    has_older: AtomicBool,
    /// True if the socket is registered with an epoll set.
    is_in_sets: AtomicBool,
    /// True if at least one registration of the socket with an epoll set is edge-triggered.
    is_in_edge_set: AtomicBool,
    /// Numbers of datagrams that the rings and the placeholder (kernel socket) have dropped,
    /// counted if the program requests them (`SO_RXQ_OVFL`).
    drops: DropCounts,
}

#[derive(Debug)]
struct SocketState {
    stage: PromotionStage,
    registrations: Vec<Registration>,
    /// Descriptors with which the program has used this socket; some may have been closed.
    numbers: Vec<i32>,
    /// Form in which the program expects addresses and control messages from receive calls. Valid
    /// once the socket is promoted.
    receive_format: ReceiveFormat,
    local: Option<SocketAddr>,
    is_connected: bool,
    from_kernel: u64,
    /// Time at which a call last received a datagram from the placeholder (kernel socket); `None`
    /// if no call has since the promotion.
    last_from_kernel: Option<Instant>,
    /// True while the ring is awake, that is, while datagrams enter the ring.
    is_awake: bool,
    /// The last measurement of the rate of datagrams: its time, and the number of datagrams
    /// received up to that time. `None` before the first measurement.
    rate_sample: Option<(Instant, u64)>,
    /// The last measurement of the fraction of datagrams that come from the ring: its time, and the
    /// numbers of datagrams received up to this time, in total and from the ring. `None` before the
    /// first measurement.
    share_sample: Option<(Instant, u64, u64)>,
    /// The conditions under which the socket was last promoted, and the time at which they were
    /// last checked; `None` if the socket has never been promoted.
    conditions: Option<(PromotionConditions, Instant)>,
    /// Earliest time at which the socket may be promoted again after its ring has ended; `None` for
    /// any time.
    not_before: Option<Instant>,
    /// True if the socket must never be promoted again after its ring has ended.
    is_final: bool,
}

#[derive(Debug)]
enum PromotionStage {
    /// The socket is not promoted, but may be promoted from `not_before` on (`None` means at any
    /// time). `datagrams` is the number of datagrams received from the kernel since the time
    /// `since`; `since` is `None` until the first datagram.
    Unpromoted { datagrams: u32, since: Option<Instant>, not_before: Option<Instant> },
    /// The socket is promoted: it has this ring.
    Promoted(Box<Ring>),
    /// The socket is not promoted: it has no ring, and never will.
    Kernel,
}

struct LockedSocket<'s> {
    state: MutexGuard<'s, SocketState>,
    owner: &'s AtomicUsize,
}

impl Drop for LockedSocket<'_> {
    fn drop(&mut self) {
        self.owner.store(0, Ordering::Relaxed);
    }
}

impl PromotionStage {
    const fn unpromoted(not_before: Option<Instant>) -> Self {
        Self::Unpromoted { datagrams: 0, since: None, not_before }
    }

    /// Returns the number of datagrams that the current ring has dropped; 0 if the socket is not
    /// promoted.
    fn dropped(&self) -> u64 {
        match self {
            Self::Promoted(ring) => ring.dropped(),
            _ => 0,
        }
    }
}

impl Socket {
    pub(crate) const fn new() -> Self {
        let state = SocketState {
            stage: PromotionStage::unpromoted(None),
            registrations: Vec::new(),
            numbers: Vec::new(),
            receive_format: ReceiveFormat { is_v6: false, control: ControlMessages::NONE },
            local: None,
            is_connected: false,
            from_kernel: 0,
            last_from_kernel: None,
            is_awake: false,
            rate_sample: None,
            share_sample: None,
            conditions: None,
            not_before: None,
            is_final: false,
        };
        Self {
            state: Mutex::new(state),
            is_promoted: AtomicBool::new(false),
            may_have_datagrams: AtomicBool::new(false),
            owner: AtomicUsize::new(0),
            calls: AtomicU32::new(0),
            has_older: AtomicBool::new(false),
            is_in_sets: AtomicBool::new(false),
            is_in_edge_set: AtomicBool::new(false),
            drops: DropCounts::new(),
        }
    }

    /// Locks the state of the socket. Returns `None` in a signal handler that interrupts a call on
    /// this socket.
    fn lock(&self) -> Option<LockedSocket<'_>> {
        thread_local! {
            static THREAD_MARKER: u8 = const { 0 };
        }
        let own = THREAD_MARKER.with(|place| std::ptr::from_ref(place).addr());
        if self.owner.load(Ordering::Relaxed) == own {
            return None;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.owner.store(own, Ordering::Relaxed);
        Some(LockedSocket { state, owner: &self.owner })
    }

    /// Returns true if the socket is promoted, that is, has a ring.
    pub(crate) fn is_promoted(&self) -> bool {
        self.is_promoted.load(Ordering::SeqCst)
    }

    /// Returns true if the socket is promoted, is bound to this port, and is not connected.
    pub(crate) fn is_promoted_on_port(&self, port: u16) -> bool {
        let Some(locked) = self.lock() else { return false };
        let is_of_port = locked.state.local.is_some_and(|local| local.port() == port);
        self.is_promoted() && is_of_port && !locked.state.is_connected
    }

    /// Returns true if the ring has a datagram. If the ring is empty and no datagram can enter it
    /// any more, ends the ring.
    pub(crate) fn has_datagram(&self) -> bool {
        if !self.may_have_datagrams.load(Ordering::SeqCst) {
            return false;
        }
        let Some(mut locked) = self.lock() else { return false };
        let state = &mut *locked.state;
        let PromotionStage::Promoted(ring) = &mut state.stage else { return false };
        if ring.read_until_datagram_pending() {
            return true;
        }
        if ring.is_detached() {
            self.end_ring(state);
        }
        false
    }

    /// Updates the set of control messages that the program requests.
    pub(crate) fn update_requested_control_messages(&self, number: i32) {
        if let Some(mut locked) = self.lock() {
            locked.state.receive_format.control = ControlMessages::requested_by(number);
        }
    }

    /// Returns true if the program requests the number of datagrams that the socket has dropped.
    pub(crate) fn wants_drop_count(&self) -> bool {
        let Some(locked) = self.lock() else { return false };
        locked.state.receive_format.control.contains(ControlMessage::Drops)
    }

    /// Returns the number of datagrams that the rings have dropped, or 0 if the program does not
    /// request it. Called after the placeholder (kernel socket) has been read.
    pub(crate) fn update_drops(&self, number: i32) -> u32 {
        let Some(locked) = self.lock() else { return 0 };
        if !locked.state.receive_format.control.contains(ControlMessage::Drops) {
            return 0;
        }
        self.drops.update_kernel_drops(number);
        self.drops.update_ring_drops(locked.state.stage.dropped())
    }

    /// Passes the next datagram from the ring to the function `take`, with the form in which the
    /// program expects addresses and control messages. Then removes the datagram from the ring,
    /// unless `is_kept` is true. Returns the result of `take`, or `None` if there was no datagram.
    pub(crate) fn take_datagram(
        &self,
        is_kept: bool,
        take: impl FnOnce(&Datagram<'_>, ReceiveFormat) -> isize,
    ) -> Option<isize> {
        if !self.may_have_datagrams.load(Ordering::Relaxed) {
            return None;
        }
        let mut locked = self.lock()?;
        let form = locked.state.receive_format;
        let state = &mut *locked.state;
        let PromotionStage::Promoted(ring) = &mut state.stage else { return None };
        if form.control.contains(ControlMessage::Drops) && ring.read_until_datagram_pending() {
            self.drops.update_ring_drops(ring.dropped());
        }
        let datagram = ring.peek()?;
        let answer = take(&Datagram { drops: self.drops.total(), ..datagram }, form);
        if !is_kept {
            ring.remove_peeked();
        }
        Some(answer)
    }

    /// Records that `number` is also a descriptor of the socket.
    pub(crate) fn note_descriptor(&self, number: i32) {
        if let Some(mut locked) = self.lock() {
            locked.state.note_descriptor(number);
        }
    }

    /// Returns the socket to the kernel permanently: ends its ring, so that all later datagrams
    /// reach the placeholder (kernel socket). Datagrams in the ring can still be read.
    pub(crate) fn return_to_kernel_permanently(&self) {
        self.return_to_kernel(true);
    }

    /// Returns the socket to the kernel until it is promoted again. Datagrams in the ring can still
    /// be read.
    pub(crate) fn return_to_kernel_temporarily(&self) {
        self.return_to_kernel(false);
    }

    fn return_to_kernel(&self, is_final: bool) {
        let Some(mut locked) = self.lock() else { return };
        let state = &mut *locked.state;
        // If older datagrams are left in the placeholder, the order of a sender is not kept.
        self.is_placeholder_drained(state);
        self.detach_ring(state, is_final);
    }

    /// Returns the socket to the kernel like [`Socket::return_to_kernel_temporarily`], until
    /// `not_before` at least. Returns false and does nothing if the placeholder has datagrams from
    /// before the ring woke up: newer datagrams would follow them in the placeholder, and be read
    /// before the ring.
    fn return_to_kernel_in_order(&self, not_before: Option<Instant>) -> bool {
        let Some(mut locked) = self.lock() else { return false };
        let state = &mut *locked.state;
        if !self.is_placeholder_drained(state) {
            return false;
        }
        state.not_before = not_before.or(state.not_before);
        self.detach_ring(state, false);
        true
    }

    /// Ends the ring as soon as it is empty, and prevents datagrams from entering it.
    fn detach_ring(&self, state: &mut SocketState, is_final: bool) {
        state.is_final |= is_final;
        match &mut state.stage {
            PromotionStage::Promoted(ring) => {
                ring.detach();
                state.is_awake = false;
                if !ring.read_until_datagram_pending() {
                    self.end_ring(state);
                }
            }
            stage if is_final => *stage = PromotionStage::Kernel,
            _ => {}
        }
    }

    fn end_ring(&self, state: &mut SocketState) {
        self.drops.add_drops_of_ended_ring(state.stage.dropped());
        let not_before = state.not_before.take();
        let next = if state.is_final {
            PromotionStage::Kernel
        } else {
            PromotionStage::unpromoted(not_before)
        };
        state.is_awake = false;
        self.may_have_datagrams.store(false, Ordering::SeqCst);
        if let PromotionStage::Promoted(ring) = std::mem::replace(&mut state.stage, next) {
            self.is_promoted.store(false, Ordering::SeqCst);
            socket_table::update_promoted_count(false);
            let from_kernel = std::mem::take(&mut state.from_kernel);
            let mut totals = DatagramTotals { from_kernel, ..DatagramTotals::default() };
            ring.add_to_totals(&mut totals);
            if let Some(local) = state.local {
                report::print_totals(local, &ring.interface_names(), &totals);
            }
        }
    }

    /// Ends the ring of the socket. Called when the last descriptor of the socket is closed.
    pub(crate) fn close(&self) {
        if let Some(mut locked) = self.lock() {
            let errno = preload::errno();
            self.end_ring(&mut locked.state);
            preload::set_errno(errno);
        }
    }
}

impl SocketState {
    fn note_descriptor(&mut self, number: i32) {
        if !self.numbers.contains(&number) {
            self.numbers.push(number);
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.close();
    }
}
