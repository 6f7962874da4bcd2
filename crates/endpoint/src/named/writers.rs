//! The writers of a `buffer`: a thread that accepts them, and one descriptor for all of them.
//!
//! A writer that has connected is not one yet: its offer may come later, or never. So a thread
//! waits for offers and hands over the ends that they open; the source never waits for a writer.

use buffer::name::Inbox;
use buffer::stream::Input;
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use sys::eventfd::EventFd;

/// The rings that are read, and those that come.
pub(super) struct Writers {
    pub(super) list: Vec<Input>,
    shared: Arc<Arrivals>,
    thread: Option<JoinHandle<()>>,
    /// The descriptors of all rings and of `shared.came`.
    all: OwnedFd,
    /// True once a writer has come.
    any: bool,
    asleep: bool,
}

/// The port between the thread and the source.
struct Arrivals {
    inputs: Mutex<Vec<Input>>,
    came: EventFd,
    stop: EventFd,
}

impl Writers {
    /// Starts the thread. Fails if the kernel refuses it or a descriptor.
    pub(super) fn new(inbox: Inbox) -> sys::Result<Self> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC);
        let all = all.map_err(|e| sys::Error::new("epoll_create1", "", e.raw_os_error()))?;
        let (came, stop) = (EventFd::new()?, EventFd::new()?);
        let shared = Arc::new(Arrivals { inputs: Mutex::default(), came, stop });
        watch(&all, shared.came.as_fd())?;
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("writers".to_owned());
        let thread = thread
            .spawn(move || accept(&inbox, &of_thread))
            .map_err(|e| sys::Error::new("clone", "a thread", e.raw_os_error().unwrap_or(0)))?;
        let thread = Some(thread);
        Ok(Self { list: Vec::new(), shared, thread, all, any: false, asleep: false })
    }

    /// Announces to all writers that the source is awake, and takes those that have come.
    pub(super) fn wake(&mut self) -> sys::Result<()> {
        if std::mem::take(&mut self.asleep) {
            for input in &mut self.list {
                // A false wake-up only costs a look at an empty ring.
                let _ = input.wake(true);
            }
        }
        if !self.shared.came.clear() {
            return Ok(());
        }
        let mut came = self.shared.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        for input in came.drain(..) {
            watch(&self.all, input.as_fd())?;
            self.any = true;
            self.list.push(input);
        }
        Ok(())
    }

    /// Announces to all writers that the source sleeps; returns true if one has written after all.
    pub(super) fn fall_asleep(&mut self) -> bool {
        self.asleep = true;
        let has_something = |input: &mut Input| input.fall_asleep().unwrap_or(true);
        // Each of them must know, whatever the others have.
        self.list.iter_mut().filter_map(|input| has_something(input).then_some(())).count() > 0
    }

    /// Returns true if there were writers, and none is left.
    pub(super) fn have_left(&self) -> bool {
        let none_comes =
            || self.shared.inputs.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        self.any && self.list.is_empty() && none_comes()
    }

    /// Returns the descriptor that becomes readable with new blocks or writers.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    /// Ends the thread: no writer comes any more.
    pub(super) fn stop(&mut self) {
        self.shared.stop.notify();
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Adds a descriptor to those of an epoll instance; it leaves when it is closed.
fn watch(all: &OwnedFd, fd: BorrowedFd<'_>) -> sys::Result<()> {
    let data = epoll::EventData::new_u64(0);
    epoll::add(all, fd, data, epoll::EventFlags::IN)
        .map_err(|e| sys::Error::new("epoll_ctl", "a writer", e.raw_os_error()))
}

/// Hands over the writers that come until the source stops.
fn accept(inbox: &Inbox, arrivals: &Arrivals) {
    while let Some(arrival) = inbox.accept_until(arrivals.stop.as_fd()) {
        arrivals.inputs.lock().unwrap_or_else(PoisonError::into_inner).push(arrival.input);
        arrivals.came.notify();
    }
}
