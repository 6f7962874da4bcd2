//! The XDP program that leads frames of a queue to the socket of that queue.

use super::socket::Socket;
use crate::bpf::{Kind, Link, Load, LoadError, Map, Program, XdpMode};
use crate::error::{Error, Result};
use std::os::fd::{AsFd as _, AsRawFd as _};

/// A map of sockets by queue, and the program that redirects to them. A frame of a queue without a
/// socket goes on to the host.
#[derive(Debug)]
pub struct Redirect {
    sockets: Map,
    program: Program,
}

impl Redirect {
    /// Makes both; nothing is attached.
    pub fn load(name: &str, queues: u32, fragments: bool) -> std::result::Result<Self, LoadError> {
        let refused = |error: Error| LoadError { error, log: String::new(), missing: Vec::new() };
        let sockets = Map::xdp_sockets(name, queues).map_err(refused)?;
        let code = code(sockets.as_fd().as_raw_fd());
        let program = Load { fragments, ..Load::new(Kind::Xdp, name, &code) }.load()?;
        Ok(Self { sockets, program })
    }

    /// The program, to be put at an interface by a link.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Puts the program at an interface.
    pub fn attach(&self, interface: u32, mode: XdpMode) -> Result<Link> {
        Link::xdp(&self.program, interface, mode)
    }

    /// From now on frames of this queue go to this socket.
    pub fn lead(&self, queue: u32, socket: &Socket) -> Result<()> {
        self.sockets.set_descriptor(queue, socket.as_fd())
    }

    /// From now on frames of this queue go to the host.
    pub fn release(&self, queue: u32) -> Result<()> {
        self.sockets.remove(&queue.to_ne_bytes()).map(drop)
    }
}

/// `return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS)`.
fn code(sockets: i32) -> Vec<u8> {
    /// Offset of `rx_queue_index` in `struct xdp_md`, XDP_PASS, number of the helper.
    const QUEUE: u8 = 16;
    const PASS: u8 = 2;
    const REDIRECT_MAP: u8 = 51;
    let [a, b, c, d] = sockets.to_le_bytes();
    let slots: [[u8; 8]; 6] = [
        // r2 = *(u32 *)(r1 + 16)
        [0x61, 0x12, QUEUE, 0, 0, 0, 0, 0],
        // r1 = the map, in two slots
        [0x18, 0x11, 0, 0, a, b, c, d],
        [0; 8],
        // r3 = 2
        [0xb7, 0x03, 0, 0, PASS, 0, 0, 0],
        [0x85, 0, 0, 0, REDIRECT_MAP, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    slots.concat()
}
