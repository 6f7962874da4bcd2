//! Commands to the spaces of a running path: closures that a space executes itself between two
//! passes, at a block boundary. [Th §5.4]
//!
//! In: a closure over the space. Out: its answer, or the reason why there is none. The thread of
//! the space executes it while no block is under way there: every block was taken by all readers,
//! or is held by a filter, or lies in a ring. So nothing on the data path is shared, locked or
//! atomic for the sake of commands. Without commands a space pays one load per pass, of a word that
//! is not written; a space that sleeps is notified.
//!
//! A space that waits for room in a ring stands in the middle of a walk: it executes nothing until
//! the other side has gone on, and names the ring ([`NotTaken::HeldUp`]). A command that was not
//! executed in time is withdrawn, and never executed later.

use crate::failure::PathFailure;
use crate::report::Counted;
use crate::space::{Remains, Space, SpaceResources};
use buffer::signal::Doorbell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::task::{self, Task};

/// Cause for which a command was not executed. No part of it was done then, and none will be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// The path has not begun to run.
    NotBegun,
    /// The space has ended, or there is none of this number.
    Ended,
    /// The space waits for room in a ring.
    HeldUp {
        /// The space.
        space: String,
        /// The edge of the plan that is full.
        edge: usize,
    },
    /// The space was busy all the time: a sink or a program keeps it, or it has no processor.
    Late {
        /// The space.
        space: String,
    },
}

impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBegun => f.write_str("the path has not begun to run"),
            Self::Ended => f.write_str("the path has ended"),
            Self::HeldUp { space, .. } => {
                write!(f, "{space} waits for room in a ring: who reads it takes nothing")
            }
            Self::Late { space } => write!(f, "{space} did not come to it in time"),
        }
    }
}

impl std::error::Error for NotTaken {}

type Command = Box<dyn FnOnce(&mut Space) + Send>;

/// The queue of commands to one space. It outlives the space.
pub struct CommandQueue {
    /// The name of the space.
    pub name: String,
    /// Set while a command waits.
    pending: AtomicBool,
    /// One more than the edge of the plan in which the space waits for room; 0: it does not.
    held_up: AtomicUsize,
    /// The thread of the space; 0: it has not begun.
    thread: AtomicU32,
    inbox: Mutex<Inbox>,
    /// Notified when the space has ended.
    ended: Condvar,
    bell: Arc<Doorbell>,
}

/// The commands of a queue, and what the space last reported.
#[derive(Default)]
pub struct Inbox {
    commands: VecDeque<(u64, Command)>,
    /// The number of the next command.
    next: u64,
    /// The counters at the last report, or at the end of the space.
    pub last: Option<Counted>,
    /// The resources of the space at that time.
    pub resources: Option<SpaceResources>,
    /// True once the space has ended.
    pub ended: bool,
    /// True if no more commands are accepted although the space goes on.
    refuses: bool,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("waiting", &self.commands.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for CommandQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandQueue").field("name", &self.name).finish_non_exhaustive()
    }
}

impl CommandQueue {
    /// Makes the queue of a space that sleeps on this bell.
    pub fn new(name: String, bell: Arc<Doorbell>) -> Self {
        let (pending, held_up) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (thread, inbox, ended) = (AtomicU32::new(0), Mutex::default(), Condvar::new());
        Self { name, pending, held_up, thread, inbox, ended, bell }
    }

