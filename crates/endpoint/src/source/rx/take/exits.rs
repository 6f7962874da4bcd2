//! Decoder for the metadata that an XDP program writes before each frame: the frame's exits (the
//! edges on which it leaves the program), with the class and the view on each. [SL §5.5, §7.1;
//! CONTRACT 18]
//!
//! The metadata is trusted: a program of Streamline has written it to memory that now belongs to
//! this process. It consists of a fixed number of *slots*, followed by the exit number of each slot
//! and a mask of the slots in use. A slot holds the class and the view of the frame on one exit.
//! Each frame becomes one block for each of its exits. Each call to `produce` emits blocks of one
//! edge only. The blocks of all other edges are pinned and queued in [`ProgramExits`].

use crate::contract::ArcCounts;
use abi::{BlockFlags, BlockMetadata, Class, DbufId, Entry, Extent, Marks, RichPointer};
use buffer::pool::{Pool, SegmentPin};
use filter::Time;
use std::collections::VecDeque;
use sys::xdp::FrameStamp;
use wire::link::LinkType;

/// The kind of header with which all frames on an exit of a kernel program begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FirstHeader {
    /// The frames begin with an Ethernet header.
    #[default]
    Link,
    /// The frames begin with an IP header, because the link header has been removed.
    Packet,
    /// The frames begin with bytes that are not a known header.
    Bytes,
}

/// Maximum number of slots in the metadata that an XDP program writes before a frame. Several exits
/// share a slot if no frame leaves on more than one of them.
pub const METADATA_SLOTS_MAX: usize = 16;
/// Size in bytes of a slot in the metadata before a frame. A slot holds the class and the view of
/// the frame on one exit.
pub const SLOT_SIZE: usize = 8;
/// Size in bytes of an exit number in the metadata before a frame. The exit numbers of all slots
/// follow the last slot.
pub const EXIT_NUMBER_SIZE: usize = 2;
/// Size in bytes of the last part of the metadata before a frame. This part follows the exit
/// numbers, and is aligned to 8 bytes.
pub const METADATA_TAIL_SIZE: usize = 24;
const METADATA_SIZE_MAX: usize = metadata_size(METADATA_SLOTS_MAX);

/// Returns the size in bytes of the metadata that an XDP program writes before a frame. `slots` is
/// the number of slots in the metadata.
const fn metadata_size(slots: usize) -> usize {
    metadata_tail_offset(slots) + METADATA_TAIL_SIZE
}

/// Returns the offset in bytes of the last part of the metadata before a frame. This part follows
/// the exit numbers. `slots` is the number of slots in the metadata.
#[must_use]
pub const fn metadata_tail_offset(slots: usize) -> usize {
    slots * SLOT_SIZE + (slots * EXIT_NUMBER_SIZE).next_multiple_of(8)
}

/// Metadata that an XDP program has written before a frame: the frame's exits, with the class and
/// the view on each.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameMetadata {
    bytes: [u8; METADATA_SIZE_MAX],
    slots: usize,
}

/// The class and the view that a frame has on one exit of an XDP program.
struct ExitView {
    class: Class,
    from: u32,
    /// Number of bytes at the end of the frame that are not in the view.
    bytes_after: u32,
}

impl FrameMetadata {
    /// Decodes the metadata that an XDP program has written before a frame. Returns it with the
    /// stamp that it contains. `slots` is the number of slots in the metadata. Returns `None` if
    /// `bytes` is too short.
    pub(super) fn read(bytes: &[u8], slots: usize) -> Option<(Self, FrameStamp)> {
        let mut front = Self { bytes: [0; METADATA_SIZE_MAX], slots };
        let length = metadata_size(slots);
        front.bytes.get_mut(..length)?.copy_from_slice(bytes.get(..length)?);
        let stamp = front.bytes.get_mut(length - FrameStamp::BYTES..length)?;
        let stamp = stamp.first_chunk_mut().map(FrameStamp::take)?;
        Some((front, stamp))
    }

    /// Yields the exits of the frame, that is, the edges on which it leaves the XDP program. Each
    /// exit comes with the frame's class and view on it.
    fn exits_with_views(&self) -> impl Iterator<Item = (usize, ExitView)> {
        let metadata_tail_offset = self
            .bytes
            .get(metadata_tail_offset(self.slots)..)
            .and_then(|metadata_tail_offset| metadata_tail_offset.first_chunk());
        let word = metadata_tail_offset.map_or(0, |word| u64::from_ne_bytes(*word));
        let chosen = (0..self.slots).filter(move |place| word & 1 << place != 0);
        chosen.map(|place| {
            (
                self.read_u16(self.slots * SLOT_SIZE + place * EXIT_NUMBER_SIZE).into(),
                self.view_at(place),
            )
        })
    }

