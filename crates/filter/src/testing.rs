//! Test support for filters: literal frames, a space over plain memory, and a node that runs one
//! filter and sums its ledger. Compiled for tests only (feature `testing`).
//!
//! An [`Arena`] stores all blocks of a space until the arena is dropped, so that tests can inspect
//! them. The space edits only copies of blocks. Once all cells of the arena are used, appending and
//! editing fail as if memory had run out.

use crate::contract::{
    Amount, Arguments, Batch, Block, ClassifyContext, Columns, Counts, Description, FillFn, Filter,
    Gateway, HoldTable, Key, KeyReader, LaneContext, Mistake, MovedSession, OldBytes, Output,
    Parameter, PinId, Report, StreamContext, Time, Value,
};
use abi::{BLOCK_LENGTH_MAX, BlockMetadata, Class, DbufId, Entry, Extent, Marks, RichPointer};
use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use wire::LinkType;

mod edit;
mod example;
mod fragments;
mod frame;
pub mod twins;

pub use example::example_words;
pub use fragments::{Fragment, run_fragments};
pub use frame::Frame;

/// Append-only memory of cells, each of which is written once and contains one block.
#[derive(Debug)]
pub struct Arena {
    cells: Box<[OnceCell<Vec<u8>>]>,
    used: Cell<usize>,
}

impl Arena {
    /// Creates an arena with this many cells.
    #[must_use]
    pub fn new(cells: usize) -> Self {
        Self { cells: (0..cells).map(|_| OnceCell::new()).collect(), used: Cell::new(0) }
    }

    /// Stores `bytes` and returns their location, or `None` if all cells are used.
    pub fn store(&self, bytes: Vec<u8>) -> Option<(RichPointer, &[u8])> {
        let number = self.used.get();
        let kept = self.cells.get(number)?.get_or_init(|| bytes);
        self.used.set(number + 1);
        let length = u32::try_from(kept.len()).ok()?;
        let place = Extent::new((number * (BLOCK_LENGTH_MAX + 1)) as u64, length);
        Some((RichPointer::new(DbufId::new(1)?, place, Class::YES), kept))
    }

    fn frame_at(&self, pointer: RichPointer) -> &[u8] {
        let position = usize::try_from(pointer.place.position()).unwrap_or(usize::MAX);
        let (number, from) = (position / (BLOCK_LENGTH_MAX + 1), position % (BLOCK_LENGTH_MAX + 1));
        let cell = self.cells.get(number).and_then(OnceCell::get);
        let bytes = cell.map(Vec::as_slice).unwrap_or_default();
        let bytes = bytes.get(from..).unwrap_or_default();
        bytes.get(..pointer.length() as usize).unwrap_or(bytes)
    }
}

/// A fake space whose memory is an [`Arena`].
#[derive(Clone, Copy, Debug)]
pub struct Space<'a> {
    arena: &'a Arena,
    head: usize,
}

impl<'a> Space<'a> {
    /// Creates a space that provides whole frames.
    #[must_use]
    pub const fn new(arena: &'a Arena) -> Self {
        Self { arena, head: usize::MAX }
    }

    /// Limits the present bytes of each frame to the first `head` bytes, as a space over a lossy
    /// ring does.
    #[must_use]
    pub const fn with_head_limit(self, head: usize) -> Self {
        Self { head, ..self }
    }

    /// Creates a batch of frames, as a source does.
    ///
    /// # Panics
    ///
    /// Panics if there are more frames than lanes, or if the arena is full.
    #[must_use]
    pub fn batch(&self, frames: &[Frame]) -> Batch<'a> {
        let mut columns = Box::<Columns>::default();
        for frame in frames {
            let (pointer, bytes) = self.arena.store(frame.bytes.clone()).expect("a free cell");
            let captured = bytes.len() as u32;
            let wire_length = frame.wire_length.unwrap_or(captured);
            let marks = Marks::frame(frame.link, captured, wire_length);
            let context = BlockMetadata { time: frame.time, ..BlockMetadata::default() };
            assert!(columns.push(Entry::new(pointer, context, marks)), "a free lane");
        }
        Batch::new(columns.into(), |columns, l| self.bytes_of_entry(&columns.entry(l)))
    }

    fn bytes_of_entry(&self, entry: &Entry) -> &'a [u8] {
        let whole = self.arena.frame_at(entry.frame());
        whole.get(..self.head).unwrap_or(whole)
    }
}

