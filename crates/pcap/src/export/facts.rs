//! Functions that return the properties and errors of a handle, and functions that need a handle
//! only for its link type.

use super::reading::{FilterProgram, copy_instructions};
use super::{Pcap, PcapGetIntFn, PcapSetIntFn, PcapVoidFn, find_live_handle};
use crate::filter::LiveFilterProgram;
use crate::handle::{Handle, status};
use crate::live::LiveCapture;
use ebpf::classic::{LinkType, Options};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use streamline::filter::general::bpf::compile_for_live_capture;
use sys::preload::interpose::{catch_panic, copy_to_malloc_memory};

type PcapOpenDeadFn = unsafe extern "C" fn(c_int, c_int, u32) -> Pcap;
type PcapGetErrFn = unsafe extern "C" fn(Pcap) -> *mut c_char;
type PcapPerrorFn = unsafe extern "C" fn(Pcap, *const c_char);
type PcapCompileFn =
    unsafe extern "C" fn(Pcap, *mut FilterProgram, *const c_char, c_int, u32) -> c_int;
type PcapListDatalinksFn = unsafe extern "C" fn(Pcap, *mut *mut c_int) -> c_int;
type PcapFileFn = unsafe extern "C" fn(Pcap) -> *mut c_void;
type PcapSelectTimeoutFn = unsafe extern "C" fn(Pcap) -> *const c_void;
type PcapDumpOpenFn = unsafe extern "C" fn(Pcap, *const c_char) -> *mut c_void;
type PcapDumpFopenFn = unsafe extern "C" fn(Pcap, *mut c_void) -> *mut c_void;

/// Calls `body` with a handle of libpcap without a device (`pcap_open_dead`). This handle has the
/// link type, snapshot length and timestamp precision of the live handle `handle`. Returns the
/// result of `body`. If the result is `None`, an error, copies the error text to `handle`. Also
/// returns `None` if the handle without a device cannot be created.
fn with_dead_handle<T>(
    (handle, live): (&Handle, &LiveCapture),
    body: impl FnOnce(Pcap) -> Option<T>,
) -> Option<T> {
    let open = libpcap!(c"pcap_open_dead_with_tstamp_precision" as PcapOpenDeadFn)?;
    let close = libpcap!(c"pcap_close" as PcapVoidFn)?;
    let get_error = libpcap!(c"pcap_geterr" as PcapGetErrFn)?;
    let snapshot = c_int::try_from(live.snapshot).unwrap_or(c_int::MAX);
    // SAFETY: L1.
    let dead = unsafe { open(live.datalink(), snapshot, u32::from(live.has_nanoseconds)) };
    if dead.is_null() {
        handle.set_error("out of memory");
        return None;
    }
    let result = body(dead);
    if result.is_none() {
        // SAFETY: L1; the handle is open.
        let text = unsafe { get_error(dead) };
        // SAFETY: the error text is a C string as long as the handle is open.
        let text = unsafe { CStr::from_ptr(text) };
        handle.set_error(&text.to_string_lossy());
    }
    // SAFETY: L1; no other code has the handle.
    unsafe { close(dead) };
    result
}

/// Defines a function that returns an integer property of a handle.
macro_rules! getter {
    ($text:literal, $name:ident, $c_name:literal, $get:expr) => {
        #[doc = $text]
        ///
        /// # Safety
        /// The arguments must be as the manual page requires (L2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: Pcap) -> c_int {
            if let Some((_, live)) = find_live_handle(p) {
                let get: fn(&LiveCapture) -> c_int = $get;
                return get(&live);
            }
            call_libpcap!($c_name as PcapGetIntFn, (p), status::ERROR)
        }
    };
}

