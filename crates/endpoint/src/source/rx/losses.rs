//! Losses of frames before they reach a live source, by location. (CONTRACT 19)
//!
//! A frame on its way to the ring can be lost at four locations, each of which has its own
//! counters:
//! - **driver**: the device had no memory (`rx_missed_errors`, `rx_fifo_errors`, `rx_over_errors`
//!   of the interface: drivers count the same loss in one or more of them, so the largest is used);
//! - **backlog**: the queue between driver and stack was full (`net.core.netdev_max_backlog`).
//!   `/proc/net/softnet_stat` counts it for all interfaces and namespaces together; `rx_dropped` of
//!   the interface counts it together with frames that no protocol accepted, which this source has
//!   received nevertheless. The smaller of the two is an upper bound for this interface;
//! - **socket**: the socket itself rejected the frame;
//! - **ring**: the ring of the source had no room.
//!
//! An unreadable counter is unknown, not 0.

use crate::{DropReason, SourceCounters};
use filter::Amount;
use sys::net::{BacklogCounters, InterfaceCounters, RouteSocket};
use sys::packet::PacketRing;

/// Name, in the ledger, of the location at which frames are lost because the source's ring is full.
pub(super) const RING_LOSS_LOCATION: &str = "ring";

/// Counters of the frames that were lost before they reached a live source, relative to the values
/// when the source started.
#[derive(Debug)]
pub(crate) struct FrameLossCounters {
    links: RouteSocket,
    /// Index of the observed interface, or `None` for all interfaces in the namespace.
    index: Option<u32>,
    counters: Option<InterfaceCounters>,
    backlog: Option<BacklogCounters>,
    /// True if losses at the backlog are counted, because the source observes received frames.
    /// Frames that this host sends do not pass through the backlog.
    counts_backlog: bool,
}

impl FrameLossCounters {
    /// Starts counting, with the current values of the kernel's counters as the baseline. `index`
    /// is the index of an interface, or `None` for all interfaces. If `receives` is true, losses at
    /// the backlog are counted too.
    pub(crate) fn begin_counting(links: RouteSocket, index: Option<u32>, receives: bool) -> Self {
        let mut losses =
            Self { links, index, counters: None, backlog: None, counts_backlog: receives };
        losses.counters = losses.interface_counters();
        losses.backlog = BacklogCounters::read().ok();
        losses
    }

    /// Returns all counters of the source: frames received according to the kernel, frames that the
    /// source has emitted (`given`), and losses by location. `not_emitted` contains, by reason, the
    /// numbers of frames that reached the ring but were not emitted.
    pub(super) fn source_counters(
        &self,
        ring: &PacketRing,
        given: Amount,
        not_emitted: &[(DropReason, u64)],
    ) -> SourceCounters {
        let statistics = ring.statistics().ok();
        let before = if self.counts_backlog { self.losses_before_socket() } else { Vec::new() };
        let before = before.into_iter();
        let mut dropped: Vec<_> =
            before.chain([("socket".into(), ring.socket_drop_count().ok())]).collect();
        let arrived = statistics.map(|all| all.packets);
        let observed_blocks =
            dropped.iter().map(|(_, count)| *count).chain([arrived]).sum::<Option<u64>>();
        dropped.push((DropReason::Ring, statistics.map(|all| all.drops)));
        let not_emitted = not_emitted.iter().filter(|(_, count)| *count > 0);
        dropped.extend(not_emitted.map(|(why, count)| (*why, Some(*count))));
        // The kernel does not count the bytes of lost frames.
        let observed = observed_blocks.map(|blocks| Amount { blocks, bytes: given.bytes });
        SourceCounters { observed, given, dropped, ..SourceCounters::default() }
    }

    fn interface_counters(&self) -> Option<InterfaceCounters> {
        let interfaces = match self.index {
            Some(index) => vec![self.links.interface_by_index(index).ok()?],
            None => self.links.list_interfaces().ok()?,
        };
        let mut all = InterfaceCounters::default();
        for counters in interfaces.iter().map(|interface| &interface.counters) {
            all.rx_missed_errors += counters.rx_missed_errors;
            all.rx_fifo_errors += counters.rx_fifo_errors;
            all.rx_over_errors += counters.rx_over_errors;
            all.rx_dropped += counters.rx_dropped;
        }
        Some(all)
    }

    /// Returns the numbers of frames lost at the driver and at the backlog, before they reached a
    /// socket. A number is `None` if the kernel's counters cannot be read.
    pub(crate) fn losses_before_socket(&self) -> Vec<(DropReason, Option<u64>)> {
        let now = self.interface_counters();
        let counters = now.as_ref().zip(self.counters.as_ref());
        let driver = counters.map(|(now, then)| {
            let since = |of: fn(&InterfaceCounters) -> u64| of(now).saturating_sub(of(then));
            let missed = since(|all| all.rx_missed_errors).max(since(|all| all.rx_fifo_errors));
            missed.max(since(|all| all.rx_over_errors))
        });
        let here = counters.map(|(now, then)| now.rx_dropped.saturating_sub(then.rx_dropped));
        let all = BacklogCounters::read().ok().zip(self.backlog.as_ref());
        let all = all.map(|(now, then)| now.frames_dropped_since(then));
        let backlog = all.zip(here).map(|(all, here)| all.min(here));
        vec![(DropReason::Driver, driver), (DropReason::Backlog, backlog)]
    }
}
