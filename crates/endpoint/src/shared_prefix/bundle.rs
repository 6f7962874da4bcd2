//! Format of the messages in a shared ring. A message is a *bundle*: the blocks of one batch, with
//! an index, so that a reader copies only the blocks that it needs.
//!
//! ```text
//! number of the first block, count │ class of each block │ stamp and entry of each block │ frames
//! ```
//!
//! A reader that needs none of the classes reads only the number, the count and the classes.
//! Readers and writer run the same program, so the format has no version. A reader checks every
//! field.

use super::sessions::SharedStamp;
use crate::message::{MESSAGE_HEAD_SIZE, MessageDefect};
use abi::{Class, Entry};
use std::ops::Range;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Maximum number of blocks in a bundle, the unit that a shared ring holds.
pub(super) const BUNDLE_BLOCKS_MAX: usize = filter::LANES;
/// Maximum length, in bytes, of a bundle of several blocks in a shared ring. A longer block forms a
/// bundle of its own. The limit bounds the number of blocks that a slow reader loses at once.
const BUNDLE_SIZE_MAX: usize = 128 << 10;
/// Offset in bytes at which the classes of the blocks begin in a bundle of a shared ring. The
/// number of the first block and the count of the blocks precede the classes.
const CLASSES_OFFSET: usize = 16;
/// Maximum offset, in bytes, at which the first item begins in a bundle of a shared ring. The
/// number of the first block, the count of the blocks, and their classes precede the items.
pub(super) const ITEMS_OFFSET_MAX: usize = items_offset(BUNDLE_BLOCKS_MAX);
/// Size in bytes of an item in a bundle of a shared ring. An item describes one block: it contains
/// the stamp and the entry of the block.
const ITEM_BYTES: usize = 16 + MESSAGE_HEAD_SIZE;

/// Flag in the first word of a bundle of a shared ring: set if the ring holds fragments of
/// messages, clear if it holds blocks of streams. The other bits of the word are the number of the
/// bundle's first block.
const HOLDS_FRAGMENTS_BIT: u64 = 1 << 63;

/// Returns the offset in bytes of the first item in a bundle of `count` blocks. An item describes
/// one block.
const fn items_offset(count: usize) -> usize {
    CLASSES_OFFSET + (count * size_of::<Class>()).next_multiple_of(8)
}

/// Returns the offset in bytes of the first frame in a bundle of `count` blocks.
const fn frames_offset(count: usize) -> usize {
    items_offset(count) + count * ITEM_BYTES
}

/// A block that is about to be written to a bundle of a shared ring: its stamp, its entry, and the
/// length of its frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct BundleItem {
    pub(super) stamp: SharedStamp,
    pub(super) entry: Entry,
    /// Length of the block's frame in bytes.
    pub(super) length: usize,
}

/// Returns the longest prefix of `items` that fits into one bundle of a shared ring, and the length
/// of this bundle in bytes. Returns `None` if there are no items.
pub(super) fn split_next_bundle(items: &[BundleItem]) -> Option<(&[BundleItem], usize)> {
    let (mut count, mut frames) = (0, 0);
    for item in items.iter().take(BUNDLE_BLOCKS_MAX) {
        if count > 0 && frames_offset(count + 1) + frames + item.length > BUNDLE_SIZE_MAX {
            break;
        }
        (count, frames) = (count + 1, frames + item.length);
    }
    let these = items.get(..count).filter(|these| !these.is_empty());
    these.map(|these| (these, frames_offset(count) + frames))
}

