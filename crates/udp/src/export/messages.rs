//! The receive calls.

use super::kernel::{add_drops_to, flag, real_recvmsg, receive_by_kernel};
use super::receiving::{count, receive_promoted};
use super::{Message, ReceivedMessage};
use crate::drops;
use crate::socket::Socket;
use crate::table;
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::next_function;
use sys::preload::interpose::{IoVec, catch_panic, missing_function, quietly};

type Receive = unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize;
type ReceiveFrom =
    unsafe extern "C" fn(c_int, *mut c_void, usize, c_int, *mut c_void, *mut c_uint) -> isize;
type ReceiveMessages =
    unsafe extern "C" fn(c_int, *mut ReceivedMessage, c_uint, c_int, *mut Time) -> c_int;
type Read = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;
type ReadVector = unsafe extern "C" fn(c_int, *const IoVec, c_int) -> isize;
type Call = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// `struct timespec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Time {
    pub(super) seconds: i64,
    pub(super) nanoseconds: i64,
}

/// Number of the system call `recvmmsg`.
const SYS_RECVMMSG: c_long = if cfg!(target_arch = "x86_64") { 299 } else { 243 };

/// Returns the socket if it is promoted and this library supports all of `flags`, else `None`.
fn promoted(number: c_int, flags: c_int) -> Option<Arc<Socket>> {
    if flags & !flag::KNOWN != 0 {
        return None;
    }
    catch_panic(|| None, || table::find_promoted(number))
}

/// Returns the socket if one of its earlier rings may have dropped datagrams, whose number the
/// program asks for.
fn socket_after_drops(number: c_int) -> Option<Arc<Socket>> {
    if !drops::has_ring_drops() {
        return None;
    }
    catch_panic(|| None, || table::find(number))
}

/// Receives into one buffer on a promoted socket.
///
/// # Safety
/// U1 must hold for the buffer and the address.
unsafe fn receive_into(
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
    let received = unsafe { receive_promoted(socket, number, &raw mut message, flags) };
    if received >= 0 && !size.is_null() && !address.is_null() {
        // SAFETY: U1.
        unsafe { *size = message.name_length };
    }
    received
}

/// `recvfrom(2)`.
///
/// # Safety
/// U1 must hold for the buffer and the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    number: c_int,
    to: *mut c_void,
    length: usize,
    flags: c_int,
    address: *mut c_void,
    size: *mut c_uint,
) -> isize {
    if let Some(socket) = promoted(number, flags) {
        // SAFETY: U1.
        return unsafe { receive_into((&socket, number), (to, length), flags, (address, size)) };
    }
    let Some(next) = next_function!(c"recvfrom" as ReceiveFrom) else { return missing_function() };
    // SAFETY: I1, U1.
    let received = unsafe { next(number, to, length, flags, address, size) };
    count(number, received, flags);
    received
}

/// `recvfrom(2)` in programs that were built to check buffer sizes.
///
/// # Safety
/// U1 must hold for the buffer and the address.
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

/// `recv(2)`.
///
/// # Safety
/// U1 must hold for the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(
    number: c_int,
    to: *mut c_void,
    length: usize,
    flags: c_int,
) -> isize {
    if let Some(socket) = promoted(number, flags) {
        let nowhere = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: U1.
        return unsafe { receive_into((&socket, number), (to, length), flags, nowhere) };
    }
    let Some(next) = next_function!(c"recv" as Receive) else { return missing_function() };
    // SAFETY: I1, U1.
    let received = unsafe { next(number, to, length, flags) };
    count(number, received, flags);
    received
}

/// `recv(2)` in programs that were built to check buffer sizes.
///
/// # Safety
/// U1 must hold for the buffer.
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

/// `read(2)`.
///
/// # Safety
/// U1 must hold for the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(number: c_int, to: *mut c_void, length: usize) -> isize {
    if let Some(socket) = promoted(number, 0) {
        let nowhere = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: U1.
        return unsafe { receive_into((&socket, number), (to, length), 0, nowhere) };
    }
    let Some(next) = next_function!(c"read" as Read) else { return missing_function() };
    // SAFETY: I1, U1.
    let received = unsafe { next(number, to, length) };
    count(number, received, 0);
    received
}

