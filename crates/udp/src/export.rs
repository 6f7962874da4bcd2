//! The exported functions. Each has the name and the semantics of a function of the C library, to
//! which it passes all calls that concern no promoted socket.
//!
//! Invariants, cited below:
//! - U1 [`next_function`] returns the function of that name in the next library, as found by the
//!   loader; each is called with the type that its manual page gives.
//! - U2 A program that passes a buffer, an address, a message or an array promises that it may be
//!   read or written during the call, as for the kernel. (A wrong pointer causes a signal and not
//!   `EFAULT`.)

use std::ffi::{CStr, c_int, c_uint, c_void};
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
        // SAFETY: U1; a function pointer and an optional function have the same size, and null is
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

pub mod descriptors;
pub mod epoll;
pub mod messages;
mod receiving;
pub mod waits;

/// Returns -1 with `ENOSYS`, for a function that the C library lacks.
fn missing_function<T: From<i8>>() -> T {
    preload::set_errno(preload::ENOSYS);
    T::from(-1)
}

/// Runs `body` without unwinding into C. After a panic returns the result of `otherwise`.
fn catch_panic<T>(otherwise: impl FnOnce() -> T, body: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|_| otherwise())
}

/// Runs `body`, then restores `errno`. After a panic returns the default.
fn quietly<T: Default>(body: impl FnOnce() -> T) -> T {
    let errno = preload::errno();
    let result = catch_panic(T::default, body);
    preload::set_errno(errno);
    result
}

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoVec {
    base: *mut c_void,
    length: usize,
}

/// `struct msghdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Message {
    name: *mut c_void,
    name_length: c_uint,
    pieces: *mut IoVec,
    piece_count: usize,
    control: *mut c_void,
    control_length: usize,
    flags: c_int,
}

/// `struct mmsghdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReceivedMessage {
    message: Message,
    length: c_uint,
}
