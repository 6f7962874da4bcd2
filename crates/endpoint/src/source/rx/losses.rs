//! Losses before a live source, by place. (CONTRACT 19) (CONTRACT 19)
//!
//! A frame on its way to the ring can be lost in four places, each of which counts for itself:
//! - **driver**: the device had no memory for it (`rx_missed_errors`, `rx_fifo_errors`,
//!   `rx_over_errors` of the interface: drivers count the same loss in one or more of them, so the
//!   largest is taken);
//! - **backlog**: the queue between driver and stack was full (`net.core.netdev_max_backlog`). The
//!   processors count it (`/proc/net/softnet_stat`), all interfaces and name spaces together; the
//!   interface counts it in `rx_dropped`, together with frames that no protocol wanted and that we
//!   have seen. The smaller of the two is what this interface can have lost;
//! - **socket**: refused at the door of the socket;
//! - **ring**: no room in our ring.
//!
//! A counter that cannot be read is unknown, not 0.

use crate::{DropReason, Seen};
use filter::Amount;
use sys::net::{Backlog, Counters, RouteSocket};
use sys::packet::PacketRing;

/// The place of frames that found no room in our ring.
pub(super) const RING: &str = "ring";

/// The counters at the start of the source.
#[derive(Debug)]
pub(crate) struct Losses {
    links: RouteSocket,
    /// The interface; none: all of the name space.
    index: Option<u32>,
    counters: Option<Counters>,
    backlog: Option<Backlog>,
    /// True if frames come from outside: frames that this host sends wait in no backlog.
    receives: bool,
}

impl Losses {
    /// Begins to count for one interface, or for all.
    pub(crate) fn begin(links: RouteSocket, index: Option<u32>, receives: bool) -> Self {
        let mut losses = Self { links, index, counters: None, backlog: None, receives };
        losses.counters = losses.counters();
        losses.backlog = Backlog::read().ok();
        losses
    }

    /// Returns the frames received so far, by the kernel's count; with those not given, by reason.
    pub(super) fn seen(
        &self,
        ring: &PacketRing,
        given: Amount,
        left: &[(DropReason, u64)],
    ) -> Seen {
        let statistics = ring.statistics().ok();
        let before = if self.receives { self.before() } else { Vec::new() };
        let before = before.into_iter();
        let mut dropped: Vec<_> =
            before.chain([("socket".into(), ring.socket_drops().ok())]).collect();
        let arrived = statistics.map(|all| all.packets);
        let came = dropped.iter().map(|(_, count)| *count).chain([arrived]).sum::<Option<u64>>();
        dropped.push((DropReason::Ring, statistics.map(|all| all.drops)));
        let left = left.iter().filter(|(_, count)| *count > 0);
        dropped.extend(left.map(|(why, count)| (*why, Some(*count))));
        // Nobody counts the bytes of what did not come.
        let seen = came.map(|blocks| Amount { blocks, bytes: given.bytes });
        Seen { seen, given, dropped, ..Seen::default() }
    }

    fn counters(&self) -> Option<Counters> {
        let interfaces = match self.index {
            Some(index) => vec![self.links.indexed(index).ok()?],
            None => self.links.all().ok()?,
        };
        let mut all = Counters::default();
        for counters in interfaces.iter().map(|interface| &interface.counters) {
            all.rx_missed_errors += counters.rx_missed_errors;
            all.rx_fifo_errors += counters.rx_fifo_errors;
            all.rx_over_errors += counters.rx_over_errors;
            all.rx_dropped += counters.rx_dropped;
        }
        Some(all)
    }

    /// Returns the losses on the way to the socket.
    pub(crate) fn before(&self) -> Vec<(DropReason, Option<u64>)> {
        let now = self.counters();
        let counters = now.as_ref().zip(self.counters.as_ref());
        let driver = counters.map(|(now, then)| {
            let since = |of: fn(&Counters) -> u64| of(now).saturating_sub(of(then));
            let missed = since(|all| all.rx_missed_errors).max(since(|all| all.rx_fifo_errors));
            missed.max(since(|all| all.rx_over_errors))
        });
        let here = counters.map(|(now, then)| now.rx_dropped.saturating_sub(then.rx_dropped));
        let all = Backlog::read().ok().zip(self.backlog.as_ref());
        let all = all.map(|(now, then)| now.dropped_since(then));
        let backlog = all.zip(here).map(|(all, here)| all.min(here));
        vec![(DropReason::Driver, driver), (DropReason::Backlog, backlog)]
    }
}
