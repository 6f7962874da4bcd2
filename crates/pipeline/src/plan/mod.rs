//! From a checked graph and a machine to a plan: which node runs where, and what every edge is.
//!
//! Three pure steps, in the sources' words [SL §7.1]: **complete** gives every open end a sink,
//! **discover** asks for every node which spaces could run it and keeps the refusals with their
//! reasons, **select** chooses. The machine is a value that is handed in, so that plans are tested
//! as text with no machine. What no edge may do: turn back. Along a request the path moves from the
//! space of its source to that of its sink.
//!
//! A **process** (CONTRACT 27) is a space with one node. What comes to it is handed over in the
//! last thread before it, and what it writes is taken up in the thread behind that: since the two
//! are never the same, neither end of it can wait for the other.
//!
//! What is chosen for one thread may then get **copies** that share its work ([`Copied`]).
//!
//! Beside its place, a filter may be **asked ahead**: by the source before it, in the kernel.

mod ahead;
mod batch;
mod complete;
mod copies;
mod costs;
mod discover;
mod edges;
mod instead;
mod kernel;
mod latency;
mod machine;
mod remember;
mod select;

pub use ahead::Pushed;
pub use batch::AtOnce;
pub use complete::complete;
pub(crate) use copies::is_wish;
pub use copies::{Adapts, Alone, COPIES_MAX, Copied};
pub use costs::{ArcShare, COSTS_VERSION, Costs, FilterCost};
pub use kernel::{KernelRing, Leave, Program, ProgramStep, Refused, programs_of};
pub use latency::{Holds, Latency};
pub use machine::{Kernel, Machine};
pub use remember::{Remembered, RememberedNode};

use crate::catalogue::Catalogue;
use crate::graph::{Graph, NodeId};
use std::fmt;

/// A graph with a place for everything.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The checked graph with open ends completed.
    pub graph: Graph,
    /// The spaces that are used, in the order in which a path may move through them.
    pub spaces: Vec<PlannedSpace>,
    /// One per node of the graph.
    pub placed: Vec<Placed>,
    /// One per edge of the graph.
    pub edges: Vec<PlannedEdge>,
    /// Nodes whose report is the output of the line: they stand at its end.
    pub reports: Vec<NodeId>,
    /// Filters that sources ask in the kernel, one per source.
    pub pushed: Vec<Pushed>,
    /// The programs of the kernel spaces.
    pub programs: Vec<Program>,
    /// Refusals of the kernel before this plan.
    pub refused: Vec<Refused>,
    /// The fraction of all input expected at every node and on every edge; 1.0 where it is unknown.
    pub flows: (Vec<f64>, Vec<f64>),
    /// Chains of filters that are run several times, to share their work.
    pub copied: Vec<Copied>,
    /// Filters that cost enough for that, and why they are run once.
    pub alone: Vec<Alone>,
    /// Blocks that its threads walk at once.
    pub at_once: AtOnce,
    /// The latency bound, if the request sets one.
    pub latency: Option<Latency>,
    /// The way it was chosen.
    pub choice: Choice,
}

/// A space of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedSpace {
    /// Its name, for pins and for `explain`.
    pub name: String,
    /// The kind of the space.
    pub kind: SpaceKind,
    /// The connected part of the graph that it works for: parts fail independently.
    pub part: usize,
}

/// The kind of a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceKind {
    /// A kernel program.
    Kernel,
    /// A thread of this process.
    Thread,
    /// A process of its own, for an ordinary program.
    Process,
}

/// The place of a node, and the reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// The place of its space in `Plan::spaces`.
    pub space: usize,
    /// The space that hands it what comes: its own, unless it is a process.
    pub enters: usize,
    /// The space that takes up what it gives: its own, unless it is a process, whose output the
    /// next thread reads, or the kernel, whose rings the first thread of the part reads. There the
    /// user implementations of the kernel's filters stand, too, for what these are unsure of.
    pub leaves: usize,
    /// The reason.
    pub because: String,
    /// True if where the node before it runs is the reason.
    pub by_neighbor: bool,
    /// Every space that was considered.
    pub candidates: Vec<Candidate>,
}

/// A space that was considered for a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The space.
    pub space: String,
    /// The cost of a block there, or the reason why the node cannot run there.
    pub verdict: Result<f64, String>,
    /// The argument against a possible space that was not chosen.
    pub lost: Option<String>,
}

/// The kind of an edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlannedEdge {
    /// The next filter is called.
    Call,
    /// A bounded work list: a back edge.
    Back,
    /// A ring between two threads. Where the edge comes from the kernel, the thread that reads the
    /// rings of its program hands it on so.
    Ring(RingPlan),
    /// Out of the kernel into the thread that reads the rings of the program.
    Kernel(RingPlan),
    /// The standard input or output of a process.
    Pipe,
}

