//! Encoding of blocks as messages between processes: the block's entry in its in-memory layout,
//! followed by the bytes of the block's frame.
//!
//! Both processes run the same program, so the format has no version. A reader checks every field.

use crate::Intake;
use abi::{BLOCK_LENGTH_MAX, BlockFlags, Class, DbufId, Entry, Extent, Marks, RichPointer};
use filter::Block;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Size in bytes of the entry with which a message begins. The bytes of the block's frame follow
/// it.
pub const MESSAGE_HEAD_SIZE: usize = size_of::<Entry>();
/// Maximum length of a message in bytes.
pub const MESSAGE_SIZE_MAX: usize = BLOCK_LENGTH_MAX;

/// Returns the length of a block's message in bytes.
pub const fn message_length(block: &Block<'_>) -> usize {
    MESSAGE_HEAD_SIZE + block.frame.len()
}

/// Writes a block's message to `room`, which must be [`message_length`] bytes long. Returns the
/// length of the message in bytes.
pub fn write(block: &Block<'_>, room: &mut [u8]) -> usize {
    let Some((head, frame)) = room.split_at_mut_checked(MESSAGE_HEAD_SIZE) else { return 0 };
    head.copy_from_slice(entry_for_sending(block).as_bytes());
    let length = frame.len().min(block.frame.len());
    frame[..length].copy_from_slice(&block.frame[..length]);
    MESSAGE_HEAD_SIZE + length
}

/// Returns the entry that precedes a block's frame in a message. Unless the block is a hole, its
/// captured length is set to the length of the frame, and its length on the wire is at least as
/// large.
pub fn entry_for_sending(block: &Block<'_>) -> Entry {
    let mut entry = block.entry();
    if !entry.pointer.is_hole() {
        // The captured length is the number of transferred bytes.
        entry.marks.captured = u32::try_from(block.frame.len()).unwrap_or(u32::MAX);
        entry.marks.wire_length = entry.marks.wire_length.max(entry.marks.captured);
    }
    entry
}

/// A reason for which a reader rejects a message from an untrusted process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageDefect {
    /// The message is shorter than an entry.
    #[error("it is shorter than its header")]
    Short,
    /// The view of the block extends beyond its frame.
    #[error("its view is outside its frame")]
    View,
    /// According to the marks of the block, a layer begins outside the frame.
    #[error("one of its layers begins outside of its frame")]
    Layer,
    /// The class in the block's entry is not a valid class.
    #[error("it has an invalid class")]
    Class,
    /// The block has flags that are not defined.
    #[error("it has undefined flags")]
    Flags,
    /// The origin of the block is not the index of a source of the path.
    #[error("it names an unknown source")]
    Origin,
    /// The captured length differs from the length of the frame, or exceeds the length on the wire.
    #[error("it is longer than its frame was on the wire")]
    Length,
    /// The message is neither a block nor a record that the reader expects.
    #[error("it is neither a block nor an expected record")]
    StateRecord,
    /// The message contains an invalid state of a filter.
    #[error("it is not a valid state of a filter")]
    State,
    /// The message would give a filter more state, or more held blocks, than the filter may have.
    #[error("it exceeds what a filter may hold")]
    TooMuch,
}

/// All flags that a block can have.
const DEFINED_FLAGS: BlockFlags = BlockFlags::FIRST
    .with(BlockFlags::LAST)
    .with(BlockFlags::BACKWARD)
    .with(BlockFlags::CHECKSUM_UNSET)
    .with(BlockFlags::SESSION_END)
    .with(BlockFlags::BROKEN)
    .with(BlockFlags::DECODED);

/// Decodes and checks the block in a message, for a path with `origins` sources. The rich pointer
/// in the returned entry is still the sender's; [`entry_with_frame_at`] replaces it.
pub fn read(message: &[u8], origins: u16) -> Result<(Entry, &[u8]), MessageDefect> {
    let (head, frame) = message.split_at_checked(MESSAGE_HEAD_SIZE).ok_or(MessageDefect::Short)?;
    let entry = Entry::read_from_bytes(head).map_err(|_| MessageDefect::Short)?;
    Ok((validate_entry(entry, frame.len(), origins)?, frame))
}

