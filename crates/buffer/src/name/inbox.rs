//! Inboxes: names to which other processes send streams. [CONTRACT 24, many producers]
//!
//! Each writer creates, seals and offers its own ring, so neither side can change the other's
//! memory, and the receiver selects the stream that it reads. The queue of connected writers is
//! bounded. When the queue is full, a writer of the user with the most entries is evicted,
//! preferably one that has sent no offer. Thus a user that connects often does not displace a user
//! that connects once. An evicted writer is disconnected, and its next write fails as if all
//! readers had left.

use super::Error;
use super::host::send_reply;
use super::reply::Reply;
use crate::stream::{Input, Offer};
use abi::access::Credentials;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::doorbell::SocketDoorbell;
use sys::poll;

/// The receiving end of an inbox. Dropping the inbox ends it: the host then refuses writers, and
/// releases the name the next time the host runs.
#[derive(Debug)]
pub struct Inbox {
    pub(super) queue: Arc<WriterQueue>,
    pub(super) doorbell: SocketDoorbell,
}

/// A writer that an inbox has accepted, with its stream.
#[derive(Debug)]
pub struct AcceptedWriter {
    /// Credentials of the writer when it connected.
    pub credentials: Credentials,
    /// ID of the writer's process, for display only.
    pub process: i32,
    /// Stream that the writer sends.
    pub input: Input,
}

/// The queue of writers that have connected to an inbox.
#[derive(Debug)]
pub(super) struct WriterQueue {
    waiting: Mutex<VecDeque<PendingWriter>>,
    doorbell: SocketDoorbell,
}

/// A writer that has connected but has not been accepted yet.
#[derive(Debug)]
pub(super) struct PendingWriter {
    pub(super) credentials: Credentials,
    pub(super) process: i32,
    pub(super) socket: OwnedFd,
}

/// Maximum number of pending writers.
const PENDING_WRITERS_MAX: usize = 32;

impl WriterQueue {
    pub(super) fn new() -> sys::Result<(Self, SocketDoorbell)> {
        let (doorbell, receiver) = SocketDoorbell::pair()?;
        Ok((Self { waiting: Mutex::default(), doorbell }, receiver))
    }

    /// Accepts a writer by a reply, and adds it to the queue. If the queue is then too long, evicts
    /// one of its writers. Returns false if the inbox has been dropped.
    pub(super) fn add(self: &Arc<Self>, writer: PendingWriter) -> bool {
        if self.has_ended() {
            return false;
        }
        let mut queue = self.lock();
        // The lock is held, so that whoever looks finds each writer that has received the reply.
        send_reply(&writer.socket, &Reply::inbox());
        queue.push_back(writer);
        if queue.len() > PENDING_WRITERS_MAX {
            let leaves = pick_entry_to_evict(&queue);
            queue.remove(leaves);
        }
        drop(queue);
        self.doorbell.notify();
        true
    }

    /// Returns true if the inbox has been dropped.
    pub(super) fn has_ended(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<PendingWriter>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the index of the entry to evict. Among the entries of the user with the most entries,
/// picks the oldest without an offer, or the oldest if all have sent offers.
fn pick_entry_to_evict(queue: &VecDeque<PendingWriter>) -> usize {
    let of = |uid: u32| queue.iter().filter(|waiting| waiting.credentials.uid == uid).count();
    let most = queue.iter().map(|waiting| of(waiting.credentials.uid)).max().unwrap_or(0);
    let sockets: Vec<_> = queue.iter().map(|waiting| waiting.socket.as_fd()).collect();
    let offered = poll::wait_until_readable(&sockets, Some(Duration::ZERO));
    let theirs = (0..queue.len()).filter(|at| of(queue[*at].credentials.uid) == most);
    theirs.min_by_key(|at| offered.get(*at) == Some(&true)).unwrap_or(0)
}

impl Inbox {
    /// Accepts the next writer that has sent a valid offer. Returns `None` if nothing arrives for
    /// `limit` (`None` means no limit); each arrival, even of an invalid offer, restarts the limit.
    /// Disconnects a writer whose offer is invalid.
    pub fn accept(&self, limit: Option<Duration>) -> Result<Option<AcceptedWriter>, Error> {
        loop {
            if let Some(arrival) = self.try_accept() {
                return Ok(Some(arrival));
            }
            if !self.sleep(limit, None) {
                return Ok(None);
            }
        }
    }

    /// Accepts a writer that has sent a valid offer. Returns `None` if there is none. Does not
    /// block. Disconnects writers whose offers are invalid.
    pub fn try_accept(&self) -> Option<AcceptedWriter> {
        loop {
            let offered = {
                // The lock is held until the writer has been removed, because an eviction would
                // move another writer to its index.
                let mut queue = self.queue.lock();
                let sockets = queue.iter().map(|waiting| waiting.socket.as_fd());
                let all: Vec<_> = std::iter::once(self.doorbell.as_fd()).chain(sockets).collect();
                let ready = poll::wait_until_readable(&all, Some(Duration::ZERO));
                self.doorbell.clear();
                let at = ready.iter().skip(1).position(|ready| *ready);
                at.and_then(|at| queue.remove(at))
            };
            if let Some(arrival) = open_offer(offered?) {
                return Some(arrival);
            }
        }
    }

    /// Waits until a writer may have connected or sent an offer, or `stop` is readable. Returns
    /// true if `stop` is readable.
    pub fn wait_for_writer(&self, stop: BorrowedFd<'_>) -> bool {
        self.sleep(None, Some(stop));
        poll::wait_until_readable(&[stop], Some(Duration::ZERO)).contains(&true)
    }

    /// Sleeps until a writer connects or sends an offer, or `stop` is readable. Returns false if
    /// `limit` passes first.
    fn sleep(&self, limit: Option<Duration>, stop: Option<BorrowedFd<'_>>) -> bool {
        let copies: Vec<OwnedFd> = {
            let queue = self.queue.lock();
            queue.iter().filter_map(|waiting| waiting.socket.try_clone().ok()).collect()
        };
        let sockets = copies.iter().map(AsFd::as_fd);
        let first = std::iter::once(self.doorbell.as_fd()).chain(stop);
        let all: Vec<_> = first.chain(sockets).collect();
        poll::wait_until_readable(&all, limit).contains(&true)
    }
}

impl AsFd for Inbox {
    /// Returns a descriptor that becomes readable when a writer has connected.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

fn open_offer(writer: PendingWriter) -> Option<AcceptedWriter> {
    let PendingWriter { credentials, process, socket } = writer;
    let offer = Offer::receive(socket).ok()??;
    Some(AcceptedWriter { credentials, process, input: offer.open().ok()? })
}
