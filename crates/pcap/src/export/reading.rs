//! Functions that read and send packets, and set filters.

use super::{Pcap, PcapSetIntFn, PcapStatsFn, PcapVoidFn, Stat, find_live_handle};
use crate::handle::{self, Handle, status};
use crate::live::LiveCapture;
use crate::live::reading::PacketHeader;
use ebpf::classic::Instruction;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use sys::preload::interpose::catch_panic;

/// The packet callback of the program (`pcap_handler`).
type PcapHandler = Option<unsafe extern "C" fn(*mut u8, *const PacketHeader, *const u8)>;

type PcapLoopFn = unsafe extern "C" fn(Pcap, c_int, PcapHandler, *mut u8) -> c_int;
type PcapNextFn = unsafe extern "C" fn(Pcap, *mut PacketHeader) -> *const u8;
type PcapNextExFn = unsafe extern "C" fn(Pcap, *mut *const PacketHeader, *mut *const u8) -> c_int;
type PcapSetFilterFn = unsafe extern "C" fn(Pcap, *const FilterProgram) -> c_int;
type PcapInjectFn = unsafe extern "C" fn(Pcap, *const c_void, usize) -> c_int;
type PcapSendPacketFn = unsafe extern "C" fn(Pcap, *const u8, c_int) -> c_int;
type PcapGetNonblockFn = unsafe extern "C" fn(Pcap, *mut c_char) -> c_int;
type PcapSetNonblockFn = unsafe extern "C" fn(Pcap, c_int, *mut c_char) -> c_int;

/// A compiled filter: `struct bpf_program`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FilterProgram {
    length: u32,
    instructions: *const RawInstruction,
}

/// An instruction of a filter: `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawInstruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// Returns the instructions of a compiled filter.
///
/// # Safety
/// `program` must be filled in as `pcap_compile` does.
pub(super) unsafe fn copy_instructions(program: *const FilterProgram) -> Vec<Instruction> {
    // SAFETY: the caller's promise.
    let FilterProgram { length, instructions } = unsafe { *program };
    let raw = match length {
        0 => &[],
        // SAFETY: the program has this number of instructions.
        length => unsafe { std::slice::from_raw_parts(instructions, length as usize) },
    };
    let each = raw.iter().map(|raw| {
        let RawInstruction { code, jt, jf, k } = *raw;
        Instruction { code, jt, jf, k }
    });
    each.collect()
}

/// Reads packets and passes them to the program's function. Returns the result of `pcap_dispatch`.
fn dispatch(
    (handle, live): (&Handle, &LiveCapture),
    count: c_int,
    callback: PcapHandler,
    user: *mut u8,
) -> c_int {
    let Some(callback) = callback else { return handle.set_error("no function was given") };
    let failed = || handle.set_error("streamline has failed");
    catch_panic(failed, || {
        live.dispatch(handle, count, &mut |header, bytes| {
            // SAFETY: L2: the function takes these arguments; the header and its `captured` bytes
            // stay valid during the call.
            unsafe { callback(user, header, bytes) };
        })
    })
}

/// Implements `pcap_dispatch(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dispatch(
    p: Pcap,
    count: c_int,
    callback: PcapHandler,
    user: *mut u8,
) -> c_int {
    if let Some((handle, live)) = find_live_handle(p) {
        return dispatch((handle, &live), count, callback, user);
    }
    call_libpcap!(c"pcap_dispatch" as PcapLoopFn, (p, count, callback, user), status::ERROR)
}

/// Implements `pcap_loop(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_loop(
    p: Pcap,
    count: c_int,
    callback: PcapHandler,
    user: *mut u8,
) -> c_int {
    if let Some((handle, live)) = find_live_handle(p) {
        let mut left = count;
        loop {
            let done = dispatch((handle, &live), left, callback, user);
            if done < 0 {
                return done;
            }
            left -= done;
            if count > 0 && left <= 0 {
                return 0;
            }
            left = if count > 0 { left } else { count };
        }
    }
    call_libpcap!(c"pcap_loop" as PcapLoopFn, (p, count, callback, user), status::ERROR)
}

/// Implements `pcap_next(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_next(p: Pcap, header: *mut PacketHeader) -> *const u8 {
    if let Some((handle, live)) = find_live_handle(p) {
        let mut found = ptr::null();
        catch_panic(
            || status::ERROR,
            || {
                live.dispatch(handle, 1, &mut |read, bytes| {
                    // SAFETY: L2: the program's header may be written.
                    unsafe { header.write(*read) };
                    found = bytes;
                })
            },
        );
        return found;
    }
    call_libpcap!(c"pcap_next" as PcapNextFn, (p, header), ptr::null())
}

/// Implements `pcap_next_ex(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_next_ex(
    p: Pcap,
    header: *mut *const PacketHeader,
    data: *mut *const u8,
) -> c_int {
    if let Some((handle, live)) = find_live_handle(p) {
        let (mut found, mut at) = (ptr::null(), ptr::null());
        let result = catch_panic(
            || status::ERROR,
            || {
                live.dispatch(handle, 1, &mut |read, bytes| {
                    (found, at) = (bytes, ptr::from_ref(read));
                })
            },
        );
        // SAFETY: L2: the program's pointer may be written.
        unsafe { header.write(at) };
        // SAFETY: L2: the program's pointer may be written.
        unsafe { data.write(found) };
        return result;
    }
    call_libpcap!(c"pcap_next_ex" as PcapNextExFn, (p, header, data), status::ERROR)
}

