//! Reception of datagrams from the placeholder of a socket, which is its socket in the kernel.

use super::messages::Timespec;
use super::{Message, ReceivedMessage};
use crate::control::add_drop_count;
use crate::socket::Socket;
use std::ffi::{c_int, c_uint};
use sys::next_function;
use sys::preload::interpose::{catch_panic_and_preserve_errno, missing_function};

type RecvmmsgFn =
    unsafe extern "C" fn(c_int, *mut ReceivedMessage, c_uint, c_int, *mut Timespec) -> c_int;
type RecvmsgFn = unsafe extern "C" fn(c_int, *mut Message, c_int) -> isize;

/// Flags of receive calls that this library supports.
pub(super) mod flag {
    pub(in crate::export) const MSG_PEEK: i32 = 0x2;
    pub(in crate::export) const MSG_CTRUNC: i32 = 0x8;
    pub(in crate::export) const MSG_TRUNC: i32 = 0x20;
    pub(in crate::export) const MSG_DONTWAIT: i32 = 0x40;
    pub(in crate::export) const MSG_WAITALL: i32 = 0x100;
    pub(in crate::export) const MSG_WAITFORONE: i32 = 0x10000;
    pub(in crate::export) const MSG_CMSG_CLOEXEC: i32 = 0x4000_0000;
    pub(in crate::export) const SUPPORTED_FLAGS: i32 =
        MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT | MSG_WAITALL | MSG_WAITFORONE | MSG_CMSG_CLOEXEC;
}

/// Receives a message with the C library's `recvmsg`.
///
/// # Safety
/// The message must be valid during the call (U1).
pub(super) unsafe fn real_recvmsg(number: c_int, message: *mut Message, flags: c_int) -> isize {
    match next_function!(c"recvmsg" as RecvmsgFn) {
        // SAFETY: I1, U1.
        Some(receive) => unsafe { receive(number, message, flags) },
        None => missing_function(),
    }
}

/// Receives a message from the placeholder of a socket, which is its socket in the kernel. Adds the
/// datagrams that the rings have dropped to the number that the kernel reports.
///
/// # Safety
/// The message must be valid during the call (U1).
pub(super) unsafe fn receive_from_placeholder(
    socket: &Socket,
    number: c_int,
    message: *mut Message,
    flags: c_int,
) -> isize {
    // SAFETY: U1.
    let room = unsafe { (*message).control_length };
    // SAFETY: U1.
    let received = unsafe { real_recvmsg(number, message, flags) };
    let drops = catch_panic_and_preserve_errno(|| socket.update_drops(number));
    if received >= 0 && drops > 0 {
        // SAFETY: U1; the kernel has received a message.
        unsafe { add_drop_count_to_message(message, room, drops) };
    }
    received
}

/// Receives several messages with the C library's `recvmmsg`. Adds the datagrams that the rings of
/// the socket have dropped to the number that the kernel reports.
///
/// # Safety
/// The array, its messages and the time must be valid during the call (U1).
pub(super) unsafe fn receive_many_from_kernel(
    (socket, number): (Option<&Socket>, c_int),
    (messages, length): (*mut ReceivedMessage, usize),
    flags: c_int,
    limit: *mut Timespec,
) -> c_int {
    let Some(next) = next_function!(c"recvmmsg" as RecvmmsgFn) else {
        return missing_function();
    };
    let socket =
        socket.filter(|socket| catch_panic_and_preserve_errno(|| socket.wants_drop_count()));
    // `message` is the first field of `ReceivedMessage`.
    let message = |at: usize| messages.wrapping_add(at).cast::<Message>();
    // SAFETY: U1: the array has `length` messages.
    let room = |at: usize| unsafe { (*message(at)).control_length };
    let rooms: Vec<usize> = socket.iter().flat_map(|_| (0..length).map(room)).collect();
    let count = c_uint::try_from(length).unwrap_or(c_uint::MAX);
    // SAFETY: I1, U1.
    let received = unsafe { next(number, messages, count, flags, limit) };
    let drops =
        catch_panic_and_preserve_errno(|| socket.map_or(0, |socket| socket.update_drops(number)));
    if drops > 0 {
        for (at, room) in (0..usize::try_from(received).unwrap_or(0)).zip(rooms) {
            // SAFETY: U1; the kernel has received this message.
            unsafe { add_drop_count_to_message(message(at), room, drops) };
        }
    }
    received
}

/// Adds `drops` to the number of dropped datagrams in a message that the kernel has received. The
/// program's buffer for control messages has `room` bytes.
///
/// # Safety
/// The message must be valid during the call (U1).
unsafe fn add_drop_count_to_message(message: *mut Message, room: usize, drops: u32) {
    // SAFETY: U1.
    let message = unsafe { &mut *message };
    if message.control.is_null() || message.control_length > room {
        return;
    }
    // SAFETY: U1: the place has `room` writable bytes, and the program does not use them now.
    let place = unsafe { std::slice::from_raw_parts_mut(message.control.cast::<u8>(), room) };
    match add_drop_count(place, message.control_length, drops) {
        Some(used) => message.control_length = used,
        None => message.flags |= flag::MSG_CTRUNC,
    }
}
