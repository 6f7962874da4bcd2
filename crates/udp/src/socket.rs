//! The state of a UDP socket.

use crate::control::ReceivedForm;
use crate::drops::Drops;
use crate::promotion::{Refusal, promote};
use crate::registration::Registration;
use crate::report::{self, Totals};
use crate::ring::{Datagram, Ring};
use crate::share::FlowShare;
use crate::table;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use sys::preload;
use sys::preload::udp::{self, ControlMessage, ControlMessages};

/// Number of datagrams within [`HOT_INTERVAL`] after which a socket is promoted.
const HOT_DATAGRAMS: u32 = 64;
/// Time within which [`HOT_DATAGRAMS`] datagrams must arrive for a promotion.
const HOT_INTERVAL: Duration = Duration::from_secs(10);
/// Size in bytes of the placeholder's receive buffer during the promotion, which takes milliseconds
/// in which the socket is not read.
const PROMOTION_BUFFER: i32 = 8 << 20;
/// One in this many receive calls reads the placeholder before the ring, so that neither is starved
/// by the other.
const PLACEHOLDER_PERIOD: u32 = 64;
/// Minimum time between two checks of which sockets share the port.
const SHARE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Time after a refused promotion before the next attempt, if the reason may have ceased to apply.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// A UDP socket of the program.
#[derive(Debug)]
pub(crate) struct Socket {
    state: Mutex<SocketState>,
    /// 1 + the number of the descriptor that is readable when the ring may have datagrams; 0 if the
    /// socket has no ring.
    ring_number: AtomicUsize,
    /// Id of the thread that holds the lock. A signal handler on this thread does not wait for the
    /// lock.
    owner: AtomicUsize,
    calls: AtomicU32,
    /// True while the placeholder may have datagrams from before the promotion.
    has_older: AtomicBool,
    /// The dropped datagrams, which are counted if the program asks for them.
    drops: Drops,
}

#[derive(Debug)]
struct SocketState {
    stage: Stage,
    registrations: Vec<Registration>,
    /// Form in which the program expects datagrams, once the socket is promoted.
    form: ReceivedForm,
    local: Option<SocketAddr>,
    is_connected: bool,
    from_kernel: u64,
    /// The share of the ring among the sockets of the port, and the time of the last check; `None`
    /// if the socket does not share its port.
    share: Option<(FlowShare, Instant)>,
    /// True if the socket must not be promoted again once its ring has ended.
    is_final: bool,
}

#[derive(Debug)]
enum Stage {
    /// The socket is not promoted, and its datagrams are counted from `not_before` on.
    Counted { datagrams: u32, since: Option<Instant>, not_before: Option<Instant> },
    /// The socket is promoted.
    Promoted(Box<Ring>),
    /// The socket is not promoted, and never will be.
    Kernel,
}

struct Locked<'s> {
    state: MutexGuard<'s, SocketState>,
    owner: &'s AtomicUsize,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.owner.store(0, Ordering::Relaxed);
    }
}

impl Stage {
    const fn counted(not_before: Option<Instant>) -> Self {
        Self::Counted { datagrams: 0, since: None, not_before }
    }

