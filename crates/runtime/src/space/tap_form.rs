//! The form in which a tap writes blocks: as a capture, as bytes, or as lines of JSON. The space
//! copies blocks; the tap's thread converts them.

use abi::{BlockFlags, Direction, Marks};
use endpoint::history::{self, FILE_HEADER_SIZE};
use endpoint::message;
use endpoint::sink::json::JsonLines;
use filter::Block;
use std::collections::{BTreeMap, VecDeque};

/// Maximum length, in bytes, of a message that a tap gathers before it writes the message. A longer
/// message is truncated and counted.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Maximum total length, in bytes, of the messages that a tap gathers at one time.
const OPEN_MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Maximum number of messages that a tap gathers at one time.
const OPEN_MESSAGES_MAX: usize = 16 << 10;

/// The form in which a tap writes blocks.
#[derive(Debug)]
pub enum TapForm {
    /// Frames, as a pcap capture.
    Capture,
    /// The bytes in view. A [`MessageGatherer`] collects the bytes of each message until the
    /// message is complete; complete messages are written in the order in which they end. Without a
    /// gatherer, every block is written at once.
    Bytes(Option<MessageGatherer>),
    /// A line of JSON for each block, or for each message that has a description.
    Json(Box<JsonLines>),
}

/// Records in the output form of a tap, and the positions at which this output may be cut.
#[derive(Debug, Default)]
pub(super) struct ConvertedRecords {
    pub(super) bytes: Vec<u8>,
    /// End offsets of the records in the output. Empty for a capture, and also if the output may be
    /// cut anywhere.
    ends: Vec<usize>,
    /// For a capture, the length in bytes of the pcap file header that precedes the records in this
    /// output, or 0 if the header was sent earlier; `None` for any other form.
    header: Option<usize>,
}

impl TapForm {
    /// Appends a copy of a block to `to`, the data for the tap's thread. If `bytes_only` is true,
    /// copies only the bytes in view instead of the frame. Not used for captures.
    pub(super) fn copy_block(bytes_only: bool, block: &Block<'_>, to: &mut Vec<u8>) {
        let view = block.bytes();
        let length = u32::try_from(view.len()).unwrap_or(u32::MAX);
        // The copy of a description is also a description, with the same flags.
        let link = block.marks.link;
        let bare = Block { frame: view, marks: Marks::frame(link, length, length), ..*block };
        let block = if bytes_only && !block.pointer.is_hole() { &bare } else { block };
        let length = message::message_length(block);
        to.extend_from_slice(&(length as u32).to_le_bytes());
        let at = to.len();
        to.resize(at + length, 0);
        message::write(block, to.get_mut(at..).unwrap_or_default());
    }

    /// Converts the records that the space has sent. `header_sent` is true if the file header of a
    /// capture has already been sent.
    pub(super) fn convert_records(
        &mut self,
        records: Vec<u8>,
        header_sent: bool,
    ) -> ConvertedRecords {
        let mut written = ConvertedRecords::default();
        match self {
            Self::Capture => {
                let header = Some(if header_sent { 0 } else { FILE_HEADER_SIZE });
                return ConvertedRecords { bytes: records, ends: Vec::new(), header };
            }
            Self::Bytes(None) => written.bytes = records,
            Self::Bytes(Some(gatherer)) => for_each_block(&records, |block| {
                gatherer.add(block, &mut written);
            }),
            Self::Json(lines) => for_each_block(&records, |block| {
                lines.append(block, &mut written.bytes);
                written.ends.push(written.bytes.len());
            }),
        }
        written
    }

    /// Returns the number of messages that were truncated or dropped.
    pub(super) const fn cut_message_count(&self) -> u64 {
        match self {
            Self::Bytes(Some(gatherer)) => gatherer.cut,
            _ => 0,
        }
    }
}

