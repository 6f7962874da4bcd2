//! The exported functions. Each has the name and the semantics of a libpcap function, and forwards
//! every call on a handle that this library does not read to that function.
//!
//! Functions of libpcap that are not defined here concern no live handle (capture files, names,
//! devices), or work correctly on a handle that libpcap has created but not activated; the loader
//! binds them to libpcap directly.
//!
//! Invariants, cited below:
//! - L1 `libpcap!` returns libpcap's function of that name (I1 of [`sys::preload::interpose`]),
//!   which has the type that `pcap.h` declares.
//! - L2 The program passes a handle that `pcap_create` or another function of libpcap has returned
//!   and that it has not closed, and arguments as the manual page of the function requires.

use crate::handle::{self, Handle};
use crate::live::LiveCapture;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

/// Returns libpcap's function of this name; `None` if libpcap is not loaded.
macro_rules! libpcap {
    ($name:literal as $type:ty) => {
        sys::next_function!($name as $type, in $crate::export::LIBPCAP_NAMES)
    };
}

/// Calls libpcap's function of this name with the program's arguments (L1, L2). If libpcap is not
/// loaded, the macro yields its last argument instead.
macro_rules! call_libpcap {
    ($name:literal as $type:ty, ($($argument:expr),*), $missing:expr) => {
        match libpcap!($name as $type) {
            // SAFETY: L1, L2.
            Some(function) => unsafe { function($($argument),*) },
            None => $missing,
        }
    };
}

pub mod facts;
pub mod lookup;
pub mod reading;
pub mod setup;

/// A pointer to an opaque handle of libpcap (`pcap_t *`).
pub type Pcap = *mut c_void;

/// File names of libpcap's shared library, in the order in which they are tried.
const LIBPCAP_NAMES: [&CStr; 2] = [c"libpcap.so.0.8", c"libpcap.so.1"];

/// Returns the handle and its capture if this library, not libpcap, reads the handle; otherwise
/// `None`.
fn find_live_handle(p: Pcap) -> Option<(&'static Handle, Arc<LiveCapture>)> {
    let handle = handle::find(p.addr())?;
    Some((handle, handle.live_capture()?))
}

/// The type of functions that return an integer property of a handle.
type PcapGetIntFn = unsafe extern "C" fn(Pcap) -> c_int;
/// The type of functions that set an integer property of a handle.
type PcapSetIntFn = unsafe extern "C" fn(Pcap, c_int) -> c_int;
/// The type of functions that close a handle or end its current read.
type PcapVoidFn = unsafe extern "C" fn(Pcap);
/// The type of `pcap_stats`.
type PcapStatsFn = unsafe extern "C" fn(Pcap, *mut Stat) -> c_int;

/// Packet counters, laid out as `struct pcap_stat` in C.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stat {
    received: u32,
    dropped: u32,
    dropped_by_interface: u32,
}
