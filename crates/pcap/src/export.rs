//! The exported functions. Each has the name and the semantics of a function of libpcap, to which
//! it passes all calls on handles that this library does not read.
//!
//! Functions of libpcap that are not here concern no live handle (capture files, names, devices),
//! or are right for a handle that libpcap has created but not activated; the loader binds them to
//! libpcap directly.
//!
//! Invariants, cited below:
//! - L1 [`libpcap_function`] returns libpcap's function of that name, which has the type that
//!   `pcap.h` gives.
//! - L2 The program passes a handle that `pcap_create` or another function of libpcap has returned
//!   and that it has not closed, and arguments as the manual page of the function requires.

use crate::handle::{self, Handle};
use crate::live::Live;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use sys::preload;

/// Returns libpcap's function of this name; `None` if libpcap is not loaded. The function is looked
/// up once per call site.
macro_rules! libpcap {
    ($name:literal as $type:ty) => {{
        static FOUND: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        let found = $crate::export::libpcap_function(&FOUND, $name);
        // SAFETY: L1; a function pointer and an optional function have the same size, and null is
        // `None`.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, Option<$type>>(found) }
    }};
}

pub mod facts;
pub mod reading;
pub mod setup;

/// A handle, whose fields only libpcap knows: `pcap_t`.
pub type Pcap = *mut c_void;

/// The names of libpcap, in the order in which they are tried.
const LIBRARIES: [&CStr; 2] = [c"libpcap.so.0.8", c"libpcap.so.1"];

fn libpcap_function(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let found = preload::next_symbol(name).or_else(|| preload::loaded_symbol(&LIBRARIES, name));
    let found = found.map_or(ptr::null_mut(), ptr::NonNull::as_ptr);
    place.store(found, Ordering::Release);
    found
}

/// Returns true if the program is linked against libpcap, so that it calls this library's
/// functions. A program that loads libpcap at run time calls libpcap's.
fn is_linked() -> bool {
    preload::next_symbol(c"pcap_next_ex").is_some()
}

/// Returns the handle if this library reads it.
fn find_live(p: Pcap) -> Option<(&'static Handle, Arc<Live>)> {
    let handle = handle::find(p.addr())?;
    Some((handle, handle.live()?))
}

/// Runs `body` without unwinding into C. After a panic returns the result of `otherwise`.
fn catch_panic<T>(otherwise: impl FnOnce() -> T, body: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|_| otherwise())
}

/// The type of functions of a handle that return an integer.
type Get = unsafe extern "C" fn(Pcap) -> c_int;
/// The type of functions that set an integer of a handle.
type Set = unsafe extern "C" fn(Pcap, c_int) -> c_int;
/// The type of functions that end a handle or its read.
type End = unsafe extern "C" fn(Pcap);
/// The type of `pcap_stats`.
type GetStats = unsafe extern "C" fn(Pcap, *mut Stat) -> c_int;

/// `struct pcap_stat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stat {
    received: u32,
    dropped: u32,
    dropped_by_interface: u32,
}
