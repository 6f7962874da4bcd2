//! Commands: closures that a space of a running path executes between two passes. [Th §5.4]
//!
//! The caller passes a closure that receives the space, and gets the closure's result or the reason
//! why it was not executed. The thread of the space executes the closure between two passes. No
//! walk is then in progress: each block of the space has been read by all readers, is held by a
//! filter, or is in a ring. The data path therefore needs no lock, shared data or atomic operation
//! for commands. While no command is queued, each pass only loads a flag that no other thread is
//! writing. A new command wakes a sleeping space.
//!
//! A space that waits at a full ring is in the middle of a pass. It executes no command until the
//! reader takes entries from the ring; the error [`CommandError::RingFull`] names the ring. A
//! command that is not executed in time is withdrawn and never executed later.

use crate::counters::SpaceCounters;
use crate::failure::PathFailure;
use crate::space::{Space, SpaceResources, SpaceResults};
use crate::status::SpaceStatus;
use buffer::signal::Doorbell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::task::{self, Task};

/// An error that prevented the execution of a command. No part of the command has run or will run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommandError {
    /// The path has not started.
    #[error("the path has not begun to run")]
    NotStarted,
    /// The space has ended, rejects commands, or does not exist in the path.
    #[error("the path has ended")]
    Ended,
    /// The command was not executed, because the space waits for room in a full ring.
    #[error("{space} waits for room in a ring: its reader reads nothing")]
    RingFull {
        /// Name of the space that waits.
        space: String,
        /// Number of the edge whose ring is full.
        edge: usize,
    },
    /// The space did not begin to execute the command in time, because a sink or a program blocks
    /// the space, or because its thread gets no CPU time.
    #[error("{space} did not start the command in time")]
    TimedOut {
        /// Name of the space that did not begin the command.
        space: String,
    },
}

impl CommandError {
    /// Returns the number of the edge whose full ring prevented the execution of the command, or
    /// `None` if this error has another reason.
    #[must_use]
    pub const fn full_ring_edge(&self) -> Option<usize> {
        match self {
            Self::RingFull { edge, .. } => Some(*edge),
            _ => None,
        }
    }
}

type Command = Box<dyn FnOnce(&mut Space) + Send>;

/// A queue of commands to one space. The queue outlives the space.
pub struct CommandQueue {
    /// Status of the space: its name, and the full ring at which it waits.
    pub status: Arc<SpaceStatus>,
    /// True if commands may be queued. Set when a command is queued, and cleared when the space
    /// finds the queue empty.
    pending: AtomicBool,
    /// Kernel thread id of the space's thread; 0 before the thread starts. Not reset when the space
    /// ends.
    thread: AtomicU32,
    inbox: Mutex<CommandInbox>,
    /// Condition variable, notified when the space ends, on which [`CommandQueue::wait_for_end`]
    /// waits.
    ended: Condvar,
    doorbell: Arc<Doorbell>,
}

/// The part of a command queue that a lock protects: the queued commands, and the counters and
/// resources that the space reported last.
#[derive(Default)]
pub struct CommandInbox {
    commands: VecDeque<(u64, Command)>,
    /// Id that the next queued command gets.
    next: u64,
    /// Counters in the space's latest report, or its final counters once it has ended; `None`
    /// before its first report.
    pub latest_counters: Option<SpaceCounters>,
    /// Resources of the space, as recorded when its thread started or by a later query; `None`
    /// before its thread starts.
    pub resources: Option<SpaceResources>,
    /// True once the space has ended.
    pub ended: bool,
    /// True if the space is still running but rejects commands.
    rejects: bool,
}

impl fmt::Debug for CommandInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("waiting", &self.commands.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for CommandQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandQueue").field("name", &self.status.name).finish_non_exhaustive()
    }
}

impl CommandQueue {
    /// Creates the command queue of the space `name`. The space sleeps on `doorbell`, which
    /// [`Self::send`] notifies.
    pub fn new(name: String, doorbell: Arc<Doorbell>) -> Self {
        let (status, pending) = (Arc::new(SpaceStatus::new(name)), AtomicBool::new(false));
        let (thread, inbox, ended) = (AtomicU32::new(0), Mutex::default(), Condvar::new());
        Self { status, pending, thread, inbox, ended, doorbell }
    }

