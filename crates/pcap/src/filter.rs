//! The program's own filter, as passed to `pcap_setfilter`.
//!
//! With libpcap, the kernel runs the filter on frames without their outermost VLAN tag, which it
//! keeps beside the frame, and libpcap restores the tag afterwards. So `udp` also matches tagged
//! frames, and a length excludes the tag. The frames of our rings have their tag in place; a filter
//! is run on a copy without it, and rewritten for the kernel.

use ebpf::classic::insn::code;
use ebpf::classic::kernel::rewrite_for_restored_tags;
use ebpf::classic::{
    ClassicMetadata, ClassicProgram, Instruction, LinkType, VlanTag, cooked_layout,
    rewrite_for_ethernet, write_numeric_program,
};
use streamline::capture::{CapturedFrame, FRAME_BYTES_MAX};
use wire::linux_cooked::{CookedHeader, packet_type};
use wire::vlan;

/// Code of the BPF instruction that returns a constant.
const RETURN_CONSTANT: u16 = code::RET | code::K;
/// Device type of interfaces with Ethernet frames (`ARPHRD_ETHER`).
const ETHERNET_DEVICE_TYPE: u16 = 1;
/// Range of the bytes of the outermost VLAN tag in an Ethernet frame.
const TAG_RANGE: std::ops::Range<usize> = 12..16;
const TAG_TYPES: [u16; 2] = [vlan::CUSTOMER_TAG, vlan::SERVICE_TAG];
/// Number of bytes at the beginning of a frame that are read to find the outermost VLAN tag and the
/// EtherType after it.
const TAG_SEARCH_END: usize = 18;
/// Maximum length of an IPv4 header in bytes: the largest result of `ldx 4*([k]&0xf)`.
const IPV4_HEADER_MAX: usize = 60;

/// The filter program that an expression needs for a live capture.
#[derive(Clone, Debug)]
pub(crate) enum LiveFilterProgram {
    /// The program for a capture file also fits a live capture.
    Same,
    /// A program for a live capture that differs from the program for a capture file.
    Other(Vec<Instruction>),
    /// The program for a live capture is unknown, because this library cannot compile the
    /// expression. The filter then runs the program for a capture file, on frames that contain
    /// their VLAN tags.
    Unknown,
}

/// A compiled filter, with the link type for which it was compiled and the part of a frame that it
/// reads.
#[derive(Debug)]
pub(crate) struct Filter {
    program: ClassicProgram,
    /// Link type of the packets for which the filter was compiled.
    pub(crate) link: LinkType,
    /// True if the filter expects frames with their VLAN tags, as in a capture file. False if it
    /// expects frames without their outermost tag, which the kernel removes from live frames.
    expects_tags: bool,
    /// Number of bytes at the beginning of a frame on which the result of the filter depends.
    pub(crate) examined_bytes: usize,
    /// Index of the interface; 0 for the device `any`.
    interface_index: u32,
}

impl Filter {
    /// Returns the filter of these instructions; `None` if they are not a valid program.
    pub(crate) fn new(
        instructions: Vec<Instruction>,
        (link, expects_tags): (LinkType, bool),
        interface_index: u32,
    ) -> Option<Self> {
        let program = ClassicProgram::new(instructions).ok()?;
        let reach = count_examined_bytes(program.instructions()).map_or(FRAME_BYTES_MAX, |reach| {
            let with_tag = reach.saturating_add(TAG_RANGE.len()).max(TAG_SEARCH_END);
            if expects_tags { reach } else { with_tag.min(FRAME_BYTES_MAX) }
        });
        Some(Self { program, link, expects_tags, examined_bytes: reach, interface_index })
    }

    /// Returns true if the filter accepts every frame.
    pub(crate) fn accepts_all(&self) -> bool {
        matches!(self.program.instructions(), [Instruction { code: RETURN_CONSTANT, k: 1.., .. }])
    }

    /// Returns the filter as an argument of the Streamline filter `bpf`, for frames that contain
    /// their VLAN tags. Fails with the reason if the filter cannot be rewritten for such frames.
    pub(crate) fn expression(&self) -> Result<String, String> {
        let instructions = self.program.instructions();
        match () {
            () if cooked_layout(self.link).is_some() => {
                rewrite_for_ethernet(instructions, self.link)
                    .map(|rewritten| write_numeric_program(&rewritten))
                    .map_err(|why| why.to_string())
            }
            () if self.expects_tags => Ok(write_numeric_program(instructions)),
            () => rewrite_for_restored_tags(&self.program)
                .map(|rewritten| write_numeric_program(rewritten.instructions()))
                .map_err(|why| why.to_string()),
        }
    }

