//! Joining of readers while a stream runs, without waiting for the writer. [SL §5.1: streams are
//! opened by name]
//!
//! For each new reader, a host thread, which can be any thread, calls [`JoinQueue::join`]. This
//! queues the reader's page and doorbell, determines the reader's start position and stores it in
//! the page. The writer learns of joined and departed readers at its next [`JoinQueue::drain`]. A
//! reader that joins late starts after the last published block.
//!
//! The queue cannot obtain the start position from the writer, which may be idle. A writer that is
//! not idle may overwrite recently published blocks before it learns of the new reader; the
//! following protocol prevents that.
//!
//! SYNC POINT *joining*: the host thread sets the pending word, issues a fence, and then loads the
//! published position, at which the reader starts. The writer publishes its position, issues a
//! fence, and loads the pending word before it computes room. The fences are sequentially
//! consistent. Either the writer sees the pending word and waits for this reader from then on; or
//! the reader's start is at or after the position that the writer published before it loaded the
//! word, and until it loads the word again, the writer writes at most one lap beyond that position.
//! If the writer drains the queue in between, the writer sets the start position.

use crate::atomic::{AtomicU32, Mutex, MutexGuard, Ordering, fence};
use crate::region::Region;
use abi::ring::reader;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use sys::doorbell::SocketDoorbell;
use sys::eventfd::EventFd;

/// A queue of joining and leaving readers, filled by host threads and drained by the writer.
#[derive(Debug, Default)]
pub(crate) struct JoinQueue {
    /// Nonzero if the queue contains a reader that has joined or departed since the last drain.
    pending: AtomicU32,
    state: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    joining: Vec<JoiningReader>,
    leaving: Vec<ReaderTicket>,
    /// True if the writer has exited, so no more readers can join.
    has_ended: bool,
    /// True if the host accepts no more readers.
    is_closed: bool,
    next: u64,
    /// Doorbell to notify when the writer exits.
    doorbell: Option<Arc<SocketDoorbell>>,
    /// Event that wakes a writer waiting for readers when one joins. Created when the writer first
    /// waits.
    joined: Option<Arc<EventFd>>,
}

/// The id of a reader, unique within its queue.
#[cfg_attr(loom, expect(unreachable_pub, reason = "models omit the module that exports it"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReaderTicket(u64);

/// A reader that joins a ring while the ring runs.
#[derive(Debug)]
pub(crate) struct JoiningReader {
    pub(crate) ticket: ReaderTicket,
    /// Page of the reader's control words.
    pub(crate) page: Arc<Region>,
    /// Connection to the reader. `None` in loom models, which have no processes.
    pub(crate) connection: Option<ReaderConnection>,
    /// Position of the first block that the reader receives; `None` until it has been determined.
    /// The copy in the reader's page cannot be used, because the reader may have overwritten it.
    start: Option<u64>,
}

/// The writer's end of a reader's doorbell, and the file of the reader's page.
#[derive(Debug)]
pub struct ReaderConnection {
    /// Writer's end of the reader's doorbell.
    pub(crate) doorbell: SocketDoorbell,
    /// File of the reader's page, for a later writer that takes over the stream.
    pub(crate) page: OwnedFd,
}

/// Readers that have joined or left since the writer last drained the queue.
#[derive(Debug, Default)]
pub(crate) struct QueueChanges {
    pub(crate) joined: Vec<JoiningReader>,
    pub(crate) left: Vec<ReaderTicket>,
}

impl JoinQueue {
    /// Adds a reader, determines the reader's start position from the writer's published position,
    /// which `published` loads, and stores the start position in the reader's page. Returns the
    /// reader's ticket, or `None` if the writer has exited.
    pub(crate) fn join(
        &self,
        page: Arc<Region>,
        contact: Option<ReaderConnection>,
        published: impl Fn() -> u64,
    ) -> Option<ReaderTicket> {
        let mut state = self.lock();
        if state.has_ended {
            return None;
        }
        let ticket = ReaderTicket(state.next);
        state.next += 1;
        state.joining.push(JoiningReader { ticket, page, connection: contact, start: None });
        self.pending.store(1, Ordering::Release);
        drop(state);
        // SYNC POINT: joining; pairs with the fence in `has_pending_changes`.
        fence(Ordering::SeqCst);
        let start = published();
        let mut state = self.lock();
        if let Some(joining) = state.joining.iter_mut().find(|c| c.ticket == ticket) {
            joining.set_start_if_unset(start);
        }
        if let Some(joined) = &state.joined {
            joined.notify();
        }
        Some(ticket)
    }

    /// Announces to the writer that a reader has left.
    pub(crate) fn leave(&self, ticket: ReaderTicket) {
        let mut state = self.lock();
        let before = state.joining.len();
        state.joining.retain(|joining| joining.ticket != ticket);
        if state.joining.len() == before && !state.has_ended {
            state.leaving.push(ticket);
            self.pending.store(1, Ordering::Release);
        }
    }

    /// Closes the queue: no more readers will join.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
    }

    /// Returns true if the queue is closed and every reader that has joined has been drained.
    pub(crate) fn is_closed(&self) -> bool {
        let state = self.lock();
        state.is_closed && state.joining.is_empty()
    }

    /// Announces that the writer has exited, and notifies the registered doorbell.
    pub(crate) fn announce_writer_exit(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        if let Some(doorbell) = &state.doorbell {
            doorbell.notify();
        }
    }

    /// Registers a doorbell to be notified when the writer exits.
    pub(crate) fn notify_on_end(&self, doorbell: Arc<SocketDoorbell>) {
        self.lock().doorbell = Some(doorbell);
    }

    /// Returns the event that becomes readable when a reader joins, for a writer that waits for
    /// readers. Fails if the kernel refuses to create the event.
    pub(crate) fn join_event(&self) -> sys::Result<Arc<EventFd>> {
        let mut state = self.lock();
        if let Some(joined) = &state.joined {
            return Ok(joined.clone());
        }
        let joined = Arc::new(EventFd::new()?);
        state.joined = Some(joined.clone());
        Ok(joined)
    }

    /// Returns true if the writer has exited.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    /// Returns true if a reader has joined or left since the writer last drained the queue. Call
    /// this after the writer has published its position.
    pub(crate) fn has_pending_changes(&self) -> bool {
        // SYNC POINT: joining; pairs with the fence in `join`.
        fence(Ordering::SeqCst);
        self.pending.load(Ordering::Acquire) != 0
    }

    /// Removes and returns the readers that joined or left since the last call. A joining reader
    /// whose start position has not been determined yet starts at `published`.
    pub(crate) fn drain(&self, published: u64) -> QueueChanges {
        let mut state = self.lock();
        self.pending.store(0, Ordering::Relaxed);
        let (mut joined, left) =
            (std::mem::take(&mut state.joining), std::mem::take(&mut state.leaving));
        joined.iter_mut().for_each(|joining| joining.set_start_if_unset(published));
        QueueChanges { joined, left }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JoiningReader {
    fn set_start_if_unset(&mut self, start: u64) {
        if self.start.is_none() {
            self.start = Some(start);
            self.page.word(reader::RELEASED_POSITION).store(start, Ordering::Release);
        }
    }

    /// Returns the position of the first block that the reader receives, or `otherwise` if that
    /// position has not been determined yet.
    pub(crate) fn start_position_or(&self, otherwise: u64) -> u64 {
        self.start.unwrap_or(otherwise)
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
