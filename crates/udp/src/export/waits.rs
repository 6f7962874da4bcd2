//! Calls that wait for descriptors: a promoted socket is readable if its ring or its placeholder
//! has a datagram.

use super::messages::Time;
use crate::socket::Socket;
use crate::table;
use std::ffi::{c_int, c_short, c_ulong, c_void};
use std::sync::Arc;
use std::time::Instant;
use sys::next_function;
use sys::preload::interpose::{catch_panic, missing_function, quietly};
use sys::preload::{self, udp};

/// An element of the array passed to `poll` (`struct pollfd`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PollFd {
    number: c_int,
    events: c_short,
    revents: c_short,
}

/// `POLLIN | POLLRDNORM`.
const READABLE: c_short = 0x41;
/// `EAGAIN`.
const EAGAIN: i32 = 11;
/// Number of descriptors in a select(2) descriptor set (`FD_SETSIZE`).
const SELECT_MAX: usize = 1024;
/// Number of descriptors in one word of a select(2) descriptor set.
const WORD_BITS: usize = 64;
/// Maximum time in milliseconds for which a receive call blocks before it reads the ring again.
const SLICE_MS: c_int = 1000;

type Poll = unsafe extern "C" fn(*mut PollFd, c_ulong, c_int) -> c_int;
type PollWithMask = unsafe extern "C" fn(*mut PollFd, c_ulong, *const Time, *const c_void) -> c_int;
type Words = *mut c_ulong;
type Select = unsafe extern "C" fn(c_int, Words, Words, Words, *mut c_void) -> c_int;
type SelectMasked =
    unsafe extern "C" fn(c_int, Words, Words, Words, *const Time, *const c_void) -> c_int;

fn real_poll(entries: &mut [PollFd], limit_ms: c_int) -> c_int {
    match next_function!(c"poll" as Poll) {
        // SAFETY: I1; the slice is the array.
        Some(next) => unsafe { next(entries.as_mut_ptr(), entries.len() as c_ulong, limit_ms) },
        None => missing_function(),
    }
}

/// Waits until the ring or the placeholder may have a datagram, for at most [`SLICE_MS`]. Fails
/// with `EAGAIN` if the receive timeout of the socket has passed since `begun`, the start of the
/// call, and with the error number of poll(2) if a signal arrives.
pub(super) fn wait_readable(number: c_int, socket: &Socket, begun: Instant) -> Result<(), c_int> {
    let limit = udp::receive_timeout(number);
    let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
    let ms = left.map_or(SLICE_MS, |left| {
        c_int::try_from(left.as_millis().saturating_add(1)).unwrap_or(SLICE_MS).min(SLICE_MS)
    });
    let entry = |number| PollFd { number, events: READABLE, revents: 0 };
    let ring = socket.ring_number().unwrap_or(-1);
    match real_poll(&mut [entry(number), entry(ring)], ms) {
        0 if limit.is_some_and(|limit| begun.elapsed() >= limit) => Err(EAGAIN),
        0.. => Ok(()),
        _ => Err(preload::errno()),
    }
}

/// Returns the promoted sockets among the entries that wait for input, each with its index.
fn promoted_entries(entries: &[PollFd]) -> Vec<(usize, Arc<Socket>)> {
    if table::has_no_promoted() {
        return Vec::new();
    }
    let all = entries.iter().enumerate().filter(|(_, entry)| entry.events & READABLE != 0);
    all.filter_map(|(at, entry)| Some((at, table::find_promoted(entry.number)?))).collect()
}