    fn view_at(&self, place: usize) -> ExitView {
        let at = place * SLOT_SIZE;
        let class = u32::from(self.read_u16(at)) | u32::from(self.read_u16(at + 2)) << 16;
        ExitView {
            class: Class(class),
            from: self.read_u16(at + 4).into(),
            bytes_after: self.read_u16(at + 6).into(),
        }
    }

    fn read_u16(&self, at: usize) -> u16 {
        let bytes = self.bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u16::from_ne_bytes(*bytes))
    }
}

/// A block that waits in a queue while the source emits blocks of another edge.
#[derive(Debug)]
struct QueuedBlock {
    exit: usize,
    entry: Entry,
    pin: Option<SegmentPin>,
}

/// The exits of an XDP program, that is, the edges on which frames leave it, with the queued
/// blocks. A block is queued until the blocks of its edge are emitted.
#[derive(Debug)]
pub(super) struct ProgramExits {
    headers: Vec<FirstHeader>,
    /// Number of slots in the metadata that the XDP program writes before each frame.
    slots: usize,
    counts: Vec<ArcCounts>,
    waiting: VecDeque<QueuedBlock>,
    /// Index of the edge of the blocks that [`Self::take_queued_blocks`] last returned.
    pub(super) edge: usize,
}

impl ProgramExits {
    pub(super) fn new(headers: Vec<FirstHeader>, slots: usize) -> Self {
        let counts = vec![ArcCounts::default(); headers.len()];
        Self { headers, slots, counts, waiting: VecDeque::new(), edge: 0 }
    }

    /// Returns the size in bytes of the metadata that the XDP program writes before a frame.
    pub(super) const fn metadata_size(&self) -> usize {
        metadata_size(self.slots)
    }

    /// Decodes the metadata that the XDP program has written before a frame. Returns it with the
    /// stamp that it contains. Returns `None` if `bytes` is too short.
    pub(super) fn read(&self, bytes: &[u8]) -> Option<(FrameMetadata, FrameStamp)> {
        FrameMetadata::read(bytes, self.slots)
    }

    /// Returns the counts of blocks for each edge on which frames leave the XDP program.
    pub(super) fn counts(&self) -> Vec<ArcCounts> {
        self.counts.clone()
    }

    /// Returns the number of queued blocks.
    pub(super) fn queued_block_count(&self) -> usize {
        self.waiting.len()
    }

    /// Queues one block for each edge on which a frame leaves the XDP program. `front` is the
    /// metadata before the frame, `place` is the frame's location in `dbuf`, and `head` contains
    /// the first bytes of the frame.
    pub(super) fn queue_frame(
        &mut self,
        front: &FrameMetadata,
        (dbuf, place): (DbufId, Extent),
        head: &[u8],
        (origin, time): (u16, Time),
    ) {
        let context = BlockMetadata { time, session: 0, origin, flags: BlockFlags::NONE };
        for (exit, ExitView { class, from, bytes_after: after }) in front.exits_with_views() {
            let from = from.min(place.length());
            let length = place.length() - from;
            let length = length.saturating_sub(after);
            let link = self.headers.get(exit).copied().unwrap_or_default().link_type(head);
            let mut marks = Marks::frame(link, place.length(), place.length());
            marks.view = from;
            let pointer = RichPointer::new(dbuf, place.subrange(from, length), class);
            let entry = Entry::new(pointer, context, marks);
            self.waiting.push_back(QueuedBlock { exit, entry, pin: None });
        }
    }

