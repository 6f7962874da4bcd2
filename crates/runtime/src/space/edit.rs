//! Write isolation: a block is changed only while its bytes are not borrowed, and only nodes
//! downstream of the editing filter see the change. [SL §6.1], [Th §5.3]
//!
//! A batch that reaches an editing filter is deferred as rich pointers, and the walk continues with
//! all other work. Readers on parallel branches have therefore read the block before the change [Th
//! §5.3.1, rule 2], regardless of their position in the request. Then the walk ends and releases
//! every borrow of a block in this pass (`Walk::pause`); only rich pointers remain
//! ([`PausedWalk`]). The space now has exclusive access to its pools (`&mut`), so the compiler
//! proves that no slice is alive. The filter edits block by block, and a new walk resumes where the
//! old walk stopped. `Pool::edit` explains why the bytes may be written (M9).
//!
//! A frame is changed in place only if no other party relies on the old bytes. This is guaranteed
//! if all of the following conditions are true:
//! - E1 The frame is in a pool that this space owns. Imported and lent blocks are copied into the
//!   local pool (`work`), which is always writable.
//! - E2 No other party in any space holds the frame: its segment has no lease (from a ring) and no
//!   pin (from a held block). `Pool::edit` checks this.
//! - E3 No block in flight in this space shares a byte of the frame. The walk is paused, so
//!   [`PausedWalk`] holds all blocks in flight. Their frames are compared, including frames of the
//!   same batch (a filter may make several blocks from one block).
//! - E4 The settings do not demand copies (`Settings::copies`).
//!
//! A filter that remembers a rich pointer without holding the block has no claim to its bytes (M5).
//! Frames are compared, not views, because `pcap` writes the entire frame regardless of the view.
//! If a condition is false, a copy of the entire frame is edited. If the frame is long and the
//! nodes downstream accept fragments, only the written range is copied
//! ([`FRAGMENTED_FRAME_BYTES_MIN`]).

mod block_editor;

use self::block_editor::BlockEditor;
use super::arc::NodeId;
use super::graph::LocalGraph;
use super::node::Operator;
use super::pause::PausedWalk;
use crate::failure::PathFailure;
use crate::ledger::EditCounts;
use abi::{DbufId, Entry};
use buffer::crossing::Batch as RingBatch;
use filter::{Amount, BatchMemory, Block, ClassifyContext, Columns, Filter, Time};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Minimum length, in bytes, of a frame for which an edit copies only the written range, which
/// splits the block into fragments. Copying a shorter frame (about 60 ns for 4 KB) costs less than
/// processing three blocks.
pub(crate) const FRAGMENTED_FRAME_BYTES_MIN: usize = 8 << 10;

