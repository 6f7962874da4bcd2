//! The exported functions. Each has the name and the semantics of a C library function, and
//! forwards every call that concerns no edge to that function.
//!
//! Invariants, cited below:
//! - I1, I2 of [`sys::preload::interpose`].
//! - X1 A program that passes a buffer of `count` bytes to read or write promises that they may be
//!   written or read during the call, as it does to the kernel. (A wrong pointer causes a signal
//!   instead of `EFAULT`.)
//! - X2 Arrays of buffers (`readv`, `writev`) have the length that the program passes.

use crate::counts;
use crate::edge_ends::{self, EdgeState, SharedEdge};
use crate::forward;
use crate::lazy;
use crate::retire::{self, RetireReason};
use crate::writing::BytesToWrite;
use std::ffi::{c_int, c_void};
use sys::preload;
use sys::preload::interpose::{
    IoVec, at_fork, catch_panic, catch_panic_and_preserve_errno, missing_function,
    with_preserved_errno,
};
use sys::{next_function, run_at_start};

pub mod calls;
pub mod stdio;
pub mod trampoline;

run_at_start!(start);

extern "C" fn start() {
    catch_panic(
        || (),
        || {
            counts::start();
            edge_ends::start();
            lazy::start();
            at_fork(before_fork, in_child);
        },
    );
}

extern "C" fn before_fork() {
    catch_panic_and_preserve_errno(|| {
        lazy::stop();
        retire::retire_all_edges(RetireReason::Fork);
    });
}

extern "C" fn in_child() {
    edge_ends::stop();
}

// ---- reading and writing

type ReadFn = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;
type WriteFn = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;

fn real_read(fd: c_int, to: *mut c_void, count: usize) -> isize {
    match next_function!(c"read" as ReadFn) {
        // SAFETY: I1, X1.
        Some(read) => unsafe { read(fd, to, count) },
        None => missing_function(),
    }
}

fn real_write(fd: c_int, from: *const c_void, count: usize) -> isize {
    match next_function!(c"write" as WriteFn) {
        // SAFETY: I1, X1.
        Some(write) => unsafe { write(fd, from, count) },
        None => missing_function(),
    }
}

/// Replaces `read(2)`. From an edge, reads the pipe or the ring, whichever has the older bytes.
///
/// # Safety
/// `to` must point to `count` writable bytes (X1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, to: *mut c_void, count: usize) -> isize {
    if let Some(shared_edge) = edge_ends::find_edge(fd).filter(|_| !to.is_null()) {
        let plain = || {
            lazy::restore_buffer(to.addr(), count);
            real_read(fd, to, count)
        };
        return catch_panic(plain, || read_from_edge(shared_edge, fd, to, count));
    }
    if let Some(count) = catch_panic_and_preserve_errno(|| lazy::read_lazily(fd, to.addr(), count))
    {
        return isize::try_from(count).unwrap_or(isize::MAX);
    }
    forward::forget_copy();
    let count = real_read(fd, to, count);
    lazy::advance_position(fd, count);
    count
}

fn read_from_edge(shared_edge: &SharedEdge, fd: c_int, to: *mut c_void, count: usize) -> isize {
    let plain = || {
        lazy::restore_buffer(to.addr(), count);
        real_read(fd, to, count)
    };
    let Some(mut locked) = shared_edge.lock_for_call() else { return plain() };
    let EdgeState::Reading(reading) = &mut *locked.state else { return plain() };
    let lent = with_preserved_errno(|| reading.lend_range(&shared_edge.edge, to.addr(), count));
    if let Some(length) = lent {
        return isize::try_from(length).unwrap_or(isize::MAX);
    }
    lazy::restore_buffer(to.addr(), count);
    // SAFETY: X1: no other code uses these bytes during the call; any byte value is valid.
    let out = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), count) };
    let real = |out: &mut [u8]| real_read(fd, out.as_mut_ptr().cast(), out.len());
    restore_errno_on_success(|| {
        reading.read_and_record(out, |reading, out| reading.read(&shared_edge.edge, fd, out, real))
    })
}

