//! Pushdown of a `bpf` filter into the socket filter of the preceding source.
//!
//! Input: a direction, and the arguments of a `bpf` filter. Output: a program for
//! `SO_ATTACH_FILTER`. The program rejects frames of the other direction and frames that the `bpf`
//! filter rejects, and accepts all other frames. [CONTRACT 18, `ebpf::classic::kernel`]

use super::compile::compile;
use crate::Arguments;
use ebpf::classic::insn::code;
use ebpf::classic::{ClassicProgram, Instruction, kernel};
use wire::LinkType;

pub use ebpf::classic::kernel::Direction;
use ebpf::classic::kernel::SocketFilterError;

/// Returns the program of the expression for a link type. Returns `None` if no frame of this link
/// type can match, or if the expression does not compile for it.
#[must_use]
pub fn compile_program(arguments: &Arguments, link: u16) -> Option<ClassicProgram> {
    compile(arguments, link).ok()?.program
}

/// Returns the socket filter for frames of this direction. The `bpf` filter still tests the frames
/// that the socket filter accepts. If the expression of the `bpf` filter cannot run in the kernel,
/// the socket filter tests only the direction, and the reason is returned too.
#[must_use]
pub fn socket_filter(
    direction: Direction,
    bpf: Option<&Arguments>,
) -> (ClassicProgram, Option<SocketFilterError>) {
    let refusal = match bpf.map(|asked| socket_filter_with_note(direction, asked)) {
        Some(Ok((filter, _))) => return (filter, None),
        Some(Err(refusal)) => Some(refusal),
        None => None,
    };
    let bare = kernel::socket_filter(direction, None, None);
    (bare.unwrap_or_else(|_| unreachable!("a direction alone is never refused")), refusal)
}

/// Note for the case that the kernel can run the expression, but the frames of some devices bypass
/// the socket filter.
const BYPASS_NOTE: &str = "all frames of devices without an Ethernet header enter, because there \
                           is no room for their program";

/// Returns a note on frames that bypass the socket filter, or `None` if no frame does. Fails with
/// the reason if the expression cannot run in the kernel.
pub(super) fn check_pushdown(arguments: &Arguments) -> Result<Option<&'static str>, String> {
    // Check the program for both directions, which is the longest.
    let asked = socket_filter_with_note(Direction::Both, arguments);
    asked.map(|(_, except)| except).map_err(|refusal| refusal.to_string())
}

/// Returns the socket filter for frames of `direction` and, if some frames bypass it, a note on
/// these frames. Fails with the reason if the expression cannot run in the kernel.
fn socket_filter_with_note(
    direction: Direction,
    asked: &Arguments,
) -> Result<(ClassicProgram, Option<&'static str>), SocketFilterError> {
    // On a link type without a program `bpf` accepts no frame.
    let never =
        || ClassicProgram::new(vec![Instruction::non_branching(code::RET | code::K, 0)]).ok();
    let of = |link: LinkType| compile_program(asked, link.0).or_else(never);
    let (ethernet, raw) = (of(LinkType::ETHERNET), of(LinkType::RAW));
    match kernel::socket_filter(direction, ethernet.as_ref(), raw.as_ref()) {
        Ok(filter) => Ok((filter, None)),
        Err(SocketFilterError::TooLong { .. }) => {
            let filter = kernel::socket_filter(direction, ethernet.as_ref(), None)?;
            Ok((filter, Some(BYPASS_NOTE)))
        }
        Err(refusal) => Err(refusal),
    }
}

