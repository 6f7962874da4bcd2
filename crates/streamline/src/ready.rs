//! A request that is built and ready to run, and the results of a run.

use crate::crash;
use crate::error::OpenError;
use crate::notice::CrashCapture;
use crate::notice::Notices;
use crate::options::Options;
use crate::prefix::{self, LossPublisher};
use crate::prepared::PreparedRequest;
use crate::registration::Registration;
use crate::report::Report;
use crate::workers::run::WorkerRun;
use crate::workers::{Supervisor, WorkerOutput};
use endpoint::shared_prefix;
use engine::build::BuiltPath;
use engine::digest::digest;
use engine::live::PathHandle;
use engine::record::{Recording, RecordingSummary};
use engine::run::{self, FailureReporter, RunOutcome, StopConditions};
use member::worker::Reporter;
use pipeline::plan::Plan;
use runtime::failure::PathFailure;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use sys::poll::PollSet;

/// A built and registered request, ready to run. Dropping it releases everything that the request
/// acquired.
#[derive(Debug)]
pub struct ReadyRequest {
    pub(crate) text: String,
    pub(crate) plan: Plan,
    pub(crate) executor: Executor,
    pub(crate) member: Registration,
    pub(crate) recording: Option<Arc<Recording>>,
    pub(crate) captures_crashes: bool,
    /// True if the run serves a shared prefix; the run then ends when the last reader of the prefix
    /// has left.
    pub(crate) serves_prefix: bool,
    pub(crate) notices: Notices,
}

/// The part of a built request that runs it: the paths in this process, or the worker processes.
#[derive(Debug)]
pub(crate) enum Executor {
    /// Paths that run in this process.
    Local(Vec<BuiltPath>),
    /// Worker processes, with the thread that merges their output.
    Workers(Box<(Supervisor, WorkerOutput)>),
}

impl ReadyRequest {
    pub(crate) fn from_built_paths(
        prepared: PreparedRequest,
        paths: Vec<BuiltPath>,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let lives: Vec<PathHandle> = paths.iter().map(BuiltPath::live).collect();
        let member = Registration::register(&prepared, (lives, None), options)?;
        Ok(Self::new(prepared, Executor::Local(paths), member, options))
    }

    pub(crate) fn new(
        prepared: PreparedRequest,
        executor: Executor,
        member: Registration,
        options: &Options,
    ) -> Self {
        let PreparedRequest { text, plan, .. } = prepared;
        Self {
            text,
            plan,
            executor,
            member,
            recording: None,
            captures_crashes: options.captures_crashes,
            serves_prefix: options.serves_prefix,
            notices: options.notices.clone(),
        }
    }

    /// Returns the plan to be run.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the path's number in the daemon's registry, or `None` if it is not registered.
    #[must_use]
    pub const fn number(&self) -> Option<u32> {
        self.member.number()
    }

    /// Returns a handle with which the caller reports events of the run, such as alarms, for the
    /// daemon's log. The handle discards the events if the run is not registered.
    #[must_use]
    pub fn reporter(&self) -> Reporter {
        self.member.reporter()
    }

    /// Returns handles to the connected components of the request; empty if workers run it.
    #[must_use]
    pub fn live_handles(&self) -> Vec<PathHandle> {
        match &self.executor {
            Executor::Local(paths) => paths.iter().map(BuiltPath::live).collect(),
            Executor::Workers(_) => Vec::new(),
        }
    }