/// Checks the entry of a block that was sent with a frame of `length` bytes, for a path with
/// `origins` sources. The rich pointer in the returned entry is still the sender's.
pub fn validate_entry(entry: Entry, length: usize, origins: u16) -> Result<Entry, MessageDefect> {
    let Entry { pointer, context, mut marks } = entry;
    let here = u32::try_from(length).map_err(|_| MessageDefect::View)?;
    if !pointer.is_hole() {
        let end = u64::from(marks.view) + u64::from(pointer.length());
        if end > u64::from(here) {
            return Err(MessageDefect::View);
        }
        if marks.captured != here {
            return Err(MessageDefect::Length);
        }
    } else if marks.captured > here && here > 0 {
        return Err(MessageDefect::View);
    }
    let layers = [marks.network, marks.transport, marks.payload];
    if layers.iter().any(|at| *at != Marks::UNKNOWN_OFFSET && u32::from(*at) > marks.captured) {
        return Err(MessageDefect::Layer);
    }
    if marks.wire_length < marks.captured {
        return Err(MessageDefect::Length);
    }
    if pointer.class == Class::HELD {
        return Err(MessageDefect::Class);
    }
    if !DEFINED_FLAGS.contains(context.flags) {
        return Err(MessageDefect::Flags);
    }
    if context.origin >= origins {
        return Err(MessageDefect::Origin);
    }
    // The receiving path assigns its own sequence numbers to the blocks of replicas.
    marks = marks.with_seq(0, false);
    Ok(Entry { pointer, context, marks })
}

/// Checks the block in a message and appends a copy of it to an intake. Returns the length of the
/// block's view. Returns `None` if the pool currently has no free memory, or if the intake has no
/// room.
pub fn copy_into_intake(
    message: &[u8],
    origins: u16,
    intake: &mut Intake<'_>,
) -> Result<Option<u32>, MessageDefect> {
    let (entry, frame) = read(message, origins)?;
    let entry = if entry.pointer.is_hole() {
        hole_entry(entry)
    } else {
        // A block without bytes still needs an address.
        let copy = |room: &mut [u8]| {
            let room = room.get_mut(..frame.len()).unwrap_or_default();
            room.copy_from_slice(frame);
            frame.len().max(1)
        };
        match intake.pool.append(frame.len().max(1), copy) {
            Some((place, _)) => entry_with_frame_at(entry, intake.pool.id(), place),
            None => return Ok(None),
        }
    };
    Ok(intake.append_block_entry(entry).then_some(entry.pointer.length()))
}

/// Returns `entry` with its rich pointer replaced by one into `dbuf`, where the extent `frame`
/// contains the frame of the block.
fn entry_with_frame_at(entry: Entry, dbuf: DbufId, frame: Extent) -> Entry {
    let place = frame.subrange(entry.marks.view, entry.pointer.length());
    Entry { pointer: RichPointer::new(dbuf, place, entry.pointer.class), ..entry }
}

/// Returns `entry` with its rich pointer replaced by one into `dbuf`, where the extent `frame`
/// contains the frame of the block. Returns a hole if the block is a hole.
#[must_use]
pub fn entry_or_hole_at(entry: Entry, dbuf: DbufId, frame: Extent) -> Entry {
    if entry.pointer.is_hole() {
        hole_entry(entry)
    } else {
        entry_with_frame_at(entry, dbuf, frame)
    }
}

/// Dbuf id in the entry of a message. It has no meaning; the receiver replaces it with the id of
/// its own dbuf.
const PLACEHOLDER_DBUF: DbufId = match DbufId::new(1) {
    Some(id) => id,
    None => DbufId::HOLE,
};

/// Returns the entry of a block for a message without the frame, which is sent or stored
/// separately. The pointer of the entry refers to [`PLACEHOLDER_DBUF`], except that a hole stays a
/// hole.
pub fn entry_without_frame(entry: Entry) -> Entry {
    match entry.pointer.is_hole() {
        true => hole_entry(entry),
        false => entry_with_frame_at(entry, PLACEHOLDER_DBUF, Extent::new(0, entry.marks.captured)),
    }
}

