//! The epoll sets of the program.
//!
//! A datagram in a ring is reported by the calls that wait on an epoll set, `epoll_wait` and its
//! siblings. A set on which the program waits in another way, as a member of another set or with
//! `poll`, would not become readable, so its sockets stay with the kernel.

use crate::socket_table;
use std::sync::atomic::{AtomicU8, Ordering};
use sys::preload::udp;

const DESCRIPTORS_MAX: usize = udp::DESCRIPTORS_MAX.cast_unsigned() as usize;
/// The value in [`EPOLL_SET_STATES`] of a descriptor that is not known to be an epoll set.
const UNKNOWN: u8 = 0;
/// The value in [`EPOLL_SET_STATES`] of an epoll set.
const EPOLL_SET: u8 = 1;
/// The value in [`EPOLL_SET_STATES`] of an epoll set on which the program waits with calls other
/// than `epoll_wait`.
const WAITED_WITH_OTHER_CALLS: u8 = 2;

static EPOLL_SET_STATES: [AtomicU8; DESCRIPTORS_MAX] =
    [const { AtomicU8::new(UNKNOWN) }; DESCRIPTORS_MAX];

/// Records that the descriptor `set` is an epoll set. Returns false if the sockets in the set must
/// not have rings, because the program waits on the set with calls other than `epoll_wait`, or
/// because the number of the descriptor is too high to be recorded.
pub(crate) fn record_epoll_set(set: i32) -> bool {
    let Some(place) = state_slot(set) else { return false };
    let before = place.compare_exchange(UNKNOWN, EPOLL_SET, Ordering::AcqRel, Ordering::Acquire);
    before != Err(WAITED_WITH_OTHER_CALLS)
}

/// Returns true if a descriptor is known to be an epoll set.
pub(crate) fn is_epoll_set(number: i32) -> bool {
    state_slot(number).is_some_and(|place| place.load(Ordering::Acquire) != UNKNOWN)
}

/// Records that the program waits on an epoll set with calls other than `epoll_wait`. The sockets
/// of the set return to the kernel permanently.
pub(crate) fn record_unsupported_wait(set: i32) {
    let Some(place) = state_slot(set) else { return };
    if place.swap(WAITED_WITH_OTHER_CALLS, Ordering::AcqRel) == WAITED_WITH_OTHER_CALLS {
        return;
    }
    socket_table::for_each_classified_socket(|socket| {
        if socket.is_in_epoll_set(set) {
            socket.return_to_kernel_permanently();
        }
    });
}

/// Forgets a descriptor that is about to be closed. Returns true if it was an epoll set.
pub(crate) fn forget_epoll_set(number: i32) -> bool {
    let before = state_slot(number).map(|place| place.swap(UNKNOWN, Ordering::AcqRel));
    before.is_some_and(|before| before != UNKNOWN)
}

fn state_slot(number: i32) -> Option<&'static AtomicU8> {
    EPOLL_SET_STATES.get(usize::try_from(number).ok()?)
}
