//! Exported functions that receive datagrams, such as `recvfrom` and `recvmsg`.

use super::kernel::{flag, real_recvmsg, receive_from_placeholder, receive_many_from_kernel};
use super::receiving::{
    count_kernel_datagrams, receive_many_on_promoted_socket, receive_on_promoted_socket,
};
use super::{Message, ReceivedMessage};
use crate::descriptor_waits::Wait;
use crate::drops;
use crate::socket::Socket;
use crate::socket_table;
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;
use sys::next_function;
use sys::preload::interpose::{IoVec, catch_panic, missing_function};

type RecvFn = unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize;
type RecvFromFn =
    unsafe extern "C" fn(c_int, *mut c_void, usize, c_int, *mut c_void, *mut c_uint) -> isize;
type ReadFn = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;
type ReadvFn = unsafe extern "C" fn(c_int, *const IoVec, c_int) -> isize;
type SyscallFn =
    unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// A time or a time limit, laid out as `struct timespec` in C.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Timespec {
    pub(super) seconds: i64,
    pub(super) nanoseconds: i64,
}

impl Timespec {
    pub(super) fn duration(self) -> Duration {
        let seconds = u64::try_from(self.seconds).unwrap_or(0);
        Duration::from_secs(seconds) + Duration::from_nanos(self.nanoseconds.unsigned_abs())
    }
}

/// Number of the system call `recvmmsg`.
const SYS_RECVMMSG: c_long = if cfg!(target_arch = "x86_64") { 299 } else { 243 };

/// Returns the socket if it is promoted and this library supports all of the call's `flags`;
/// otherwise `None`.
fn promoted_socket(number: c_int, flags: c_int) -> Option<Arc<Socket>> {
    if flags & !flag::SUPPORTED_FLAGS != 0 {
        return None;
    }
    catch_panic(|| None, || socket_table::find_promoted_socket(number))
}

/// Returns the UDP socket with the descriptor `number`, for the report of drops. Returns `None` if
/// the descriptor is no UDP socket. Also returns `None` as long as no ring has dropped datagrams of
/// a socket whose program requests the number of drops.
fn socket_with_ring_drops(number: c_int) -> Option<Arc<Socket>> {
    if !drops::has_ring_drops() {
        return None;
    }
    catch_panic(|| None, || socket_table::find_socket(number))
}

/// Returns the number of datagrams that a receive call has received, given the call's result: 1
/// after a success, and 0 after a failure.
fn received_count(received: isize) -> usize {
    usize::from(received >= 0)
}

/// Receives into one buffer on a promoted socket.
///
/// # Safety
/// The buffer and the address must be valid during the call (U1).
unsafe fn receive_into_buffer(
    (socket, number): (&Socket, c_int),
    (to, length): (*mut c_void, usize),
    flags: c_int,
    (address, size): (*mut c_void, *mut c_uint),
) -> isize {
    let mut piece = IoVec { base: to, length };
    let mut message = Message {
        name: address,
        name_length: 0,
        pieces: &raw mut piece,
        piece_count: 1,
        control: ptr::null_mut(),
        control_length: 0,
        flags: 0,
    };
    if !size.is_null() {
        // SAFETY: U1.
        message.name_length = unsafe { *size };
    }
    // SAFETY: U1.
    let received = unsafe { receive_on_promoted_socket(socket, number, &raw mut message, flags) };
    if received >= 0 && !size.is_null() && !address.is_null() {
        // SAFETY: U1.
        unsafe { *size = message.name_length };
    }
    received
}

/// Replaces `recvfrom(2)`. On a promoted socket, receives from the ring or the placeholder (kernel
/// socket).
///
/// # Safety
/// The buffer and the address must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    number: c_int,
    to: *mut c_void,
    length: usize,
    flags: c_int,
    address: *mut c_void,
    size: *mut c_uint,
) -> isize {
    if let Some(socket) = promoted_socket(number, flags) {
        // SAFETY: U1.
        return unsafe {
            receive_into_buffer((&socket, number), (to, length), flags, (address, size))
        };
    }
    let Some(next) = next_function!(c"recvfrom" as RecvFromFn) else { return missing_function() };
    let wait = Wait::begin_receive(number);
    // SAFETY: I1, U1.
    let received = unsafe { next(number, to, length, flags, address, size) };
    drop(wait);
    count_kernel_datagrams(number, received_count(received), flags);
    received
}

/// Replaces `recvfrom(2)` in programs compiled with checks of buffer sizes (`_FORTIFY_SOURCE`).
///
/// # Safety
/// The buffer and the address must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    number: c_int,
    to: *mut c_void,
    length: usize,
    room: usize,
    flags: c_int,
    address: *mut c_void,
    size: *mut c_uint,
) -> isize {
    if length > room {
        std::process::abort();
    }
    // SAFETY: the caller's promises are the same.
    unsafe { recvfrom(number, to, length, flags, address, size) }
}

/// Replaces `recv(2)`. On a promoted socket, receives from the ring or the placeholder (kernel
/// socket).
///
/// # Safety
/// The buffer must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(
    number: c_int,
    to: *mut c_void,
    length: usize,
    flags: c_int,
) -> isize {
    if let Some(socket) = promoted_socket(number, flags) {
        let nowhere = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: U1.
        return unsafe { receive_into_buffer((&socket, number), (to, length), flags, nowhere) };
    }
    let Some(next) = next_function!(c"recv" as RecvFn) else { return missing_function() };
    let wait = Wait::begin_receive(number);
    // SAFETY: I1, U1.
    let received = unsafe { next(number, to, length, flags) };
    drop(wait);
    count_kernel_datagrams(number, received_count(received), flags);
    received
}

