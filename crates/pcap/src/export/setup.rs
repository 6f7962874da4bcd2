//! Functions that create, configure, activate and close a handle.

use super::{Pcap, PcapGetIntFn, PcapSetIntFn, PcapStatsFn, PcapVoidFn, Stat, find_live_handle};
use crate::handle::{self, Handle, status};
use crate::live::{ANY_DEVICE, LiveCapture};
use crate::report;
use crate::settings::Settings;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use sys::preload::interpose::catch_panic;

thread_local! {
    /// True while this thread executes a libpcap function that may itself call functions exported
    /// by this library.
    static IS_IN_LIBPCAP: Cell<bool> = const { Cell::new(false) };
}

sys::run_at_exit!(end);

/// Prints the counts of the captures that are still open when the program exits.
extern "C" fn end() {
    catch_panic(|| (), || handle::for_each_capture(LiveCapture::report_at_exit));
}

type PcapCreateFn = unsafe extern "C" fn(*const c_char, *mut c_char) -> Pcap;
type PcapOpenLiveFn = unsafe extern "C" fn(*const c_char, c_int, c_int, c_int, *mut c_char) -> Pcap;

/// Implements `pcap_create(3)`: libpcap creates the handle, and this library records it.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_create(device: *const c_char, errors: *mut c_char) -> Pcap {
    let Some(create) = libpcap!(c"pcap_create" as PcapCreateFn) else { return ptr::null_mut() };
    // SAFETY: L1, L2.
    let p = unsafe { create(device, errors) };
    if p.is_null() || IS_IN_LIBPCAP.get() || report::is_left_to_libpcap() {
        return p;
    }
    // A null pointer is the device of all interfaces.
    let name = if device.is_null() {
        ANY_DEVICE
    } else {
        // SAFETY: L2: the device is a C string.
        unsafe { CStr::from_ptr(device) }.to_str().unwrap_or_default()
    };
    handle::add(p.addr(), name);
    p
}

/// Defines a function that sets an integer property of a handle before activation: libpcap sets it
/// first, then this library records it.
macro_rules! setter {
    ($text:literal, $name:ident, $c_name:literal, $record:expr) => {
        #[doc = $text]
        ///
        /// # Safety
        /// The arguments must be as the manual page requires (L2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: Pcap, value: c_int) -> c_int {
            if find_live_handle(p).is_some() {
                return status::ACTIVATED;
            }
            let Some(set) = libpcap!($c_name as PcapSetIntFn) else { return status::ERROR };
            // SAFETY: L1, L2.
            let result = unsafe { set(p, value) };
            if let (0.., Some(handle)) = (result, handle::find(p.addr())) {
                let record: fn(&mut Settings, c_int) = $record;
                record(&mut handle.settings(), value);
            }
            result
        }
    };
}

setter!("`pcap_set_snaplen(3)`.", pcap_set_snaplen, c"pcap_set_snaplen", |settings, value| {
    settings.snapshot = value;
});
setter!("`pcap_set_promisc(3)`.", pcap_set_promisc, c"pcap_set_promisc", |settings, value| {
    settings.is_promiscuous = value != 0;
});
setter!("`pcap_set_timeout(3)`.", pcap_set_timeout, c"pcap_set_timeout", |settings, value| {
    settings.timeout_ms = value;
});
setter!(
    "`pcap_set_immediate_mode(3)`.",
    pcap_set_immediate_mode,
    c"pcap_set_immediate_mode",
    |settings, value| settings.is_immediate = value != 0
);
setter!(
    "`pcap_set_buffer_size(3)`.",
    pcap_set_buffer_size,
    c"pcap_set_buffer_size",
    |settings, value| settings.buffer = value.max(0)
);
setter!(
    "`pcap_set_tstamp_precision(3)`.",
    pcap_set_tstamp_precision,
    c"pcap_set_tstamp_precision",
    |settings, value| settings.has_nanoseconds = value == 1
);
setter!(
    "`pcap_set_tstamp_type(3)`: this library has the time stamps of the host.",
    pcap_set_tstamp_type,
    c"pcap_set_tstamp_type",
    |settings, value| settings.leave_to_libpcap(value != 0, "it needs another type of time stamp")
);
setter!(
    "`pcap_set_rfmon(3)`: monitor mode is libpcap's.",
    pcap_set_rfmon,
    c"pcap_set_rfmon",
    |settings, value| settings.leave_to_libpcap(value != 0, "it needs monitor mode")
);
setter!(
    "`pcap_set_protocol_linux(3)`: a protocol other than all is libpcap's.",
    pcap_set_protocol_linux,
    c"pcap_set_protocol_linux",
    |settings, value| settings.leave_to_libpcap(value != 0, "it reads frames of one protocol")
);

