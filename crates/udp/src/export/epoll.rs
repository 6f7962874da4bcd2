//! Epoll sets: a wait on a set also reports the datagrams in the rings of the set's sockets.

use super::epoll_nudge;
use super::messages::Timespec;
use super::receiving::EINTR;
use super::ring_events::{RingEvent, ready_events, unreported_events};
use super::wait_limit::{WaitLimit, common_placeholder_wait_time};
use crate::descriptor_waits::{self, Wait};
use crate::epoll_sets;
use crate::registration::Registration;
use crate::report;
use crate::socket_table;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::{Duration, Instant};
use sys::next_function;
use sys::preload::interpose::{catch_panic_and_preserve_errno, missing_function};
use sys::preload::set_errno;
use sys::preload::spinning::SpinWait;

/// An event of an epoll set, laid out as `struct epoll_event` in C.
#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
#[derive(Clone, Copy, Debug)]
pub struct EpollEvent {
    pub(super) events: u32,
    pub(super) data: u64,
}

/// Operation of epoll_ctl(2) that adds a registration.
pub(super) const EPOLL_CTL_ADD: c_int = 1;
/// Operation of epoll_ctl(2) that removes a registration.
pub(super) const EPOLL_CTL_DEL: c_int = 2;
/// Operation of epoll_ctl(2) that changes a registration.
pub(super) const EPOLL_CTL_MOD: c_int = 3;
/// Interval at which a wait on an epoll set checks the rings of its sockets, if one of these rings
/// stays awake. The check is necessary because a datagram that enters a ring does not end the wait.
const RING_CHECK_INTERVAL: Duration = Duration::from_millis(1);
type EpollCtlFn = unsafe extern "C" fn(c_int, c_int, c_int, *mut EpollEvent) -> c_int;
type EpollCreateFn = unsafe extern "C" fn(c_int) -> c_int;
type EpollWaitFn = unsafe extern "C" fn(c_int, *mut EpollEvent, c_int, c_int) -> c_int;
type EpollPwaitFn =
    unsafe extern "C" fn(c_int, *mut EpollEvent, c_int, c_int, *const c_void) -> c_int;
type EpollPwait2Fn =
    unsafe extern "C" fn(c_int, *mut EpollEvent, c_int, *const Timespec, *const c_void) -> c_int;

/// Changes a registration with the C library's `epoll_ctl`.
pub(super) fn real_epoll_ctl(
    set: c_int,
    what: c_int,
    number: c_int,
    event: &mut EpollEvent,
) -> c_int {
    match next_function!(c"epoll_ctl" as EpollCtlFn) {
        // SAFETY: I1; the event lives.
        Some(next) => unsafe { next(set, what, number, event) },
        None => missing_function(),
    }
}

/// Replaces `epoll_ctl(2)`. Records the registrations of UDP sockets.
///
/// # Safety
/// The event must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    set: c_int,
    what: c_int,
    number: c_int,
    event: *mut EpollEvent,
) -> c_int {
    let Some(next) = next_function!(c"epoll_ctl" as EpollCtlFn) else { return missing_function() };
    catch_panic_and_preserve_errno(|| epoll_nudge::forget_nudge(set, number));
    // SAFETY: I1, U1.
    let result = unsafe { next(set, what, number, event) };
    if result != 0 {
        return result;
    }
    catch_panic_and_preserve_errno(|| {
        let may_have_rings = epoll_sets::record_epoll_set(set);
        if what == EPOLL_CTL_ADD && epoll_sets::is_epoll_set(number) {
            epoll_sets::record_unsupported_wait(number);
        }
        let Some(socket) = socket_table::find_socket(number) else { return };
        let wanted = (what != EPOLL_CTL_DEL && !event.is_null()).then(|| {
            // SAFETY: U1.
            let EpollEvent { events, data } = unsafe { *event };
            Registration { set, number, events, data, reported: None }
        });
        socket.record_registration(wanted, (set, number));
        if !may_have_rings {
            socket.return_to_kernel_permanently();
        }
        // Sync point, waiting: a thread that begins to wait later finds the registration.
        let known = wanted.filter(|known| known.is_for_input() && socket.is_promoted());
        let is_needed = |known: &Registration| match known.is_one_shot() {
            true => socket.has_datagram(),
            false => {
                descriptor_waits::has_waiter(set)
                    && (report::is_spin_requested() || !socket.fall_asleep())
            }
        };
        if let Some(known) = known.filter(is_needed) {
            epoll_nudge::nudge_registration(known);
        }
    });
    result
}

/// Replaces `epoll_create(2)`. Records the new set.
///
/// # Safety
/// No requirements; the function is unsafe only because its type is that of a C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    let Some(next) = next_function!(c"epoll_create" as EpollCreateFn) else {
        return missing_function();
    };
    // SAFETY: I1.
    record_new_epoll_set(unsafe { next(size) })
}