impl ConvertedRecords {
    /// Returns the end of the first record that ends at or after offset `at`. Returns `at` if the
    /// output may be cut anywhere.
    pub(super) fn record_end(&self, at: usize) -> usize {
        match self.header {
            Some(header) => history::find_record_boundary(&self.bytes, header, at),
            None if at == 0 => 0,
            None => self.ends.iter().copied().find(|end| *end >= at).unwrap_or(at),
        }
    }
}

/// Calls `each` for every block in the tap's records.
fn for_each_block(mut records: &[u8], mut each: impl FnMut(&Block<'_>)) {
    while let Some((length, rest)) = records.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((block, rest)) = rest.split_at_checked(length) else { return };
        if let Ok((entry, frame)) = message::read(block, u16::MAX) {
            let (pointer, context, marks) = (entry.pointer, entry.context, entry.marks);
            each(&Block { pointer, frame, marks, context });
        }
        records = rest;
    }
}

/// The key of a message in progress: its session, the origin of its blocks, and true for the
/// backward direction. Each session has one message in progress per direction.
type MessageKey = (u32, u16, bool);

/// A gatherer of complete messages from the fragments that a tap receives. Fragments of different
/// messages may be interleaved.
#[derive(Debug, Default)]
pub struct MessageGatherer {
    open: BTreeMap<MessageKey, OpenMessage>,
    /// Keys of messages, in the order in which the messages began. The key of a message that has
    /// ended may remain in this list.
    start_order: VecDeque<MessageKey>,
    length: usize,
    cut: u64,
}

/// A message that has begun but not ended.
#[derive(Debug, Default)]
struct OpenMessage {
    bytes: Vec<u8>,
    /// True if the last block added was a description. The next fragment may then also have the
    /// flag `BlockFlags::FIRST` without beginning another message.
    follows_description: bool,
    /// True if bytes beyond [`MESSAGE_BYTES_MAX`] were cut off the message. The message is then
    /// counted once.
    is_cut: bool,
}

impl MessageGatherer {
    /// Adds a fragment or a description. If this ends a message, appends the message to `to`.
    ///
    /// A message that began before the tap is omitted. If a message is cut short by the end of its
    /// session or by another message, the part that has arrived is written.
    fn add(&mut self, block: &Block<'_>, to: &mut ConvertedRecords) {
        let (context, flags) = (block.context, block.context.flags);
        let backward = flags.direction() == Direction::Backward;
        let key = (context.session, context.origin, backward);
        let describes = block.marks.is_description();
        if flags.contains(BlockFlags::FIRST) {
            if self.open.get(&key).is_some_and(|open| describes || !open.follows_description) {
                self.write_message(key, to);
            }
            if !self.open.contains_key(&key) {
                self.make_room();
                self.open.insert(key, OpenMessage::default());
                self.start_order.push_back(key);
            }
        }
        let Some(open) = self.open.get_mut(&key) else { return };
        let (bytes, room) = (block.bytes(), MESSAGE_BYTES_MAX.saturating_sub(open.bytes.len()));
        let fitting = bytes.get(..room).unwrap_or(bytes);
        if fitting.len() < bytes.len() && !open.is_cut {
            open.is_cut = true;
            self.cut += 1;
        }
        self.length += fitting.len();
        open.bytes.extend_from_slice(fitting);
        open.follows_description = describes;
        if flags.contains(BlockFlags::LAST) || flags.contains(BlockFlags::SESSION_END) {
            self.write_message(key, to);
        }
    }

    fn write_message(&mut self, key: MessageKey, to: &mut ConvertedRecords) {
        let message = self.open.remove(&key).unwrap_or_default().bytes;
        self.length -= message.len();
        to.bytes.extend_from_slice(&message);
        to.ends.push(to.bytes.len());
    }

