//! Nudges: when a socket whose ring has datagrams is added to an epoll set, a nudge wakes a thread
//! that sleeps in the set.
//!
//! The kernel cannot see the ring. A nudge therefore adds `EPOLLOUT` to the registration of the
//! socket, and the kernel reports the socket as writable at once. The woken wait restores the
//! registration, hides that event from the program, and finds the datagrams in the ring.
//!
//! A one-shot registration is nudged even if no thread sleeps: the kernel then reports it to one
//! thread, and `EPOLLOUT` is replaced by `EPOLLIN`. (No more datagrams enter the ring of such a
//! socket, but the ring may still contain some.)

use super::epoll::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EpollEvent, real_epoll_ctl};
use crate::registration::{EPOLL_READABLE, EPOLL_WRITABLE, Registration};
use crate::socket_table;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Epoll event of a socket that has become writable.
const EPOLLOUT: u32 = 0x4;

/// Registrations that are nudged: [`nudge_registration`] has added `EPOLLOUT` to their events. The
/// next end of a wait on their epoll set restores them, and removes the events that `EPOLLOUT` has
/// caused.
static NUDGED_REGISTRATIONS: Mutex<Vec<Registration>> = Mutex::new(Vec::new());
/// True if there may be entries in [`NUDGED_REGISTRATIONS`].
static HAS_NUDGED_REGISTRATIONS: AtomicBool = AtomicBool::new(false);

fn lock_nudged_registrations() -> MutexGuard<'static, Vec<Registration>> {
    NUDGED_REGISTRATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes a thread that waits on the epoll set of a registration, by adding `EPOLLOUT` to the
/// registration's events. If the program itself waits until the socket is writable, the kernel
/// wakes the thread without this change: a one-shot registration is then only added to
/// [`NUDGED_REGISTRATIONS`], and nothing is done for any other registration.
pub(super) fn nudge_registration(known: Registration) {
    if known.is_for_output() && !known.is_one_shot() {
        return;
    }
    let mut nudged = lock_nudged_registrations();
    nudged.push(known);
    HAS_NUDGED_REGISTRATIONS.store(true, Ordering::SeqCst);
    if !known.is_for_output() {
        change_events(known, known.events | EPOLLOUT);
    }
}

/// Forgets that the registration of descriptor `number` with the epoll set `set` is nudged (changed
/// to wake a thread). Called when the program is about to change the registration.
pub(super) fn forget_nudge(set: c_int, number: c_int) {
    if HAS_NUDGED_REGISTRATIONS.load(Ordering::SeqCst) {
        lock_nudged_registrations().retain(|known| (known.set, known.number) != (set, number));
    }
}

/// Ends the nudges of the epoll set `set` after a wait has returned `events`: restores the nudged
/// registrations, and removes the events that the nudges have caused. Returns the number of
/// remaining events, or `None` if there was no nudge.
pub(super) fn undo_nudges(set: c_int, events: &mut [EpollEvent]) -> Option<usize> {
    if !HAS_NUDGED_REGISTRATIONS.load(Ordering::SeqCst) {
        return None;
    }
    let mut nudged = lock_nudged_registrations();
    // A one-shot registration has not been reported if its event is not among `events`.
    let is_over = |known: &Registration| {
        !known.is_one_shot() || events.iter().any(|event| { event.data } == known.data)
    };
    let ended = nudged.extract_if(.., |known| known.set == set && is_over(known));
    let ours: Vec<Registration> = ended.collect();
    HAS_NUDGED_REGISTRATIONS.store(!nudged.is_empty(), Ordering::SeqCst);
    ours.iter()
        .filter(|known| !known.is_one_shot())
        .for_each(|known| change_events(*known, known.events));
    drop(nudged);
    if ours.is_empty() {
        return None;
    }
    let mut kept = 0;
    for at in 0..events.len() {
        let Some(mut event) = events.get(at).copied() else { break };
        if let Some(known) = ours.iter().find(|known| known.data == event.data) {
            event.events = select_requested_events(known, event.events);
        }
        if event.events != 0
            && let Some(place) = events.get_mut(kept)
        {
            *place = event;
            kept += 1;
        }
    }
    Some(kept)
}

/// Selects, from the events that the kernel has `reported` for a registration, those for the
/// program: events that the program has requested and that no nudge has caused. For a one-shot
/// registration, adds readability if the ring has a datagram. If no event is left for a one-shot
/// registration, makes the registration report again.
fn select_requested_events(known: &Registration, reported: u32) -> u32 {
    let own = if known.is_for_output() { reported } else { reported & !EPOLL_WRITABLE };
    if !known.is_one_shot() {
        return own;
    }
    let has_datagram =
        socket_table::find_promoted_socket(known.number).is_some_and(|found| found.has_datagram());
    let own = if has_datagram { own | known.events & EPOLL_READABLE } else { own };
    if own == 0 {
        change_events(*known, known.events);
    }
    own
}

/// Changes the events for which a socket is registered with an epoll set.
fn change_events(known: Registration, events: u32) {
    let mut event = EpollEvent { events, data: known.data };
    // The registration is gone if the program has closed the socket.
    if !known.is_exclusive() {
        let _ = real_epoll_ctl(known.set, EPOLL_CTL_MOD, known.number, &mut event);
    } else if real_epoll_ctl(known.set, EPOLL_CTL_DEL, known.number, &mut event) == 0 {
        // An exclusive registration can only be replaced.
        let _ = real_epoll_ctl(known.set, EPOLL_CTL_ADD, known.number, &mut event);
    }
}
