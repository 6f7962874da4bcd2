//! Steps of a reader of blocks from record to record. Nothing in the ring is believed: each header
//! is copied once, and checked against the window before it is used (RELIABILITY T3 to T5).

use super::data::Data;
use super::readers::Walks;
use crate::cursor::{Consumer, Store};
use crate::{Fault, Policy, Taken};
use abi::ring::RecordHeader;
use abi::{BLOCK_MAX, Extent};
use std::sync::Arc;

mod plain;
mod skip;

/// The steps of a reader from record to record, which trust nothing.
#[derive(Debug)]
pub struct Walk {
    /// A record that ends here or before was seen to be there, lies in this lap, and is not too
    /// long, and nothing is due before its end. 0: each record is looked at with all care.
    plain: u64,
    /// The sequence number of the next block, if `known`.
    expected: u64,
    pub(super) data: Data,
    pub(crate) side: Consumer,
    /// Position at which the user of the walk wants control.
    stop: u64,
    /// We have not just joined.
    known: bool,
    /// The number that the first block would have had, had no block been lost since.
    first: u64,
    /// The position after the block that was passed last.
    passed: u64,
    /// The first word of the header of a block that is as long as the last one, and its span.
    likely: u64,
    span: u64,
    /// The number of the segment in which the ring goes on at the next position, once we are there.
    awaited: Option<u64>,
}

/// A record that was found and checked.
#[derive(Clone, Copy, Debug)]
pub struct FoundRecord {
    /// The position of its first byte.
    pub(crate) at: u64,
    pub(crate) length: u32,
    /// Bytes of them that were read.
    done: u32,
    sequence: u64,
    /// Blocks that we missed before it.
    lost: u64,
    /// The position after it.
    end: u64,
}

impl FoundRecord {
    /// The position of the first byte that is left.
    #[inline]
    pub(crate) const fn at(&self) -> u64 {
        self.at + self.done as u64
    }

    /// Returns the bytes that are left.
    #[inline]
    pub(crate) const fn left(&self) -> usize {
        (self.length - self.done) as usize
    }

    /// The record when `count` more bytes of it have been read; none if that is all.
    #[inline]
    pub(crate) fn behind(&self, count: usize) -> Option<Self> {
        let done = self.done.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        (done < self.length).then_some(Self { done, ..*self })
    }
}

/// Attempts of a reader of an overwriting ring before it reports that nothing is there.
const ATTEMPTS: usize = 8;
/// So many records that are no blocks may stand before a block.
const MARKS_MAX: usize = 8;

impl Walk {
    pub(super) fn new(side: Consumer) -> Self {
        let (data, taken, start) = (Data::new(side.store.clone()), side.taken, side.next);
        let first = 0u64.wrapping_sub(taken.blocks);
        Self {
            plain: 0,
            expected: 0,
            data,
            side,
            stop: u64::MAX,
            // Who starts at the start knows the number of the first block.
            known: start == 0,
            first,
            passed: start,
            likely: 0,
            span: 0,
            awaited: None,
        }
    }

    /// The data of the ring.
    #[inline]
    pub(crate) const fn data(&self) -> &Data {
        &self.data
    }

    /// Returns the counts of this side.
    #[inline]
    pub(crate) const fn count(&self) -> Taken {
        Taken { blocks: self.expected.wrapping_sub(self.first), ..self.side.taken }
    }

    /// Gives everything back that was passed.
    pub(crate) fn release(&mut self) {
        self.side.taken = self.count();
        self.side.release();
    }

    /// Says on which processor we are.
    pub(crate) fn here(&self) {
        self.side.is_on(sys::machine::current_processor() as u64);
    }

    /// Records that would go over this position are not taken by [`Walk::take`].
    pub(crate) fn stop_at(&mut self, position: u64) {
        self.stop = position;
        self.plain = self.plain.min(position);
    }

    /// Each record is looked at with all care until one was found.
    pub(crate) const fn doubt(&mut self) {
        self.plain = 0;
    }

    /// Goes on with what is written from now on.
    pub(super) fn join_now(&mut self) -> Result<(), Fault> {
        let has_switched = self.side.has_switched();
        let now = self.side.refresh()?;
        (self.side.next, self.known, self.plain) = (now, false, 0);
        if let (true, Some(last)) = (has_switched, now.checked_sub(RecordHeader::SIZE as u64)) {
            // The switch is the last record.
            let header = RecordHeader::from_words(self.data.header(last));
            self.awaited = (header.kind == RecordHeader::SWITCH).then_some(header.sequence);
        }
        self.release();
        Ok(())
    }

