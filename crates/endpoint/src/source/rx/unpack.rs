//! The packets of a segment that has arrived, as entries.
//!
//! In: all bytes of a segment, as the kernel left them. Out: one entry per frame, which names it
//! where it lies. On the way a VLAN tag that the kernel took out of a frame is put back into its
//! place, so that a frame is what was on the wire (CONTRACT 3): the two addresses of Ethernet move
//! four bytes to the front, into room that every packet of the ring has before it.

use abi::{BlockMetadata, Class, DbufId, Entry, Extent, Flags, Marks, RichPointer};
use filter::general::bpf::link_type;
use sys::packet::layout::{BlockHeader, PacketHeader, PacketKind, VlanTag};
use wire::ethernet;
use wire::link::LinkType;

/// Bytes of a VLAN tag.
pub(super) const TAG: usize = 4;
const _: () = assert!(TAG <= sys::packet::layout::ROOM);

/// The contents of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Unpacked {
    /// Packets of which nobody here knows the link type.
    pub(super) strange: u64,
    /// Packets that the segment's header counts and that are not there: never, unless the kernel or
    /// we are wrong.
    pub(super) broken: u64,
}

/// Appends the entries of a segment, whose first byte lies at `position` of the dbuf.
pub(super) fn unpack(
    segment: &mut [u8],
    (dbuf, position): (DbufId, u64),
    origin: u16,
    entries: &mut Vec<Entry>,
) -> Unpacked {
    let Some(block) = BlockHeader::read(segment) else { return Unpacked::default() };
    let mut strange = 0;
    let mut left = u64::from(block.packets);
    let mut at = block.first;
    while left > 0
        && let Some(packet) = PacketHeader::read(segment, at)
    {
        left -= 1;
        match link_type(packet.link.hatype) {
            None => strange += 1,
            Some(link) => {
                let (from, length, wire_length) = frame(&packet, link, segment);
                let place = Extent::new(position, 0).within(from, length);
                let flags = flags(&packet);
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
    Unpacked { strange, broken: left }
}

fn flags(packet: &PacketHeader) -> Flags {
    let mut flags = Flags::NONE;
    if packet.link.kind == PacketKind::Outgoing {
        flags = flags.with(Flags::BACKWARD);
    }
    if packet.status.checksum_unset() {
        flags = flags.with(Flags::CHECKSUM_UNSET);
    }
    flags
}

/// Returns the offset of a frame, its bytes present, and its original length, with its tag in
/// place.
fn frame(packet: &PacketHeader, link: LinkType, segment: &mut [u8]) -> (u32, u32, u32) {
    let plain = (offset(packet.frame), packet.captured, packet.length);
    let Some(tag) = packet.vlan.filter(|_| link == LinkType::ETHERNET) else { return plain };
    if put_back(tag, packet.frame, segment).is_none() {
        return plain;
    }
    let tag = offset(TAG);
    (offset(packet.frame - TAG), packet.captured + tag, packet.length.saturating_add(tag))
}

/// Puts a tag behind the addresses of the frame that begins at `at`. `None`: the frame is too short
/// to have had one.
pub(super) fn put_back(tag: VlanTag, at: usize, segment: &mut [u8]) -> Option<()> {
    let room = segment.get_mut(at.checked_sub(TAG)?..at + ethernet::ETHERTYPE)?;
    room.copy_within(TAG.., 0);
    let (protocol, control) = room.get_mut(ethernet::ETHERTYPE..)?.split_at_mut_checked(2)?;
    protocol.copy_from_slice(&tag.protocol.to_be_bytes());
    control.copy_from_slice(&tag.control.to_be_bytes());
    Some(())
}

/// A segment is at most as long as a rich pointer can say.
fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