/// Replaces `write(2)`. To an edge, writes into the pipe or the ring, possibly as a pointer.
///
/// # Safety
/// `from` must point to `count` readable bytes (X1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, count: usize) -> isize {
    let range = catch_panic_and_preserve_errno(|| lazy::represented_range(from.addr(), count));
    let plain = || match &range {
        Some(range) => write_file_range(range, fd),
        None => {
            lazy::restore_buffer(from.addr(), count);
            real_write(fd, from, count)
        }
    };
    let Some(shared_edge) = edge_ends::find_edge(fd).filter(|_| !from.is_null()) else {
        let written = plain();
        if let Some(range) = &range {
            catch_panic_and_preserve_errno(|| lazy::end_lazy_reads(range));
        }
        return written;
    };
    catch_panic(plain, || {
        let Some(mut locked) = shared_edge.lock_for_call() else { return plain() };
        let EdgeState::Writing(writing) = &mut *locked.state else { return plain() };
        let held =
            if range.is_none() { forward::find_copied_range(from.addr(), count) } else { None };
        let bytes = match &range {
            Some(range) => BytesToWrite::File(range),
            None => {
                lazy::restore_buffer(from.addr(), count);
                // SAFETY: X1: no other code changes these bytes during the call; they are readable.
                let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count) };
                BytesToWrite::Memory(bytes, held.as_ref())
            }
        };
        let written =
            restore_errno_on_success(|| writing.write(&shared_edge.edge, fd, &bytes, plain));
        if let (Some(range), false) = (&range, writing.may_pass_pointers()) {
            with_preserved_errno(|| lazy::end_lazy_reads(range));
        }
        written
    })
}

/// Writes a range of a file to `fd`. The bytes come directly from the file, because the program's
/// buffer only represents the range (see `lazy`). Returns the number of bytes written, or -1 with
/// `errno` set.
fn write_file_range(range: &lazy::FileRange, fd: c_int) -> isize {
    let errno = preload::errno();
    match lazy::write_range(range, fd) {
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

/// Runs a call; restores `errno` if the call succeeds.
fn restore_errno_on_success(body: impl FnOnce() -> isize) -> isize {
    let errno = preload::errno();
    let call_result = body();
    if call_result >= 0 {
        preload::set_errno(errno);
    }
    call_result
}

/// Replaces `read(2)` in programs compiled with checks of buffer sizes (`_FORTIFY_SOURCE`).
///
/// # Safety
/// `to` must point to `count` writable bytes (X1).
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

type VectorIoFn = unsafe extern "C" fn(c_int, *const IoVec, c_int) -> isize;

/// Replaces `readv(2)`. From an edge, fills only the first non-empty buffer, as POSIX permits.
///
/// # Safety
/// `pieces` must point to `count` buffers (X2), all of which must be writable (X1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, pieces: *const IoVec, count: c_int) -> isize {
    // SAFETY: X2.
    let buffers = unsafe { edge_buffers(fd, pieces, count) };
    if let Some(piece) = buffers.and_then(|all| all.iter().find(is_nonempty_buffer)) {
        // SAFETY: X1.
        return unsafe { read(fd, piece.base, piece.length) };
    }
    match next_function!(c"readv" as VectorIoFn) {
        // SAFETY: I1; the arguments are the program's.
        Some(readv) => unsafe { readv(fd, pieces, count) },
        None => missing_function(),
    }
}

/// Replaces `writev(2)`. To an edge, writes the buffers one at a time.
///
/// # Safety
/// `pieces` must point to `count` buffers (X2), all of which must be readable (X1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, pieces: *const IoVec, count: c_int) -> isize {
    // SAFETY: X2.
    let Some(list) = (unsafe { edge_buffers(fd, pieces, count) }) else {
        return match next_function!(c"writev" as VectorIoFn) {
            // SAFETY: I1; the arguments are the program's.
            Some(writev) => unsafe { writev(fd, pieces, count) },
            None => missing_function(),
        };
    };
    let mut done = 0;
    for piece in list.iter().filter(is_nonempty_buffer) {
        // SAFETY: X1.
        let wrote = unsafe { write(fd, piece.base, piece.length) };
        if wrote < 0 {
            return if done > 0 { done } else { wrote };
        }
        done += wrote;
        if wrote.unsigned_abs() < piece.length {
            break;
        }
    }
    done
}

fn is_nonempty_buffer(piece: &&IoVec) -> bool {
    piece.length > 0
}

/// Returns the array of buffers `pieces` as a slice. Returns `None` unless `fd` is an end of an
/// edge, the array is not null, and the array has 1 to 1024 elements.
unsafe fn edge_buffers<'a>(fd: c_int, pieces: *const IoVec, count: c_int) -> Option<&'a [IoVec]> {
    let count = usize::try_from(count).ok().filter(|count| (1..=1024).contains(count))?;
    edge_ends::find_edge(fd).filter(|_| !pieces.is_null())?;
    // SAFETY: X2; the program does not change the array during the call.
    Some(unsafe { std::slice::from_raw_parts(pieces, count) })
}
