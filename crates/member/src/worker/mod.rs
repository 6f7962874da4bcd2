//! The service `io.streamline.path`, which a path's process provides.
//!
//! One thread, which is not a space, registers the path with the daemon, accepts connections that
//! the daemon passes on, and replies to calls by sending commands to the spaces ([`engine::live`]).
//! If the daemon exits, the thread registers the path with the next daemon. The path itself does
//! not depend on the service.
//!
//! The daemon admits only clients that belong to the path's user or to root. Nevertheless, the
//! thread never blocks on a client, and disconnects a client that reads its replies too slowly.

mod calls;
mod counters;
mod latest_inspection;
mod losses;
mod nodes;
mod path;
mod registration;
mod service;
mod spaces;
mod subtree_move;
mod taps;
mod updates;

pub use counters::ledger_counters;
pub use path::{PathInfo, WorkerGroup};
pub use registration::Reporter;

use crate::client::{Client, ClientError};
use crate::protocol::{PathDescription, PathEnd, PathEvent};
use engine::live::PathHandle;
use registration::{Registration, SharedWorkerState};
use service::Service;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};
use sys::eventfd::EventFd;
use sys::rollback::{RollbackLog, StepResource};

/// A handle to the thread that serves a path. Dropping the handle stops and joins the thread.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<SharedWorkerState>,
    thread: Option<JoinHandle<()>>,
    number: Option<u32>,
}

impl Worker {
    /// Registers a path and starts a thread that serves its clients. Blocks until the daemon
    /// replies.
    ///
    /// If the daemon exits during the call or does not reply in time, the thread registers the path
    /// with the next daemon. For a path with a name, the call fails instead, because names must be
    /// unique.
    pub fn start(
        client: Client,
        path: PathInfo,
        lives: Vec<PathHandle>,
        steps: &RollbackLog,
    ) -> Result<Self, ClientError> {
        steps.announce_creation(
            StepResource::Descriptor,
            "what the process of a path answers with",
        )?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        let shared = SharedWorkerState {
            stop: EventFd::new()?,
            wake: EventFd::new()?,
            ended: Mutex::new(None),
            reports: Mutex::default(),
        };
        let shared = Arc::new(shared);
        let reporter = Reporter(Some(Arc::clone(&shared)));
        if let Some(live) = lives.first() {
            live.set_adaptation_listener(move |what| reporter.report(PathEvent::Adapted, what));
        }
        steps.announce_creation(StepResource::Entry, "a path in the register")?;
        let directory = client.directory().to_owned();
        let registration =
            match Registration::new(client, &path.registration_parameters(None, started)) {
                Err(ClientError::Disconnected | ClientError::Timeout) if path.name.is_none() => {
                    None
                }
                tied => Some(tied?),
            };
        let number = registration.as_ref().map(|registration| registration.number);
        let about = PathDescription {
            number: number.unwrap_or_default(),
            name: path.name.clone(),
            line: path.line.clone(),
            process: std::process::id(),
            started,
            log: path.log.as_ref().map(|log| log.display().to_string()),
            nodes: path.nodes.clone(),
            links: path.links.clone(),
        };
        let answering =
            Service::new(Arc::clone(&shared), path, about, lives, (directory, registration))?;
        steps.announce_creation(StepResource::Thread, "answers")?;
        let thread = std::thread::Builder::new().name("answers".to_owned());
        let thread = thread.spawn(move || answering.run()).map_err(|error| {
            sys::Error::new("clone", "a thread", error.raw_os_error().unwrap_or(0))
        })?;
        Ok(Self { shared, thread: Some(thread), number })
    }

    /// Returns the number that the first daemon assigned to the path, or `None` if that daemon
    /// exited during the registration or did not reply in time.
    #[must_use]
    pub const fn number(&self) -> Option<u32> {
        self.number
    }

    /// Returns a handle with which the path reports events for the daemon's log.
    #[must_use]
    pub fn reporter(&self) -> Reporter {
        Reporter(Some(Arc::clone(&self.shared)))
    }

    /// Returns a descriptor that becomes readable when a client stops the path.
    #[must_use]
    pub fn stop_descriptor(&self) -> BorrowedFd<'_> {
        self.shared.stop.as_fd()
    }

    /// Sends the path's exit status to all followers, and ends the registration. Blocks for at most
    /// 2 s until the readers of taps have read everything, and then for at most 500 ms until the
    /// followers have read the status.
    pub fn send_exit_status(mut self, ended: PathEnd) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        self.join();
    }

    fn join(&mut self) {
        self.shared
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(PathEnd::default);
        self.shared.wake.notify();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread cannot be reported here.
            let _ended = thread.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.join();
    }
}
