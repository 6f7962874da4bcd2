//! Epoll sets: the ring of a promoted socket is in the same sets as its placeholder.

use crate::registration::Registration;
use crate::table;
use std::ffi::{c_int, c_void};
use sys::next_function;
use sys::preload::interpose::{catch_panic, missing_function, quietly};

/// `struct epoll_event`.
#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
#[derive(Clone, Copy, Debug)]
pub struct EpollEvent {
    pub(super) events: u32,
    pub(super) data: u64,
}

/// `EPOLL_CTL_ADD`.
pub(super) const EPOLL_CTL_ADD: c_int = 1;
/// `EPOLL_CTL_DEL`.
const EPOLL_CTL_DEL: c_int = 2;
/// `EPOLLIN | EPOLLRDNORM`.
const EPOLL_READABLE: u32 = 0x41;
/// `EPOLLET`.
const EPOLL_EDGE: u32 = 1 << 31;
type EpollCtl = unsafe extern "C" fn(c_int, c_int, c_int, *mut EpollEvent) -> c_int;
type EpollWait = unsafe extern "C" fn(c_int, *mut EpollEvent, c_int, c_int) -> c_int;
type EpollWaitMasked =
    unsafe extern "C" fn(c_int, *mut EpollEvent, c_int, c_int, *const c_void) -> c_int;

/// Calls `epoll_ctl` of the C library.
pub(super) fn real_epoll_ctl(
    set: c_int,
    what: c_int,
    number: c_int,
    event: *mut EpollEvent,
) -> c_int {
    match next_function!(c"epoll_ctl" as EpollCtl) {
        // SAFETY: I1, U1.
        Some(next) => unsafe { next(set, what, number, event) },
        None => missing_function(),
    }
}

/// `epoll_ctl(2)`. Applies the same operation to the ring of a promoted socket, with the same data.
///
/// # Safety
/// U1 must hold for the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    set: c_int,
    what: c_int,
    number: c_int,
    event: *mut EpollEvent,
) -> c_int {
    let result = real_epoll_ctl(set, what, number, event);
    if result != 0 {
        return result;
    }
    quietly(|| {
        let Some(socket) = table::find(number) else { return };
        let wanted = (what != EPOLL_CTL_DEL && !event.is_null()).then(|| {
            // SAFETY: U1.
            let EpollEvent { events, data } = unsafe { *event };
            Registration { set, number, events, data }
        });
        let Some(ring) = socket.record_registration(wanted, (set, number)) else { return };
        let mut own = EpollEvent { events: 0, data: 0 };
        if let Some(Registration { events, data, .. }) = wanted {
            own = ring_event(events, data);
        }
        if real_epoll_ctl(set, what, ring, &raw mut own) != 0 && what != EPOLL_CTL_DEL {
            socket.demote();
        }
    });
    result
}

/// Returns the event with which a ring is registered: the read flags of the socket's event, with
/// the same data.
pub(super) const fn ring_event(events: u32, data: u64) -> EpollEvent {
    EpollEvent { events: events & (EPOLL_READABLE | EPOLL_EDGE), data }
}

/// Merges the events of the ring and of the placeholder of each promoted socket into one event.
/// Returns the number of remaining events.
///
/// # Safety
/// The array must contain `count` events.
unsafe fn merge_events(set: c_int, events: *mut EpollEvent, count: c_int) -> c_int {
    let Ok(length @ 2..) = usize::try_from(count) else { return count };
    if table::has_no_promoted() {
        return count;
    }
    // SAFETY: the caller's promise.
    let all = unsafe { std::slice::from_raw_parts_mut(events, length) };
    let mut kept: Vec<EpollEvent> = Vec::with_capacity(length);
    for event in all.iter() {
        let data = event.data;
        let same = kept.iter_mut().find(|known| known.data == data);
        match same.filter(|_| is_promoted_data(set, data)) {
            Some(known) => known.events |= event.events,
            None => kept.push(*event),
        }
    }
    for (to, from) in all.iter_mut().zip(&kept) {
        *to = *from;
    }
    c_int::try_from(kept.len()).unwrap_or(count)
}

fn is_promoted_data(set: c_int, data: u64) -> bool {
    let found = std::cell::Cell::new(false);
    table::each(|socket| {
        if socket.is_promoted() && socket.has_registration(set, data) {
            found.set(true);
        }
    });
    found.get()
}

/// `epoll_wait(2)`.
///
/// # Safety
/// U1 must hold for the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut EpollEvent,
    room: c_int,
    limit_ms: c_int,
) -> c_int {
    let Some(next) = next_function!(c"epoll_wait" as EpollWait) else { return missing_function() };
    // SAFETY: I1, U1.
    let count = unsafe { next(set, events, room, limit_ms) };
    // SAFETY: the kernel has filled `count` events.
    catch_panic(|| count, || unsafe { merge_events(set, events, count) })
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// U1 must hold for the array and the mask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut EpollEvent,
    room: c_int,
    limit_ms: c_int,
    mask: *const c_void,
) -> c_int {
    let Some(next) = next_function!(c"epoll_pwait" as EpollWaitMasked) else {
        return missing_function();
    };
    // SAFETY: I1, U1.
    let count = unsafe { next(set, events, room, limit_ms, mask) };
    // SAFETY: the kernel has filled `count` events.
    catch_panic(|| count, || unsafe { merge_events(set, events, count) })
}
