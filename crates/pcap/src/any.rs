//! The device `any`: the packets of all interfaces, each with a cooked header instead of its
//! link-layer header.
//!
//! One capture reads the rings of all Ethernet interfaces. The thread of the program converts the
//! frames in the rings to packets. A packet socket receives the packets of the other interfaces:
//! those without Ethernet frames, and those whose frames neither the daemon nor this process may
//! capture in the kernel. While all interfaces have rings, the socket receives nothing.
//!
//! The set of interfaces is updated when the kernel notifies a change. The first packets of a new
//! interface may therefore be missed.

mod packets;
mod remainder;

pub(crate) use packets::{FRAME_OFFSET, Packet};

use crate::settings::Settings;
use ebpf::classic::LinkType;
use ebpf::classic::kernel::link_type;
use remainder::RemainderSocket;
use std::os::fd::{AsFd as _, BorrowedFd};
use streamline::Options;
use streamline::capture::{Capture, CaptureSettings, CapturedFrame};
use sys::net::{Interface, LinkEvents, RouteSocket};
use wire::linux_cooked::CookedHeader;

/// Maximum number of interfaces with rings. The packet socket receives the packets of all other
/// interfaces.
const INTERFACES_WITH_RINGS_MAX: usize = 64;
/// Maximum number of interfaces whose rings have the default size.
const DEFAULT_RING_INTERFACES_MAX: usize = 3;
/// Memory for the rings of all interfaces in bytes, if there are more than
/// [`DEFAULT_RING_INTERFACES_MAX`] and the program has not set a size.
const ALL_RINGS_SIZE: u64 = 64 << 20;
/// Minimum size in bytes of the rings of one interface for one direction, received or sent.
const RING_SIZE_MIN: u64 = 512 << 10;

/// The interfaces of a capture of the device `any`, and the packet socket of the interfaces without
/// rings.
#[derive(Debug)]
pub(crate) struct AllInterfaces {
    routes: RouteSocket,
    events: LinkEvents,
    known: Vec<InterfaceProperties>,
    /// Indices of the Ethernet interfaces without rings, because the kernel or the daemon has
    /// refused to capture their frames.
    refused: Vec<u32>,
    remainder: RemainderSocket,
}

/// The properties of an interface from which the cooked headers of its packets are made.
#[derive(Clone, Copy, Debug)]
struct InterfaceProperties {
    index: u32,
    /// Device type of the interface (`ARPHRD_…`).
    hardware: u16,
    address: [u8; 6],
    /// Time from which on the ring contains all frames of the interface, in nanoseconds since 1970;
    /// `None` if the interface has no ring.
    in_ring_since: Option<u64>,
}

impl AllInterfaces {
    /// Opens the capture of all interfaces. Fails with the reason.
    pub(crate) fn open(
        settings: &Settings,
        wanted: CaptureSettings,
    ) -> Result<(Self, Capture), String> {
        let text = |error: sys::Error| error.to_string();
        let routes = RouteSocket::open().map_err(text)?;
        let events = LinkEvents::open().map_err(text)?;
        let remainder = RemainderSocket::open(settings.buffer).map_err(text)?;
        let found = routes.list_interfaces().map_err(text)?;
        let ethernet: Vec<&Interface> = found.iter().filter(|one| is_ethernet(one)).collect();
        let first = ethernet.first().ok_or("no interface has Ethernet frames")?;
        let interface = first.name.clone();
        let ring = ring_size(wanted.ring_bytes, ethernet.len());
        let wanted = CaptureSettings { interface, ring_bytes: ring, ..wanted };
        let mut capture =
            Capture::open(&wanted, &Options::default()).map_err(|error| error.to_string())?;
        let (known, refused) = (Vec::new(), Vec::new());
        let mut all = Self { routes, events, known, refused, remainder };
        all.update(&mut capture)?;
        Ok((all, capture))
    }

    /// Makes the packets that have arrived since the last call on interfaces without rings
    /// available to [`Self::next_time`].
    pub(crate) const fn load_arrived_packets(&mut self) {
        self.remainder.allow_next_read();
    }

    /// Updates the set of interfaces if the kernel has notified a change. Returns true if the
    /// capture has new doorbells.
    pub(crate) fn update_interfaces(&mut self, capture: &mut Capture) -> bool {
        // If the update fails, the interfaces remain as they are until the next change.
        self.events.discard_pending() && self.update(capture).unwrap_or(false)
    }

