//! Rewriting of filters for Linux cooked packets into equivalent filters for Ethernet frames.
//!
//! The kernel turns a frame into a cooked packet when it replaces the link-layer header with a
//! header that has the same format for all interface types. If a filter for cooked packets of an
//! Ethernet interface reads no field of the cooked header except the protocol, an equivalent filter
//! can run before this replacement.
//!
//! The rewritten filter accepts every frame that the original filter accepts. It also accepts all
//! frames with an inline VLAN tag or with a length in place of an EtherType.

use super::insn::{ANCILLARY_OFFSET, Instruction, code};
use super::link::LinkType;
use super::program::ClassicProgram;
use std::fmt;

/// Length of an Ethernet header in bytes.
const ETHERNET_HEADER_BYTES: u32 = 14;
/// Offset of the EtherType in an Ethernet header, in bytes.
const ETHERTYPE_OFFSET: u32 = 12;
/// Smallest value of the type field that is an EtherType; smaller values are lengths.
const ETHERTYPE_MIN: u32 = 0x0600;
/// Return value of the rewritten filter for a frame that it accepts without testing it, such as a
/// tagged frame.
const ACCEPT_RETURN_VALUE: u32 = 0x0004_0000;

/// A reason for which a filter for cooked packets cannot be rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CookedError {
    /// The link type is not `LINUX_SLL` or `LINUX_SLL2`.
    LinkType,
    /// The filter reads a field of the cooked header other than the protocol.
    Header,
    /// The filter reads kernel metadata, or loads the length of the packet into X.
    Instruction,
    /// A jump of the rewritten filter would have to skip more than 255 instructions.
    Jump,
}

impl fmt::Display for CookedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LinkType => "its packets are not Linux cooked packets",
            Self::Header => "it reads a field that frames in the kernel do not have",
            Self::Instruction => "it has an instruction for cooked packets only",
            Self::Jump => "it is too long",
        })
    }
}

impl std::error::Error for CookedError {}

/// Returns the length of the header of a Linux cooked packet and the offset of the header's
/// protocol field, in bytes. Returns `None` for other link types.
#[must_use]
pub const fn cooked_layout(link: LinkType) -> Option<(u32, u32)> {
    match link {
        LinkType::LINUX_SLL => Some((16, 14)),
        LinkType::LINUX_SLL2 => Some((20, 0)),
        _ => None,
    }
}

/// Rewrites a filter for cooked packets of type `link` as a filter for Ethernet frames.
///
/// # Errors
///
/// Fails if `link` is not a cooked link type, if the filter depends on something that an Ethernet
/// frame lacks, or if a jump becomes too long.
pub fn rewrite_for_ethernet(
    instructions: &[Instruction],
    link: LinkType,
) -> Result<Vec<Instruction>, CookedError> {
    let layout = cooked_layout(link).ok_or(CookedError::LinkType)?;
    let mut rewritten = accept_untested_frames();
    let mut positions = Vec::with_capacity(instructions.len());
    for instruction in instructions {
        positions.push(rewritten.len());
        rewritten.push(rewrite_instruction(*instruction, layout)?);
        if is_length_load(*instruction) {
            let subtract = code::ALU | code::SUB | code::K;
            rewritten.push(Instruction::non_branching(subtract, ETHERNET_HEADER_BYTES));
        }
    }
    for (at, instruction) in instructions.iter().enumerate() {
        let position = |target: usize| positions.get(target).copied().ok_or(CookedError::Jump);
        let from = position(at)? + 1;
        let distance = |skipped: usize| Ok(position(at + 1 + skipped)?.wrapping_sub(from));
        let Some(new) = rewritten.get_mut(from - 1) else { continue };
        if instruction.is_comparison() {
            let short = |skipped: u8| {
                u8::try_from(distance(usize::from(skipped))?).map_err(|_| CookedError::Jump)
            };
            (new.jt, new.jf) = (short(instruction.jt)?, short(instruction.jf)?);
        } else if instruction.class() == code::JMP {
            let skipped = usize::try_from(instruction.k).map_err(|_| CookedError::Jump)?;
            new.k = u32::try_from(distance(skipped)?).map_err(|_| CookedError::Jump)?;
        }
    }
    ClassicProgram::new(rewritten.clone()).map_err(|_| CookedError::Jump)?;
    Ok(rewritten)
}

/// Returns the instructions, placed before the rewritten filter, that accept frames with a VLAN tag
/// or with a length in place of an EtherType.
fn accept_untested_frames() -> Vec<Instruction> {
    let compare = |operation: u16, k, jt, jf| {
        let code = code::JMP | operation | code::K;
        Instruction { code, jt, jf, k }
    };
    vec![
        Instruction::non_branching(code::LD | code::H | code::ABS, ETHERTYPE_OFFSET),
        compare(code::JEQ, 0x8100, 2, 0),
        compare(code::JEQ, 0x88a8, 1, 0),
        compare(code::JGE, ETHERTYPE_MIN, 1, 0),
        Instruction::non_branching(code::RET | code::K, ACCEPT_RETURN_VALUE),
        Instruction::non_branching(code::LD | code::IMM, 0),
    ]
}

/// Returns true if the instruction loads the length of the packet into A.
fn is_length_load(instruction: Instruction) -> bool {
    instruction.class() == code::LD && instruction.code & 0xe0 == code::LEN
}

