//! The pcapng block format (draft-ietf-opsawg-pcapng).
//!
//! A file is a sequence of blocks: type, length, body, length. A section header sets the byte order
//! and discards the interfaces of the previous section. Interface descriptions are numbered in
//! order of appearance, and packets refer to interfaces by number. Section, interface and packet
//! blocks must be complete in the buffer; the reader skips other blocks piece by piece.

use super::{BLOCK_LENGTH_MAX, FaultKind, NoPacketReason, Packet, RECORD_DATA_MAX, ReadResult};
use crate::link::LinkType;
use crate::read::{decode16, decode32, decode64, read_array};

/// Block type of a section header. Its bytes are the same in both byte orders.
pub(super) const SECTION_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// The state of the pcapng reader within the current section.
#[derive(Clone, Debug)]
pub(super) struct PcapngReader {
    big: bool,
    interfaces: Vec<Interface>,
    skipping: Option<SkipProgress>,
}

/// The progress of skipping a block that contains neither packets nor interfaces.
#[derive(Clone, Copy, Debug)]
struct SkipProgress {
    /// Number of bytes to skip before the trailing length.
    remaining: u32,
    /// Length of the entire block, which is repeated at the end of the block.
    length: u32,
}

/// An interface of a pcapng section, as its description states.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    snap_length: u32,
    resolution: TickConversion,
    /// Number of seconds to add to each timestamp.
    offset_s: i64,
}

/// The conversion of an interface's clock ticks to nanoseconds.
#[derive(Clone, Copy, Debug)]
enum TickConversion {
    Multiply(u64),
    Divide(u128),
    /// One clock tick is 2⁻ⁿ seconds. Contains n.
    Binary(u8),
}

/// A complete pcapng block: its bytes from the type to the trailing length, and its offset in the
/// buffer.
#[derive(Clone, Copy)]
struct Block<'a> {
    bytes: &'a [u8],
    at: usize,
    big: bool,
}

/// Block type of a section header, the same number in both byte orders.
const SECTION_HEADER_BLOCK: u32 = 0x0a0d_0d0a;
/// Block type of an interface description.
const INTERFACE_DESCRIPTION_BLOCK: u32 = 1;
/// Block type of an obsolete packet block.
const OBSOLETE_PACKET_BLOCK: u32 = 2;
/// Block type of a simple packet block.
const SIMPLE_PACKET_BLOCK: u32 = 3;
/// Block type of an enhanced packet block.
const ENHANCED_PACKET_BLOCK: u32 = 6;

/// Minimum length of a pcapng block in bytes: a type and two lengths.
const BLOCK_LENGTH_MIN: u32 = 12;
/// Byte offset of the body in a pcapng block.
const BODY_OFFSET: usize = 8;
/// Length in bytes of the length field at the end of a block.
const TRAILER_LENGTH: usize = 4;
/// The value of [`TRAILER_LENGTH`] as a `u32`.
const TRAILER_LENGTH_U32: u32 = 4;
/// Number in a section header that reveals the byte order of the section.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Code of the option with the clock resolution of an interface (`if_tsresol`).
const IF_TSRESOL_OPTION: u16 = 9;
/// Code of the option with the clock offset of an interface in seconds (`if_tsoffset`).
const IF_TSOFFSET_OPTION: u16 = 14;

impl PcapngReader {
    pub(super) const fn new() -> Self {
        Self { big: false, interfaces: Vec::new(), skipping: None }
    }

    pub(super) const fn is_between_blocks(&self) -> bool {
        self.skipping.is_none()
    }

    /// Iterates over the link types of the interfaces in the current section.
    pub(super) fn link_types(&self) -> impl Iterator<Item = LinkType> {
        self.interfaces.iter().map(|interface| interface.link)
    }

    /// Processes blocks up to and including the next packet, and returns this packet.
    pub(super) fn next(&mut self, buffer: &[u8]) -> ReadResult {
        let mut at = 0;
        loop {
            at = self.continue_skip(buffer, at)?;
            let (kind, length) = self.read_block_header(buffer, at)?;
            let least = match kind {
                SECTION_HEADER_BLOCK => 28,
                INTERFACE_DESCRIPTION_BLOCK => 20,
                ENHANCED_PACKET_BLOCK | OBSOLETE_PACKET_BLOCK => 32,
                SIMPLE_PACKET_BLOCK => 16,
                _ => BLOCK_LENGTH_MIN,
            };
            if length < least || !length.is_multiple_of(4) {
                return Err(NoPacketReason::Invalid {
                    at,
                    why: FaultKind::BlockLength { kind, length },
                });
            }
            if least == BLOCK_LENGTH_MIN {
                self.skipping =
                    Some(SkipProgress { remaining: length - TRAILER_LENGTH_U32, length });
                continue;
            }
            let block = self.complete_block(buffer, at, length)?;
            at += length as usize;
            match kind {
                SECTION_HEADER_BLOCK => self.begin_section(block)?,
                INTERFACE_DESCRIPTION_BLOCK => self.add_interface(block)?,
                ENHANCED_PACKET_BLOCK => {
                    return self.read_timed_packet(block, block.u32(BODY_OFFSET));
                }
                OBSOLETE_PACKET_BLOCK => {
                    return self.read_timed_packet(block, block.u16(BODY_OFFSET).into());
                }
                _ => return self.read_simple_packet(block),
            }
        }
    }

