//! Threads for the spaces of a path. They start with the path or, for added spaces, while it runs.

use runtime::control::PathControl;
use runtime::space::{Space, SpaceResults};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use sys::eventfd::EventFd;

/// An ended space: the index of its path, the index of the space in the path, and its results,
/// which are `None` if the space panicked.
pub(crate) type EndedSpace = (usize, usize, Option<SpaceResults>);

/// A handle that starts threads for the spaces of a path, before or while the path runs.
#[derive(Clone, Debug)]
pub(crate) struct ThreadStarter {
    pub(crate) number: usize,
    /// Index, in the path, of the next space for which a thread is started.
    pub(crate) next: Arc<AtomicUsize>,
    pub(crate) control: Arc<PathControl>,
    pub(crate) ended: mpsc::Sender<EndedSpace>,
    pub(crate) done: Arc<EventFd>,
    pub(crate) running: Arc<AtomicUsize>,
    /// Processors on which the spaces that start with the path may run. If the list is empty, all
    /// processors are permitted.
    pub(crate) near: Arc<[usize]>,
}

/// A started thread that waits for the space that it will run. Dropping it without a space ends and
/// joins the thread.
#[derive(Debug)]
pub(crate) struct SpaceThread {
    give: Option<mpsc::Sender<Space>>,
    handle: Option<JoinHandle<()>>,
    running: Arc<AtomicUsize>,
}

impl SpaceThread {
    /// Passes the space to the waiting thread, which runs it, and detaches the thread.
    pub(crate) fn run_space(mut self, space: Space) {
        // The counter is incremented before the space can end, so that a waiter for all spaces
        // includes this space.
        self.running.fetch_add(1, Ordering::Relaxed);
        self.handle = None;
        space.report_progress();
        // The thread waits for this message, so the send succeeds.
        if let Some(give) = self.give.take() {
            let _ = give.send(space);
        }
    }
}

impl Drop for SpaceThread {
    fn drop(&mut self) {
        self.give = None;
        // A thread without a space does nothing that could fail.
        let _ = self.handle.take().map(JoinHandle::join);
    }
}

impl ThreadStarter {
    /// Starts a thread for a space that a change adds to the running path. The space gets the next
    /// free space index of the path.
    pub(crate) fn start_added_thread(&self, name: String) -> sys::Result<SpaceThread> {
        let anywhere = Self { near: Arc::default(), ..self.clone() };
        anywhere.start(name, self.next.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn start(&self, name: String, place: usize) -> sys::Result<SpaceThread> {
        let Self { number, control, ended, done, near, .. } = self.clone();
        let (give, comes) = mpsc::channel::<Space>();
        let body = move || {
            let Ok(space) = comes.recv() else { return };
            IS_SPACE_THREAD.set(true);
            if !near.is_empty() {
                // The kernel refuses if the process has lost these processors meanwhile. The thread
                // then runs on any processor.
                let _ = sys::process::pin_to_processors(&near);
            }
            let results = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| space.run()));
            if results.is_err() {
                control.stop();
            }
            // The receiver is gone only if the process is ending.
            let _ = ended.send((number, place, results.ok()));
            done.notify();
        };
        let refused = |error: std::io::Error| {
            sys::Error::new("clone", "a thread", error.raw_os_error().unwrap_or(0))
        };
        let handle = std::thread::Builder::new().name(name).spawn(body).map_err(refused)?;
        let (give, handle) = (Some(give), Some(handle));
        Ok(SpaceThread { give, handle, running: Arc::clone(&self.running) })
    }
}

thread_local! {
    /// True in a thread that runs a space.
    static IS_SPACE_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Returns true in a thread that runs a space. The path reports the panics of such a thread.
#[must_use]
pub fn is_space_thread() -> bool {
    IS_SPACE_THREAD.get()
}
