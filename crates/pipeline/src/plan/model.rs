//! The plan as a value: spaces, placements, edges, and the reasons for each.

use super::batch::BatchSize;
use super::program::Program;
use super::pushdown::Pushdown;
use super::ring::RingPlan;
use crate::graph::{Edge, Graph, NodeId};
use filter::Arguments;
use filter::sharing::ShardKey;
use std::fmt;

/// A graph whose nodes are placed in spaces.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The checked graph, with sinks added where the request has none.
    pub graph: Graph,
    /// The used spaces, in the order in which blocks pass through them.
    pub spaces: Vec<PlannedSpace>,
    /// The placement of each node of the graph.
    pub placements: Vec<Placement>,
    /// The kind of each edge of the graph.
    pub edges: Vec<PlannedEdge>,
    /// The nodes whose final report is the output of the request.
    pub reports: Vec<NodeId>,
    /// For each source outside the kernel that can filter in the kernel, the filter that it
    /// evaluates there, or the reason why there is none.
    pub pushdowns: Vec<Pushdown>,
    /// The eBPF programs that the plan loads into the kernel.
    pub programs: Vec<Program>,
    /// The kernel refusals that led to this plan.
    pub refusals: Vec<KernelRefusal>,
    /// The expected fraction of all input blocks that arrives at each node, and that passes each
    /// edge; 1.0 if unknown.
    pub flows: (Vec<f64>, Vec<f64>),
    /// The chains of filters that have replicas.
    pub replicas: Vec<ReplicaChain>,
    /// Expensive filters without replicas, with the reasons.
    pub replica_refusals: Vec<ReplicaRefusal>,
    /// The maximum number of blocks that a thread processes at once.
    pub batch: BatchSize,
    /// The latency budget, or `None` if the request does not set `--latency`.
    pub latency: Option<LatencyPlan>,
    /// The policy and the result of the placement search.
    pub choice: PlacementChoice,
}

impl Plan {
    /// Returns the space of a node.
    #[must_use]
    pub fn space_of(&self, node: NodeId) -> &PlannedSpace {
        &self.spaces[self.placements[node.0].space]
    }

    /// Returns the expected cost of a block in a node, in ns, or `None` if unknown.
    #[must_use]
    pub fn expected_cost(&self, node: NodeId) -> Option<f64> {
        let here = &self.space_of(node).name;
        let candidates = &self.placements[node.0].candidates;
        candidates.iter().find(|known| known.space == *here)?.verdict.as_ref().ok().copied()
    }

    /// Returns the arguments of the filter that this source evaluates in the kernel, or `None` if
    /// there is no such filter.
    #[must_use]
    pub fn pushed_filter(&self, source: NodeId) -> Option<&Arguments> {
        let pushed = self.pushdowns.iter().find(|pushed| pushed.source == source)?;
        let filter = pushed.filter.as_ref().ok()?;
        self.graph.node(*filter).filter().map(|used| &used.arguments)
    }

    /// Returns the sources that evaluate this filter in the kernel.
    pub fn sources_evaluating(&self, filter: NodeId) -> impl Iterator<Item = NodeId> {
        let asks = move |pushed: &&Pushdown| pushed.filter == Ok(filter);
        self.pushdowns.iter().filter(asks).map(|pushed| pushed.source)
    }

    /// Returns the replicated chain that an edge enters or leaves, and true if the edge enters it.
    /// Returns `None` if the edge does neither.
    #[must_use]
    pub fn replicas_at_border(&self, edge: &Edge) -> Option<(&ReplicaChain, bool)> {
        let chain = |near: NodeId, far: NodeId| {
            self.replicas_of(near).filter(|replicas| !replicas.nodes.contains(&far))
        };
        let into = chain(edge.to, edge.from).map(|replicas| (replicas, true));
        into.or_else(|| chain(edge.from, edge.to).map(|replicas| (replicas, false)))
    }

    /// Returns the replicated chain that contains a node, or `None` if the node has no replicas.
    #[must_use]
    pub fn replicas_of(&self, node: NodeId) -> Option<&ReplicaChain> {
        self.replicas.iter().find(|replicas| replicas.nodes.contains(&node))
    }
}

/// A space of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedSpace {
    /// The name of the space, as it appears in pins and in `explain`.
    pub name: String,
    /// The kind of the space.
    pub kind: SpaceKind,
    /// The number of the connected component to which the space belongs. Components fail
    /// independently.
    pub component: usize,
}

/// The kind of a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceKind {
    /// The kernel, in which eBPF programs run the nodes.
    Kernel,
    /// A thread of this process.
    Thread,
    /// A process for one program or one untrusted filter.
    Process,
}

