//! What a `bpf` asks, asked ahead: the socket filter of the source before it.
//!
//! In: the arguments of a `bpf`; out: a program for `SO_ATTACH_FILTER` that refuses nothing but
//! what that `bpf` refuses. [CONTRACT 18, `ebpf::classic::kernel`]

use super::compile;
use crate::Arguments;
use ebpf::classic::insn::code;
use ebpf::classic::{ClassicProgram, Instruction, kernel};
use wire::LinkType;

pub use ebpf::classic::kernel::{Direction, Refusal};

/// The program of an expression for frames of a link type; none where no frame can match, or where
/// the expression says nothing about such frames.
#[must_use]
pub fn program(arguments: &Arguments, link: u16) -> Option<ClassicProgram> {
    compile(arguments, link).ok()?.program
}

/// The socket filter for frames of this direction, of which a `bpf` with these arguments asks the
/// rest. Where the kernel cannot be asked that, only the direction is in it, with the reason.
#[must_use]
pub fn socket_filter(
    direction: Direction,
    ahead: Option<&Arguments>,
) -> (ClassicProgram, Option<Refusal>) {
    let refusal = match ahead.map(|asked| rewritten(direction, asked)) {
        Some(Ok((filter, _))) => return (filter, None),
        Some(Err(refusal)) => Some(refusal),
        None => None,
    };
    let bare = kernel::socket_filter(direction, None, None);
    (bare.unwrap_or_else(|_| unreachable!("a direction alone is never refused")), refusal)
}

/// What of the frames the kernel cannot be asked about although the program fits.
const NOT_RAW: &str = "of devices without an Ethernet header everything enters, because there is \
                       no room for their program";

/// Whether the kernel can be asked what a `bpf` with these arguments asks.
pub(super) fn ahead(arguments: &Arguments) -> Result<Option<&'static str>, String> {
    // No direction is longer.
    let asked = rewritten(Direction::Both, arguments);
    asked.map(|(_, except)| except).map_err(|refusal| refusal.to_string())
}

/// The socket filter, and what it does not ask about.
fn rewritten(
    direction: Direction,
    asked: &Arguments,
) -> Result<(ClassicProgram, Option<&'static str>), Refusal> {
    // On a link type without a program `bpf` answers nothing, whatever the frame.
    let never = || ClassicProgram::new(vec![Instruction::plain(code::RET | code::K, 0)]).ok();
    let of = |link: LinkType| program(asked, link.0).or_else(never);
    let (ethernet, raw) = (of(LinkType::ETHERNET), of(LinkType::RAW));
    match kernel::socket_filter(direction, ethernet.as_ref(), raw.as_ref()) {
        Ok(filter) => Ok((filter, None)),
        Err(Refusal::TooLong { .. }) => {
            let filter = kernel::socket_filter(direction, ethernet.as_ref(), None)?;
            Ok((filter, Some(NOT_RAW)))
        }
        Err(refusal) => Err(refusal),
    }
}

/// The link type of frames from a device of this kind (`ARPHRD_…`): the one whose program the
/// socket filter asks.
#[must_use]
pub fn link_type(hardware_type: u16) -> Option<LinkType> {
    match kernel::link_type(hardware_type)? {
        ebpf::classic::LinkType::EN10MB => Some(LinkType::ETHERNET),
        _ => Some(LinkType::RAW),
    }
}

#[cfg(test)]
mod tests {
    use super::super::BPF;
    use super::*;
    use crate::testing::{Frame, arguments};
    use ebpf::classic::{Metadata, VlanTag};

    const ETHERNET: Metadata = Metadata { hardware_type: 1, ..Metadata::NOTHING };

    fn asked(expression: &str) -> Arguments {
        arguments(&BPF, &[expression]).unwrap()
    }

    fn passes(filter: &ClassicProgram, frame: &[u8], metadata: &Metadata) -> bool {
        filter.run(frame, frame.len() as u32, metadata) > 0
    }