    /// Runs the request and blocks until it ends. `until` or a stop command from a client can end
    /// it early.
    pub fn run(mut self, until: StopConditions<'_>) -> Result<FinishedRun, OpenError> {
        let lives = self.live_handles();
        let losses =
            prefix::has_offered_prefix(&self.plan.graph).then(|| LossPublisher::start(lives));
        let _losses = losses.transpose()?;
        let both;
        let mut stop = until.stop_descriptor;
        if self.serves_prefix {
            let all: Vec<BorrowedFd<'_>> =
                stop.into_iter().chain([shared_prefix::last_reader_left_descriptor()?]).collect();
            both = PollSet::new(&all)?;
            stop = Some(both.as_fd());
        }
        let notices = self.notices.clone();
        let report = |failure: &PathFailure| {
            notices.raise_warning(&format!(
                "{failure}: this pipeline has ended, and the others continue"
            ));
        };
        let until = StopConditions {
            stop_descriptor: self.member.stop_descriptor(stop)?,
            failure: until.failure.or(Some(FailureReporter(&report))),
            ..until
        };
        let (plan, outcome, workers) = match self.executor {
            Executor::Local(paths) => {
                let live = paths.first().map(BuiltPath::live);
                let outcome = run::run(paths, until)?;
                // The request may have been changed while it ran.
                if let Some((text, plan)) =
                    live.and_then(|live| live.request_text().zip(live.plan()))
                {
                    (self.text, self.plan) = (text, plan);
                }
                (self.plan, outcome, Vec::new())
            }
            Executor::Workers(workers) => {
                let (supervisor, output) = *workers;
                let ended = supervisor.run(self.plan, until, output, &self.notices)?;
                (ended.plan, ended.outcome, ended.workers)
            }
        };
        let recorded = self.recording.map(|recording| recording.finish(&digest(&outcome)));
        let failures = &outcome.failures;
        let crashes = match self.captures_crashes {
            true => crash::save_crash_blocks(&self.text, &plan.graph, failures, &self.notices),
            false => failures.iter().map(|_| None).collect(),
        };
        let results = RunResults { text: self.text, plan, outcome, workers, crashes, recorded };
        Ok(FinishedRun { results, member: self.member })
    }
}

/// A completed run. Clients that follow the run wait for its exit status until
/// [`report_and_unregister`](Self::report_and_unregister) is called.
#[derive(Debug)]
pub struct FinishedRun {
    /// The results of the run.
    pub results: RunResults,
    member: Registration,
}

impl FinishedRun {
    /// Sends an exit status and a sentence about the results to the clients that follow the path,
    /// and ends the registration of the path. Blocks for a limited time until the clients have read
    /// both.
    pub fn report_and_unregister(self, status: u8, sentence: String) -> RunResults {
        self.member.send_exit_status(status, sentence);
        self.results
    }
}

/// The results of a run, final or intermediate.
#[derive(Debug)]
pub struct RunResults {
    /// Text of the request at the end of the run, including changes made during the run. If worker
    /// processes ran the request, the text without these changes.
    pub text: String,
    /// Plan of the request.
    pub plan: Plan,
    /// The ledger, the reports of filters, and the failures of the run.
    pub outcome: RunOutcome,
    /// Results of each worker; empty if one process ran the request.
    pub workers: Vec<WorkerRun>,
    /// For each failure in the outcome, the capture of the block on which the filter panicked;
    /// `None` if no capture was saved. Empty in intermediate results.
    pub crashes: Vec<Option<CrashCapture>>,
    /// Summary of the record, if the run was recorded.
    pub recorded: Option<RecordingSummary>,
}

impl RunResults {
    /// Returns the report, which formats the results as sentences, tables or JSON.
    #[must_use]
    pub fn report(&self) -> Report<'_> {
        Report::new(&self.plan, &self.outcome, &self.crashes).with_workers(&self.workers)
    }

    /// Returns one sentence that states the first failure or, if there is none, the numbers of
    /// blocks and bytes, the time, and the losses.
    #[must_use]
    pub fn sentence(&self) -> String {
        let failure = self.outcome.failures.iter().find(|failure| !failure.is_quiet());
        failure.map_or_else(|| self.report().summary_sentence(), ToString::to_string)
    }

    /// Returns true if a path failed or the ledger does not balance.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let mut failures = self.outcome.failures.iter();
        failures.any(|failure| !failure.is_quiet()) || !self.outcome.ledger.imbalances().is_empty()
    }
}