/// `readv(2)`.
///
/// # Safety
/// U1 must hold for the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(number: c_int, pieces: *const IoVec, piece_count: c_int) -> isize {
    if let (Some(socket), Ok(piece_count)) = (promoted(number, 0), usize::try_from(piece_count)) {
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
        return unsafe { receive_promoted(&socket, number, &raw mut message, 0) };
    }
    let Some(next) = next_function!(c"readv" as ReadVector) else { return missing_function() };
    // SAFETY: I1, U1.
    let received = unsafe { next(number, pieces, piece_count) };
    count(number, received, 0);
    received
}

/// `recvmsg(2)`.
///
/// # Safety
/// U1 must hold for the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(number: c_int, message: *mut Message, flags: c_int) -> isize {
    if let Some(socket) = promoted(number, flags).filter(|_| !message.is_null()) {
        // SAFETY: U1.
        return unsafe { receive_promoted(&socket, number, message, flags) };
    }
    let after_drops = socket_after_drops(number).filter(|_| !message.is_null());
    let received = match after_drops {
        // SAFETY: U1.
        Some(socket) => unsafe { receive_by_kernel(&socket, number, message, flags) },
        // SAFETY: U1.
        None => unsafe { real_recvmsg(number, message, flags) },
    };
    count(number, received, flags);
    received
}

/// `recvmmsg(2)`.
///
/// # Safety
/// U1 must hold for the array and its messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    number: c_int,
    messages: *mut ReceivedMessage,
    length: c_uint,
    flags: c_int,
    limit: *mut Time,
) -> c_int {
    let Some(socket) = promoted(number, flags).filter(|_| !messages.is_null()) else {
        let Some(next) = next_function!(c"recvmmsg" as ReceiveMessages) else {
            return missing_function();
        };
        let after_drops = socket_after_drops(number).filter(|_| !messages.is_null());
        // `message` is the first field of `ReceivedMessage`.
        let message = |at: c_uint| messages.wrapping_add(at as usize).cast::<Message>();
        // SAFETY: U1: the array has `length` messages.
        let room = |at: c_uint| unsafe { (*message(at)).control_length };
        let rooms: Vec<usize> = after_drops.iter().flat_map(|_| (0..length).map(room)).collect();
        // SAFETY: I1, U1.
        let received = unsafe { next(number, messages, length, flags, limit) };
        let drops = quietly(|| after_drops.map_or(0, |socket| socket.update_drops(number)));
        if drops > 0 {
            for (at, room) in (0..received.max(0).unsigned_abs()).zip(rooms) {
                // SAFETY: U1; the kernel has received this message.
                unsafe { add_drops_to(message(at), room, drops) };
            }
        }
        count_all(number, received, flags);
        return received;
    };
    let begun = Instant::now();
    // SAFETY: U1.
    let limit = (!limit.is_null()).then(|| unsafe { *limit }).map(|limit| {
        let seconds = u64::try_from(limit.seconds).unwrap_or(0);
        Duration::from_secs(seconds) + Duration::from_nanos(limit.nanoseconds.unsigned_abs())
    });
    let mut done: c_int = 0;
    while done.unsigned_abs() < length {
        let waits = done == 0 || flags & flag::WAITFORONE == 0;
        let flags = flags & !flag::WAITFORONE | if waits { 0 } else { flag::DONTWAIT };
        // SAFETY: U1: the array has `length` messages.
        let place = unsafe { messages.add(done.unsigned_abs() as usize) };
        // SAFETY: U1.
        let message = unsafe { &raw mut (*place).message };
        // SAFETY: U1.
        let received = unsafe { receive_promoted(&socket, number, message, flags) };
        let Ok(received) = c_uint::try_from(received) else {
            return if done > 0 { done } else { -1 };
        };
        // SAFETY: U1.
        unsafe { (*place).length = received };
        done += 1;
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            break;
        }
    }
    done
}

fn count_all(number: c_int, received: c_int, flags: c_int) {
    for _ in 0..received.max(0) {
        count(number, 0, flags);
    }
}

/// `syscall(2)`, which libuv uses to receive.
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
        && catch_panic(|| None, || table::find(number)).is_some()
    {
        let messages = ptr::with_exposed_provenance_mut(b.cast_unsigned() as usize);
        let limit = ptr::with_exposed_provenance_mut(e.cast_unsigned() as usize);
        // SAFETY: U1: the arguments are those of recvmmsg(2).
        return c_long::from(unsafe { recvmmsg(number, messages, length, flags, limit) });
    }
    match next_function!(c"syscall" as Call) {
        // SAFETY: I1; the arguments are the program's.
        Some(next) => unsafe { next(call, a, b, c, d, e, f) },
        None => c_long::from(missing_function::<c_int>()),
    }
}