/// Writes the beginning of a bundle of a shared ring, up to the frames, into `room`. The length of
/// `room` must be the length that [`split_next_bundle`] returned. `first` is the number of the
/// first block. `framed` is true if the ring holds fragments of messages. Returns the part of
/// `room` into which the caller must copy the frames, or `None` if `room` is too short.
pub(super) fn write_index<'r>(
    items: &[BundleItem],
    (first, framed): (u64, bool),
    room: &'r mut [u8],
) -> Option<&'r mut [u8]> {
    let count = items.len();
    let (index, frames) = room.split_at_mut_checked(frames_offset(count))?;
    let (head, list) = index.split_at_mut_checked(items_offset(count))?;
    let word = first & !HOLDS_FRAGMENTS_BIT | if framed { HOLDS_FRAGMENTS_BIT } else { 0 };
    head.fill(0);
    head.get_mut(..8)?.copy_from_slice(&word.to_ne_bytes());
    head.get_mut(8..CLASSES_OFFSET)?.copy_from_slice(&(count as u64).to_ne_bytes());
    let classes = head.get_mut(CLASSES_OFFSET..)?.chunks_exact_mut(size_of::<Class>());
    let rooms = classes.zip(list.chunks_exact_mut(ITEM_BYTES));
    for (item, (class, room)) in items.iter().zip(rooms) {
        class.copy_from_slice(item.entry.pointer.class.as_bytes());
        let length = (item.length as u64) << 1 | u64::from(item.stamp.begins);
        room.get_mut(..8)?.copy_from_slice(&item.stamp.position.to_ne_bytes());
        room.get_mut(8..16)?.copy_from_slice(&length.to_ne_bytes());
        room.get_mut(16..)?.copy_from_slice(item.entry.as_bytes());
    }
    Some(frames)
}

/// A reader's copy of the beginning of a bundle of a shared ring, with the reader's position in the
/// bundle.
#[derive(Debug, Default)]
pub(super) struct BundleCursor {
    /// Number of the bundle's first block. The blocks of the ring are numbered from 0.
    pub(super) first: u64,
    framed: bool,
    count: usize,
    /// Number of blocks, from the start of the bundle, that the reader has already processed.
    passed: usize,
    /// Offset, in the bundle, of the frame of the next block to process.
    frame_at: usize,
    /// Length of the entire bundle in bytes.
    length: usize,
    /// The bytes of the bundle that have been copied, from its start. At first they contain the
    /// numbers and classes of the blocks, and later also the stamps and entries.
    index: Vec<u8>,
}

impl BundleCursor {
    /// Begins to read the next bundle of the ring. Returns the memory into which the caller must
    /// copy the beginning of the bundle: as many bytes as fit, or the entire bundle if it is
    /// shorter.
    pub(super) fn begin_bundle(&mut self) -> &mut [u8] {
        (self.count, self.passed) = (0, 0);
        self.index.resize(ITEMS_OFFSET_MAX, 0);
        &mut self.index
    }

    /// Decodes the first bytes of a bundle that is `length` bytes long. The caller must have copied
    /// these bytes into the memory that [`Self::begin_bundle`] returned. Fails if the bundle is
    /// malformed.
    pub(super) fn decode(&mut self, length: usize) -> Result<(), MessageDefect> {
        let word = |at: usize| {
            let bytes = self.index.get(at..)?.first_chunk::<8>()?;
            Some(u64::from_ne_bytes(*bytes))
        };
        let fixed = word(0).zip(word(8)).filter(|_| length >= CLASSES_OFFSET);
        let (number, count) = fixed.ok_or(MessageDefect::Short)?;
        let count =
            usize::try_from(count).ok().filter(|count| (1..=BUNDLE_BLOCKS_MAX).contains(count));
        let count = count.ok_or(MessageDefect::StateRecord)?;
        if length < frames_offset(count) {
            return Err(MessageDefect::Short);
        }
        self.index.truncate(items_offset(count));
        (self.first, self.framed) =
            (number & !HOLDS_FRAGMENTS_BIT, number & HOLDS_FRAGMENTS_BIT != 0);
        (self.frame_at, self.length, self.count) = (frames_offset(count), length, count);
        Ok(())
    }

    /// Returns the number of blocks in the bundle that have not been processed yet.
    pub(super) const fn remaining_blocks(&self) -> usize {
        self.count - self.passed
    }

    /// Marks all blocks of the bundle that have not been processed as processed.
    pub(super) const fn skip_remaining_blocks(&mut self) {
        self.passed = self.count;
    }

    /// Returns true if the bundle holds fragments of messages, and false if it holds blocks of
    /// streams.
    pub(super) const fn holds_fragments(&self) -> bool {
        self.framed
    }