impl<'a> Gateway<'a> for Space<'a> {
    fn frame(&self, entry: &Entry) -> &'a [u8] {
        self.bytes_of_entry(entry)
    }

    fn complete_block(&mut self, block: Block<'a>) -> Option<Block<'a>> {
        Some(Block { frame: self.arena.frame_at(block.entry().frame()), ..block })
    }

    fn pin(&mut self, block: &Block<'a>) -> Option<(Entry, PinId)> {
        Some((block.entry(), PinId(0)))
    }

    fn unpin(&mut self, _: PinId) {}

    fn append(&mut self, room: usize, fill: &mut FillFn<'_>) -> Option<(RichPointer, &'a [u8])> {
        let mut bytes = vec![0; room.min(BLOCK_LENGTH_MAX)];
        let used = fill(&mut bytes).min(bytes.len());
        bytes.truncate(used);
        self.arena.store(bytes)
    }

    fn edit(
        &mut self,
        block: &Block<'a>,
        _: OldBytes,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> Option<(RichPointer, &'a [u8])> {
        let mut copy = self.arena.frame_at(block.entry().frame()).to_vec();
        write(&mut copy);
        self.arena.store(copy)
    }
}

/// A filter for tests, with the state that a space would manage for it.
#[derive(Debug)]
pub struct Node {
    /// Catalog entry of the filter.
    pub description: &'static Description,
    /// The filter, which the test calls.
    pub filter: Filter,
    /// Counters that the filter has updated, for checks of the ledger.
    pub counts: Counts,
    /// Time of the next requested tick, or `None` if none is requested.
    pub wake: Option<Time>,
    holds: HoldTable,
}

impl Node {
    /// Creates a filter with these arguments, in request syntax without quotes.
    pub fn new(description: &'static Description, words: &[&str]) -> Result<Self, Mistake> {
        Self::with_classes(description, words, &[])
    }

    /// Creates a filter with arcs that select these ranges of classes.
    pub fn with_classes(
        description: &'static Description,
        words: &[&str],
        asked: &[(u32, u32)],
    ) -> Result<Self, Mistake> {
        let arguments = parse_arguments(description, words)?.with_selected_classes(asked.to_vec());
        let make =
            description.constructor.ok_or_else(|| make_mistake("it has no user implementation"))?;
        Ok(Self {
            description,
            filter: make(&arguments)?,
            counts: Counts::new(description.reasons.len(), description.counters.len()),
            wake: None,
            holds: HoldTable::new(description.state.held_max, 1 << 30),
        })
    }

    /// Runs one pass over `batch` and returns the output, including blocks without a class.
    pub fn process_batch<'a>(
        &mut self,
        mut batch: Batch<'a>,
        space: &mut Space<'a>,
        now: Time,
    ) -> Vec<Batch<'a>> {
        match &mut self.filter {
            Filter::Statistics(filter) => filter.record(batch.metadata_view(), now),
            Filter::Lanes(filter) => {
                let common = ClassifyContext::new(now, &mut self.counts);
                filter.process(&mut batch, &mut LaneContext::new(common, space));
            }
            Filter::Edit(filter) => {
                let mut common = ClassifyContext::new(now, &mut self.counts);
                let lost = edit::run_edit(&mut **filter, &mut batch, space, &mut common);
                lost.into_iter().for_each(|bytes| self.counts.no_room.add_block(bytes));
            }
            Filter::Stream(_) => {
                let made = self.run_stream(space, now, |filter, cx| filter.process(&mut batch, cx));
                return std::iter::once(batch).chain(made).collect();
            }
        }
        vec![batch]
    }

    /// Advances the path's clock to `now`, and returns the output of the filter.
    pub fn tick<'a>(&mut self, space: &mut Space<'a>, now: Time) -> Vec<Batch<'a>> {
        match self.filter {
            Filter::Stream(_) => self.run_stream(space, now, |filter, cx| filter.tick(cx)),
            Filter::Statistics(_) | Filter::Lanes(_) | Filter::Edit(_) => Vec::new(),
        }
    }

    /// Finishes the filter, and returns its remaining output.
    pub fn finish<'a>(&mut self, space: &mut Space<'a>, now: Time) -> Vec<Batch<'a>> {
        match self.filter {
            Filter::Stream(_) => self.run_stream(space, now, |filter, cx| filter.finish(cx)),
            Filter::Statistics(_) | Filter::Lanes(_) | Filter::Edit(_) => Vec::new(),
        }
    }

    /// Returns the report of the filter.
    #[must_use]
    pub fn report(&self) -> Report {
        self.filter.report()
    }

    /// Removes all sessions and held blocks from the filter and returns them, as for a move to
    /// another process.
    pub fn take_sessions(&mut self) -> Vec<MovedSession> {
        let Some(state) = self.filter.state() else { return Vec::new() };
        let keys = state.session_keys().into_iter();
        let saved: Vec<MovedSession> =
            keys.filter_map(|key| state.take_session(key, &mut self.holds)).collect();
        held_block_lengths(&saved).for_each(|bytes| self.counts.held.subtract_block(bytes));
        saved
    }

    /// Restores the saved sessions and held blocks into this filter.
    pub fn restore_sessions(&mut self, saved: Vec<MovedSession>) -> Result<(), Mistake> {
        let Some(state) = self.filter.state() else { return Ok(()) };
        held_block_lengths(&saved).for_each(|bytes| self.counts.held.add_block(bytes));
        saved.into_iter().try_for_each(|moved| state.put_session(moved, &mut self.holds))
    }

    /// Yields each of the filter's reasons for a missing class, with the number of blocks counted
    /// under this reason.
    pub fn unanswered_reasons(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.description.reasons.iter().copied().zip(self.counts.unanswered.iter().copied())
    }

    fn run_stream<'a>(
        &mut self,
        space: &mut Space<'a>,
        now: Time,
        call: impl FnOnce(&mut dyn crate::contract::HoldingLanes, &mut StreamContext<'_, 'a>),
    ) -> Vec<Batch<'a>> {
        let mut output = Output::default();
        let Filter::Stream(filter) = &mut self.filter else { return Vec::new() };
        let (counts, holds, wake) = (&mut self.counts, &mut self.holds, &mut self.wake);
        let mut cx = StreamContext::new(now, counts, holds, space, &mut output, wake);
        call(filter.as_mut(), &mut cx);
        output.take_batches()
    }
}

