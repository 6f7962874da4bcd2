//! Socket filters for raw packet sockets, made from programs for frames as capture files store
//! them.
//!
//! Input: the direction, a program for Ethernet frames with inline VLAN tags, a program for raw IP.
//! Output: one program for `SO_ATTACH_FILTER` on `AF_PACKET`, `SOCK_RAW`. For a frame in the
//! kernel, the filter makes the same decision as the programs make for this frame with its tag
//! restored. Running the programs again in user space therefore rejects no further frame, except
//! in rare cases: the filter may accept a frame that the programs reject, never the reverse. [SL
//! §5.2, CONTRACT 1, 3 and 18]
//!
//! The kernel moves the outermost tag from the frame into the skb: always on receive, and on
//! transmit if the device inserts tags. The length of the frame then excludes the tag. The filter
//! therefore contains the program twice, after a test for such a tag: unchanged, and with its
//! offsets shifted (see `tagged`). A tagged frame has at least twelve bytes of addresses, since the
//! kernel finds tags only after a complete Ethernet header.
//!
//! The filter begins with a test of the direction. Loopback delivers every packet twice, outgoing
//! and incoming; the filter accepts one of the two. Frames of device types without a program are
//! then accepted.
//!
//! Each kind of device has only one program, because a load beyond the frame ends the entire
//! filter, and an alternative program would not run.
//!
//! The kernel and [`ClassicProgram::run`] differ in one case: a load at X plus k wraps at 2³² in
//! the kernel and fails in `run`. Only an X of nearly 2³² reaches a byte of the frame in this way,
//! and then the kernel may accept a frame that `run` rejects.

mod ancillary;
mod code_writer;
mod error;
mod reachability;
mod restored_tag;
mod skb_tag;

use super::assemble::JumpLabel;
use super::insn::{ANCILLARY_OFFSET, code};
use super::link::LinkType;
use super::program::ClassicProgram;
use code_writer::{CodeWriter, TagPlacement};
use reachability::TPIDS;

pub use code_writer::ACCEPT_WHOLE_FRAME;
pub use error::SocketFilterError;

/// The direction of the frames that are observed at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Frames that the interface receives.
    Received,
    /// Frames that this host sends, including frames to this host itself on loopback.
    Sent,
    /// Frames that this host sends to other hosts. Loopback has none, because each of its packets
    /// is also received.
    SentToOthers,
    /// Received and sent frames. On loopback, each packet is observed once.
    Both,
}

/// Builds a socket filter that rejects the frames that `direction` excludes, and tests all other
/// frames with the program for their device: `ethernet` for Ethernet and loopback devices, `raw`
/// for devices whose frames begin with IP. The filter accepts frames of devices of another type,
/// and frames for whose device the program is `None`.
pub fn socket_filter(
    direction: Direction,
    ethernet: Option<&ClassicProgram>,
    raw: Option<&ClassicProgram>,
) -> Result<ClassicProgram, SocketFilterError> {
    [ethernet, raw].into_iter().flatten().try_for_each(check_copyable)?;
    let mut writer = CodeWriter::default();
    match ethernet.or(raw) {
        None => {
            let pass = writer.accept;
            branch_on_direction(&mut writer, direction, pass, pass);
        }
        Some(_) => {
            let (types, type_in_a) = (writer.new_label(), writer.new_label());
            branch_on_direction(&mut writer, direction, types, type_in_a);
            writer.bind(types);
            writer.load_word(ancillary::HARDWARE_TYPE_OFFSET);
            writer.bind(type_in_a);
            branch_on_device_type(&mut writer, ethernet, raw)?;
        }
    }
    writer.finish()
}

/// Rewrites the program for the kernel. If `tagged` is true, the rewritten program expects Ethernet
/// frames whose outermost tag is in the skb; otherwise it expects frames with inline tags, as
/// capture files store them. Shifts and offsets behave as in [`ClassicProgram::run`]. The rewritten
/// program returns [`ACCEPT_WHOLE_FRAME`] or 0.
pub fn rewrite_for_kernel(
    program: &ClassicProgram,
    tagged: bool,
) -> Result<ClassicProgram, SocketFilterError> {
    check_copyable(program)?;
    let mut writer = CodeWriter::default();
    let tag = if tagged { TagPlacement::InSkb } else { TagPlacement::Inline };
    writer.copy_program(program, tag)?;
    writer.finish()
}

/// Rewrites a program for live captures so that it can run on Ethernet frames with restored tags.
/// The program expects the outermost tag in the skb, while these frames have it at bytes 12 to 15.
/// For a tagged frame, the rewritten program returns the value that the original program returns in
/// the kernel. For an untagged frame, both programs return the same value.
pub fn rewrite_for_restored_tags(
    program: &ClassicProgram,
) -> Result<ClassicProgram, SocketFilterError> {
    if program.has_loop() {
        return Err(SocketFilterError::BackwardJump);
    }
    let mut writer = CodeWriter::default();
    let (plain, tagged) = (writer.new_label(), writer.new_label());
    writer.load_half(reachability::TAG_START_OFFSET);
    branch_if_tag_type(&mut writer, tagged);
    writer.jump(plain);
    writer.bind(tagged);
    writer.copy_program(program, TagPlacement::Restored)?;
    writer.bind(plain);
    writer.copy_program(program, TagPlacement::Absent)?;
    writer.finish()
}

