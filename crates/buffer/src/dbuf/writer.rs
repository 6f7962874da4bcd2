//! The writer of a ring of blocks.
//!
//! This module determines the cost per block. A single comparison with `limit` establishes that a
//! block fits, that the readers' cursors need not be read, that the lap does not end, and that the
//! block ends before `stop`, where the caller regains control. The rest of the cost is the copy and
//! two stores of header words.

use super::data::DataArea;
use super::reserve::{BlockLayout, RingWriter};
use super::walk::block_length_max;
use crate::cursor::{RingMemory, WriterCursor};
use crate::{Fault, OverflowPolicy, WriterCounts, foreign_memory};
use abi::ring::RecordHeader;
use abi::{DbufId, Extent};
use std::sync::Arc;

/// Size of a cache line in bytes.
const CACHE_LINE_SIZE: u64 = 64;
/// Minimum distance between two blocks, in bytes, at which the writer reclaims the cache lines of
/// headers in advance ([`BlockWriter::reclaim_header_lines`]). Below this distance, the reader
/// touches nearly every cache line of the blocks anyway, so reclaiming gains nothing.
const RECLAIM_SPACING_MIN: u64 = 8 * CACHE_LINE_SIZE;

/// The only writer of a ring of blocks.
pub type BlockWriter = RingWriter<RecordLayout>;

/// The layout of records in a ring, with the state of the writer that depends on the layout.
#[derive(Debug)]
pub struct RecordLayout {
    /// Position up to which the memory is free: a record that ends at or before it fits, is in the
    /// current lap, and is at most half a ring long. `RingWriter::limit` is this position or
    /// `stop`, whichever is lower. 0 forces the slow path.
    free_until: u64,
    data: DataArea,
    /// Position beyond which [`BlockWriter::try_put`] puts no block. A caller that must act at a
    /// position sets it here and regains control there.
    stop: u64,
    /// True once another writer has taken over the ring.
    is_handed_over: bool,
    /// Head position and total number of blocks put, as of the last publication.
    published: (u64, u64),
    /// Head position at the last reservation. The caller may still be writing the block after this
    /// position.
    reserved_at: u64,
}

impl BlockWriter {
    pub(crate) fn new(store: Arc<RingMemory>, id: DbufId) -> Self {
        Self::from_cursor(WriterCursor::new(store), id)
    }

    /// Creates the writer of a segment that continues a ring begun by another writer.
    pub(crate) fn resume(store: Arc<RingMemory>, id: DbufId, head: u64, put: WriterCounts) -> Self {
        Self::from_cursor(WriterCursor::resume(store, head, put), id)
    }

    fn from_cursor(mut side: WriterCursor, id: DbufId) -> Self {
        side.step = RecordHeader::SIZE as u64;
        let layout = RecordLayout {
            free_until: 0,
            data: DataArea::new(side.store.clone()),
            stop: u64::MAX,
            is_handed_over: false,
            published: (0, 0),
            reserved_at: u64::MAX,
        };
        Self::with_layout(side, layout, id)
    }

    /// Returns the head position: the position after the last block put.
    #[inline]
    pub(crate) const fn head(&self) -> u64 {
        self.side.head
    }

    /// Returns the number of blocks put into the ring so far.
    #[inline]
    pub(crate) const fn block_count(&self) -> u64 {
        self.side.counts.blocks
    }

    /// Returns true if another writer has taken over the ring.
    pub(crate) const fn is_handed_over(&self) -> bool {
        self.layout.is_handed_over
    }

    /// Returns the cursor of this writer, with which the stream that wraps this ring waits and
    /// changes segments.
    pub(crate) const fn cursor_mut(&mut self) -> &mut WriterCursor {
        &mut self.side
    }

    /// Reserves room for a switch record, so that a full ring can continue in another segment.
    pub(crate) const fn reserve_switch_record(&mut self) {
        self.reserve = RecordHeader::SIZE as u64;
    }

    /// Returns true if a block of this length would begin a new lap.
    pub(crate) fn would_wrap(&self, length: usize) -> bool {
        let left = self.layout.data.bytes_to_lap_end(self.side.head);
        left == self.layout.data.capacity() || RecordHeader::span_for_length(length) > left
    }

