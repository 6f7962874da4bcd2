//! Layout of a block in a packet ring (TPACKET_V3, `linux/if_packet.h`). A block header is
//! followed, per packet, by a packet header, a link-layer address, headroom, and the frame.
//!
//! Parses bytes into plain values without access to the ring. The kernel wrote the bytes, yet every
//! offset is checked against the block: a mistake on either side costs a packet, never a panic.

/// Size in bytes of a packet's header, including the link-layer address.
pub const PACKET_HEADER_SIZE: usize = LINK_ADDRESS_OFFSET + 20;
/// Number of free bytes before an Ethernet frame in a ring whose `reserve` is 0. The kernel aligns
/// layer 3 to 16 bytes and leaves at least 16 bytes for the layer 2 header.
pub const FRAME_PADDING: usize = 14;

/// Size in bytes of `struct tpacket_block_desc`.
const BLOCK_HEADER_SIZE: usize = 48;
/// Byte offset of `struct sockaddr_ll`, which follows `struct tpacket3_hdr`.
const LINK_ADDRESS_OFFSET: usize = 48;
/// Version number of TPACKET_V3 in a block's header.
const TPACKET_BLOCK_VERSION: u32 = 2;

/// TP_STATUS_LOSING: packets were dropped since the last read of the statistics.
const TP_STATUS_LOSING: u32 = 1 << 2;
/// TP_STATUS_BLK_TMO: the block was retired by its timeout.
const TP_STATUS_BLK_TMO: u32 = 1 << 5;

/// Byte offset of the status word in a block header.
pub(super) const STATUS_OFFSET: usize = 8;

/// The header of a block of packets in a packet ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// Number of packets in the block.
    pub packets: u32,
    /// Byte offset of the first packet header in the block.
    pub first: usize,
    /// Number of bytes of the block that are in use, including its header.
    pub used: usize,
    /// Sequence number of the block, counted from 1.
    pub sequence: u64,
    /// True if the kernel retired the block because of its timeout rather than because it was full.
    pub timed_out: bool,
    /// True if packets were dropped after the last read of the statistics.
    pub has_drops: bool,
}

impl BlockHeader {
    /// Parses the block header at the start of `bytes`; returns `None` if the header is invalid.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let status = word(bytes, STATUS_OFFSET)?;
        let block = Self {
            packets: word(bytes, 12)?,
            first: offset_at(bytes, 16)?,
            used: offset_at(bytes, 20)?,
            sequence: u64::from_ne_bytes(field(bytes, 24)?),
            timed_out: status & TP_STATUS_BLK_TMO != 0,
            has_drops: status & TP_STATUS_LOSING != 0,
        };
        let whole = block.first >= BLOCK_HEADER_SIZE
            && block.first <= bytes.len()
            && block.used <= bytes.len();
        (word(bytes, 0)? == TPACKET_BLOCK_VERSION && (whole || block.packets == 0)).then_some(block)
    }
}

/// The header of a packet in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketHeader {
    /// Byte offset of this header in the block.
    pub at: usize,
    /// Byte offset of the next header in the block; 0 for the last packet.
    pub next: usize,
    /// Byte offset of the frame in the block. All `captured` bytes are inside the block.
    pub frame: usize,
    /// Byte offset of layer 3 in the block, as determined by the kernel and clamped to the frame.
    pub network: usize,
    /// Captured length of the packet in bytes.
    pub captured: u32,
    /// Length on the wire in bytes, excluding a VLAN tag that the kernel removed.
    pub length: u32,
    /// Time at which the packet was received or sent, in ns since 1970.
    pub time_ns: u64,
    /// Status flags of the packet.
    pub status: PacketStatus,
    /// VLAN tag that the kernel removed from the frame; `None` if there was none.
    pub vlan: Option<VlanTag>,
    /// Link-layer address of the packet's sender, with link type, packet type and interface.
    pub link: LinkAddress,
}

impl PacketHeader {
    /// Parses the packet header at `at`; returns `None` if the header or the frame is outside the
    /// block.
    #[must_use]
    pub fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let header = bytes.get(at..at.checked_add(PACKET_HEADER_SIZE)?)?;
        let status = PacketStatus(word(header, 20)?);
        let distance = offset_at(header, 0)?;
        let captured = word(header, 12)?;
        let frame = at.checked_add(usize::from(half(header, 24)?))?;
        let network = at.checked_add(usize::from(half(header, 26)?))?;
        let end = frame.checked_add(usize::try_from(captured).ok()?)?;
        if frame < at.checked_add(PACKET_HEADER_SIZE)? || end > bytes.len() {
            return None;
        }
        let time = u64::from(word(header, 4)?) * 1_000_000_000;
        Some(Self {
            at,
            next: if distance == 0 { 0 } else { at.checked_add(distance)? },
            frame,
            network: network.clamp(frame, end),
            captured,
            length: word(header, 16)?,
            time_ns: time.saturating_add(u64::from(word(header, 8)?)),
            status,
            vlan: VlanTag::read(header, status),
            link: LinkAddress::read(header)?,
        })
    }
}

