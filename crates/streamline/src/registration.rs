//! The registration of a run with this machine's daemon.

use crate::error::OpenError;
use crate::options::Options;
use crate::prepared::PreparedRequest;
use engine::live::PathHandle;
use member::client::{Client, ClientError};
use member::protocol::PathEnd;
use member::worker::{PathInfo, Reporter, Worker, WorkerGroup};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use sys::poll::PollSet;
use sys::rollback::StepResource;

/// The registration of a run with the daemon. It is empty if the run is not registered.
#[derive(Debug, Default)]
pub(crate) struct Registration {
    worker: Option<Worker>,
    /// Poll set that is readable when the caller or a client has stopped the run. The set contains
    /// the stop descriptors of both; `None` unless both exist.
    stop: Option<PollSet>,
}

impl Registration {
    /// Registers paths that are about to run.
    ///
    /// If there is no daemon, or if the daemon refuses, the run continues unregistered, unless the
    /// options require registration or set a name. Fails if they do so for an embedded run.
    pub(crate) fn register(
        prepared: &PreparedRequest,
        (lives, group): (Vec<PathHandle>, Option<Arc<dyn WorkerGroup>>),
        options: &Options,
    ) -> Result<Self, OpenError> {
        if options.embedded {
            if options.name.is_some() || options.registered {
                let why = "a run that is embedded does not register with the daemon: leave out \
                           either this option or the name";
                return Err(OpenError::Unfit(why.to_owned()));
            }
            return Ok(Self::default());
        }
        let path = PathInfo {
            name: options.name.clone(),
            log: options.log.clone(),
            timed: options.timed,
            kernel: Some(prepared.machine.kernel.clone()),
            group,
            ..PathInfo::new(&prepared.text, &prepared.plan)
        };
        let (steps, notices) = (&options.steps, &options.notices);
        let announced = steps.announce_creation(StepResource::Entry, "a connection to the daemon");
        let client = announced.map_err(ClientError::from).and_then(|()| Client::find(None));
        match client.and_then(|client| Worker::start(client, path, lives, steps)) {
            Ok(worker) => {
                if worker.number().is_none() {
                    notices.raise_note(
                        "the daemon ended while this path registered: it will register with the \
                         next one",
                    );
                }
                steps.announce_step("the path is registered");
                Ok(Self { worker: Some(worker), stop: None })
            }
            Err(error) if options.registered || options.name.is_some() => Err(error.into()),
            Err(ClientError::NoDaemon(_)) => Ok(Self::default()),
            Err(error) => {
                notices.raise_note(&format!("this path is not registered: {error}"));
                Ok(Self::default())
            }
        }
    }

    /// Returns the path's number in the daemon's registry, or `None` if it is not registered.
    pub(crate) const fn number(&self) -> Option<u32> {
        match &self.worker {
            Some(worker) => worker.number(),
            None => None,
        }
    }

    /// Returns a handle with which the run reports events for the daemon's log.
    pub(crate) fn reporter(&self) -> Reporter {
        self.worker.as_ref().map(Worker::reporter).unwrap_or_default()
    }

    /// Returns a descriptor that becomes readable when the caller or a client stops the run, or
    /// `None` if neither can. `caller_stop` is the descriptor with which the caller stops the run.
    pub(crate) fn stop_descriptor<'a>(
        &'a mut self,
        caller_stop: Option<BorrowedFd<'a>>,
    ) -> sys::Result<Option<BorrowedFd<'a>>> {
        match (&self.worker, caller_stop) {
            (None, caller_stop) => Ok(caller_stop),
            (Some(worker), None) => Ok(Some(worker.stop_descriptor())),
            (Some(worker), Some(caller_stop)) => {
                let both: &PollSet =
                    self.stop.insert(PollSet::new(&[caller_stop, worker.stop_descriptor()])?);
                Ok(Some(both.as_fd()))
            }
        }
    }

    /// Sends the exit status and the final report to the clients that follow the path. Blocks for a
    /// limited time until the clients have read both.
    pub(crate) fn send_exit_status(self, status: u8, report: String) {
        if let Some(worker) = self.worker {
            worker.send_exit_status(PathEnd { status, report });
        }
    }
}
