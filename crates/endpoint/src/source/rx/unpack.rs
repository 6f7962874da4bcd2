//! Conversion of the packets in a received segment to entries.
//!
//! Each frame in a segment becomes one entry and is not copied. A VLAN tag that the kernel has
//! removed is reinserted, so that the frame equals the frame on the wire (CONTRACT 3): the two
//! Ethernet addresses move four bytes towards the start of the segment, into the headroom that
//! every packet in the ring has.

use abi::{BlockFlags, BlockMetadata, Class, DbufId, Entry, Extent, Marks, RichPointer};
use filter::general::bpf::link_type;
use sys::packet::layout::{BlockHeader, PacketHeader, PacketKind, VlanTag};
use wire::ethernet;
use wire::link::LinkType;

/// Length of a VLAN tag in bytes.
pub(super) const TAG_SIZE: usize = 4;
const _: () = assert!(TAG_SIZE <= sys::packet::layout::FRAME_PADDING);

/// Numbers of the packets in a received segment that did not become blocks, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SkippedPackets {
    /// Number of packets with an unsupported link type.
    pub(super) unknown_link: u64,
    /// Number of packets that the segment's header counts but the segment does not contain. Always
    /// 0 unless the kernel or this code has a bug.
    pub(super) missing_packets: u64,
}

/// Appends one entry for each frame in a segment to `entries`. `position` is the position of the
/// segment's first byte in `dbuf`. Returns the numbers of packets for which there is no entry, by
/// reason.
pub(super) fn unpack(
    segment: &mut [u8],
    (dbuf, position): (DbufId, u64),
    origin: u16,
    entries: &mut Vec<Entry>,
) -> SkippedPackets {
    let Some(block) = BlockHeader::read(segment) else { return SkippedPackets::default() };
    let mut unknown_link = 0;
    let mut left = u64::from(block.packets);
    let mut at = block.first;
    while left > 0
        && let Some(packet) = PacketHeader::read(segment, at)
    {
        left -= 1;
        match link_type(packet.link.hatype) {
            None => unknown_link += 1,
            Some(link) => {
                let (from, length, wire_length) = reinsert_frame_tag(&packet, link, segment);
                let place = Extent::new(position, 0).subrange(from, length);
                let flags = packet_flags(&packet);
                let context = BlockMetadata { time: packet.time_ns, session: 0, origin, flags };
                let marks = Marks::frame(link.0, length, wire_length);
                let pointer = RichPointer::new(dbuf, place, Class::YES);
                entries.push(Entry::new(pointer, context, marks));
            }
        }
        if packet.next <= at {
            break;
        }
        at = packet.next;
    }
    SkippedPackets { unknown_link, missing_packets: left }
}

fn packet_flags(packet: &PacketHeader) -> BlockFlags {
    let mut flags = BlockFlags::NONE;
    if packet.link.kind == PacketKind::Outgoing {
        flags = flags.with(BlockFlags::BACKWARD);
    }
    if packet.status.has_unset_checksum() {
        flags = flags.with(BlockFlags::CHECKSUM_UNSET);
    }
    flags
}

/// Reinserts the VLAN tag of a frame, if the kernel has removed one and there is room for it before
/// the frame. Returns the offset, the captured length and the original length of the resulting
/// frame.
fn reinsert_frame_tag(
    packet: &PacketHeader,
    link: LinkType,
    segment: &mut [u8],
) -> (u32, u32, u32) {
    let plain = (to_segment_offset(packet.frame), packet.captured, packet.length);
    let Some(tag) = packet.vlan.filter(|_| link == LinkType::ETHERNET) else { return plain };
    if reinsert_tag_bytes(tag, packet.frame, segment).is_none() {
        return plain;
    }
    let tag = to_segment_offset(TAG_SIZE);
    (
        to_segment_offset(packet.frame - TAG_SIZE),
        packet.captured + tag,
        packet.length.saturating_add(tag),
    )
}

/// Inserts a tag after the addresses of the frame that begins at `at`. The frame then begins
/// [`TAG_SIZE`] bytes earlier. Returns `None` if the frame is too short for a tag, or if there is
/// no room before it.
pub(super) fn reinsert_tag_bytes(tag: VlanTag, at: usize, segment: &mut [u8]) -> Option<()> {
    let room = segment.get_mut(at.checked_sub(TAG_SIZE)?..at + ethernet::ETHERTYPE_FIELD_OFFSET)?;
    room.copy_within(TAG_SIZE.., 0);
    let (protocol, control) =
        room.get_mut(ethernet::ETHERTYPE_FIELD_OFFSET..)?.split_at_mut_checked(2)?;
    protocol.copy_from_slice(&tag.protocol.to_be_bytes());
    control.copy_from_slice(&tag.control.to_be_bytes());
    Some(())
}

/// Converts an offset within a segment of the packet ring to 32 bits. A segment is at most
/// `BLOCK_MAX` bytes long, so the offset fits.
fn to_segment_offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
