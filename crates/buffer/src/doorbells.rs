//! The doorbells of one writer: one for each reader, notified when it sleeps and its wish is met.

use crate::cursor::{Change, Producer};
use crate::wait::{Ringer, Urgency};
use abi::ring::reader;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use sys::doorbell::{Peer, SocketDoorbell};

/// The doorbells of all readers of one writer.
#[derive(Debug)]
pub struct Doorbells {
    ends: Vec<NotifiedReader>,
    gone: Arc<Gone>,
}

#[derive(Debug)]
struct NotifiedReader {
    doorbell: SocketDoorbell,
    ringer: Ringer,
    /// Notifications without room for it since the last progress.
    false_alarms: u32,
}

/// Notifications in vain after which a reader is shut out. An honest reader notifies once for each
/// sleep, and only when it has come far enough; one that exceeds this keeps the writer busy.
const FALSE_ALARMS_MAX: u32 = 64;

impl Doorbells {
    /// Takes the writer's ends, in the order of the readers.
    #[must_use]
    pub fn new(doorbells: Vec<SocketDoorbell>) -> Self {
        let gone = Gone::new(doorbells.len());
        let end =
            |doorbell| NotifiedReader { doorbell, ringer: Ringer::default(), false_alarms: 0 };
        Self { ends: doorbells.into_iter().map(end).collect(), gone }
    }

    /// Takes all doorbells out and leaves an empty set.
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self { ends: std::mem::take(&mut self.ends), gone: self.gone.clone() }
    }

    /// Returns the shared record of departed readers.
    #[must_use]
    pub const fn gone(&self) -> &Arc<Gone> {
        &self.gone
    }

    /// Notifies the readers that wait for what was published.
    #[inline]
    pub fn ring_due(&mut self, side: &mut Producer, urgency: Urgency) {
        self.settle(side);
        let head = side.head;
        for at in 0..self.ends.len() {
            let (Some(end), Some(page)) = (self.ends.get_mut(at), side.store.readers.get(at))
            else {
                continue;
            };
            let due = !self.gone.is(at) && end.ringer.is_due(page, reader::WAIT, head, urgency);
            if due && end.doorbell.notify() == Peer::Gone {
                self.shut_out(side, at);
            }
        }
    }

    /// Sleeps until a reader notifies or departs. Returns false if none is left.
    pub fn sleep(&mut self, side: &mut Producer, limit: Option<Duration>) -> bool {
        self.settle(side);
        let there: Vec<usize> = (0..self.ends.len()).filter(|at| !self.gone.is(*at)).collect();
        let doorbells: Vec<BorrowedFd<'_>> = there
            .iter()
            .filter_map(|at| self.ends.get(*at))
            .map(|end| end.doorbell.as_fd())
            .collect();
        if doorbells.is_empty() {
            return false;
        }
        let ready = sys::poll::readable(&doorbells, limit);
        for (at, _) in there.into_iter().zip(ready).filter(|(_, ready)| *ready) {
            let Some(end) = self.ends.get_mut(at) else { continue };
            end.false_alarms += 1;
            if end.doorbell.clear() == Peer::Gone || end.false_alarms > FALSE_ALARMS_MAX {
                self.shut_out(side, at);
            }
        }
        true
    }

    /// Marks readers as gone that the ring has evicted.
    fn settle(&self, side: &mut Producer) {
        for change in side.changes() {
            if let Change::Left(at) = change {
                self.gone.set(at);
            }
        }
    }

    /// Resets the count of vain notifications: readers have made room.
    pub fn progressed(&mut self) {
        self.ends.iter_mut().for_each(|end| end.false_alarms = 0);
    }

    /// Stops waiting for a reader.
    pub fn shut_out(&mut self, side: &mut Producer, at: usize) {
        self.gone.set(at);
        side.shut_out(at);
    }

    /// Marks readers as gone whose process has ended. Never waits.
    pub fn note_departures(&self) {
        for (at, end) in self.ends.iter().enumerate().filter(|(at, _)| !self.gone.is(*at)) {
            if end.doorbell.clear() == Peer::Gone {
                self.gone.set(at);
            }
        }
    }

    /// Returns the doorbell of the first present reader, for a writer that polls a single
    /// descriptor.
    #[must_use]
    pub fn first(&self) -> Option<BorrowedFd<'_>> {
        self.there().next().or_else(|| self.ends.first()).map(|end| end.doorbell.as_fd())
    }

    /// Returns the doorbells of all present readers.
    #[must_use]
    pub fn all(&self) -> Vec<BorrowedFd<'_>> {
        self.there().map(|end| end.doorbell.as_fd()).collect()
    }

    fn there(&self) -> impl Iterator<Item = &NotifiedReader> {
        self.ends.iter().enumerate().filter(|(at, _)| !self.gone.is(*at)).map(|(_, end)| end)
    }

    /// Closes all doorbells, as a killed process does.
    #[cfg(any(test, feature = "testing"))]
    pub fn die(&mut self) {
        self.ends.clear();
    }
}

/// Flags of departed readers, as far as their writer has noticed.
#[derive(Debug)]
pub struct Gone(Box<[AtomicBool]>);

impl Gone {
    /// Makes flags for this many present readers.
    #[must_use]
    pub fn new(readers: usize) -> Arc<Self> {
        Arc::new(Self((0..readers).map(|_| AtomicBool::new(false)).collect()))
    }

    /// Returns true if this reader is gone, or never was.
    #[inline]
    #[must_use]
    pub fn is(&self, at: usize) -> bool {
        self.0.get(at).is_none_or(|gone| gone.load(Ordering::Relaxed))
    }

    /// Marks this reader as gone.
    pub fn set(&self, at: usize) {
        if let Some(gone) = self.0.get(at) {
            gone.store(true, Ordering::Relaxed);
        }
    }
}