    /// Runs the filter on a frame. Returns the number of bytes of the frame to keep, or 0 to reject
    /// it.
    pub(crate) fn run(
        &self,
        frame: &CapturedFrame,
        bytes: &[u8],
        buffer: &mut FilterBuffer,
    ) -> usize {
        let vlan = outermost_tag(bytes).filter(|_| !self.expects_tags);
        let tag_length = if vlan.is_some() { TAG_RANGE.len() as u32 } else { 0 };
        let bytes = if vlan.is_some() { buffer.remove_tag(bytes) } else { bytes };
        let metadata = ClassicMetadata {
            vlan,
            packet_type: if frame.is_sent { packet_type::OUTGOING } else { packet_type::HOST },
            protocol: be16(bytes, TAG_RANGE.start).unwrap_or(0),
            interface_index: self.interface_index,
            hardware_type: ETHERNET_DEVICE_TYPE,
        };
        self.program.run(bytes, frame.wire_length.saturating_sub(tag_length), &metadata) as usize
    }
}

/// A buffer for the beginning of a packet as a filter expects it: with a cooked header, or without
/// its VLAN tag.
#[derive(Debug, Default)]
pub(crate) struct FilterBuffer(Vec<u8>);

impl FilterBuffer {
    /// Returns a tagged frame without its outermost tag.
    fn remove_tag(&mut self, frame: &[u8]) -> &[u8] {
        self.0.clear();
        for part in [frame.get(..TAG_RANGE.start), frame.get(TAG_RANGE.end..)] {
            self.0.extend_from_slice(part.unwrap_or_default());
        }
        &self.0
    }

    /// Runs `filter` on a cooked packet. Returns the number of bytes of the packet to keep, or 0 to
    /// reject it. `payload` is the beginning of the packet after the cooked header. `length` is the
    /// length of the packet without the header, which is also the length that a filter in the
    /// kernel sees.
    pub(crate) fn run_on_cooked_packet(
        &mut self,
        filter: &Filter,
        header: &CookedHeader,
        (payload, length): (&[u8], u32),
    ) -> usize {
        const COOKED_HEADER_MAX: usize = 20;
        let metadata = ClassicMetadata {
            packet_type: header.kind,
            protocol: header.protocol,
            interface_index: header.interface,
            hardware_type: header.hardware,
            ..ClassicMetadata::EMPTY
        };
        let wanted = payload.len().min(filter.examined_bytes);
        self.0.clear();
        self.0.resize(COOKED_HEADER_MAX, 0);
        self.0.extend_from_slice(payload.get(..wanted).unwrap_or_default());
        let link = wire::LinkType(u16::try_from(filter.link.0).unwrap_or_default());
        let header_place = self.0.get_mut(..COOKED_HEADER_MAX).unwrap_or_default();
        let written = header.write_header_before(link, header_place).unwrap_or(0);
        let packet = self.0.get(COOKED_HEADER_MAX - written..).unwrap_or_default();
        filter.program.run(packet, length, &metadata) as usize
    }
}

/// Returns the outermost tag of a frame, if the kernel removes tags of its type.
pub(crate) fn outermost_tag(bytes: &[u8]) -> Option<VlanTag> {
    let tpid = be16(bytes, TAG_RANGE.start).filter(|tpid| TAG_TYPES.contains(tpid))?;
    Some(VlanTag { tpid, tci: be16(bytes, TAG_RANGE.start + 2)? })
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).and_then(|two| two.try_into().ok()).map(u16::from_be_bytes)
}

/// Returns the number of bytes at the beginning of a frame that a filter program may read; `None`
/// if the program may read any byte.
fn count_examined_bytes(instructions: &[Instruction]) -> Option<usize> {
    let mut reach = 0;
    for instruction in instructions {
        let (class, k) = (instruction.class(), instruction.k as usize);
        let mode = instruction.code & 0xe0;
        let end = match (class, mode) {
            // An offset beyond every frame reads metadata.
            (code::LD, code::ABS) if k >= FRAME_BYTES_MAX => 0,
            (code::LD, code::ABS) => k + 4,
            (code::LD, code::IND) => k.checked_add(IPV4_HEADER_MAX + 4)?,
            (code::LDX, code::MSH) => k + 1,
            // X has a value that was computed or loaded.
            (code::LDX, code::MEM | code::LEN) => return None,
            (code::LDX, code::IMM) if k > IPV4_HEADER_MAX => return None,
            (code::MISC, _) if instruction.code & 0xf8 == code::TAX => return None,
            _ => 0,
        };
        reach = end.max(reach);
    }
    Some(reach)
}