    /// Queues a command and wakes the space. Does not block.
    ///
    /// # Errors
    ///
    /// Fails with [`CommandError::Ended`] if the space has ended or rejects commands.
    pub fn send<A: Send + 'static>(
        self: &Arc<Self>,
        command: impl FnOnce(&mut Space) -> A + Send + 'static,
    ) -> Result<PendingCommand<A>, CommandError> {
        // An unbounded channel would allocate room for 31 messages at once.
        let (to, answer) = mpsc::sync_channel(1);
        // The send fails if the caller has stopped waiting.
        let command = Box::new(move |space: &mut Space| drop(to.send(command(space))));
        let mut inbox = self.lock_inbox();
        if inbox.ended || inbox.rejects {
            return Err(CommandError::Ended);
        }
        let number = inbox.next;
        inbox.next += 1;
        inbox.commands.push_back((number, command));
        // SYNC POINT: command; pairs with the Acquire in `has_queued_command`. The command itself
        // is under the lock.
        self.pending.store(true, Ordering::Release);
        drop(inbox);
        self.doorbell.notify();
        Ok(PendingCommand { queue: Arc::clone(self), number, answer })
    }

    /// Executes a command in the space between two passes, and returns the command's result. If the
    /// execution has not begun after `limit`, withdraws the command and fails. Otherwise, waits
    /// without a time limit until the execution ends.
    pub fn execute<A: Send + 'static>(
        self: &Arc<Self>,
        limit: Duration,
        command: impl FnOnce(&mut Space) -> A + Send + 'static,
    ) -> Result<A, CommandError> {
        self.send(command)?.wait_for_result(limit)
    }

    /// Borrows the space from its thread, which then blocks until the borrower returns the space.
    /// Waits for at most `limit` until the space accepts the request. After that, waits without a
    /// time limit until the current pass ends.
    pub fn borrow_space(
        self: &Arc<Self>,
        limit: Duration,
    ) -> Result<ExclusiveBorrow, CommandError> {
        let ((to, receiver), (back, goes)) = (mpsc::sync_channel(1), mpsc::sync_channel(1));
        let request = BorrowRequest { to, back: goes };
        self.send(move |space: &mut Space| space.request_borrow(request))?
            .wait_for_result(limit)?;
        // The space sends itself to the borrower before its next pass.
        let space = receiver.recv().map_err(|_| CommandError::Ended)?;
        space.report_space_lent();
        Ok(ExclusiveBorrow { space, back })
    }

    /// Blocks for at most `limit` until the space has ended. Returns its final counters, or `None`
    /// if the space is still running or ended without counters.
    pub fn wait_for_end(&self, limit: Duration) -> Option<SpaceCounters> {
        let inbox = self.lock_inbox();
        let waited = self.ended.wait_timeout_while(inbox, limit, |inbox| !inbox.ended);
        let (inbox, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inbox.latest_counters.clone().filter(|_| inbox.ended)
    }

    /// Removes a command from the queue. Returns true if the command was still queued.
    fn withdraw(&self, number: u64) -> bool {
        let mut inbox = self.lock_inbox();
        let before = inbox.commands.len();
        inbox.commands.retain(|(other, _)| *other != number);
        inbox.commands.len() < before
    }

    /// Returns the error for a command that was not executed in time: [`CommandError::RingFull`] if
    /// the space waits at a full ring, otherwise [`CommandError::TimedOut`].
    fn timeout_error(&self) -> CommandError {
        let space = self.status.name.clone();
        match self.status.full_ring() {
            Some(edge) => CommandError::RingFull { space, edge },
            None => CommandError::TimedOut { space },
        }
    }

    /// Returns true if a command has been queued since the space last found the queue empty.
    #[inline]
    pub fn has_queued_command(&self) -> bool {
        // SYNC POINT: command; pairs with the Release in `send`.
        self.pending.load(Ordering::Acquire)
    }

    /// Removes and returns the next command, or `None` if the queue is empty.
    pub fn next_command(&self) -> Option<Command> {
        let mut inbox = self.lock_inbox();
        let next = inbox.commands.pop_front();
        if next.is_none() {
            self.pending.store(false, Ordering::Relaxed);
        }
        next.map(|(_, command)| command)
    }

    /// Drops all queued commands and rejects further ones. The senders of dropped commands get
    /// [`CommandError::Ended`].
    pub fn reject_all(&self) {
        let mut inbox = self.lock_inbox();
        inbox.rejects = true;
        inbox.commands.clear();
    }

    /// Records the calling thread as the space's thread, and stores the resources that the space
    /// uses at its start.
    pub fn record_thread(&self, resources: SpaceResources) {
        self.lock_inbox().resources = Some(resources);
        self.thread.store(task::current_thread_id(), Ordering::Relaxed);
    }

    /// Locks the inbox, even if another thread panicked while holding the lock.
    pub fn lock_inbox(&self) -> MutexGuard<'_, CommandInbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the kernel thread id of the space's thread, or `None` before the thread starts and
    /// after the space ends.
    pub fn thread_id(&self) -> Option<u32> {
        let inbox = self.lock_inbox();
        Some(self.thread.load(Ordering::Relaxed)).filter(|id| *id > 0 && !inbox.ended)
    }

    /// Returns the kernel thread id of the space's thread, and the thread's scheduling statistics.
    /// Returns `None` if the space has no thread, or if the kernel does not report the statistics.
    pub fn thread_task(&self) -> Option<(u32, Task)> {
        let thread = self.thread_id()?;
        Some((thread, Task::read_thread(std::process::id(), thread)?))
    }

    /// Restricts the space's thread to the CPUs in `processors`, and returns the result of the
    /// system call. Returns `None` if the space has no thread.
    pub fn pin_thread(&self, processors: &[usize]) -> Option<sys::Result<()>> {
        // While the lock is held the thread cannot end, so its id is not reused.
        let inbox = self.lock_inbox();
        let thread = Some(self.thread.load(Ordering::Relaxed)).filter(|id| *id > 0 && !inbox.ended);
        Some(task::pin_thread(Some(thread?), processors))
    }
}