/// Returns the link type for which the expression is compiled, given the type of a device
/// (`ARPHRD_…`). Returns `None` if the socket filter tests only the direction of frames from
/// devices of this type.
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
    use crate::testing::{Frame, parse_arguments};
    use ebpf::classic::{ClassicMetadata, VlanTag};

    const ETHERNET_METADATA: ClassicMetadata =
        ClassicMetadata { hardware_type: 1, ..ClassicMetadata::EMPTY };

    fn arguments_for(expression: &str) -> Arguments {
        parse_arguments(&BPF, &[expression]).unwrap()
    }

    fn accepts_frame(filter: &ClassicProgram, frame: &[u8], metadata: &ClassicMetadata) -> bool {
        filter.run(frame, frame.len() as u32, metadata) > 0
    }

    #[test]
    fn socket_filter_agrees_with_bpf_on_each_device_type() {
        let (filter, refusal) =
            socket_filter(Direction::Received, Some(&arguments_for("udp port 53")));
        assert_eq!(refusal, None);
        let raw = ClassicMetadata { hardware_type: 65534, ..ClassicMetadata::EMPTY };
        for (port, wanted) in [(53, true), (54, false)] {
            let frame = Frame::udp(9, port, b"").bytes;
            assert_eq!(accepts_frame(&filter, &frame, &ETHERNET_METADATA), wanted);
            assert_eq!(accepts_frame(&filter, &frame[14..], &raw), wanted);
            let sent = ClassicMetadata { packet_type: 4, ..ETHERNET_METADATA };
            assert!(!accepts_frame(&filter, &frame, &sent), "another direction");
            let strange = ClassicMetadata { hardware_type: 801, ..ClassicMetadata::EMPTY };
            assert!(accepts_frame(&filter, &frame, &strange), "`bpf` decides");
        }
    }

    #[test]
    fn tag_in_the_skb_counts_as_inline() {
        let (filter, _) =
            socket_filter(Direction::Both, Some(&arguments_for("vlan 7 and udp port 53")));
        let frame = Frame::udp(9, 53, b"").bytes;
        for (tci, wanted) in [(7, true), (8, false)] {
            let vlan = Some(VlanTag { tci, tpid: 0x8100 });
            assert_eq!(
                accepts_frame(&filter, &frame, &ClassicMetadata { vlan, ..ETHERNET_METADATA }),
                wanted
            );
        }
        assert!(!accepts_frame(&filter, &frame, &ETHERNET_METADATA));
    }

    #[test]
    fn expression_without_program_rejects_the_device_type() {
        let (filter, refusal) =
            socket_filter(Direction::Both, Some(&arguments_for("ether host 1:2:3:4:5:6")));
        let raw = ClassicMetadata { hardware_type: 65534, ..ClassicMetadata::EMPTY };
        assert!(refusal.is_none() && !accepts_frame(&filter, &[0x45; 60], &raw));
    }

    #[test]
    fn unsuitable_expression_leaves_only_the_direction_test() {
        let walk = arguments_for("ip protochain 51");
        let (filter, refusal) = socket_filter(Direction::Sent, Some(&walk));
        assert_eq!(refusal, Some(SocketFilterError::BackwardJump));
        assert_eq!(filter, socket_filter(Direction::Sent, None).0);
        assert!(!accepts_frame(&filter, &[], &ETHERNET_METADATA));
        assert_eq!(check_pushdown(&walk), Err(SocketFilterError::BackwardJump.to_string()));
        assert_eq!(check_pushdown(&arguments_for("tcp port 80")), Ok(None));
    }

    #[test]
    fn overlong_filter_is_limited_to_ethernet() {
        let hosts: Vec<String> = (0..200).map(|n| format!("host 10.0.0.{n}")).collect();
        let hosts = arguments_for(&hosts.join(" or "));
        assert_eq!(check_pushdown(&hosts), Ok(Some(BYPASS_NOTE)));
        let (filter, refusal) = socket_filter(Direction::Both, Some(&hosts));
        assert_eq!(refusal, None);
        let raw = ClassicMetadata { hardware_type: 65534, ..ClassicMetadata::EMPTY };
        assert!(
            accepts_frame(&filter, &[0x45; 60], &raw)
                && !accepts_frame(&filter, &[0x45; 60], &ETHERNET_METADATA)
        );
        // Including its copy for tagged frames, the program is about twice as long as permitted.
        let values: Vec<String> = (0..2100).map(|n| format!("ether[20:4] = {n}")).collect();
        let refused = check_pushdown(&arguments_for(&values.join(" or "))).unwrap_err();
        assert!(
            refused.ends_with("instructions, but the kernel accepts at most 4096"),
            "{refused}"
        );
    }

    #[test]
    fn device_types_map_to_link_types() {
        assert_eq!([1, 772].map(link_type), [Some(LinkType::ETHERNET); 2]);
        assert_eq!([65534, 519, 512].map(link_type), [Some(LinkType::RAW); 3]);
        assert_eq!(link_type(803), None);
    }
}
