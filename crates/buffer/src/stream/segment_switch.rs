//! Changes to a running stream: another capacity, or the revocation of a reader. [SL §5.4,
//! reallocation; CONTRACT 23; RELIABILITY T11]
//!
//! The writer creates a new segment and announces it to all readers through their doorbells. Then
//! it puts a switch record into the ring, for which room is always reserved, and continues in the
//! new segment without waiting for readers ([`crate::share::segment`] has the invariants). The size
//! changes again only after all readers have entered the last segment, so no reader maps more than
//! two segments.

use super::writer_message::{self, WriterMessage};
use super::{Config, Output};
use crate::share::segment::OfferedSegment;
use crate::share::{self, JoinState};
use crate::wait::Urgency;
use abi::ring::{PAGE_SIZE, RingGeometry};
use std::sync::Arc;
use sys::doorbell::{SendResult, SocketDoorbell};
use sys::memory::Memfd;

/// The current segment of a stream, and the data for creating later ones.
#[derive(Debug)]
pub(super) struct Segments {
    pub(super) shape: RingGeometry,
    /// Last number assigned to a segment, even if the creation of that segment failed.
    pub(super) number: u64,
    /// Admission state, or `None` if readers cannot join the running stream.
    joining: Option<Arc<JoinState>>,
    /// File of the ring's memory if the capacity changes in place; otherwise `None`.
    pub(super) file: Option<Memfd>,
}

impl Segments {
    /// Creates the state of a stream with a fixed set of readers. `file` is the ring's memory if
    /// its capacity changes in place.
    pub(super) fn new(config: &Config, file: Option<Memfd>) -> Self {
        Self { shape: share::block_ring_geometry(&config.ring), number: 0, joining: None, file }
    }

    /// Creates the state of a stream that readers join while it runs.
    pub(super) fn joinable(config: &Config, joining: Arc<JoinState>) -> Self {
        Self { joining: Some(joining), ..Self::new(config, None) }
    }

    /// Creates the state of a stream taken over from another writer; `shape` is the segment in
    /// which it continues.
    pub(super) const fn resume(shape: RingGeometry) -> Self {
        Self { shape, number: shape.segment, joining: None, file: None }
    }

    pub(super) const fn can_change_in_place(&self) -> bool {
        self.file.is_some()
    }

    /// Returns true if readers can still join.
    pub(super) fn accepts_readers(&self) -> bool {
        self.joining.as_ref().is_some_and(|joining| !joining.queue.is_closed())
    }
}

/// Reason why a change to a running stream failed. The stream then continues unchanged, unless it
/// was to be handed over ([`Output::hand_over`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChangeError {
    /// A reader has not entered the last segment yet. The change may be retried later.
    #[error("a reader has not reached the last segment yet")]
    InProgress,
    /// This reader, given by its index, cannot be notified: its doorbell is full of unread
    /// messages.
    #[error("reader {0} does not drain its doorbell")]
    Unreachable(usize),
    /// The requested size in bytes exceeds the maximum, or the memory of a ring that changes in
    /// place.
    #[error("invalid ring size: {0} bytes")]
    Size(usize),
    /// There is no reader with this index, or there are more readers than a hand-over supports.
    #[error("there is no reader {0}")]
    Reader(usize),
    /// Readers can still join the stream in this process, so it cannot be handed over.
    #[error("an admission in this process still accepts readers: drop it to hand the stream over")]
    Admission,
    /// The kernel refused a call.
    #[error("{0}")]
    System(#[source] sys::Error),
}

/// Maximum capacity in bytes that [`Output::resize`] accepts.
const RESIZED_CAPACITY_MAX: usize = 1 << 36;