/// The placement of a node, and the reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The index in `Plan::spaces` of the space in which the node runs.
    pub space: usize,
    /// The index of the space that writes the node's input. It equals `space`, except for a
    /// process, whose input the last thread upstream writes.
    pub input_space: usize,
    /// The index of the space that reads the node's output. It is the node's own space, with two
    /// exceptions. The output of a process is read by the next thread. The output of the kernel is
    /// read by the first thread of the component, which also runs the user implementations of the
    /// kernel's filters, for blocks that their twins could not decide.
    pub output_space: usize,
    /// The reason for the placement.
    pub because: String,
    /// True if the placement merely follows from that of a node upstream, which `because` names.
    /// The node then runs in the same space as that node, or in a later one.
    pub follows_neighbor: bool,
    /// All spaces considered, including those that cannot run the node.
    pub candidates: Vec<Candidate>,
}

impl Placement {
    pub(super) fn space_indices_mut(&mut self) -> [&mut usize; 3] {
        [&mut self.space, &mut self.input_space, &mut self.output_space]
    }
}

/// A space considered for a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The name of the space.
    pub space: String,
    /// The cost of a block in ns, or the reason why the space cannot run the node.
    pub verdict: Result<f64, String>,
    /// The disadvantage of this space compared with the chosen one. `None` for the chosen space,
    /// and for a space that cannot run the node.
    pub disadvantage: Option<String>,
}

/// The kind of an edge, which determines how blocks are transferred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlannedEdge {
    /// A function call, which passes blocks between nodes of one space.
    Call,
    /// A bounded work list, for a back edge.
    Back,
    /// A ring between two threads. An edge from the kernel to a thread other than the first uses
    /// such a ring too: the first thread reads the blocks and forwards them over the ring.
    Ring(RingPlan),
    /// A ring from a kernel program to the first thread, which reads the rings of all programs.
    Kernel(RingPlan),
    /// The standard input or output of a process.
    Pipe,
}

/// The result of the search for the best placement.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementChoice {
    /// The policy that chose the placement.
    pub policy: Policy,
    /// The cost of sending one block from every source through the graph, in ns.
    pub cost_ns: f64,
    /// The number of placements that the search examined.
    pub examined: u64,
    /// True if the search was exact; the placement is then optimal under [`Policy::Cost`].
    pub is_exact: bool,
}

/// The policy for choosing spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Chooses the placement with the minimal cost on this machine, counting nodes, copies of data,
    /// and transfers between spaces.
    #[default]
    Cost,
    /// The rule in the Streamline paper: every node runs in the deepest space that can run it. [SL
    /// §7.1]
    Deepest,
}

/// Error returned if no space can run a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Unplaceable {
    /// The node that no space can run.
    pub node: NodeId,
    /// The name of the node.
    pub name: String,
    /// Every space's name, with the reason why the space cannot run the node.
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

/// A chain of filters with replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaChain {
    /// The filters of the chain, in the order in which blocks pass through them.
    pub nodes: Vec<NodeId>,
    /// The index of the space of each replica. The thread of the first replica also distributes the
    /// blocks.
    pub spaces: Vec<usize>,
    /// The index of the space that merges the outputs of the replicas.
    pub join: usize,
    /// The key that determines the replica of a block, or `None` if blocks are distributed by load.
    pub shard_key: Option<ShardKey>,
    /// The parameters of each ring to or from a replica.
    pub ring: RingPlan,
    /// The expected gain, as a text for the user.
    pub because: String,
}

/// A filter that is expensive enough for replicas but has none, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaRefusal {
    /// The filter that has no replicas.
    pub node: NodeId,
    /// The reason for the lack of replicas.
    pub why: String,
}

/// A node that the verifier, the loader, an interface or the daemon refused while a program was
/// loaded. The planner then places the node elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRefusal {
    /// The node that was refused.
    pub node: NodeId,
    /// The reason with which the verifier, the loader, the interface or the daemon refused the
    /// node.
    pub why: String,
}

/// A latency budget, and the share of each cause of delay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyPlan {
    /// The maximum latency of a block that the request sets, in ns.
    pub bound_ns: u64,
    /// The delays with their shares: sources first, then edges, then replicas.
    pub delays: Vec<DelayCause>,
}

/// A cause of delay on a path, with its maximum delay in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelayCause {
    /// The delay in the ring of a source's packet socket.
    Source(NodeId, u64),
    /// The delay at the edge with this index in [`Plan::edges`]. Blocks are delayed in the edge's
    /// ring or, if the edge leaves a kernel program, until the program notifies the reader.
    Edge(usize, u64),
    /// The total delay in the rings to and from the replicas with this index in [`Plan::replicas`].
    Replicas(usize, u64),
}

impl LatencyPlan {
    /// Returns a source's share of the latency budget, in ns, or `None` if it has none.
    #[must_use]
    pub fn source_share(&self, node: NodeId) -> Option<u64> {
        self.delays.iter().find_map(|delays| match delays {
            DelayCause::Source(id, ns) if *id == node => Some(*ns),
            _ => None,
        })
    }
}