    /// Makes room for another open message. Drops the oldest open messages until their number and
    /// total length are within the limits, and counts the dropped messages as cut.
    fn make_room(&mut self) {
        while self.open.len() >= OPEN_MESSAGES_MAX || self.length > OPEN_MESSAGE_BYTES_MAX {
            let Some(oldest) = self.start_order.pop_front() else { return };
            if let Some(open) = self.open.remove(&oldest) {
                self.length -= open.bytes.len();
                self.cut += 1;
            }
        }
        // Keys of ended messages must not accumulate.
        if self.start_order.len() > 2 * OPEN_MESSAGES_MAX {
            let open = &self.open;
            self.start_order.retain(|key| open.contains_key(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{BlockMetadata, RichPointer};

    fn fragment_block(session: u32, flags: BlockFlags, bytes: &[u8]) -> Block<'_> {
        let dbuf = abi::DbufId::new(1).unwrap();
        let length = u32::try_from(bytes.len()).unwrap();
        let pointer = RichPointer::new(dbuf, abi::Extent::new(0, length), abi::Class(1));
        let context = BlockMetadata { session, flags, ..BlockMetadata::default() };
        Block { pointer, frame: bytes, marks: Marks::for_plain_block(length), context }
    }

    fn description_block(session: u32) -> Block<'static> {
        let block = fragment_block(session, BlockFlags::FIRST, b"record");
        let dbuf = abi::DbufId::new(1).unwrap();
        let pointer = RichPointer::new(dbuf, abi::Extent::new(0, 0), abi::Class(1));
        Block { pointer, marks: Marks::for_description(6), ..block }
    }

    fn gather_messages(blocks: &[Block<'_>]) -> (String, u64) {
        let mut records = Vec::new();
        for block in blocks {
            TapForm::copy_block(true, block, &mut records);
        }
        let mut form = TapForm::Bytes(Some(MessageGatherer::default()));
        let written = form.convert_records(records, false);
        (String::from_utf8(written.bytes).unwrap(), form.cut_message_count())
    }

    #[test]
    fn b2_messages_are_written_whole_in_the_order_of_their_ends() {
        let (first, last) = (BlockFlags::FIRST, BlockFlags::LAST);
        let blocks = [
            fragment_block(9, BlockFlags::NONE, b"began before the tap"),
            fragment_block(9, last, b"."),
            fragment_block(1, first, b"GET /a "),
            fragment_block(2, first.with(last), b"GET /b;"),
            fragment_block(2, first, b"GET /"),
            fragment_block(1, first.with(BlockFlags::BACKWARD), b"200 "),
            fragment_block(1, last, b"whole;"),
            fragment_block(2, last, b"c;"),
            fragment_block(1, BlockFlags::BACKWARD.with(BlockFlags::SESSION_END), b"cut off;"),
            description_block(3),
            fragment_block(3, first, b"POST"),
            fragment_block(3, last, b";"),
            description_block(3),
            fragment_block(3, BlockFlags::NONE, b"unfinished;"),
            description_block(3),
            fragment_block(3, last, b"next;"),
        ];
        let expected = "GET /b;GET /a whole;GET /c;200 cut off;POST;unfinished;next;";
        assert_eq!(gather_messages(&blocks), (expected.to_owned(), 0));
    }

    #[test]
    fn b2_message_beyond_a_megabyte_is_cut_and_counted() {
        let long = vec![b'x'; MESSAGE_BYTES_MAX - 1];
        for (second, kept) in [("yz", "y"), ("y", "y"), ("", "m")] {
            let blocks = [
                fragment_block(1, BlockFlags::FIRST, &long),
                fragment_block(1, BlockFlags::NONE, second.as_bytes()),
                fragment_block(1, BlockFlags::LAST, b"more"),
                fragment_block(1, BlockFlags::FIRST.with(BlockFlags::LAST), b"next"),
            ];
            let (text, cut) = gather_messages(&blocks);
            assert_eq!((text.len(), cut), (MESSAGE_BYTES_MAX + 4, 1), "{second:?}");
            assert!(text.ends_with(&format!("x{kept}next")), "{second:?}");
        }
        let exact = [
            fragment_block(1, BlockFlags::FIRST, &long),
            fragment_block(1, BlockFlags::LAST, b"y"),
        ];
        let (text, cut) = gather_messages(&exact);
        assert_eq!((text.len(), cut), (MESSAGE_BYTES_MAX, 0));
    }
}
