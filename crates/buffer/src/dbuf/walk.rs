//! How a reader of blocks goes from record to record. It believes nothing that it finds in the
//! ring: each header is copied once, and checked against the window before it is used (RELIABILITY
//! T3 to T5).

use crate::atomic::Ordering;
use crate::cursor::{Consumer, DATA_WORDS, Store};
use crate::{Fault, Policy, foreign};
use abi::ring::Record;
use abi::{BLOCK_MAX, Place};

/// How a reader goes from record to record, believing nothing.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) side: Consumer,
    /// The sequence number of the next block, unless we have just joined.
    pub(super) expected: Option<u64>,
    /// The position after the block that was passed last.
    passed: u64,
}

/// A record that was found and checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// Where its bytes lie in the writer's memory.
    pub(crate) at: usize,
    pub(crate) length: u32,
    /// How many of them have been read.
    done: u32,
    sequence: u64,
    /// Blocks that we missed before it.
    lost: u64,
    /// The position after it.
    end: u64,
}

impl Found {
    /// Where the bytes that are left lie in the writer's memory.
    #[inline]
    pub(crate) const fn at(&self) -> usize {
        self.at + self.done as usize
    }

    /// How many bytes are left.
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

/// How often a reader of a ring that overwrites tries before it says that nothing is there.
const ATTEMPTS: usize = 8;

impl Walk {
    pub(super) const fn new(side: Consumer) -> Self {
        // Who starts at a later position does not know the number of its first block.
        let expected = if side.next == 0 { Some(0) } else { None };
        Self { expected, passed: side.next, side }
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
                foreign::copy_out(self.side.store.writer.words(), found.at, to);
                Ok(found)
            });
            if self.side.store.policy == Policy::Overwrite && self.side.overtaken(start) {
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
            self.side.release();
            return Ok(Some(found.length as usize));
        }
        Ok(None)
    }

    /// The next record that is a block, if one is published. Pads are passed. Everything that the
    /// header alleges is checked against the window before it is used.
    #[inline]
    pub(crate) fn find(&mut self) -> Result<Option<Found>, Fault> {
        match self.plain() {
            Some(found) => Ok(Some(found)),
            None => self.look_and_find(),
        }
    }

    /// The next record, where it is a block that was seen to be there and follows the one before:
    /// the same checks as below, in the order in which they are cheapest. For everything else there
    /// is no answer here.
    #[inline]
    pub(crate) fn plain(&self) -> Option<Found> {
        let (start, commit) = (self.side.next, self.side.seen());
        let store = &self.side.store;
        if start == commit {
            return None;
        }
        let header = get_header(store, start);
        let span = Record::span(header.length);
        let left = store.capacity - (start & (store.capacity - 1));
        let fits = span <= left && span <= commit.wrapping_sub(start);
        let longest = (store.capacity / 2).saturating_sub(Record::SIZE as u64);
        let is_block = header.kind == Record::BLOCK && u64::from(header.length) <= longest;
        let follows = self.expected == Some(header.sequence);
        (fits && is_block && follows && header.length as usize <= BLOCK_MAX).then(|| Found {
            at: offset(store, start) + Record::SIZE,
            length: header.length,
            done: 0,
            sequence: header.sequence,
            lost: 0,
            end: start + span,
        })
    }

    #[cold]
    fn look_and_find(&mut self) -> Result<Option<Found>, Fault> {
        // At most one pad stands before a block.
        for _ in 0..2 {
            let (start, commit) = (self.side.next, self.side.available()?);
            if start == commit {
                return Ok(None);
            }
            let store = &self.side.store;
            let header = get_header(store, start);
            let span = Record::span(header.length);
            let left = store.capacity - (start & (store.capacity - 1));
            if span > left || span > commit.wrapping_sub(start) {
                return Err(self.damaged(start));
            }
            let end = start + span;
            match header.kind {
                Record::PAD if span == left => self.side.next = end,
                Record::BLOCK if header.length as usize <= block_max(store) => {
                    let at = offset(store, start) + Record::SIZE;
                    let (length, sequence) = (header.length, header.sequence);
                    let lost = sequence.wrapping_sub(self.expected.unwrap_or(sequence));
                    if lost > self.lost_at_most(start) {
                        return Err(self.damaged(start));
                    }
                    return Ok(Some(Found { at, length, done: 0, sequence, lost, end }));
                }
                _ => return Err(self.damaged(start)),
            }
        }
        Err(self.damaged(self.side.next))
    }

    /// No record where one should be. In a ring that overwrites that may be the writer passing; the
    /// caller looks at the lap.
    fn damaged(&mut self, position: u64) -> Fault {
        let fault = Fault::Damaged { position };
        if self.side.store.policy == Policy::Overwrite && self.side.overtaken(position) {
            return fault;
        }
        self.side.poison(fault)
    }

    #[inline]
    pub(crate) fn pass(&mut self, found: &Found) {
        self.side.taken.lost += found.lost;
        self.expected = Some(found.sequence.wrapping_add(1));
        self.side.next = found.end;
        self.passed = found.end;
        self.side.taken.blocks += 1;
        self.side.taken.bytes += u64::from(found.length);
    }

    /// How many blocks may have been written between the last one that we passed and this position.
    fn lost_at_most(&self, position: u64) -> u64 {
        match self.side.store.policy {
            Policy::Overwrite => position.saturating_sub(self.passed) / Record::SIZE as u64,
            Policy::Block | Policy::DropNew => 0,
        }
    }

    pub(super) fn copy(&mut self, place: Place, out: &mut [u8]) -> Result<(), Fault> {
        let commit = self.side.refresh()?;
        let store = &self.side.store;
        let (start, length) = (place.complete(commit), u64::from(place.length()));
        let lossy = store.policy == Policy::Overwrite;
        let oldest =
            if lossy { commit.saturating_sub(store.capacity) } else { self.side.released() };
        let end = start.checked_add(length).filter(|&end| start >= oldest && end <= commit);
        if end.is_none() {
            return Err(Fault::OutOfWindow(place));
        }
        if (start & (store.capacity - 1)) + length > store.capacity {
            return Err(Fault::CrossesSegment(place));
        }
        if out.len() as u64 != length {
            return Err(Fault::TooLong { length: place.length() as usize, limit: out.len() });
        }
        foreign::copy_out(store.writer.words(), offset(store, start), out);
        if lossy && self.side.overtaken(start) {
            return Err(Fault::OutOfWindow(place));
        }
        Ok(())
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.side.leave();
    }
}

pub(super) fn block_max(store: &Store) -> usize {
    let half = usize::try_from(store.capacity / 2).unwrap_or(usize::MAX);
    half.saturating_sub(Record::SIZE).min(BLOCK_MAX)
}

/// Where a position lies in the writer's memory, in bytes.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "less than the capacity, which is mapped")]
pub(super) const fn offset(store: &Store, position: u64) -> usize {
    DATA_WORDS * 8 + (position & (store.capacity - 1)) as usize
}

#[inline]
pub(super) fn put_header(store: &Store, position: u64, record: Record) {
    let first = offset(store, position) / 8;
    for (i, value) in record.words().into_iter().enumerate() {
        store.writer.word(first + i).store(value, Ordering::Relaxed);
    }
}

/// The header at a position, copied once.
#[inline]
fn get_header(store: &Store, position: u64) -> Record {
    let first = offset(store, position & !(Record::SIZE as u64 - 1)) / 8;
    let load = |i| store.writer.word(first + i).load(Ordering::Relaxed);
    Record::from_words([load(0), load(1)])
}
