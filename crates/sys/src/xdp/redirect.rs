//! The XDP program that redirects the frames of a queue to its socket.
//!
//! For each queue, the program counts redirected frames and frames passed to the host for lack of a
//! socket. No other counters record the traffic that the program saw but did not redirect (CONTRACT
//! 19). If the device leaves room before a frame that is redirected, the program stores there the
//! data that the socket would not receive otherwise ([`FrameStamp`]): the time, and the VLAN tag
//! that the device stripped, if the driver reports it (`bpf_xdp_metadata_rx_vlan_tag`, Linux 6.8).

use super::receiver::XdpReceiver;
use super::socket::XdpSocket;
use crate::bpf::{
    License, Link, LoadError, LoadParameters, Map, Program, ProgramKind, XdpAttachment, XdpMode,
    find_kernel_function,
};
use crate::error::{Error, Result};
use crate::memory::Mapping;
use crate::packet::layout::VlanTag;
use std::os::fd::{AsFd as _, AsRawFd as _};

/// Size in bytes of a queue's counters: a cache line.
const COUNTERS_SIZE: u32 = 64;

/// A map of sockets by queue, and the XDP program that redirects frames to these sockets. Frames of
/// a queue without a socket pass to the host.
#[derive(Debug)]
pub struct XdpRedirect {
    sockets: Map,
    program: Program,
    /// Counters of the program that this module builds; `None` for a program built by the caller,
    /// which has its own counters.
    counters: Option<Mapping>,
    queues: u32,
}

/// The parameters that a program needs to ask the driver for a stripped VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagLookup {
    /// BTF id of the kernel function to call.
    pub function: i32,
    /// Index of the interface whose driver the program is bound to.
    pub interface: u32,
}

/// A function that builds a program to redirect frames to the sockets in the map, by queue number.
/// The program queries stripped VLAN tags only if the second argument is a [`TagLookup`].
pub type BuildRedirectProgramFn<'m, E> =
    &'m dyn Fn(&Map, Option<TagLookup>) -> std::result::Result<Program, E>;

/// Numbers of frames that the redirecting program has redirected or passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedirectCounts {
    /// Number of frames redirected to sockets, including frames for which a socket had no room.
    pub redirected: u64,
    /// Number of frames passed to the host because their queue had no socket.
    pub passed: u64,
}

/// Data that the redirecting program stores before a frame: time and VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameStamp {
    /// Time at which the program saw the frame, in ns of the monotonic clock; `None` if there is no
    /// stamp before the frame.
    pub time: Option<u64>,
    /// VLAN tag that the device stripped; `None` if there was none or the driver did not report it.
    pub tag: Option<VlanTag>,
}

impl FrameStamp {
    /// Size of a stamp in bytes. A stamp immediately precedes its frame.
    pub const BYTES: usize = 16;

    /// Reads the stamp from the bytes before a frame. Zeroes these bytes, so that the next frame in
    /// the same buffer does not appear to have this stamp.
    #[must_use]
    pub fn take(before: &mut [u8; Self::BYTES]) -> Self {
        let all = u128::from_ne_bytes(std::mem::take(before));
        // The tag is first in memory.
        let (tag, time) = match cfg!(target_endian = "little") {
            true => (all as u64, (all >> 64) as u64),
            false => ((all >> 64) as u64, all as u64),
        };
        let tag = (tag >> 32 == 1)
            .then(|| VlanTag { protocol: u16::from_be((tag >> 16) as u16), control: tag as u16 });
        Self { time: (time != 0).then_some(time), tag }
    }
}

impl XdpRedirect {
    /// Creates the map of sockets and the XDP program that redirects frames to them, without
    /// attaching the program. `queues` is the number of queues.
    pub fn load(name: &str, queues: u32, fragments: bool) -> std::result::Result<Self, LoadError> {
        Self::create(name, queues, fragments, None)
    }

    /// Creates the map and a program, and attaches the program to an interface. Prefers native
    /// mode, and a program that queries the driver for VLAN tags. Before each attempt to attach,
    /// calls `ready`, which can put sockets into the map before the first frame arrives.
    pub fn create_and_attach<E: From<LoadError> + From<Error>>(
        (name, queues, fragments): (&str, u32, bool),
        interface: u32,
        ready: impl Fn(&Self) -> std::result::Result<(), E>,
    ) -> std::result::Result<(Self, XdpAttachment), E> {
        let make = |tag_lookup| Ok(Self::create(name, queues, fragments, tag_lookup)?);
        Self::attach_first_accepted_program(interface, &make, &ready)
    }

