//! A stream goes on in another segment: larger, smaller, or without one of its readers.
//! [SL §5.4, reallocation; CONTRACT 23; RELIABILITY T11]
//!
//! A new memory is made and told to all readers by their doorbells; then the switch is put into the
//! ring, for which there always is room, and the writer goes on behind it. No reader is waited for
//! ([`crate::share::segment`] has the invariants). So that no reader holds more than two segments,
//! the size changes again only when all of them have come to the last one.

use super::note::{self, Note};
use super::{Config, Output};
use crate::share::segment::OfferedSegment;
use crate::share::{self, Hall};
use crate::wait::Urgency;
use abi::ring::{Geometry, PAGE};
use std::fmt;
use std::sync::Arc;
use sys::doorbell::{Sent, SocketDoorbell};
use sys::memory::Memfd;

/// The segment that is written, and the shape of the next ones.
#[derive(Debug)]
pub(super) struct Segments {
    pub(super) shape: Geometry,
    /// The last number that was given to a segment, whether it came to be or not.
    pub(super) number: u64,
    /// Place where readers that join the running stream get the current segment.
    hall: Option<Arc<Hall>>,
    /// The memory, where its size changes in place.
    file: Option<Memfd>,
}

impl Segments {
    /// Those of a stream whose readers are known; with the memory, if its size changes in place.
    pub(super) fn first(config: &Config, file: Option<Memfd>) -> Self {
        Self { shape: share::geometry_of(&config.ring), number: 0, hall: None, file }
    }

    /// Those of a stream whose readers come while it runs.
    pub(super) fn by_entrance(config: &Config, hall: Arc<Hall>) -> Self {
        Self { hall: Some(hall), ..Self::first(config, None) }
    }

    /// Those of a stream that goes on in this segment.
    pub(super) const fn going_on(shape: Geometry) -> Self {
        Self { shape, number: shape.segment, hall: None, file: None }
    }

    pub(super) const fn is_cut(&self) -> bool {
        self.file.is_some()
    }

    /// Returns true if more readers may join.
    pub(super) fn is_open(&self) -> bool {
        self.hall.as_ref().is_some_and(|hall| !hall.door.is_shut())
    }
}

/// The reason for which a stream stays as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stay {
    /// Some reader has not come to the last segment yet; it is asked for again later.
    Changing,
    /// This reader does not hear: its doorbell is full of what it has not heard.
    Deaf(usize),
    /// No ring can be so long.
    Size(usize),
    /// There is no such reader.
    Reader(usize),
    /// Readers may come by an entrance of this process, so the writer has to stay in it.
    Entrance,
    /// The kernel refused.
    System(sys::Error),
}

impl fmt::Display for Stay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changing => f.write_str("a reader has not come to the last segment yet"),
            Self::Deaf(reader) => write!(f, "reader {reader} does not hear its bell"),
            Self::Size(bytes) => write!(f, "no ring has {bytes} bytes"),
            Self::Reader(reader) => write!(f, "there is no reader {reader}"),
            Self::Entrance => f.write_str(
                "readers may come by an entrance of this process: drop it, or the writer stays",
            ),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Stay {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System(error) => Some(error),
            _ => None,
        }
    }
}

/// The longest ring that is made.
const CAPACITY_MAX: usize = 1 << 36;