    /// Queues a command and notifies the space.
    pub fn send<A: Send + 'static>(
        self: &Arc<Self>,
        command: impl FnOnce(&mut Space) -> A + Send + 'static,
    ) -> Result<PendingCommand<A>, NotTaken> {
        let (to, answer) = mpsc::channel();
        // The sender may have given up by then, and listens no more.
        let command = Box::new(move |space: &mut Space| drop(to.send(command(space))));
        let mut inbox = self.inbox();
        if inbox.ended || inbox.refuses {
            return Err(NotTaken::Ended);
        }
        let number = inbox.next;
        inbox.next += 1;
        inbox.commands.push_back((number, command));
        // SYNC POINT: command; pairs with the Acquire in `has_pending`. The command itself is under
        // the lock.
        self.pending.store(true, Ordering::Release);
        drop(inbox);
        self.bell.notify();
        Ok(PendingCommand { queue: Arc::clone(self), number, answer })
    }

    /// Has the space execute this between two passes, and waits for its answer.
    pub fn ask<A: Send + 'static>(
        self: &Arc<Self>,
        limit: Duration,
        command: impl FnOnce(&mut Space) -> A + Send + 'static,
    ) -> Result<A, NotTaken> {
        self.send(command)?.answer(limit)
    }

    /// Takes the space over from its thread, at a block boundary.
    pub fn borrow(self: &Arc<Self>, limit: Duration) -> Result<ExclusiveBorrow, NotTaken> {
        let ((to, comes), (back, goes)) = (mpsc::channel(), mpsc::channel());
        let request = BorrowRequest { to, back: goes };
        self.send(move |space: &mut Space| space.requests_borrow(request))?.answer(limit)?;
        // It comes before its next pass.
        let space = comes.recv().map_err(|_| NotTaken::Ended)?;
        space.is_lent();
        Ok(ExclusiveBorrow { space, back })
    }

    /// Waits until the space has ended; returns its last counters, or `None` if it goes on.
    pub fn last(&self, limit: Duration) -> Option<Counted> {
        let inbox = self.inbox();
        let waited = self.ended.wait_timeout_while(inbox, limit, |inbox| !inbox.ended);
        let (inbox, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inbox.last.clone().filter(|_| inbox.ended)
    }

    /// Takes a command back; returns true if it was still queued.
    fn withdraw(&self, number: u64) -> bool {
        let mut inbox = self.inbox();
        let before = inbox.commands.len();
        inbox.commands.retain(|(other, _)| *other != number);
        inbox.commands.len() < before
    }

    /// Returns the reason why nothing was executed in time.
    fn delay(&self) -> NotTaken {
        let space = self.name.clone();
        match self.held_up() {
            Some(edge) => NotTaken::HeldUp { space, edge },
            None => NotTaken::Late { space },
        }
    }

    /// Returns true if a command waits.
    #[inline]
    pub fn has_pending(&self) -> bool {
        // SYNC POINT: command; pairs with the Release in `send`.
        self.pending.load(Ordering::Acquire)
    }

    /// Takes the next command.
    pub fn next(&self) -> Option<Command> {
        let mut inbox = self.inbox();
        let next = inbox.commands.pop_front();
        if next.is_none() {
            self.pending.store(false, Ordering::Relaxed);
        }
        next.map(|(_, command)| command)
    }

    /// Accepts no more commands. Those that wait are dropped, and their senders hear of it.
    pub fn refuse(&self) {
        let mut inbox = self.inbox();
        inbox.refuses = true;
        inbox.commands.clear();
    }

    /// Notes that the calling thread runs the space, which has these resources.
    pub fn is_run_here(&self, resources: SpaceResources) {
        self.inbox().resources = Some(resources);
        self.thread.store(task::current_thread(), Ordering::Relaxed);
    }

    /// Returns the edge on which the space waits for room.
    pub fn held_up(&self) -> Option<usize> {
        // It only says which; nothing else travels with it.
        self.held_up.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Notes that the space waits for room on this edge, or (`None`) goes on.
    pub fn is_held_up(&self, edge: Option<usize>) {
        self.held_up.store(edge.map_or(0, |edge| edge + 1), Ordering::Relaxed);
    }

    /// Locks the inbox.
    pub fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the thread of the space; `None`: it has not begun, or has ended.
    pub fn thread(&self) -> Option<u32> {
        let inbox = self.inbox();
        Some(self.thread.load(Ordering::Relaxed)).filter(|id| *id > 0 && !inbox.ended)
    }

    /// Returns the thread of the space, and what the kernel says of it.
    pub fn task(&self) -> Option<(u32, Task)> {
        let thread = self.thread()?;
        Some((thread, Task::of_thread(std::process::id(), thread)?))
    }

    /// Keeps the thread of the space on these processors. `None`: the space has no thread now.
    pub fn keep(&self, processors: &[usize]) -> Option<sys::Result<()>> {
        // While this is held the thread does not end, and its number is its own.
        let inbox = self.inbox();
        let thread = Some(self.thread.load(Ordering::Relaxed)).filter(|id| *id > 0 && !inbox.ended);
        Some(task::pin(Some(thread?), processors))
    }
}

/// A command that is queued or being executed.
#[derive(Debug)]
pub struct PendingCommand<A> {
    queue: Arc<CommandQueue>,
    number: u64,
    answer: mpsc::Receiver<A>,
}

impl<A> PendingCommand<A> {
    /// Waits for the answer, at most until `limit` is over; a command that has been begun by then
    /// is waited for.
    pub fn answer(self, limit: Duration) -> Result<A, NotTaken> {
        match self.answer.recv_timeout(limit) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Disconnected) => Err(NotTaken::Ended),
            Err(RecvTimeoutError::Timeout) if self.queue.withdraw(self.number) => {
                Err(self.queue.delay())
            }
            // It is being executed, or the space has just ended.
            Err(RecvTimeoutError::Timeout) => self.answer.recv().map_err(|_| NotTaken::Ended),
        }
    }
}

/// A request to hand the space over for a while.
#[derive(Debug)]
pub struct BorrowRequest {
    to: mpsc::Sender<Space>,
    back: mpsc::Receiver<Space>,
}

/// A space that was handed over. Dropping this instead of giving it back ends the space.
#[derive(Debug)]
pub struct ExclusiveBorrow {
    /// The space.
    pub space: Space,
    back: mpsc::Sender<Space>,
}

impl BorrowRequest {
    /// Hands the space over and waits until it is back.
    pub fn lend(self, space: Space) -> Result<Space, Box<Remains>> {
        if let Err(mpsc::SendError(space)) = self.to.send(space) {
            return Ok(space);
        }
        let failure = || Some(PathFailure::space(0));
        let lost = |_| Box::new(Remains { failure: failure(), ..Remains::default() });
        self.back.recv().map_err(lost)
    }
}

impl ExclusiveBorrow {
    /// Gives the space back to its thread.
    pub fn back(self) {
        self.space.moves();
        // Its thread waits for it.
        let _ = self.back.send(self.space);
    }
}

/// The receiving end of a queue, owned by the space. Dropping it marks the space as ended.
#[derive(Debug)]
pub struct CommandReceiver(pub(crate) Arc<CommandQueue>);

impl CommandReceiver {
    /// Leaves the last counters behind.
    pub fn leave(&self, counted: Counted) {
        self.0.inbox().last = Some(counted);
    }
}

impl Drop for CommandReceiver {
    fn drop(&mut self) {
        let mut inbox = self.0.inbox();
        inbox.ended = true;
        // Senders that wait for an answer hear that there will be none.
        inbox.commands.clear();
        drop(inbox);
        self.0.ended.notify_all();
    }
}