    /// Continues to skip a block without packets or interfaces, if the previous call has begun to
    /// skip one. Returns the offset of the next block, which is `at` if there was nothing to skip.
    fn continue_skip(&mut self, buffer: &[u8], at: usize) -> Result<usize, NoPacketReason> {
        let Some(skip) = &mut self.skipping else { return Ok(at) };
        let held = buffer.len() - at;
        let step = held.min(skip.remaining as usize);
        skip.remaining -= u32::try_from(step).unwrap_or(skip.remaining);
        let at = at + step;
        let Some(trailer) = read_array(buffer, at).filter(|_| skip.remaining == 0) else {
            return Err(NoPacketReason::Incomplete { consumed: at, wanted: TRAILER_LENGTH });
        };
        let (before, after) = (skip.length, decode32(self.big, trailer));
        if before != after {
            return Err(NoPacketReason::Invalid {
                at,
                why: FaultKind::BlockTrailer { before, after },
            });
        }
        self.skipping = None;
        Ok(at + TRAILER_LENGTH)
    }

    /// Reads the type and length of the pcapng block at offset `at`. If the block is a section
    /// header, also sets the byte order.
    fn read_block_header(
        &mut self,
        buffer: &[u8],
        at: usize,
    ) -> Result<(u32, u32), NoPacketReason> {
        let head: [u8; BODY_OFFSET] = read_array(buffer, at)
            .ok_or(NoPacketReason::Incomplete { consumed: at, wanted: BODY_OFFSET })?;
        let [a, b, c, d, e, f, g, h] = head;
        if [a, b, c, d] == SECTION_MAGIC {
            let magic = read_array(buffer, at + BODY_OFFSET).ok_or(NoPacketReason::Incomplete {
                consumed: at,
                wanted: BODY_OFFSET + TRAILER_LENGTH,
            })?;
            self.big = match u32::from_be_bytes(magic) {
                BYTE_ORDER_MAGIC => true,
                other if other.swap_bytes() == BYTE_ORDER_MAGIC => false,
                magic => {
                    return Err(NoPacketReason::Invalid {
                        at,
                        why: FaultKind::ByteOrder { magic },
                    });
                }
            };
        }
        Ok((decode32(self.big, [a, b, c, d]), decode32(self.big, [e, f, g, h])))
    }

    fn complete_block<'a>(
        &self,
        buffer: &'a [u8],
        at: usize,
        length: u32,
    ) -> Result<Block<'a>, NoPacketReason> {
        if length > BLOCK_LENGTH_MAX {
            return Err(NoPacketReason::Invalid {
                at,
                why: FaultKind::TooLong { length, max: BLOCK_LENGTH_MAX },
            });
        }
        let wanted = length as usize;
        let bytes = buffer
            .get(at..at + wanted)
            .ok_or(NoPacketReason::Incomplete { consumed: at, wanted })?;
        let block = Block { bytes, at, big: self.big };
        let after = block.u32(wanted - TRAILER_LENGTH);
        if after != length {
            return Err(block.block_fault(FaultKind::BlockTrailer { before: length, after }));
        }
        Ok(block)
    }

    fn begin_section(&mut self, block: Block<'_>) -> Result<(), NoPacketReason> {
        let (major, minor) = (block.u16(BODY_OFFSET + 4), block.u16(BODY_OFFSET + 6));
        if !matches!((major, minor), (1, 0 | 2)) {
            return Err(block.block_fault(FaultKind::Version { format: "pcapng", major, minor }));
        }
        self.interfaces.clear();
        Ok(())
    }

    fn add_interface(&mut self, block: Block<'_>) -> Result<(), NoPacketReason> {
        if self.interfaces.len() > usize::from(u16::MAX) {
            return Err(block.block_fault(FaultKind::TooManyInterfaces));
        }
        let mut interface = Interface {
            link: LinkType(block.u16(BODY_OFFSET)),
            snap_length: block.u32(BODY_OFFSET + 4),
            resolution: TickConversion::Multiply(1_000),
            offset_s: 0,
        };
        block.for_each_option(BODY_OFFSET + 8, |code, value| {
            match (code, value) {
                (IF_TSRESOL_OPTION, &[value]) => {
                    interface.resolution = TickConversion::from_option(value)
                }
                (IF_TSOFFSET_OPTION, value) => {
                    interface.offset_s = decode64(block.big, read_array(value, 0)?) as i64;
                    return (value.len() == 8).then_some(());
                }
                (IF_TSRESOL_OPTION, _) => return None,
                _ => {}
            }
            Some(())
        })?;
        self.interfaces.push(interface);
        Ok(())
    }

    /// Reads an enhanced or obsolete packet block of the interface `number`.
    fn read_timed_packet(&self, block: Block<'_>, number: u32) -> ReadResult {
        let ticks =
            u64::from(block.u32(BODY_OFFSET + 4)) << 32 | u64::from(block.u32(BODY_OFFSET + 8));
        let lengths = [block.u32(BODY_OFFSET + 12), block.u32(BODY_OFFSET + 16)];
        self.build_packet(block, number, Some(ticks), lengths, BODY_OFFSET + 20)
    }

    /// Reads a simple packet block, which states only the wire length. The captured length is
    /// limited by the snap length of the first interface, where 0 means no limit.
    fn read_simple_packet(&self, block: Block<'_>) -> ReadResult {
        let wire = block.u32(BODY_OFFSET);
        let snap_length = self.interfaces.first().map_or(0, |interface| interface.snap_length);
        let captured = if snap_length == 0 { wire } else { wire.min(snap_length) };
        self.build_packet(block, 0, None, [captured, wire], BODY_OFFSET + 4)
    }

    fn build_packet(
        &self,
        block: Block<'_>,
        number: u32,
        ticks: Option<u64>,
        [captured, wire]: [u32; 2],
        data: usize,
    ) -> ReadResult {
        let described = u32::try_from(self.interfaces.len()).unwrap_or(u32::MAX);
        let interface = self.interfaces.get(number as usize);
        let (Some(interface), Ok(index)) = (interface, u16::try_from(number)) else {
            return Err(block.block_fault(FaultKind::Interface { interface: number, described }));
        };
        let max = interface.link.record_length_max().min(RECORD_DATA_MAX);
        if captured > max {
            return Err(block.block_fault(FaultKind::TooLong { length: captured, max }));
        }
        let held = block.bytes.len() - data - TRAILER_LENGTH;
        if captured as usize > held {
            let held = u32::try_from(held).unwrap_or(u32::MAX);
            return Err(block.block_fault(FaultKind::Overrun { length: captured, available: held }));
        }
        let start = block.at + data;
        Ok(Packet {
            time_ns: ticks.map_or(0, |ticks| interface.ticks_to_ns(ticks)),
            wire_length: wire,
            link: interface.link,
            interface: index,
            data: start..start + captured as usize,
            consumed: block.at + block.bytes.len(),
        })
    }
}

