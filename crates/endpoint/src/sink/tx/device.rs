//! The interface that frames leave through, and the way into it.
//!
//! There are two ways past the queue of what the host sends (`qdisc=no`), which mean the same: a
//! socket of AF_XDP, whose ring the kernel reads, and a packet socket. Through the queue there is
//! the packet socket alone. Which one it became is told at the end.

use super::ring::Ring;
use crate::{Failure, Opening, interface};
use std::sync::Arc;
use std::time::Duration;
use sys::memory::Lender;
use sys::net::{Interface, RouteSocket};
use sys::packet::{PacketSender, Qdisc, SendReport};
use sys::steps::Resource;
use wire::link::LinkType;

/// An interface with the way into it.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) way: Way,
    /// The name in the request.
    pub(super) name: String,
    /// The link type of its frames.
    pub(super) link: LinkType,
}

/// The path of frames into the device.
#[derive(Debug)]
pub(super) enum Way {
    /// A packet socket.
    Socket(PacketSender),
    /// A ring of AF_XDP.
    Ring(Box<Ring>),
}

impl Device {
    /// Opens the way into the interface that the request names: through its queue or not, and by
    /// what.
    pub(super) fn open(opening: &Opening<'_>, (queued, by): (bool, &str)) -> Result<Self, Failure> {
        let arguments = opening.arguments;
        let name = arguments.text("interface").unwrap_or_default();
        let qdisc = if queued { Qdisc::Through } else { Qdisc::Bypass };
        if by == "xdp" && qdisc == Qdisc::Through {
            let why = "AF_XDP knows no queue of what the host sends";
            return Err(Failure::new(CALL, name, why).hint("with `by=xdp` goes `qdisc=no`"));
        }
        interface::within(arguments.text("netns"), || {
            let failed = |error| interface::failed(CALL, name, &error);
            let step = |what| opening.steps.take(Resource::Descriptor, what);
            step("a netlink socket").map_err(failed)?;
            let (found, link) = interface::named(CALL, name)?;
            step("a socket that sends").map_err(failed)?;
            let ring = match (qdisc, by) {
                (Qdisc::Through, _) | (_, "packet") => None,
                (_, "xdp") => Some(ring(&found, link, opening.lent).map_err(failed)?),
                _ => ring(&found, link, opening.lent).ok(),
            };
            let way = match ring {
                Some(ring) => Way::Ring(Box::new(ring)),
                None => Way::Socket(PacketSender::open(found.index, qdisc).map_err(failed)?),
            };
            Ok(Self { way, name: name.to_owned(), link })
        })
    }

    /// Sends frames in their order until one does not go.
    pub(super) fn send(&mut self, frames: &[&[u8]]) -> SendReport {
        match &mut self.way {
            Way::Socket(sender) => sender.send(frames),
            Way::Ring(ring) => ring.send(frames),
        }
    }

    /// The frame that did not go is dropped; those behind it are to be sent again.
    pub(super) fn skip(&mut self) {
        if let Way::Ring(ring) = &mut self.way {
            // A ring that makes no sense says so when the next frame is sent.
            let _ = ring.skip();
        }
    }

    /// Waits until there may be room, or for so long; answers whether it looks so.
    pub(super) fn is_writable(&self, limit: Duration) -> bool {
        match &self.way {
            Way::Socket(sender) => sys::poll::writable(sender, limit),
            // To wait for such a socket makes the kernel send, and nobody hears what it refused.
            Way::Ring(_) => true,
        }
    }

    /// Returns true if frames of this link type can be sent through it.
    pub(super) fn takes(&self, link: LinkType) -> bool {
        let raw = [LinkType::RAW, LinkType::IPV4, LinkType::IPV6];
        link == self.link || self.link == LinkType::RAW && raw.contains(&link)
    }
}

/// A ring into an interface: over memory that a source lends, if it can be shared, so that what
/// lies there need not be copied; else over memory of its own.
fn ring(found: &Interface, link: LinkType, lent: &[Arc<dyn Lender>]) -> sys::Result<Ring> {
    if link != LinkType::ETHERNET {
        let target = format!("interface {}, which has no Ethernet header", found.name);
        return Err(sys::Error::new("bind", target, NOT_SUPPORTED));
    }
    let shared = lent.iter().filter_map(sys::xdp::Frames::of);
    for frames in shared {
        if let Ok(ring) = Ring::open(&frames, found, RouteSocket::open()?) {
            return Ok(ring);
        }
    }
    Ring::own(found, RouteSocket::open()?)
}

/// The call, for failures.
const CALL: &str = "send through";
/// EOPNOTSUPP.
const NOT_SUPPORTED: i32 = rustix::io::Errno::OPNOTSUPP.raw_os_error();