    /// Returns the number of datagrams that the ring has dropped.
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
            stage: Stage::counted(None),
            registrations: Vec::new(),
            form: ReceivedForm { is_v6: false, control: ControlMessages::NONE },
            local: None,
            is_connected: false,
            from_kernel: 0,
            share: None,
            is_final: false,
        };
        Self {
            state: Mutex::new(state),
            ring_number: AtomicUsize::new(0),
            owner: AtomicUsize::new(0),
            calls: AtomicU32::new(0),
            has_older: AtomicBool::new(false),
            drops: Drops::new(),
        }
    }

    /// Locks the state; `None` in a signal handler that interrupts a call on this socket.
    fn lock(&self) -> Option<Locked<'_>> {
        thread_local! {
            static PLACE: u8 = const { 0 };
        }
        let own = PLACE.with(|place| std::ptr::from_ref(place).addr());
        if self.owner.load(Ordering::Relaxed) == own {
            return None;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.owner.store(own, Ordering::Relaxed);
        Some(Locked { state, owner: &self.owner })
    }

    /// Returns true if the socket has a ring.
    pub(crate) fn is_promoted(&self) -> bool {
        self.ring_number.load(Ordering::Acquire) != 0
    }

    /// Returns true if the socket is promoted, is bound to this port, and is not connected.
    pub(crate) fn takes_port(&self, port: u16) -> bool {
        let Some(locked) = self.lock() else { return false };
        let is_of_port = locked.state.local.is_some_and(|local| local.port() == port);
        self.is_promoted() && is_of_port && !locked.state.is_connected
    }

    /// Returns the descriptor that is readable when the ring may have datagrams. Returns `None` if
    /// the socket is not promoted.
    pub(crate) fn ring_number(&self) -> Option<i32> {
        let number = self.ring_number.load(Ordering::Acquire).checked_sub(1)?;
        i32::try_from(number).ok()
    }

    /// Counts a datagram that the kernel has delivered, and promotes a socket that receives many.
    /// `register` adds a descriptor to an epoll set in the same way as an existing registration.
    pub(crate) fn count_datagram(
        &self,
        number: i32,
        register: impl Fn(&Registration, i32) -> bool,
    ) {
        let Some(mut locked) = self.lock() else { return };
        let state = &mut *locked.state;
        state.from_kernel += u64::from(self.is_promoted());
        let Stage::Counted { datagrams, since, not_before } = &mut state.stage else { return };
        let begun = *since.get_or_insert_with(Instant::now);
        *datagrams += 1;
        if *datagrams < HOT_DATAGRAMS {
            return;
        }
        (*datagrams, *since) = (0, None);
        let is_early = not_before.is_some_and(|earliest| Instant::now() < earliest);
        if is_early || begun.elapsed() > HOT_INTERVAL {
            return;
        }
        let Some(facts) = udp::udp_socket(number) else { return };
        state.local = Some(facts.local);
        state.is_connected = facts.peer.is_some();
        state.stage = Stage::Kernel;
        match self.begin_ring(number, &facts, &state.registrations, register) {
            Ok((ring, share)) => {
                let may_share = facts.shares_address || facts.shares_port;
                state.share = may_share.then(|| (share, Instant::now()));
                let (is_v6, control) = (facts.local.is_ipv6(), ControlMessages::of(number));
                state.form = ReceivedForm { is_v6, control };
                let number = usize::try_from(ring.number()).unwrap_or(0);
                state.stage = Stage::Promoted(Box::new(ring));
                table::count_promoted(true);
                self.has_older.store(true, Ordering::Relaxed);
                self.ring_number.store(number + 1, Ordering::Release);
            }
            Err(Refusal { why, may_end }) => {
                if may_end {
                    state.stage = Stage::counted(Some(Instant::now() + RETRY_INTERVAL));
                }
                report::report_refusal(facts.local, &why);
            }
        }
    }

    fn begin_ring(
        &self,
        number: i32,
        facts: &udp::UdpSocketFacts,
        registrations: &[Registration],
        register: impl Fn(&Registration, i32) -> bool,
    ) -> Result<(Ring, FlowShare), Refusal> {
        if registrations.iter().any(|known| !known.can_be_mirrored()) {
            let why = "an epoll set reports it once, or to one of several waiters";
            return Err(why.to_owned().into());
        }
        let buffer = udp::replace_receive_buffer(number, PROMOTION_BUFFER);
        let ring = promote(number, facts);
        if let Some(buffer) = buffer {
            let _ = udp::replace_receive_buffer(number, buffer);
        }
        let (mut ring, share) = ring?;
        if registrations.iter().all(|known| register(known, ring.number())) {
            return Ok((ring, share));
        }
        ring.detach();
        Err("an epoll set does not take its ring".to_owned().into())
    }

    /// Returns true if this call must read the placeholder before the ring: while the placeholder
    /// has datagrams from before the promotion, and then once in [`PLACEHOLDER_PERIOD`] calls.
    pub(crate) fn reads_placeholder_first(&self, number: i32) -> bool {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let is_due = call % PLACEHOLDER_PERIOD == PLACEHOLDER_PERIOD - 1;
        if is_due {
            self.check_share(number);
        }
        is_due || self.has_older.load(Ordering::Relaxed)
    }

    /// Checks, once in [`SHARE_CHECK_INTERVAL`], that the sockets of the port are the same as at
    /// the promotion. Otherwise returns the socket to the kernel until the next promotion.
    fn check_share(&self, number: i32) {
        let Some(mut locked) = self.lock() else { return };
        let Some((share, checked)) = &mut locked.state.share else { return };
        if checked.elapsed() < SHARE_CHECK_INTERVAL {
            return;
        }
        *checked = Instant::now();
        let share = *share;
        drop(locked);
        let facts = udp::udp_socket(number);
        if !facts.is_some_and(|facts| FlowShare::find(number, &facts) == Ok(share)) {
            self.release();
        }
    }

    /// Updates the set of control messages that the program requests.
    pub(crate) fn update_control(&self, number: i32) {
        if let Some(mut locked) = self.lock() {
            locked.state.form.control = ControlMessages::of(number);
        }
    }

    /// Returns the number of datagrams that the rings have dropped, if the program asks for it and
    /// there are any, else 0. Called when the placeholder has been read.
    pub(crate) fn update_drops(&self, number: i32) -> u32 {
        let Some(locked) = self.lock() else { return 0 };
        if !locked.state.form.control.has(ControlMessage::Drops) {
            return 0;
        }
        self.drops.update_kernel(number);
        self.drops.update_ring(locked.state.stage.dropped())
    }

    /// Records that the placeholder was empty.
    pub(crate) fn note_placeholder_empty(&self) {
        self.has_older.store(false, Ordering::Relaxed);
    }

    /// Passes the next datagram from the ring to `take`, with the form in which the program expects
    /// the datagram. Then removes the datagram, unless `is_kept` is true.
    pub(crate) fn take(
        &self,
        is_kept: bool,
        take: impl FnOnce(&Datagram<'_>, ReceivedForm) -> isize,
    ) -> Option<isize> {
        let mut locked = self.lock()?;
        let form = locked.state.form;
        let state = &mut *locked.state;
        let Stage::Promoted(ring) = &mut state.stage else { return None };
        if form.control.has(ControlMessage::Drops) && ring.find_next() {
            self.drops.update_ring(ring.dropped());
        }
        if let Some(datagram) = ring.peek() {
            let answer = take(&Datagram { drops: self.drops.all(), ..datagram }, form);
            if !is_kept {
                ring.pass();
            }
            return Some(answer);
        }
        if ring.is_detached() {
            self.end_ring(&mut locked.state);
        }
        None
    }

    /// Returns true if the ring has a datagram.
    pub(crate) fn has_datagram(&self) -> bool {
        let Some(mut locked) = self.lock() else { return false };
        match &mut locked.state.stage {
            Stage::Promoted(ring) => ring.find_next(),
            _ => false,
        }
    }

    /// Records that the program has registered the socket with an epoll set, or removed it if
    /// `wanted` is `None`. Returns the ring's descriptor if the caller must do the same with it.
    pub(crate) fn record_registration(
        &self,
        wanted: Option<Registration>,
        key: (i32, i32),
    ) -> Option<i32> {
        let mut locked = self.lock()?;
        let (set, number) = key;
        let state = &mut *locked.state;
        state.registrations.retain(|known| (known.set, known.number) != (set, number));
        let is_other = state.registrations.iter().any(|known| known.set == set);
        state.registrations.extend(wanted);
        let is_promoted = matches!(state.stage, Stage::Promoted(_));
        if is_promoted && (is_other || wanted.is_some_and(|wanted| !wanted.can_be_mirrored())) {
            drop(locked);
            self.demote();
            return None;
        }
        drop(locked);
        self.ring_number()
    }

    /// Returns true if an event with this data may come from the ring or the placeholder.
    pub(crate) fn has_registration(&self, set: i32, data: u64) -> bool {
        let Some(locked) = self.lock() else { return false };
        locked.state.registrations.iter().any(|known| (known.set, known.data) == (set, data))
    }

    /// Returns the socket to the kernel for good. Datagrams in the ring can still be read.
    pub(crate) fn demote(&self) {
        self.return_to_kernel(true);
    }

    /// Returns the socket to the kernel until it is promoted again. Datagrams in the ring can still
    /// be read.
    pub(crate) fn release(&self) {
        self.return_to_kernel(false);
    }

    fn return_to_kernel(&self, is_final: bool) {
        let Some(mut locked) = self.lock() else { return };
        let state = &mut *locked.state;
        state.is_final |= is_final;
        match &mut state.stage {
            Stage::Promoted(ring) => {
                ring.detach();
                if !ring.find_next() {
                    self.end_ring(state);
                }
            }
            stage if is_final => *stage = Stage::Kernel,
            _ => {}
        }
    }

    fn end_ring(&self, state: &mut SocketState) {
        self.drops.end_ring(state.stage.dropped());
        let next = if state.is_final { Stage::Kernel } else { Stage::counted(None) };
        if let Stage::Promoted(ring) = std::mem::replace(&mut state.stage, next) {
            self.ring_number.store(0, Ordering::Release);
            table::count_promoted(false);
            let from_kernel = std::mem::take(&mut state.from_kernel);
            let mut totals = Totals { from_kernel, ..Totals::default() };
            ring.add_to(&mut totals);
            if let Some(local) = state.local {
                report::print_totals(local, &ring.interfaces(), &totals);
            }
        }
    }

    /// Ends the ring. Called when the last descriptor of the socket is closed.
    pub(crate) fn close(&self) {
        if let Some(mut locked) = self.lock() {
            let errno = preload::errno();
            self.end_ring(&mut locked.state);
            preload::set_errno(errno);
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.close();
    }
}