impl Output {
    /// Returns the present capacity of the ring in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        usize::try_from(self.segments.shape.capacity).unwrap_or(usize::MAX)
    }

    /// Returns the bytes of memory that the kernel holds for a ring whose size changes in place.
    #[must_use]
    pub fn resident(&self) -> Option<u64> {
        self.segments.file.as_ref()?.resident().ok()
    }

    /// The number of the segment that is written: it counts up when the size changes, a reader is
    /// revoked or the writer is another one.
    #[must_use]
    pub const fn segment(&self) -> u64 {
        self.segments.shape.segment
    }

    /// Goes on in a ring of so many bytes, rounded up to a power of two. Blocks that were written
    /// stay where they are until they are read; no reader is waited for.
    pub fn resize(&mut self, bytes: usize) -> Result<(), Stay> {
        let capacity = bytes.max(PAGE).checked_next_power_of_two().filter(|c| *c <= CAPACITY_MAX);
        let capacity = capacity.ok_or(Stay::Size(bytes))? as u64;
        if capacity == self.segments.shape.capacity {
            return Ok(());
        }
        // Whoever lies is shut out by the look; what the others need is known then.
        let _ = self.ring.side().refresh();
        if self.ring.side().is_changing() {
            return Err(Stay::Changing);
        }
        if self.segments.is_cut() { self.cut(capacity) } else { self.switch(capacity, None) }
    }

    /// Lets a reader read no further than what is written now: it gets [`crate::Fault::Revoked`]
    /// behind that. What is written from now on lies in memory that it was never given.
    pub fn revoke(&mut self, reader: usize) -> Result<(), Stay> {
        if self.ends.get(reader).is_none_or(|end| end.gone) {
            return Err(Stay::Reader(reader));
        }
        self.switch(self.segments.shape.capacity, Some(reader))
    }

    /// Moves the capacity within the memory that there is. [SL §5.4, deck-cut]
    fn cut(&mut self, capacity: u64) -> Result<(), Stay> {
        let Some(file) = &self.segments.file else { return Err(Stay::Changing) };
        let (before, bytes) = (self.segments.shape.capacity, |c| usize::try_from(c).unwrap_or(0));
        if bytes(capacity) > file.len() - PAGE {
            return Err(Stay::Size(bytes(capacity)));
        }
        if capacity > before {
            // What was given back comes back before anybody writes there.
            file.allocate(PAGE + bytes(before), bytes(capacity - before)).map_err(Stay::System)?;
        }
        self.ring.cut(capacity).ok_or_else(|| Stay::Size(bytes(capacity)))?;
        self.segments.shape.capacity = capacity;
        self.show(Urgency::Last);
        Ok(())
    }

    /// Gives the memory behind a cut back, when the last reader has come past it.
    #[cold]
    pub(super) fn give_memory_back(&mut self) {
        let side = self.ring.side();
        if !side.is_changing() || side.refresh().is_err() {
            return;
        }
        let (Some(before), Some(file)) = (side.settled(), &self.segments.file) else { return };
        let after = self.segments.shape.capacity;
        let bytes = |c| usize::try_from(c).unwrap_or(0);
        if before > after {
            // That the kernel keeps it harms nobody.
            let _ = file.punch(PAGE + bytes(after), bytes(before - after));
        }
    }

    /// Goes on in a new segment, without one of the readers.
    #[cold]
    fn switch(&mut self, capacity: u64, revoked: Option<usize>) -> Result<(), Stay> {
        let hall = self.segments.hall.clone();
        let mut current = hall.as_ref().map(|hall| hall.current());
        // Who has come in until here gets this switch told; who comes later, the new segment.
        self.ring.side().look_at_door();
        self.settle();
        let side = self.ring.side();
        let (policy, readers) = (side.policy, side.store.readers.clone());
        self.segments.number += 1;
        let (segment, start) = (self.segments.number, self.ring.next_start());
        let shape = Geometry { capacity, segment, start, ..self.segments.shape };
        let made = OfferedSegment::create(shape, policy, readers).map_err(Stay::System)?;
        self.tell(&made, revoked)?;
        self.ring.switch(segment, made.store.clone());
        self.segments.shape = shape;
        if let Some(current) = &mut current {
            **current = made;
        }
        drop(current);
        if let Some(reader) = revoked {
            self.shut_out(reader);
        }
        self.show(Urgency::Last);
        Ok(())
    }

    /// Tells all readers but one of a segment, and that one that there is none for it.
    pub(super) fn tell(
        &mut self,
        segment: &OfferedSegment,
        revoked: Option<usize>,
    ) -> Result<(), Stay> {
        let next = note::write(Note::Segment(segment.geometry.segment));
        let (mut gone, mut deaf) = (Vec::new(), None);
        for (at, end) in self.ends.iter_mut().enumerate().filter(|(_, end)| !end.gone) {
            let told = match revoked == Some(at) {
                true => end.doorbell.send(&note::write(Note::Revoked), &[]),
                false => end.doorbell.send(&next, &segment.descriptors()),
            };
            match told {
                Sent::Yes => end.false_alarms -= 1,
                Sent::Gone => gone.push(at),
                // A dead doorbell says the same.
                Sent::Full if revoked == Some(at) => deaf = Some(at),
                // Who must be shut out is not protected by another one's deafness.
                Sent::Full if revoked.is_some() => gone.push(at),
                Sent::Full => return Err(Stay::Deaf(at)),
            }
        }
        if let Some(end) = deaf.and_then(|at| self.ends.get_mut(at)) {
            end.doorbell = SocketDoorbell::pair().map_err(Stay::System)?.0;
        }
        gone.into_iter().for_each(|at| self.shut_out(at));
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
