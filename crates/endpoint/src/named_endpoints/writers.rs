//! The writers of a `buffer`: a thread that accepts them, and one descriptor that covers all their
//! rings.
//!
//! A program that has connected to the buffer becomes a writer only when it offers a ring, which it
//! may do late or never. A separate thread waits for these offers and passes the rings to the
//! source, so that the source never waits for a program.

use super::ring::RingState;
use buffer::name::Inbox;
use buffer::stream::Input;
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use sys::eventfd::EventFd;

/// The ring of one writer of a `buffer`.
pub(super) struct WriterRing {
    pub(super) input: Input,
    /// Session number of the writer's blocks, used only if they are parts of one byte stream.
    pub(super) session: u32,
    /// True once the writer's first block has been read.
    pub(super) has_begun: bool,
    /// Size of the ring in bytes, as of the last call of [`WriterRing::record_size_change`].
    pub(super) bytes: usize,
}

impl WriterRing {
    /// Checks whether the writer has resized its ring since the last call. If so, counts the change
    /// in `state`, which covers the rings of all writers.
    pub(super) fn record_size_change(&mut self, state: &mut RingState) {
        let (before, now) = (self.bytes, self.input.capacity());
        if before == now {
            return;
        }
        self.bytes = now;
        (state.grown, state.shrunk) =
            (state.grown + u64::from(now > before), state.shrunk + u64::from(now < before));
        // The writer does not report the reason for the change.
        let change = if now > before { "grown" } else { "shrunk" };
        state.because = format!("its writer has {change} it from {} KB", before >> 10);
    }
}

/// The rings of all writers of a `buffer`, and the thread that accepts rings from new writers.
pub(super) struct Writers {
    pub(super) list: Vec<WriterRing>,
    shared: Arc<AcceptedRings>,
    thread: Option<JoinHandle<()>>,
    /// Epoll instance over the descriptors of all rings and `shared.arrival_event`.
    epoll: OwnedFd,
    /// True once any writer has been accepted.
    had_writer: bool,
    asleep: bool,
}

/// The inbox, and the rings that were accepted from it and that the source has not adopted yet.
struct AcceptedRings {
    inbox: Inbox,
    inputs: Mutex<Vec<Input>>,
    arrival_event: EventFd,
    stop: EventFd,
}

impl Writers {
    /// Starts the thread that accepts writers. Fails if the kernel cannot create the thread or a
    /// descriptor.
    pub(super) fn new(inbox: Inbox) -> sys::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = epoll.map_err(|e| sys::Error::new("epoll_create1", "", e.raw_os_error()))?;
        let (came, stop) = (EventFd::new()?, EventFd::new()?);
        let shared =
            Arc::new(AcceptedRings { inbox, inputs: Mutex::default(), arrival_event: came, stop });
        watch_descriptor(&epoll, shared.arrival_event.as_fd())?;
        let thread_shared = shared.clone();
        let thread = std::thread::Builder::new().name("writers".to_owned());
        let thread = thread
            .spawn(move || accept_rings(&thread_shared))
            .map_err(|e| sys::Error::new("clone", "a thread", e.raw_os_error().unwrap_or(0)))?;
        let thread = Some(thread);
        Ok(Self { list: Vec::new(), shared, thread, epoll, had_writer: false, asleep: false })
    }

    /// Tells all writers that the source is awake, so that they need not wake it. Then takes over
    /// the rings that have been accepted. Never waits for a writer.
    pub(super) fn announce_awake(&mut self) -> sys::Result<()> {
        if std::mem::take(&mut self.asleep) {
            for ring in &mut self.list {
                // A spurious wakeup costs only a check of an empty ring.
                let _ = ring.input.announce_wake(true);
            }
        }
        if !self.shared.arrival_event.clear() {
            return Ok(());
        }
        for input in std::mem::take(&mut *self.shared.lock()) {
            watch_descriptor(&self.epoll, input.as_fd())?;
            self.had_writer = true;
            self.list.push(WriterRing {
                bytes: input.capacity(),
                input,
                session: crate::external_writers::next_session_number(),
                has_begun: false,
            });
        }
        Ok(())
    }

    /// Tells all writers that the source is about to sleep, so that they wake it. Returns true if a
    /// ring already has input.
    pub(super) fn announce_sleep(&mut self) -> bool {
        self.asleep = true;
        let has_input = |ring: &mut WriterRing| ring.input.announce_sleep().unwrap_or(true);
        // Every writer must be notified, even if another ring has input.
        self.list.iter_mut().filter_map(|ring| has_input(ring).then_some(())).count() > 0
    }

    /// Returns true if at least one writer was accepted and all writers have left, including those
    /// whose rings the thread has not accepted yet.
    pub(super) fn has_no_writers_left(&self) -> bool {
        let has_no_arrivals = || {
            self.shared.accept_offered_rings();
            self.shared.lock().is_empty()
        };
        self.had_writer && self.list.is_empty() && has_no_arrivals()
    }

    /// Returns the descriptor that becomes readable when new blocks or writers arrive.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Stops accepting writers, and returns the number of blocks that writers have published and
    /// the source has not read. Includes writers whose rings the source has not adopted.
    pub(super) fn finish(&mut self) -> u64 {
        self.stop();
        self.shared.accept_offered_rings();
        let rings = self.list.drain(..).map(|ring| ring.input);
        rings.chain(std::mem::take(&mut *self.shared.lock())).map(count_unread).sum()
    }

    /// Ends the thread and waits until it has exited.
    fn stop(&mut self) {
        self.shared.stop.notify();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has already been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Adds a descriptor to an epoll instance. The kernel removes the descriptor from the instance when
/// the descriptor is closed.
fn watch_descriptor(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> sys::Result<()> {
    let data = epoll::EventData::new_u64(0);
    epoll::add(epoll, fd, data, epoll::EventFlags::IN)
        .map_err(|e| sys::Error::new("epoll_ctl", "a writer", e.raw_os_error()))
}

impl AcceptedRings {
    /// Accepts the rings of all writers that have offered them, and notifies the source. Does not
    /// block.
    fn accept_offered_rings(&self) {
        // The lock is held while a ring is accepted, so that each offered ring is either in the
        // inbox or in `inputs` for a thread that holds the lock.
        let accept_next = || {
            let mut inputs = self.lock();
            let arrival = self.inbox.try_accept();
            arrival.map(|arrival| inputs.push(arrival.input))
        };
        while accept_next().is_some() {
            self.arrival_event.notify();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Input>> {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts rings for the source until the source stops.
fn accept_rings(arrivals: &AcceptedRings) {
    loop {
        arrivals.accept_offered_rings();
        if arrivals.inbox.wait_for_writer(arrivals.stop.as_fd()) {
            return;
        }
    }
}

/// Returns the number of blocks that a writer has published and this source has not read yet.
fn count_unread(input: Input) -> u64 {
    let unread = input.writer_counts().blocks.saturating_sub(input.counts().blocks);
    // The writer's count is not validated, and a sum of such counts must not overflow.
    unread.min(u64::from(u32::MAX))
}