impl Output {
    /// Returns the current capacity of the ring in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        usize::try_from(self.segments.shape.capacity).unwrap_or(usize::MAX)
    }

    /// Returns the number of bytes that the kernel has allocated for a ring whose capacity changes
    /// in place. Returns `None` for any other ring, or if the kernel does not report the number.
    #[must_use]
    pub fn resident_bytes(&self) -> Option<u64> {
        self.segments.file.as_ref()?.allocated_bytes().ok()
    }

    /// Returns the number of the current segment. It increases when the ring is reallocated, a
    /// reader is revoked, or the writer is replaced.
    #[must_use]
    pub const fn segment_number(&self) -> u64 {
        self.segments.shape.segment
    }

    /// Changes the capacity to `bytes`, rounded up to a power of two. Written blocks stay in their
    /// memory until they are read. Does not wait for readers. Fails with
    /// [`ChangeError::InProgress`] if a reader has not passed the last change yet, with
    /// [`ChangeError::Size`] if the ring cannot have this size, with [`ChangeError::Unreachable`]
    /// if the doorbell of a reader is full, and with [`ChangeError::System`] if the kernel refuses
    /// memory.
    pub fn resize(&mut self, bytes: usize) -> Result<(), ChangeError> {
        let capacity =
            bytes.max(PAGE_SIZE).checked_next_power_of_two().filter(|c| *c <= RESIZED_CAPACITY_MAX);
        let capacity = capacity.ok_or(ChangeError::Size(bytes))? as u64;
        if capacity == self.segments.shape.capacity {
            return Ok(());
        }
        // The refresh evicts lying readers and updates the oldest position needed.
        let _ = self.ring.cursor_mut().refresh_reader_positions();
        if self.ring.cursor_mut().is_change_pending() {
            return Err(ChangeError::InProgress);
        }
        if self.segments.can_change_in_place() {
            self.change_capacity_in_place(capacity)
        } else {
            self.switch_segment(capacity, None)
        }
    }

    /// Revokes a reader's access to later blocks: the reader can read the blocks written so far,
    /// then fails with [`crate::Fault::Revoked`]. Later blocks are written to memory to which that
    /// reader has no access.
    pub fn revoke(&mut self, reader: usize) -> Result<(), ChangeError> {
        if self.reader_records.get(reader).is_none_or(|end| end.has_left) {
            return Err(ChangeError::Reader(reader));
        }
        self.switch_segment(self.segments.shape.capacity, Some(reader))
    }

    /// Changes the capacity within the existing memory. Fails with [`ChangeError::Size`] if the
    /// capacity exceeds that memory, and with [`ChangeError::System`] if the kernel refuses pages.
    /// [SL §5.4, deck-cut]
    fn change_capacity_in_place(&mut self, capacity: u64) -> Result<(), ChangeError> {
        let Some(file) = &self.segments.file else { return Err(ChangeError::InProgress) };
        let (before, bytes) = (self.segments.shape.capacity, |c| usize::try_from(c).unwrap_or(0));
        if bytes(capacity) > file.len() - PAGE_SIZE {
            return Err(ChangeError::Size(bytes(capacity)));
        }
        if capacity > before {
            // Released memory is allocated again before anything is written there.
            file.allocate(PAGE_SIZE + bytes(before), bytes(capacity - before))
                .map_err(ChangeError::System)?;
        }
        self.ring.change_capacity(capacity).ok_or_else(|| ChangeError::Size(bytes(capacity)))?;
        self.segments.shape.capacity = capacity;
        self.publish(Urgency::Last);
        Ok(())
    }

    /// Returns memory beyond the new capacity to the kernel, if all readers have passed the
    /// position at which the capacity changed.
    #[cold]
    pub(super) fn release_excess_memory(&mut self) {
        let side = self.ring.cursor_mut();
        if !side.is_change_pending() || side.refresh_reader_positions().is_err() {
            return;
        }
        let (Some(before), Some(file)) = (side.take_passed_capacity(), &self.segments.file) else {
            return;
        };
        let after = self.segments.shape.capacity;
        let bytes = |c| usize::try_from(c).unwrap_or(0);
        if before > after {
            // If the kernel refuses, the memory merely stays allocated.
            let _ = file.punch_hole(PAGE_SIZE + bytes(after), bytes(before - after));
        }
    }

    /// Continues in a new segment. `revoked` is the reader, if any, that does not receive the
    /// segment.
    #[cold]
    fn switch_segment(&mut self, capacity: u64, revoked: Option<usize>) -> Result<(), ChangeError> {
        let joining = self.segments.joining.clone();
        let mut current = joining.as_ref().map(|joining| joining.lock_current_segment());
        // Readers that have joined up to here receive the announcement; later ones join the new
        // segment.
        self.ring.cursor_mut().poll_joins();
        self.update_readers();
        let side = self.ring.cursor_mut();
        let (policy, readers) = (side.policy, side.store.readers.clone());
        self.segments.number += 1;
        let (segment, start) = (self.segments.number, self.ring.next_segment_start());
        let shape = RingGeometry { capacity, segment, start, ..self.segments.shape };
        let next = OfferedSegment::create(shape, policy, readers).map_err(ChangeError::System)?;
        self.announce_segment(&next, revoked, revoked.is_some())?;
        self.ring.switch_segment(segment, next.store.clone());
        self.segments.shape = shape;
        if let Some(current) = &mut current {
            **current = next;
        }
        drop(current);
        if let Some(reader) = revoked {
            self.disconnect(reader);
        }
        self.publish(Urgency::Last);
        Ok(())
    }

    /// Announces a new segment to all readers except the reader `revoked`, to which the revocation
    /// is announced instead. If any other reader cannot be reached, disconnects it if
    /// `must_succeed` is true, and fails otherwise.
    pub(super) fn announce_segment(
        &mut self,
        segment: &OfferedSegment,
        revoked: Option<usize>,
        must_succeed: bool,
    ) -> Result<(), ChangeError> {
        let next = writer_message::encode(WriterMessage::Segment(segment.geometry.segment));
        let (mut gone, mut unreachable) = (Vec::new(), None);
        for (at, end) in self.reader_records.iter_mut().enumerate().filter(|(_, end)| !end.has_left)
        {
            let sent = match revoked == Some(at) {
                true => end.doorbell.send(&writer_message::encode(WriterMessage::Revoked), &[]),
                false => end.doorbell.send(&next, &segment.descriptors()),
            };
            match sent {
                SendResult::Queued => end.false_alarms -= 1,
                SendResult::Gone => gone.push(at),
                // If the doorbell of the revoked reader is full, its closing reports the
                // revocation.
                SendResult::Full if revoked == Some(at) => unreachable = Some(at),
                SendResult::Full if must_succeed => gone.push(at),
                SendResult::Full => return Err(ChangeError::Unreachable(at)),
            }
        }
        if let Some(end) = unreachable.and_then(|at| self.reader_records.get_mut(at)) {
            end.doorbell = SocketDoorbell::pair().map_err(ChangeError::System)?.0;
        }
        gone.into_iter().for_each(|at| self.disconnect(at));
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