/// Returns `entry` with its pointer replaced by a hole of the same length and class.
fn hole_entry(entry: Entry) -> Entry {
    let pointer = RichPointer::hole(entry.pointer.length()).with_class(entry.pointer.class);
    Entry { pointer, ..entry }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::BlockMetadata;

    fn make_message(entry: Entry, frame: &[u8]) -> Vec<u8> {
        [entry.as_bytes(), frame].concat()
    }

    fn make_entry(view: u32, length: u32, captured: u32) -> Entry {
        let dbuf = DbufId::new(9).unwrap();
        let pointer = RichPointer::new(dbuf, Extent::new(77, length), Class(80));
        let mut marks = Marks::frame(1, captured, captured.max(1500));
        marks.view = view;
        Entry::new(
            pointer,
            BlockMetadata { time: 5, session: 3, ..BlockMetadata::default() },
            marks,
        )
    }

    #[test]
    fn j5_block_message_decodes_to_the_sent_block() {
        let honest = make_entry(14, 20, 60);
        let bytes = make_message(honest, &[7; 60]);
        let (read, frame) = read(&bytes, 1).unwrap();
        assert_eq!((read.context, read.marks, frame), (honest.context, honest.marks, &[7; 60][..]));
        let dbuf = DbufId::new(2).unwrap();
        let placed_entry = entry_with_frame_at(read, dbuf, Extent::new(4096, 60));
        assert_eq!(
            (placed_entry.pointer.place, placed_entry.pointer.class),
            (Extent::new(4110, 20), Class(80))
        );
        assert_eq!(placed_entry.frame().place, Extent::new(4096, 60));
        let gap = Entry { pointer: RichPointer::hole(100), ..make_entry(0, 0, 0) };
        let (gap, none) = super::read(gap.as_bytes(), 1).unwrap();
        assert_eq!((hole_entry(gap).pointer.length(), none.len()), (100, 0));
    }

    #[test]
    fn j5_invalid_block_messages_are_refused() {
        let lie = |entry: Entry, frame: &[u8]| read(&make_message(entry, frame), 2).err();
        let honest = make_entry(14, 20, 60);
        assert_eq!(lie(honest, &[0; 60]), None);
        assert_eq!(read(&honest.as_bytes()[..63], 2).err(), Some(MessageDefect::Short));
        assert_eq!(lie(honest, &[0; 33]), Some(MessageDefect::View));
        assert_eq!(lie(make_entry(u32::MAX, 20, 60), &[0; 60]), Some(MessageDefect::View));
        assert_eq!(lie(honest, &[0; 59]), Some(MessageDefect::Length));
        let marks = |change: &dyn Fn(&mut Marks)| {
            let mut lying = honest;
            change(&mut lying.marks);
            lying
        };
        for at in [61, u16::MAX - 1] {
            let layer = Some(MessageDefect::Layer);
            assert_eq!(lie(marks(&|marks| marks.network = at), &[0; 60]), layer);
            assert_eq!(lie(marks(&|marks| marks.transport = at), &[0; 60]), layer);
            assert_eq!(lie(marks(&|marks| marks.payload = at), &[0; 60]), layer);
        }
        let short = marks(&|marks| marks.wire_length = 59);
        assert_eq!(lie(short, &[0; 60]), Some(MessageDefect::Length));
        let held = Entry { pointer: honest.pointer.with_class(Class::HELD), ..honest };
        assert_eq!(lie(held, &[0; 60]), Some(MessageDefect::Class));
        let context = |context: BlockMetadata| Entry { context, ..honest };
        let flags = context(BlockMetadata { flags: BlockFlags(1 << 9), ..honest.context });
        assert_eq!(lie(flags, &[0; 60]), Some(MessageDefect::Flags));
        let origin = context(BlockMetadata { origin: 2, ..honest.context });
        assert_eq!(lie(origin, &[0; 60]), Some(MessageDefect::Origin));
    }
}