/// Waits like poll(2), but also for datagrams in the rings of the promoted sockets, which are given
/// with their indices in `entries`. Calls `wait` to wait for descriptors, with true if it must not
/// block.
fn poll_with_rings(
    entries: &mut [PollFd],
    promoted: &[(usize, Arc<Socket>)],
    wait: impl Fn(&mut [PollFd], bool) -> c_int,
) -> c_int {
    let ready: Vec<bool> = promoted.iter().map(|(_, socket)| socket.has_datagram()).collect();
    let rings = promoted.iter().map(|(_, socket)| PollFd {
        number: socket.ring_number().unwrap_or(-1),
        events: READABLE,
        revents: 0,
    });
    let mut all: Vec<PollFd> = entries.iter().copied().chain(rings).collect();
    let result = wait(&mut all, ready.contains(&true));
    if result < 0 {
        return result;
    }
    let (own, rings) = all.split_at(entries.len());
    entries.copy_from_slice(own);
    for (((at, _), is_ready), ring) in promoted.iter().zip(ready).zip(rings) {
        if let Some(entry) = entries.get_mut(*at).filter(|_| is_ready || ring.revents != 0) {
            entry.revents |= entry.events & READABLE;
        }
    }
    let count = entries.iter().filter(|entry| entry.revents != 0).count();
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// Returns the array of a poll call.
///
/// # Safety
/// U1 must hold for the array.
unsafe fn entries_of<'a>(entries: *mut PollFd, count: c_ulong) -> &'a mut [PollFd] {
    match (entries.is_null(), usize::try_from(count)) {
        // SAFETY: U1.
        (false, Ok(count @ 1..)) => unsafe { std::slice::from_raw_parts_mut(entries, count) },
        _ => &mut [],
    }
}

/// `poll(2)`.
///
/// # Safety
/// U1 must hold for the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(entries: *mut PollFd, count: c_ulong, limit_ms: c_int) -> c_int {
    let Some(next) = next_function!(c"poll" as Poll) else { return missing_function() };
    // SAFETY: U1.
    let all = unsafe { entries_of(entries, count) };
    let promoted = quietly(|| promoted_entries(all));
    if promoted.is_empty() {
        // SAFETY: I1, U1.
        return unsafe { next(entries, count, limit_ms) };
    }
    poll_with_rings(all, &promoted, |all, must_not_block| {
        real_poll(all, if must_not_block { 0 } else { limit_ms })
    })
}

/// `poll(2)` in programs that were built to check buffer sizes.
///
/// # Safety
/// U1 must hold for the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    entries: *mut PollFd,
    count: c_ulong,
    limit_ms: c_int,
    room: usize,
) -> c_int {
    if usize::try_from(count).is_ok_and(|count| count > room / size_of::<PollFd>()) {
        std::process::abort();
    }
    // SAFETY: the caller's promises are the same.
    unsafe { poll(entries, count, limit_ms) }
}

/// `ppoll(2)`.
///
/// # Safety
/// U1 must hold for the array, the time and the mask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    entries: *mut PollFd,
    count: c_ulong,
    limit: *const Time,
    mask: *const c_void,
) -> c_int {
    let Some(next) = next_function!(c"ppoll" as PollWithMask) else { return missing_function() };
    // SAFETY: U1.
    let all = unsafe { entries_of(entries, count) };
    let promoted = quietly(|| promoted_entries(all));
    if promoted.is_empty() {
        // SAFETY: I1, U1.
        return unsafe { next(entries, count, limit, mask) };
    }
    poll_with_rings(all, &promoted, |all, must_not_block| {
        let now = Time { seconds: 0, nanoseconds: 0 };
        let limit = if must_not_block { &raw const now } else { limit };
        // SAFETY: I1, U1.
        unsafe { next(all.as_mut_ptr(), all.len() as c_ulong, limit, mask) }
    })
}

