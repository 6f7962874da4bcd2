//! Reception of datagrams on a promoted socket, which has a ring.

use super::kernel::{flag, receive_from_placeholder, receive_many_from_kernel};
use super::messages::Timespec;
use super::{Message, ReceivedMessage};
use crate::address::EncodedAddress;
use crate::control::{EncodedControl, ReceiveFormat};
use crate::descriptor_waits::Wait;
use crate::report;
use crate::ring::Datagram;
use crate::socket::Socket;
use crate::socket_table;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::time::Instant;
use sys::preload::interpose::{IoVec, catch_panic, catch_panic_and_preserve_errno};
use sys::preload::spinning::SpinWait;
use sys::preload::udp;
use sys::preload::{self, TimedWaitOutcome};

/// Error number of a call that a signal has interrupted.
pub(super) const EINTR: i32 = 4;
/// Error number of a nonblocking call that has received nothing.
const EAGAIN: i32 = 11;

/// Counts the datagrams that a receive call has obtained from the kernel, for the decisions to
/// promote the socket and to wake its ring. Does nothing if the call has only peeked.
pub(super) fn count_kernel_datagrams(number: c_int, received: usize, flags: c_int) {
    if received == 0 || flags & flag::MSG_PEEK != 0 {
        return;
    }
    catch_panic_and_preserve_errno(|| {
        let Some(socket) = socket_table::find_socket(number) else { return };
        let received = u32::try_from(received).unwrap_or(u32::MAX);
        if socket.count_datagrams(number, received) {
            socket_table::record_promoted_socket(&socket);
        }
    });
}

/// Copies a datagram to a message. Returns the result of the receive call.
///
/// # Safety
/// The message must be valid during the call (U1).
unsafe fn copy_datagram_to_message(
    (datagram, form): (&Datagram<'_>, ReceiveFormat),
    message: *mut Message,
    flags: c_int,
) -> isize {
    // SAFETY: U1.
    let message = unsafe { &mut *message };
    let mut rest = datagram.bytes;
    for number in 0..message.piece_count {
        let piece = message.pieces.wrapping_add(number);
        // SAFETY: U1: the array has more than `number` pieces.
        let IoVec { base, length } = unsafe { *piece };
        let (now, later) = rest.split_at(length.min(rest.len()));
        // SAFETY: U1: the piece has `length` writable bytes, and is not part of the ring.
        unsafe { ptr::copy_nonoverlapping(now.as_ptr(), base.cast::<u8>(), now.len()) };
        rest = later;
    }
    let address = EncodedAddress::new(datagram.from, form.is_v6, datagram.interface);
    let name = address.bytes();
    let name_room = if message.name.is_null() { 0 } else { message.name_length as usize };
    let room = if message.control.is_null() { 0 } else { message.control_length };
    let control = EncodedControl::new(form, datagram, room);
    let bytes = control.bytes();
    // SAFETY: U1: the place has `name_length` writable bytes.
    unsafe {
        ptr::copy_nonoverlapping(name.as_ptr(), message.name.cast(), name.len().min(name_room));
    };
    // SAFETY: U1: the place has `control_length` writable bytes, and `bytes` has at most as many.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), message.control.cast(), bytes.len()) };
    if !message.name.is_null() {
        message.name_length = name.len() as c_uint;
    }
    message.control_length = bytes.len();
    message.flags = if rest.is_empty() { 0 } else { flag::MSG_TRUNC };
    message.flags |= if control.is_truncated { flag::MSG_CTRUNC } else { 0 };
    let copied = datagram.bytes.len() - rest.len();
    let length = if flags & flag::MSG_TRUNC != 0 { datagram.bytes.len() } else { copied };
    length.cast_signed()
}

/// Receives a message from the ring of a socket, and keeps it in the ring if the call only peeks.
/// Returns the result of the receive call, or `None` if no datagram was received.
///
/// # Safety
/// The message must be valid during the call (U1).
unsafe fn receive_from_ring(socket: &Socket, message: *mut Message, flags: c_int) -> Option<isize> {
    let errno = preload::errno();
    // SAFETY: U1.
    let copy = |datagram: &Datagram<'_>, form| unsafe {
        copy_datagram_to_message((datagram, form), message, flags)
    };
    let taken = catch_panic(|| None, || socket.take_datagram(flags & flag::MSG_PEEK != 0, copy));
    preload::set_errno(errno);
    taken
}