    #[test]
    fn the_kernel_is_asked_what_bpf_asks_of_each_kind_of_device() {
        let (filter, refusal) = socket_filter(Direction::Received, Some(&asked("udp port 53")));
        assert_eq!(refusal, None);
        let raw = Metadata { hardware_type: 65534, ..Metadata::NOTHING };
        for (port, wanted) in [(53, true), (54, false)] {
            let frame = Frame::udp(9, port, b"").bytes;
            assert_eq!(passes(&filter, &frame, &ETHERNET), wanted);
            assert_eq!(passes(&filter, &frame[14..], &raw), wanted);
            let sent = Metadata { packet_type: 4, ..ETHERNET };
            assert!(!passes(&filter, &frame, &sent), "another direction");
            let strange = Metadata { hardware_type: 801, ..Metadata::NOTHING };
            assert!(passes(&filter, &frame, &strange), "`bpf` decides");
        }
    }

    #[test]
    fn a_tag_in_the_skb_is_one_in_its_place() {
        let (filter, _) = socket_filter(Direction::Both, Some(&asked("vlan 7 and udp port 53")));
        let frame = Frame::udp(9, 53, b"").bytes;
        for (tci, wanted) in [(7, true), (8, false)] {
            let vlan = Some(VlanTag { tci, tpid: 0x8100 });
            assert_eq!(passes(&filter, &frame, &Metadata { vlan, ..ETHERNET }), wanted);
        }
        assert!(!passes(&filter, &frame, &ETHERNET));
    }

    #[test]
    fn what_says_nothing_about_a_kind_of_device_lets_nothing_of_it_through() {
        let (filter, refusal) =
            socket_filter(Direction::Both, Some(&asked("ether host 1:2:3:4:5:6")));
        let raw = Metadata { hardware_type: 65534, ..Metadata::NOTHING };
        assert!(refusal.is_none() && !passes(&filter, &[0x45; 60], &raw));
    }

    #[test]
    fn what_the_kernel_cannot_be_asked_leaves_the_direction() {
        let walk = asked("ip protochain 51");
        let (filter, refusal) = socket_filter(Direction::Sent, Some(&walk));
        assert_eq!(refusal, Some(Refusal::Loops));
        assert_eq!(filter, socket_filter(Direction::Sent, None).0);
        assert!(!passes(&filter, &[], &ETHERNET));
        assert_eq!(ahead(&walk), Err(Refusal::Loops.to_string()));
        assert_eq!(ahead(&asked("tcp port 80")), Ok(None));
    }

    #[test]
    fn what_is_too_long_for_all_devices_is_asked_on_those_of_ethernet() {
        let hosts: Vec<String> = (0..200).map(|n| format!("host 10.0.0.{n}")).collect();
        let hosts = asked(&hosts.join(" or "));
        assert_eq!(ahead(&hosts), Ok(Some(NOT_RAW)));
        let (filter, refusal) = socket_filter(Direction::Both, Some(&hosts));
        assert_eq!(refusal, None);
        let raw = Metadata { hardware_type: 65534, ..Metadata::NOTHING };
        assert!(passes(&filter, &[0x45; 60], &raw) && !passes(&filter, &[0x45; 60], &ETHERNET));
        // Asked of tagged frames as well, which are twice too many instructions.
        let values: Vec<String> = (0..2100).map(|n| format!("ether[20:4] = {n}")).collect();
        let refused = ahead(&asked(&values.join(" or "))).unwrap_err();
        assert!(refused.ends_with("instructions, the kernel takes 4096"), "{refused}");
    }

    #[test]
    fn device_and_link_type_belong_together() {
        assert_eq!([1, 772].map(link_type), [Some(LinkType::ETHERNET); 2]);
        assert_eq!([65534, 519, 512].map(link_type), [Some(LinkType::RAW); 3]);
        assert_eq!(link_type(803), None);
    }
}
