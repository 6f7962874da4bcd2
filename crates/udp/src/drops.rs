//! Counters of the datagrams that a socket has dropped, for programs that request the number of
//! dropped datagrams (`SO_RXQ_OVFL`).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sys::preload::udp;

/// True once a ring has dropped datagrams of a socket whose program requests the number of drops.
static HAS_RING_DROPS: AtomicBool = AtomicBool::new(false);

/// Returns true if a ring has dropped datagrams of a socket whose program requests the number of
/// drops.
pub(crate) fn has_ring_drops() -> bool {
    HAS_RING_DROPS.load(Ordering::Relaxed)
}

/// The numbers of datagrams that a socket has dropped. As in the kernel, they have 32 bits and
/// wrap.
#[derive(Debug)]
pub(crate) struct DropCounts {
    /// Datagrams that all rings of the socket have dropped so far.
    by_ring: AtomicU32,
    /// Datagrams that the rings before the current one have dropped.
    by_earlier_rings: AtomicU32,
    /// Datagrams that the placeholder had dropped when its counter was last read.
    by_kernel: AtomicU32,
}

impl DropCounts {
    pub(crate) const fn new() -> Self {
        let zero = AtomicU32::new;
        Self { by_ring: zero(0), by_earlier_rings: zero(0), by_kernel: zero(0) }
    }

    /// Updates the number of datagrams that the kernel has dropped for the placeholder, whose
    /// descriptor is `number`.
    pub(crate) fn update_kernel_drops(&self, number: i32) {
        self.by_kernel.store(udp::kernel_drop_count(number), Ordering::Relaxed);
    }

    /// Sets the number of datagrams that the current ring has dropped. Returns the number of
    /// datagrams that all rings have dropped.
    pub(crate) fn update_ring_drops(&self, dropped: u64) -> u32 {
        let before = self.by_earlier_rings.load(Ordering::Relaxed);
        let all = before.wrapping_add(dropped as u32);
        if all > 0 {
            HAS_RING_DROPS.store(true, Ordering::Relaxed);
        }
        self.by_ring.store(all, Ordering::Relaxed);
        all
    }

    /// Adds the drops of a ring that has ended to the drops of earlier rings.
    pub(crate) fn end_ring(&self, dropped: u64) {
        self.by_earlier_rings.fetch_add(dropped as u32, Ordering::Relaxed);
    }

    /// Returns the number of datagrams that the rings and the placeholder have dropped.
    pub(crate) fn all(&self) -> u32 {
        let by_kernel = self.by_kernel.load(Ordering::Relaxed);
        self.by_ring.load(Ordering::Relaxed).wrapping_add(by_kernel)
    }
}