/// Appends a branch to `tagged` if A is the type of a tag that the kernel removes from frames.
fn branch_if_tag_type(writer: &mut CodeWriter, tagged: JumpLabel) {
    for tpid in TPIDS {
        let next = writer.new_label();
        writer.branch_if_equal(tpid, tagged, next);
        writer.bind(next);
    }
}

/// Returns the link type for a device type (`ARPHRD_…`), or `None` if [`socket_filter`] accepts no
/// program for this device type.
pub fn link_type(hardware_type: u16) -> Option<LinkType> {
    let of = |types: &[u16]| types.contains(&hardware_type);
    match () {
        () if of(&ETHERNET_HARDWARE_TYPES) => Some(LinkType::EN10MB),
        () if of(&RAW_HARDWARE_TYPES) => Some(LinkType::RAW),
        () => None,
    }
}

/// Device type of loopback devices (`ARPHRD_LOOPBACK`).
const LOOPBACK_HARDWARE_TYPE: u16 = 772;
/// Device types with an Ethernet header: Ethernet, loopback.
const ETHERNET_HARDWARE_TYPES: [u16; 2] = [1, LOOPBACK_HARDWARE_TYPE];
/// Device types without an Ethernet header: none, raw IP, PPP, and the tunnels IP in IP, IPv6, SIT,
/// GRE, and GRE over IPv6.
const RAW_HARDWARE_TYPES: [u16; 8] = [65534, 519, 512, 768, 769, 776, 778, 823];
/// Packet type of sent frames (`PACKET_OUTGOING`).
const PACKET_OUTGOING: u32 = 4;

/// Fails if the program cannot be copied into a socket filter, because it jumps backward or loads
/// ancillary data that user space lacks.
fn check_copyable(program: &ClassicProgram) -> Result<(), SocketFilterError> {
    if program.has_loop() {
        return Err(SocketFilterError::BackwardJump);
    }
    let ancillary = program.instructions().iter().position(|instruction| {
        instruction.code & 0xe7 == code::LD | code::ABS && instruction.k >= ANCILLARY_OFFSET
    });
    ancillary.map_or(Ok(()), |at| Err(SocketFilterError::Ancillary { at }))
}

/// Emits a branch that rejects the frames that `direction` excludes. Other frames continue at the
/// label `types`, where A may have any value, or at the label `type_in_a`, where A contains the
/// device type.
fn branch_on_direction(
    writer: &mut CodeWriter,
    direction: Direction,
    types: JumpLabel,
    type_in_a: JumpLabel,
) {
    writer.load_word(ancillary::PACKET_TYPE_OFFSET);
    let reject = writer.reject;
    match direction {
        Direction::Received => writer.branch_if_equal(PACKET_OUTGOING, reject, types),
        Direction::Sent => writer.branch_if_equal(PACKET_OUTGOING, types, reject),
        Direction::SentToOthers | Direction::Both => {
            let sent = writer.new_label();
            let received = if direction == Direction::Both { types } else { reject };
            writer.branch_if_equal(PACKET_OUTGOING, sent, received);
            writer.bind(sent);
            writer.load_word(ancillary::HARDWARE_TYPE_OFFSET);
            writer.branch_if_equal(LOOPBACK_HARDWARE_TYPE.into(), reject, type_in_a);
        }
    }
}

/// Emits a branch on the device type in A, followed by the programs for these types: `ethernet`
/// twice, for tags in the skb and for inline tags, and `raw`. Accepts frames of device types
/// without a program, and frames with a tag of an unknown type in the skb.
fn branch_on_device_type(
    writer: &mut CodeWriter,
    ethernet: Option<&ClassicProgram>,
    raw: Option<&ClassicProgram>,
) -> Result<(), SocketFilterError> {
    let (pass, ethernet_start, raw_start) = (writer.accept, writer.new_label(), writer.new_label());
    for (program, types, start) in [
        (ethernet, &ETHERNET_HARDWARE_TYPES[..], ethernet_start),
        (raw, &RAW_HARDWARE_TYPES[..], raw_start),
    ] {
        for kind in types.iter().filter(|_| program.is_some()) {
            let next = writer.new_label();
            writer.branch_if_equal((*kind).into(), start, next);
            writer.bind(next);
        }
    }
    writer.jump(pass);
    if let Some(program) = ethernet {
        let (plain, tag, tagged) = (writer.new_label(), writer.new_label(), writer.new_label());
        writer.bind(ethernet_start);
        writer.load_word(ancillary::VLAN_PRESENT_OFFSET);
        writer.branch_if_equal(0, plain, tag);
        writer.bind(tag);
        writer.load_word(ancillary::VLAN_TPID_OFFSET);
        branch_if_tag_type(writer, tagged);
        // No known kernel creates such a tag.
        writer.jump(pass);
        writer.bind(tagged);
        writer.copy_program(program, TagPlacement::InSkb)?;
        writer.bind(plain);
        writer.copy_program(program, TagPlacement::Inline)?;
    }
    if let Some(program) = raw {
        writer.bind(raw_start);
        writer.copy_program(program, TagPlacement::Inline)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