/// Replaces `recv(2)` in programs compiled with checks of buffer sizes (`_FORTIFY_SOURCE`).
///
/// # Safety
/// The buffer must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    number: c_int,
    to: *mut c_void,
    length: usize,
    room: usize,
    flags: c_int,
) -> isize {
    if length > room {
        std::process::abort();
    }
    // SAFETY: the caller's promises are the same.
    unsafe { recv(number, to, length, flags) }
}

/// Replaces `read(2)`. On a promoted socket, receives from the ring or the placeholder (kernel
/// socket).
///
/// # Safety
/// The buffer must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(number: c_int, to: *mut c_void, length: usize) -> isize {
    if let Some(socket) = promoted_socket(number, 0) {
        let nowhere = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: U1.
        return unsafe { receive_into_buffer((&socket, number), (to, length), 0, nowhere) };
    }
    let Some(next) = next_function!(c"read" as ReadFn) else { return missing_function() };
    if socket_table::is_not_udp_socket(number) {
        // SAFETY: I1, U1.
        return unsafe { next(number, to, length) };
    }
    let wait = Wait::begin_receive(number);
    // SAFETY: I1, U1.
    let received = unsafe { next(number, to, length) };
    drop(wait);
    count_kernel_datagrams(number, received_count(received), 0);
    received
}

/// Replaces `readv(2)`. On a promoted socket, receives from the ring or the placeholder (kernel
/// socket).
///
/// # Safety
/// The array must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(number: c_int, pieces: *const IoVec, piece_count: c_int) -> isize {
    if let (Some(socket), Ok(piece_count)) =
        (promoted_socket(number, 0), usize::try_from(piece_count))
    {
        let mut message = Message {
            name: ptr::null_mut(),
            name_length: 0,
            pieces: pieces.cast_mut(),
            piece_count,
            control: ptr::null_mut(),
            control_length: 0,
            flags: 0,
        };
        // SAFETY: U1.
        return unsafe { receive_on_promoted_socket(&socket, number, &raw mut message, 0) };
    }
    let Some(next) = next_function!(c"readv" as ReadvFn) else { return missing_function() };
    if socket_table::is_not_udp_socket(number) {
        // SAFETY: I1, U1.
        return unsafe { next(number, pieces, piece_count) };
    }
    let wait = Wait::begin_receive(number);
    // SAFETY: I1, U1.
    let received = unsafe { next(number, pieces, piece_count) };
    drop(wait);
    count_kernel_datagrams(number, received_count(received), 0);
    received
}

/// Replaces `recvmsg(2)`. On a promoted socket, receives from the ring or the placeholder (kernel
/// socket).
///
/// # Safety
/// The message must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(number: c_int, message: *mut Message, flags: c_int) -> isize {
    if let Some(socket) = promoted_socket(number, flags).filter(|_| !message.is_null()) {
        // SAFETY: U1.
        return unsafe { receive_on_promoted_socket(&socket, number, message, flags) };
    }
    let after_drops = socket_with_ring_drops(number).filter(|_| !message.is_null());
    let wait = Wait::begin_receive(number);
    let received = match after_drops {
        // SAFETY: U1.
        Some(socket) => unsafe { receive_from_placeholder(&socket, number, message, flags) },
        // SAFETY: U1.
        None => unsafe { real_recvmsg(number, message, flags) },
    };
    drop(wait);
    count_kernel_datagrams(number, received_count(received), flags);
    received
}

/// Replaces `recvmmsg(2)`. On a promoted socket, receives from the ring or the placeholder (kernel
/// socket).
///
/// # Safety
/// The array and its messages must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    number: c_int,
    messages: *mut ReceivedMessage,
    length: c_uint,
    flags: c_int,
    limit: *mut Timespec,
) -> c_int {
    let room = length as usize;
    if let Some(socket) = promoted_socket(number, flags).filter(|_| !messages.is_null()) {
        // SAFETY: U1.
        let limit = (!limit.is_null()).then(|| unsafe { *limit });
        // SAFETY: U1.
        return unsafe {
            receive_many_on_promoted_socket((&socket, number), (messages, room), flags, limit)
        };
    }
    let after_drops = socket_with_ring_drops(number).filter(|_| !messages.is_null());
    let wait = Wait::begin_receive(number);
    // SAFETY: U1.
    let received = unsafe {
        receive_many_from_kernel((after_drops.as_deref(), number), (messages, room), flags, limit)
    };
    drop(wait);
    count_kernel_datagrams(number, usize::try_from(received).unwrap_or(0), flags);
    received
}

/// Replaces `syscall(2)`, through which libuv calls recvmmsg(2).
///
/// # Safety
/// The arguments must be as the system call requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    call: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if let (SYS_RECVMMSG, Ok(number), Ok(length), Ok(flags)) =
        (call, c_int::try_from(a), c_uint::try_from(c), c_int::try_from(d))
        && catch_panic(|| None, || socket_table::find_socket(number)).is_some()
    {
        let messages = ptr::with_exposed_provenance_mut(b.cast_unsigned() as usize);
        let limit = ptr::with_exposed_provenance_mut(e.cast_unsigned() as usize);
        // SAFETY: U1: the arguments are those of recvmmsg(2).
        return c_long::from(unsafe { recvmmsg(number, messages, length, flags, limit) });
    }
    match next_function!(c"syscall" as SyscallFn) {
        // SAFETY: I1; the arguments are the program's.
        Some(next) => unsafe { next(call, a, b, c, d, e, f) },
        None => c_long::from(missing_function::<c_int>()),
    }
}