/// A receive call on a promoted socket, which has a ring.
struct ReceiveCall<'s> {
    socket: &'s Socket,
    number: c_int,
    flags: c_int,
    /// True while this call must read the placeholder, the socket in the kernel, before the ring.
    asks_kernel: bool,
    /// True if the ring had a datagram before this call last read the placeholder (kernel socket).
    /// This datagram is newer than all datagrams in the placeholder.
    ring_had_datagram: bool,
    /// True if this call has found both the ring and, afterwards, the placeholder (kernel socket)
    /// empty.
    found_both_empty: bool,
    /// True if this call must put the ring to sleep before it reads the placeholder (kernel socket)
    /// again.
    must_sleep: bool,
    /// State and start time of the busy wait, if this call waits without sleeping; otherwise
    /// `None`.
    spin: Option<(SpinWait, Instant)>,
    /// True if this call has already waited for the placeholder (kernel socket) for a limited time
    /// with the ring awake.
    has_waited: bool,
    /// True if a signal handler has run since this call began to wait.
    is_interrupted: bool,
}

/// A read of the placeholder, the socket in the kernel, by a receive call.
struct KernelRead {
    /// Flags of the receive call with which the placeholder is read.
    flags: c_int,
    empty: StepIfEmpty,
    /// Registration of this thread as a waiter for the socket, if the call may sleep.
    _wait: Option<Wait>,
}

/// The next action of a receive call that has found the placeholder empty.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StepIfEmpty {
    /// The call reads the ring again; if a signal handler has run, it returns instead.
    ReadRing,
    /// The call leaves the ring awake. If the call is nonblocking, it returns without a datagram;
    /// otherwise, it puts the ring to sleep and continues.
    StayAwake,
    /// The call returns the result of reading the placeholder (kernel socket).
    Return,
}

impl<'s> ReceiveCall<'s> {
    fn begin(socket: &'s Socket, number: c_int, flags: c_int) -> Self {
        let asks_kernel =
            catch_panic_and_preserve_errno(|| socket.must_read_placeholder_first(number));
        Self {
            socket,
            number,
            flags,
            asks_kernel,
            ring_had_datagram: false,
            found_both_empty: false,
            must_sleep: false,
            spin: None,
            has_waited: false,
            is_interrupted: false,
        }
    }

    /// Prepares the next read of the placeholder (kernel socket). Called when the ring is empty, or
    /// when the placeholder must be read first. May first wait for datagrams. Returns `None` if the
    /// ring must be read again instead. `flags` are added to the flags of the call.
    fn prepare_kernel_read(&mut self, flags: c_int) -> Option<KernelRead> {
        let flags = self.flags | flags;
        let look = |empty| KernelRead { flags: flags | flag::MSG_DONTWAIT, empty, _wait: None };
        if self.asks_kernel {
            return Some(look(StepIfEmpty::ReadRing));
        }
        if self.socket.has_older_datagrams() {
            // Before the placeholder is read: an older datagram may be on its way to it.
            self.ring_had_datagram = catch_panic_and_preserve_errno(|| self.socket.has_datagram());
            if self.ring_had_datagram || !self.found_both_empty {
                return Some(look(StepIfEmpty::ReadRing));
            }
        }
        if !self.must_sleep && self.socket.may_stay_awake() {
            return Some(look(StepIfEmpty::StayAwake));
        }
        if report::is_spin_requested() && !self.is_nonblocking(flags) {
            if self.spin.is_none() {
                self.spin = SpinWait::begin().map(|spin| (spin, Instant::now()));
            }
            if let Some((spin, begun)) = &self.spin {
                let limit = udp::receive_timeout(self.number);
                let is_over = limit.is_some_and(|limit| begun.elapsed() >= limit);
                self.is_interrupted = !spin.step();
                return Some(look(if is_over {
                    StepIfEmpty::Return
                } else {
                    StepIfEmpty::ReadRing
                }));
            }
        }
        if report::ring_delay().is_some() && !self.has_waited && !self.is_nonblocking(flags) {
            let errno = preload::errno();
            let end = catch_panic(|| None, || self.wait_for_placeholder());
            preload::set_errno(errno);
            if let Some(end) = end {
                self.has_waited = true;
                self.is_interrupted = end == TimedWaitOutcome::Interrupted;
                return self.is_interrupted.then(|| look(StepIfEmpty::ReadRing));
            }
        }
        // Registered before the ring falls asleep, so that no other thread wakes the ring.
        let wait = (flags & flag::MSG_DONTWAIT == 0).then(|| Wait::begin_receive(self.number));
        let errno = preload::errno();
        let is_asleep = catch_panic(|| true, || self.socket.fall_asleep());
        preload::set_errno(errno);
        self.found_both_empty &= is_asleep;
        is_asleep.then_some(KernelRead { flags, empty: StepIfEmpty::Return, _wait: wait })
    }

    /// Waits until the placeholder (kernel socket) is readable, for a limited time during which
    /// datagrams may also enter the ring. Returns `None` at once if the call may not wait in this
    /// way ([`Socket::placeholder_wait_time`]).
    fn wait_for_placeholder(&self) -> Option<TimedWaitOutcome> {
        let delay = self.socket.placeholder_wait_time()?;
        let limit = udp::receive_timeout(self.number).unwrap_or(delay);
        Some(preload::wait_readable(self.number, delay.min(limit)))
    }

