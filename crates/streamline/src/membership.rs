//! The registration of a run with the daemon of this machine.

use crate::error::OpenError;
use crate::options::Options;
use crate::prepared::Prepared;
use engine::live::Live;
use member::client::{Client, ClientError};
use member::protocol::Ended;
use member::worker::{Joint, Registered, Worker};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use sys::poll::PollSet;
use sys::steps::Resource;

/// The registration of a run, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Member {
    worker: Option<Worker>,
    /// The caller's wish that the run ends, or the daemon's.
    stop: Option<PollSet>,
}

impl Member {
    /// Registers paths that are about to run.
    pub(crate) fn begin(
        prepared: &Prepared,
        (lives, joint): (Vec<Live>, Option<Arc<dyn Joint>>),
        options: &Options,
    ) -> Result<Self, OpenError> {
        if options.embedded {
            return Ok(Self::default());
        }
        let registered = Registered {
            name: options.name.clone(),
            log: options.log.clone(),
            timed: options.timed,
            kernel: Some(prepared.machine.kernel.clone()),
            joint,
            ..Registered::new(&prepared.text, &prepared.plan)
        };
        let (steps, notices) = (&options.steps, &options.notices);
        let begun = steps.take(Resource::Entry, "a connection to the daemon");
        let begun = begun.map_err(ClientError::from).and_then(|()| Client::find(None));
        let begun = begun.and_then(|client| Worker::begin(client, registered, lives, steps));
        match begun {
            Ok(worker) => {
                if worker.number().is_none() {
                    notices.note(
                        "the daemon ended while it was told of this path: the next one will be",
                    );
                }
                steps.checkpoint("the path is registered");
                Ok(Self { worker: Some(worker), stop: None })
            }
            Err(error) if options.registered || options.name.is_some() => Err(error.into()),
            Err(ClientError::Nobody(_)) => Ok(Self::default()),
            Err(error) => {
                notices.note(&format!("this path is not registered: {error}"));
                Ok(Self::default())
            }
        }
    }

    /// The number by which the daemon knows it.
    pub(crate) const fn number(&self) -> Option<u32> {
        match &self.worker {
            Some(worker) => worker.number(),
            None => None,
        }
    }

    /// Becomes readable when the run is to end: for the caller's reason, or the daemon's.
    pub(crate) fn stop<'a>(
        &'a mut self,
        wish: Option<BorrowedFd<'a>>,
    ) -> sys::Result<Option<BorrowedFd<'a>>> {
        match (&self.worker, wish) {
            (None, wish) => Ok(wish),
            (Some(worker), None) => Ok(Some(worker.stopped())),
            (Some(worker), Some(wish)) => {
                let both: &PollSet = self.stop.insert(PollSet::new(&[wish, worker.stopped()])?);
                Ok(Some(both.as_fd()))
            }
        }
    }

    /// Tells those who follow the path how it ended.
    pub(crate) fn end(self, status: u8, report: String) {
        if let Some(worker) = self.worker {
            worker.end(Ended { status, report });
        }
    }
}
