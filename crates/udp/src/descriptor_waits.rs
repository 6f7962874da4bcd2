//! The threads that wait for descriptors.
//!
//! Datagrams that enter the ring of a socket do not wake a thread. The ring may therefore be awake
//! only while no thread sleeps until the socket's placeholder, or one of the socket's epoll sets,
//! becomes readable. Waits are counted for all descriptors, because a thread may begin to wait
//! before the socket has a ring.
//!
//! Sync point, *waiting*: a waiting thread counts itself, then checks for promoted sockets with
//! awake rings, and puts these rings to sleep. A thread that wakes a ring holds the lock of the
//! socket, and reads the counts. All accesses are sequentially consistent, so one of the two
//! threads sees the other.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sys::preload::udp;

/// Number of descriptors whose waits are counted.
const DESCRIPTORS_MAX: usize = udp::DESCRIPTORS_MAX.cast_unsigned() as usize;

static WAIT_COUNTS: [AtomicU32; DESCRIPTORS_MAX] = [const { AtomicU32::new(0) }; DESCRIPTORS_MAX];
/// For each descriptor, true if the program has waited for it in a call that only waits, such as
/// `poll` or `epoll_wait`.
static HAS_BEEN_WAITED_FOR: [AtomicBool; DESCRIPTORS_MAX] =
    [const { AtomicBool::new(false) }; DESCRIPTORS_MAX];

/// A thread's wait for a descriptor, which ends when the value is dropped.
#[derive(Debug)]
pub(crate) struct Wait(Option<&'static AtomicU32>);

impl Wait {
    /// Begins a wait for a descriptor in a call such as `poll` or `epoll_wait`, which only waits
    /// and receives nothing.
    pub(crate) fn begin(number: i32) -> Self {
        if let Some(known) = descriptor_slot(&HAS_BEEN_WAITED_FOR, number) {
            known.store(true, Ordering::Relaxed);
        }
        Self::begin_receive(number)
    }

    /// Begins the wait of a receive call, which may wait for a datagram on a descriptor.
    pub(crate) fn begin_receive(number: i32) -> Self {
        let place = descriptor_slot(&WAIT_COUNTS, number);
        if let Some(count) = place {
            count.fetch_add(1, Ordering::SeqCst);
        }
        Self(place)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Returns true if a thread waits for the descriptor `number`.
pub(crate) fn has_waiter(number: i32) -> bool {
    descriptor_slot(&WAIT_COUNTS, number).is_some_and(|count| count.load(Ordering::SeqCst) > 0)
}

/// Returns true if the program has waited for a descriptor in a call such as `poll` or
/// `epoll_wait`, which only waits and receives nothing.
pub(crate) fn has_been_waited_for(number: i32) -> bool {
    descriptor_slot(&HAS_BEEN_WAITED_FOR, number).is_some_and(|known| known.load(Ordering::Relaxed))
}

/// Forgets that the program has waited for a descriptor. Called when the descriptor is about to be
/// closed.
pub(crate) fn forget_waits(number: i32) {
    if let Some(known) = descriptor_slot(&HAS_BEEN_WAITED_FOR, number) {
        known.store(false, Ordering::Relaxed);
    }
}

/// Forgets the waits of the parent's threads, which a forked child does not have.
pub(crate) fn forget_in_child() {
    WAIT_COUNTS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}

fn descriptor_slot<T>(all: &'static [T], number: i32) -> Option<&'static T> {
    all.get(usize::try_from(number).ok()?)
}