    /// Moves queued blocks to `into`, as long as they belong to the same edge as the first and
    /// `into` contains fewer than `room` blocks. Stores the index of the edge in [`Self::edge`].
    /// Pins the blocks that remain queued.
    pub(super) fn take_queued_blocks(
        &mut self,
        room: usize,
        pools: [&Pool; 2],
        into: &mut Vec<Entry>,
    ) {
        let Some(first) = self.waiting.front().map(|waiting| waiting.exit) else { return };
        self.edge = first;
        while into.len() < room
            && self.waiting.front().is_some_and(|next| next.exit == first)
            && let Some(next) = self.waiting.pop_front()
        {
            if let Some(pin) = next.pin {
                find_pool(pools, next.entry.pointer.dbuf()).unpin(pin);
            }
            if let Some(counts) = self.counts.get_mut(first) {
                counts.taken.add_block(next.entry.pointer.length());
            }
            into.push(next.entry);
        }
        // A frame may be released once its first block has been emitted, so the frames of queued
        // blocks are pinned.
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.pin.is_none()) {
            let pointer = waiting.entry.pointer;
            waiting.pin = find_pool(pools, pointer.dbuf()).pin(pointer.place);
        }
    }

    /// Counts a frame as unread on each edge on which it leaves the XDP program.
    pub(super) fn count_frame_as_unread(&mut self, front: &FrameMetadata) {
        for (exit, _) in front.exits_with_views() {
            if let Some(counts) = self.counts.get_mut(exit) {
                counts.unread += 1;
            }
        }
    }

    /// Discards all queued blocks, and counts them as unread.
    pub(super) fn discard_queued_blocks(&mut self) {
        for waiting in self.waiting.drain(..) {
            if let Some(counts) = self.counts.get_mut(waiting.exit) {
                counts.unread += 1;
            }
        }
    }

    /// Sorts the queued blocks by time. The sort is stable, so that the blocks of a frame stay
    /// adjacent.
    pub(super) fn sort_by_time(&mut self) {
        self.waiting.make_contiguous().sort_by_key(|waiting| waiting.entry.context.time);
    }
}

/// Returns the pool with this id, which must be the id of one of the two pools.
fn find_pool(pools: [&Pool; 2], dbuf: DbufId) -> &Pool {
    let [one, other] = pools;
    if one.id() == dbuf { one } else { other }
}

impl FirstHeader {
    /// Returns the link type of `frame`, which begins with a header of this kind. If this is an IP
    /// header, the link type depends on the IP version in it.
    fn link_type(self, frame: &[u8]) -> u16 {
        match self {
            Self::Link => LinkType::ETHERNET.0,
            Self::Packet if frame.first().is_some_and(|byte| byte >> 4 == 6) => LinkType::IPV6.0,
            Self::Packet => LinkType::IPV4.0,
            Self::Bytes => Marks::NO_LINK_TYPE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_metadata_decodes_as_written() {
        let mut bytes = Vec::new();
        for (class, from, after) in [(53_u32, 42_u16, 7_u16), (u32::MAX - 1, 0, 0)] {
            bytes.extend(class.to_ne_bytes());
            bytes.extend(from.to_ne_bytes());
            bytes.extend(after.to_ne_bytes());
        }
        // Of three exits, the second and third share a slot.
        bytes.extend([0_u16, 2, 0, 0].map(u16::to_ne_bytes).as_flattened());
        bytes.extend(0b11_u64.to_ne_bytes());
        bytes.extend((1_u64 << 32 | u64::from(0x8100_u16.to_be()) << 16 | 7).to_ne_bytes());
        bytes.extend(99_u64.to_ne_bytes());
        let mut exits =
            ProgramExits::new(vec![FirstHeader::Link, FirstHeader::Bytes, FirstHeader::Packet], 2);
        assert_eq!(exits.metadata_size(), bytes.len());
        assert!(exits.read(&bytes[1..]).is_none(), "too short");
        let (front, stamp) = exits.read(&bytes).unwrap();
        assert_eq!((stamp.time, stamp.tag.map(|tag| tag.control)), (Some(99), Some(7)));
        let frame = (DbufId::default(), Extent::new(4096, 100));
        exits.queue_frame(&front, frame, &[0x60], (3, 5));
        let views = exits.waiting.iter().map(|waiting| {
            let Entry { pointer, marks, context, .. } = waiting.entry;
            (pointer.class.0, pointer.length(), marks.view, marks.link, context.time)
        });
        let expected =
            [(53, 51, 42, LinkType::ETHERNET.0, 5), (u32::MAX - 1, 100, 0, LinkType::IPV6.0, 5)];
        assert_eq!(views.collect::<Vec<_>>(), expected);
        exits.discard_queued_blocks();
        assert_eq!(exits.counts().iter().map(|exit| exit.unread).collect::<Vec<_>>(), [1, 0, 1]);
    }
}
