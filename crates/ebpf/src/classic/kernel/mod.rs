//! The socket filter of a raw packet socket: a program for frames as files have them, rewritten for
//! frames as the kernel has them.
//!
//! In: which way frames go, what is asked of Ethernet frames with their VLAN tags in place, what is
//! asked of raw IP; out: one program for `SO_ATTACH_FILTER` on `AF_PACKET`, `SOCK_RAW`. It answers
//! for a frame in the kernel what the programs answer for the same frame after its tag has been put
//! back, so that who runs them again behind the socket finds nothing new to refuse. It may let
//! through what they refuse, never the other way round.          [SL §5.2, CONTRACT 1, 3 and 18]
//!
//! The kernel takes the outermost tag out of a frame into the skb, on its way in always, on its way
//! out where the device inserts tags itself, and `len` is without it. So the program stands there
//! twice, behind the question whether there is such a tag: as it is, and with its offsets moved
//! (see `tagged`). A tagged frame has twelve bytes of addresses at least, since the kernel only
//! finds tags behind an Ethernet header that is there.
//!
//! In front of both stands the direction. Loopback shows every packet twice, on its way out and on
//! its way in; one of the two is let through. Device types that nobody here has a program for are
//! let through.
//!
//! One program for a kind of device, and no list of which one must accept: a load beyond the frame
//! ends the whole filter, so that a second program would not be asked.
//!
//! Where kernel and [`Program::run`] differ: a load at X plus k wraps at 2³² in the kernel and is
//! refused by `run`. No offset of a frame is reached so unless X is nearly 2³² already, and then
//! the kernel lets through too much.

mod reach;
mod tagged;
mod write;

use std::fmt;

use super::insn::{ANCILLARY, code};
use super::lines::Label;
use super::link::LinkType;
use super::program::{INSTRUCTIONS_MAX, MEMORY_WORDS, Program};
use tagged::TPIDS;
use write::{Lines, Offsets};

/// What the program answers for a frame that it lets through: all of it.
pub const WHOLE: u32 = u32::MAX;

/// Which frames of an interface are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What the host receives.
    Received,
    /// What it sends.
    Sent,
    /// What it sends elsewhere: nothing of loopback, where whoever receives it observes it.
    Elsewhere,
    /// Both; on loopback each packet once.
    Both,
}

/// Why a program cannot become a socket filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It jumps back.
    Loops,
    /// It asks what the kernel knows beside the frame, which is not known behind the socket.
    Ancillary {
        /// The place of the load.
        at: usize,
    },
    /// No scratch word is left for what the tag costs.
    Scratch,
    /// It is too long, once for tagged frames and once for others.
    TooLong {
        /// How many instructions there would be.
        length: usize,
    },
}

/// The socket filter that lets through the frames of this direction that the programs accept:
/// `ethernet` those of Ethernet and loopback devices, `raw` those of devices whose frames begin
/// with IP. Of what has no program nothing is asked.
pub fn socket_filter(
    direction: Direction,
    ethernet: Option<&Program>,
    raw: Option<&Program>,
) -> Result<Program, Refusal> {
    [ethernet, raw].into_iter().flatten().try_for_each(fit)?;
    let mut lines = Lines::default();
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
    Program::new(instructions).map_err(|_| Refusal::TooLong { length })
}

/// The program for Ethernet frames whose outermost tag, of a type that the kernel takes out, lies
/// beside the frame (`tagged`), or for frames that are as files have them. Shifts and offsets are
/// what the language says, not what the kernel makes of them. It answers [`WHOLE`] or 0.
pub fn copy_of(program: &Program, tagged: bool) -> Result<Program, Refusal> {
    fit(program)?;
    let mut lines = Lines::default();
    lines.copy(program, if tagged { Offsets::Tagged } else { Offsets::Plain })?;
    let instructions = lines.done().map_err(|length| Refusal::TooLong { length })?;
    let length = instructions.len();
    Program::new(instructions).map_err(|_| Refusal::TooLong { length })
}

/// The link type of frames of this kind of device (`ARPHRD_…`), where it is one that
/// [`socket_filter`] has a program for.
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
/// What has an Ethernet header: Ethernet, loopback.
const ETHERNET_TYPES: [u16; 2] = [1, LOOPBACK];
/// What has none: none, raw IP, PPP, and the tunnels of IP in IP, in IPv6, SIT, GRE, GRE over IPv6.
const RAW_TYPES: [u16; 8] = [65534, 519, 512, 768, 769, 776, 778, 823];
/// The packet type of what the host sends (`PACKET_OUTGOING`).
const OUTGOING: u32 = 4;

/// What the kernel answers beside the frame, by its place behind [`ANCILLARY`].
mod known {
    use super::ANCILLARY;

    pub(super) const PACKET_TYPE: u32 = ANCILLARY + 4;
    pub(super) const HARDWARE_TYPE: u32 = ANCILLARY + 28;
    pub(super) const VLAN_TCI: u32 = ANCILLARY + 44;
    pub(super) const VLAN_PRESENT: u32 = ANCILLARY + 48;
    pub(super) const VLAN_TPID: u32 = ANCILLARY + 60;
}

/// Refuses what no copy can be made of.
fn fit(program: &Program) -> Result<(), Refusal> {
    if program.loops() {
        return Err(Refusal::Loops);
    }
    let ancillary = program.instructions().iter().position(|instruction| {
        instruction.code & 0xe7 == code::LD | code::ABS && instruction.k >= ANCILLARY
    });
    ancillary.map_or(Ok(()), |at| Err(Refusal::Ancillary { at }))
}

/// Refuses what goes the other way, and goes on at `types` with what is left, or at `type_in_a`
/// where A is the type of the device already.
fn way(lines: &mut Lines, direction: Direction, types: Label, type_in_a: Label) {
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

/// Runs the program that the kind of device in A has.
fn devices(
    lines: &mut Lines,
    ethernet: Option<&Program>,
    raw: Option<&Program>,
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
        // No kernel has made such a tag yet.
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