    /// Attaches a program that `make` builds; otherwise like [`XdpRedirect::create_and_attach`].
    pub fn create_and_attach_with<E: From<LoadError> + From<Error>>(
        (name, queues): (&str, u32),
        make: BuildRedirectProgramFn<'_, E>,
        interface: u32,
        ready: impl Fn(&Self) -> std::result::Result<(), E>,
    ) -> std::result::Result<(Self, XdpAttachment), E> {
        let queues = queues.clamp(1, QUEUES_MAX);
        let made = |tag_lookup| {
            let sockets = Map::create_xdp_socket_array(name, queues)?;
            let program = make(&sockets, tag_lookup)?;
            Ok(Self { sockets, program, counters: None, queues })
        };
        Self::attach_first_accepted_program(interface, &made, &ready)
    }

    fn attach_first_accepted_program<E: From<LoadError> + From<Error>>(
        interface: u32,
        make: &dyn Fn(Option<TagLookup>) -> std::result::Result<Self, E>,
        ready: &dyn Fn(&Self) -> std::result::Result<(), E>,
    ) -> std::result::Result<(Self, XdpAttachment), E> {
        let function = find_kernel_function("bpf_xdp_metadata_rx_vlan_tag");
        let tag_lookup =
            function.map(|function| TagLookup { function: function.cast_signed(), interface });
        if let Some(Ok(redirect)) = tag_lookup.map(|tag_lookup| make(Some(tag_lookup))) {
            ready(&redirect)?;
            if let Ok(link) = redirect.attach(interface, XdpMode::Native) {
                return Ok((
                    redirect,
                    XdpAttachment { link, mode: XdpMode::Native, refused: None },
                ));
            }
        }
        let made = make(None)?;
        ready(&made)?;
        let attached = Link::attach_xdp_in_any_mode(&made.program, interface)?;
        Ok((made, attached))
    }

    fn create(
        name: &str,
        queues: u32,
        fragments: bool,
        tag_lookup: Option<TagLookup>,
    ) -> std::result::Result<Self, LoadError> {
        let refused = |error: Error| LoadError { error, log: String::new(), missing: Vec::new() };
        let queues = queues.clamp(1, QUEUES_MAX);
        let sockets = Map::create_xdp_socket_array(name, queues).map_err(refused)?;
        let counters = Map::array(name, queues * COUNTERS_SIZE, 1, true).map_err(refused)?;
        let maps = (sockets.as_fd().as_raw_fd(), counters.as_fd().as_raw_fd());
        let code = assemble_redirect_program(
            maps,
            queues,
            tag_lookup.map(|tag_lookup| tag_lookup.function),
        );
        let license = if tag_lookup.is_some() { License::MitOrGpl } else { License::ApacheOrMit };
        let device = tag_lookup.map(|tag_lookup| tag_lookup.interface);
        let load = LoadParameters {
            fragments,
            license,
            device,
            ..LoadParameters::new(ProgramKind::Xdp, name, &code)
        };
        let program = load.load()?;
        let counters = Some(counters.map().map_err(refused)?);
        Ok(Self { sockets, program, counters, queues })
    }

    /// Returns the redirecting program.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Attaches the program to an interface.
    pub fn attach(&self, interface: u32, mode: XdpMode) -> Result<Link> {
        Link::attach_xdp(&self.program, interface, mode)
    }

    /// Redirects frames of a queue to a socket from now on.
    pub fn redirect_to_socket(&self, queue: u32, socket: &XdpSocket) -> Result<()> {
        self.sockets.set_descriptor(queue, socket.as_fd())
    }

    /// Redirects frames of a queue to a receiver from now on.
    pub fn redirect_to_receiver(&self, queue: u32, receiver: &XdpReceiver) -> Result<()> {
        self.redirect_to_socket(queue, receiver.socket())
    }

    /// Passes frames of a queue to the host from now on.
    pub fn pass_to_host(&self, queue: u32) -> Result<()> {
        self.sockets.clear(queue)
    }