fn rewrite_instruction(
    instruction: Instruction,
    (header, protocol): (u32, u32),
) -> Result<Instruction, CookedError> {
    let Instruction { code, k, .. } = instruction;
    let mode = code & 0xe0;
    let is_load = matches!(instruction.class(), code::LD | code::LDX);
    let k = match mode {
        _ if !is_load => return Ok(instruction),
        code::LEN if instruction.class() == code::LDX => return Err(CookedError::Instruction),
        code::ABS if k >= ANCILLARY_OFFSET => return Err(CookedError::Instruction),
        code::ABS | code::IND | code::MSH if k >= header => k - header + ETHERNET_HEADER_BYTES,
        code::ABS if k == protocol && code & 0x18 == code::H => ETHERTYPE_OFFSET,
        code::ABS | code::IND | code::MSH => return Err(CookedError::Header),
        _ => k,
    };
    Ok(Instruction { k, ..instruction })
}

#[cfg(test)]
mod tests {
    use super::super::{ClassicMetadata, Options, compile};
    use super::*;

    const COOKED_LINK_TYPES: [LinkType; 2] = [LinkType::LINUX_SLL, LinkType::LINUX_SLL2];

    fn compile_expression(expression: &str, link: LinkType) -> ClassicProgram {
        compile(expression, link, &Options::default()).unwrap()
    }

    /// Returns an Ethernet frame and the cooked packet that is made from it.
    fn frame_and_packet(ethertype: u16, payload: &[u8], link: LinkType) -> [Vec<u8>; 2] {
        let frame = [&[2; 12], &ethertype.to_be_bytes()[..], payload].concat();
        let (header, protocol) = cooked_layout(link).unwrap();
        let mut packet = vec![0; header as usize];
        packet[protocol as usize..][..2].copy_from_slice(&ethertype.to_be_bytes());
        packet.extend(payload);
        [frame, packet]
    }

    fn udp_packet(port: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend([port.to_be_bytes(), [0, 53], [0, 20], [0, 0]].concat());
        packet.resize(40, 7);
        packet
    }

    #[test]
    fn rewritten_filter_decides_like_the_original() {
        let expressions = [
            "ip",
            "udp port 53",
            "udp src port 5300 and not host 10.0.0.9",
            "ip6 or arp",
            "less 40",
            "greater 41",
            "ip[0] & 0xf != 5",
            "len <= 39 or udp[4:2] = 20",
            "udp or (tcp port 80 and greater 100)",
        ];
        let payloads =
            [udp_packet(53), udp_packet(5300), vec![0; 28], vec![0x60; 60], vec![], vec![0x4f; 30]];
        let mut accepted = [0, 0];
        for link in COOKED_LINK_TYPES {
            for expression in expressions {
                let original = compile_expression(expression, link);
                let code = rewrite_for_ethernet(original.instructions(), link).unwrap();
                let rewritten = ClassicProgram::new(code).unwrap();
                for (ethertype, payload) in [0x0800, 0x0806, 0x86dd]
                    .iter()
                    .flat_map(|t| payloads.iter().map(move |p| (*t, p)))
                {
                    let [frame, packet] = frame_and_packet(ethertype, payload, link);
                    // The packet length that the kernel reports excludes the cooked header.
                    let want =
                        original.run(&packet, payload.len() as u32, &ClassicMetadata::EMPTY) > 0;
                    let is = rewritten.run(&frame, frame.len() as u32, &ClassicMetadata::EMPTY) > 0;
                    assert_eq!(is, want, "{expression} {ethertype:x} {payload:?}");
                    accepted[usize::from(is)] += 1;
                }
            }
        }
        assert!(accepted.iter().all(|count| *count > 50), "{accepted:?}");
    }

    #[test]
    fn tagged_frames_and_frames_with_a_length_are_accepted() {
        for link in COOKED_LINK_TYPES {
            let original = compile_expression("udp port 53", link);
            let code = rewrite_for_ethernet(original.instructions(), link).unwrap();
            let rewritten = ClassicProgram::new(code).unwrap();
            for (ethertype, want) in
                [(0x8100, true), (0x88a8, true), (0x05ff, true), (0x600, false)]
            {
                let [frame, _] = frame_and_packet(ethertype, &[0; 60], link);
                assert_eq!(
                    rewritten.run(&frame, 74, &ClassicMetadata::EMPTY) > 0,
                    want,
                    "{ethertype:x}"
                );
            }
        }
    }

    #[test]
    fn filters_of_the_cooked_header_are_not_rewritten() {
        let error = |expression, link| {
            rewrite_for_ethernet(compile_expression(expression, link).instructions(), link)
                .unwrap_err()
        };
        for link in COOKED_LINK_TYPES {
            assert_eq!(error("inbound", link), CookedError::Header);
            assert_eq!(error("link[2] = 1", link), CookedError::Header);
        }
        let ethernet = compile_expression("ip", LinkType::EN10MB);
        let error = rewrite_for_ethernet(ethernet.instructions(), LinkType::EN10MB);
        assert_eq!(error, Err(CookedError::LinkType));
    }

    #[test]
    fn jump_that_becomes_too_long_is_an_error() {
        let length = Instruction::non_branching(code::LD | code::LEN, 0);
        let reject = Instruction::non_branching(code::RET, 0);
        let jump = Instruction { code: code::JMP | code::JEQ, jt: 200, jf: 0, k: 1 };
        let mut program = vec![jump];
        program.extend([length; 201]);
        program.push(reject);
        let rewritten = rewrite_for_ethernet(&program, LinkType::LINUX_SLL);
        assert_eq!(rewritten, Err(CookedError::Jump));
        program[0].jt = 100;
        assert!(rewrite_for_ethernet(&program, LinkType::LINUX_SLL).is_ok());
    }
}
