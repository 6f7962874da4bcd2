//! What a fragment says: which datagram it belongs to, and which bytes of it it carries.
//!
//! In: a block. Out: a [`Piece`], or why the fragment cannot be used. The transport header behind
//! the IP headers is not looked at: in a tiny fragment it may not be here.

use super::overlap::Policy;
use crate::layers::{self, Missing};
use crate::prelude::*;
use std::hash::{DefaultHasher, Hasher};
use wire::ip::Fragment;
use wire::ipv4::Ipv4;
use wire::ipv6::{self, Ipv6};
use wire::link::Network;
use wire::{Layers, LinkType, checksum, ipv4};

/// The longest packet that IPv4 can state, and the longest behind a fixed IPv6 header.
const LENGTH_MAX: u32 = 65_535;

/// A fragment of a datagram. Places in the frame count from its first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// Where its data begin in the frame.
    pub(super) data: u32,
    /// Where they belong in the datagram's data.
    pub(super) offset: u32,
    /// How many they are; a multiple of 8 unless it is the last.
    pub(super) length: u32,
    /// Whether the datagram ends with it.
    pub(super) last: bool,
    /// Its IP headers.
    pub(super) head: Head,
}

/// The IP headers of a fragment, as far as they are those of the whole datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// Where they begin in the frame.
    from: u32,
    /// Where they end: IPv4 at the data, IPv6 at the fragment header.
    to: u32,
    /// Of IPv6: where the fragment header is announced, and what is to stand there instead.
    announced: Option<(u32, u8)>,
}

impl Piece {
    /// The fragment in the frame; `None`: what lies there is none, or nobody can tell.
    pub(super) fn find(block: &Block<'_>, policy: Policy) -> Option<Result<Self, Missing>> {
        let frame = layers::head(block);
        let layers = wire::layers(LinkType(block.marks.link), frame);
        let from = layers.l3?;
        let packet = frame.get(usize::from(from)..)?;
        let found = match layers.network {
            Network::Ipv4 => Self::four(packet, from.into())?,
            Network::Ipv6 => Self::six(packet, from.into())?,
            _ => return None,
        };
        Some(found.and_then(|piece| piece.fits(block, policy)))
    }

    fn four(packet: &[u8], from: u32) -> Option<Result<Self, Missing>> {
        let (ip, _) = Ipv4::parse(packet)?;
        let header = u32::from(ip.header_length());
        if ip.version() != 4 || header < ipv4::LENGTH_MIN as u32 {
            return None;
        }
        if ip.fragment() == Fragment::Whole {
            return None;
        }
        let Some(length) = u32::from(ip.total_length()).checked_sub(header) else {
            return Some(Err(Missing::Malformed));
        };
        let data = from + header;
        let head = Head { from, to: data, announced: None };
        let offset = ip.fragment_offset().into();
        Some(Ok(Self { data, offset, length, last: !ip.more_fragments(), head }))
    }

    fn six(packet: &[u8], from: u32) -> Option<Result<Self, Missing>> {
        let (ip, _) = Ipv6::parse(packet).filter(|(ip, _)| ip.version() == 6)?;
        let stated = ipv6::LENGTH + usize::from(ip.payload_length());
        let header = ipv6::fragment(packet.get(..stated).unwrap_or(packet))?;
        let data = u32::from(header.at) + ipv6::FRAGMENT_LENGTH as u32;
        let Some(length) = (stated as u32).checked_sub(data) else {
            return Some(Err(Missing::Malformed));
        };
        let announced = Some((from + u32::from(header.announced), header.next));
        let head = Head { from, to: from + u32::from(header.at), announced };
        let (data, offset) = (from + data, header.offset.into());
        Some(Ok(Self { data, offset, length, last: !header.more, head }))
    }

