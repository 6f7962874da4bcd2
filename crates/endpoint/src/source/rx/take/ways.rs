//! Reads what a program that takes frames writes in front of each: the edges by which it leaves the
//! kernel, with class and view. [SL §5.5, §7.1; CONTRACT 18] [SL §5.5, §7.1; CONTRACT 18]
//!
//! In: bytes that a program of ours wrote in front of a frame, in memory that is ours now. Out: the
//! blocks that the frame becomes, one for each edge. Whoever asks is told over which edge blocks
//! went, one edge at a time, so what goes over another waits here, pinned.

use crate::source::kernel::Arrived;
use abi::{BlockMetadata, Class, DbufId, Entry, Extent, Flags, Marks, RichPointer};
use buffer::pool::{Pin, Pool};
use filter::Time;
use std::collections::VecDeque;
use sys::xdp::Stamp;
use wire::link::LinkType;

/// The first header of a frame, on an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Head {
    /// An Ethernet header.
    #[default]
    Link,
    /// A header of IP: that of the link was cut off.
    Packet,
    /// Anything.
    Bytes,
}

/// On how many ways a frame goes at most. Those of which it takes at most one share a place in
/// front of it.
pub const PLACES_MAX: usize = 16;
/// Bytes in front of a frame for each place.
pub const PLACE: usize = 8;
/// Bytes for the number of the way, behind all places.
pub const WAY: usize = 2;
/// Bytes behind those, which begin at a multiple of eight.
pub const REST: usize = 24;
const FRONT_MAX: usize = front(PLACES_MAX);

/// Bytes in front of a frame.
const fn front(places: usize) -> usize {
    rest(places) + REST
}

/// Returns the offset of the rest.
#[must_use]
pub const fn rest(places: usize) -> usize {
    places * PLACE + (places * WAY).next_multiple_of(8)
}

/// The words in front of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    bytes: [u8; FRONT_MAX],
    places: usize,
}

/// The view of a frame on one exit.
struct View {
    class: Class,
    from: u32,
    /// Bytes behind it.
    behind: u32,
}

impl Front {
    /// Reads it and, where it lies, the stamp of the frame.
    pub(super) fn read(bytes: &[u8], places: usize) -> Option<(Self, Stamp)> {
        let mut front = Self { bytes: [0; FRONT_MAX], places };
        let length = self::front(places);
        front.bytes.get_mut(..length)?.copy_from_slice(bytes.get(..length)?);
        let stamp = front.bytes.get_mut(length - Stamp::BYTES..length)?;
        let stamp = stamp.first_chunk_mut().map(Stamp::take)?;
        Some((front, stamp))
    }

    /// The ways that the frame takes, and how it is seen there.
    fn chosen(&self) -> impl Iterator<Item = (usize, View)> {
        let rest = self.bytes.get(rest(self.places)..).and_then(|rest| rest.first_chunk());
        let word = rest.map_or(0, |word| u64::from_ne_bytes(*word));
        let chosen = (0..self.places).filter(move |place| word & 1 << place != 0);
        chosen.map(|place| (self.two(self.places * PLACE + place * WAY).into(), self.view(place)))
    }

    fn view(&self, place: usize) -> View {
        let at = place * PLACE;
        let class = u32::from(self.two(at)) | u32::from(self.two(at + 2)) << 16;
        View { class: Class(class), from: self.two(at + 4).into(), behind: self.two(at + 6).into() }
    }

    fn two(&self, at: usize) -> u16 {
        let bytes = self.bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u16::from_ne_bytes(*bytes))
    }
}

/// A block that goes over an edge.
#[derive(Debug)]
struct Waiting {
    way: usize,
    entry: Entry,
    pin: Option<Pin>,
}

/// The ways out of a program.
#[derive(Debug)]
pub(super) struct Ways {
    heads: Vec<Head>,
    /// Number of places in front of a frame.
    places: usize,
    arrived: Vec<Arrived>,
    waiting: VecDeque<Waiting>,
    /// Over which edge the blocks went that were put last.
    pub(super) edge: usize,
}

impl Ways {
    pub(super) fn new(heads: Vec<Head>, places: usize) -> Self {
        let arrived = vec![Arrived::default(); heads.len()];
        Self { heads, places, arrived, waiting: VecDeque::new(), edge: 0 }
    }

    /// Returns the number of bytes in front of a frame.
    pub(super) const fn front(&self) -> usize {
        front(self.places)
    }

    /// Reads what stands in front of a frame.
    pub(super) fn read(&self, bytes: &[u8]) -> Option<(Front, Stamp)> {
        Front::read(bytes, self.places)
    }

    /// Returns the counts of frames by edge.
    pub(super) fn arrived(&self) -> Vec<Arrived> {
        self.arrived.clone()
    }

