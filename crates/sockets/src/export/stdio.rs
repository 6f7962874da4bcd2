//! Unbuffered output through stdio. The C library writes such output with an internal system call,
//! which bypasses a preloaded `write`. The programs of `forward` write whole buffers through
//! `fwrite_unlocked`; for them, this library implements that function, so that the bytes reach the
//! edge in the order of the program's writes.

use crate::edge_ends;
use crate::forward;
use crate::retire::{self, RetireReason};
use std::ffi::{c_int, c_void};
use sys::next_function;
use sys::preload;
use sys::preload::interpose::{catch_panic_and_preserve_errno, missing_function};

type FwriteFn = unsafe extern "C" fn(*const c_void, usize, usize, *mut c_void) -> usize;

/// Replaces `fwrite_unlocked(3)`. If the stream is an edge and its buffer is empty, writes the
/// bytes with the semantics of write(2).
///
/// # Safety
/// The arguments must meet the requirements of the C library function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fwrite_unlocked(
    from: *const c_void,
    size: usize,
    count: usize,
    file: *mut c_void,
) -> usize {
    let fd = catch_panic_and_preserve_errno(|| edge_descriptor(file));
    if let (Some(fd), Some(length)) = (fd, size.checked_mul(count).filter(|length| *length > 0)) {
        // SAFETY: X1: the program passes `size * count` readable bytes.
        return unsafe { write_all_bytes(fd, from, length) } / size;
    }
    match next_function!(c"fwrite_unlocked" as FwriteFn) {
        // SAFETY: I1; the arguments are the program's.
        Some(next) => unsafe { next(from, size, count, file) },
        None => usize::try_from(missing_function::<isize>()).unwrap_or(0),
    }
}

/// Writes bytes until all are written or a call fails; returns the number of bytes written.
///
/// # Safety
/// `from` must point to `length` readable bytes (X1).
unsafe fn write_all_bytes(fd: c_int, from: *const c_void, length: usize) -> usize {
    let mut done = 0;
    while done < length {
        let rest = from.wrapping_byte_add(done);
        // SAFETY: the promise of this function.
        match usize::try_from(unsafe { super::write(fd, rest, length - done) }) {
            Ok(count) => done += count,
            Err(_) if preload::errno() == preload::EINTR => {}
            Err(_) => break,
        }
    }
    done
}

/// Returns the descriptor of a stdio stream if this library writes to it in place of the C library;
/// otherwise `None`. If the stdio buffer contains bytes, these must be written first. In this case,
/// makes the edge a kernel pipe permanently and returns `None`, so that the C library writes these
/// bytes and all later ones.
fn edge_descriptor(file: *mut c_void) -> Option<c_int> {
    if !forward::is_enabled() || file.is_null() {
        return None;
    }
    // SAFETY: I1; the program passes an open stream.
    let fd = next_function!(c"fileno" as unsafe extern "C" fn(*mut c_void) -> c_int)
        .map(|next| unsafe { next(file) })?;
    let shared_edge = edge_ends::find_edge(fd)?;
    // SAFETY: as above; __fpending(3) only looks at the stream.
    let pending = next_function!(c"__fpending" as unsafe extern "C" fn(*mut c_void) -> usize)
        .map_or(0, |next| unsafe { next(file) });
    if pending > 0 {
        retire::retire_edge(shared_edge, RetireReason::Query);
        return None;
    }
    Some(fd)
}
