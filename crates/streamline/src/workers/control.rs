//! Control of all workers of a path as if they were one process, for `top` and `set`.
//!
//! A change is applied to one worker after another. All workers run the same request, so a change
//! that one worker accepts normally succeeds in all of them. If a worker nevertheless fails to
//! apply it, the workers that were already changed return to their previous request.

use super::message::{self, Command};
use crate::options::Options;
use crate::prepared::PreparedRequest;
use engine::aggregate::{WorkerReport, has_dividing_filters, merge_reports};
use engine::registry::MachineRegistry;
use engine::run::RunOutcome;
use member::worker::WorkerGroup;
use pipeline::Graph;
use pipeline::edit::Edit;
use pipeline::plan::Plan;
use runtime::latency::LatencyReport;
use runtime::ledger::Ledger;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The reply of a worker to a change of its request: the number of the change and its result. After
/// a success, the result is a sentence that summarizes the change with its block counts, and the
/// new request. After a refusal, it is the reason.
pub(super) type NumberedChangeReply = (u64, Result<(String, String), String>);

/// Maximum time to wait for a worker's reply; longer than the limit that the worker applies to a
/// change.
const CHANGE_REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// The counters that a worker sent last, and the worker's state: alive or dead, and with or without
/// input before the run.
#[derive(Clone, Debug, Default)]
pub(super) struct LatestCounts {
    /// The last counts from the worker; `None` if it has sent none.
    pub(super) counts: Option<RunOutcome>,
    /// True if the worker died before it sent its final counts.
    pub(super) killed: bool,
    /// True if the worker's sources had received nothing when the run started, as reported in
    /// [`Message::RunStarted`](super::message::Message::RunStarted).
    pub(super) started_idle: bool,
}

impl LatestCounts {
    /// Returns the outcome of the worker so far; empty if it has sent no counts yet.
    pub(super) fn outcome(&self) -> RunOutcome {
        self.counts.clone().unwrap_or_default()
    }

    /// Returns this worker's contribution to the ledger that is computed for all workers together.
    pub(super) fn report(&self) -> WorkerReport {
        WorkerReport {
            outcome: self.outcome(),
            killed: self.killed,
            started_before_traffic: self.started_idle,
        }
    }
}

/// A handle that controls all workers of a path as if they were one process: it reads their counts
/// and changes their requests.
#[derive(Debug)]
pub(crate) struct GroupControl {
    /// Latest counters from each worker, by worker.
    latest_counts: Mutex<Vec<LatestCounts>>,
    running: Mutex<WorkerRequests>,
    /// Name and process id of each worker, by worker index.
    processes: Vec<(String, u32)>,
    options: Options,
}

/// The requests that the workers run now, and the channels over which the workers receive changes
/// and reply to them. A mutex around this value ensures that only one change is made at a time.
#[derive(Debug)]
struct WorkerRequests {
    commands: Vec<UnixStream>,
    change_replies: Receiver<NumberedChangeReply>,
    /// Number of changes sent to workers so far, from which each change gets its number.
    changes: u64,
    /// Texts of the requests that the workers run, by worker.
    lines: Vec<String>,
    /// Graph of the first worker's request.
    graph: Graph,
}

fn lock_ignoring_poison<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GroupControl {
    pub(super) fn new(
        commands: Vec<UnixStream>,
        answers: Receiver<NumberedChangeReply>,
        (lines, graph): (&[String], &Graph),
        (processes, options): (Vec<(String, u32)>, Options),
    ) -> Self {
        let (lines, graph) = (lines.to_vec(), graph.clone());
        let running = Mutex::new(WorkerRequests {
            commands,
            change_replies: answers,
            changes: 0,
            lines,
            graph,
        });
        Self { latest_counts: Mutex::default(), running, processes, options }
    }

    /// Replaces the latest block counts of all workers by `counted`.
    pub(super) fn replace_latest_counts(&self, counted: Vec<LatestCounts>) {
        *lock_ignoring_poison(&self.latest_counts) = counted;
    }
}