    /// Returns the counters, summed over all queues; all 0 if the program was built by the caller.
    #[must_use]
    pub fn counts(&self) -> RedirectCounts {
        let mut all = RedirectCounts::default();
        for queue in 0..self.queues as usize {
            let word = |at| {
                let counters = self.counters.as_ref();
                counters.and_then(|all| all.word(queue * COUNTERS_SIZE as usize + at)).unwrap_or(0)
            };
            all.redirected += word(0);
            all.passed += word(8);
        }
        all
    }
}

/// Maximum number of queues, more than any device has.
const QUEUES_MAX: u32 = 4096;

/// Encodes one eBPF instruction.
const fn encode_insn(code: u8, target: u8, source: u8, offset: i16, value: i32) -> [u8; 8] {
    let ([a, b], [c, d, e, f]) = (offset.to_le_bytes(), value.to_le_bytes());
    [code, source << 4 | target, a, b, c, d, e, f]
}

/// Assembles the redirecting program. Its C equivalent:
///
/// ```c
/// if (ctx->rx_queue_index >= queues) return XDP_PASS;
/// counter = &counters[ctx->rx_queue_index];
/// answer = bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
/// if (answer != XDP_REDIRECT) { counter->passed++; return answer; }
/// if (bpf_xdp_metadata_rx_vlan_tag(ctx, &protocol, &control)) tag = 0;
/// else tag = 1ull << 32 | protocol << 16 | control;
/// if (!bpf_xdp_adjust_meta(ctx, -16)) {
///     now = bpf_ktime_get_ns();
///     ((u64 *)ctx->data_meta)[0] = tag; ((u64 *)ctx->data_meta)[1] = now;
/// }
/// counter->redirected++; return answer;
/// ```
fn assemble_redirect_program(
    (sockets, counters): (i32, i32),
    queues: u32,
    tags: Option<i32>,
) -> Vec<u8> {
    // Offsets in `struct xdp_md`, return values, helper numbers.
    const XDP_MD_DATA_OFFSET: i16 = 0;
    const XDP_MD_DATA_META_OFFSET: i16 = 8;
    const XDP_MD_RX_QUEUE_OFFSET: i16 = 16;
    const XDP_PASS: i32 = 2;
    const XDP_REDIRECT: i32 = 4;
    const BPF_FUNC_KTIME_GET_NS: i32 = 5;
    const BPF_FUNC_REDIRECT_MAP: i32 = 51;
    const BPF_FUNC_XDP_ADJUST_META: i32 = 54;
    // Source registers of `ld_imm64` for a map and for a map's value.
    const BPF_PSEUDO_MAP_FD: u8 = 1;
    const BPF_PSEUDO_MAP_VALUE: u8 = 2;
    let begin = [
        encode_insn(OP_MOV_REG, 6, 1, 0, 0),
        encode_insn(OP_LDX_W, 7, 1, XDP_MD_RX_QUEUE_OFFSET, 0),
        encode_insn(0xa5, 7, 0, 2, queues.cast_signed()), // if r7 < queues goto on
        encode_insn(OP_MOV_IMM, 0, 0, 0, XDP_PASS),
        encode_insn(OP_EXIT, 0, 0, 0, 0),
        encode_insn(0x18, 1, BPF_PSEUDO_MAP_FD, 0, sockets), // on:
        encode_insn(0, 0, 0, 0, 0),
        encode_insn(OP_MOV_REG, 2, 7, 0, 0),
        encode_insn(OP_MOV_IMM, 3, 0, 0, XDP_PASS),
        encode_insn(OP_CALL, 0, 0, 0, BPF_FUNC_REDIRECT_MAP),
        encode_insn(OP_MOV_REG, 8, 0, 0, 0),
        encode_insn(0x67, 7, 0, 0, COUNTERS_SIZE.trailing_zeros().cast_signed()), // r7 <<= 6
        encode_insn(0x18, 9, BPF_PSEUDO_MAP_VALUE, 0, counters),
        encode_insn(0, 0, 0, 0, 0),
        encode_insn(0x0f, 9, 7, 0, 0),            // r9 += r7
        encode_insn(0x15, 8, 0, 4, XDP_REDIRECT), // if r8 == XDP_REDIRECT goto redirected
        encode_insn(OP_MOV_IMM, 1, 0, 0, 1),
        encode_insn(0xdb, 9, 1, 8, 0), // lock *(u64 *)(r9 + 8) += r1
        encode_insn(OP_MOV_REG, 0, 8, 0, 0),
        encode_insn(OP_EXIT, 0, 0, 0, 0),
        encode_insn(OP_MOV_IMM, 7, 0, 0, 0), // redirected: no tag
    ];
    let end = [
        encode_insn(OP_MOV_REG, 1, 6, 0, 0),
        encode_insn(OP_MOV_IMM, 2, 0, 0, -16),
        encode_insn(OP_CALL, 0, 0, 0, BPF_FUNC_XDP_ADJUST_META),
        encode_insn(0x55, 0, 0, 8, 0), // if r0 != 0 goto count
        encode_insn(OP_CALL, 0, 0, 0, BPF_FUNC_KTIME_GET_NS),
        encode_insn(OP_LDX_W, 1, 6, XDP_MD_DATA_META_OFFSET, 0),
        encode_insn(OP_LDX_W, 2, 6, XDP_MD_DATA_OFFSET, 0),
        encode_insn(OP_MOV_REG, 3, 1, 0, 0),
        encode_insn(0x07, 3, 0, 0, 16),      // r3 += 16
        encode_insn(0x2d, 3, 2, 2, 0),       // if r3 > r2 goto count
        encode_insn(0x7b, 1, 7, 0, 0),       // *(u64 *)(r1 + 0) = r7
        encode_insn(0x7b, 1, 0, 8, 0),       // *(u64 *)(r1 + 8) = r0
        encode_insn(OP_MOV_IMM, 1, 0, 0, 1), // count:
        encode_insn(0xdb, 9, 1, 0, 0),       // lock *(u64 *)(r9 + 0) += r1
        encode_insn(OP_MOV_REG, 0, 8, 0, 0),
        encode_insn(OP_EXIT, 0, 0, 0, 0),
    ];
    let lookup = tags.map(emit_tag_lookup);
    let lookup = lookup.as_ref().map_or(&[][..], |code| &code[..]);
    [&begin[..], lookup, &end[..]].concat().concat()
}

