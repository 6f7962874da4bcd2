//! A run that is registered: where a daemon is, it is told of the path and answers for it; in the
//! background, whoever started it is told how that went.

use crate::arguments::RunArguments;
use crate::status::Status;
use crate::terminal;
use engine::live::Live;
use member::client::{Client, ClientError};
use member::protocol::{Ended, Number};
use member::worker::{Joint, Registered, Worker};
use pipeline::plan::{Machine, Plan};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use sys::poll::Group;
use sys::steps::{Makes, Steps};

/// What a run has to do with a daemon.
#[derive(Debug)]
pub(crate) struct Member {
    worker: Option<Worker>,
    /// The first signal, or the wish of somebody that the path ends.
    stop: Option<Group>,
}

/// Whoever started a path in the background, and waits to hear that it runs.
#[derive(Debug)]
pub(crate) struct Starter(Option<OwnedFd>);

impl Starter {
    /// Nobody waits.
    pub(crate) const NOBODY: Self = Self(None);

    /// Leaves the terminal, if this is a path in the background.
    pub(crate) fn leave(given: &RunArguments) -> Result<Self, Status> {
        if !given.background {
            return Ok(Self(None));
        }
        let left = sys::process::leave_terminal().and_then(|()| sys::process::empty_input());
        left.map(|socket| Self(Some(socket))).map_err(|error| super::refused(&error))
    }

    /// Tells that it runs.
    fn tell(self, number: u32) {
        if let Some(socket) = self.0 {
            let text = serde_json::to_vec(&Number { number }).unwrap_or_default();
            // Who does not listen any more need not know.
            let _ = sys::descriptor::send(socket, &text, &[]);
        }
    }
}

impl Member {
    /// Registers paths that are about to run.
    pub(crate) fn begin(
        (line, plan): (&str, &Plan),
        machine: &Machine,
        (lives, joint): (Vec<Live>, Option<Arc<dyn Joint>>),
        given: &RunArguments,
        (starter, steps): (Starter, &Steps),
    ) -> Result<Self, Status> {
        let nobody = Self { worker: None, stop: None };
        if given.embedded {
            return Ok(nobody);
        }
        let registered = Registered {
            name: given.path_name.clone(),
            log: given.log.clone(),
            timed: given.is_timed(),
            kernel: Some(machine.kernel.clone()),
            joint,
            ..Registered::new(line, plan)
        };
        let begun = steps.take(Makes::Entry, "a connection to the daemon");
        let begun = begun.map_err(ClientError::from).and_then(|()| Client::find(None));
        let begun = begun.and_then(|client| Worker::begin(client, registered, lives, steps));
        match begun {
            Ok(worker) => {
                match worker.number() {
                    Some(number) => starter.tell(number),
                    None => terminal::note(
                        "the daemon ended while it was told of this path: the next one will be",
                    ),
                }
                steps.pass("the path is registered");
                Ok(Self { worker: Some(worker), stop: None })
            }
            // Who wants a name, or to run in the background, wants to be registered.
            Err(error) if given.background || given.path_name.is_some() => {
                Err(super::complain(&error))
            }
            Err(ClientError::Nobody(_)) => Ok(nobody),
            Err(error) => {
                terminal::note(&format!("this path is not registered: {error}"));
                Ok(nobody)
            }
        }
    }

    /// What ends the run when it can be read.
    pub(crate) fn stop<'a>(
        &'a mut self,
        signals: BorrowedFd<'a>,
    ) -> Result<BorrowedFd<'a>, Status> {
        let Some(worker) = &self.worker else { return Ok(signals) };
        let both = Group::new(&[signals, worker.stopped()]);
        let both = both.map_err(|error| super::refused(&error))?;
        let both: &Group = self.stop.insert(both);
        Ok(both.as_fd())
    }

    /// Tells those who follow how it ended.
    pub(crate) fn end(self, status: Status, report: String) {
        if let Some(worker) = self.worker {
            worker.end(Ended { status: status.number(), report });
        }
    }
}