/// An IEEE 802.1Q tag delivered separately from its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VlanTag {
    /// Tag protocol identifier: 0x8100 or 0x88a8.
    pub protocol: u16,
    /// Tag control information: priority, drop eligibility and VLAN id.
    pub control: u16,
}

impl VlanTag {
    fn read(header: &[u8], status: PacketStatus) -> Option<Self> {
        let control = u16::try_from(word(header, 32)? & 0xffff).ok()?;
        Self::from_fields(status, control, half(header, 36)?)
    }

    /// Reads the VLAN tag from `struct tpacket_auxdata`; `None` if it states no tag.
    pub(super) fn from_auxiliary_data(data: &[u8]) -> Option<Self> {
        Self::from_fields(PacketStatus(word(data, 0)?), half(data, 16)?, half(data, 18)?)
    }

    fn from_fields(status: PacketStatus, control: u16, protocol: u16) -> Option<Self> {
        const VLAN_TCI_VALID: u32 = 1 << 4;
        const VLAN_PROTOCOL_VALID: u32 = 1 << 6;
        if status.0 & VLAN_TCI_VALID == 0 {
            return None;
        }
        let known = status.0 & VLAN_PROTOCOL_VALID != 0;
        Some(Self { protocol: if known { protocol } else { 0x8100 }, control })
    }
}

/// The status flags of a packet (TP_STATUS_*).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketStatus(pub u32);

impl PacketStatus {
    /// Returns true if the kernel dropped frames after the last read of the socket's statistics.
    #[must_use]
    pub const fn is_losing(self) -> bool {
        self.0 & TP_STATUS_LOSING != 0
    }

    /// Returns true if the sender left the layer 4 checksum to the device, so that the checksum
    /// field is not filled in.
    #[must_use]
    pub const fn has_unset_checksum(self) -> bool {
        self.0 & (1 << 3) != 0
    }
}

/// The link-layer address of a packet (`struct sockaddr_ll`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkAddress {
    /// Link type of the interface (ARPHRD_*).
    pub hatype: u16,
    /// Packet type: the addressee of the packet, or whether this host sent it.
    pub kind: PacketKind,
    /// Index of the interface that received or sent the packet.
    pub index: u32,
    /// EtherType of the layer 3 protocol, in host byte order.
    pub protocol: u16,
}

impl LinkAddress {
    fn read(header: &[u8]) -> Option<Self> {
        Some(Self {
            protocol: u16::from_be_bytes(field(header, LINK_ADDRESS_OFFSET + 2)?),
            index: word(header, LINK_ADDRESS_OFFSET + 4)?,
            hatype: half(header, LINK_ADDRESS_OFFSET + 8)?,
            kind: PacketKind::from_number(*header.get(LINK_ADDRESS_OFFSET + 10)?),
        })
    }
}

/// The packet type (PACKET_*): the addressee of a packet, or whether this host sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketKind {
    /// The packet was sent to this host.
    Host,
    /// The packet was sent to the broadcast address.
    Broadcast,
    /// The packet was sent to a multicast address.
    Multicast,
    /// The packet was sent to another host, and received because the interface is promiscuous.
    Other,
    /// The packet was sent by this host.
    Outgoing,
    /// The packet was sent by this host to a multicast group of which this host is a member.
    Loopback,
    /// Any other packet type, by number.
    Unknown(u8),
}

impl PacketKind {
    const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Host,
            1 => Self::Broadcast,
            2 => Self::Multicast,
            3 => Self::Other,
            4 => Self::Outgoing,
            5 => Self::Loopback,
            other => Self::Unknown(other),
        }
    }
}

/// Returns an iterator over the packets of a block; `None` if the block header is invalid.
#[must_use]
pub fn packets(bytes: &[u8]) -> Option<Packets<'_>> {
    let block = BlockHeader::read(bytes)?;
    Some(Packets { bytes, at: block.first, left: block.packets, broken: false })
}

/// An iterator over the packets of a block. Always ends, because each header must lie beyond the
/// previous one.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    bytes: &'a [u8],
    at: usize,
    left: u32,
    broken: bool,
}

impl Packets<'_> {
    /// Returns the number of packets that the iterator has not returned yet, according to the block
    /// header.
    #[must_use]
    pub const fn remaining(&self) -> u32 {
        self.left
    }

    /// Returns true if iteration stopped at an invalid header, in which case [`Packets::left`]
    /// packets are lost.
    #[must_use]
    pub const fn is_broken(&self) -> bool {
        self.broken
    }
}

