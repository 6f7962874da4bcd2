//! Counters of the datagrams that a socket has dropped, for programs that request the number of
//! dropped datagrams (`SO_RXQ_OVFL`).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sys::preload::udp;

/// True once a ring has dropped datagrams of a socket whose program requests the number of dropped
/// datagrams.
static HAS_RING_DROPS: AtomicBool = AtomicBool::new(false);

/// Returns true if a ring has dropped datagrams of a socket whose program requests the number of
/// drops.
pub(crate) fn has_ring_drops() -> bool {
    HAS_RING_DROPS.load(Ordering::Relaxed)
}

/// Numbers of datagrams that a socket has dropped. As in the kernel, each number has 32 bits and
/// wraps around.
#[derive(Debug)]
pub(crate) struct DropCounts {
    /// Number of datagrams that all rings of the socket have dropped so far.
    by_ring: AtomicU32,
    /// Number of datagrams dropped by the rings that the socket had before its current ring.
    by_earlier_rings: AtomicU32,
    /// Datagrams that the kernel had dropped for the socket's placeholder (kernel socket) when its
    /// counter was last read.
    by_kernel: AtomicU32,
}

impl DropCounts {
    pub(crate) const fn new() -> Self {
        let zero = AtomicU32::new;
        Self { by_ring: zero(0), by_earlier_rings: zero(0), by_kernel: zero(0) }
    }

    /// Reads the number of datagrams that the kernel has dropped for the placeholder, the kernel
    /// socket with the descriptor `number`, and stores it.
    pub(crate) fn update_kernel_drops(&self, number: i32) {
        self.by_kernel.store(udp::kernel_drop_count(number), Ordering::Relaxed);
    }

    /// Stores the number of datagrams that the current ring has dropped. Returns the number of
    /// datagrams that all rings of the socket have dropped.
    pub(crate) fn update_ring_drops(&self, dropped: u64) -> u32 {
        let before = self.by_earlier_rings.load(Ordering::Relaxed);
        let all = before.wrapping_add(dropped as u32);
        if all > 0 {
            HAS_RING_DROPS.store(true, Ordering::Relaxed);
        }
        self.by_ring.store(all, Ordering::Relaxed);
        all
    }

    /// Adds the datagrams that the current ring has dropped to those of the earlier rings, because
    /// the current ring has ended.
    pub(crate) fn add_drops_of_ended_ring(&self, dropped: u64) {
        self.by_earlier_rings.fetch_add(dropped as u32, Ordering::Relaxed);
    }

    /// Returns the number of datagrams that the rings and the placeholder (kernel socket) have
    /// dropped.
    pub(crate) fn total(&self) -> u32 {
        let by_kernel = self.by_kernel.load(Ordering::Relaxed);
        self.by_ring.load(Ordering::Relaxed).wrapping_add(by_kernel)
    }
}