    /// The number of the segment in which the ring goes on, if all of this one has been read: until
    /// it has been entered nothing is found.
    pub(crate) const fn awaited(&self) -> Option<u64> {
        self.awaited
    }

    /// Goes on in the next segment.
    pub(crate) fn go_on_in(&mut self, store: Arc<Store>) {
        self.data = Data::new(store.clone());
        self.side.taken = self.count();
        self.side.go_on_in(store);
        (self.plain, self.awaited) = (0, None);
    }

    /// Goes on with another capacity from this position on.
    fn cut(&mut self, position: u64, capacity: u64) -> Result<(), Fault> {
        // A writer that changes the capacity under a ring that overwrites could not be caught.
        if self.side.policy == Policy::Overwrite || self.data.cut(capacity).is_none() {
            return Err(self.damaged(position));
        }
        self.side.next = position;
        self.side.taken = self.count();
        self.side.cut(capacity);
        // Whoever uses the walk is asked by the new capacity.
        (self.plain, self.stop) = (0, position);
        Ok(())
    }

    pub(crate) fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        for _ in 0..ATTEMPTS {
            let start = self.side.next;
            let found = match self.find() {
                Ok(None) => return Ok(None),
                Ok(Some(found)) => Ok(found),
                Err(fault) => Err(fault),
            };
            let copied = found.and_then(|found| {
                let length = found.length as usize;
                let to = out.get_mut(..length);
                let to = to.ok_or(Fault::TooLong { length, limit: 0 })?;
                self.data.copy_out(found.at, to);
                Ok(found)
            });
            if self.torn(start) {
                // Whatever was seen may be half of two records: go on behind, where there is
                // something.
                match self.side.resume(start)? {
                    Some(next) => self.side.next = next,
                    None => return Ok(None),
                }
                continue;
            }
            let found = match copied {
                Err(Fault::TooLong { length, .. }) => {
                    return Err(Fault::TooLong { length, limit: out.len() });
                }
                other => other?,
            };
            self.pass(&found);
            self.release();
            return Ok(Some(found.length as usize));
        }
        Ok(None)
    }

    /// The next record that is a block, if one is published. Pads are passed. Everything that the
    /// header alleges is checked against the window before it is used.
    #[inline]
    pub(crate) fn find(&mut self) -> Result<Option<FoundRecord>, Fault> {
        match self.at_hand() {
            Some(found) => Ok(Some(found)),
            None => self.look_and_find(),
        }
    }

    /// Returns the position up to which records are known to be plain.
    fn look_ahead(&self) -> u64 {
        if !self.known || self.side.policy == Policy::Overwrite {
            return 0;
        }
        let start = self.side.next;
        let longest = (self.data.capacity() / 2).min(RecordHeader::spans(BLOCK_MAX));
        let lap = start + self.data.left(start);
        lap.min(self.side.seen()).min(start + longest).min(self.stop)
    }

    #[cold]
    fn look_and_find(&mut self) -> Result<Option<FoundRecord>, Fault> {
        // At most one pad stands before a block, and few cuts.
        for _ in 0..MARKS_MAX {
            let (start, commit) = (self.side.next, self.side.available()?);
            if start == commit || self.awaited.is_some() {
                self.plain = 0;
                return Ok(None);
            }
            let header = RecordHeader::from_words(self.data.header(start));
            let (span, left) = (RecordHeader::span(header.length), self.data.left(start));
            if span > left || span > commit.wrapping_sub(start) {
                return Err(self.damaged(start));
            }
            let end = start + span;
            match header.kind {
                RecordHeader::PAD if span == left => self.side.next = end,
                RecordHeader::SWITCH
                    if header.length == 0 && end == commit && !self.torn(start) =>
                {
                    (self.side.next, self.awaited) = (end, Some(header.sequence));
                }
                RecordHeader::CUT if header.length == 0 => self.cut(end, header.sequence)?,
                RecordHeader::BLOCK
                    if header.length as usize <= block_max(self.data.capacity()) =>
                {
                    let at = start + RecordHeader::SIZE as u64;
                    let (length, sequence) = (header.length, header.sequence);
                    let expected = if self.known { self.expected } else { sequence };
                    let lost = sequence.wrapping_sub(expected);
                    if lost > self.lost_at_most(start) {
                        return Err(self.damaged(start));
                    }
                    self.plain = self.look_ahead();
                    return Ok(Some(FoundRecord { at, length, done: 0, sequence, lost, end }));
                }
                _ => return Err(self.damaged(start)),
            }
        }
        Err(self.damaged(self.side.next))
    }

    /// Returns true if what was read at a position may be halves of two records.
    fn torn(&self, position: u64) -> bool {
        self.side.policy == Policy::Overwrite && self.side.overtaken(position)
    }

    /// No record where one should be. In a ring that overwrites that may be the writer passing; the
    /// caller looks at the lap.
    fn damaged(&mut self, position: u64) -> Fault {
        let fault = Fault::Damaged { position };
        if self.torn(position) {
            return fault;
        }
        self.plain = 0;
        self.side.poison(fault)
    }

    #[inline]
    pub(crate) fn pass(&mut self, found: &FoundRecord) {
        if !self.known {
            // The first block that we see: what came before it was never ours.
            let before = found.sequence.wrapping_sub(self.expected);
            self.first = self.first.wrapping_add(before);
            self.side.taken.skipped = self.side.taken.skipped.wrapping_add(before);
            (self.known, self.expected) = (true, found.sequence);
        }
        self.first = self.first.wrapping_add(found.lost);
        self.side.taken.lost += found.lost;
        self.expected = found.sequence.wrapping_add(1);
        self.side.next = found.end;
        self.passed = found.end;
        self.side.taken.bytes += u64::from(found.length);
    }

    /// Returns the blocks at most that may have been written between the last one passed and this
    /// position.
    fn lost_at_most(&self, position: u64) -> u64 {
        match self.side.policy {
            Policy::Overwrite => position.saturating_sub(self.passed) / RecordHeader::SIZE as u64,
            Policy::Block | Policy::DropNew => 0,
        }
    }

    pub(super) fn copy(&mut self, place: Extent, out: &mut [u8]) -> Result<(), Fault> {
        let commit = self.side.refresh()?;
        let capacity = self.data.capacity();
        let (start, length) = (place.complete(commit), u64::from(place.length()));
        let lossy = self.side.policy == Policy::Overwrite;
        let oldest = if lossy { commit.saturating_sub(capacity) } else { self.side.released() };
        let end = start.checked_add(length).filter(|&end| start >= oldest && end <= commit);
        if end.is_none() {
            return Err(Fault::OutOfWindow(place));
        }
        if length > self.data.left(start) {
            return Err(Fault::CrossesSegment(place));
        }
        if out.len() as u64 != length {
            return Err(Fault::TooLong { length: place.length() as usize, limit: out.len() });
        }
        self.data.copy_out(start, out);
        if lossy && self.side.overtaken(start) {
            return Err(Fault::OutOfWindow(place));
        }
        Ok(())
    }
}