/// A handle with which the sender of a command waits for the command's result.
#[derive(Debug)]
pub struct PendingCommand<A> {
    queue: Arc<CommandQueue>,
    number: u64,
    answer: mpsc::Receiver<A>,
}

impl<A> PendingCommand<A> {
    /// Blocks until the command has been executed, and returns its result. If execution has not
    /// begun after `limit`, withdraws the command and fails.
    pub fn wait_for_result(self, limit: Duration) -> Result<A, CommandError> {
        match self.answer.recv_timeout(limit) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Disconnected) => Err(CommandError::Ended),
            Err(RecvTimeoutError::Timeout) if self.queue.withdraw(self.number) => {
                Err(self.queue.timeout_error())
            }
            // The command is being executed, or the space has just ended.
            Err(RecvTimeoutError::Timeout) => self.answer.recv().map_err(|_| CommandError::Ended),
        }
    }
}

/// A command that requests exclusive access to a space. The space grants the access between two
/// passes.
#[derive(Debug)]
pub struct BorrowRequest {
    to: mpsc::SyncSender<Box<Space>>,
    back: mpsc::Receiver<Box<Space>>,
}

/// Exclusive access to a space. Dropping it without calling [`ExclusiveBorrow::give_back`] ends the
/// space.
#[derive(Debug)]
pub struct ExclusiveBorrow {
    /// The borrowed space.
    pub space: Box<Space>,
    back: mpsc::SyncSender<Box<Space>>,
}

impl BorrowRequest {
    /// Lends the space to the borrower, and blocks until the borrower returns it. Returns the space
    /// at once if the borrower no longer exists. Fails if the borrower drops the space; the results
    /// then contain only this failure.
    pub fn lend(self, space: Space) -> Result<Space, Box<SpaceResults>> {
        if let Err(mpsc::SendError(space)) = self.to.send(Box::new(space)) {
            return Ok(*space);
        }
        let failure = || Some(PathFailure::from_panicked_space(0));
        let lost = |_| Box::new(SpaceResults { failure: failure(), ..SpaceResults::default() });
        self.back.recv().map(|space| *space).map_err(lost)
    }
}

impl ExclusiveBorrow {
    /// Returns the space to its thread, which then resumes its passes.
    pub fn give_back(self) {
        self.space.report_progress();
        // The thread is blocked in `lend`.
        let _ = self.back.send(self.space);
    }
}

/// The receiving end of a command queue, owned by the space. Dropping it marks the space as ended.
#[derive(Debug)]
pub struct CommandReceiver(pub(crate) Arc<CommandQueue>);

impl CommandReceiver {
    /// Stores the final counters of the space in the queue, for readers after the space has ended.
    pub fn store_final_counters(&self, counted: SpaceCounters) {
        self.0.lock_inbox().latest_counters = Some(counted);
    }
}

impl Drop for CommandReceiver {
    fn drop(&mut self) {
        let mut inbox = self.0.lock_inbox();
        inbox.ended = true;
        // Dropped commands report `CommandError::Ended` to their senders.
        inbox.commands.clear();
        drop(inbox);
        self.0.ended.notify_all();
    }
}
