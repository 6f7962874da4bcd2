//! Nudges: when a socket whose ring has datagrams is added to an epoll set, a nudge wakes a thread
//! that sleeps in the set.
//!
//! The kernel cannot see the ring. A nudge therefore adds `EPOLLOUT` to the registration of the
//! socket, and the kernel reports the socket as writable at once. The woken wait restores the
//! registration, hides that event from the program, and finds the datagrams in the ring.

use super::epoll::{EPOLL_CTL_MOD, EpollEvent, real_epoll_ctl};
use crate::registration::Registration;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `EPOLLOUT | EPOLLWRNORM`.
const WRITABLE: u32 = 0x104;
/// `EPOLLOUT`.
const EPOLLOUT: u32 = 0x4;

/// The registrations to which a nudge has added `EPOLLOUT`.
static NUDGED: Mutex<Vec<Registration>> = Mutex::new(Vec::new());
/// True if there may be entries in [`NUDGED`].
static HAS_NUDGED: AtomicBool = AtomicBool::new(false);

fn nudged() -> MutexGuard<'static, Vec<Registration>> {
    NUDGED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes a thread that waits on the epoll set of a registration. Does nothing if the program itself
/// waits for the socket to become writable, because the set then wakes the thread anyway.
pub(super) fn nudge(known: Registration) {
    if known.events & WRITABLE != 0 {
        return;
    }
    let mut nudged = nudged();
    nudged.push(known);
    HAS_NUDGED.store(true, Ordering::SeqCst);
    change(known, known.events | EPOLLOUT);
}

/// Discards the nudge of a registration that the program is about to change.
pub(super) fn forget(set: c_int, number: c_int) {
    if HAS_NUDGED.load(Ordering::SeqCst) {
        nudged().retain(|known| (known.set, known.number) != (set, number));
    }
}

/// Restores the nudged registrations of `set` after a wait has returned `events`, and removes the
/// events that nudges have added. Returns the number of remaining events, or `None` if there was no
/// nudge.
pub(super) fn end(set: c_int, events: &mut [EpollEvent]) -> Option<usize> {
    if !HAS_NUDGED.load(Ordering::SeqCst) {
        return None;
    }
    let mut nudged = nudged();
    let ours: Vec<Registration> = nudged.extract_if(.., |known| known.set == set).collect();
    HAS_NUDGED.store(!nudged.is_empty(), Ordering::SeqCst);
    ours.iter().for_each(|known| change(*known, known.events));
    drop(nudged);
    if ours.is_empty() {
        return None;
    }
    let mut kept = 0;
    for at in 0..events.len() {
        let Some(mut event) = events.get(at).copied() else { break };
        if ours.iter().any(|known| known.data == event.data) {
            event.events &= !WRITABLE;
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

/// Changes the events of a registration.
fn change(known: Registration, events: u32) {
    let mut event = EpollEvent { events, data: known.data };
    // The registration is gone if the program has closed the socket.
    let _ = real_epoll_ctl(known.set, EPOLL_CTL_MOD, known.number, &mut event);
}