    /// Returns the classes of the bundle's blocks, in the order of the blocks.
    pub(super) fn classes(&self) -> impl Iterator<Item = Class> + '_ {
        let classes = self.index.get(CLASSES_OFFSET..).unwrap_or_default();
        let classes = classes.chunks_exact(size_of::<Class>()).take(self.count);
        classes.map(|bytes| Class::read_from_bytes(bytes).unwrap_or_default())
    }

    /// Adds memory for the stamps and entries of the blocks to the copied beginning of the bundle.
    /// Returns the added memory, and the offset in the bundle from which the caller must fill it.
    /// Returns `None` if the stamps and entries have already been copied.
    pub(super) fn reserve_item_room(&mut self) -> Option<(usize, &mut [u8])> {
        let (from, to) = (items_offset(self.count), frames_offset(self.count));
        if self.index.len() >= to {
            return None;
        }
        self.index.resize(to, 0);
        self.index.get_mut(from..).map(|room| (from, room))
    }

    /// Decodes the next block that has not been processed. Returns the block's stamp, its unchecked
    /// entry, and the byte range of its frame in the bundle. Fails if the bundle is malformed. The
    /// caller must have copied the stamps and entries of all blocks of the bundle.
    pub(super) fn next(&self) -> Result<(SharedStamp, Entry, Range<usize>), MessageDefect> {
        let from = items_offset(self.count) + self.passed * ITEM_BYTES;
        let item = self.index.get(from..from + ITEM_BYTES).ok_or(MessageDefect::Short)?;
        let (position, rest) = item.split_first_chunk::<8>().ok_or(MessageDefect::Short)?;
        let (length, entry) = rest.split_first_chunk::<8>().ok_or(MessageDefect::Short)?;
        let entry = Entry::read_from_bytes(entry).map_err(|_| MessageDefect::Short)?;
        let length = u64::from_ne_bytes(*length);
        let stamp = SharedStamp {
            position: u64::from_ne_bytes(*position),
            number: self.first + self.passed as u64,
            begins: length & 1 == 1,
            holds_fragments: self.framed,
        };
        let end = usize::try_from(length >> 1).ok().and_then(|n| self.frame_at.checked_add(n));
        let end = end.filter(|end| *end <= self.length).ok_or(MessageDefect::Length)?;
        Ok((stamp, entry, self.frame_at..end))
    }

    /// Marks the next block, whose frame ends at offset `frame_end`, as processed.
    pub(super) const fn advance(&mut self, frame_end: usize) {
        (self.passed, self.frame_at) = (self.passed + 1, frame_end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{BlockFlags, BlockMetadata, Marks, RichPointer};
    use testkit::Random;

    fn item(number: u64, class: u32, length: usize) -> BundleItem {
        let position = number * 7;
        let stamp = SharedStamp {
            position,
            number,
            begins: number.is_multiple_of(3),
            holds_fragments: true,
        };
        let short = u32::try_from(length).unwrap();
        let context =
            BlockMetadata { time: number, session: 3, origin: 0, flags: BlockFlags::FIRST };
        let pointer = RichPointer::hole(short).with_class(Class(class));
        BundleItem {
            stamp,
            entry: Entry::new(pointer, context, Marks::for_plain_block(short)),
            length,
        }
    }

    /// Returns the bytes of a bundle with these items, for a test. All bytes of a frame are equal
    /// to the number of the frame's block, modulo 251.
    fn write(items: &[BundleItem]) -> Vec<u8> {
        let (these, length) = split_next_bundle(items).unwrap();
        assert_eq!(these.len(), items.len(), "one bundle");
        let mut bytes = vec![0xaa; length];
        let mut rest = write_index(items, (items[0].stamp.number, true), &mut bytes).unwrap();
        for item in items {
            let frame = rest.split_off_mut(..item.length).unwrap();
            frame.fill(u8::try_from(item.stamp.number % 251).unwrap());
        }
        assert!(rest.is_empty());
        bytes
    }

    /// Copies the beginning of the bundle in `bytes` into a cursor, as a reader of a shared ring
    /// does. Returns the cursor, and the result of decoding the beginning.
    fn begin(bytes: &[u8]) -> (BundleCursor, Result<(), MessageDefect>) {
        let mut bundle = BundleCursor::default();
        let room = bundle.begin_bundle();
        let length = room.len().min(bytes.len());
        room[..length].copy_from_slice(&bytes[..length]);
        let decoded = bundle.decode(bytes.len());
        (bundle, decoded)
    }

    fn copy_items(bundle: &mut BundleCursor, bytes: &[u8]) {
        let (from, room) = bundle.reserve_item_room().unwrap();
        room.copy_from_slice(&bytes[from..from + room.len()]);
        assert!(bundle.reserve_item_room().is_none(), "copied once");
    }

    #[test]
    fn o6_bundle_decodes_to_the_written_blocks() {
        for count in [1, 2, 3, 63, BUNDLE_BLOCKS_MAX] {
            let items: Vec<BundleItem> =
                (0..count).map(|n| item(1000 + n as u64, n as u32, n * 5 % 97)).collect();
            let bytes = write(&items);
            let (mut bundle, decoded) = begin(&bytes);
            assert_eq!((decoded, bundle.first, bundle.holds_fragments()), (Ok(()), 1000, true));
            assert!(bundle.classes().eq((0..count as u32).map(Class)), "{count}");
            copy_items(&mut bundle, &bytes);
            for (done, item) in items.iter().enumerate() {
                assert_eq!(bundle.remaining_blocks(), count - done);
                let (stamp, entry, frame) = bundle.next().unwrap();
                assert_eq!((stamp, entry), (item.stamp, item.entry));
                let wanted = u8::try_from(item.stamp.number % 251).unwrap();
                assert_eq!(frame.len(), item.length);
                assert!(bytes[frame.clone()].iter().all(|byte| *byte == wanted));
                bundle.advance(frame.end);
            }
            assert_eq!((bundle.remaining_blocks(), bundle.frame_at), (0, bytes.len()));
        }
    }

    #[test]
    fn o6_large_batch_is_split_into_several_bundles() {
        let items: Vec<BundleItem> = (0..40).map(|n| item(n, 0, 20_000)).collect();
        let (mut rest, mut lengths) = (&items[..], Vec::new());
        while let Some((these, length)) = split_next_bundle(rest) {
            assert!(length <= BUNDLE_SIZE_MAX && length > these.len() * 20_000);
            lengths.push(these.len());
            rest = &rest[these.len()..];
        }
        assert_eq!(lengths, [6, 6, 6, 6, 6, 6, 4]);
        let long = [item(0, 0, 1 << 19), item(1, 0, 1)];
        assert_eq!(
            split_next_bundle(&long).map(|(these, _)| these.len()),
            Some(1),
            "a bundle of its own"
        );
        assert!(split_next_bundle(&[]).is_none());
    }

    #[test]
    fn o6_malformed_bundles_are_refused() {
        let bytes = write(&[item(4, 80, 10), item(5, 80, 20)]);
        let with = |at: usize, word: u64| {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
            bytes
        };
        for count in [0, BUNDLE_BLOCKS_MAX as u64 + 1, u64::MAX] {
            assert_eq!(begin(&with(8, count)).1, Err(MessageDefect::StateRecord), "{count}");
        }
        assert_eq!(begin(&with(8, 3)).1, Err(MessageDefect::Short));
        for length in [0, 8, 16, frames_offset(2) - 1] {
            assert!(begin(&bytes[..length]).1.is_err(), "{length}");
        }
        // The second frame ends beyond the bundle.
        let at = items_offset(2) + ITEM_BYTES + 8;
        for length in [21u64, 1 << 40, u64::MAX >> 1] {
            let bytes = with(at, length << 1);
            let (mut bundle, decoded) = begin(&bytes);
            decoded.unwrap();
            copy_items(&mut bundle, &bytes);
            let (.., first) = bundle.next().unwrap();
            bundle.advance(first.end);
            assert_eq!(bundle.next().err(), Some(MessageDefect::Length), "{length}");
        }
    }

    #[test]
    fn o6_arbitrary_bundle_bytes_never_panic_the_reader() {
        let mut random = Random::new(7);
        for round in 0..20_000 {
            let mut bytes = random.bytes(16 + round % 400);
            if round % 2 == 0 {
                bytes[8..16].copy_from_slice(&(round as u64 % 5).to_ne_bytes());
            }
            let (mut bundle, decoded) = begin(&bytes);
            if decoded.is_err() {
                assert_eq!(bundle.remaining_blocks(), 0);
                continue;
            }
            copy_items(&mut bundle, &bytes);
            while bundle.remaining_blocks() > 0 {
                let Ok((.., frame)) = bundle.next() else { break };
                assert!(frame.start <= frame.end && frame.end <= bytes.len());
                bundle.advance(frame.end);
            }
        }
    }
}
