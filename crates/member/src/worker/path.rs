//! The description of a path for its registration, and the interface to a path that runs in several
//! processes.

use crate::protocol::{Link, Node, RegisterParameters};
use pipeline::edit::Edit;
use pipeline::explain;
use pipeline::plan::{Kernel, Plan, PlannedEdge, ReplicaChain};
use runtime::latency::LatencyReport;
use runtime::ledger::Ledger;
use std::path::PathBuf;
use std::sync::Arc;

/// A path that runs in several processes.
pub trait WorkerGroup: Send + Sync + std::fmt::Debug {
    /// Returns the sum of the ledgers of all processes, based on the latest counters of each
    /// process.
    fn ledger(&self) -> Ledger;

    /// Returns the aggregated latency of blocks, or `None` if the request does not bound it.
    fn latency(&self) -> Option<LatencyReport>;

    /// Returns the name and the process id of each worker process.
    fn processes(&self) -> Vec<(String, u32)>;

    /// Applies an edit of the request in all processes or in none. Returns a sentence that
    /// summarizes the change with its block counts, and the new plan. Fails with the reason why no
    /// process was changed.
    fn change(&self, edit: &Edit) -> Result<(String, Plan), String>;
}

/// The description of a path for its registration.
#[derive(Clone, Debug, Default)]
pub struct PathInfo {
    /// Name that the user chose for the path, or `None` for an unnamed path.
    pub name: Option<String>,
    /// Text of the request that the path runs.
    pub line: String,
    /// Name of the log file that contains the path's output, or `None` if there is none.
    pub log: Option<PathBuf>,
    /// Nodes of the path's plan.
    pub nodes: Vec<Node>,
    /// Edges of the path's plan.
    pub links: Vec<Link>,
    /// The plan, or `None` for a path without a detailed description.
    pub plan: Option<Plan>,
    /// True if the path always measures the time spent in its filters. False if it measures this
    /// time only while a client that has requested counters is connected.
    pub timed: bool,
    /// Kernel features for which to plan changes, if a daemon loads the programs of this path. If
    /// `None`, changes are planned for the features that this process itself may use.
    pub kernel: Option<Kernel>,
    /// Control of the path's worker processes, or `None` if the path runs in this process.
    pub group: Option<Arc<dyn WorkerGroup>>,
}

impl PathInfo {
    /// Creates the description of a path from its request and plan, without a name or log file.
    #[must_use]
    pub fn new(line: &str, plan: &Plan) -> Self {
        let (nodes, links) = nodes_and_links(plan);
        let (line, plan) = (line.to_owned(), Some(plan.clone()));
        Self { line, nodes, links, plan, ..Self::default() }
    }

    /// Returns the id of the plan, or `None` if there is no plan.
    pub(super) fn plan_id(&self) -> Option<String> {
        self.plan.as_ref().map(Plan::id)
    }

    pub(super) fn registration_parameters(
        &self,
        number: Option<u32>,
        started: u64,
    ) -> RegisterParameters {
        let log = self.log.as_ref().map(|log| log.display().to_string());
        let (name, line) = (self.name.clone(), self.line.clone());
        RegisterParameters { name, line, log, number, started: Some(started), plan: self.plan_id() }
    }
}

/// Returns the nodes and the edges of a plan.
pub(super) fn nodes_and_links(plan: &Plan) -> (Vec<Node>, Vec<Link>) {
    let names = explain::unique_names(&plan.graph);
    let space = |node: usize| {
        let placed = plan.placements.get(node).and_then(|placed| plan.spaces.get(placed.space));
        placed.map(|space| space.name.clone()).unwrap_or_default()
    };
    let copies = |node: usize| {
        let of = |copied: &&ReplicaChain| copied.nodes.iter().any(|id| id.0 == node);
        let spaces = plan.replicas.iter().find(of).into_iter().flat_map(|copied| &copied.spaces);
        spaces.filter_map(|space| Some(plan.spaces.get(*space)?.name.clone())).collect()
    };
    let node = |(node, name): (usize, String)| {
        let (space, copies) = (space(node), copies(node));
        Node { name, space, copies }
    };
    let link = |(number, edge): (usize, &pipeline::graph::Edge)| {
        let (transport, room) = match plan.edges.get(number) {
            Some(PlannedEdge::Ring(ring)) => ("ring", Some(ring.entries)),
            Some(PlannedEdge::Kernel(ring)) => ("kernel", Some(ring.entries)),
            Some(PlannedEdge::Back) => ("back", None),
            Some(PlannedEdge::Pipe) => ("pipe", None),
            Some(PlannedEdge::Call) | None => ("call", None),
        };
        Link {
            from: edge.from.0,
            to: edge.to.0,
            classes: explain::arc_label(&plan.graph, edge),
            transport: transport.to_owned(),
            room: room.map(|room| room as u64),
        }
    };
    let nodes = names.into_iter().enumerate().map(node).collect();
    (nodes, plan.graph.edges.iter().enumerate().map(link).collect())
}