    fn is_nonblocking(&self, flags: c_int) -> bool {
        flags & flag::MSG_DONTWAIT != 0 || preload::is_nonblocking(self.number)
    }

    /// Performs the action `empty` after the call has found the placeholder (kernel socket) empty.
    /// Returns true if the call continues, and false if it returns to the program.
    fn continue_after_empty_read(&mut self, empty: StepIfEmpty, flags: c_int) -> bool {
        match empty {
            StepIfEmpty::Return => false,
            StepIfEmpty::StayAwake => {
                self.must_sleep = true;
                !self.is_nonblocking(self.flags | flags)
            }
            StepIfEmpty::ReadRing => {
                if self.ring_had_datagram {
                    self.socket.record_empty_placeholder();
                }
                self.found_both_empty = !self.asks_kernel && !self.ring_had_datagram;
                self.asks_kernel = false;
                !self.is_interrupted
            }
        }
    }
}

/// Receives a message on a promoted socket: from its ring, else from the placeholder (kernel
/// socket).
///
/// # Safety
/// The message must be valid during the call (U1).
pub(super) unsafe fn receive_on_promoted_socket(
    socket: &Socket,
    number: c_int,
    message: *mut Message,
    flags: c_int,
) -> isize {
    let mut call = ReceiveCall::begin(socket, number, flags);
    loop {
        if !call.asks_kernel && !socket.has_older_datagrams() {
            // SAFETY: U1.
            if let Some(answer) = unsafe { receive_from_ring(socket, message, flags) } {
                return answer;
            }
        }
        let Some(read) = call.prepare_kernel_read(0) else { continue };
        // SAFETY: U1.
        let received = unsafe { receive_from_placeholder(socket, number, message, read.flags) };
        let empty = read.empty;
        drop(read);
        if received >= 0 {
            count_kernel_datagrams(number, 1, flags);
            return received;
        }
        let errno = preload::errno();
        if errno != EAGAIN || !call.continue_after_empty_read(empty, 0) {
            preload::set_errno(if call.is_interrupted { EINTR } else { errno });
            return received;
        }
    }
}

/// Receives several messages on a promoted socket, as recvmmsg(2) does.
///
/// # Safety
/// The array and its messages must be valid during the call (U1).
pub(super) unsafe fn receive_many_on_promoted_socket(
    (socket, number): (&Socket, c_int),
    (messages, length): (*mut ReceivedMessage, usize),
    flags: c_int,
    mut limit: Option<Timespec>,
) -> c_int {
    let begun = Instant::now();
    let most = limit.map(Timespec::duration);
    let limit_passed = || most.is_some_and(|most| begun.elapsed() >= most);
    let waits_for_one = flags & flag::MSG_WAITFORONE;
    let mut call = ReceiveCall::begin(socket, number, flags & !flag::MSG_WAITFORONE);
    let mut done = 0;
    while done < length && (done == 0 || !limit_passed()) {
        let place = messages.wrapping_add(done);
        if !call.asks_kernel && !socket.has_older_datagrams() {
            // SAFETY: U1: the array has more than `done` messages.
            let message = unsafe { &raw mut (*place).message };
            // SAFETY: U1.
            if let Some(received) = unsafe { receive_from_ring(socket, message, call.flags) } {
                // SAFETY: U1.
                unsafe { (*place).length = c_uint::try_from(received).unwrap_or(0) };
                done += 1;
                continue;
            }
        }
        // A call that waits for one message (MSG_WAITFORONE) does not wait after the first.
        let added = match waits_for_one {
            0 => 0,
            _ if done == 0 => flag::MSG_WAITFORONE,
            _ => flag::MSG_DONTWAIT,
        };
        let is_read = !call.asks_kernel && (!socket.has_older_datagrams() || call.found_both_empty);
        let ends = done > 0 && is_read && socket.may_leave_datagrams();
        if ends && call.is_nonblocking(flags | added) {
            break;
        }
        let Some(read) = call.prepare_kernel_read(added) else { continue };
        // SAFETY: U1: the array has `length - done` messages from this place on.
        let received = unsafe {
            receive_many_from_kernel(
                (Some(socket), number),
                (place, length - done),
                read.flags,
                limit.as_mut().map_or(ptr::null_mut(), ptr::from_mut),
            )
        };
        let empty = read.empty;
        drop(read);
        let errno = preload::errno();
        let received = usize::try_from(received).ok();
        count_kernel_datagrams(number, received.unwrap_or(0), flags);
        done += received.unwrap_or(0);
        let is_failed = received.is_none() && errno != EAGAIN;
        if is_failed || done < length && !call.continue_after_empty_read(empty, added) {
            preload::set_errno(if call.is_interrupted { EINTR } else { errno });
            break;
        }
    }
    if done > 0 || length == 0 { c_int::try_from(done).unwrap_or(c_int::MAX) } else { -1 }
}