impl LocalGraph {
    /// Runs one editing filter on all of its deferred batches: the filter that comes first in graph
    /// order among those with deferred batches.
    pub(super) fn run_first_editor(
        &mut self,
        paused: &mut PausedWalk,
        imported: &[RingBatch<'_>],
        now: Time,
    ) {
        let first =
            paused.deferred.iter().map(|edit| edit.at).min_by_key(|at| self.shape.rank[*at]);
        let Some(at) = first else { return };
        while let Some(next) = paused.deferred.iter().position(|edit| edit.at == at) {
            let edit = paused.deferred.remove(next);
            let shared = overlapping_lanes(&edit.room.columns, paused);
            let mut out = EditOutput {
                spare: std::mem::take(&mut self.pass.spare_memories),
                ..EditOutput::default()
            };
            self.edit_batch((at, now), &edit.room.columns, (shared, imported), &mut out);
            self.pass.spare_memories = out.spare;
            paused.edited.extend(out.batches.into_iter().map(|room| (at, room, edit.hops)));
            self.pass.store_spare_memory(edit.room);
        }
    }

    /// Runs an editing filter on one batch, and adds the resulting blocks to `out`. `shared` is the
    /// mask of lanes whose blocks must be copied before they are edited. If the filter panics, the
    /// path fails. If the path has already failed, only counts the blocks as failed.
    fn edit_batch(
        &mut self,
        (at, now): (NodeId, Time),
        columns: &Columns,
        (shared, imported): (u64, &[RingBatch<'_>]),
        out: &mut EditOutput,
    ) {
        let node = &mut self.nodes[at];
        let came = total_amount(columns);
        if self.pass.failure.is_some() {
            node.flow.failed += came;
            return;
        }
        let Operator::Filter(Filter::Edit(filter)) = &mut node.operator else { return };
        node.flow.calls += 1;
        let begin =
            if self.pass.observers.measures_time() { sys::clock::monotonic_ns() } else { 0 };
        let mut editor = BlockEditor {
            intakes: &mut self.intakes,
            work: &mut self.work,
            imported,
            fragments: node.fragments,
        };
        let mut context = ClassifyContext::new(now, &mut node.counts);
        let mut last = 0;
        let ran = catch_unwind(AssertUnwindSafe(|| {
            for l in 0..columns.len() {
                last = l;
                let copies = self.pass.edits_in_copies || shared & (1 << l) != 0;
                editor.edit_block(
                    (columns.entry(l), columns.sequence_number(l)),
                    copies,
                    (&mut **filter, &mut context),
                    out,
                );
            }
        }));
        node.counts.made.blocks += out.made;
        for bytes in out.lost.drain(..) {
            node.counts.no_room.add_block(bytes);
        }
        let edits = &mut node.flow.edits;
        edits.direct += out.edits.direct;
        edits.copied += out.edits.copied;
        edits.appended += out.edits.appended;
        edits.fragmented += out.edits.fragmented;
        if self.pass.observers.measures_time() {
            node.flow.busy_ns += sys::clock::monotonic_ns().saturating_sub(begin);
        }
        if let Err(panic) = ran {
            node.flow.failed += came;
            node.counts.made.blocks -= out.made;
            out.batches.clear();
            let entry = columns.entry(last);
            let frame = editor.bytes(entry.frame());
            let Entry { pointer, marks, context } = entry;
            let block = Block { pointer, frame, marks, context };
            let name = node.name.clone();
            self.pass.failure =
                Some(PathFailure::from_panicked_filter(name, &*panic, Some(&block)));
        }
    }
}

/// The blocks that result from running an editing filter, collected in batches.
#[derive(Default)]
struct EditOutput {
    batches: Vec<BatchMemory>,
    /// Memory of earlier batches, now empty, for reuse.
    spare: Vec<BatchMemory>,
    /// Number of blocks that were added because blocks were split into fragments.
    made: u64,
    /// Lengths, in bytes, of the blocks that were lost for lack of memory.
    lost: Vec<u32>,
    edits: EditCounts,
}

impl EditOutput {
    fn push(&mut self, entry: Entry, order: u32) {
        let added = self
            .batches
            .last_mut()
            .is_some_and(|room| room.columns.push_with_sequence_number(entry, order));
        if !added {
            let mut room = self.spare.pop().unwrap_or_default();
            room.columns.clear();
            room.columns.push_with_sequence_number(entry, order);
            self.batches.push(room);
        }
    }
}

/// Returns the lanes whose frames overlap the frame of another block in flight. By rule E3, these
/// frames must not be edited in place.
fn overlapping_lanes(columns: &Columns, paused: &PausedWalk) -> u64 {
    let frame = |columns: &Columns, l: usize| {
        let frame = columns.frame(l);
        let from = frame.place.position();
        (frame.dbuf(), from, from + u64::from(frame.length()))
    };
    if paused.is_empty() {
        // The usual case: a single batch with frames in ascending order.
        let mut end = (DbufId::HOLE, 0);
        let mut apart = true;
        for l in 0..columns.len() {
            let (dbuf, from, to) = frame(columns, l);
            apart &= dbuf != end.0 || from >= end.1;
            apart &= l == 0 || dbuf == end.0;
            end = (dbuf, to);
        }
        if apart {
            return 0;
        }
    }
    let mut all: Vec<((DbufId, u64, u64), Option<usize>)> =
        (0..columns.len()).map(|l| (frame(columns, l), Some(l))).collect();
    for other in paused.batch_memories() {
        all.extend((0..other.columns.len()).map(|l| (frame(&other.columns, l), None)));
    }
    all.retain(|((_, from, to), _)| from < to);
    all.sort_unstable_by_key(|((dbuf, from, _), _)| (dbuf.number(), *from));
    let mut shared = 0;
    // The range with the highest end so far.
    let mut far: Option<((DbufId, u64, u64), Option<usize>)> = None;
    for (range, lane) in all {
        let mark = |lane: Option<usize>| lane.map_or(0, |l| 1 << l);
        match far {
            Some((before, other)) if before.0 == range.0 && range.1 < before.2 => {
                shared |= mark(lane) | mark(other);
                if range.2 > before.2 {
                    far = Some((range, lane));
                }
            }
            _ => far = Some((range, lane)),
        }
    }
    shared
}

fn total_amount(columns: &Columns) -> Amount {
    let mut amount = Amount::default();
    (0..columns.len()).for_each(|l| amount.add_block(columns.pointer(l).length()));
    amount
}
