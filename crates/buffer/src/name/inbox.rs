//! A name to which others write: each of them in a stream of its own. [CONTRACT 24, many producers]
//!
//! Who writes makes its ring, seals it, and offers it: so neither side can change what the other
//! one has, and the receiver decides whom it reads. Who connects is one of a few that may be waited
//! for. Where these are all, one of the user who has most of them makes room for the next, first of
//! those who have offered nothing: so nobody who comes once is pushed out by one who comes often.
//! Who is pushed out is hung up on, and hears that nobody reads.

use super::Error;
use crate::stream::{Input, Offer};
use abi::access::Credentials;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::doorbell::SocketDoorbell;
use sys::poll;

/// The creator's end of an inbox. Dropping it gives the name back.
#[derive(Debug)]
pub struct Inbox {
    pub(super) queue: Arc<Queue>,
    pub(super) doorbell: SocketDoorbell,
}

/// A writer that has joined.
#[derive(Debug)]
pub struct Arrival {
    /// Credentials of the writer when it came.
    pub who: Credentials,
    /// Its process, for people.
    pub process: i32,
    /// The stream that it writes.
    pub input: Input,
}

/// The queue of an inbox.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<VecDeque<Waiting>>,
    doorbell: SocketDoorbell,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) who: Credentials,
    pub(super) process: i32,
    pub(super) socket: OwnedFd,
}

/// Writers that may be waited for.
const WAITING_MAX: usize = 32;

impl Queue {
    pub(super) fn new() -> sys::Result<(Self, SocketDoorbell)> {
        let (doorbell, heard) = SocketDoorbell::pair()?;
        Ok((Self { waiting: Mutex::default(), doorbell }, heard))
    }

    /// `false`: there is no inbox any more.
    pub(super) fn add(self: &Arc<Self>, waiting: Waiting) -> bool {
        if self.is_over() {
            return false;
        }
        let mut queue = self.lock();
        queue.push_back(waiting);
        if queue.len() > WAITING_MAX {
            let leaves = one_too_many(&queue);
            queue.remove(leaves);
        }
        drop(queue);
        self.doorbell.notify();
        true
    }

    /// Returns true if the inbox is gone.
    pub(super) fn is_over(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Picks the entry to evict: of the heaviest user, the oldest that has offered nothing, else the
/// oldest.
fn one_too_many(queue: &VecDeque<Waiting>) -> usize {
    let of = |uid: u32| queue.iter().filter(|waiting| waiting.who.uid == uid).count();
    let most = queue.iter().map(|waiting| of(waiting.who.uid)).max().unwrap_or(0);
    let sockets: Vec<_> = queue.iter().map(|waiting| waiting.socket.as_fd()).collect();
    let offered = poll::readable(&sockets, Some(Duration::ZERO));
    let theirs = (0..queue.len()).filter(|at| of(queue[*at].who.uid) == most);
    theirs.min_by_key(|at| offered.get(*at) == Some(&true)).unwrap_or(0)
}

impl Inbox {
    /// The next one who writes here, waiting for at most `limit`; none: nobody came. Who offers
    /// what is no ring is sent away without a word.
    pub fn accept(&self, limit: Option<Duration>) -> Result<Option<Arrival>, Error> {
        loop {
            let ready = {
                let queue = self.queue.lock();
                let sockets = queue.iter().map(|waiting| waiting.socket.as_fd());
                let all: Vec<_> = std::iter::once(self.doorbell.as_fd()).chain(sockets).collect();
                poll::readable(&all, Some(Duration::ZERO))
            };
            self.doorbell.clear();
            if let Some(at) = ready.iter().skip(1).position(|ready| *ready) {
                let Some(waiting) = self.queue.lock().remove(at) else { continue };
                if let Some(arrival) = welcome(waiting) {
                    return Ok(Some(arrival));
                }
                continue;
            }
            if !self.sleep(limit) {
                return Ok(None);
            }
        }
    }

    /// Sleeps until somebody comes or offers something. `false`: nobody did.
    fn sleep(&self, limit: Option<Duration>) -> bool {
        let copies: Vec<OwnedFd> = {
            let queue = self.queue.lock();
            queue.iter().filter_map(|waiting| waiting.socket.try_clone().ok()).collect()
        };
        let sockets = copies.iter().map(AsFd::as_fd);
        let all: Vec<_> = std::iter::once(self.doorbell.as_fd()).chain(sockets).collect();
        poll::readable(&all, limit).contains(&true)
    }
}

impl AsFd for Inbox {
    /// Readable when somebody has come.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

fn welcome(waiting: Waiting) -> Option<Arrival> {
    let Waiting { who, process, socket } = waiting;
    let offer = Offer::arrived(socket).ok()??;
    Some(Arrival { who, process, input: offer.open().ok()? })
}
