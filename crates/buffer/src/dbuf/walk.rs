//! A reader's walk through a ring of blocks, record by record. The ring is not trusted: each header
//! is copied once, and the copy is checked against the window of readable positions before use
//! (RELIABILITY T3 to T5).

use super::data::DataArea;
use super::readers::BlockWalk;
use crate::cursor::{ReaderCursor, RingMemory};
use crate::{Fault, OverflowPolicy, ReaderCounts};
use abi::ring::RecordHeader;
use abi::{BLOCK_LENGTH_MAX, Extent};
use std::sync::Arc;

mod fast_path;
mod in_place_read;
mod opened_block;
mod skip;

/// The state of a reader that walks through a ring of blocks, record by record.
#[derive(Debug)]
pub struct RecordWalk {
    /// Position up to which the reader may skip most checks: a record that ends at or before it is
    /// published, is in the current lap, is not too long, and does not pass `stop`. If it is 0,
    /// every record takes the slow path with all checks.
    fast_limit: u64,
    /// Sequence number that the next block has if none is lost or skipped. Valid if
    /// `is_expected_valid` is true.
    expected: u64,
    pub(super) data: DataArea,
    pub(crate) side: ReaderCursor,
    /// Position beyond which [`RecordWalk::take_block`] reads no record. A caller that must act at
    /// a position sets it here and regains control there.
    stop: u64,
    /// True if `expected` is valid: the reader began at the first block of the ring, or has passed
    /// a block since it joined.
    is_expected_valid: bool,
    /// Number of blocks that this reader did not take, because they were put before it joined, were
    /// lost, or were skipped: `expected` minus the number of blocks taken.
    untaken_blocks: u64,
    /// Position after the last block that this reader has passed.
    passed_position: u64,
    /// Predicted first header word of the next block, on the assumption that the block is as long
    /// as the last one.
    expected_header_word: u64,
    /// Predicted length in bytes of the next record, including its header, on the assumption that
    /// its block is as long as the last one.
    expected_record_length: u64,
    /// Number of the segment in which the ring continues. `None` until this reader has read the
    /// current segment to its end.
    next_segment: Option<u64>,
    /// True if this reader has passed a change to the capacity since the last call to
    /// [`RecordWalk::take_capacity_change`].
    has_passed_cut: bool,
}

/// A record whose header has been copied and checked.
#[derive(Clone, Copy, Debug)]
pub struct CheckedRecord {
    /// Position of the first byte of the block.
    pub(crate) at: u64,
    pub(crate) length: u32,
    /// Number of bytes at the start of the block that the caller has already read.
    bytes_read: u32,
    sequence: u64,
    /// Number of blocks lost before this block.
    lost: u64,
    /// Position after the last byte of the record.
    end: u64,
}

impl CheckedRecord {
    /// Returns the position of the first unread byte of the block.
    #[inline]
    pub(crate) const fn unread_position(&self) -> u64 {
        self.at + self.bytes_read as u64
    }

    /// Returns the number of unread bytes of the block.
    #[inline]
    pub(crate) const fn unread_length(&self) -> usize {
        (self.length - self.bytes_read) as usize
    }

    /// Returns this record after the caller has read `count` more bytes of its block. Returns
    /// `None` if the entire block has then been read.
    #[inline]
    pub(crate) fn advanced_by(&self, count: usize) -> Option<Self> {
        let done = self.bytes_read.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        (done < self.length).then_some(Self { bytes_read: done, ..*self })
    }
}

/// Maximum number of times that a reader of an overwriting ring tries to read a block that the
/// writer overwrites meanwhile. After that, the reader reports that no block is available.
const READ_ATTEMPTS_MAX: usize = 8;
/// Maximum number of records without a block that may precede a block: padding, and changes to the
/// capacity. A ring with more of them is damaged.
const MARKER_RECORDS_MAX: usize = 8;

impl RecordWalk {
    pub(super) fn new(side: ReaderCursor) -> Self {
        let (data, taken, start) = (DataArea::new(side.store.clone()), side.taken, side.next);
        let first = 0u64.wrapping_sub(taken.blocks);
        Self {
            fast_limit: 0,
            expected: 0,
            data,
            side,
            stop: u64::MAX,
            // For a reader that starts at position 0, the number of the first block is known.
            is_expected_valid: start == 0,
            untaken_blocks: first,
            passed_position: start,
            expected_header_word: 0,
            expected_record_length: 0,
            next_segment: None,
            has_passed_cut: false,
        }
    }

