//! The exported functions. Each has the name and the semantics of a function of the C library, to
//! which it passes all calls that concern no edge.
//!
//! Invariants, cited below:
//! - X1 [`next_function`] returns the function of that name in the next library, as found by the
//!   loader; each is called with the type that its manual page gives.
//! - X2 A program that passes a buffer of `count` bytes to read or write promises that they may be
//!   written or read during the call, as for the kernel. (A wrong pointer causes a signal and not
//!   `EFAULT`.)
//! - X3 Arrays of buffers (`readv`, `writev`) have the length that the program passes.

use crate::counts;
use crate::ends::{self, EdgeState, SharedEdge};
use crate::forward;
use crate::lazy;
use crate::retire::{self, Occasion};
use crate::writing::Bytes;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use sys::preload;

/// Returns the function of the same name in the next library, or `None` if there is none. The
/// function is looked up once per call site.
macro_rules! real {
    ($name:literal as $type:ty) => {{
        static NEXT: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        let found = $crate::export::next_function(&NEXT, $name);
        // SAFETY: X1; a function pointer and an optional function have the same size, and null is
        // `None`.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, Option<$type>>(found) }
    }};
}

fn next_function(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let found = preload::next_symbol(name).map_or(ptr::null_mut(), ptr::NonNull::as_ptr);
    place.store(found, Ordering::Release);
    found
}

pub mod calls;
pub mod stdio;
pub mod trampoline;

/// Returns -1 with `ENOSYS`, for a function that the C library lacks.
fn missing_function<T: From<i8>>() -> T {
    preload::set_errno(preload::ENOSYS);
    T::from(-1)
}

/// Runs `body` without unwinding into C. After a panic returns the result of `otherwise`.
fn catch_panic<T>(otherwise: impl FnOnce() -> T, body: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|_| otherwise())
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    catch_panic(
        || (),
        || {
            counts::start();
            ends::start();
            lazy::start();
            if let Some(register) = real!(c"__register_atfork" as Register) {
                // SAFETY: X1; the handlers are functions of this library, which is never unloaded.
                unsafe { register(Some(before_fork), None, Some(in_child), ptr::null_mut()) };
            }
        },
    );
}

type Handler = Option<extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

extern "C" fn before_fork() {
    let errno = preload::errno();
    catch_panic(
        || (),
        || {
            lazy::stop();
            retire::all_edges(Occasion::Fork);
        },
    );
    preload::set_errno(errno);
}

extern "C" fn in_child() {
    ends::stop();
}

// ---- reading and writing

type Read = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;
type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;

fn real_read(fd: c_int, to: *mut c_void, count: usize) -> isize {
    match real!(c"read" as Read) {
        // SAFETY: X1, X2.
        Some(read) => unsafe { read(fd, to, count) },
        None => missing_function(),
    }
}

fn real_write(fd: c_int, from: *const c_void, count: usize) -> isize {
    match real!(c"write" as Write) {
        // SAFETY: X1, X2.
        Some(write) => unsafe { write(fd, from, count) },
        None => missing_function(),
    }
}

/// `read(2)`.
///
/// # Safety
/// `to` must point to `count` writable bytes (X2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, to: *mut c_void, count: usize) -> isize {
    if let Some(shared_edge) = ends::find(fd).filter(|_| !to.is_null()) {
        let plain = || {
            lazy::restore(to.addr(), count);
            real_read(fd, to, count)
        };
        return catch_panic(plain, || read_from(shared_edge, fd, to, count));
    }
    if let Some(count) =
        catch_panic(|| None, || preserving_errno(|| lazy::read(fd, to.addr(), count)))
    {
        return isize::try_from(count).unwrap_or(isize::MAX);
    }
    forward::forget();
    let count = real_read(fd, to, count);
    lazy::advance(fd, count);
    count
}

fn read_from(shared_edge: &SharedEdge, fd: c_int, to: *mut c_void, count: usize) -> isize {
    let plain = || {
        lazy::restore(to.addr(), count);
        real_read(fd, to, count)
    };
    let Some(mut locked) = shared_edge.lock_for_call() else { return plain() };
    let EdgeState::Reading(reading) = &mut *locked.state else { return plain() };
    let lent = preserving_errno(|| reading.lend(&shared_edge.edge, to.addr(), count));
    if let Some(length) = lent {
        return isize::try_from(length).unwrap_or(isize::MAX);
    }
    lazy::restore(to.addr(), count);
    // SAFETY: X2: no other code uses these bytes during the call; any byte value is valid.
    let out = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), count) };
    let real = |out: &mut [u8]| real_read(fd, out.as_mut_ptr().cast(), out.len());
    restore_errno_on_success(|| {
        reading.read_and_record(out, |reading, out| reading.read(&shared_edge.edge, fd, out, real))
    })
}

