//! The program's own filter, as given to `pcap_setfilter`.

use ebpf::classic::insn::code;
use ebpf::classic::{ClassicProgram, Instruction, Metadata};
use streamline::capture::{CapturedFrame, FRAME_MAX};

/// `PACKET_OUTGOING`: the type of a frame that the host sends.
const PACKET_OUTGOING: u8 = 4;
/// Code of an instruction that returns a constant.
const RETURN: u16 = code::RET | code::K;
/// `ARPHRD_ETHER`.
const HARDWARE_ETHERNET: u16 = 1;
/// Maximum length of an IPv4 header in bytes: the largest result of `ldx 4*([k]&0xf)`.
const HEADER_MAX: usize = 60;

/// A filter, and the part of a frame that it reads.
#[derive(Debug)]
pub(crate) struct Filter {
    program: ClassicProgram,
    /// Number of bytes at the beginning of a frame on which the result depends.
    pub(crate) reach: usize,
    interface_index: u32,
}

impl Filter {
    /// Returns the filter of these instructions; `None` if they are not a valid program.
    pub(crate) fn new(instructions: Vec<Instruction>, interface_index: u32) -> Option<Self> {
        let program = ClassicProgram::new(instructions).ok()?;
        let reach = reach(program.instructions()).unwrap_or(FRAME_MAX);
        Some(Self { program, reach, interface_index })
    }

    /// Returns true if every frame matches.
    pub(crate) fn accepts_all(&self) -> bool {
        matches!(self.program.instructions(), [Instruction { code: RETURN, k: 1.., .. }])
    }

    /// Returns the instructions.
    pub(crate) fn instructions(&self) -> &[Instruction] {
        self.program.instructions()
    }

    /// Returns the number of bytes of the frame to keep, or 0 to reject it.
    pub(crate) fn run(&self, frame: &CapturedFrame, bytes: &[u8]) -> usize {
        let ethertype = bytes.get(12..14).and_then(|two| two.try_into().ok());
        let metadata = Metadata {
            packet_type: if frame.is_sent { PACKET_OUTGOING } else { 0 },
            protocol: ethertype.map_or(0, u16::from_be_bytes),
            interface_index: self.interface_index,
            hardware_type: HARDWARE_ETHERNET,
            ..Metadata::EMPTY
        };
        self.program.run(bytes, frame.wire_length, &metadata) as usize
    }
}

/// Returns the number of bytes at the beginning of a frame on which the result of a program
/// depends; `None` if it cannot be bounded.
fn reach(instructions: &[Instruction]) -> Option<usize> {
    let mut reach = 0;
    for instruction in instructions {
        let (class, k) = (instruction.class(), instruction.k as usize);
        let mode = instruction.code & 0xe0;
        let end = match (class, mode) {
            // An offset beyond every frame reads metadata.
            (code::LD, code::ABS) if k >= FRAME_MAX => 0,
            (code::LD, code::ABS) => k + 4,
            (code::LD, code::IND) => k.checked_add(HEADER_MAX + 4)?,
            (code::LDX, code::MSH) => k + 1,
            // X has a value that was computed or loaded.
            (code::LDX, code::MEM | code::LEN) => return None,
            (code::LDX, code::IMM) if k > HEADER_MAX => return None,
            (code::MISC, _) if instruction.code & 0xf8 == code::TAX => return None,
            _ => 0,
        };
        reach = end.max(reach);
    }
    Some(reach)
}
