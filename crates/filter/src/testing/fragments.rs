//! Fragments of texts, as `tcp` and `http` emit them, made without running these filters.

use super::{Answer, Arena, Node, Space};
use crate::contract::{Batch, Columns};
use abi::{BlockFlags, BlockMetadata, Entry, Marks, RichPointer};

/// A fragment of a text. A text is a message, or one direction of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fragment {
    /// Session number of the block that contains the fragment.
    pub session: u32,
    /// Flags: direction, first fragment, last fragment.
    pub flags: BlockFlags,
    /// Bytes of the fragment; empty for a hole.
    pub bytes: Vec<u8>,
    /// Length in bytes of a hole; 0 for a fragment with bytes.
    pub missing: u32,
    /// True for the description that begins a message. Its record is not in view.
    pub is_description: bool,
}

impl Fragment {
    /// Creates a fragment with these bytes, from the middle of a session's text.
    #[must_use]
    pub fn new(session: u32, bytes: &[u8]) -> Self {
        Self { session, bytes: bytes.to_vec(), ..Self::default() }
    }

    /// Creates a hole of `missing` bytes in a session.
    #[must_use]
    pub fn hole(session: u32, missing: u32) -> Self {
        Self { session, missing, ..Self::default() }
    }

    /// Creates a description, which begins a message of the session.
    #[must_use]
    pub fn description(session: u32) -> Self {
        let piece = Self { is_description: true, ..Self::new(session, b"a record") };
        piece.with_flags(BlockFlags::FIRST)
    }

    /// Adds flags to the fragment.
    #[must_use]
    pub fn with_flags(self, flags: BlockFlags) -> Self {
        Self { flags: self.flags.with(flags), ..self }
    }

    /// Splits a text at these offsets and returns its fragments. The first and the last fragment
    /// have the flags for the start and the end of the text.
    #[must_use]
    pub fn split_at(session: u32, text: &[u8], offsets: &[usize]) -> Vec<Self> {
        let from = std::iter::once(0).chain(offsets.iter().copied());
        let to = offsets.iter().copied().chain(std::iter::once(text.len()));
        let mut pieces: Vec<Self> =
            from.zip(to).map(|(from, to)| Self::new(session, &text[from..to])).collect();
        if let Some(first) = pieces.first_mut() {
            first.flags = first.flags.with(BlockFlags::FIRST);
        }
        if let Some(last) = pieces.last_mut() {
            last.flags = last.flags.with(BlockFlags::SESSION_END);
        }
        pieces
    }
}

impl<'a> Space<'a> {
    /// Creates a batch of fragments.
    ///
    /// # Panics
    ///
    /// Panics if there are more fragments than lanes, or if the arena is full.
    #[must_use]
    pub fn batch_of_fragments(&self, pieces: &[Fragment]) -> Batch<'a> {
        let mut columns = Box::<Columns>::default();
        for piece in pieces {
            let (mut pointer, bytes) = self.arena.store(piece.bytes.clone()).expect("a free cell");
            let mut length = bytes.len() as u32;
            if piece.missing > 0 {
                (pointer, length) = (RichPointer::hole(piece.missing), piece.missing);
            }
            let mut marks = Marks::for_plain_block(length);
            if piece.is_description {
                (pointer, marks) = (pointer.subrange(0, 0), Marks::for_description(length));
            }
            let (session, flags) = (piece.session, piece.flags);
            let context = BlockMetadata { session, flags, ..BlockMetadata::default() };
            assert!(columns.push(Entry::new(pointer, context, marks)), "a free lane");
        }
        Batch::new(columns.into(), |columns, l| match columns.pointer(l).is_hole() {
            true => &[],
            false => self.bytes_of_entry(&columns.entry(l)),
        })
    }
}

/// Runs fragments in one batch through a filter. Returns an answer for each output block.
///
/// # Panics
///
/// Panics if there are more fragments than lanes.
pub fn run_fragments(node: &mut Node, pieces: &[Fragment]) -> Vec<Answer> {
    let arena = Arena::new(4 * pieces.len());
    let mut space = Space::new(&arena);
    let batches = node.process_batch(space.batch_of_fragments(pieces), &mut space, 0);
    let blocks = batches.iter().flat_map(|batch| batch.blocks().collect::<Vec<_>>());
    blocks.map(|(_, block)| Answer::from_block(&block, None)).collect()
}
