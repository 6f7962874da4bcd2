//! The doorbells of one writer, one per reader. The writer notifies a sleeping reader when the
//! published head reaches the position for which the reader is waiting.

use crate::cursor::{ReaderChange, WriterCursor};
use crate::wait::{Notifier, Urgency};
use abi::ring::reader;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use sys::doorbell::{PeerState, SocketDoorbell};

/// One doorbell for each of a writer's readers.
#[derive(Debug)]
pub struct Doorbells {
    ends: Vec<NotifiedReader>,
    departed: Arc<DepartedReaders>,
}

#[derive(Debug)]
struct NotifiedReader {
    doorbell: SocketDoorbell,
    notifier: Notifier,
    /// Number of notifications that this reader has sent since the writer last found room in the
    /// ring. If there are more than `FALSE_ALARMS_MAX`, the reader is disconnected.
    false_alarms: u32,
}

/// Number of false notifications after which a reader is disconnected, because the reader keeps the
/// writer busy. An honest reader notifies once per sleep of the writer, and only after making
/// enough room.
const FALSE_ALARMS_MAX: u32 = 64;

impl Doorbells {
    /// Creates the set from the writer's ends of the doorbells, in reader order.
    #[must_use]
    pub fn new(doorbells: Vec<SocketDoorbell>) -> Self {
        let departed = DepartedReaders::new(doorbells.len());
        let end =
            |doorbell| NotifiedReader { doorbell, notifier: Notifier::default(), false_alarms: 0 };
        Self { ends: doorbells.into_iter().map(end).collect(), departed }
    }

    /// Moves all doorbells into a new set and leaves this set empty. Both sets share the flags of
    /// departed readers.
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self { ends: std::mem::take(&mut self.ends), departed: self.departed.clone() }
    }

    /// Returns a shared reference to the flags of the readers that have departed.
    #[must_use]
    pub const fn departed_readers(&self) -> &Arc<DepartedReaders> {
        &self.departed
    }

    /// Notifies each sleeping reader that waits for a position up to the published head, or all
    /// sleeping readers if `urgency` is [`Urgency::Last`].
    #[inline]
    pub fn notify_due_readers(&mut self, side: &mut WriterCursor, urgency: Urgency) {
        self.mark_evicted_readers(side);
        let head = side.head;
        for at in 0..self.ends.len() {
            let (Some(end), Some(page)) = (self.ends.get_mut(at), side.store.readers.get(at))
            else {
                continue;
            };
            let due = !self.departed.contains(at)
                && end.notifier.is_due(page, reader::WAIT, head, urgency);
            if due && end.doorbell.notify() == PeerState::Gone {
                self.disconnect(side, at);
            }
        }
    }

    /// Blocks until a reader notifies the writer or departs, or until `limit` has passed, and then
    /// returns true. Disconnects a reader that has departed or has sent too many false
    /// notifications. If no reader is present, returns false without blocking.
    pub fn sleep(&mut self, side: &mut WriterCursor, limit: Option<Duration>) -> bool {
        self.mark_evicted_readers(side);
        let present: Vec<usize> =
            (0..self.ends.len()).filter(|at| !self.departed.contains(*at)).collect();
        let doorbells: Vec<BorrowedFd<'_>> = present
            .iter()
            .filter_map(|at| self.ends.get(*at))
            .map(|end| end.doorbell.as_fd())
            .collect();
        if doorbells.is_empty() {
            return false;
        }
        let ready = sys::poll::wait_until_readable(&doorbells, limit);
        for (at, _) in present.into_iter().zip(ready).filter(|(_, ready)| *ready) {
            let Some(end) = self.ends.get_mut(at) else { continue };
            end.false_alarms += 1;
            if end.doorbell.clear() == PeerState::Gone || end.false_alarms > FALSE_ALARMS_MAX {
                self.disconnect(side, at);
            }
        }
        true
    }

    /// Marks as departed each reader that has left or was evicted since the last call.
    fn mark_evicted_readers(&self, side: &mut WriterCursor) {
        for change in side.take_reader_changes() {
            if let ReaderChange::Left(at) = change {
                self.departed.insert(at);
            }
        }
    }

    /// Resets each reader's count of notifications that have made no room. Call this after readers
    /// have made room.
    pub fn reset_false_alarms(&mut self) {
        self.ends.iter_mut().for_each(|end| end.false_alarms = 0);
    }

    /// Marks a reader as departed and excludes it from flow control.
    pub fn disconnect(&mut self, side: &mut WriterCursor, at: usize) {
        self.departed.insert(at);
        side.disconnect(at);
    }

    /// Marks as departed each reader whose process has exited. Does not block.
    pub fn mark_departed_readers(&self) {
        for (at, end) in self.ends.iter().enumerate().filter(|(at, _)| !self.departed.contains(*at))
        {
            if end.doorbell.clear() == PeerState::Gone {
                self.departed.insert(at);
            }
        }
    }

    /// Returns the doorbell of the first present reader, or of the first reader if none is present,
    /// for a writer that polls a single descriptor. Returns `None` if there are no readers.
    #[must_use]
    pub fn first_present_doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.present_readers().next().or_else(|| self.ends.first()).map(|end| end.doorbell.as_fd())
    }

    /// Returns the doorbells of all present readers.
    #[must_use]
    pub fn all_present_doorbells(&self) -> Vec<BorrowedFd<'_>> {
        self.present_readers().map(|end| end.doorbell.as_fd()).collect()
    }

    fn present_readers(&self) -> impl Iterator<Item = &NotifiedReader> {
        self.ends
            .iter()
            .enumerate()
            .filter(|(at, _)| !self.departed.contains(*at))
            .map(|(_, end)| end)
    }

    /// Closes all doorbells, as the kernel does for a killed process.
    #[cfg(any(test, feature = "testing"))]
    pub fn simulate_kill(&mut self) {
        self.ends.clear();
    }
}

/// Flags of the readers whose departure the writer has noticed.
#[derive(Debug)]
pub struct DepartedReaders(Box<[AtomicBool]>);

impl DepartedReaders {
    /// Creates the flags of `readers` readers, none of which has departed.
    #[must_use]
    pub fn new(readers: usize) -> Arc<Self> {
        Arc::new(Self((0..readers).map(|_| AtomicBool::new(false)).collect()))
    }

    /// Returns true if this reader has departed or does not exist.
    #[inline]
    #[must_use]
    pub fn contains(&self, at: usize) -> bool {
        self.0.get(at).is_none_or(|gone| gone.load(Ordering::Relaxed))
    }

    /// Marks this reader as departed.
    pub fn insert(&self, at: usize) {
        if let Some(gone) = self.0.get(at) {
            gone.store(true, Ordering::Relaxed);
        }
    }
}