/// Replaces `epoll_create1(2)`. Records the new set.
///
/// # Safety
/// No requirements; the function is unsafe only because its type is that of a C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    let Some(next) = next_function!(c"epoll_create1" as EpollCreateFn) else {
        return missing_function();
    };
    // SAFETY: I1.
    record_new_epoll_set(unsafe { next(flags) })
}

fn record_new_epoll_set(set: c_int) -> c_int {
    let _ = epoll_sets::record_epoll_set(set);
    set
}

/// Waits on an epoll set and on the rings of its promoted sockets. Calls `wait` to wait on the set
/// alone, for a given time. `limit` is the time for which the program allows the whole call to
/// block; `None` for no limit.
///
/// # Safety
/// The array of `room` events must be valid during the call (U1).
unsafe fn wait_with_rings(
    set: c_int,
    (events, room): (*mut EpollEvent, c_int),
    limit: Option<Duration>,
    wait: impl Fn(WaitLimit) -> c_int,
) -> c_int {
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut rest: Option<Duration> = None;
    loop {
        let wait = |time: WaitLimit| wait(time.with_remaining(rest));
        // SAFETY: the caller's promise.
        let count = unsafe { wait_once_with_rings(set, (events, room), rest.or(limit), wait) };
        let Some(used) = usize::try_from(count).ok().filter(|used| *used > 0) else {
            return count;
        };
        // SAFETY: the caller's promise: the array has `room` events, of which `used` are filled.
        let filled = unsafe { std::slice::from_raw_parts_mut(events, used) };
        match catch_panic_and_preserve_errno(|| epoll_nudge::undo_nudges(set, filled)) {
            None => return count,
            Some(0) => rest = end.map(|end| end.saturating_duration_since(Instant::now())),
            Some(kept) => return c_int::try_from(kept).unwrap_or(count),
        }
        if rest == Some(Duration::ZERO) {
            return 0;
        }
    }
}

/// Waits once, for [`wait_with_rings`]. May return without an event: another thread wakes this one
/// after it has added a socket to the set whose ring has datagrams.
///
/// # Safety
/// The array of `room` events must be valid during the call (U1).
unsafe fn wait_once_with_rings(
    set: c_int,
    (events, room): (*mut EpollEvent, c_int),
    limit: Option<Duration>,
    wait: impl Fn(WaitLimit) -> c_int,
) -> c_int {
    let _wait = Wait::begin(set);
    let sockets = catch_panic_and_preserve_errno(|| {
        let mut sockets = socket_table::promoted_sockets();
        sockets.retain(|socket| socket.is_in_epoll_set(set));
        sockets
    });
    if sockets.is_empty() {
        return wait(WaitLimit::Requested);
    }
    let (begun, spins) = (Instant::now(), report::is_spin_requested());
    // The part of the limit that remains after a nap.
    let mut rest = None;
    if let Some(nap) =
        catch_panic_and_preserve_errno(|| common_placeholder_wait_time(sockets.iter(), limit))
    {
        let count = wait(WaitLimit::AtMost(nap));
        let ready = catch_panic_and_preserve_errno(|| {
            let ready = sockets.iter().filter(|socket| socket.has_datagram());
            ready.flat_map(|socket| unreported_events(set, socket)).collect::<Vec<_>>()
        });
        if count >= 0 && !ready.is_empty() {
            // SAFETY: the caller's promise; the kernel has filled `count` events.
            return catch_panic_and_preserve_errno(|| unsafe {
                merge_events((events, room), count, &ready)
            });
        }
        if count != 0 || limit.is_some_and(|limit| begun.elapsed() >= limit) {
            return count;
        }
        rest = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
    }
    let wait = |time: WaitLimit| wait(time.with_remaining(rest));
    let mut spin = None;
    loop {
        let (ready, looks_again) =
            catch_panic_and_preserve_errno(|| ready_events(set, &sockets, spins));
        let time = match spins || !ready.is_empty() || limit == Some(Duration::ZERO) {
            false if looks_again => WaitLimit::AtMost(RING_CHECK_INTERVAL),
            is_now => WaitLimit::no_wait_if(is_now),
        };
        let count = wait(time);
        if count >= 0 && !ready.is_empty() {
            // SAFETY: the caller's promise; the kernel has filled `count` events.
            return catch_panic_and_preserve_errno(|| unsafe {
                merge_events((events, room), count, &ready)
            });
        }
        let is_repeated = spins || looks_again;
        if count != 0 || !is_repeated || limit.is_some_and(|limit| begun.elapsed() >= limit) {
            return count;
        }
        if !spins {
            continue;
        }
        if spin.get_or_insert_with(SpinWait::begin).as_ref().is_some_and(|spin| !spin.step()) {
            set_errno(EINTR);
            return -1;
        }
    }
}

