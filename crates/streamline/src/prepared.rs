//! A request that was read and planned, and has changed nothing yet.

use crate::error::OpenError;
use crate::hosts::Hosts;
use crate::options::{Notice, Options};
use crate::ready::Ready;
use crate::{record, workers};
use engine::build::{self, BuildError, Extras, Path, Settings};
use engine::path::Adapt;
use engine::record::{Head, Tape};
use pipeline::plan::{Machine, Plan, Unplaceable};
use pipeline::{Catalogue, Diagnostic, Graph};

/// A request that was read and planned for this machine.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) text: String,
    pub(crate) plan: Plan,
    pub(crate) machine: Machine,
    pub(crate) hosts: Hosts,
    /// The request of each worker; none: this process runs it.
    pub(crate) workers: Vec<String>,
}

impl Prepared {
    /// Reads a request and plans it for this machine. Mistakes come all at once.
    ///
    /// What the request asks of the machine while it is read (an address by its name) is asked
    /// once: [`text`](Self::text) holds the answers.
    pub fn read(request: &str, options: &Options) -> Result<Self, OpenError> {
        let (text, graph) = settled(request, options)?;
        let Some(of) = workers::wanted(&graph) else { return Self::planned(text, graph, options) };
        let workers = workers::requests(&graph, of)?;
        let first = Self::worker(workers.first().map_or("", String::as_str), options)?;
        Ok(Self { text, workers, ..first })
    }

    /// The plan of one worker.
    pub(crate) fn worker(request: &str, options: &Options) -> Result<Self, OpenError> {
        // The whole request has been warned of.
        let options = Options { notices: Default::default(), ..options.clone() };
        let graph = graph(request, &options.own, &options)?;
        Self::planned(request.to_owned(), graph, &options)
    }

    fn planned(text: String, mut graph: Graph, options: &Options) -> Result<Self, OpenError> {
        let outside = options.outside_kernel || options.record.is_some();
        let alone = options.embedded || outside;
        let (hosts, machine) = Hosts::find(&mut graph, alone, &options.notices);
        let machine = if outside { Head::outside_kernel(machine) } else { machine };
        let plan = plan(&text, graph, &options.own, &machine)?;
        Ok(Self { text, plan, machine, hosts, workers: Vec::new() })
    }

    /// The request, with what the machine answered while it was read.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The plan; of several workers that of the first.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The machine as it was planned for.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The requests of all workers; none: one process runs it.
    #[must_use]
    pub fn workers(&self) -> &[String] {
        &self.workers
    }

    /// The first worker alone, where there are several.
    #[must_use]
    pub fn first_worker(mut self) -> Self {
        if !self.workers.is_empty() {
            self.text = self.workers.swap_remove(0);
            self.workers.clear();
        }
        self
    }

    /// The plan as it will be once the daemon was asked: without what its policy refuses.
    pub fn foreseen(self) -> Result<Self, OpenError> {
        let Self { text, plan, machine, hosts, workers } = self;
        let graph = plan.graph.clone();
        let plan = hosts.foresee(plan, &machine);
        let plan = plan.map_err(|refused| unplaceable(&text, graph, refused))?;
        Ok(Self { text, plan, machine, hosts, workers })
    }

    /// Builds it, and registers it with the daemon. A filter that the kernel refuses is placed
    /// elsewhere. An error takes back whatever was made.
    pub fn build(self, options: &Options) -> Result<Ready, OpenError> {
        if !self.workers.is_empty() {
            return workers::build(self, options);
        }
        let recording = record::begin(&self, options)?;
        let tape = recording.clone().map_or_else(Tape::default, Tape::Record);
        let adapt = recording.is_none().then(|| Adapt::asked(&self.plan, &self.machine)).flatten();
        let extras = Extras { tape, history: options.history, adapt, ..Extras::default() };
        let mut ready = self.build_with(options, extras)?;
        ready.recording = recording;
        Ok(ready)
    }

