//! The XDP program that leads frames of a queue to the socket of that queue.
//!
//! It counts, for each queue, what it led there and what went on to the host because nobody had the
//! queue; and it writes the time before each frame that it leads, where the device has room for
//! that ([`Frames`](super::Frames) of eight bytes, monotonic). The counters are the only witness of
//! what was seen that is not ours (CONTRACT 19).

use super::receiver::Receiver;
use super::socket::Socket;
use crate::bpf::{Kind, Link, Load, LoadError, Map, Program, XdpMode};
use crate::error::{Error, Result};
use crate::memory::Mapping;
use std::os::fd::{AsFd as _, AsRawFd as _};

/// Bytes of the counters of a queue: a cache line.
const LINE: u32 = 64;

/// A map of sockets by queue, and the program that redirects to them. A frame of a queue without a
/// socket goes on to the host.
#[derive(Debug)]
pub struct Redirect {
    sockets: Map,
    program: Program,
    counters: Mapping,
    queues: u32,
}

/// What the program has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Led {
    /// Frames that it led to sockets, whatever became of them there.
    pub led: u64,
    /// Frames of queues without a socket, which went on to the host.
    pub passed: u64,
}

impl Redirect {
    /// Bytes of the time, in ns of the monotonic clock, that stand before a frame.
    pub const STAMP: usize = 8;

    /// Makes both; nothing is attached.
    pub fn load(name: &str, queues: u32, fragments: bool) -> std::result::Result<Self, LoadError> {
        let refused = |error: Error| LoadError { error, log: String::new(), missing: Vec::new() };
        let queues = queues.clamp(1, QUEUES_MAX);
        let sockets = Map::xdp_sockets(name, queues).map_err(refused)?;
        let counters = Map::array(name, queues * LINE, 1, true).map_err(refused)?;
        let code = code(sockets.as_fd().as_raw_fd(), counters.as_fd().as_raw_fd(), queues);
        let program = Load { fragments, ..Load::new(Kind::Xdp, name, &code) }.load()?;
        let counters = counters.map().map_err(refused)?;
        Ok(Self { sockets, program, counters, queues })
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

    /// From now on frames of this queue go to this receiver.
    pub fn lead_to(&self, queue: u32, receiver: &Receiver) -> Result<()> {
        self.lead(queue, receiver.socket())
    }

    /// From now on frames of this queue go to the host.
    pub fn release(&self, queue: u32) -> Result<()> {
        self.sockets.remove(&queue.to_ne_bytes()).map(drop)
    }

    /// What was counted so far, all queues together.
    #[must_use]
    pub fn counted(&self) -> Led {
        let mut all = Led::default();
        for queue in 0..self.queues as usize {
            let word = |at| self.counters.word(queue * LINE as usize + at).unwrap_or(0);
            all.led += word(0);
            all.passed += word(8);
        }
        all
    }
}

/// More queues than any device has.
const QUEUES_MAX: u32 = 4096;

/// An instruction.
const fn op(code: u8, target: u8, source: u8, offset: i16, value: i32) -> [u8; 8] {
    let ([a, b], [c, d, e, f]) = (offset.to_le_bytes(), value.to_le_bytes());
    [code, source << 4 | target, a, b, c, d, e, f]
}

/// In C:
///
/// ```c
/// if (ctx->rx_queue_index >= queues) return XDP_PASS;
/// counter = &counters[ctx->rx_queue_index];
/// answer = bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
/// if (answer != XDP_REDIRECT) { counter->passed++; return answer; }
/// if (!bpf_xdp_adjust_meta(ctx, -8)) { now = bpf_ktime_get_ns(); *(u64 *)ctx->data_meta = now; }
/// counter->led++; return answer;
/// ```
fn code(sockets: i32, counters: i32, queues: u32) -> Vec<u8> {
    // Offsets in `struct xdp_md`, answers, numbers of helpers.
    const DATA: i16 = 0;
    const DATA_META: i16 = 8;
    const QUEUE: i16 = 16;
    const PASS: i32 = 2;
    const REDIRECT: i32 = 4;
    const KTIME_GET_NS: i32 = 5;
    const REDIRECT_MAP: i32 = 51;
    const ADJUST_META: i32 = 54;
    // How `ld_imm64` names a map, and the first value of a map.
    const MAP: u8 = 1;
    const VALUE: u8 = 2;
    const LOAD: u8 = 0x61;
    const MOVE: u8 = 0xbf;
    const SET: u8 = 0xb7;
    const CALL: u8 = 0x85;
    let slots = [
        op(MOVE, 6, 1, 0, 0),
        op(LOAD, 7, 1, QUEUE, 0),
        op(0x35, 7, 0, 30, queues.cast_signed()), // if r7 >= queues goto the end
        op(0x18, 1, MAP, 0, sockets),
        op(0, 0, 0, 0, 0),
        op(MOVE, 2, 7, 0, 0),
        op(SET, 3, 0, 0, PASS),
        op(CALL, 0, 0, 0, REDIRECT_MAP),
        op(MOVE, 8, 0, 0, 0),
        op(0x67, 7, 0, 0, LINE.trailing_zeros().cast_signed()), // r7 <<= 6
        op(0x18, 9, VALUE, 0, counters),
        op(0, 0, 0, 0, 0),
        op(0x0f, 9, 7, 0, 0),         // r9 += r7
        op(0x55, 8, 0, 15, REDIRECT), // if r8 != XDP_REDIRECT goto passed
        op(MOVE, 1, 6, 0, 0),
        op(SET, 2, 0, 0, -8),
        op(CALL, 0, 0, 0, ADJUST_META),
        op(0x55, 0, 0, 7, 0), // if r0 != 0 goto led
        op(CALL, 0, 0, 0, KTIME_GET_NS),
        op(LOAD, 1, 6, DATA_META, 0),
        op(LOAD, 2, 6, DATA, 0),
        op(MOVE, 3, 1, 0, 0),
        op(0x07, 3, 0, 0, 8), // r3 += 8
        op(0x2d, 3, 2, 1, 0), // if r3 > r2 goto led
        op(0x7b, 1, 0, 0, 0), // *(u64 *)r1 = r0
        op(SET, 1, 0, 0, 1),  // led:
        op(0xdb, 9, 1, 0, 0), // lock *(u64 *)(r9 + 0) += r1
        op(MOVE, 0, 8, 0, 0),
        op(0x95, 0, 0, 0, 0),
        op(SET, 1, 0, 0, 1),  // passed:
        op(0xdb, 9, 1, 8, 0), // lock *(u64 *)(r9 + 8) += r1
        op(MOVE, 0, 8, 0, 0),
        op(0x95, 0, 0, 0, 0),
        op(SET, 0, 0, 0, PASS), // the end
        op(0x95, 0, 0, 0, 0),
    ];
    slots.concat()
}