/// Implements `pcap_breakloop(3)`. Safe to call in a signal handler.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_breakloop(p: Pcap) {
    // For a handle that libpcap reads, this library never checks the flag.
    if let Some(handle) = handle::find(p.addr()) {
        handle.break_loop();
    }
    if let Some(end) = libpcap!(c"pcap_breakloop" as PcapVoidFn) {
        // SAFETY: L1, L2.
        unsafe { end(p) };
    }
}

/// Implements `pcap_setfilter(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setfilter(p: Pcap, program: *const FilterProgram) -> c_int {
    if let Some((handle, live)) = find_live_handle(p) {
        if program.is_null() {
            return handle.set_error("setfilter: No filter specified");
        }
        // SAFETY: L2: the program is one that `pcap_compile` has filled.
        let instructions = unsafe { copy_instructions(program) };
        let failed = || Err("streamline has failed".to_owned());
        return match catch_panic(failed, || live.set_filter(instructions)) {
            Ok(()) => 0,
            Err(why) => handle.set_error(&why),
        };
    }
    call_libpcap!(c"pcap_setfilter" as PcapSetFilterFn, (p, program), status::ERROR)
}

/// Implements `pcap_setdirection(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setdirection(p: Pcap, direction: c_int) -> c_int {
    if let Some((handle, live)) = find_live_handle(p) {
        return match live.set_direction(direction) {
            true => 0,
            false => handle.set_error("Invalid direction"),
        };
    }
    call_libpcap!(c"pcap_setdirection" as PcapSetIntFn, (p, direction), status::ERROR)
}

/// Implements `pcap_stats(3)`, which programs also call in signal handlers.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_stats(p: Pcap, stat: *mut Stat) -> c_int {
    let handle = handle::find(p.addr());
    if let Some(live) = handle.and_then(Handle::try_live_capture) {
        let counts = live.statistics();
        let read = Stat {
            received: counts.received,
            dropped: counts.dropped,
            dropped_by_interface: counts.dropped_by_interface,
        };
        // SAFETY: L2: the program's structure may be written.
        unsafe { stat.write(read) };
        return 0;
    }
    call_libpcap!(c"pcap_stats" as PcapStatsFn, (p, stat), status::ERROR)
}

/// Sends a packet. Returns its length, or -1 with an error text if it was not sent.
fn send((handle, live): (&Handle, &LiveCapture), frame: &[u8]) -> c_int {
    match live.send(frame) {
        Ok(()) => c_int::try_from(frame.len()).unwrap_or(c_int::MAX),
        Err(why) => handle.set_error(&why),
    }
}

/// Implements `pcap_inject(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_inject(p: Pcap, from: *const c_void, size: usize) -> c_int {
    if let Some((handle, live)) = find_live_handle(p) {
        // SAFETY: L2: the program passes a packet of this size.
        let frame = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) };
        return send((handle, &live), frame);
    }
    call_libpcap!(c"pcap_inject" as PcapInjectFn, (p, from, size), status::ERROR)
}

/// Implements `pcap_sendpacket(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_sendpacket(p: Pcap, from: *const u8, size: c_int) -> c_int {
    if let Some((handle, live)) = find_live_handle(p) {
        let size = usize::try_from(size).unwrap_or(0);
        // SAFETY: L2: the program passes a packet of this size.
        let frame = unsafe { std::slice::from_raw_parts(from, size) };
        return send((handle, &live), frame).min(0);
    }
    call_libpcap!(c"pcap_sendpacket" as PcapSendPacketFn, (p, from, size), status::ERROR)
}

/// Implements `pcap_getnonblock(3)`. Handles that are not live are passed to libpcap.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_getnonblock(p: Pcap, errors: *mut c_char) -> c_int {
    if let Some((_, live)) = find_live_handle(p) {
        return c_int::from(live.is_nonblocking());
    }
    call_libpcap!(c"pcap_getnonblock" as PcapGetNonblockFn, (p, errors), status::ERROR)
}

/// Implements `pcap_setnonblock(3)`. For a handle that is not live, libpcap sets the mode, and this
/// library records it.
///
/// # Safety
/// The arguments must be as the manual page requires (L2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setnonblock(p: Pcap, value: c_int, errors: *mut c_char) -> c_int {
    if let Some((_, live)) = find_live_handle(p) {
        live.set_nonblocking(value != 0);
        return 0;
    }
    let Some(set) = libpcap!(c"pcap_setnonblock" as PcapSetNonblockFn) else {
        return status::ERROR;
    };
    // SAFETY: L1, L2.
    let result = unsafe { set(p, value, errors) };
    if let (0, Some(handle)) = (result, handle::find(p.addr())) {
        handle.settings().is_nonblocking = value != 0;
    }
    result
}