    /// Builds it with more than it needs to run: a record, a question about a flow.
    pub fn build_with(self, options: &Options, extras: Extras) -> Result<Ready, OpenError> {
        let steps = options.steps.clone();
        let helper = options.helper.clone();
        let ready = self.built(options, &Extras { helper, steps: steps.clone(), ..extras });
        if ready.is_err() {
            steps.roll_back();
        }
        ready
    }

    fn built(mut self, options: &Options, extras: &Extras) -> Result<Ready, OpenError> {
        let settings = Settings {
            count: options.count,
            timed: options.timed,
            programs_timed: options.programs_timed,
            refuses: options.refuses,
            ..options.own.settings()
        };
        let paths = self.paths(settings, extras)?;
        for refused in &self.plan.refused {
            let name = self.plan.graph.node(refused.node).name();
            let space = &self.plan.space_of(refused.node).name;
            options.notices.note(&format!("`{name}` runs in {space}: {}", refused.why));
        }
        Ready::of_paths(self, paths, options)
    }

    /// Builds the plan; what the kernel refuses is planned again.
    pub(crate) fn paths(
        &mut self,
        settings: Settings,
        extras: &Extras,
    ) -> Result<Vec<Path>, OpenError> {
        loop {
            let error = match build::build_with(&self.plan, settings, &self.hosts, extras) {
                Ok(paths) => {
                    paths.iter().take(1).for_each(|path| path.live().says(&self.text));
                    return Ok(paths);
                }
                Err(error) => error,
            };
            let again = match &error {
                BuildError::Refused(what) => {
                    self.plan.again(&self.machine, std::slice::from_ref(what))
                }
                _ => None,
            };
            let Some(again) = again else {
                let (text, plan) = (self.text.clone(), Box::new(self.plan.clone()));
                return Err(OpenError::Build { text, plan, error: Box::new(error) });
            };
            self.plan = again
                .map_err(|refused| unplaceable(&self.text, self.plan.graph.clone(), refused))?;
        }
    }
}

/// Reads a request and checks it; doubts about it are notices. The graph holds the request with the
/// answers of the machine.
pub fn read(request: &str, options: &Options) -> Result<Graph, OpenError> {
    settled(request, options).map(|(_, graph)| graph)
}

/// The graph of a request without mistakes; doubts about it are notices.
pub(crate) fn graph(
    text: &str,
    catalogue: &dyn Catalogue,
    options: &Options,
) -> Result<Graph, OpenError> {
    let (graph, list) = pipeline::read(text, catalogue);
    if list.iter().any(Diagnostic::is_error) {
        return Err(OpenError::Mistakes { text: text.to_owned(), list });
    }
    if !list.is_empty() {
        options.notices.give(&Notice::Doubts(text, &list));
    }
    Ok(graph)
}

/// The request with the answers of this machine, and its graph. What runs, is recorded, or goes
/// elsewhere, is this request: nothing is asked a second time.
fn settled(request: &str, options: &Options) -> Result<(String, Graph), OpenError> {
    let first = graph(request, &options.own, options)?;
    if first.settled.is_empty() {
        return Ok((request.to_owned(), first));
    }
    let text = first.text.as_ref().to_owned();
    let quiet = Options { notices: Default::default(), ..options.clone() };
    // It is longer than it was, and its doubts are known.
    let graph = graph(&text, &options.own, &quiet)?;
    Ok((text, graph))
}

/// The plan of a graph; a filter that no space can run is an error.
pub(crate) fn plan(
    text: &str,
    graph: Graph,
    catalogue: &dyn Catalogue,
    machine: &Machine,
) -> Result<Plan, OpenError> {
    let whole = graph.clone();
    let planned = pipeline::plan::plan(graph, catalogue, machine);
    planned.map_err(|refused| unplaceable(text, whole, refused))
}

fn unplaceable(text: &str, graph: Graph, refused: Unplaceable) -> OpenError {
    let (graph, refused) = (Box::new(graph), Box::new(refused));
    OpenError::Unplaceable { text: text.to_owned(), graph, refused }
}