/// Emits a call to the kernel function that returns the stripped tag, and leaves the tag in r7.
fn emit_tag_lookup(function: i32) -> [[u8; 8]; 15] {
    // Source register of a call of a kfunc.
    const BPF_PSEUDO_KFUNC_CALL: u8 = 2;
    [
        encode_insn(0x7a, 10, 0, -8, 0), // *(u64 *)(r10 - 8) = 0
        encode_insn(OP_MOV_REG, 1, 6, 0, 0),
        encode_insn(OP_MOV_REG, 2, 10, 0, 0),
        encode_insn(0x07, 2, 0, 0, -2), // r2 += -2
        encode_insn(OP_MOV_REG, 3, 10, 0, 0),
        encode_insn(0x07, 3, 0, 0, -4), // r3 += -4
        encode_insn(OP_CALL, 0, BPF_PSEUDO_KFUNC_CALL, 0, function),
        encode_insn(0x55, 0, 0, 7, 0),   // if r0 != 0 goto behind
        encode_insn(0x69, 7, 10, -2, 0), // r7 = *(u16 *)(r10 - 2)
        encode_insn(0x67, 7, 0, 0, 16),  // r7 <<= 16
        encode_insn(0x69, 1, 10, -4, 0), // r1 = *(u16 *)(r10 - 4)
        encode_insn(0x4f, 7, 1, 0, 0),   // r7 |= r1
        encode_insn(OP_MOV_IMM, 1, 0, 0, 1),
        encode_insn(0x67, 1, 0, 0, 32), // r1 <<= 32
        encode_insn(0x4f, 7, 1, 0, 0),  // r7 |= r1
    ]
}

const OP_LDX_W: u8 = 0x61;
const OP_MOV_REG: u8 = 0xbf;
const OP_MOV_IMM: u8 = 0xb7;
const OP_CALL: u8 = 0x85;
const OP_EXIT: u8 = 0x95;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_before_frame_is_read_once() {
        let mut before = [0; FrameStamp::BYTES];
        assert_eq!(FrameStamp::take(&mut before), FrameStamp::default());
        let word = 1_u64 << 32 | u64::from(0x8100_u16.to_be()) << 16 | 0x6007;
        before[..8].copy_from_slice(&word.to_ne_bytes());
        before[8..].copy_from_slice(&99_u64.to_ne_bytes());
        let tag = Some(VlanTag { protocol: 0x8100, control: 0x6007 });
        assert_eq!(FrameStamp::take(&mut before), FrameStamp { time: Some(99), tag });
        assert_eq!(FrameStamp::take(&mut before), FrameStamp::default());
    }
}
