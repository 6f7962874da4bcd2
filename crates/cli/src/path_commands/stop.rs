//! `streamline stop`: stops paths in the same way as ^C. The sources of the paths end, but blocks
//! that the sources have already read are still processed.

use super::connect::{connect_daemon, wait_readable, watch_signals};
use crate::arguments::paths::StopArguments;
use crate::failure::report_client_error;
use crate::status::Status;
use crate::terminal;
use member::client::{
    Client, ClientError, PathClient, QUERY_TIMEOUT, STOP_METHOD, mask_hidden_characters,
};
use member::protocol::PathEnd;
use serde::Serialize;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;
use streamline::report::{json_line, to_object};

/// Interval at which a draining path sends updates, which show that its process still replies.
const UPDATE_INTERVAL: Duration = Duration::from_secs(60);

/// Version of the output format of `stop --json`.
const JSON_VERSION: u32 = 1;

/// Stops all named paths in parallel. Returns the exit status of the last failure, or success if
/// there is none.
pub(super) fn run(arguments: &StopArguments) -> Result<Status, Status> {
    let client = connect_daemon()?;
    let mut stop_set = StopSet::new(arguments);
    let status = stop_paths(&client, arguments, &mut stop_set);
    if !arguments.json {
        return status;
    }
    let object = to_object(&[("version", &JSON_VERSION), ("paths", &stop_set.results)]);
    match (terminal::print_text(&json_line(&object)), status) {
        (Status::Done, status) => status,
        (unprinted, _) => Ok(unprinted),
    }
}

fn stop_paths(
    client: &Client,
    arguments: &StopArguments,
    stop_set: &mut StopSet,
) -> Result<Status, Status> {
    if arguments.kill {
        for place in 0..stop_set.results.len() {
            let path = stop_set.path_name(place);
            let killed = client.connect(&path).and_then(|to| to.kill().map(|()| to));
            stop_set.add_connection(place, killed);
        }
        return Ok(wait_until_exited(stop_set));
    }
    if arguments.no_wait {
        stop_all(client, (0..stop_set.results.len()).collect(), stop_set);
        return Ok(stop_set.status);
    }
    for place in 0..stop_set.results.len() {
        // The subscription must precede the call to stop, because the path may end immediately.
        let path = stop_set.path_name(place);
        let follow = |to: PathClient| to.subscribe_to_totals(UPDATE_INTERVAL, None).map(|()| to);
        let follows = client.connect(&path).and_then(follow);
        stop_set.add_connection(place, follows);
    }
    let places = stop_set.waiting.iter().map(|(place, _)| *place).collect();
    let stopped = stop_all(client, places, stop_set);
    let mut stopped = stopped.into_iter();
    stop_set.waiting.retain(|_| stopped.next() == Some(true));
    wait_until_drained(stop_set)
}

/// The result of `streamline stop` for one path.
#[derive(Serialize, Debug)]
struct StopResult {
    /// Name or number of the path, as specified by the user.
    path: String,
    /// True if the process of the path has exited.
    ended: bool,
    /// Exit status that the path reported, or `None` if it reported none.
    status: Option<u8>,
    /// Report of the path, or `None` if it sent none.
    report: Option<String>,
    /// Reason why the path was not stopped, or `None` if it was stopped.
    error: Option<String>,
}

/// The paths that one call of `streamline stop` stops, with their results and the exit status so
/// far.
struct StopSet {
    /// The results of stopping the paths, in the order of the arguments.
    results: Vec<StopResult>,
    /// Connections to the paths that have not ended, each with the index of the path in `results`.
    waiting: Vec<(usize, PathClient)>,
    status: Status,
    /// True if all results are printed as one JSON object at the end.
    json: bool,
}

impl StopSet {
    fn new(arguments: &StopArguments) -> Self {
        let result = |path: &String| StopResult {
            path: path.clone(),
            ended: false,
            status: None,
            report: None,
            error: None,
        };
        let results = arguments.paths.iter().map(result).collect();
        Self { results, waiting: Vec::new(), status: Status::Done, json: arguments.json }
    }

    fn path_name(&self, place: usize) -> String {
        self.results.get(place).map(|result| result.path.clone()).unwrap_or_default()
    }