getter!("`pcap_datalink(3)`.", pcap_datalink, c"pcap_datalink", LiveCapture::datalink);
getter!("`pcap_datalink_ext(3)`.", pcap_datalink_ext, c"pcap_datalink_ext", LiveCapture::datalink);
getter!("`pcap_snapshot(3)`.", pcap_snapshot, c"pcap_snapshot", |live| {
    c_int::try_from(live.snapshot).unwrap_or(c_int::MAX)
});
getter!("`pcap_is_swapped(3)`.", pcap_is_swapped, c"pcap_is_swapped", |_| 0);
getter!("`pcap_major_version(3)`.", pcap_major_version, c"pcap_major_version", |_| 0);
getter!("`pcap_minor_version(3)`.", pcap_minor_version, c"pcap_minor_version", |_| 0);
getter!("`pcap_bufsize(3)`.", pcap_bufsize, c"pcap_bufsize", |live| {
    c_int::try_from(live.snapshot).unwrap_or(c_int::MAX)
});
getter!(
    "`pcap_get_tstamp_precision(3)`.",
    pcap_get_tstamp_precision,
    c"pcap_get_tstamp_precision",
    |live| c_int::from(live.has_nanoseconds)
);
getter!(
    "`pcap_fileno(3)`: the descriptor of `pcap_get_selectable_fd`.",
    pcap_fileno,
    c"pcap_fileno",
    |live| live.selectable_fd().unwrap_or(-1)
);
getter!(
    "`pcap_get_selectable_fd(3)`.",
    pcap_get_selectable_fd,
    c"pcap_get_selectable_fd",
    |live| live.selectable_fd().unwrap_or(-1)
);
getter!(
    "`pcap_can_set_rfmon(3)`: an active handle cannot enter monitor mode.",
    pcap_can_set_rfmon,
    c"pcap_can_set_rfmon",
    |_| status::ACTIVATED
);

/// Implements `pcap_get_required_select_timeout(3)`. Returns null for a live handle, because
/// select(2) on its descriptor needs no timeout; other handles are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_required_select_timeout(p: Pcap) -> *const c_void {
    if find_live_handle(p).is_some() {
        return ptr::null();
    }
    call_libpcap!(c"pcap_get_required_select_timeout" as PcapSelectTimeoutFn, (p), ptr::null())
}

/// Implements `pcap_file(3)`. Returns null for a live handle, which has no file; other handles are
/// passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_file(p: Pcap) -> *mut c_void {
    if find_live_handle(p).is_some() {
        return ptr::null_mut();
    }
    call_libpcap!(c"pcap_file" as PcapFileFn, (p), ptr::null_mut())
}

/// Implements `pcap_list_datalinks(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_list_datalinks(p: Pcap, list: *mut *mut c_int) -> c_int {
    if let Some((handle, live)) = find_live_handle(p) {
        let links = live.datalinks();
        let copy = copy_to_malloc_memory(links);
        if copy.is_null() {
            return handle.set_error("malloc: Cannot allocate memory");
        }
        // SAFETY: L2: the program's pointer may be written.
        unsafe { list.write(copy) };
        return c_int::try_from(links.len()).unwrap_or(c_int::MAX);
    }
    call_libpcap!(c"pcap_list_datalinks" as PcapListDatalinksFn, (p, list), status::ERROR)
}

/// Implements `pcap_set_datalink(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_datalink(p: Pcap, link: c_int) -> c_int {
    if let Some((handle, live)) = find_live_handle(p) {
        if live.set_datalink(link) {
            return 0;
        }
        let what = format!("DLT {link} is not one of the DLTs supported by this device");
        return handle.set_error(&what);
    }
    call_libpcap!(c"pcap_set_datalink" as PcapSetIntFn, (p, link), status::ERROR)
}

/// Implements `pcap_geterr(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_geterr(p: Pcap) -> *mut c_char {
    if let Some((handle, _)) = find_live_handle(p) {
        return handle.error_address().cast();
    }
    call_libpcap!(c"pcap_geterr" as PcapGetErrFn, (p), c"libpcap is not loaded".as_ptr().cast_mut())
}

/// Implements `pcap_perror(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_perror(p: Pcap, prefix: *const c_char) {
    if find_live_handle(p).is_some() {
        // SAFETY: the handle is the program's.
        let text = unsafe { pcap_geterr(p) };
        let [prefix, text] = [prefix, text.cast_const()].map(|text| {
            // SAFETY: the error text is a C string that stays valid, and so is the prefix (L2).
            unsafe { CStr::from_ptr(text) }.to_string_lossy()
        });
        eprintln!("{prefix}: {text}");
        return;
    }
    if let Some(print) = libpcap!(c"pcap_perror" as PcapPerrorFn) {
        // SAFETY: L1, L2.
        unsafe { print(p, prefix) };
    }
}

