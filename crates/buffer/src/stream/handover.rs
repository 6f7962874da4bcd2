//! Hand-over of a stream to a writer in another process. (CONTRACT 23)
//!
//! The predecessor's ring is sealed against new write mappings, so no other process can continue in
//! it. The predecessor ends its segment with a switch. The successor creates the next segment,
//! continues position, sequence number and counts, and notifies the readers through their
//! doorbells, which were handed over. In between, readers wait as for any writer; if both writers
//! die, the doorbells report it as usual.

use super::output::StreamReaderRecord;
use super::segment_switch::{ChangeError, Segments};
use super::{Config, Output};
use crate::cursor::POSITION_MAX;
use crate::share::segment::{self, OfferedSegment};
use crate::share::{self, OfferRefusal};
use crate::wait::Urgency;
use crate::{OverflowPolicy, WriterCounts, dbuf};
use abi::DbufId;
use abi::ring::{RecordHeader, RingGeometry};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use sys::descriptor::DESCRIPTORS_MAX;
use sys::doorbell::SocketDoorbell;

/// The state of a stream that its next writer needs: a message, and two descriptors per reader.
#[derive(Debug)]
pub struct Handover {
    state: HandoverState,
    /// Descriptors of the page and the doorbell of each reader.
    reader_descriptors: Vec<(OwnedFd, OwnedFd)>,
}

/// State of the stream that the successor continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HandoverState {
    id: DbufId,
    policy: OverflowPolicy,
    capacity: u64,
    every: u64,
    segment: u64,
    start: u64,
    put: WriterCounts,
}

impl Output {
    /// Publishes all blocks, ends the stream in this process, and returns the state for the next
    /// writer. Fails with [`ChangeError::Admission`] while readers can still join, because joining
    /// readers get their start positions in the memory of this process, and with
    /// [`ChangeError::Reader`] if there are too many readers. In both cases the stream ends as if
    /// it had been dropped. Readers that joined before the admission was dropped are handed over
    /// like all others.
    pub fn hand_over(mut self) -> Result<Handover, ChangeError> {
        // Readers that have joined up to here are handed over.
        self.ring.cursor_mut().poll_joins();
        self.update_readers();
        if self.segments.accepts_readers() {
            return Err(ChangeError::Admission);
        }
        self.segments.number += 1;
        let shape = self.segments.shape;
        let mut ends = Vec::new();
        for StreamReaderRecord { doorbell, page, .. } in
            std::mem::take(&mut self.reader_records).into_iter().filter(|e| !e.has_left)
        {
            ends.push((page, OwnedFd::from(doorbell)));
        }
        if ends.len() * 2 > DESCRIPTORS_MAX {
            return Err(ChangeError::Reader(DESCRIPTORS_MAX / 2));
        }
        self.ring.switch_to_other_writer(self.segments.number);
        let state = HandoverState {
            id: self.ring.id(),
            policy: self.ring.cursor_mut().policy,
            capacity: shape.capacity,
            every: self.every,
            segment: self.segments.number,
            start: self.ring.head(),
            put: self.ring.counts(),
        };
        Ok(Handover { state, reader_descriptors: ends })
    }
}

impl Handover {
    /// Length in bytes of the message from [`Handover::message`].
    pub const MESSAGE_LENGTH: usize = 10 * 8;

    /// Returns the message, to be sent together with [`Handover::descriptors`].
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        let HandoverState { id, policy, capacity, every, segment, start, put } = self.state;
        let [blocks, bytes, dropped, dropped_bytes] = put.words();
        let shape = u64::from(id.number()) << 32 | u64::from(policy.code());
        let words = [shape, capacity, every, segment, start, blocks, bytes, dropped, dropped_bytes];
        std::iter::once(MAGIC).chain(words).flat_map(u64::to_le_bytes).collect()
    }

    /// Returns the descriptors in the order in which they are sent.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.reader_descriptors
            .iter()
            .flat_map(|(page, doorbell)| [page.as_fd(), doorbell.as_fd()])
            .collect()
    }

    /// Parses the message and descriptors of the predecessor. Fails with
    /// [`OfferRefusal::Descriptors`] if the message is malformed or a descriptor is missing.
    pub fn from_parts(message: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, OfferRefusal> {
        let count = descriptors.len();
        let state = HandoverState::read(message).ok_or(OfferRefusal::Descriptors(count))?;
        let (mut ends, mut descriptors) = (Vec::new(), descriptors.into_iter());
        while let Some(page) = descriptors.next() {
            ends.push((page, descriptors.next().ok_or(OfferRefusal::Descriptors(count))?));
        }
        Ok(Self { state, reader_descriptors: ends })
    }

    /// Continues the stream in a new segment created by this process, and announces the segment to
    /// all readers.
    pub fn open(self) -> Result<Output, OfferRefusal> {
        let HandoverState { id, policy, capacity, every, segment, start, put } = self.state;
        let (mut pages, mut doorbells) = (Vec::new(), Vec::new());
        for (page, doorbell) in self.reader_descriptors {
            pages.push(Arc::new(segment::map_reader_page(&page)?));
            doorbells.push((SocketDoorbell::from(doorbell), page));
        }
        let bytes = usize::try_from(capacity).unwrap_or(usize::MAX);
        let ring = dbuf::BlockConfig { id, capacity: bytes, policy, readers: doorbells.len() };
        let shape = RingGeometry { segment, start, ..share::block_ring_geometry(&ring) };
        let segment = OfferedSegment::create(shape, policy, pages.into())?;
        let writer = dbuf::BlockWriter::resume(segment.store.clone(), id, start, put);
        let every = usize::try_from(every).unwrap_or(usize::MAX);
        let config = Config { ring, every, ..Config::new(id) };
        let mut output = Output::new(writer, doorbells, &config, Segments::resume(shape));
        // The writer does not wait for a reader that cannot be reached, nor do other readers.
        let announced = output.announce_segment(&segment, None, true);
        debug_assert!(announced.is_ok(), "no reader is revoked: {announced:?}");
        output.publish(Urgency::Last);
        Ok(output)
    }
}

const MAGIC: u64 = u64::from_le_bytes(*b"SL hand1");

impl HandoverState {
    fn read(message: &[u8]) -> Option<Self> {
        let (words, []) = message.as_chunks::<8>() else { return None };
        let words: [[u8; 8]; 10] = words.try_into().ok()?;
        let [magic, shape, capacity, every, segment, start, blocks, bytes, dropped, dropped_bytes] =
            words.map(u64::from_le_bytes);
        let id = u32::try_from(shape >> 32).ok().and_then(DbufId::new)?;
        let policy =
            u32::try_from(shape & u64::from(u32::MAX)).ok().and_then(OverflowPolicy::from_code)?;
        let put = WriterCounts { blocks, bytes, dropped, dropped_bytes };
        // Counts are bounded like positions, so that the successor can add to them.
        let counts = [segment, start, blocks, bytes, dropped, dropped_bytes];
        let plausible = magic == MAGIC
            && capacity.is_power_of_two()
            && counts.into_iter().all(|count| count <= POSITION_MAX)
            && start.is_multiple_of(RecordHeader::SIZE as u64);
        plausible.then_some(Self { id, policy, capacity, every, segment, start, put })
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
