//! Test support for application filters. It feeds blocks to a filter one by one, as `tcp` emits
//! them, and checks that the ledger balances. A test can also have the filter's state moved to
//! another instance.

use crate::prelude::*;
use crate::testing::{Arena, Frame, Node, Space};
use wire::record::{Field, Record, TEXT_LENGTH_MAX};

/// An input block of a connection.
#[derive(Clone, Debug)]
pub(super) struct TestPiece {
    session: u32,
    flags: BlockFlags,
    /// The bytes of the piece as `Ok`, or the length of a hole in bytes as `Err`.
    bytes: Result<Vec<u8>, u32>,
}

/// Creates a piece that contains `bytes`, sent by the client in session 1.
pub(super) fn client_piece(bytes: &[u8]) -> TestPiece {
    TestPiece { session: 1, flags: BlockFlags::NONE, bytes: Ok(bytes.to_vec()) }
}

/// Creates a hole of `length` bytes in the client's direction of session 1.
pub(super) fn client_hole(length: u32) -> TestPiece {
    TestPiece { session: 1, flags: BlockFlags::NONE, bytes: Err(length) }
}

impl TestPiece {
    /// Returns the piece with the server as its sender.
    pub(super) fn sent_by_server(mut self) -> Self {
        self.flags = self.flags.with(BlockFlags::BACKWARD);
        self
    }

    /// Returns the piece with another session number.
    pub(super) fn in_session(self, session: u32) -> Self {
        Self { session, ..self }
    }

    /// Returns the piece with the flag that marks the end of its direction.
    pub(super) fn with_end_flag(mut self) -> Self {
        self.flags = self.flags.with(BlockFlags::SESSION_END);
        self
    }
}

/// A block that the filter under test has emitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OutputBlock {
    pub(super) class: Class,
    pub(super) session: u32,
    pub(super) flags: BlockFlags,
    pub(super) bytes: Vec<u8>,
    pub(super) length: u32,
    /// Fields of the block if it is a description; otherwise `None`.
    pub(super) description_fields: Option<Vec<(Field, Vec<u8>)>>,
    /// True if the block is a description from which parts were cut.
    pub(super) is_cut: bool,
}

impl OutputBlock {
    fn from_block(block: &Block<'_>) -> Self {
        let described = block.marks.is_description().then(|| {
            assert_eq!(block.length(), 0, "nothing of a description is in view");
            let record = Record::parse(block.frame).expect("a record");
            assert!(record.fields().all(|(_, value)| value.len() <= TEXT_LENGTH_MAX));
            record.fields().map(|(field, value)| (field, value.to_vec())).collect()
        });
        Self {
            class: block.pointer.class,
            session: block.context.session,
            flags: block.context.flags,
            bytes: block.bytes().to_vec(),
            length: block.length(),
            description_fields: described,
            is_cut: block.marks.is_description()
                && Record::parse(block.frame).is_some_and(|record| record.is_truncated()),
        }
    }

    /// Returns the text of this field in the description, with commas between the values of a list.
    /// The text is empty if the field is absent.
    pub(super) fn text(&self, field: Field) -> String {
        let fields = self.description_fields.as_deref().unwrap_or_default();
        let values = fields.iter().filter(|(found, _)| *found == field);
        let values: Vec<_> = values.map(|(_, text)| String::from_utf8_lossy(text)).collect();
        values.join(",")
    }

    /// Returns the number in this field of the description, or `None` if the field is absent.
    pub(super) fn number(&self, field: Field) -> Option<u64> {
        let fields = self.description_fields.as_deref().unwrap_or_default();
        let found = fields.iter().find(|(found, _)| *found == field);
        found.and_then(|(_, bytes)| wire::record::decode_number(bytes))
    }
}

/// Runs the pieces through the filter, one per batch. If `moved` is given, moves the state to
/// another instance after that many pieces. Returns the output blocks, and the number of blocks
/// without a class for each reason.
pub(super) fn run_filter(
    description: &'static Description,
    words: &[&str],
    pieces: &[TestPiece],
    moved: Option<usize>,
) -> (Vec<OutputBlock>, Vec<(&'static str, u64)>) {
    let arena = Arena::new(8 * pieces.len() + 64);
    let mut space = Space::new(&arena);
    let mut node = Node::new(description, words).expect("good arguments");
    let mut out = Vec::new();
    for (number, piece) in pieces.iter().enumerate() {
        if moved == Some(number) {
            let mut there = Node::new(description, words).expect("good arguments");
            let saved = node.take_sessions();
            there.counts = node.counts;
            there.restore_sessions(saved).expect("the same filter");
            node = there;
        }
        let batch = make_batch(piece, number as u64, &space);
        let after = node.process_batch(batch, &mut space, 0);
        out.extend(
            after.iter().flat_map(|batch| batch.blocks().map(|(_, b)| OutputBlock::from_block(&b))),
        );
    }
    let after = node.finish(&mut space, 0);
    out.extend(
        after.iter().flat_map(|batch| batch.blocks().map(|(_, b)| OutputBlock::from_block(&b))),
    );
    assert_balance(&node.counts, pieces.len(), out.len());
    let unanswered: Vec<_> = node.unanswered_reasons().filter(|(_, n)| *n > 0).collect();
    let silent = out.iter().filter(|out| !out.class.is_answered()).count() as u64;
    assert_eq!(unanswered.iter().map(|(_, n)| n).sum::<u64>(), silent, "each with its reason");
    (out, unanswered)
}

fn make_batch<'a>(piece: &TestPiece, time: u64, space: &Space<'a>) -> Batch<'a> {
    let ports = match piece.flags.contains(BlockFlags::BACKWARD) {
        true => (53, 4000),
        false => (4000, 53),
    };
    let bytes = piece.bytes.as_deref().unwrap_or_default();
    let mut batch = space.batch(&[Frame::tcp(ports.0, ports.1, bytes).at_time(time)]);
    let mut block = batch.block(0).view_at(54, u32::MAX);
    block.context.session = piece.session;
    block.context.flags = piece.flags;
    if let Err(length) = piece.bytes {
        block.pointer = RichPointer::hole(length);
        (block.marks, block.frame) = (Marks::for_plain_block(length), &[]);
    }
    batch.set_block(0, block);
    batch
}

/// Asserts that the ledger of the filter balances: each of the `taken` input blocks, and each block
/// that the filter created, was passed, consumed, or counted as lost.
fn assert_balance(counts: &Counts, taken: usize, passed: usize) {
    let dropped: u64 = counts.dropped.iter().map(|amount| amount.blocks).sum();
    let lost = dropped + counts.evicted.blocks + counts.no_room.blocks;
    assert_eq!(counts.held.blocks, 0, "everything has left: {counts:?}");
    let came = taken as u64 + counts.made.blocks;
    assert_eq!(came, passed as u64 + counts.consumed.blocks + lost, "{counts:?}");
}