    /// Returns the data area of the ring.
    #[inline]
    pub(crate) const fn data(&self) -> &DataArea {
        &self.data
    }

    /// Returns the counts of this reader: blocks and bytes taken, blocks lost and skipped.
    #[inline]
    pub(crate) const fn counts(&self) -> ReaderCounts {
        ReaderCounts { blocks: self.expected.wrapping_sub(self.untaken_blocks), ..self.side.taken }
    }

    /// Releases to the writer all blocks that this reader has passed, and publishes the reader's
    /// counts.
    pub(crate) fn release(&mut self) {
        self.side.taken = self.counts();
        self.side.release();
    }

    /// Returns true if this reader has passed a change to the capacity since the last call. At the
    /// change, the reader released all earlier blocks without notifying the writer, so the caller
    /// must notify it.
    pub(crate) const fn take_capacity_change(&mut self) -> bool {
        std::mem::replace(&mut self.has_passed_cut, false)
    }

    /// Stores the number of this thread's processor, which the next release publishes.
    pub(crate) fn publish_processor(&self) {
        self.side.set_processor(sys::machine::current_processor() as u64);
    }

    /// Sets the position beyond which [`RecordWalk::take_block`] reads no record. The caller
    /// regains control there.
    pub(crate) fn stop_at(&mut self, position: u64) {
        self.stop = position;
        self.fast_limit = self.fast_limit.min(position);
    }

    /// Makes the next record take the slow path with all checks.
    pub(crate) const fn disable_fast_path(&mut self) {
        self.fast_limit = 0;
    }

    /// Skips to the writer's current position. The skipped blocks are counted with the next block
    /// taken.
    pub(super) fn join_at_current_position(&mut self) -> Result<(), Fault> {
        let has_switched = self.side.has_switched();
        let now = self.side.refresh_published_position()?;
        (self.side.next, self.is_expected_valid, self.fast_limit) = (now, false, 0);
        if let (true, Some(last)) = (has_switched, now.checked_sub(RecordHeader::SIZE as u64)) {
            // A switch is always the last record of its segment.
            let header = RecordHeader::from_words(self.data.header(last));
            self.next_segment =
                (header.kind == RecordHeader::KIND_SWITCH).then_some(header.sequence);
        }
        self.release();
        Ok(())
    }

    /// Returns the number of the segment in which the ring continues, or `None` if the current
    /// segment has not been read to its end. Once this returns a number, no further block is found
    /// until [`RecordWalk::continue_in_memory`] is called.
    pub(crate) const fn next_segment_number(&self) -> Option<u64> {
        self.next_segment
    }

    /// Continues reading in the next segment, whose memory is `store`.
    pub(crate) fn continue_in_memory(&mut self, store: Arc<RingMemory>) {
        self.data = DataArea::new(store.clone());
        self.side.taken = self.counts();
        self.side.continue_in_memory(store);
        (self.fast_limit, self.next_segment) = (0, None);
    }

    /// Changes the capacity in place, from `position` on. Fails with [`Fault::Damaged`] if the ring
    /// overwrites or the capacity is invalid.
    fn change_capacity(&mut self, position: u64, capacity: u64) -> Result<(), Fault> {
        // In a ring that overwrites, a hostile change to capacity could not be detected.
        if self.side.policy == OverflowPolicy::Overwrite
            || self.data.set_capacity(capacity).is_none()
        {
            return Err(self.report_damage(position));
        }
        self.side.next = position;
        self.side.taken = self.counts();
        self.side.change_capacity(capacity);
        self.has_passed_cut = true;
        // The caller has to adapt to the new capacity first.
        (self.fast_limit, self.stop) = (0, position);
        Ok(())
    }