/// Implements `pcap_compile(3)`. libpcap compiles the expression as for a capture file, because it
/// does not know that the frames of this handle are live. For an expression such as `vlan`, the
/// code for live frames differs. This library then compiles the expression again, and uses the code
/// for live frames when the application sets the filter. It also loads the filter into the kernel
/// now, while the application still has its privileges.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_compile(
    p: Pcap,
    program: *mut FilterProgram,
    expression: *const c_char,
    optimize: c_int,
    netmask: u32,
) -> c_int {
    let Some(compile) = libpcap!(c"pcap_compile" as PcapCompileFn) else { return status::ERROR };
    let Some((handle, live)) = find_live_handle(p) else {
        // SAFETY: L1, L2.
        return unsafe { compile(p, program, expression, optimize, netmask) };
    };
    let compiled = with_dead_handle((handle, &live), |dead| {
        // SAFETY: L1, L2; the handle is open.
        let result = unsafe { compile(dead, program, expression, optimize, netmask) };
        (result == 0).then_some(result)
    });
    if compiled.is_some() {
        // SAFETY: L2: the expression is a C string, or null for the empty one.
        let text = (!expression.is_null()).then(|| unsafe { CStr::from_ptr(expression) });
        let text = text.unwrap_or_default().to_string_lossy();
        let snapshot = u32::try_from(live.snapshot).unwrap_or(u32::MAX);
        let options = Options { snaplen: snapshot, optimize: optimize != 0, ..Options::default() };
        // SAFETY: libpcap has filled the program.
        let instructions = unsafe { copy_instructions(program) };
        let link = LinkType(live.datalink().cast_unsigned());
        let prepare = || {
            live.record_live_program(&instructions, compile_live_program(&text, link, &options));
            live.prepare_filter(instructions);
        };
        catch_panic(|| (), prepare);
    }
    compiled.unwrap_or(status::ERROR)
}

/// Compiles a pcap-filter(7) expression for a live capture, and compares the result with the
/// program for a capture file.
fn compile_live_program(
    expression: &str,
    link: LinkType,
    options: &Options<'_>,
) -> LiveFilterProgram {
    // Of all tests in an expression, only `vlan` compiles differently for a live capture.
    if link != LinkType::EN10MB || !expression.contains("vlan") {
        return LiveFilterProgram::Same;
    }
    let names = streamline::capture::name_resolver();
    match names.and_then(|names| compile_for_live_capture(expression, options, names)) {
        Some(program) => LiveFilterProgram::Other(program.instructions().to_vec()),
        None => LiveFilterProgram::Unknown,
    }
}

/// Defines a function that creates a capture file for the packets of a handle.
macro_rules! dump {
    ($text:literal, $name:ident, $c_name:literal, $type:ty, $argument:ty) => {
        #[doc = $text]
        ///
        /// # Safety
        /// The arguments must be as the manual page requires (L2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: Pcap, to: $argument) -> *mut c_void {
            let Some(open) = libpcap!($c_name as $type) else { return ptr::null_mut() };
            let Some((handle, live)) = find_live_handle(p) else {
                // SAFETY: L1, L2.
                return unsafe { open(p, to) };
            };
            let opened = with_dead_handle((handle, &live), |dead| {
                // SAFETY: L1, L2; the handle is open. A capture file does not refer to it later.
                let file = unsafe { open(dead, to) };
                (!file.is_null()).then_some(file)
            });
            opened.unwrap_or(ptr::null_mut())
        }
    };
}

dump!("`pcap_dump_open(3)`.", pcap_dump_open, c"pcap_dump_open", PcapDumpOpenFn, *const c_char);
dump!(
    "`pcap_dump_open_append(3)`.",
    pcap_dump_open_append,
    c"pcap_dump_open_append",
    PcapDumpOpenFn,
    *const c_char
);
dump!("`pcap_dump_fopen(3)`.", pcap_dump_fopen, c"pcap_dump_fopen", PcapDumpFopenFn, *mut c_void);
