//! Socket filters for raw packet sockets: a program for frames as files store them, rewritten for
//! frames as the kernel holds them.
//!
//! In: the direction, a program for Ethernet frames with inline VLAN tags, a program for raw IP.
//! Out: one program for `SO_ATTACH_FILTER` on `AF_PACKET`, `SOCK_RAW`. For a frame in the kernel it
//! decides as the programs do for the same frame with its tag put back, so that running them again
//! behind the socket rejects nothing more. It may accept what they reject, never the reverse.
//! [SL §5.2, CONTRACT 1, 3 and 18]
//!
//! The kernel moves the outermost tag from the frame into the skb, on receive always, on transmit
//! where the device inserts tags, and `len` excludes it. The filter therefore contains the program
//! twice, behind a test for such a tag: as it is, and with its offsets shifted (see `tagged`). A
//! tagged frame has at least twelve bytes of addresses, since the kernel finds tags only behind a
//! complete Ethernet header.
//!
//! A test of the direction stands in front. Loopback shows every packet twice, outgoing and
//! incoming; the filter accepts one of the two. Device types without a program are accepted.
//!
//! One program per kind of device, not several alternatives: a load beyond the frame ends the whole
//! filter, so that a second program would not run.
//!
//! The kernel and [`ClassicProgram::run`] differ in one case: a load at X plus k wraps at 2³² in
//! the kernel and fails in `run`. Only an X of nearly 2³² reaches a byte of the frame in this way,
//! and then the kernel accepts too much.

mod reachability;
mod tagged;
mod writer;

use std::fmt;

use super::assemble::JumpLabel;
use super::insn::{ANCILLARY, code};
use super::link::LinkType;
use super::program::{ClassicProgram, INSTRUCTIONS_MAX, MEMORY_WORDS};
use tagged::TPIDS;
use writer::{CodeWriter, Offsets};

/// Return value for an accepted frame: all of it.
pub const WHOLE: u32 = u32::MAX;

/// The frames of an interface that are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received frames.
    Received,
    /// Sent frames.
    Sent,
    /// Frames sent to other hosts: none on loopback, where the receiver observes them.
    Elsewhere,
    /// Received and sent frames; on loopback each packet once.
    Both,
}

/// A program that cannot become a socket filter, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It jumps backward.
    Loops,
    /// It loads ancillary data, which is not available behind the socket.
    Ancillary {
        /// Index of the load.
        at: usize,
    },
    /// It leaves no scratch word for the tag.
    Scratch,
    /// It is too long with its two copies.
    TooLong {
        /// Number of instructions needed.
        length: usize,
    },
}

/// Builds the socket filter that accepts the frames of this direction that the programs accept:
/// `ethernet` for Ethernet and loopback devices, `raw` for devices whose frames begin with IP.
/// Without a program all frames of its kind are accepted.
pub fn socket_filter(
    direction: Direction,
    ethernet: Option<&ClassicProgram>,
    raw: Option<&ClassicProgram>,
) -> Result<ClassicProgram, Refusal> {
    [ethernet, raw].into_iter().flatten().try_for_each(fit)?;
    let mut lines = CodeWriter::default();
    match ethernet.or(raw) {
        None => {
            let pass = lines.pass;
            way(&mut lines, direction, pass, pass);
        }
        Some(_) => {
            let (types, type_in_a) = (lines.label(), lines.label());
            way(&mut lines, direction, types, type_in_a);
            lines.place(types);
            lines.load(known::HARDWARE_TYPE);
            lines.place(type_in_a);
            devices(&mut lines, ethernet, raw)?;
        }
    }
    let instructions = lines.done().map_err(|length| Refusal::TooLong { length })?;
    let length = instructions.len();
    ClassicProgram::new(instructions).map_err(|_| Refusal::TooLong { length })
}

/// Rewrites the program for Ethernet frames whose outermost tag lies beside the frame (`tagged`),
/// or for frames as files store them. Shifts and offsets have the language's meaning, not the
/// kernel's. The result returns [`WHOLE`] or 0.
pub fn copy_of(program: &ClassicProgram, tagged: bool) -> Result<ClassicProgram, Refusal> {
    fit(program)?;
    let mut lines = CodeWriter::default();
    lines.copy(program, if tagged { Offsets::Tagged } else { Offsets::Plain })?;
    let instructions = lines.done().map_err(|length| Refusal::TooLong { length })?;
    let length = instructions.len();
    ClassicProgram::new(instructions).map_err(|_| Refusal::TooLong { length })
}