    /// Returns the position at which a new segment would start if the writer switched to it now.
    pub(crate) const fn next_segment_start(&self) -> u64 {
        self.side.head + RecordHeader::SIZE as u64
    }

    /// Writes a switch record with the number of the next segment, and continues in the memory of
    /// that segment.
    pub(crate) fn switch_segment(&mut self, number: u64, store: Arc<RingMemory>) {
        self.put_marker_record(RecordHeader {
            length: 0,
            kind: RecordHeader::KIND_SWITCH,
            sequence: number,
        });
        self.layout.data = DataArea::new(store.clone());
        self.side.continue_in_memory(store);
        (self.layout.free_until, self.limit) = (0, 0);
        self.resize_staging();
    }

    /// Writes a switch record that directs readers to segment `number` of another writer, then ends
    /// this writer's segment.
    pub(crate) fn switch_to_other_writer(&mut self, number: u64) {
        self.put_marker_record(RecordHeader {
            length: 0,
            kind: RecordHeader::KIND_SWITCH,
            sequence: number,
        });
        self.side.leave_segment();
        (self.layout.free_until, self.limit, self.layout.is_handed_over) = (0, 0, true);
    }

    /// Writes a cut record, which announces a new capacity, and changes the capacity in place. Does
    /// nothing and returns `None` if `capacity` is invalid or exceeds the memory.
    pub(crate) fn change_capacity(&mut self, capacity: u64) -> Option<()> {
        let before = self.layout.data.capacity();
        self.layout.data.set_capacity(capacity)?;
        let after = self.layout.data.capacity();
        // The cut record itself is placed according to the old capacity.
        self.layout.data.set_capacity(before)?;
        self.put_marker_record(RecordHeader {
            length: 0,
            kind: RecordHeader::KIND_CUT,
            sequence: after,
        });
        self.layout.data.set_capacity(after)?;
        self.side.change_capacity(after);
        (self.layout.free_until, self.limit) = (0, 0);
        Some(())
    }

    /// Puts a record without a block at the head: a switch of segments, or a change to the
    /// capacity.
    fn put_marker_record(&mut self, record: RecordHeader) {
        let end = self.next_segment_start();
        if self.side.policy == OverflowPolicy::Overwrite {
            self.side.announce_overwrite(end);
        }
        self.layout.data.write_record_header(self.side.head, record.words());
        self.side.head = end;
    }

    /// Sets the position beyond which [`BlockWriter::try_put`] puts no block. The caller regains
    /// control there.
    #[inline]
    pub(crate) fn stop_at(&mut self, position: u64) {
        self.layout.stop = position;
        self.limit = self.layout.free_until.min(position);
    }

    /// Fetches the cache lines of the next headers back from the readers' processors. Assumes that
    /// the next blocks are as far apart as the last ones.
    ///
    /// A reader that inspects the first word of each block moves one line per block into its cache.
    /// A store to such a line waits until the line returns, and stores are performed in order, so
    /// copies stall once per block. If the stores to such lines are issued one after the other,
    /// their waits overlap. Prefetching the lines for writing does not overlap the waits (`bench
    /// peek`, two cores).
    fn reclaim_header_lines(&self, span: u64, blocks: u64) {
        let mut at = self.side.head;
        for _ in 0..blocks {
            // Up to `free_until` the memory is free, and no reader accesses it (D3).
            if at + CACHE_LINE_SIZE > self.layout.free_until {
                return;
            }
            self.layout.data.write_record_header(at, [0; 2]);
            let first = at + RecordHeader::SIZE as u64;
            if first.is_multiple_of(CACHE_LINE_SIZE) {
                self.layout.data.write_record_header(first, [0; 2]);
            }
            at += span;
        }
    }

    /// Returns the number of free positions that a block of this length needs at the head,
    /// including padding and reserved room. Fails with [`Fault::TooLong`] if the block can never
    /// fit.
    #[inline]
    pub(crate) fn needed_positions(&self, length: usize) -> Result<u64, Fault> {
        let limit = self.block_length_max();
        match u32::try_from(length) {
            Ok(short) if length <= limit => {
                Ok(self.layout.needed_room(self.side.head, short).1 + self.reserve)
            }
            _ => Err(Fault::TooLong { length, limit }),
        }
    }
}

impl BlockLayout for RecordLayout {
    #[inline]
    fn block_length_max(&self) -> usize {
        block_length_max(self.data.capacity())
    }

