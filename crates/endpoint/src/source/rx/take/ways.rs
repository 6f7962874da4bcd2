//! What a program that takes says about a frame, in front of it: over which edges it leaves the
//! kernel, with which class and view. [SL §5.5, §7.1; CONTRACT 18]
//!
//! In: bytes that a program of ours wrote in front of a frame, in memory that is ours now. Out: the
//! blocks that the frame becomes, one for each edge. Whoever asks is told over which edge blocks
//! went, one edge at a time, so what goes over another waits here, pinned.

use crate::source::kernel::Arrived;
use abi::{Class, ContextLane, DbufId, Entry, Flags, Marks, Place, RichPointer};
use buffer::pool::{Pin, Pool};
use filter::Time;
use std::collections::VecDeque;
use sys::xdp::Stamp;
use wire::link::LinkType;

/// What a frame begins with, on a way out.
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

/// The most ways out.
pub const WAYS_MAX: usize = 16;
/// Bytes in front of a frame for each way, and behind those.
pub const WAY: usize = 8;
/// See [`WAY`].
pub const REST: usize = 24;
const FRONT_MAX: usize = WAYS_MAX * WAY + REST;

/// What stands in front of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    bytes: [u8; FRONT_MAX],
    ways: usize,
}

/// How a frame is seen over one way.
struct View {
    class: Class,
    from: u32,
    /// How much lies behind it.
    behind: u32,
}

impl Front {
    /// Reads it and, where it lies, the stamp of the frame.
    pub(super) fn read(bytes: &[u8], ways: usize) -> Option<(Self, Stamp)> {
        let mut front = Self { bytes: [0; FRONT_MAX], ways };
        let length = ways * WAY + REST;
        front.bytes.get_mut(..length)?.copy_from_slice(bytes.get(..length)?);
        let stamp = front.bytes.get_mut(length - Stamp::BYTES..length)?;
        let stamp = stamp.first_chunk_mut().map(Stamp::take)?;
        Some((front, stamp))
    }

    /// The ways that the frame takes.
    fn chosen(&self) -> impl Iterator<Item = usize> {
        let at = self.ways * WAY;
        let word = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        let word = word.map_or(0, |word| u64::from_ne_bytes(*word));
        (0..self.ways).filter(move |way| word & 1 << way != 0)
    }

    fn view(&self, way: usize) -> View {
        let byte = |at: usize| self.bytes.get(way * WAY + at).copied().unwrap_or_default();
        let two = |at: usize| u16::from_ne_bytes([byte(at), byte(at + 1)]);
        let class = u32::from_ne_bytes([byte(0), byte(1), byte(2), byte(3)]);
        View { class: Class(class), from: two(4).into(), behind: two(6).into() }
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
    arrived: Vec<Arrived>,
    waiting: VecDeque<Waiting>,
    /// Over which edge the blocks went that were put last.
    pub(super) edge: usize,
}

impl Ways {
    pub(super) fn new(heads: Vec<Head>) -> Self {
        let arrived = vec![Arrived::default(); heads.len()];
        Self { heads, arrived, waiting: VecDeque::new(), edge: 0 }
    }

    /// How many bytes stand in front of a frame.
    pub(super) fn front(&self) -> usize {
        self.heads.len() * WAY + REST
    }

    /// Reads what stands in front of a frame.
    pub(super) fn read(&self, bytes: &[u8]) -> Option<(Front, Stamp)> {
        Front::read(bytes, self.heads.len())
    }

    /// What became of frames, by edge.
    pub(super) fn arrived(&self) -> Vec<Arrived> {
        self.arrived.clone()
    }

    /// How many blocks wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Has a frame, of which `head` is the beginning, go its ways.
    pub(super) fn send(
        &mut self,
        front: &Front,
        (dbuf, place): (DbufId, Place),
        head: &[u8],
        (origin, time): (u16, Time),
    ) {
        let context = ContextLane { time, session: 0, origin, flags: Flags::NONE };
        for way in front.chosen() {
            let View { class, from, behind } = front.view(way);
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
        for way in front.chosen() {
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

/// Of two memories, that of this name.
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
        bytes.extend(0b11_u64.to_ne_bytes());
        bytes.extend((1_u64 << 32 | u64::from(0x8100_u16.to_be()) << 16 | 7).to_ne_bytes());
        bytes.extend(99_u64.to_ne_bytes());
        let mut ways = Ways::new(vec![Head::Link, Head::Packet]);
        assert_eq!(ways.front(), bytes.len());
        assert!(ways.read(&bytes[1..]).is_none(), "too short");
        let (front, stamp) = ways.read(&bytes).unwrap();
        assert_eq!((stamp.time, stamp.tag.map(|tag| tag.control)), (Some(99), Some(7)));
        let frame = (DbufId::default(), Place::new(4096, 100));
        ways.send(&front, frame, &[0x60], (3, 5));
        let seen = ways.waiting.iter().map(|waiting| {
            let Entry { pointer, marks, context, .. } = waiting.entry;
            (pointer.class.0, pointer.length(), marks.view, marks.link, context.time)
        });
        let expected =
            [(53, 51, 42, LinkType::ETHERNET.0, 5), (u32::MAX - 1, 100, 0, LinkType::IPV6.0, 5)];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        ways.leave_all();
        assert_eq!(ways.arrived().iter().map(|way| way.unread).collect::<Vec<_>>(), [1, 1]);
    }
}
