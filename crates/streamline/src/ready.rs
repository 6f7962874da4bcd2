//! A request that was built, and its end.

use crate::crash::{self, CrashCapture};
use crate::error::OpenError;
use crate::membership::Member;
use crate::options::{Notices, Options};
use crate::prepared::Prepared;
use crate::report::Report;
use crate::workers::{Crew, Output, WorkerRun};
use engine::build::Path;
use engine::digest::digest;
use engine::live::Live;
use engine::record::{Recording, Summary};
use engine::run::{self, Outcome, Until};
use pipeline::plan::Plan;
use std::sync::Arc;

/// A request that was built and registered, and waits to be run. Dropping it gives everything back.
#[derive(Debug)]
pub struct Ready {
    pub(crate) text: String,
    pub(crate) plan: Plan,
    pub(crate) body: Body,
    pub(crate) member: Member,
    pub(crate) recording: Option<Arc<Recording>>,
    pub(crate) captures_crashes: bool,
    pub(crate) notices: Notices,
}

/// The processes that run a request.
#[derive(Debug)]
pub(crate) enum Body {
    /// This one.
    Here(Vec<Path>),
    /// Several workers.
    Workers(Box<(Crew, Output)>),
}

impl Ready {
    pub(crate) fn of_paths(
        prepared: Prepared,
        paths: Vec<Path>,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let lives: Vec<Live> = paths.iter().map(Path::live).collect();
        let member = Member::begin(&prepared, (lives, None), options)?;
        Ok(Self::new(prepared, Body::Here(paths), member, options))
    }

    pub(crate) fn new(prepared: Prepared, body: Body, member: Member, options: &Options) -> Self {
        let Prepared { text, plan, .. } = prepared;
        Self {
            text,
            plan,
            body,
            member,
            recording: None,
            captures_crashes: options.captures_crashes,
            notices: options.notices.clone(),
        }
    }

    /// The plan that will run.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The number by which the daemon knows it.
    #[must_use]
    pub const fn number(&self) -> Option<u32> {
        self.member.number()
    }

    /// Its connected parts; none of several workers.
    #[must_use]
    pub fn lives(&self) -> Vec<Live> {
        match &self.body {
            Body::Here(paths) => paths.iter().map(Path::live).collect(),
            Body::Workers(_) => Vec::new(),
        }
    }

    /// Runs it to its end; the calling thread waits. An order of the daemon to stop is heard beside
    /// what `until` says.
    pub fn run(mut self, until: Until<'_>) -> Result<Finished, OpenError> {
        let until = Until { readable: self.member.stop(until.readable)?, ..until };
        let (plan, outcome, workers) = match self.body {
            Body::Here(paths) => {
                let live = paths.first().map(Path::live);
                let outcome = run::run(paths, until)?;
                // It may have been changed while it ran.
                if let Some((text, plan)) = live.and_then(|live| live.text().zip(live.plan())) {
                    (self.text, self.plan) = (text, plan);
                }
                (self.plan, outcome, Vec::new())
            }
            Body::Workers(workers) => {
                let (crew, output) = *workers;
                let ended = crew.run(self.plan, until, output, &self.notices)?;
                (ended.plan, ended.outcome, ended.workers)
            }
        };
        let recorded = self.recording.map(|recording| recording.finish(&digest(&outcome)));
        let failures = &outcome.failures;
        let crashes = match self.captures_crashes {
            true => crash::keep(&self.text, &plan.graph, failures, &self.notices),
            false => failures.iter().map(|_| None).collect(),
        };
        let results = Results { text: self.text, plan, outcome, workers, crashes, recorded };
        Ok(Finished { results, member: self.member })
    }
}

/// A run that has ended. Those who follow the path wait to hear how: see [`end`](Self::end).
#[derive(Debug)]
pub struct Finished {
    /// The results.
    pub results: Results,
    member: Member,
}

impl Finished {
    /// Tells those who follow the path an exit status and a sentence, and ends its registration.
    pub fn end(self, status: u8, sentence: String) -> Results {
        self.member.end(status, sentence);
        self.results
    }
}

/// The results of a run, final or so far.
#[derive(Debug)]
pub struct Results {
    /// The request that ran last.
    pub text: String,
    /// Its plan.
    pub plan: Plan,
    /// The ledger, reports of filters, failures.
    pub outcome: Outcome,
    /// The results of each worker, if there are several.
    pub workers: Vec<WorkerRun>,
    /// Captures of blocks on which filters failed: one place for each failure.
    pub crashes: Vec<Option<CrashCapture>>,
    /// The record, if one was asked for.
    pub recorded: Option<Summary>,
}

impl Results {
    /// Sentences, tables and JSON of it.
    #[must_use]
    pub fn report(&self) -> Report<'_> {
        Report::new(&self.plan, &self.outcome, &self.crashes).of_workers(&self.workers)
    }

    /// The end in a sentence: the first failure, or the amounts.
    #[must_use]
    pub fn sentence(&self) -> String {
        let failure = self.outcome.failures.iter().find(|failure| !failure.is_quiet());
        failure.map_or_else(|| self.report().sentence(), ToString::to_string)
    }

    /// Returns true if a path failed, or the ledger does not balance.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let mut failures = self.outcome.failures.iter();
        failures.any(|failure| !failure.is_quiet()) || !self.outcome.ledger.imbalances().is_empty()
    }
}
