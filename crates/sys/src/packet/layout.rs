//! What stands in a segment of a packet ring (TPACKET_V3, `linux/if_packet.h`): the block's header,
//! then packets, each a header, the address of the link layer, room, and the frame.
//!
//! Bytes in, plain values out; no access to the ring itself. The bytes were written by the kernel,
//! yet every offset is checked against the block: a mistake on either side costs a packet and
//! never a panic.

/// Bytes of a packet's header with the address of the link layer behind it.
pub const HEADER: usize = LINK + 20;
/// Bytes before an Ethernet frame that belong to nobody, without any reserve: the kernel aligns
/// layer 3 to 16 bytes and leaves at least 16 for the header of layer 2.
pub const ROOM: usize = 14;

/// `struct tpacket_block_desc`.
const BLOCK: usize = 48;
/// Where `struct sockaddr_ll` stands behind `struct tpacket3_hdr`.
const LINK: usize = 48;
/// TPACKET_V3 in the header of a block.
const VERSION: u32 = 2;

const LOSING: u32 = 1 << 2;
const TIMED_OUT: u32 = 1 << 5;

/// Where the status of a block stands, seen from its first byte.
pub(super) const STATUS: usize = 8;

/// The header of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// How many packets are in it.
    pub packets: u32,
    /// Where the first header begins.
    pub first: usize,
    /// Bytes that are in use.
    pub used: usize,
    /// Counts blocks, from 1.
    pub sequence: u64,
    /// It came because time was up, not because it was full.
    pub timed_out: bool,
    /// Packets were dropped since the statistics were read.
    pub losing: bool,
}

impl BlockHeader {
    /// Reads the header of the block that begins here. None where it makes no sense.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let status = word(bytes, STATUS)?;
        let block = Self {
            packets: word(bytes, 12)?,
            first: place(bytes, 16)?,
            used: place(bytes, 20)?,
            sequence: u64::from_ne_bytes(field(bytes, 24)?),
            timed_out: status & TIMED_OUT != 0,
            losing: status & LOSING != 0,
        };
        let whole = block.first >= BLOCK && block.first <= bytes.len() && block.used <= bytes.len();
        (word(bytes, 0)? == VERSION && (whole || block.packets == 0)).then_some(block)
    }
}

/// The header of a packet and what it says about the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketHeader {
    /// Where the header stands in the block.
    pub at: usize,
    /// Where the next header stands; 0 where this packet is the last.
    pub next: usize,
    /// Where the frame begins; with `captured` it lies in the block.
    pub frame: usize,
    /// Where layer 3 begins, as the kernel sees it; in the frame, or at its end.
    pub network: usize,
    /// Bytes of the frame that are here.
    pub captured: u32,
    /// Bytes that the frame had, without the tag that was taken out.
    pub length: u32,
    /// When it passed, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Remarks of the kernel.
    pub status: PacketStatus,
    /// The tag that the kernel took out of the frame.
    pub vlan: Option<VlanTag>,
    /// Where the frame came from.
    pub link: LinkAddress,
}

impl PacketHeader {
    /// Reads the header that begins at `at`. None where it does not lie in the block, or the frame
    /// does not.
    #[must_use]
    pub fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let header = bytes.get(at..at.checked_add(HEADER)?)?;
        let status = PacketStatus(word(header, 20)?);
        let distance = place(header, 0)?;
        let captured = word(header, 12)?;
        let frame = at.checked_add(usize::from(half(header, 24)?))?;
        let network = at.checked_add(usize::from(half(header, 26)?))?;
        let end = frame.checked_add(usize::try_from(captured).ok()?)?;
        if frame < at.checked_add(HEADER)? || end > bytes.len() {
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

/// An IEEE 802.1Q tag beside its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VlanTag {
    /// The tag's protocol: 0x8100, 0x88a8.
    pub protocol: u16,
    /// Priority, drop eligibility and the number of the VLAN.
    pub control: u16,
}

impl VlanTag {
    fn read(header: &[u8], status: PacketStatus) -> Option<Self> {
        const CONTROL_VALID: u32 = 1 << 4;
        const PROTOCOL_VALID: u32 = 1 << 6;
        if status.0 & CONTROL_VALID == 0 {
            return None;
        }
        let known = status.0 & PROTOCOL_VALID != 0;
        Some(Self {
            protocol: if known { half(header, 36)? } else { 0x8100 },
            control: u16::try_from(word(header, 32)? & 0xffff).ok()?,
        })
    }
}

/// Remarks of the kernel about a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketStatus(pub u32);

impl PacketStatus {
    /// Frames were dropped since the statistics were read.
    #[must_use]
    pub const fn losing(self) -> bool {
        self.0 & LOSING != 0
    }

    /// The checksum of layer 4 has not been computed: the device would have done it.
    #[must_use]
    pub const fn checksum_unset(self) -> bool {
        self.0 & (1 << 3) != 0
    }

    /// The device has found the checksum of layer 4 right.
    #[must_use]
    pub const fn checksum_valid(self) -> bool {
        self.0 & (1 << 7) != 0
    }

    /// The time is that of the device.
    #[must_use]
    pub const fn hardware_time(self) -> bool {
        self.0 & (1 << 31) != 0
    }
}

/// Where a frame came from (`struct sockaddr_ll`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkAddress {
    /// What kind of link it is (ARPHRD_*).
    pub hatype: u16,
    /// Whom it was for.
    pub kind: PacketKind,
    /// The interface's number.
    pub index: u32,
    /// The protocol of layer 3 as an EtherType, in the order of the processor.
    pub protocol: u16,
}

