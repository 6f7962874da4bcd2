//! The writer of a stream hands it over to another process. (CONTRACT 23)
//!
//! The ring of the predecessor is sealed against every new way to write, so nobody can go on in it.
//! The predecessor ends its segment with a switch; the successor makes the next one, carries on
//! position, sequence and ledger, and tells the readers by their doorbells, which it was handed. In
//! between readers wait as for any writer; if both writers die they are told as ever.

use super::output::End;
use super::switch::{Segments, Stay};
use super::{Config, Output};
use crate::cursor::POSITION_MAX;
use crate::share::segment::{self, OfferedSegment};
use crate::share::{self, Refusal};
use crate::wait::Urgency;
use crate::{Policy, Put, dbuf};
use abi::DbufId;
use abi::ring::{Geometry, RecordHeader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use sys::descriptor::DESCRIPTORS_MAX;
use sys::doorbell::SocketDoorbell;

/// All that a successor needs: a message, and two descriptors for each reader.
#[derive(Debug)]
pub struct Handover {
    state: HandoverState,
    /// The page and the doorbell of each reader.
    ends: Vec<(OwnedFd, OwnedFd)>,
}

/// The state that the successor takes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HandoverState {
    id: DbufId,
    policy: Policy,
    capacity: u64,
    every: u64,
    segment: u64,
    start: u64,
    put: Put,
}

impl Output {
    /// Ends the part of this process: what was written is shown, and the stream goes on with
    /// whoever opens the hand-over. Where it is refused the stream ends as if dropped. As long as
    /// there is an entrance it is ([`Stay::Entrance`]): where a reader starts is decided between
    /// the entrance and the writer in memory of their process. Who came by one that was dropped
    /// since goes on like all others.
    pub fn hand_over(mut self) -> Result<Handover, Stay> {
        // Who has come until here goes on with the successor.
        self.ring.side().look_at_door();
        self.settle();
        if self.segments.is_open() {
            return Err(Stay::Entrance);
        }
        self.segments.number += 1;
        let shape = self.segments.shape;
        let mut ends = Vec::new();
        for End { doorbell, page, .. } in
            std::mem::take(&mut self.ends).into_iter().filter(|e| !e.gone)
        {
            ends.push((page, OwnedFd::from(doorbell)));
        }
        if ends.len() * 2 > DESCRIPTORS_MAX {
            return Err(Stay::Reader(DESCRIPTORS_MAX / 2));
        }
        self.ring.switch_away(self.segments.number);
        let state = HandoverState {
            id: self.ring.id(),
            policy: self.ring.side().policy,
            capacity: shape.capacity,
            every: self.every,
            segment: self.segments.number,
            start: self.ring.head(),
            put: self.ring.count(),
        };
        Ok(Handover { state, ends })
    }
}

impl Handover {
    /// Bytes of the message.
    pub const MESSAGE: usize = 10 * 8;

    /// Returns the message to send with [`Handover::descriptors`].
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        let HandoverState { id, policy, capacity, every, segment, start, put } = self.state;
        let [blocks, bytes, dropped, dropped_bytes] = put.words();
        let shape = u64::from(id.number()) << 32 | u64::from(policy.code());
        let words = [shape, capacity, every, segment, start, blocks, bytes, dropped, dropped_bytes];
        std::iter::once(MAGIC).chain(words).flat_map(u64::to_le_bytes).collect()
    }

    /// The descriptors, in the order in which they are sent.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.ends.iter().flat_map(|(page, doorbell)| [page.as_fd(), doorbell.as_fd()]).collect()
    }

    /// Reads the message and descriptors of the predecessor.
    pub fn from_parts(message: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, Refusal> {
        let count = descriptors.len();
        let state = HandoverState::read(message).ok_or(Refusal::Descriptors(count))?;
        let (mut ends, mut descriptors) = (Vec::new(), descriptors.into_iter());
        while let Some(page) = descriptors.next() {
            ends.push((page, descriptors.next().ok_or(Refusal::Descriptors(count))?));
        }
        Ok(Self { state, ends })
    }

    /// Goes on with the stream: in a segment of this process, told to all readers.
    pub fn open(self) -> Result<Output, Refusal> {
        let HandoverState { id, policy, capacity, every, segment, start, put } = self.state;
        let (mut pages, mut doorbells) = (Vec::new(), Vec::new());
        for (page, doorbell) in self.ends {
            pages.push(Arc::new(segment::page(&page)?));
            doorbells.push((SocketDoorbell::from(doorbell), page));
        }
        let bytes = usize::try_from(capacity).unwrap_or(usize::MAX);
        let ring = dbuf::Config { id, capacity: bytes, policy, readers: doorbells.len() };
        let shape = Geometry { segment, start, ..share::geometry_of(&ring) };
        let made = OfferedSegment::create(shape, policy, pages.into())?;
        let writer = dbuf::Writer::going_on(made.store.clone(), id, start, put);
        let every = usize::try_from(every).unwrap_or(usize::MAX);
        let config = Config { ring, every, ..Config::new(id) };
        let mut output = Output::new(writer, doorbells, &config, Segments::going_on(shape));
        if let Err(Stay::Deaf(reader)) = output.tell(&made, None) {
            // Nobody waits for who does not hear.
            output.shut_out(reader);
        }
        output.show(Urgency::Last);
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
        let policy = u32::try_from(shape & u64::from(u32::MAX)).ok().and_then(Policy::from_code)?;
        let put = Put { blocks, bytes, dropped, dropped_bytes };
        let plausible = magic == MAGIC
            && capacity.is_power_of_two()
            && start <= POSITION_MAX
            && start.is_multiple_of(RecordHeader::SIZE as u64);
        plausible.then_some(Self { id, policy, capacity, every, segment, start, put })
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