    /// Captures the frames of new interfaces, and ends the capture of interfaces that have been
    /// removed or that the daemon no longer captures. Returns true if the capture has new
    /// doorbells. Fails with a reason.
    pub(crate) fn update(&mut self, capture: &mut Capture) -> Result<bool, String> {
        let found = self.routes.list_interfaces().map_err(|error| error.to_string())?;
        capture.forget_failed_interfaces();
        let mut with_rings: Vec<u32> = capture.interfaces().collect();
        with_rings.sort_unstable();
        with_rings.dedup();
        self.refused.retain(|index| found.iter().any(|one| one.index == *index));
        let mut is_larger = false;
        for interface in &found {
            let index = interface.index;
            let is_new = !with_rings.contains(&index) && !self.refused.contains(&index);
            if is_new && is_ethernet(interface) && with_rings.len() < INTERFACES_WITH_RINGS_MAX {
                if capture.add_interface(&interface.name).is_ok() {
                    with_rings.push(index);
                    is_larger = true;
                } else {
                    self.refused.push(index);
                }
            }
            self.record_interface(interface, with_rings.contains(&index));
        }
        let is_read = |one: &Interface| !one.flags.is_up() || with_rings.contains(&one.index);
        let is_complete = found.iter().all(is_read);
        self.remainder
            .set_excluded((!is_complete).then_some(&with_rings))
            .map_err(|error| error.to_string())?;
        Ok(is_larger)
    }

    fn record_interface(&mut self, interface: &Interface, has_ring: bool) {
        let mut address = [0; 6];
        for (to, from) in address.iter_mut().zip(&interface.mac) {
            *to = *from;
        }
        let (index, hardware) = (interface.index, interface.hatype);
        let now = sys::clock::realtime_ns();
        match self.known.iter_mut().find(|one| one.index == index) {
            Some(known) => {
                let in_ring_since = has_ring.then_some(known.in_ring_since.unwrap_or(now));
                *known = InterfaceProperties { index, hardware, address, in_ring_since };
            }
            None => {
                let in_ring_since = has_ring.then_some(now);
                self.known.push(InterfaceProperties { index, hardware, address, in_ring_since });
            }
        }
    }

    /// Returns two descriptors for poll(2). The first is readable when the set of interfaces has
    /// changed, the second when a packet has arrived on an interface without a ring.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.events.as_fd(), self.remainder.as_fd()]
    }

    /// Returns the cooked header of a frame in a ring, and the offset in bytes of the packet in the
    /// frame; `None` if the frame is too short. `bytes` is the beginning of the frame.
    pub(crate) fn cooked_header(
        &self,
        frame: &CapturedFrame,
        bytes: &[u8],
    ) -> Option<(CookedHeader, usize)> {
        let known = self.known.iter().find(|one| one.index == frame.interface);
        let (address, hardware) =
            known.map_or(([0; 6], 1), |known| (known.address, known.hardware));
        let (header, at) = CookedHeader::from_ethernet_frame(bytes, address, frame.is_sent)?;
        Some((CookedHeader { interface: frame.interface, hardware, ..header }, at))
    }

    /// Returns the time of day of the next packet of the interfaces without rings, in nanoseconds
    /// since 1970; `None` if there is none.
    pub(crate) fn next_time(&mut self) -> Option<u64> {
        let known = &self.known;
        self.remainder.next_time(|interface, time_ns| {
            let known = known.iter().find(|one| one.index == interface);
            known.and_then(|known| known.in_ring_since).is_some_and(|since| time_ns > since)
        })
    }

    /// Returns true if a packet of an interface without a ring has been received but not been read.
    pub(crate) fn has_packet(&self) -> bool {
        self.remainder.has_packet()
    }

    /// Removes the packet whose time [`Self::next_time`] has returned. Copies its bytes to `bytes`,
    /// and returns the packet; `None` if there is none.
    pub(crate) fn take_packet(&mut self, bytes: &mut [u8]) -> Option<Packet> {
        self.remainder.take_packet(bytes)
    }

    /// Returns the number of packets that the packet socket has dropped.
    pub(crate) fn count_drops(&mut self) -> u64 {
        self.remainder.count_drops()
    }
}

/// Returns true if the frames of an interface are Ethernet frames.
pub(crate) fn is_ethernet(interface: &Interface) -> bool {
    link_type(interface.hatype) == Some(LinkType::EN10MB)
}

/// Returns the size in bytes of the rings of one interface in one direction, or `None` for the
/// default size. `all` is the size that the program has set for the capture, or `None` if it has
/// set none.
fn ring_size(all: Option<u64>, interfaces: usize) -> Option<u64> {
    if all.is_none() && interfaces <= DEFAULT_RING_INTERFACES_MAX {
        return None;
    }
    let rings = 2 * interfaces.max(1) as u64;
    Some((all.unwrap_or(ALL_RINGS_SIZE) / rings).max(RING_SIZE_MIN))
}