impl LinkAddress {
    fn read(header: &[u8]) -> Option<Self> {
        Some(Self {
            protocol: u16::from_be_bytes(field(header, LINK + 2)?),
            index: word(header, LINK + 4)?,
            hatype: half(header, LINK + 8)?,
            kind: PacketKind::of(*header.get(LINK + 10)?),
        })
    }
}

/// Whom a frame was for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketKind {
    /// This host.
    Host,
    /// All.
    Broadcast,
    /// A group.
    Multicast,
    /// Somebody else; seen because the interface is promiscuous.
    Other,
    /// Whoever is out there: this host sent it.
    Outgoing,
    /// This host sent it to a group that it is in.
    Loopback,
    /// A number that is not known here.
    Unknown(u8),
}

impl PacketKind {
    const fn of(number: u8) -> Self {
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

/// The packets of the block that begins here, in their order. None where its header makes no sense.
#[must_use]
pub fn packets(bytes: &[u8]) -> Option<Packets<'_>> {
    let block = BlockHeader::read(bytes)?;
    Some(Packets { bytes, at: block.first, left: block.packets, broken: false })
}

/// Walks over the packets of a block. It always ends: headers only go forward.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    bytes: &'a [u8],
    at: usize,
    left: u32,
    broken: bool,
}

impl Packets<'_> {
    /// How many packets the block says are still to come.
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.left
    }

    /// Whether the walk ended at a header that made no sense: [`Packets::left`] packets are lost.
    #[must_use]
    pub const fn broken(&self) -> bool {
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

fn place(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(word(bytes, at)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::random::Random;

    fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
        bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// A block of two packets, written field by field as `linux/if_packet.h` has them.
    fn block() -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        put(&mut bytes, 0, &2_u32.to_ne_bytes());
        put(&mut bytes, 8, &(1_u32 | TIMED_OUT).to_ne_bytes());
        put(&mut bytes, 12, &2_u32.to_ne_bytes());
        put(&mut bytes, 16, &48_u32.to_ne_bytes());
        put(&mut bytes, 20, &600_u32.to_ne_bytes());
        put(&mut bytes, 24, &7_u64.to_ne_bytes());
        for (at, next, status) in [(48, 160_u32, 0x51_u32), (208, 0, 0x19)] {
            put(&mut bytes, at, &next.to_ne_bytes());
            put(&mut bytes, at + 4, &3_u32.to_ne_bytes());
            put(&mut bytes, at + 8, &9_u32.to_ne_bytes());
            put(&mut bytes, at + 12, &60_u32.to_ne_bytes());
            put(&mut bytes, at + 16, &1500_u32.to_ne_bytes());
            put(&mut bytes, at + 20, &status.to_ne_bytes());
            put(&mut bytes, at + 24, &82_u16.to_ne_bytes());
            put(&mut bytes, at + 26, &96_u16.to_ne_bytes());
            put(&mut bytes, at + 32, &0x2007_u32.to_ne_bytes());
            put(&mut bytes, at + 36, &0x88a8_u16.to_ne_bytes());
            put(&mut bytes, at + 50, &0x0800_u16.to_be_bytes());
            put(&mut bytes, at + 52, &5_u32.to_ne_bytes());
            put(&mut bytes, at + 56, &1_u16.to_ne_bytes());
            put(&mut bytes, at + 58, &[4, 6]);
        }
        bytes
    }

    #[test]
    fn a_block_is_read_as_the_kernel_writes_it() {
        let bytes = block();
        let head = BlockHeader::read(&bytes).unwrap();
        assert_eq!((head.packets, head.first, head.used, head.sequence), (2, 48, 600, 7));
        assert!(head.timed_out && !head.losing);
        let mut walk = packets(&bytes).unwrap();
        let [first, second] = [walk.next().unwrap(), walk.next().unwrap()];
        assert_eq!((walk.next(), walk.left(), walk.broken()), (None, 0, false));
        assert_eq!((first.at, first.frame, first.network, first.next), (48, 130, 144, 208));
        assert_eq!((first.captured, first.length, first.time_ns), (60, 1500, 3_000_000_009));
        assert_eq!(first.vlan, Some(VlanTag { protocol: 0x88a8, control: 0x2007 }));
        assert_eq!(second.vlan, Some(VlanTag { protocol: 0x8100, control: 0x2007 }));
        assert!(second.status.checksum_unset() && !first.status.checksum_unset());
        let link = LinkAddress { hatype: 1, kind: PacketKind::Outgoing, index: 5, protocol: 0x0800 };
        assert_eq!((first.link, second.link), (link, link));
    }

    #[test]
    fn a_chain_that_goes_back_or_out_ends() {
        let mut bytes = block();
        put(&mut bytes, 48, &0_u32.to_ne_bytes());
        let mut walk = packets(&bytes).unwrap();
        assert_eq!((walk.by_ref().count(), walk.left(), walk.broken()), (1, 1, true));
        put(&mut bytes, 48, &u32::MAX.to_ne_bytes());
        let mut walk = packets(&bytes).unwrap();
        assert_eq!((walk.by_ref().count(), walk.left(), walk.broken()), (1, 1, true));
        put(&mut bytes, 48 + 12, &5000_u32.to_ne_bytes());
        let mut walk = packets(&bytes).unwrap();
        assert_eq!((walk.by_ref().count(), walk.left(), walk.broken()), (0, 2, true));
        put(&mut bytes, 0, &1_u32.to_ne_bytes());
        assert!(packets(&bytes).is_none(), "another version");
        assert!(packets(&[]).is_none() && packets(&bytes[..40]).is_none());
    }

    /// Whatever stands in a block: no panic, an end, and frames that lie in it.
    #[test]
    fn senseless_bytes_do_no_harm() {
        let mut random = Random::replayable();
        for _ in 0..20_000 {
            let mut bytes = block();
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