impl WorkerRequests {
    /// Switches the worker with the index `at` to the request `line`. Returns a sentence that
    /// summarizes the change with its block counts. Blocks for at most [`CHANGE_REPLY_TIMEOUT`] per
    /// reply.
    fn change_worker_request(&mut self, at: usize, line: &str) -> Result<String, ChangeError> {
        self.changes += 1;
        let command = Command::Change(self.changes, line.to_owned());
        let sent = message::send(&self.commands[at], &command);
        sent.map_err(|_| ChangeError::Refused(format!("engine {} has ended", at + 1)))?;
        loop {
            let answer = self.change_replies.recv_timeout(CHANGE_REPLY_TIMEOUT);
            let (number, answer) = answer
                .map_err(|_| ChangeError::Silent(format!("engine {} does not reply", at + 1)))?;
            // A different number marks the late reply to an earlier change that has timed out.
            if number == self.changes {
                return answer.map(|(message, _)| message).map_err(ChangeError::Refused);
            }
        }
    }
}

/// A failure to change a worker's request.
enum ChangeError {
    /// The worker has refused the change, or has ended.
    Refused(String),
    /// The worker has not replied in time; it may still apply the change.
    Silent(String),
}

impl GroupControl {
    /// Returns the aggregated outcome according to the latest counts.
    pub(crate) fn outcome(&self) -> RunOutcome {
        let engines =
            lock_ignoring_poison(&self.latest_counts).iter().map(LatestCounts::report).collect();
        merge_reports(&lock_ignoring_poison(&self.running).graph, engines)
    }
}

impl WorkerGroup for GroupControl {
    fn ledger(&self) -> Ledger {
        self.outcome().ledger
    }

    fn latency(&self) -> Option<LatencyReport> {
        self.outcome().latency
    }

    fn processes(&self) -> Vec<(String, u32)> {
        self.processes.clone()
    }

    fn change(&self, edit: &Edit) -> Result<(String, Plan), String> {
        let mut running = lock_ignoring_poison(&self.running);
        let before = running.lines.clone();
        let new = before
            .iter()
            .map(|line| edit.apply(line, &MachineRegistry::Local).map(|edited| edited.text));
        let new = new.collect::<Result<Vec<String>, _>>().map_err(|why| why.to_string())?;
        let first = new.first().map_or("", String::as_str);
        let planned = PreparedRequest::plan_for_worker(first, &self.options);
        let plan = planned.map_err(|_| "the new request cannot be planned".to_owned())?.plan;
        if has_dividing_filters(&running.graph) && !has_dividing_filters(&plan.graph) {
            let what = "each process sees all blocks up to `shard`: put filters that must count \
                        once after it";
            return Err(what.to_owned());
        }
        let mut messages = Vec::new();
        for (at, line) in new.iter().enumerate() {
            match running.change_worker_request(at, line) {
                Ok(message) => messages.push(format!("engine {}: {message}", at + 1)),
                Err(error) => {
                    let (changed, why) = match error {
                        ChangeError::Refused(why) => (at, why),
                        ChangeError::Silent(why) => (at + 1, why),
                    };
                    for (back, line) in before.iter().enumerate().take(changed) {
                        // A worker that cannot return to its request reports that in `top`.
                        let _ = running.change_worker_request(back, line);
                    }
                    return Err(why);
                }
            }
        }
        running.graph = plan.graph.clone();
        running.lines = new;
        Ok((messages.join("; "), plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_reply_to_an_earlier_change_is_skipped() {
        let (command, _worker) = UnixStream::pair().unwrap();
        let (replies, answers) = std::sync::mpsc::channel();
        let mut running = WorkerRequests {
            commands: vec![command],
            change_replies: answers,
            changes: 1,
            lines: Vec::new(),
            graph: Graph::default(),
        };
        replies.send((1, Err("the earlier change".to_owned()))).unwrap();
        replies.send((2, Ok(("this change".to_owned(), String::new())))).unwrap();
        let changed = running.change_worker_request(0, "generate | discard");
        assert!(matches!(changed, Ok(message) if message == "this change"));
    }
}