    /// Locates the next block, skipping pad, cut and switch records. Returns `None` if no block is
    /// published in this segment. All header fields are checked against the window of readable
    /// positions before use. Fails with [`Fault::Damaged`] if the record is invalid.
    #[inline]
    pub(crate) fn find(&mut self) -> Result<Option<CheckedRecord>, Fault> {
        match self.find_on_fast_path() {
            Some(found) => Ok(Some(found)),
            None => self.find_checked_record(),
        }
    }

    /// Returns the position up to which records may take the fast path (see `fast_limit`). Returns
    /// 0 if no record may take it.
    fn compute_fast_limit(&self) -> u64 {
        if !self.is_expected_valid || self.side.policy == OverflowPolicy::Overwrite {
            return 0;
        }
        let start = self.side.next;
        let longest =
            (self.data.capacity() / 2).min(RecordHeader::span_for_length(BLOCK_LENGTH_MAX));
        let lap = start + self.data.bytes_to_lap_end(start);
        lap.min(self.side.last_published_position()).min(start + longest).min(self.stop)
    }

    #[cold]
    fn find_checked_record(&mut self) -> Result<Option<CheckedRecord>, Fault> {
        // At most one pad record and a few cut records precede a block.
        for _ in 0..MARKER_RECORDS_MAX {
            let (start, commit) = (self.side.next, self.side.available_position()?);
            if start == commit || self.next_segment.is_some() {
                self.fast_limit = 0;
                return Ok(None);
            }
            let header = RecordHeader::from_words(self.data.header(start));
            let (span, left) =
                (RecordHeader::span(header.length), self.data.bytes_to_lap_end(start));
            if span > left || span > commit.wrapping_sub(start) {
                return Err(self.report_damage(start));
            }
            let end = start + span;
            match header.kind {
                RecordHeader::KIND_PAD if span == left => self.side.next = end,
                RecordHeader::KIND_SWITCH
                    if header.length == 0 && end == commit && !self.is_torn(start) =>
                {
                    (self.side.next, self.next_segment) = (end, Some(header.sequence));
                }
                RecordHeader::KIND_CUT if header.length == 0 => {
                    self.change_capacity(end, header.sequence)?
                }
                RecordHeader::KIND_BLOCK
                    if header.length as usize <= block_length_max(self.data.capacity()) =>
                {
                    let at = start + RecordHeader::SIZE as u64;
                    let (length, sequence) = (header.length, header.sequence);
                    let expected = if self.is_expected_valid { self.expected } else { sequence };
                    let lost = sequence.wrapping_sub(expected);
                    if lost > self.max_lost_before(start) {
                        return Err(self.report_damage(start));
                    }
                    self.fast_limit = self.compute_fast_limit();
                    return Ok(Some(CheckedRecord {
                        at,
                        length,
                        bytes_read: 0,
                        sequence,
                        lost,
                        end,
                    }));
                }
                _ => return Err(self.report_damage(start)),
            }
        }
        Err(self.report_damage(self.side.next))
    }

    /// Returns true if data copied from `position` may be torn, because the writer has begun to
    /// overwrite it.
    fn is_torn(&self, position: u64) -> bool {
        self.side.policy == OverflowPolicy::Overwrite && self.side.is_overtaken(position)
    }

    /// Returns the fault for an invalid record, and makes all later reads fail
    /// ([`ReaderCursor::poison`]). Exception: in a ring that overwrites, a record is also invalid
    /// once the writer has begun to overwrite it. Later reads are then not affected, and the caller
    /// checks whether the reader was lapped.
    fn report_damage(&mut self, position: u64) -> Fault {
        let fault = Fault::Damaged { position };
        if self.is_torn(position) {
            return fault;
        }
        self.fast_limit = 0;
        self.side.poison(fault)
    }

    #[inline]
    pub(crate) fn pass_record(&mut self, found: &CheckedRecord) {
        if !self.is_expected_valid {
            // First block after joining: earlier blocks count as skipped.
            let before = found.sequence.wrapping_sub(self.expected);
            self.untaken_blocks = self.untaken_blocks.wrapping_add(before);
            self.side.taken.skipped = self.side.taken.skipped.wrapping_add(before);
            (self.is_expected_valid, self.expected) = (true, found.sequence);
        }
        self.untaken_blocks = self.untaken_blocks.wrapping_add(found.lost);
        self.side.taken.lost += found.lost;
        self.expected = found.sequence.wrapping_add(1);
        self.side.next = found.end;
        self.passed_position = found.end;
        self.side.taken.bytes += u64::from(found.length);
    }

