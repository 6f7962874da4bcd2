//! `streamline stop`: stops paths like ^C. Their sources end, and blocks already read are
//! processed.

use super::connect::{connect_daemon, wait_readable, watch_signals};
use crate::arguments::paths::StopArguments;
use crate::failure::report_client_error;
use crate::status::Status;
use crate::terminal;
use member::client::{Client, ClientError, PathClient, QUERY_TIMEOUT, STOP, escape_hidden};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

/// Interval between two reports of a draining path. The reports also show that the path's process
/// still replies.
const UPDATE_INTERVAL: Duration = Duration::from_secs(60);

/// Stops all named paths in parallel. Returns the exit status of the last failure.
pub(super) fn run(given: &StopArguments) -> Result<Status, Status> {
    let client = connect_daemon()?;
    let mut stop_set = StopSet { all: Vec::new(), status: Status::Done };
    if given.kill {
        for path in &given.paths {
            let killed = client.connect(path).and_then(|to| to.kill().map(|()| to));
            stop_set.add_reply(path, killed);
        }
        return Ok(wait_exit(stop_set));
    }
    if given.no_wait {
        stop_all(&client, given.paths.iter(), &mut stop_set);
        return Ok(stop_set.status);
    }
    for path in &given.paths {
        // The subscription comes first, because the path may end immediately.
        let follows =
            client.connect(path).and_then(|to| to.subscribe(UPDATE_INTERVAL).map(|()| to));
        stop_set.add_reply(path, follows);
    }
    let paths: Vec<&String> = stop_set.all.iter().map(|(path, _)| *path).collect();
    let stopped = stop_all(&client, paths.into_iter(), &mut stop_set);
    let mut stopped = stopped.into_iter();
    stop_set.all.retain(|_| stopped.next() == Some(true));
    wait_drain(stop_set)
}

/// The paths being stopped, and the exit status so far.
struct StopSet<'p> {
    all: Vec<(&'p String, PathClient)>,
    status: Status,
}

impl<'p> StopSet<'p> {
    fn add_reply(&mut self, path: &'p String, to: Result<PathClient, ClientError>) {
        match to {
            Ok(to) => self.all.push((path, to)),
            Err(error) => self.record_failure(path, &error),
        }
    }

    fn record_failure(&mut self, path: &str, error: &ClientError) {
        self.status = report_client_error(error);
        if *error == ClientError::Timeout {
            terminal::print_note(&format!(
                "`streamline stop --kill {path}` ends path {path} at once"
            ));
        }
    }
}

/// Stops paths in parallel. Returns true for each path that will end or has just ended.
fn stop_all<'p>(
    client: &Client,
    paths: impl Iterator<Item = &'p String>,
    stop_set: &mut StopSet<'_>,
) -> Vec<bool> {
    let paths: Vec<(u32, String)> = paths.map(|path| (0, path.clone())).collect();
    let answers = client.query_all(&paths, &[STOP], QUERY_TIMEOUT, |_, _| Ok(()));
    let will = |((_, path), answer): (&(u32, String), Result<(), ClientError>)| match answer {
        Ok(()) | Err(ClientError::PathEnded(_)) => true,
        Err(error) => {
            stop_set.record_failure(path, &error);
            false
        }
    };
    paths.iter().zip(answers).map(will).collect()
}

/// Waits until all paths have ended and prints their reports.
fn wait_drain(mut stop_set: StopSet<'_>) -> Result<Status, Status> {
    let signals = watch_signals()?;
    let mut draining = StopSet { all: Vec::new(), status: stop_set.status };
    while !stop_set.all.is_empty() {
        let both = stop_set.all.iter().flat_map(|(_, to)| [to.as_fd(), to.process()]);
        let descriptors: Vec<BorrowedFd<'_>> = both.collect();
        let Some(ready) = wait_readable(&descriptors, signals, None) else {
            let still = stop_set.all.iter().chain(&draining.all);
            still.for_each(|(path, _)| terminal::print_note(&format!("{path} still drains")));
            return Err(Status::Failed);
        };
        let ready: Vec<bool> = ready.chunks(2).map(|pair| pair.contains(&true)).collect();
        for ((path, to), ready) in std::mem::take(&mut stop_set.all).into_iter().zip(ready) {
            // The last update remains readable after the process has ended.
            match ready.then(|| to.next_update()) {
                None => stop_set.all.push((path, to)),
                Some(Ok(followed)) => match followed.ended {
                    None => stop_set.all.push((path, to)),
                    Some(ended) => {
                        terminal::print_note(&format!("{path}: {}", escape_hidden(&ended.report)));
                        draining.all.push((path, to));
                    }
                },
                // Only a killed process ends without a last update.
                Some(Err(ClientError::Disconnected)) => draining.all.push((path, to)),
                Some(Err(error)) => draining.status = report_client_error(&error),
            }
        }
    }
    Ok(wait_exit(draining))
}

/// Waits until the processes have exited.
fn wait_exit(stop_set: StopSet<'_>) -> Status {
    let StopSet { all, status } = stop_set;
    let Ok(signals) = watch_signals() else { return Status::Failed };
    for (path, to) in &all {
        if wait_readable(&[to.process()], signals, None).is_none() {
            terminal::print_note(&format!("the process of {path} is still there"));
            return Status::Failed;
        }
    }
    status
}