/// `write(2)`.
///
/// # Safety
/// `from` must point to `count` readable bytes (X2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, count: usize) -> isize {
    let range = catch_panic(|| None, || preserving_errno(|| lazy::range(from.addr(), count)));
    let plain = || match &range {
        Some(range) => write_range(range, fd),
        None => {
            lazy::restore(from.addr(), count);
            real_write(fd, from, count)
        }
    };
    let Some(shared_edge) = ends::find(fd).filter(|_| !from.is_null()) else {
        let written = plain();
        if let Some(range) = &range {
            catch_panic(|| (), || preserving_errno(|| lazy::leave(range)));
        }
        return written;
    };
    catch_panic(plain, || {
        let Some(mut locked) = shared_edge.lock_for_call() else { return plain() };
        let EdgeState::Writing(writing) = &mut *locked.state else { return plain() };
        let held = if range.is_none() { forward::find(from.addr(), count) } else { None };
        let bytes = match &range {
            Some(range) => Bytes::File(range),
            None => {
                lazy::restore(from.addr(), count);
                // SAFETY: X2: no other code changes these bytes during the call; they are readable.
                let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count) };
                Bytes::Memory(bytes, held.as_ref())
            }
        };
        let written =
            restore_errno_on_success(|| writing.write(&shared_edge.edge, fd, &bytes, plain));
        if let (Some(range), false) = (&range, writing.may_pass_pointers()) {
            preserving_errno(|| lazy::leave(range));
        }
        written
    })
}

/// Writes the file range that a lazily read buffer represents; returns the number of bytes, or -1
/// with `errno` set.
fn write_range(range: &lazy::FileRange, fd: c_int) -> isize {
    let errno = preload::errno();
    match lazy::write(range, fd) {
        Ok(count) => {
            preload::set_errno(errno);
            isize::try_from(count).unwrap_or(isize::MAX)
        }
        Err(number) => {
            preload::set_errno(number);
            -1
        }
    }
}

/// Runs `body`, then restores `errno`.
fn preserving_errno<T>(body: impl FnOnce() -> T) -> T {
    let errno = preload::errno();
    let call_result = body();
    preload::set_errno(errno);
    call_result
}

/// Runs a call; restores `errno` if the call succeeds.
fn restore_errno_on_success(body: impl FnOnce() -> isize) -> isize {
    let errno = preload::errno();
    let call_result = body();
    if call_result >= 0 {
        preload::set_errno(errno);
    }
    call_result
}

/// `read(2)` in programs that were built to check buffer sizes.
///
/// # Safety
/// `to` must point to `count` writable bytes (X2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    count: usize,
    room: usize,
) -> isize {
    if count > room {
        std::process::abort();
    }
    // SAFETY: the caller's promises are the same.
    unsafe { read(fd, to, count) }
}

/// A buffer passed to `readv` or `writev` (`struct iovec`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoVec {
    base: *mut c_void,
    len: usize,
}

type Vector = unsafe extern "C" fn(c_int, *const IoVec, c_int) -> isize;

/// `readv(2)`: from an edge, fills only the first non-empty buffer, which POSIX permits.
///
/// # Safety
/// `pieces` must point to `count` buffers (X3), all of which must be writable (X2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, pieces: *const IoVec, count: c_int) -> isize {
    // SAFETY: X3.
    let buffers = unsafe { edge_buffers(fd, pieces, count) };
    if let Some(piece) = buffers.and_then(|all| all.iter().find(is_filled)) {
        // SAFETY: X2.
        return unsafe { read(fd, piece.base, piece.len) };
    }
    match real!(c"readv" as Vector) {
        // SAFETY: X1; the arguments are the program's.
        Some(readv) => unsafe { readv(fd, pieces, count) },
        None => missing_function(),
    }
}

/// Replaces `writev(2)`. To an edge, writes the buffers one at a time.
///
/// # Safety
/// `pieces` must point to `count` buffers (X3), all of which must be readable (X2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, pieces: *const IoVec, count: c_int) -> isize {
    // SAFETY: X3.
    let Some(list) = (unsafe { edge_buffers(fd, pieces, count) }) else {
        return match real!(c"writev" as Vector) {
            // SAFETY: X1; the arguments are the program's.
            Some(writev) => unsafe { writev(fd, pieces, count) },
            None => missing_function(),
        };
    };
    let mut done = 0;
    for piece in list.iter().filter(is_filled) {
        // SAFETY: X2.
        let wrote = unsafe { write(fd, piece.base, piece.len) };
        if wrote < 0 {
            return if done > 0 { done } else { wrote };
        }
        done += wrote;
        if wrote.unsigned_abs() < piece.len {
            break;
        }
    }
    done
}

fn is_filled(piece: &&IoVec) -> bool {
    piece.len > 0
}

/// Returns the array as a slice if the descriptor is an end of an edge and the array is not empty.
///
/// # Safety
/// `pieces` must point to `count` buffers (X3).
unsafe fn edge_buffers<'a>(fd: c_int, pieces: *const IoVec, count: c_int) -> Option<&'a [IoVec]> {
    let count = usize::try_from(count).ok().filter(|count| (1..=1024).contains(count))?;
    ends::find(fd).filter(|_| !pieces.is_null())?;
    // SAFETY: X3; the program does not change the array during the call.
    Some(unsafe { std::slice::from_raw_parts(pieces, count) })
}
