//! Stop requests and position requests: a flag and a counter that every space of a path polls, and
//! the doorbells that wake sleeping spaces.
//!
//! A position request increments a shared counter, which each space loads once per pass. When the
//! counter has changed, the space stores the current counts of its sources. A busy space does so
//! only in its next pass, so readers use the latest stored counts and never wait.

use buffer::signal::Doorbell;
use endpoint::SourceCounters;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::eventfd::EventFd;

/// State through which a path controls its spaces, which poll it: stop requests, position requests,
/// and events.
#[derive(Debug)]
pub struct PathControl {
    stopped: Arc<AtomicBool>,
    /// Number of position requests so far, modulo 2³². A change tells each space to store the
    /// positions of its sources.
    requests: AtomicU32,
    answers: Mutex<Vec<SourceProgress>>,
    doorbells: Mutex<Vec<Arc<Doorbell>>>,
    wake: EventFd,
    /// True if a listener has been set and still waits for the first block from any source.
    awaits_blocks: AtomicBool,
    listener: Mutex<Listener>,
    /// True if `input_event` contains an event to notify.
    awaits_input: AtomicBool,
    /// The event to notify after the next pass with input, or `None` if no event is set.
    input_event: Mutex<Option<Arc<EventFd>>>,
}

/// An event that a space reports to the listener of its path ([`PathControl::set_listener`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlEvent {
    /// The first blocks of the path have arrived, from any source.
    FirstBlocks,
    /// A sink's write has blocked a thread that also reads a source.
    Stalled(SinkStall),
}

/// A slow write of a sink. It blocked a thread that also reads a source, while blocks waited at
/// this source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SinkStall {
    /// Node number of the sink.
    pub node: usize,
    /// Time for which the write blocked the thread, in nanoseconds of wall time.
    pub write_ns: u64,
    /// Number of blocks that were waiting at the source when the stall was reported.
    pub waiting_blocks: u64,
}

/// The callback for events that spaces report; it must not block.
#[derive(Default)]
struct Listener(Option<Box<dyn Fn(ControlEvent) + Send + Sync>>);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.0.is_some()).finish()
    }
}

/// The latest reported position of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceProgress {
    /// Node number of the source.
    pub planned: usize,
    /// Name of the source.
    pub name: String,
    /// Counts of the source when it last answered a position request.
    pub counters: SourceCounters,
    /// True if the source has answered the latest position request, or has ended. False while the
    /// source's space cannot answer, because a full ring or a slow sink blocks it.
    pub is_fresh: bool,
    /// True if the counts are final because the source has ended.
    pub is_final: bool,
}

impl PathControl {
    /// Creates the control state for a path that is not stopped. Fails if no eventfd can be
    /// created.
    pub fn new() -> sys::Result<Self> {
        Ok(Self {
            stopped: Arc::default(),
            requests: AtomicU32::new(0),
            answers: Mutex::new(Vec::new()),
            doorbells: Mutex::new(Vec::new()),
            wake: EventFd::new()?,
            awaits_blocks: AtomicBool::new(false),
            listener: Mutex::default(),
            awaits_input: AtomicBool::new(false),
            input_event: Mutex::default(),
        })
    }

    /// Sets the callback for events that spaces report; it must not block.
    pub fn set_listener(&self, listener: impl Fn(ControlEvent) + Send + Sync + 'static) {
        let mut place = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Listener(Some(Box::new(listener)));
        // Relaxed suffices: a space that reads the flag locks the listener next.
        self.awaits_blocks.store(true, Ordering::Relaxed);
    }

    /// Reports [`ControlEvent::FirstBlocks`] to the listener if these are the first blocks since
    /// the listener was set. All other calls cost one load.
    #[inline]
    pub fn report_blocks_arrived(&self) {
        if self.awaits_blocks.load(Ordering::Relaxed) {
            self.report_first_blocks();
        }
    }

    #[cold]
    fn report_first_blocks(&self) {
        if self.awaits_blocks.swap(false, Ordering::Relaxed) {
            self.report(ControlEvent::FirstBlocks);
        }
    }

