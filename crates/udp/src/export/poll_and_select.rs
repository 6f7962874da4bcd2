//! Calls that wait for descriptors: a promoted socket is readable if its ring or its placeholder
//! has a datagram.

use super::messages::Timespec;
use super::receiving::EINTR;
use super::wait_limit::{WaitLimit, common_placeholder_wait_time};
use crate::descriptor_waits::Wait;
use crate::epoll_sets;
use crate::report;
use crate::socket::Socket;
use crate::socket_table;
use std::ffi::{c_int, c_short, c_ulong, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::next_function;
use sys::preload::interpose::{catch_panic_and_preserve_errno, missing_function};
use sys::preload::set_errno;
use sys::preload::spinning::SpinWait;

/// An element of the array passed to `poll`, laid out as `struct pollfd` in C.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PollFd {
    number: c_int,
    events: c_short,
    revents: c_short,
}

/// Events of poll(2) that a socket with a datagram in its ring reports (`POLLIN | POLLRDNORM`).
const POLL_READABLE: c_short = 0x41;
/// Number of descriptors in a select(2) descriptor set (`FD_SETSIZE`).
const SELECT_SET_LENGTH: usize = 1024;
/// Number of descriptors in one word of a select(2) descriptor set.
const WORD_BITS: usize = 64;

type PollFn = unsafe extern "C" fn(*mut PollFd, c_ulong, c_int) -> c_int;
type PpollFn = unsafe extern "C" fn(*mut PollFd, c_ulong, *const Timespec, *const c_void) -> c_int;
type FdSetWords = *mut c_ulong;
type SelectFn =
    unsafe extern "C" fn(c_int, FdSetWords, FdSetWords, FdSetWords, *mut c_void) -> c_int;
type PselectFn = unsafe extern "C" fn(
    c_int,
    FdSetWords,
    FdSetWords,
    FdSetWords,
    *const Timespec,
    *const c_void,
) -> c_int;

/// Returns the promoted sockets among the entries that wait for input, each with the index of its
/// entry. If an entry is an epoll set, the sockets in the set return to the kernel permanently,
/// because a poll of the set does not report the datagrams in their rings.
fn promoted_entries(entries: &[PollFd]) -> Vec<(usize, Arc<Socket>)> {
    for entry in entries.iter().filter(|entry| epoll_sets::is_epoll_set(entry.number)) {
        epoll_sets::record_unsupported_wait(entry.number);
    }
    if socket_table::has_no_promoted_socket() {
        return Vec::new();
    }
    let all = entries.iter().enumerate().filter(|(_, entry)| entry.events & POLL_READABLE != 0);
    all.filter_map(|(at, entry)| Some((at, socket_table::find_promoted_socket(entry.number)?)))
        .collect()
}

/// Registers this thread as a waiter for each descriptor that a poll call polls for input.
fn register_waits(entries: &[PollFd]) -> Vec<Wait> {
    let readable = entries.iter().filter(|entry| entry.events & POLL_READABLE != 0);
    readable.map(|entry| Wait::begin(entry.number)).collect()
}

/// Waits for descriptors and for datagrams in the rings of sockets. Puts the empty rings to sleep,
/// and calls `wait` with the time for which it may block. If the user has requested a delay, first
/// calls `wait` for that time with the rings awake. If the user has requested that waits spin, no
/// ring sleeps, and the function polls instead of blocking. It stops when a ring has a datagram,
/// `wait` returns a result other than 0, or the time `limit` has elapsed. Returns the indices in
/// `sockets` of the sockets with a datagram, and the last result of `wait`.
fn wait_for_rings<'s>(
    sockets: impl Iterator<Item = &'s Arc<Socket>> + Clone,
    limit: Option<Duration>,
    mut wait: impl FnMut(WaitLimit) -> c_int,
) -> (Vec<usize>, c_int) {
    let (begun, spins) = (Instant::now(), report::is_spin_requested());
    // The part of the limit that remains after a nap.
    let mut rest = None;
    if let Some(nap) =
        catch_panic_and_preserve_errno(|| common_placeholder_wait_time(sockets.clone(), limit))
    {
        let result = wait(WaitLimit::AtMost(nap));
        let ready = catch_panic_and_preserve_errno(|| {
            let all = sockets.clone().enumerate();
            all.filter(|(_, socket)| socket.has_datagram()).map(|(at, _)| at).collect::<Vec<_>>()
        });
        let is_over = limit.is_some_and(|limit| begun.elapsed() >= limit);
        if result != 0 || !ready.is_empty() || is_over {
            return (ready, result);
        }
        rest = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
    }
    let mut wait = |time: WaitLimit| wait(time.with_remaining(rest));
    let has_datagram =
        |socket: &Socket| if spins { socket.has_datagram() } else { !socket.fall_asleep() };
    let mut spin = None;
    loop {
        let ready = catch_panic_and_preserve_errno(|| {
            let all = sockets.clone().enumerate();
            all.filter(|(_, socket)| has_datagram(socket)).map(|(at, _)| at).collect::<Vec<_>>()
        });
        let result = wait(WaitLimit::no_wait_if(spins || !ready.is_empty()));
        let is_over = limit.is_some_and(|limit| begun.elapsed() >= limit);
        if result != 0 || !spins || !ready.is_empty() || is_over {
            return (ready, result);
        }
        if spin.get_or_insert_with(SpinWait::begin).as_ref().is_some_and(|spin| !spin.step()) {
            set_errno(EINTR);
            return (ready, -1);
        }
    }
}

