//! Messages between a worker and its parent: one JSON object per line.
//!
//! Both ends are the same program, so the format has no version.

use crate::snapshot::snapshot;
use engine::live::Live;
use engine::run::Outcome;
use runtime::failure::{Cause, PathFailure};
use runtime::latency::Latency;
use runtime::ledger::Ledger;
use runtime::report::NodeReport;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The assignment of a worker.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Assignment {
    /// Its request.
    pub(super) text: String,
    /// Its number, from 1, and the total number of workers.
    pub(super) number: u32,
    pub(super) of: u32,
    /// Processor to pin itself to.
    pub(super) processor: usize,
    pub(super) timed: bool,
    pub(super) embedded: bool,
    pub(super) history: Option<usize>,
}

/// A command to a worker.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) enum Command {
    /// Run; all workers are ready.
    Go,
    /// End the sources and drain.
    Stop,
    /// Send the counts.
    Count,
    /// Switch to this request; filters that are in both requests keep their state.
    Change(String),
}

/// A message from a worker.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Message {
    /// The request is built.
    Ready,
    /// The request runs.
    Began {
        /// True if its sources had received nothing by then.
        quiet: bool,
    },
    /// The counts so far.
    Counted(Box<Counts>),
    /// The reply to a change: the ledger sentence and the new request, or the reason for refusing.
    Changed(Result<(String, String), String>),
    /// The run has ended: final counts, and the request that ran last.
    Ended(Box<Counts>, String),
}

/// The counts of a worker.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub(super) struct Counts {
    ledger: Ledger,
    reports: Vec<NodeReport>,
    failures: Vec<RemoteFailure>,
    adapted: Vec<String>,
    latency: Option<Latency>,
    stopped: bool,
    elapsed_ns: u64,
}

/// A failure in a worker. Its cause does not leave the process, except for what follows from it.
#[derive(Serialize, Deserialize, Clone, Debug)]
struct RemoteFailure {
    node: String,
    message: String,
    errno: Option<i32>,
    /// True if the reader of a standard stream has gone.
    quiet: bool,
}

impl Counts {
    /// Extracts the counts of an outcome.
    pub(super) fn of(outcome: Outcome) -> Self {
        let Outcome { ledger, reports, failures, adapted, latency, stopped, elapsed_ns, .. } =
            outcome;
        let failures = failures.iter().map(RemoteFailure::of).collect();
        Self { ledger, reports, failures, adapted, latency, stopped, elapsed_ns }
    }

    /// Collects the counts of running paths. Blocks up to `limit` for each.
    pub(super) fn so_far(lives: &[Live], limit: Duration) -> Self {
        Self::of(snapshot(lives, limit))
    }

    /// Returns the outcome with these counts.
    pub(super) fn outcome(&self) -> Outcome {
        let Self { ledger, reports, failures, adapted, latency, stopped, elapsed_ns } =
            self.clone();
        let failures = failures.into_iter().map(RemoteFailure::failure).collect();
        Outcome {
            ledger,
            reports,
            failures,
            adapted,
            latency,
            stopped,
            elapsed_ns,
            ..Outcome::default()
        }
    }
}

impl RemoteFailure {
    fn of(failure: &PathFailure) -> Self {
        let (node, message) = (failure.node.clone(), failure.to_string());
        Self { node, message, errno: failure.errno(), quiet: failure.is_quiet() }
    }

    fn failure(self) -> PathFailure {
        let Self { node, message: what, errno, quiet } = self;
        PathFailure { node, cause: Cause::Elsewhere { what, errno, quiet } }
    }
}