/// Implements `pcap_activate(3)`: opens the rings, or lets libpcap activate the handle.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_activate(p: Pcap) -> c_int {
    if find_live_handle(p).is_some() {
        return status::ACTIVATED;
    }
    let handle = handle::find(p.addr());
    if handle.is_some_and(activate) {
        return 0;
    }
    let Some(activate) = libpcap!(c"pcap_activate" as PcapGetIntFn) else { return status::ERROR };
    // SAFETY: L1, L2.
    let result = unsafe { activate(p) };
    if let (0.., Some(handle)) = (result, handle) {
        handle.settings().is_activated_by_libpcap = true;
    }
    result
}

/// Activates a handle by opening the rings of its device. Returns true if this library will read
/// the handle, and false if libpcap must activate it instead. In the latter case, prints the
/// reason, unless libpcap reports it.
fn activate(handle: &Handle) -> bool {
    let settings = handle.settings().clone();
    if settings.is_activated_by_libpcap {
        return false;
    }
    let opened = catch_panic(|| Err("it has failed".to_owned()), || LiveCapture::open(&settings));
    match opened {
        Ok(live) => {
            handle.set_live_capture(live);
            if settings.device == ANY_DEVICE && settings.is_promiscuous {
                // A warning without a status of its own, as in libpcap 1.10.
                handle.set_error("Promiscuous mode not supported on the \"any\" device");
            }
            true
        }
        Err(why) => {
            if !why.is_empty() {
                report::report_fallback(&settings.device, &why);
            }
            false
        }
    }
}

/// Implements `pcap_open_live(3)`: creates and activates a handle, or lets libpcap open the device.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_open_live(
    device: *const c_char,
    snapshot: c_int,
    promiscuous: c_int,
    timeout_ms: c_int,
    errors: *mut c_char,
) -> Pcap {
    // SAFETY: the arguments are the program's.
    let p = unsafe { pcap_create(device, errors) };
    if let Some(handle) = handle::find(p.addr()) {
        let mut settings = handle.settings();
        settings.snapshot = snapshot;
        settings.is_promiscuous = promiscuous != 0;
        settings.timeout_ms = timeout_ms;
        drop(settings);
        if activate(handle) {
            return p;
        }
    }
    if !p.is_null() {
        // SAFETY: the handle is new, and the program has not received it.
        unsafe { pcap_close(p) };
    }
    let Some(open) = libpcap!(c"pcap_open_live" as PcapOpenLiveFn) else { return ptr::null_mut() };
    // The functions that libpcap itself calls concern a handle of its own.
    IS_IN_LIBPCAP.set(true);
    // SAFETY: L1, L2.
    let p = unsafe { open(device, snapshot, promiscuous, timeout_ms, errors) };
    IS_IN_LIBPCAP.set(false);
    p
}

/// Implements `pcap_close(3)`: ends the capture, and lets libpcap close its handle.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_close(p: Pcap) {
    if let Some(handle) = handle::find(p.addr()) {
        let settings = handle.settings().clone();
        match handle.remove() {
            Some(live) => catch_panic(|| (), || live.close()),
            None if settings.is_activated_by_libpcap => {
                let mut stat = Stat::default();
                if let Some(stats) = libpcap!(c"pcap_stats" as PcapStatsFn) {
                    // SAFETY: L1, L2; the structure is libpcap's.
                    unsafe { stats(p, &raw mut stat) };
                }
                report::print_libpcap_count(&settings.device, stat.received);
            }
            None => {}
        }
    }
    if let Some(close) = libpcap!(c"pcap_close" as PcapVoidFn) {
        // SAFETY: L1, L2.
        unsafe { close(p) };
    }
}