impl Walks for Walk {
    type Found = FoundRecord;

    #[inline]
    fn side(&self) -> &Consumer {
        &self.side
    }

    fn side_mut(&mut self) -> &mut Consumer {
        &mut self.side
    }

    #[inline]
    fn at_hand(&mut self) -> Option<FoundRecord> {
        Self::at_hand(self)
    }

    #[inline]
    fn find(&mut self) -> Result<Option<FoundRecord>, Fault> {
        Self::find(self)
    }

    #[inline]
    fn pass(&mut self, found: &FoundRecord) {
        Self::pass(self, found);
    }

    #[inline]
    fn lies(&self, found: &FoundRecord) -> (*const u8, usize) {
        (self.data.address(found.at()), found.left())
    }

    fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        Self::read(self, out)
    }

    fn copy(&mut self, place: Extent, out: &mut [u8]) -> Result<(), Fault> {
        Self::copy(self, place, out)
    }

    fn skip_to_latest(&mut self) -> Result<u64, Fault> {
        Self::skip_to_latest(self)
    }

    fn skip_to_now(&mut self) -> Result<u64, Fault> {
        Self::skip_to_now(self)
    }

    fn release(&mut self) {
        Self::release(self);
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.side.taken = self.count();
        self.side.leave();
    }
}

/// The longest block of a ring of this capacity.
pub(super) fn block_max(capacity: u64) -> usize {
    let half = usize::try_from(capacity / 2).unwrap_or(usize::MAX);
    half.saturating_sub(RecordHeader::SIZE).min(BLOCK_MAX)
}