/// Waits like poll(2), but also for datagrams in the rings of promoted sockets. Each element of
/// `promoted` is a socket with the index of its entry. Calls `wait` to wait for the descriptors
/// alone, with the time for which it may block.
fn poll_with_rings(
    entries: &mut [PollFd],
    promoted: &[(usize, Arc<Socket>)],
    limit: Option<Duration>,
    wait: impl Fn(&mut [PollFd], WaitLimit) -> c_int,
) -> c_int {
    let sockets = promoted.iter().map(|(_, socket)| socket);
    let (ready, result) = wait_for_rings(sockets, limit, |limit| wait(&mut *entries, limit));
    if result < 0 || ready.is_empty() {
        return result;
    }
    for (at, _) in ready.iter().filter_map(|number| promoted.get(*number)) {
        if let Some(entry) = entries.get_mut(*at) {
            entry.revents |= entry.events & POLL_READABLE;
        }
    }
    let count = entries.iter().filter(|entry| entry.revents != 0).count();
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// Returns the array of a poll call.
///
/// # Safety
/// The array must be valid during the call (U1).
unsafe fn entries_from_raw<'a>(entries: *mut PollFd, count: c_ulong) -> &'a mut [PollFd] {
    match (entries.is_null(), usize::try_from(count)) {
        // SAFETY: U1.
        (false, Ok(count @ 1..)) => unsafe { std::slice::from_raw_parts_mut(entries, count) },
        _ => &mut [],
    }
}

/// Replaces `poll(2)`. A datagram in a ring also makes its socket readable.
///
/// # Safety
/// The array must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(entries: *mut PollFd, count: c_ulong, limit_ms: c_int) -> c_int {
    let Some(next) = next_function!(c"poll" as PollFn) else { return missing_function() };
    // SAFETY: U1.
    let all = unsafe { entries_from_raw(entries, count) };
    // The waits begin before the search for promoted sockets (sync point: waiting).
    let _waits = catch_panic_and_preserve_errno(|| register_waits(all));
    let promoted = catch_panic_and_preserve_errno(|| promoted_entries(all));
    if promoted.is_empty() {
        // SAFETY: I1, U1.
        return unsafe { next(entries, count, limit_ms) };
    }
    let limit = u64::try_from(limit_ms).ok().map(Duration::from_millis);
    poll_with_rings(all, &promoted, limit, |all, limit| {
        let (place, count) = (all.as_mut_ptr(), all.len() as c_ulong);
        match (limit, next_function!(c"ppoll" as PpollFn)) {
            (WaitLimit::AtMost(Duration::ZERO), _) => {
                // SAFETY: I1, U1.
                unsafe { next(place, count, 0) }
            }
            (WaitLimit::AtMost(_), Some(precise)) => {
                let time = limit.to_timespec();
                let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
                // SAFETY: I1, U1; without a mask, ppoll(2) waits like poll(2).
                unsafe { precise(place, count, time, ptr::null()) }
            }
            _ => {
                // SAFETY: I1, U1.
                unsafe { next(place, count, limit_ms) }
            }
        }
    })
}

/// Replaces `poll(2)` in programs compiled with checks of buffer sizes (`_FORTIFY_SOURCE`).
///
/// # Safety
/// The array must be valid during the call (U1).
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

/// Replaces `ppoll(2)`. A datagram in a ring also makes its socket readable.
///
/// # Safety
/// The array, the time and the mask must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    entries: *mut PollFd,
    count: c_ulong,
    limit: *const Timespec,
    mask: *const c_void,
) -> c_int {
    let Some(next) = next_function!(c"ppoll" as PpollFn) else { return missing_function() };
    // SAFETY: U1.
    let all = unsafe { entries_from_raw(entries, count) };
    let _waits = catch_panic_and_preserve_errno(|| register_waits(all));
    let promoted = catch_panic_and_preserve_errno(|| promoted_entries(all));
    if promoted.is_empty() {
        // SAFETY: I1, U1.
        return unsafe { next(entries, count, limit, mask) };
    }
    // SAFETY: U1.
    let most = (!limit.is_null()).then(|| unsafe { *limit }.duration());
    poll_with_rings(all, &promoted, most, |all, wait_limit| {
        let time = wait_limit.to_timespec();
        let limit = time.as_ref().map_or(limit, ptr::from_ref);
        // SAFETY: I1, U1.
        unsafe { next(all.as_mut_ptr(), all.len() as c_ulong, limit, mask) }
    })
}