/// Waits on an epoll set for the time `limit`, to the nanosecond.
///
/// # Safety
/// The array and the mask must be valid during the call (U1).
unsafe fn wait_with_ns_timeout(
    set: c_int,
    (events, room): (*mut EpollEvent, c_int),
    limit: WaitLimit,
    mask: *const c_void,
) -> c_int {
    let time = limit.to_timespec();
    match next_function!(c"epoll_pwait2" as EpollPwait2Fn) {
        Some(next) => {
            let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: I1, U1.
            unsafe { next(set, events, room, time, mask) }
        }
        // The C library lacks `epoll_pwait2`.
        None => missing_function(),
    }
}

/// Adds `ready`, the events of sockets with datagrams in their rings, to the `count` events in the
/// array, which the kernel has reported. Merges events of the same socket. Returns the total number
/// of events. Events that do not fit into the array are reported by the next wait.
///
/// # Safety
/// The array must have room for `room` events, the first `count` of which are initialized.
unsafe fn merge_events(
    (events, room): (*mut EpollEvent, c_int),
    count: c_int,
    ready: &[RingEvent<'_>],
) -> c_int {
    let mut used = usize::try_from(count).unwrap_or(0);
    for ring_event in ready {
        let event = ring_event.event();
        let data = event.data;
        // SAFETY: the caller's promise.
        let known = unsafe { std::slice::from_raw_parts_mut(events, used) };
        if let Some(known) = known.iter_mut().find(|known| { known.data } == data) {
            known.events |= event.events;
            ring_event.note_reported();
        } else if used < usize::try_from(room).unwrap_or(0) {
            let place = events.wrapping_add(used);
            // SAFETY: the caller's promise: the array has more than `used` events.
            unsafe { place.write(event) };
            used += 1;
            ring_event.note_reported();
        }
    }
    c_int::try_from(used).unwrap_or(count)
}

fn timeout_from_ms(limit_ms: c_int) -> Option<Duration> {
    u64::try_from(limit_ms).ok().map(Duration::from_millis)
}

/// Replaces `epoll_wait(2)`. Also reports datagrams in the rings of the set's sockets.
///
/// # Safety
/// The array must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut EpollEvent,
    room: c_int,
    limit_ms: c_int,
) -> c_int {
    let Some(next) = next_function!(c"epoll_wait" as EpollWaitFn) else {
        return missing_function();
    };
    let wait = |limit| match limit {
        // SAFETY: I1, U1.
        WaitLimit::Requested => unsafe { next(set, events, room, limit_ms) },
        // SAFETY: I1, U1.
        WaitLimit::NO_WAIT => unsafe { next(set, events, room, 0) },
        // SAFETY: U1; without a mask, signals are blocked as before.
        WaitLimit::AtMost(_) => unsafe {
            wait_with_ns_timeout(set, (events, room), limit, ptr::null())
        },
    };
    // SAFETY: U1.
    unsafe { wait_with_rings(set, (events, room), timeout_from_ms(limit_ms), wait) }
}

/// Replaces `epoll_pwait(2)`. Also reports datagrams in the rings of the set's sockets.
///
/// # Safety
/// The array and the mask must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut EpollEvent,
    room: c_int,
    limit_ms: c_int,
    mask: *const c_void,
) -> c_int {
    let Some(next) = next_function!(c"epoll_pwait" as EpollPwaitFn) else {
        return missing_function();
    };
    let wait = |limit| match limit {
        // SAFETY: I1, U1.
        WaitLimit::Requested => unsafe { next(set, events, room, limit_ms, mask) },
        // SAFETY: I1, U1.
        WaitLimit::NO_WAIT => unsafe { next(set, events, room, 0, mask) },
        // SAFETY: U1.
        WaitLimit::AtMost(_) => unsafe { wait_with_ns_timeout(set, (events, room), limit, mask) },
    };
    // SAFETY: U1.
    unsafe { wait_with_rings(set, (events, room), timeout_from_ms(limit_ms), wait) }
}

/// Replaces `epoll_pwait2(2)`. Also reports datagrams in the rings of the set's sockets.
///
/// # Safety
/// The array, the time and the mask must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    set: c_int,
    events: *mut EpollEvent,
    room: c_int,
    limit: *const Timespec,
    mask: *const c_void,
) -> c_int {
    let Some(next) = next_function!(c"epoll_pwait2" as EpollPwait2Fn) else {
        return missing_function();
    };
    let wait = |wait_limit: WaitLimit| {
        let time = wait_limit.to_timespec();
        let limit = time.as_ref().map_or(limit, ptr::from_ref);
        // SAFETY: I1, U1.
        unsafe { next(set, events, room, limit, mask) }
    };
    // SAFETY: U1.
    let most = (!limit.is_null()).then(|| unsafe { *limit }.duration());
    // SAFETY: U1.
    unsafe { wait_with_rings(set, (events, room), most, wait) }
}