/// Waits like select(2), but also for datagrams in the rings of the promoted sockets in the set
/// `read`. Returns `None` without waiting if the set contains none. Calls `wait` to wait for the
/// descriptors below a number, with true if it must not block.
///
/// # Safety
/// U1 must hold for the set.
unsafe fn select_with_rings(
    count: c_int,
    read: Words,
    wait: impl Fn(c_int, bool) -> c_int,
) -> Option<c_int> {
    let limit = usize::try_from(count).ok().filter(|count| *count <= SELECT_MAX)?;
    if table::has_no_promoted() || read.is_null() {
        return None;
    }
    // SAFETY: U1: a set has room for all descriptors.
    let set = unsafe { std::slice::from_raw_parts_mut(read, SELECT_MAX / WORD_BITS) };
    let has = |set: &[c_ulong], at: usize| {
        set.get(at / WORD_BITS).is_some_and(|w| w >> (at % WORD_BITS) & 1 == 1)
    };
    let put = |set: &mut [c_ulong], at: usize, value: bool| {
        if let Some(word) = set.get_mut(at / WORD_BITS) {
            *word = *word & !(1 << (at % WORD_BITS)) | c_ulong::from(value) << (at % WORD_BITS);
        }
    };
    let promoted: Vec<(usize, Arc<Socket>)> = (0..limit)
        .filter(|at| has(set, *at))
        .filter_map(|at| Some((at, table::find_promoted(c_int::try_from(at).ok()?)?)))
        .collect();
    if promoted.is_empty() {
        return None;
    }
    let ready: Vec<bool> = promoted.iter().map(|(_, socket)| socket.has_datagram()).collect();
    let mut highest = limit;
    let mut rings = Vec::new();
    for (_, socket) in &promoted {
        let ring = socket.ring_number().and_then(|ring| usize::try_from(ring).ok());
        let Some(ring) = ring.filter(|ring| *ring < SELECT_MAX) else {
            // No set has room for the ring.
            socket.demote();
            rings.push(None);
            continue;
        };
        put(set, ring, true);
        highest = highest.max(ring + 1);
        rings.push(Some(ring));
    }
    let mut result = wait(c_int::try_from(highest).ok()?, ready.contains(&true));
    for (((at, _), is_ready), ring) in promoted.iter().zip(ready).zip(rings) {
        let is_ring_ready = ring.is_some_and(|ring| result >= 0 && has(set, ring));
        if let Some(ring) = ring {
            put(set, ring, false);
            result -= c_int::from(is_ring_ready);
        }
        if result >= 0 && (is_ready || is_ring_ready) && !has(set, *at) {
            put(set, *at, true);
            result += 1;
        }
    }
    Some(result)
}

/// `select(2)`.
///
/// # Safety
/// U1 must hold for the sets and the time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: Words,
    written: Words,
    except: Words,
    limit: *mut c_void,
) -> c_int {
    let Some(next) = next_function!(c"select" as Select) else { return missing_function() };
    let wait = |count, must_not_block| {
        let mut now = [0i64; 2];
        let limit = if must_not_block { (&raw mut now).cast() } else { limit };
        // SAFETY: I1, U1.
        unsafe { next(count, read, written, except, limit) }
    };
    // SAFETY: U1.
    let merged = catch_panic(|| None, || unsafe { select_with_rings(count, read, wait) });
    // SAFETY: I1, U1.
    merged.unwrap_or_else(|| unsafe { next(count, read, written, except, limit) })
}

/// `pselect(2)`.
///
/// # Safety
/// U1 must hold for the sets, the time and the mask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: Words,
    written: Words,
    except: Words,
    limit: *const Time,
    mask: *const c_void,
) -> c_int {
    let Some(next) = next_function!(c"pselect" as SelectMasked) else { return missing_function() };
    let wait = |count, must_not_block| {
        let now = Time { seconds: 0, nanoseconds: 0 };
        let limit = if must_not_block { &raw const now } else { limit };
        // SAFETY: I1, U1.
        unsafe { next(count, read, written, except, limit, mask) }
    };
    // SAFETY: U1.
    let merged = catch_panic(|| None, || unsafe { select_with_rings(count, read, wait) });
    // SAFETY: I1, U1.
    merged.unwrap_or_else(|| unsafe { next(count, read, written, except, limit, mask) })
}
