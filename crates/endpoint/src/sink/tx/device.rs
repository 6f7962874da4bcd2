//! The output interface, and the socket or ring used to send.
//!
//! Only a packet socket can send frames through the host's queueing discipline. If frames bypass
//! the queueing discipline (`qdisc=no`), an AF_XDP ring and a packet socket have the same effect.
//! The final report names the transmitter in use.

use super::ring::XdpTxRing;
use crate::{Failure, OpenArguments, interface};
use std::sync::Arc;
use std::time::Duration;
use sys::memory::SegmentLender;
use sys::net::{Interface, RouteSocket};
use sys::packet::{PacketSender, QdiscMode, SendReport};
use sys::rollback::StepResource;
use wire::link::LinkType;

/// An output interface, with the socket or ring that sends its frames.
#[derive(Debug)]
pub(super) struct TxDevice {
    pub(super) transmitter: Transmitter,
    /// Name of the interface as in the request.
    pub(super) name: String,
    /// Link type of the interface's frames.
    pub(super) link: LinkType,
}

/// The socket or ring through which a device sends frames.
#[derive(Debug)]
pub(super) enum Transmitter {
    /// A packet socket that sends the frames.
    Socket(PacketSender),
    /// An AF_XDP ring that sends the frames.
    Ring(Box<XdpTxRing>),
}

impl TxDevice {
    /// Opens the requested interface or, if the request names none, the only interface. `queued` is
    /// true if frames pass through the queueing discipline. `by` is the argument that selects the
    /// transmitter, such as `xdp`.
    pub(super) fn open(
        opening: &OpenArguments<'_>,
        (queued, by): (bool, &str),
    ) -> Result<Self, Failure> {
        let arguments = opening.arguments;
        let name = arguments.text("interface").unwrap_or_default();
        let qdisc = if queued { QdiscMode::Through } else { QdiscMode::Bypass };
        if by == "xdp" && qdisc == QdiscMode::Through {
            let why = "AF_XDP bypasses the queueing discipline";
            return Err(
                Failure::new(SEND_VERB, name, why).with_hint("write `qdisc=no` with `by=xdp`")
            );
        }
        interface::run_in_namespace(arguments.text("netns"), || {
            let failed = |error| interface::socket_failure(SEND_VERB, name, &error);
            let step =
                |what| opening.rollback_log.announce_creation(StepResource::Descriptor, what);
            step("a netlink socket").map_err(failed)?;
            let (found, link) = match name {
                "" => interface::find_only_interface(SEND_VERB)?,
                name => interface::find_interface_by_name(SEND_VERB, name)?,
            };
            let name = if name.is_empty() { &found.name } else { name };
            step("a socket that sends").map_err(failed)?;
            let ring = match (qdisc, by) {
                (QdiscMode::Through, _) | (_, "packet") => None,
                (_, "xdp") => Some(open_ring(&found, link, opening.lent).map_err(failed)?),
                _ => open_ring(&found, link, opening.lent).ok(),
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

    /// Sends frames in order until the kernel rejects one.
    pub(super) fn send(&mut self, frames: &[&[u8]]) -> SendReport {
        match &mut self.transmitter {
            Transmitter::Socket(sender) => sender.send(frames),
            Transmitter::Ring(ring) => ring.send(frames),
        }
    }

    /// Drops the frame that the device has rejected from the AF_XDP ring, with all frames after it.
    /// The caller must send the frames after it again. Does nothing for a packet socket.
    pub(super) fn drop_rejected_frame(&mut self) {
        if let Transmitter::Ring(ring) = &mut self.transmitter {
            // A broken ring fails at the next send.
            let _ = ring.drop_rejected_frame();
        }
    }

    /// Waits until the socket has room, for at most `limit`; returns false on a timeout. For an
    /// AF_XDP ring, which cannot be polled, returns true immediately.
    pub(super) fn wait_until_writable(&self, limit: Duration) -> bool {
        match &self.transmitter {
            Transmitter::Socket(sender) => sys::poll::wait_until_writable(sender, limit),
            // Polling an AF_XDP socket triggers transmission, and its errors would be lost.
            Transmitter::Ring(_) => true,
        }
    }

    /// Returns true if frames of this link type can be sent.
    pub(super) fn can_send_link_type(&self, link: LinkType) -> bool {
        let raw = [LinkType::RAW, LinkType::IPV4, LinkType::IPV6];
        link == self.link || self.link == LinkType::RAW && raw.contains(&link)
    }
}

/// Opens an AF_XDP ring on an interface. The ring shares the memory of a source in `lent` if
/// possible, which avoids copies. Otherwise, it allocates its own memory. Fails if the interface
/// has no Ethernet header.
fn open_ring(
    found: &Interface,
    link: LinkType,
    lent: &[Arc<dyn SegmentLender>],
) -> sys::Result<XdpTxRing> {
    if link != LinkType::ETHERNET {
        let target = format!("interface {}, which has no Ethernet header", found.name);
        return Err(sys::Error::new("bind", target, EOPNOTSUPP));
    }
    let shared = lent.iter().filter_map(sys::xdp::Frames::from_lender);
    for frames in shared {
        if let Ok(ring) = XdpTxRing::open(&frames, found, RouteSocket::open()?) {
            return Ok(ring);
        }
    }
    XdpTxRing::open_with_own_memory(found, RouteSocket::open()?)
}

/// Verb in failure messages of the sink, as in "cannot send through eth0".
const SEND_VERB: &str = "send through";
const EOPNOTSUPP: i32 = rustix::io::Errno::OPNOTSUPP.raw_os_error();