    fn add_connection(&mut self, place: usize, to: Result<PathClient, ClientError>) {
        match to {
            Ok(to) => self.waiting.push((place, to)),
            Err(error) => self.record_failure(place, &error),
        }
    }

    fn record_failure(&mut self, place: usize, error: &ClientError) {
        self.status = report_client_error(error);
        let path = self.path_name(place);
        if *error == ClientError::Timeout {
            terminal::print_note(&format!(
                "`streamline stop --kill {path}` ends path {path} at once"
            ));
        }
        if let Some(result) = self.results.get_mut(place) {
            result.error = Some(error.to_string());
        }
    }

    fn record_end(&mut self, place: usize, ended: PathEnd) {
        if !self.json {
            let path = self.path_name(place);
            terminal::print_note(&format!("{path}: {}", mask_hidden_characters(&ended.report)));
        }
        if let Some(result) = self.results.get_mut(place) {
            (result.status, result.report) = (Some(ended.status), Some(ended.report));
        }
    }
}

/// Stops the paths with the indices `places` in [`StopSet::results`], in parallel. Returns a flag
/// for each path: true if the path has accepted the call to stop, or has just ended.
fn stop_all(client: &Client, places: Vec<usize>, stop_set: &mut StopSet) -> Vec<bool> {
    let paths: Vec<(u32, String)> =
        places.iter().map(|place| (0, stop_set.path_name(*place))).collect();
    let answers = client.query_all(&paths, &[STOP_METHOD], QUERY_TIMEOUT, |_, _| Ok(()));
    let will = |(place, answer): (usize, Result<(), ClientError>)| match answer {
        Ok(()) | Err(ClientError::PathEnded(_)) => true,
        Err(error) => {
            stop_set.record_failure(place, &error);
            false
        }
    };
    places.into_iter().zip(answers).map(will).collect()
}

/// Waits until all paths have ended, and prints or stores their reports. If a signal arrives,
/// returns the exit status as an error.
fn wait_until_drained(stop_set: &mut StopSet) -> Result<Status, Status> {
    let signals = watch_signals()?;
    let mut reported = Vec::new();
    while !stop_set.waiting.is_empty() {
        let both = stop_set.waiting.iter().flat_map(|(_, to)| [to.as_fd(), to.pidfd()]);
        let descriptors: Vec<BorrowedFd<'_>> = both.collect();
        let Some(ready) = wait_readable(&descriptors, signals, None) else {
            for (place, _) in stop_set.waiting.iter().chain(&reported) {
                terminal::print_note(&format!("{} still drains", stop_set.path_name(*place)));
            }
            return Err(Status::Failed);
        };
        let ready: Vec<bool> = ready.chunks(2).map(|pair| pair.contains(&true)).collect();
        for ((place, to), ready) in std::mem::take(&mut stop_set.waiting).into_iter().zip(ready) {
            // The last update can still be read after the process has ended.
            match ready.then(|| to.next_update()) {
                None => stop_set.waiting.push((place, to)),
                Some(Ok(followed)) => match followed.ended {
                    None => stop_set.waiting.push((place, to)),
                    Some(ended) => {
                        stop_set.record_end(place, ended);
                        reported.push((place, to));
                    }
                },
                // A process exits without a last update only if it was killed.
                Some(Err(ClientError::Disconnected)) => reported.push((place, to)),
                Some(Err(error)) => stop_set.record_failure(place, &error),
            }
        }
    }
    stop_set.waiting = reported;
    Ok(wait_until_exited(stop_set))
}

/// Waits until the processes of all paths have exited. Returns the exit status so far, or `Failed`
/// if a signal arrives first.
fn wait_until_exited(stop_set: &mut StopSet) -> Status {
    let Ok(signals) = watch_signals() else { return Status::Failed };
    for (place, to) in std::mem::take(&mut stop_set.waiting) {
        if wait_readable(&[to.pidfd()], signals, None).is_none() {
            let path = stop_set.path_name(place);
            terminal::print_note(&format!(
                "the process of {path} has not ended; `streamline stop --kill PATH` ends it at once"
            ));
            return Status::Failed;
        }
        if let Some(result) = stop_set.results.get_mut(place) {
            result.ended = true;
        }
    }
    stop_set.status
}
