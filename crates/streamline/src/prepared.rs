//! A request that has been parsed and planned, without changes to the machine so far.

use crate::error::OpenError;
use crate::hosts::KernelHosts;
use crate::notice::Notice;
use crate::options::Options;
use crate::prefix;
use crate::workers::requests;
use engine::record::RecordingHead;
use pipeline::plan::{Machine, Plan, Unplaceable};
use pipeline::{Diagnostic, Graph, Registry};

/// A request, parsed and planned for this machine.
#[derive(Debug)]
pub struct PreparedRequest {
    pub(crate) text: String,
    pub(crate) plan: Plan,
    pub(crate) machine: Machine,
    pub(crate) hosts: KernelHosts,
    /// Request of each worker process; empty if this process runs the request itself.
    pub(crate) workers: Vec<String>,
}

impl PreparedRequest {
    /// Parses a request and plans it for this machine.
    ///
    /// Names that need a lookup (such as host names) are resolved once, in this function;
    /// [`text`](Self::text) returns the request with these names replaced by the results.
    ///
    /// # Errors
    ///
    /// [`OpenError::Mistakes`] lists all mistakes at once; other variants report options that
    /// contradict the request, or a filter that cannot run in any space.
    ///
    /// ```
    /// use streamline::{Options, PreparedRequest};
    ///
    /// let options = Options::without_daemon();
    /// let wrong = PreparedRequest::read("generate | cuont | dprot", &options).unwrap_err();
    /// let message = wrong.to_string();
    /// assert!(message.contains("did you mean `count`?"), "{message}");
    /// assert!(message.contains("did you mean `dport`?"), "{message}");
    /// ```
    pub fn read(request: &str, options: &Options) -> Result<Self, OpenError> {
        let (text, graph) = prefix::share_prefix(resolve_names(request, options)?, options)?;
        let Some(of) = requests::worker_count(&graph) else {
            return Self::plan_graph(text, graph, options);
        };
        let workers = requests::derive_worker_requests(&graph, of)?;
        let first = Self::plan_for_worker(workers.first().map_or("", String::as_str), options)?;
        Ok(Self { text, workers, ..first })
    }

    /// Plans the request of one worker.
    pub(crate) fn plan_for_worker(request: &str, options: &Options) -> Result<Self, OpenError> {
        // The warnings have already been raised for the whole request.
        let options = Options { notices: Default::default(), ..options.clone() };
        let graph = parse_graph(request, &options.own, &options)?;
        Self::plan_graph(request.to_owned(), graph, &options)
    }

    fn plan_graph(text: String, mut graph: Graph, options: &Options) -> Result<Self, OpenError> {
        let outside = options.outside_kernel || options.record.is_some();
        let alone = options.embedded || outside;
        let (hosts, machine) = KernelHosts::find(&mut graph, alone, &options.notices);
        let machine = if outside { RecordingHead::replay_machine(machine) } else { machine };
        let plan = plan_graph(&text, graph, &options.own, &machine)?;
        Ok(Self { text, plan, machine, hosts, workers: Vec::new() })
    }

    /// Returns the request; names that were looked up are replaced by the results.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the plan of the request; with several workers, the plan of the first worker.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the description of the machine (kernel, processors, costs) for which the request was
    /// planned.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the request of each worker; empty if one process runs the request.
    #[must_use]
    pub fn workers(&self) -> &[String] {
        &self.workers
    }

    /// Reduces a request with several workers to the request of the first worker. A request without
    /// workers stays unchanged.
    #[must_use]
    pub fn reduce_to_first_worker(mut self) -> Self {
        if !self.workers.is_empty() {
            self.text = self.workers.swap_remove(0);
            self.workers.clear();
        }
        self
    }

    /// Moves filters to other spaces if the daemon's policy would refuse them in the kernel.
    ///
    /// Fails with [`OpenError::Unplaceable`] if a filter can run in no other space.
    pub fn replan_within_policy(self) -> Result<Self, OpenError> {
        let Self { text, plan, machine, hosts, workers } = self;
        let graph = plan.graph.clone();
        let plan = hosts.plan_within_policy(plan, &machine);
        let plan = plan.map_err(|refused| unplaceable_error(&text, graph, refused))?;
        Ok(Self { text, plan, machine, hosts, workers })
    }
}

/// Parses and checks a request, and reports its warnings as notices.
///
/// The text of the returned graph contains the results of look-ups in place of names such as host
/// names.
pub fn read_graph(request: &str, options: &Options) -> Result<Graph, OpenError> {
    resolve_names(request, options).map(|(_, graph)| graph)
}

/// Parses and checks a request; reports warnings as notices, and all mistakes as one error.
pub(crate) fn parse_graph(
    text: &str,
    registry: &dyn Registry,
    options: &Options,
) -> Result<Graph, OpenError> {
    let (graph, list) = pipeline::read_request(text, registry);
    if list.iter().any(Diagnostic::is_error) {
        return Err(OpenError::Mistakes { text: text.to_owned(), list });
    }
    if !list.is_empty() {
        options.notices.raise(&Notice::RequestWarnings(text, &list));
    }
    Ok(graph)
}

/// Looks up the names in a request. Returns the text with the results, and its graph. Runs, records
/// and workers use this text, so that no name is looked up twice.
fn resolve_names(request: &str, options: &Options) -> Result<(String, Graph), OpenError> {
    let first = parse_graph(request, &options.own, options)?;
    if first.insertions.is_empty() {
        return Ok((request.to_owned(), first));
    }
    let text = first.text.as_ref().to_owned();
    let quiet = Options { notices: Default::default(), ..options.clone() };
    // The text has grown, so it is parsed again for its spans. Its warnings have already been
    // raised.
    let graph = parse_graph(&text, &options.own, &quiet)?;
    Ok((text, graph))
}

/// Plans a graph. Fails with [`OpenError::Unplaceable`] if no space can run a filter.
pub(crate) fn plan_graph(
    text: &str,
    graph: Graph,
    registry: &dyn Registry,
    machine: &Machine,
) -> Result<Plan, OpenError> {
    let whole = graph.clone();
    let planned = pipeline::plan::plan(graph, registry, machine);
    planned.map_err(|refused| unplaceable_error(text, whole, refused))
}

pub(crate) fn unplaceable_error(text: &str, graph: Graph, refused: Unplaceable) -> OpenError {
    let (graph, refused) = (Box::new(graph), Box::new(refused));
    OpenError::Unplaceable { text: text.to_owned(), graph, refused }
}