/// Waits like select(2), but also for datagrams in the rings of the promoted sockets in the set for
/// reading, the first of the three sets. The other two are the sets for writing and for exceptions.
/// Calls `wait` to wait for the descriptors, with the time for which it may block.
///
/// # Safety
/// The sets must be valid during the call (U1).
unsafe fn select_with_rings(
    count: c_int,
    [read, others @ ..]: [FdSetWords; 3],
    limit: Option<Duration>,
    wait: impl Fn(WaitLimit) -> c_int,
) -> c_int {
    let limit_number = usize::try_from(count).ok().filter(|count| *count <= SELECT_SET_LENGTH);
    let Some(limit_number) = limit_number.filter(|_| !read.is_null()) else {
        return wait(WaitLimit::Requested);
    };
    let words = limit_number.div_ceil(WORD_BITS);
    // SAFETY: U1: a set has room for its descriptors, in whole words.
    let set = unsafe { std::slice::from_raw_parts_mut(read, words) };
    let has = |set: &[c_ulong], at: usize| {
        set.get(at / WORD_BITS).is_some_and(|w| w >> (at % WORD_BITS) & 1 == 1)
    };
    let asked: Vec<c_ulong> = set.to_vec();
    let mut others = others.map(|other| {
        let words = if other.is_null() { 0 } else { words };
        let place = if other.is_null() { ptr::NonNull::dangling().as_ptr() } else { other };
        // SAFETY: U1; an empty slice may be anywhere.
        let set = unsafe { std::slice::from_raw_parts_mut(place, words) };
        let asked = set.to_vec();
        (set, asked)
    });
    let (_waits, promoted) = catch_panic_and_preserve_errno(|| {
        let numbers = (0..limit_number).filter(|at| has(&asked, *at));
        let entries: Vec<PollFd> = numbers
            .filter_map(|at| c_int::try_from(at).ok())
            .map(|number| PollFd { number, events: POLL_READABLE, revents: 0 })
            .collect();
        let waits = register_waits(&entries);
        let promoted = promoted_entries(&entries).into_iter();
        let number = |(at, socket): (usize, _)| {
            let number = entries.get(at).and_then(|entry| usize::try_from(entry.number).ok())?;
            Some((number, socket))
        };
        (waits, promoted.filter_map(number).collect::<Vec<(usize, Arc<Socket>)>>())
    });
    if promoted.is_empty() {
        return wait(WaitLimit::Requested);
    }
    let sockets = promoted.iter().map(|(_, socket)| socket);
    let (ready, mut result) = wait_for_rings(sockets, limit, |limit| {
        // A select that has returned 0 has cleared the sets.
        set.copy_from_slice(&asked);
        others.iter_mut().for_each(|(set, asked)| set.copy_from_slice(asked));
        wait(limit)
    });
    if result < 0 {
        return result;
    }
    for (at, _) in ready.iter().filter_map(|number| promoted.get(*number)) {
        if !has(set, *at)
            && let Some(word) = set.get_mut(at / WORD_BITS)
        {
            *word |= 1 << (at % WORD_BITS);
            result += 1;
        }
    }
    result
}

/// Replaces `select(2)`. A datagram in a ring also makes its socket readable.
///
/// # Safety
/// The sets and the time must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: FdSetWords,
    written: FdSetWords,
    except: FdSetWords,
    limit: *mut c_void,
) -> c_int {
    let Some(next) = next_function!(c"select" as SelectFn) else { return missing_function() };
    let wait = |wait_limit: WaitLimit| {
        // A `timeval`, in microseconds.
        let mut time = wait_limit.to_timespec().map(|time| [time.seconds, time.nanoseconds / 1000]);
        let limit = time.as_mut().map_or(limit, |time| ptr::from_mut(time).cast());
        // SAFETY: I1, U1.
        unsafe { next(count, read, written, except, limit) }
    };
    // SAFETY: U1: a `timeval` is two numbers.
    let most = (!limit.is_null()).then(|| unsafe { *limit.cast::<[i64; 2]>() });
    let most = most.map(|[seconds, microseconds]| {
        Timespec { seconds, nanoseconds: microseconds.saturating_mul(1000) }.duration()
    });
    // SAFETY: U1.
    unsafe { select_with_rings(count, [read, written, except], most, wait) }
}

/// Replaces `pselect(2)`. A datagram in a ring also makes its socket readable.
///
/// # Safety
/// The sets, the time and the mask must be valid during the call (U1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: FdSetWords,
    written: FdSetWords,
    except: FdSetWords,
    limit: *const Timespec,
    mask: *const c_void,
) -> c_int {
    let Some(next) = next_function!(c"pselect" as PselectFn) else { return missing_function() };
    let wait = |wait_limit: WaitLimit| {
        let time = wait_limit.to_timespec();
        let limit = time.as_ref().map_or(limit, ptr::from_ref);
        // SAFETY: I1, U1.
        unsafe { next(count, read, written, except, limit, mask) }
    };
    // SAFETY: U1.
    let most = (!limit.is_null()).then(|| unsafe { *limit }.duration());
    // SAFETY: U1.
    unsafe { select_with_rings(count, [read, written, except], most, wait) }
}