/// Yields the lengths in bytes of the blocks held in the saved state.
fn held_block_lengths(saved: &[MovedSession]) -> impl Iterator<Item = u32> + '_ {
    saved.iter().flat_map(|moved| &moved.held).flatten().map(|(_, entry, _)| entry.pointer.length())
}

/// The output of a filter for one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Class that the filter gave the block.
    pub class: Class,
    /// Offset of the view in the frame.
    pub view: u32,
    /// Length of the view in bytes.
    pub length: u32,
    /// The bytes in view.
    pub bytes: Vec<u8>,
    /// Offsets of the view and of all headers.
    pub marks: Marks,
    /// Time, session, origin and flags of the block.
    pub context: BlockMetadata,
    /// Reason for a missing class, or `None` if the block has a class.
    pub reason: Option<&'static str>,
}

/// Runs a filter over frames, one frame per batch. Returns an answer for each output block.
///
/// # Panics
/// Panics if the arguments are wrong.
pub fn answer_frames(
    description: &'static Description,
    words: &[&str],
    frames: &[Frame],
) -> Vec<Answer> {
    answer_through_chain(&[(description, words)], frames)
}

/// Runs a chain of filters over single frames. Returns an answer for each output block, with the
/// reason given by the last filter.
///
/// # Panics
/// Panics if any arguments are wrong.
pub fn answer_through_chain(
    filters: &[(&'static Description, &[&str])],
    frames: &[Frame],
) -> Vec<Answer> {
    let mut nodes: Vec<Node> = filters
        .iter()
        .map(|(description, words)| Node::new(description, words).expect("good arguments"))
        .collect();
    frames.iter().flat_map(|frame| run_chain(&mut nodes, frame)).collect()
}

fn run_chain(nodes: &mut [Node], frame: &Frame) -> Vec<Answer> {
    let arena = Arena::new(64);
    let mut space = Space::new(&arena);
    let mut batches = vec![space.batch(std::slice::from_ref(frame))];
    let mut why = None;
    for node in nodes {
        let before: Vec<_> = node.unanswered_reasons().collect();
        let passes = std::mem::take(&mut batches);
        let passes =
            passes.into_iter().flat_map(|batch| node.process_batch(batch, &mut space, frame.time));
        batches = passes.collect();
        let counted = before.into_iter().zip(node.unanswered_reasons()).find(|(b, a)| b.1 != a.1);
        why = counted.map(|((name, _), _)| name);
    }
    let blocks = batches.iter().flat_map(|batch| batch.blocks().collect::<Vec<_>>());
    blocks.map(|(_, block)| Answer::from_block(&block, why)).collect()
}

/// Runs a filter over these frames in full batches, and returns the rows of the filter's report.
///
/// # Panics
/// Panics if the arguments are wrong.
pub fn report_rows(
    description: &'static Description,
    words: &[&str],
    frames: &[Frame],
) -> Vec<(String, u64)> {
    let mut node = Node::new(description, words).expect("good arguments");
    for frames in frames.chunks(crate::contract::LANES) {
        let arena = Arena::new(4 * frames.len());
        let mut space = Space::new(&arena);
        let now = frames.last().map_or(0, |frame| frame.time);
        node.process_batch(space.batch(frames), &mut space, now);
    }
    node.report().rows
}

/// Parses words as arguments: `name=value` if the filter has that parameter, otherwise a positional
/// value.
pub fn parse_arguments(
    description: &'static Description,
    words: &[&str],
) -> Result<Arguments, Mistake> {
    let keys: Arc<dyn KeyReader> = Arc::new(FixedKeyReader);
    let mut arguments =
        Arguments::from_parameter_defaults(description.parameters).with_key_reader(Some(keys));
    let mut positional = description.parameters.iter().filter(|p| p.positional);
    let mut last: Option<&Parameter> = None;
    for word in words {
        let named = word.split_once('=').and_then(|(name, value)| {
            description.parameter(name).map(|parameter| (parameter, value))
        });
        let (parameter, text) = match named {
            Some(named) => named,
            None => {
                last = positional.next().or_else(|| last.filter(|p| p.repeatable));
                (last.ok_or_else(|| make_mistake("one argument too many"))?, *word)
            }
        };
        let value: Value = parameter.parse(text)?;
        match parameter.repeatable {
            true => arguments.add(parameter.name, value),
            false => arguments.set(parameter.name, value),
        }
    }
    let absent = description
        .parameters
        .iter()
        .find(|p| p.default.is_none() && !p.optional && arguments.get(p.name).is_none());
    match absent {
        Some(parameter) => Err(Mistake::new(parameter.name, "it must be given")),
        None => Ok(arguments),
    }
}

/// Key that the test key service returns for every file name.
pub const TEST_KEY: Key = Key(*b"a key for tests!");

/// A key service that returns the same key for every file name.
#[derive(Debug)]
struct FixedKeyReader;

impl KeyReader for FixedKeyReader {
    fn read_key(&self, _: &str) -> Result<Key, String> {
        Ok(TEST_KEY)
    }
}

fn make_mistake(what: &str) -> Mistake {
    Mistake { parameter: None, value_index: 0, range: None, message: what.to_owned(), hint: None }
}

impl Answer {
    /// Creates an answer from a block and the reason for a missing class.
    #[must_use]
    pub fn from_block(block: &Block<'_>, why: Option<&'static str>) -> Self {
        Self {
            class: block.pointer.class,
            view: block.marks.view,
            length: block.length(),
            bytes: block.bytes().to_vec(),
            marks: block.marks,
            context: block.context,
            reason: why,
        }
    }
}

/// Reads the packets of a capture file, up to its end or to the first error.
#[must_use]
pub fn read_capture(bytes: &[u8]) -> Vec<Frame> {
    let packets = wire::capture::packets(bytes).map_while(Result::ok);
    packets
        .map(|(packet, data)| Frame {
            link: packet.link.0,
            bytes: data.to_vec(),
            wire_length: Some(packet.wire_length),
            time: packet.time_ns,
        })
        .collect()
}

/// Returns the number of live blocks in the batches, and the total number of bytes in their views.
#[must_use]
pub fn total_amount(batches: &[Batch<'_>]) -> Amount {
    let mut sum = Amount::default();
    for batch in batches {
        batch.blocks().for_each(|(_, block)| sum.add_block(block.length()));
    }
    sum
}

/// Number of the Ethernet link type.
pub const ETHERNET: u16 = LinkType::ETHERNET.0;