impl Block<'_> {
    fn u16(&self, at: usize) -> u16 {
        read_array(self.bytes, at).map_or(0, |bytes| decode16(self.big, bytes))
    }

    fn u32(&self, at: usize) -> u32 {
        read_array(self.bytes, at).map_or(0, |bytes| decode32(self.big, bytes))
    }

    const fn block_fault(&self, why: FaultKind) -> NoPacketReason {
        NoPacketReason::Invalid { at: self.at, why }
    }

    /// Calls `accept` with the code and value of each option, from offset `at` to the end of the
    /// option list or of the block. Fails if an option extends beyond the block, or if `accept`
    /// returns `None` because the option is invalid.
    fn for_each_option(
        &self,
        at: usize,
        mut accept: impl FnMut(u16, &[u8]) -> Option<()>,
    ) -> Result<(), NoPacketReason> {
        let mut at = at;
        while at + 2 * TRAILER_LENGTH <= self.bytes.len() {
            let (code, length) = (self.u16(at), self.u16(at + 2));
            if code == 0 {
                break;
            }
            let (start, end) = (at + 4, at + 4 + usize::from(length));
            let value =
                self.bytes.get(start..end).filter(|_| end + TRAILER_LENGTH <= self.bytes.len());
            value
                .and_then(|value| accept(code, value))
                .ok_or_else(|| self.block_fault(FaultKind::BadOption { code, length }))?;
            at = end.next_multiple_of(4);
        }
        Ok(())
    }
}

impl Interface {
    /// Converts ticks of this interface's clock to ns since 1970, saturating at the limits of u64.
    fn ticks_to_ns(&self, ticks: u64) -> u64 {
        let ns = match self.resolution {
            TickConversion::Multiply(factor) => u128::from(ticks) * u128::from(factor),
            TickConversion::Divide(divisor) => u128::from(ticks) / divisor,
            TickConversion::Binary(bits) => (u128::from(ticks) * 1_000_000_000) >> bits,
        };
        let offset_ns = i128::from(self.offset_s) * 1_000_000_000;
        let ns = i128::try_from(ns).unwrap_or(i128::MAX).saturating_add(offset_ns);
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

impl TickConversion {
    /// Decodes the option `if_tsresol`. Its value is the negative exponent of a power of ten, or of
    /// a power of two if the high bit is set.
    fn from_option(value: u8) -> Self {
        let power = value & 0x7f;
        if value & 0x80 != 0 {
            return Self::Binary(power);
        }
        match 9u32.checked_sub(power.into()) {
            Some(exponent) => Self::Multiply(10u64.pow(exponent)),
            None => {
                let exponent = u32::from(power) - 9;
                Self::Divide(10u128.checked_pow(exponent).unwrap_or(u128::MAX))
            }
        }
    }
}