/// Returns the link type of a device type (`ARPHRD_…`) for which [`socket_filter`] takes a program.
pub fn link_type(hardware_type: u16) -> Option<LinkType> {
    let of = |types: &[u16]| types.contains(&hardware_type);
    match () {
        () if of(&ETHERNET_TYPES) => Some(LinkType::EN10MB),
        () if of(&RAW_TYPES) => Some(LinkType::RAW),
        () => None,
    }
}

/// Loopback devices (`ARPHRD_LOOPBACK`).
const LOOPBACK: u16 = 772;
/// Device types with an Ethernet header: Ethernet, loopback.
const ETHERNET_TYPES: [u16; 2] = [1, LOOPBACK];
/// Device types without one: none, raw IP, PPP, and tunnels: IP in IP, IPv6, SIT, GRE, GRE over
/// IPv6.
const RAW_TYPES: [u16; 8] = [65534, 519, 512, 768, 769, 776, 778, 823];
/// Packet type of sent frames (`PACKET_OUTGOING`).
const OUTGOING: u32 = 4;

/// Offsets of ancillary loads that the kernel answers.
mod known {
    use super::ANCILLARY;

    pub(super) const PACKET_TYPE: u32 = ANCILLARY + 4;
    pub(super) const HARDWARE_TYPE: u32 = ANCILLARY + 28;
    pub(super) const VLAN_TCI: u32 = ANCILLARY + 44;
    pub(super) const VLAN_PRESENT: u32 = ANCILLARY + 48;
    pub(super) const VLAN_TPID: u32 = ANCILLARY + 60;
}

/// Rejects programs that cannot be copied.
fn fit(program: &ClassicProgram) -> Result<(), Refusal> {
    if program.loops() {
        return Err(Refusal::Loops);
    }
    let ancillary = program.instructions().iter().position(|instruction| {
        instruction.code & 0xe7 == code::LD | code::ABS && instruction.k >= ANCILLARY
    });
    ancillary.map_or(Ok(()), |at| Err(Refusal::Ancillary { at }))
}

/// Rejects frames of the other direction. Continues at `types`, or at `type_in_a` with the device
/// type in A.
fn way(lines: &mut CodeWriter, direction: Direction, types: JumpLabel, type_in_a: JumpLabel) {
    lines.load(known::PACKET_TYPE);
    let refuse = lines.refuse;
    match direction {
        Direction::Received => lines.equal(OUTGOING, refuse, types),
        Direction::Sent => lines.equal(OUTGOING, types, refuse),
        Direction::Elsewhere | Direction::Both => {
            let sent = lines.label();
            let received = if direction == Direction::Both { types } else { refuse };
            lines.equal(OUTGOING, sent, received);
            lines.place(sent);
            lines.load(known::HARDWARE_TYPE);
            lines.equal(LOOPBACK.into(), refuse, type_in_a);
        }
    }
}

/// Runs the program for the device type in A.
fn devices(
    lines: &mut CodeWriter,
    ethernet: Option<&ClassicProgram>,
    raw: Option<&ClassicProgram>,
) -> Result<(), Refusal> {
    let (pass, at_ethernet, at_raw) = (lines.pass, lines.label(), lines.label());
    for (program, types, at) in
        [(ethernet, &ETHERNET_TYPES[..], at_ethernet), (raw, &RAW_TYPES[..], at_raw)]
    {
        for kind in types.iter().filter(|_| program.is_some()) {
            let next = lines.label();
            lines.equal((*kind).into(), at, next);
            lines.place(next);
        }
    }
    lines.go(pass);
    if let Some(program) = ethernet {
        let (plain, tag, tagged) = (lines.label(), lines.label(), lines.label());
        lines.place(at_ethernet);
        lines.load(known::VLAN_PRESENT);
        lines.equal(0, plain, tag);
        lines.place(tag);
        lines.load(known::VLAN_TPID);
        for tpid in TPIDS {
            let next = lines.label();
            lines.equal(tpid, tagged, next);
            lines.place(next);
        }
        // No known kernel creates such a tag.
        lines.go(pass);
        lines.place(tagged);
        lines.copy(program, Offsets::Tagged)?;
        lines.place(plain);
        lines.copy(program, Offsets::Plain)?;
    }
    if let Some(program) = raw {
        lines.place(at_raw);
        lines.copy(program, Offsets::Plain)?;
    }
    Ok(())
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loops => write!(f, "its program has a loop, which the kernel does not take"),
            Self::Ancillary { at } => {
                write!(f, "instruction {at} of its program asks what only the kernel knows")
            }
            Self::Scratch => {
                write!(f, "its program leaves none of the {MEMORY_WORDS} scratch words free")
            }
            Self::TooLong { length } => write!(
                f,
                "its program for frames with and without a VLAN tag has {length} instructions, the \
                 kernel takes {INSTRUCTIONS_MAX}"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests;
