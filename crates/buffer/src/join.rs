//! Readers that come while a stream runs: how the writer learns of them without being waited for.
//! [SL §5.1: streams are opened by name]
//!
//! In: a page and a doorbell for each reader, from whoever lets readers in ([`Door::enter`], any
//! thread). Out: where that reader starts; and, at the writer's next look ([`Door::look`]), who
//! came and who left. A reader that comes late starts at *now*: behind the last block that is
//! shown.
//!
//! The writer may be idle, so it cannot be asked where to start; and it may be writing, so what it
//! has shown a moment ago may be overwritten before it knows that somebody needs it.
//!
//! SYNC POINT *entering*: who lets a reader in rings at the door (a word), makes a fence, and then
//! loads the position that is shown: there the reader starts. The writer shows its position, makes
//! a fence, and looks at the word before it asks readers for room. The fences are sequentially
//! consistent: either the writer sees the word, and waits for this reader from now on; or the
//! reader's start is not before anything that the writer had shown when it looked, and until its
//! next look the writer does not write further than one lap behind that. If the writer looks in
//! between, it decides the start itself.

use crate::atomic::{AtomicU32, Mutex, MutexGuard, Ordering, acquire, fence};
use crate::region::Region;
use abi::ring::reader;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use sys::doorbell::SocketDoorbell;

/// A table where readers join and a writer finds them.
pub(crate) struct Door {
    /// Not 0: there is something to look at.
    rung: AtomicU32,
    state: Mutex<DoorState>,
}

#[derive(Debug, Default)]
struct DoorState {
    coming: Vec<Coming>,
    leaving: Vec<Ticket>,
    /// The writer is gone: nobody can come any more.
    has_ended: bool,
    /// True once no reader may join any more.
    is_shut: bool,
    next: u64,
    /// Rung when the writer is gone.
    doorbell: Option<Arc<SocketDoorbell>>,
}

/// Names a reader for as long as the door is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(u64);

/// A reader that has come.
#[derive(Debug)]
pub(crate) struct Coming {
    pub(crate) ticket: Ticket,
    /// Its page; nobody else has it yet.
    pub(crate) page: Arc<Region>,
    /// Connection to the reader; the models have none.
    pub(crate) contact: Option<Contact>,
    /// True if its cursor holds its start.
    is_decided: bool,
}

/// The writer's connection to a reader.
#[derive(Debug)]
pub struct Contact {
    /// Our end of its doorbell.
    pub(crate) doorbell: SocketDoorbell,
    /// The file of its page, for a writer that takes the stream over.
    pub(crate) page: OwnedFd,
}

/// The news at the door.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) came: Vec<Coming>,
    pub(crate) left: Vec<Ticket>,
}

impl Door {
    pub(crate) fn new() -> Self {
        Self { rung: AtomicU32::new(0), state: Mutex::new(DoorState::default()) }
    }

    /// Lets a reader in: its page says then where it starts. `None`: the writer is gone.
    pub(crate) fn enter(
        &self,
        page: Arc<Region>,
        contact: Option<Contact>,
        shown: impl Fn() -> u64,
    ) -> Option<Ticket> {
        let mut state = self.lock();
        if state.has_ended {
            return None;
        }
        let ticket = Ticket(state.next);
        state.next += 1;
        state.coming.push(Coming { ticket, page, contact, is_decided: false });
        self.rung.store(1, Ordering::Release);
        drop(state);
        // SYNC POINT: entering; pairs with the fence in `has_news`.
        fence(Ordering::SeqCst);
        let start = shown();
        let mut state = self.lock();
        if let Some(coming) = state.coming.iter_mut().find(|c| c.ticket == ticket) {
            coming.decide(start);
        }
        Some(ticket)
    }

    /// Says that a reader is gone.
    pub(crate) fn leave(&self, ticket: Ticket) {
        let mut state = self.lock();
        let before = state.coming.len();
        state.coming.retain(|coming| coming.ticket != ticket);
        if state.coming.len() == before && !state.has_ended {
            state.leaving.push(ticket);
            self.rung.store(1, Ordering::Release);
        }
    }

    /// Says that nobody will come any more.
    pub(crate) fn shut(&self) {
        self.lock().is_shut = true;
    }

    /// Returns true if no reader will join any more.
    pub(crate) fn is_shut(&self) -> bool {
        let state = self.lock();
        state.is_shut && state.coming.is_empty()
    }

    /// The writer is gone.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        if let Some(doorbell) = &state.doorbell {
            doorbell.notify();
        }
    }

    /// Has this doorbell rung when the writer is gone.
    pub(crate) fn tell(&self, doorbell: Arc<SocketDoorbell>) {
        self.lock().doorbell = Some(doorbell);
    }

    /// Returns true if the writer is gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    /// Returns true if the writer should look. Called after it has published its position.
    pub(crate) fn has_news(&self) -> bool {
        // SYNC POINT: entering; pairs with the fence in `enter`.
        fence(Ordering::SeqCst);
        self.rung.load(Ordering::Acquire) != 0
    }

    /// Returns the readers that joined and left. Those whose start is not decided yet start at
    /// `shown`.
    pub(crate) fn look(&self, shown: u64) -> News {
        let mut state = self.lock();
        self.rung.store(0, Ordering::Relaxed);
        let (mut came, left) =
            (std::mem::take(&mut state.coming), std::mem::take(&mut state.leaving));
        came.iter_mut().for_each(|coming| coming.decide(shown));
        News { came, left }
    }

    fn lock(&self) -> MutexGuard<'_, DoorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Coming {
    fn decide(&mut self, start: u64) {
        if !self.is_decided {
            self.is_decided = true;
            self.page.word(reader::CURSOR).store(start, Ordering::Release);
        }
    }

    /// Returns the position at which it starts.
    pub(crate) fn start(&self) -> u64 {
        acquire(self.page.word(reader::CURSOR))
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Door")
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