    /// Returns the number of waiting blocks.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Has a frame, of which `head` is the beginning, go its ways.
    pub(super) fn send(
        &mut self,
        front: &Front,
        (dbuf, place): (DbufId, Extent),
        head: &[u8],
        (origin, time): (u16, Time),
    ) {
        let context = BlockMetadata { time, session: 0, origin, flags: Flags::NONE };
        for (way, View { class, from, behind }) in front.chosen() {
            let from = from.min(place.length());
            let length = place.length() - from;
            let length = length.saturating_sub(behind);
            let link = self.heads.get(way).copied().unwrap_or_default().link(head);
            let mut marks = Marks::frame(link, place.length(), place.length());
            marks.view = from;
            let pointer = RichPointer::new(dbuf, place.within(from, length), class);
            let entry = Entry::new(pointer, context, marks);
            self.waiting.push_back(Waiting { way, entry, pin: None });
        }
    }

    /// The blocks that go next, over one edge, at most `room`.
    pub(super) fn next(&mut self, room: usize, pools: [&Pool; 2], into: &mut Vec<Entry>) {
        let Some(first) = self.waiting.front().map(|waiting| waiting.way) else { return };
        self.edge = first;
        while into.len() < room
            && self.waiting.front().is_some_and(|next| next.way == first)
            && let Some(next) = self.waiting.pop_front()
        {
            if let Some(pin) = next.pin {
                pool_of(pools, next.entry.pointer.dbuf()).unpin(pin);
            }
            if let Some(arrived) = self.arrived.get_mut(first) {
                arrived.taken.add(next.entry.pointer.length());
            }
            into.push(next.entry);
        }
        // Whoever has seen the others of their frames lets go of them.
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.pin.is_none()) {
            let pointer = waiting.entry.pointer;
            waiting.pin = pool_of(pools, pointer.dbuf()).pin(pointer.place);
        }
    }

    /// Counts a frame that nobody takes any more.
    pub(super) fn leave(&mut self, front: &Front) {
        for (way, _) in front.chosen() {
            if let Some(arrived) = self.arrived.get_mut(way) {
                arrived.unread += 1;
            }
        }
    }

    /// The same for those that wait.
    pub(super) fn leave_all(&mut self) {
        for waiting in self.waiting.drain(..) {
            if let Some(arrived) = self.arrived.get_mut(waiting.way) {
                arrived.unread += 1;
            }
        }
    }

    /// Puts them into the order of time, those of one frame beside each other.
    pub(super) fn sort(&mut self) {
        self.waiting.make_contiguous().sort_by_key(|waiting| waiting.entry.context.time);
    }
}

/// Returns the one of two pools with this id.
fn pool_of(pools: [&Pool; 2], dbuf: DbufId) -> &Pool {
    let [one, other] = pools;
    if one.id() == dbuf { one } else { other }
}

impl Head {
    /// The type of the link of a frame that begins so.
    fn link(self, frame: &[u8]) -> u16 {
        match self {
            Self::Link => LinkType::ETHERNET.0,
            Self::Packet if frame.first().is_some_and(|byte| byte >> 4 == 6) => LinkType::IPV6.0,
            Self::Packet => LinkType::IPV4.0,
            Self::Bytes => Marks::NO_LINK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_front_is_read_as_it_was_written() {
        let mut bytes = Vec::new();
        for (class, from, behind) in [(53_u32, 42_u16, 7_u16), (u32::MAX - 1, 0, 0)] {
            bytes.extend(class.to_ne_bytes());
            bytes.extend(from.to_ne_bytes());
            bytes.extend(behind.to_ne_bytes());
        }
        // Of three ways the second and the third share a place.
        bytes.extend([0_u16, 2, 0, 0].map(u16::to_ne_bytes).as_flattened());
        bytes.extend(0b11_u64.to_ne_bytes());
        bytes.extend((1_u64 << 32 | u64::from(0x8100_u16.to_be()) << 16 | 7).to_ne_bytes());
        bytes.extend(99_u64.to_ne_bytes());
        let mut ways = Ways::new(vec![Head::Link, Head::Bytes, Head::Packet], 2);
        assert_eq!(ways.front(), bytes.len());
        assert!(ways.read(&bytes[1..]).is_none(), "too short");
        let (front, stamp) = ways.read(&bytes).unwrap();
        assert_eq!((stamp.time, stamp.tag.map(|tag| tag.control)), (Some(99), Some(7)));
        let frame = (DbufId::default(), Extent::new(4096, 100));
        ways.send(&front, frame, &[0x60], (3, 5));
        let seen = ways.waiting.iter().map(|waiting| {
            let Entry { pointer, marks, context, .. } = waiting.entry;
            (pointer.class.0, pointer.length(), marks.view, marks.link, context.time)
        });
        let expected =
            [(53, 51, 42, LinkType::ETHERNET.0, 5), (u32::MAX - 1, 100, 0, LinkType::IPV6.0, 5)];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        ways.leave_all();
        assert_eq!(ways.arrived().iter().map(|way| way.unread).collect::<Vec<_>>(), [1, 0, 1]);
    }
}