    /// Notifies `event` once, after the next pass of any space that has input. Replaces the event
    /// of an earlier call.
    pub fn set_input_event(&self, event: &Arc<EventFd>) {
        *self.lock_input_event() = Some(Arc::clone(event));
        // Relaxed suffices: a mutex guards the event. A space may miss the flag in its current
        // pass, but finishes that pass before it executes any command that is sent after this call.
        self.awaits_input.store(true, Ordering::Relaxed);
    }

    /// Notifies the event that [`Self::set_input_event`] set. Called after each pass with input;
    /// costs one load if no event is set.
    #[inline]
    pub(crate) fn notify_input_event(&self) {
        if self.awaits_input.load(Ordering::Relaxed) {
            self.report_input();
        }
    }

    #[cold]
    fn report_input(&self) {
        self.awaits_input.store(false, Ordering::Relaxed);
        if let Some(event) = self.lock_input_event().take() {
            event.notify();
        }
    }

    fn lock_input_event(&self) -> MutexGuard<'_, Option<Arc<EventFd>>> {
        self.input_event.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes an event to the listener, if a listener is set.
    pub(crate) fn report(&self, event: ControlEvent) {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = &listener.0 {
            listener(event);
        }
    }

    /// Adds a doorbell that stop and position requests notify.
    pub fn add_doorbell(&self, doorbell: &Arc<Doorbell>) {
        self.doorbells.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(doorbell));
    }

    /// Replaces the doorbells that stop and position requests notify.
    pub fn set_doorbells(&self, doorbells: impl Iterator<Item = Arc<Doorbell>>) {
        *self.doorbells.lock().unwrap_or_else(PoisonError::into_inner) = doorbells.collect();
    }

    /// Requests that all sources of the path stop. Blocks that are already in the path are drained.
    pub fn stop(&self) {
        // SYNC POINT: stop; pairs with the Acquire in `is_stopped`.
        self.stopped.store(true, Ordering::Release);
        self.notify_spaces();
        self.wake.notify();
    }

    /// Returns the flag that becomes true when the path is stopped, for use by sinks that wait.
    #[must_use]
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stopped)
    }

    /// Returns true if the path has been stopped.
    #[inline]
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        // SYNC POINT: stop; pairs with the Release in `stop`.
        self.stopped.load(Ordering::Acquire)
    }

    /// Requests the position of every source, without waiting for the answers.
    pub fn request_positions(&self) {
        for answer in self.lock_positions().iter_mut() {
            answer.is_fresh = answer.is_final;
        }
        // Relaxed suffices: the counter guards no other memory, and the doorbells wake sleeping
        // spaces.
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.notify_spaces();
    }

    /// Returns the number of position requests so far, modulo 2³². Each space polls this number,
    /// and stores the positions of its sources when the number has changed.
    #[inline]
    #[must_use]
    pub fn position_request_count(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Stores the position of a source, replacing the source's previous position. `planned` is the
    /// node number of the source. `last` is true if the source has ended.
    pub fn store_position(&self, planned: usize, name: &str, counters: SourceCounters, last: bool) {
        let mut answers = self.lock_positions();
        answers.retain(|answer| answer.planned != planned);
        answers.push(SourceProgress {
            planned,
            name: name.to_owned(),
            counters,
            is_fresh: true,
            is_final: last,
        });
    }

    /// Returns the latest reported position of each source, in the order of node numbers. Does not
    /// wait for answers.
    #[must_use]
    pub fn positions(&self) -> Vec<SourceProgress> {
        let mut answers = self.lock_positions().clone();
        answers.sort_by_key(|answer| answer.planned);
        answers
    }

    fn lock_positions(&self) -> MutexGuard<'_, Vec<SourceProgress>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies the doorbells of all spaces of the path.
    pub fn notify_spaces(&self) {
        for doorbell in self.doorbells.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            doorbell.notify();
        }
    }
}

impl AsFd for PathControl {
    /// Returns a descriptor that becomes readable when the path is stopped.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