impl Iterator for Packets<'_> {
    type Item = PacketHeader;

    fn next(&mut self) -> Option<PacketHeader> {
        if self.left == 0 || self.broken {
            return None;
        }
        let Some(packet) = PacketHeader::read(self.bytes, self.at) else {
            self.broken = true;
            return None;
        };
        self.left -= 1;
        self.broken = self.left > 0 && packet.next <= self.at;
        self.at = packet.next;
        Some(packet)
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    field(bytes, at).map(u32::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    field(bytes, at).map(u16::from_ne_bytes)
}

fn offset_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(word(bytes, at)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::random::Random;

    fn put_bytes(bytes: &mut [u8], at: usize, value: &[u8]) {
        bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// Builds a block of two packets, field by field, in the layout of `linux/if_packet.h`.
    fn build_block() -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        put_bytes(&mut bytes, 0, &2_u32.to_ne_bytes());
        put_bytes(&mut bytes, 8, &(1_u32 | TP_STATUS_BLK_TMO).to_ne_bytes());
        put_bytes(&mut bytes, 12, &2_u32.to_ne_bytes());
        put_bytes(&mut bytes, 16, &48_u32.to_ne_bytes());
        put_bytes(&mut bytes, 20, &600_u32.to_ne_bytes());
        put_bytes(&mut bytes, 24, &7_u64.to_ne_bytes());
        for (at, next, status) in [(48, 160_u32, 0x51_u32), (208, 0, 0x19)] {
            put_bytes(&mut bytes, at, &next.to_ne_bytes());
            put_bytes(&mut bytes, at + 4, &3_u32.to_ne_bytes());
            put_bytes(&mut bytes, at + 8, &9_u32.to_ne_bytes());
            put_bytes(&mut bytes, at + 12, &60_u32.to_ne_bytes());
            put_bytes(&mut bytes, at + 16, &1500_u32.to_ne_bytes());
            put_bytes(&mut bytes, at + 20, &status.to_ne_bytes());
            put_bytes(&mut bytes, at + 24, &82_u16.to_ne_bytes());
            put_bytes(&mut bytes, at + 26, &96_u16.to_ne_bytes());
            put_bytes(&mut bytes, at + 32, &0x2007_u32.to_ne_bytes());
            put_bytes(&mut bytes, at + 36, &0x88a8_u16.to_ne_bytes());
            put_bytes(&mut bytes, at + 50, &0x0800_u16.to_be_bytes());
            put_bytes(&mut bytes, at + 52, &5_u32.to_ne_bytes());
            put_bytes(&mut bytes, at + 56, &1_u16.to_ne_bytes());
            put_bytes(&mut bytes, at + 58, &[4, 6]);
        }
        bytes
    }

    #[test]
    fn packet_block_of_the_kernel_is_parsed() {
        let bytes = build_block();
        let head = BlockHeader::read(&bytes).unwrap();
        assert_eq!((head.packets, head.first, head.used, head.sequence), (2, 48, 600, 7));
        assert!(head.timed_out && !head.has_drops);
        let mut walk = packets(&bytes).unwrap();
        let [first, second] = [walk.next().unwrap(), walk.next().unwrap()];
        assert_eq!((walk.next(), walk.remaining(), walk.is_broken()), (None, 0, false));
        assert_eq!((first.at, first.frame, first.network, first.next), (48, 130, 144, 208));
        assert_eq!((first.captured, first.length, first.time_ns), (60, 1500, 3_000_000_009));
        assert_eq!(first.vlan, Some(VlanTag { protocol: 0x88a8, control: 0x2007 }));
        assert_eq!(second.vlan, Some(VlanTag { protocol: 0x8100, control: 0x2007 }));
        assert!(second.status.has_unset_checksum() && !first.status.has_unset_checksum());
        let link =
            LinkAddress { hatype: 1, kind: PacketKind::Outgoing, index: 5, protocol: 0x0800 };
        assert_eq!((first.link, second.link), (link, link));
    }

    #[test]
    fn invalid_packet_offset_ends_iteration() {
        let mut bytes = build_block();
        put_bytes(&mut bytes, 48, &0_u32.to_ne_bytes());
        let mut walk = packets(&bytes).unwrap();
        assert_eq!((walk.by_ref().count(), walk.remaining(), walk.is_broken()), (1, 1, true));
        put_bytes(&mut bytes, 48, &u32::MAX.to_ne_bytes());
        let mut walk = packets(&bytes).unwrap();
        assert_eq!((walk.by_ref().count(), walk.remaining(), walk.is_broken()), (1, 1, true));
        put_bytes(&mut bytes, 48 + 12, &5000_u32.to_ne_bytes());
        let mut walk = packets(&bytes).unwrap();
        assert_eq!((walk.by_ref().count(), walk.remaining(), walk.is_broken()), (0, 2, true));
        put_bytes(&mut bytes, 0, &1_u32.to_ne_bytes());
        assert!(packets(&bytes).is_none(), "another version");
        assert!(packets(&[]).is_none() && packets(&bytes[..40]).is_none());
    }

    /// Fuzzes a block and checks that the parser never panics, always ends, and returns only frames
    /// inside the block.
    #[test]
    fn malformed_packet_blocks_parse_without_panic() {
        let mut random = Random::with_replayable_seed();
        for _ in 0..20_000 {
            let mut bytes = build_block();
            for _ in 0..random.below(12) {
                let at = random.below(300) as usize;
                bytes[at] = random.below(256) as u8;
            }
            bytes.truncate(random.below(4097) as usize);
            let Some(walk) = packets(&bytes) else { continue };
            let mut before = 0;
            for packet in walk {
                assert!(packet.at > before, "forward");
                before = packet.at;
                assert!(packet.frame + packet.captured as usize <= bytes.len());
            }
        }
    }
}