    /// Returns the maximum number of blocks that can be lost between the last block passed and the
    /// block at `position`. If the ring overwrites, this is the number of blocks that fit in
    /// between, otherwise 0.
    fn max_lost_before(&self, position: u64) -> u64 {
        match self.side.policy {
            OverflowPolicy::Overwrite => {
                position.saturating_sub(self.passed_position) / RecordHeader::SIZE as u64
            }
            OverflowPolicy::Block | OverflowPolicy::DropNew => 0,
        }
    }
}

impl BlockWalk for RecordWalk {
    type LocatedBlock = CheckedRecord;

    #[inline]
    fn cursor(&self) -> &ReaderCursor {
        &self.side
    }

    fn cursor_mut(&mut self) -> &mut ReaderCursor {
        &mut self.side
    }

    fn counts(&self) -> ReaderCounts {
        Self::counts(self)
    }

    #[inline]
    fn find_on_fast_path(&mut self) -> Option<CheckedRecord> {
        Self::find_on_fast_path(self)
    }

    #[inline]
    fn find(&mut self) -> Result<Option<CheckedRecord>, Fault> {
        Self::find(self)
    }

    #[inline]
    fn advance_past(&mut self, found: &CheckedRecord) {
        Self::pass_record(self, found);
    }

    #[inline]
    fn location(&self, found: &CheckedRecord) -> (*const u8, usize) {
        (self.data.address(found.unread_position()), found.unread_length())
    }

    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        for _ in 0..READ_ATTEMPTS_MAX {
            let start = self.side.next;
            let Some(found) = self.find().transpose() else { return Ok(None) };
            let limit = out.len();
            let copied = found.and_then(|found| {
                let length = found.length as usize;
                let to = out.get_mut(..length).ok_or(Fault::TooLong { length, limit })?;
                self.data.copy_out(found.at, to);
                Ok(found)
            });
            if self.is_torn(start) {
                // The copy may mix two records: resume where the data is intact.
                match self.side.resume_position(start)? {
                    Some(next) => self.side.next = next,
                    None => return Ok(None),
                }
                continue;
            }
            let found = copied?;
            self.pass_record(&found);
            self.release();
            return Ok(Some(found.length as usize));
        }
        Ok(None)
    }

    fn copy(&mut self, place: Extent, out: &mut [u8]) -> Result<(), Fault> {
        let commit = self.side.refresh_published_position()?;
        let capacity = self.data.capacity();
        let (start, length) = (place.position_near(commit), u64::from(place.length()));
        let lossy = self.side.policy == OverflowPolicy::Overwrite;
        let oldest =
            if lossy { commit.saturating_sub(capacity) } else { self.side.released_position() };
        let end = start.checked_add(length).filter(|&end| start >= oldest && end <= commit);
        if end.is_none() {
            return Err(Fault::OutOfWindow(place));
        }
        if length > self.data.bytes_to_lap_end(start) {
            return Err(Fault::CrossesSegment(place));
        }
        if out.len() as u64 != length {
            return Err(Fault::TooLong { length: place.length() as usize, limit: out.len() });
        }
        self.data.copy_out(start, out);
        if lossy && self.side.is_overtaken(start) {
            return Err(Fault::OutOfWindow(place));
        }
        Ok(())
    }

    fn skip_to_latest(&mut self) -> Result<u64, Fault> {
        self.skip_published(true)
    }

    fn skip_to_now(&mut self) -> Result<u64, Fault> {
        self.skip_published(false)
    }

    fn release(&mut self) {
        Self::release(self);
    }
}

impl Drop for RecordWalk {
    fn drop(&mut self) {
        self.side.taken = self.counts();
        self.side.leave();
    }
}

/// Returns the maximum block length in bytes for a ring of `capacity` bytes.
pub(super) fn block_length_max(capacity: u64) -> usize {
    let half = usize::try_from(capacity / 2).unwrap_or(usize::MAX);
    half.saturating_sub(RecordHeader::SIZE).min(BLOCK_LENGTH_MAX)
}
