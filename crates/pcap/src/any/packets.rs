//! Cooked packets, made in the buffer that contains their bytes.

use ebpf::classic::{LinkType, VlanTag};
use wire::linux_cooked::CookedHeader;

/// Offset in bytes at which the packet buffer stores a frame from a ring. The offset leaves room
/// for a cooked header and a VLAN tag before the packet in the frame, and aligns this packet to 4
/// bytes.
pub(crate) const FRAME_OFFSET: usize = 14;
/// Offset in bytes at which a packet from the packet socket is stored in the packet buffer.
pub(super) const PACKET_OFFSET: usize = 32;

/// A packet in the packet buffer, before its cooked header is written in front of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// The cooked header of the packet.
    pub(crate) header: CookedHeader,
    /// VLAN tag that the kernel has removed from the packet.
    pub(crate) vlan: Option<VlanTag>,
    /// Offset of the packet in the buffer, in bytes.
    pub(crate) offset: usize,
    /// Number of captured bytes.
    pub(crate) captured: usize,
    /// Length of the packet in bytes.
    pub(crate) length: u32,
    /// Time of day of the packet, in nanoseconds since 1970.
    pub(crate) time_ns: u64,
    /// True if the packet comes from the packet socket, and false if it comes from a ring.
    pub(crate) is_from_socket: bool,
}

/// A packet in the packet buffer, with its cooked header in front of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FinishedPacket {
    /// Offset of the cooked header in the buffer, in bytes.
    pub(crate) offset: usize,
    /// Number of captured bytes, including the cooked header.
    pub(crate) captured: usize,
    /// Length of the packet in bytes, including the header and the bytes that were not captured.
    pub(crate) length: u32,
}

impl Packet {
    /// Writes a cooked header for this link type in front of the packet. For a header of version 1,
    /// also restores a removed VLAN tag, as libpcap does. Returns `None` if the link type has no
    /// cooked header.
    pub(crate) fn write_cooked_header(
        &self,
        link: LinkType,
        buffer: &mut [u8],
    ) -> Option<FinishedPacket> {
        let Self { mut header, mut offset, .. } = *self;
        if let (Some(tag), LinkType::LINUX_SLL) = (self.vlan, link) {
            let words = [tag.tci.to_be_bytes(), header.protocol.to_be_bytes()];
            offset = offset.checked_sub(words.as_flattened().len())?;
            buffer.get_mut(offset..self.offset)?.copy_from_slice(words.as_flattened());
            header.protocol = tag.tpid;
        }
        let link = wire::LinkType(u16::try_from(link.0).ok()?);
        offset -= header.write_header_before(link, buffer.get_mut(..offset)?)?;
        let added = self.offset - offset;
        let length = self.length.saturating_add(u32::try_from(added).ok()?);
        Some(FinishedPacket { offset, captured: self.captured + added, length })
    }
}