    #[inline]
    fn needed_room(&self, head: u64, length: u32) -> (u64, u64) {
        let (left, span) = (self.data.bytes_to_lap_end(head), RecordHeader::span(length));
        let pad = if span > left { left } else { 0 };
        (pad, pad + span)
    }

    #[inline]
    fn fitting_length(writer: &BlockWriter, length: usize) -> Option<u32> {
        let short = u32::try_from(length).ok()?;
        (writer.side.head + RecordHeader::span(short) <= writer.limit).then_some(short)
    }

    fn set_limit(writer: &mut BlockWriter, pad: u64, room: u64) {
        let (head, data) = (writer.side.head, &writer.layout.data);
        // The lap ends with the padding, which is not written yet.
        let free_until = if pad > 0 || writer.side.policy == OverflowPolicy::Overwrite {
            0
        } else {
            let longest =
                (data.capacity() / 2).min(RecordHeader::span_for_length(abi::BLOCK_LENGTH_MAX));
            (head + data.bytes_to_lap_end(head)).min(head + room).min(head + longest)
        };
        writer.layout.free_until = free_until;
        writer.limit = free_until.min(writer.layout.stop);
    }

    #[inline(always)]
    fn try_put(writer: &mut BlockWriter, block: &[u8]) -> bool {
        let head = writer.side.head;
        let end = head + RecordHeader::span_for_length(block.len());
        if end > writer.limit {
            return false;
        }
        let data = &writer.layout.data;
        // Less than half a ring, hence less than 32 bits.
        data.write_record_header(
            head,
            RecordHeader::block_words(block.len(), writer.side.counts.blocks),
        );
        // SAFETY: the range ends before `limit`: in this lap, between head and the data that
        // readers still need (D2); no reader accesses it (D3), and the only writer is borrowed.
        let room = unsafe { data.bytes_mut(head + RecordHeader::SIZE as u64, block.len()) };
        foreign_memory::copy(block, room);
        writer.side.head = end;
        writer.side.counts.blocks += 1;
        writer.side.counts.bytes += block.len() as u64;
        true
    }

    #[inline]
    fn block_address(writer: &BlockWriter, pad: u64) -> *mut u8 {
        let bytes = writer.side.head + pad + RecordHeader::SIZE as u64;
        writer.layout.data.address(bytes).cast_mut()
    }

    /// Writes the headers of the block and of the pad record before it, if there is one, and
    /// advances the head. Returns the extent of the block.
    #[inline]
    fn commit(writer: &mut BlockWriter, pad: u64, length: u32) -> Extent {
        let start = writer.side.head + pad;
        let end = start + RecordHeader::span(length);
        let bytes = start + RecordHeader::SIZE as u64;
        let lossy = writer.side.policy == OverflowPolicy::Overwrite;
        if lossy {
            writer.side.announce_overwrite(end);
        }
        let data = &writer.layout.data;
        if pad > 0 {
            let length = u32::try_from(pad - RecordHeader::SIZE as u64).unwrap_or(u32::MAX);
            let record = RecordHeader { length, kind: RecordHeader::KIND_PAD, sequence: 0 };
            data.write_record_header(writer.side.head, record.words());
        }
        data.write_record_header(
            start,
            RecordHeader::block_words(length as usize, writer.side.counts.blocks),
        );
        if lossy {
            data.copy_in(bytes, writer.staging.get(..length as usize).unwrap_or_default());
            writer.side.mark_resume_position(start);
        }
        writer.side.head = end;
        writer.side.counts.blocks += 1;
        writer.side.counts.bytes += u64::from(length);
        Extent::new(bytes, length)
    }

    #[inline]
    fn record_reservation(&mut self, head: u64) {
        self.reserved_at = head;
    }

    fn prepare_after_publish(writer: &mut BlockWriter) {
        let (head, blocks) = (writer.side.head, writer.side.counts.blocks);
        let (before, had) = std::mem::replace(&mut writer.layout.published, (head, blocks));
        if let Some(span) = (head - before).checked_div(blocks - had)
            && span >= RECLAIM_SPACING_MIN
            && writer.layout.reserved_at != head
        {
            writer.reclaim_header_lines(span, blocks - had);
        }
    }

    fn is_handed_over(&self) -> bool {
        self.is_handed_over
    }
}