/// A ring of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingPlan {
    /// Number of entries.
    pub entries: usize,
    /// Bytes of an entry: 16 rich pointers, 32 with context, 64 with marks.
    pub stride: usize,
    /// An event is sent after this many blocks (T_b).
    pub signal_blocks: usize,
    /// Or after this time in ns (T_t); before the writer sleeps in any case.
    pub signal_ns: u64,
    /// The reason for the number of blocks.
    pub blocks_because: &'static str,
    /// The reason for the time.
    pub ns_because: String,
}

/// The way a plan was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The policy.
    pub policy: Policy,
    /// The cost of one block on its way through everything, in ns, as far as costs are known.
    pub cost_ns: f64,
    /// Number of placements examined.
    pub looked_at: u64,
    /// True if no cheaper placement exists.
    pub proved: bool,
}

/// The policy by which spaces are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Least cost: nodes, copies and crossings on this machine.
    #[default]
    Cost,
    /// The sources' rule: every node as deep as it can run. [SL §7.1]
    Deepest,
}

/// A node that no space can run: there is no plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Unplaceable {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Every space, and why not.
    pub refusals: Vec<(String, String)>,
}

impl fmt::Display for Unplaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no space can run `{}`", self.name)?;
        for (space, why) in &self.refusals {
            write!(f, "; {space}: {why}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Unplaceable {}

/// Places a checked graph on a machine.
pub fn plan(
    graph: Graph,
    catalogue: &dyn Catalogue,
    machine: &Machine,
) -> Result<Plan, Unplaceable> {
    let (graph, reports) = complete(graph, catalogue);
    placed(graph, reports, machine, Vec::new())
}

/// Places a graph whose ends are complete.
fn placed(
    graph: Graph,
    reports: Vec<NodeId>,
    machine: &Machine,
    refused: Vec<Refused>,
) -> Result<Plan, Unplaceable> {
    let policy = match graph.options.text("policy") {
        Some("deepest") => Policy::Deepest,
        _ => Policy::Cost,
    };
    let discovered = discover::discover(&graph, machine, &refused);
    let selected = select::select(&graph, &discovered, machine, policy)?;
    let (edges, ring) = edges::edges(&graph, &selected, &discovered.spaces, machine);
    let told = instead::instead(&graph, &discovered, &selected, machine);
    let (all, parts) = (discovered.spaces.clone(), discovered.parts.clone());
    let flows = discovered.flows.clone();
    let (spaces, mut placed) = discover::used(discovered, &selected, &graph);
    instead::tell(&mut placed, &told, &all, &parts);
    let programs = kernel::programs(&graph, &spaces, &placed, &KernelRing::of(&ring));
    let mut pushed = ahead::pushed(&graph);
    pushed.retain(|pushed| spaces[placed[pushed.source.0].space].kind != SpaceKind::Kernel);
    let choice = selected.choice;
    let (copied, alone) = (Vec::new(), Vec::new());
    let at_once = AtOnce::of(&graph);
    let mut plan = Plan {
        graph,
        spaces,
        placed,
        edges,
        reports,
        pushed,
        programs,
        refused,
        flows,
        copied,
        alone,
        at_once,
        latency: None,
        choice,
    };
    copies::rewrite(&mut plan, machine);
    latency::spread(&mut plan);
    Ok(plan)
}

impl Plan {
    /// The space of a node.
    #[must_use]
    pub fn space_of(&self, node: NodeId) -> &PlannedSpace {
        &self.spaces[self.placed[node.0].space]
    }

    /// Returns the expected cost of a block in a node, where it runs.
    #[must_use]
    pub fn expected(&self, node: NodeId) -> Option<f64> {
        let here = &self.space_of(node).name;
        let candidates = &self.placed[node.0].candidates;
        candidates.iter().find(|known| known.space == *here)?.verdict.as_ref().ok().copied()
    }

    /// The same request once more, by what the machine is and costs now.
    pub fn once_more(&self, machine: &Machine) -> Result<Self, Unplaceable> {
        placed(self.graph.clone(), self.reports.clone(), machine, self.refused.clone())
    }

    /// The same request once more, after the kernel refused something that this plan had placed
    /// there: it runs in the next best space. Answers none if nothing new was refused.
    pub fn again(
        &self,
        machine: &Machine,
        refused: &[Refused],
    ) -> Option<Result<Self, Unplaceable>> {
        let known = |new: &&Refused| !self.refused.iter().any(|old| old.node == new.node);
        let new: Vec<Refused> = refused.iter().filter(known).cloned().collect();
        if new.is_empty() {
            return None;
        }
        let refused = [&self.refused[..], &new].concat();
        Some(placed(self.graph.clone(), self.reports.clone(), machine, refused))
    }
}
