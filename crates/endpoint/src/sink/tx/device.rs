//! The output interface, and the socket used to send.
//!
//! Without the host's queueing discipline (`qdisc=no`), frames are sent by an AF_XDP ring or by a
//! packet socket, with the same effect. Only the packet socket can send through the queueing
//! discipline. The final report names the transmitter in use.

use super::ring::Ring;
use crate::{Failure, Opening, interface};
use std::sync::Arc;
use std::time::Duration;
use sys::memory::Lender;
use sys::net::{Interface, RouteSocket};
use sys::packet::{PacketSender, Qdisc, SendReport};
use sys::steps::Resource;
use wire::link::LinkType;

/// An output interface with its transmitter.
#[derive(Debug)]
pub(super) struct TxDevice {
    pub(super) transmitter: Transmitter,
    /// Name in the request.
    pub(super) name: String,
    /// Link type of its frames.
    pub(super) link: LinkType,
}

/// The transmitter of a device.
#[derive(Debug)]
pub(super) enum Transmitter {
    /// A packet socket.
    Socket(PacketSender),
    /// An AF_XDP ring.
    Ring(Box<Ring>),
}

impl TxDevice {
    /// Opens the requested interface: `queued` selects the queueing discipline, `by` the kind of
    /// socket.
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
            let step = |what| opening.steps.announce(Resource::Descriptor, what);
            step("a netlink socket").map_err(failed)?;
            let (found, link) = match name {
                "" => interface::only(CALL)?,
                name => interface::named(CALL, name)?,
            };
            let name = if name.is_empty() { &found.name } else { name };
            step("a socket that sends").map_err(failed)?;
            let ring = match (qdisc, by) {
                (Qdisc::Through, _) | (_, "packet") => None,
                (_, "xdp") => Some(ring(&found, link, opening.lent).map_err(failed)?),
                _ => ring(&found, link, opening.lent).ok(),
            };
            let transmitter = match ring {
                Some(ring) => Transmitter::Ring(Box::new(ring)),
                None => {
                    Transmitter::Socket(PacketSender::open(found.index, qdisc).map_err(failed)?)
                }
            };
            Ok(Self { transmitter, name: name.to_owned(), link })
        })
    }

    /// Sends frames in order until one is not accepted.
    pub(super) fn send(&mut self, frames: &[&[u8]]) -> SendReport {
        match &mut self.transmitter {
            Transmitter::Socket(sender) => sender.send(frames),
            Transmitter::Ring(ring) => ring.send(frames),
        }
    }

    /// Drops the frame that was not accepted. The caller sends the frames after it again.
    pub(super) fn skip(&mut self) {
        if let Transmitter::Ring(ring) = &mut self.transmitter {
            // A broken ring fails at the next send.
            let _ = ring.skip();
        }
    }

    /// Waits for up to `limit` until the socket has room; returns false on a timeout. Returns true
    /// at once for an AF_XDP ring, which is not polled.
    pub(super) fn wait_writable(&self, limit: Duration) -> bool {
        match &self.transmitter {
            Transmitter::Socket(sender) => sys::poll::writable(sender, limit),
            // Polling an AF_XDP socket triggers transmission, and its errors would be lost.
            Transmitter::Ring(_) => true,
        }
    }

    /// Returns true if frames of this link type can be sent.
    pub(super) fn accepts(&self, link: LinkType) -> bool {
        let raw = [LinkType::RAW, LinkType::IPV4, LinkType::IPV6];
        link == self.link || self.link == LinkType::RAW && raw.contains(&link)
    }
}

/// Opens a ring on an interface: over memory lent by a source if it can be shared, which avoids
/// copies, else over memory of its own.
fn ring(found: &Interface, link: LinkType, lent: &[Arc<dyn Lender>]) -> sys::Result<Ring> {
    if link != LinkType::ETHERNET {
        let target = format!("interface {}, which has no Ethernet header", found.name);
        return Err(sys::Error::new("bind", target, EOPNOTSUPP));
    }
    let shared = lent.iter().filter_map(sys::xdp::Frames::from_lender);
    for frames in shared {
        if let Ok(ring) = Ring::open(&frames, found, RouteSocket::open()?) {
            return Ok(ring);
        }
    }
    Ring::with_own_memory(found, RouteSocket::open()?)
}

/// Name of the call in failures.
const CALL: &str = "send through";
const EOPNOTSUPP: i32 = rustix::io::Errno::OPNOTSUPP.raw_os_error();