    /// RFC 791 and RFC 8200 §4.5: all fragments but the last carry a multiple of 8 bytes. Linux
    /// takes of others what fits.
    fn fits(mut self, block: &Block<'_>, policy: Policy) -> Result<Self, Missing> {
        if self.data + self.length > block.marks.captured {
            return Err(Missing::Cut);
        }
        if !self.last && !self.length.is_multiple_of(8) {
            if policy != Policy::Linux || self.is_six() {
                return Err(Missing::Malformed);
            }
            self.length &= !7;
        }
        if self.length == 0 { Err(Missing::Malformed) } else { Ok(self) }
    }

    /// Whether it is a fragment of an IPv6 packet.
    pub(super) const fn is_six(&self) -> bool {
        self.head.announced.is_some()
    }

    /// One past its last byte in the datagram's data.
    pub(super) const fn end(&self) -> u32 {
        self.offset + self.length
    }

    /// Which datagram it belongs to: addresses and identification, of IPv4 also the protocol
    /// (RFC 791 §2.3, RFC 8200 §4.5), and the network that it was seen in: VLAN tags and source.
    /// What is seen in two of them is put together twice, as a whole packet is seen twice.
    pub(super) fn key(&self, block: &Block<'_>, seed: u64) -> u64 {
        let frame = layers::head(block);
        let part = |from: usize, length: usize| {
            let from = self.head.from as usize + from;
            frame.get(from..from + length).unwrap_or_default()
        };
        let mut hash = DefaultHasher::new();
        hash.write_u64(seed);
        if self.is_six() {
            hash.write(part(ipv6::SRC, 32));
            hash.write(part((self.head.to - self.head.from) as usize + 4, 4));
        } else {
            hash.write(part(ipv4::SRC, 8));
            hash.write(part(ipv4::IDENTIFICATION, 2));
            hash.write(part(ipv4::PROTOCOL, 1));
        }
        let Layers { tags, .. } = wire::layers(LinkType(block.marks.link), frame);
        tags.iter(frame).for_each(|tag| hash.write_u16(tag.id()));
        hash.write_u16(block.context.origin);
        hash.finish().max(PRIVATE + 1)
    }
}

impl Head {
    /// Whether a datagram with `length` bytes of data is too long for these headers.
    pub(super) const fn is_too_short_for(&self, length: u32) -> bool {
        let headers = self.to - self.from;
        let counted =
            if self.announced.is_some() { headers - ipv6::LENGTH as u32 } else { headers };
        counted + length > LENGTH_MAX
    }

    /// One past their last byte in the frame.
    pub(super) const fn end(&self) -> usize {
        self.to as usize
    }

    /// Makes the headers at the front of `frame`, which are those of a fragment, say that `length`
    /// bytes of data follow and that this is all.
    pub(super) fn complete(&self, frame: &mut [u8], length: u32) {
        let (from, to) = (self.from as usize, self.to as usize);
        if let Some((announced, next)) = self.announced {
            if let Some(field) = frame.get_mut(announced as usize) {
                *field = next;
            }
            let counted = self.to - self.from - ipv6::LENGTH as u32 + length;
            put(frame, from + ipv6::PAYLOAD_LENGTH, counted);
            return;
        }
        put(frame, from + ipv4::TOTAL_LENGTH, self.to - self.from + length);
        let fields = frame.get_mut(from + ipv4::FLAGS_FRAGMENT..to).unwrap_or_default();
        if let [flags, offset, ..] = fields {
            // What stays is "don't fragment" and the reserved bit.
            (*flags, *offset) = (*flags & 0xc0, 0);
        }
        put(frame, from + ipv4::CHECKSUM, 0);
        let sum = checksum::of(frame.get(from..to).unwrap_or_default());
        put(frame, from + ipv4::CHECKSUM, sum.into());
    }
}

/// Writes the low 16 bits of a number.
fn put(frame: &mut [u8], at: usize, number: u32) {
    let [.., high, low] = number.to_be_bytes();
    if let Some(field) = frame.get_mut(at..at + 2) {
        field.copy_from_slice(&[high, low]);
    }
}
