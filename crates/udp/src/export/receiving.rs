//! Reception on a promoted socket.

use super::Message;
use super::epoll::{self, real_epoll_ctl};
use super::kernel::{flag, receive_by_kernel};
use super::waits::wait_readable;
use crate::address::EncodedAddress;
use crate::control::{EncodedControl, ReceivedForm};
use crate::ring::Datagram;
use crate::socket::Socket;
use crate::table;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::time::Instant;
use sys::preload;
use sys::preload::interpose::{IoVec, catch_panic, quietly};

/// `EAGAIN`.
const EAGAIN: i32 = 11;

/// Counts a datagram that the kernel has delivered through a descriptor.
pub(super) fn count(number: c_int, received: isize, flags: c_int) {
    if received < 0 || flags & flag::PEEK != 0 {
        return;
    }
    quietly(|| {
        let Some(socket) = table::find(number) else { return };
        socket.count_datagram(number, |known, ring| {
            let mut event = epoll::ring_event(known.events, known.data);
            real_epoll_ctl(known.set, epoll::EPOLL_CTL_ADD, ring, &raw mut event) == 0
        });
    });
}

/// Copies a datagram to a message. Returns the result of the receive call.
///
/// # Safety
/// U1 must hold for the message.
unsafe fn copy_to_message(
    (datagram, form): (&Datagram<'_>, ReceivedForm),
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
    message.flags = if rest.is_empty() { 0 } else { flag::TRUNC };
    message.flags |= if control.is_truncated { flag::CTRUNC } else { 0 };
    let copied = datagram.bytes.len() - rest.len();
    let length = if flags & flag::TRUNC != 0 { datagram.bytes.len() } else { copied };
    length.cast_signed()
}

/// Receives a message on a promoted socket: from its ring, else from the placeholder, else waits
/// for either.
///
/// # Safety
/// U1 must hold for the message.
pub(super) unsafe fn receive_promoted(
    socket: &Socket,
    number: c_int,
    message: *mut Message,
    flags: c_int,
) -> isize {
    let mut begun = None;
    let mut asks_kernel = socket.reads_placeholder_first(number);
    loop {
        if !asks_kernel {
            let errno = preload::errno();
            // SAFETY: U1.
            let copy = |datagram: &Datagram<'_>, form| unsafe {
                copy_to_message((datagram, form), message, flags)
            };
            let taken = catch_panic(|| None, || socket.take(flags & flag::PEEK != 0, copy));
            preload::set_errno(errno);
            if let Some(answer) = taken {
                return answer;
            }
        }
        asks_kernel = false;
        // SAFETY: U1.
        let received =
            unsafe { receive_by_kernel(socket, number, message, flags | flag::DONTWAIT) };
        if received >= 0 {
            count(number, received, flags);
            return received;
        }
        if preload::errno() != EAGAIN {
            return received;
        }
        socket.note_placeholder_empty();
        if socket.has_datagram() {
            continue;
        }
        if flags & flag::DONTWAIT != 0 || preload::is_nonblocking(number) {
            preload::set_errno(EAGAIN);
            return -1;
        }
        if let Err(errno) = wait_readable(number, socket, *begun.get_or_insert_with(Instant::now)) {
            preload::set_errno(errno);
            return -1;
        }
    }
}
