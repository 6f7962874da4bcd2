//! Pausing and resuming of walks. A walk pauses before a deferred edit: it ends, and releases all
//! its borrows of block bytes. After the edit, a new walk continues the work (`space::edit`).

use super::arc::NodeId;
use super::memory::{Frames, Memory};
use super::walk::{RunResult, WaitingBatch, Walk};
use filter::{Batch, BatchMemory};

/// A batch that waits at an editing filter until the walk pauses. It does not borrow the bytes of
/// its blocks.
pub(crate) struct DeferredEdit {
    pub(crate) at: NodeId,
    pub(crate) room: BatchMemory,
    pub(crate) hops: u8,
}

/// The blocks that were in flight when a walk paused. Their bytes are not borrowed.
pub(crate) struct PausedWalk {
    /// Batches that wait at editing filters.
    pub(crate) deferred: Vec<DeferredEdit>,
    /// Output batches of editing filters, as (node, blocks, number of back edges followed so far).
    pub(crate) edited: Vec<(NodeId, BatchMemory, u8)>,
    /// Batches that wait at joins, as (start node of the arc, index of the arc, blocks).
    waiting: Vec<(NodeId, usize, BatchMemory)>,
    /// Batches on back edges, as (start node of the arc, index of the arc, blocks, number of back
    /// edges followed so far).
    on_back_edges: Vec<(NodeId, usize, BatchMemory, u8)>,
    next: u32,
}

impl PausedWalk {
    /// Returns true if no block is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.batch_memories().next().is_none()
    }

    /// Returns the memory of every batch in the paused walk.
    pub(crate) fn batch_memories(&self) -> impl Iterator<Item = &BatchMemory> {
        let deferred = self.deferred.iter().map(|edit| &edit.room);
        let edited = self.edited.iter().map(|(_, room, _)| room);
        let waiting = self.waiting.iter().map(|(_, _, room)| room);
        let around = self.on_back_edges.iter().map(|(_, _, room, _)| room);
        deferred.chain(edited).chain(waiting).chain(around)
    }
}

impl<'a> Walk<'_, 'a> {
    /// Ends the walk, and with it all borrows of block bytes. Returns the remaining work of the
    /// walk, or `None` if the walk is complete.
    pub(crate) fn pause(self) -> Option<PausedWalk> {
        if self.deferred.is_empty() {
            return None;
        }
        let waiting =
            self.waiting.into_iter().map(|w| (w.from, w.arc, w.batch.into_compact_memory()));
        let around = self
            .on_back_edges
            .into_iter()
            .map(|(w, hops)| (w.from, w.arc, w.batch.into_compact_memory(), hops));
        Some(PausedWalk {
            deferred: self.deferred,
            edited: Vec::new(),
            waiting: waiting.collect(),
            on_back_edges: around.collect(),
            next: self.next_sequence_number,
        })
    }

    /// Continues a paused walk.
    pub(crate) fn resume(&mut self, paused: PausedWalk) {
        let Memory { intakes, work, imported } = *self.memory;
        let memory = Memory { intakes, work, imported };
        let batch =
            |room| Frames::new(|_, frame| memory.find_frame_segment(frame)).into_batch(room);
        self.next_sequence_number = paused.next;
        self.deferred = paused.deferred;
        let waiting = paused.waiting.into_iter();
        self.waiting = waiting
            .map(|(from, arc, room)| WaitingBatch { from, arc, batch: batch(room) })
            .collect();
        let around = paused.on_back_edges.into_iter();
        let back = |(from, arc, room, hops)| (WaitingBatch { from, arc, batch: batch(room) }, hops);
        self.on_back_edges = around.map(back).collect();
        for (at, room, hops) in paused.edited {
            let mut edited = batch(room);
            self.route(at, &mut edited, hops);
            self.pass.store_spare_memory(edited.into_memory());
        }
        self.walk_waiting_batches();
    }

    /// Stores a batch, which the editing filter at node `at` processes once the walk pauses. `hops`
    /// is the number of back edges that the batch has followed so far.
    pub(super) fn defer_batch(
        &mut self,
        at: NodeId,
        batch: &mut Batch<'a>,
        hops: u8,
    ) -> RunResult<'a> {
        let mut room = self.pass.spare_memories.pop().unwrap_or_default();
        room.columns.clear();
        let taken = std::mem::replace(batch, Batch::without_bytes(room));
        self.deferred.push(DeferredEdit { at, room: taken.into_compact_memory(), hops });
        RunResult::Ended
    }
}
