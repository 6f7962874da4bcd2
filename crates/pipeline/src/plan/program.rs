//! The kernel programs of a plan: one per attachment point, with the filters of all branches that
//! begin there.

use super::ring::RingPlan;
use crate::classes::ClassSet;
use crate::graph::{EdgeId, FilterUse, Graph, Node, NodeId};
use filter::{AttachTarget, FilterKind};

/// A kernel program: all sources at one interface and in one direction, and the filters that follow
/// them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The point at which the program is attached: interface and direction, or the sockets of a
    /// user.
    pub attach: AttachTarget,
    /// The sources that the program replaces.
    pub sources: Vec<NodeId>,
    /// The filters that the program runs for each frame. Every step follows the step that provides
    /// its input.
    pub steps: Vec<ProgramStep>,
    /// The edges that leave the program; an edge's index in this list is the number of its ring.
    pub exits: Vec<ExitEdge>,
    /// The memory through which frames, and pointers to them, leave the kernel. It also carries
    /// frames that a twin could not decide.
    pub ring: KernelRing,
}

/// A filter that a kernel program runs. It executes all nodes that have equal filters and the same
/// input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramStep {
    /// The nodes of the graph that the step executes.
    pub nodes: Vec<NodeId>,
    /// The index, in [`Program::steps`], of the step whose output this step processes. `None` if
    /// this step processes the frames as received.
    pub from: Option<usize>,
    /// The classes of the input blocks that enter this step.
    pub classes: ClassSet,
}

/// An edge that leaves the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitEdge {
    /// The edge of the graph that leaves the kernel.
    pub edge: EdgeId,
    /// The index, in [`Program::steps`], of the step that the edge leaves; `None` if the edge
    /// leaves a source.
    pub from: Option<usize>,
    /// The classes of the blocks that pass over the edge.
    pub classes: ClassSet,
}

/// The sizes of the rings through which a kernel program outputs frames, and the times at which it
/// notifies their reader. Each processor has its own set of rings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRing {
    /// The number of pointers in the ring of each edge.
    pub pointers: u32,
    /// The size, in bytes, of the record buffer to which the program copies frames.
    pub bytes: u32,
    /// The maximum size of a frame in bytes.
    pub record_max: u32,
    /// The number of blocks after which the program notifies the reader (T_b). A notification may
    /// be delayed by `interval_min_ns`. If the number is 0, the program sends no notifications, and
    /// takes frames from the host only while the reader is awake.
    pub signal_blocks: u32,
    /// The minimum time in ns between two notifications (T_min).
    pub interval_min_ns: u64,
    /// The maximum time in ns until the reader is notified (T_t).
    pub signal_ns: u64,
}

/// The size of a processor's record buffer in bytes, if the machine has enough memory. It holds 20
/// ms of 1500-byte frames at 3.2 Gbit/s, and fits into a last-level cache. A smaller buffer costs
/// more per frame (decision 0140).
const RECORD_BUFFER_BYTES: u32 = 8 << 20;

/// The maximum size of a frame in bytes: 64 KB of data merged by the kernel, plus Ethernet header
/// and tags.
const RECORD_BYTES_MAX: u32 = (64 << 10) + 64;

pub(super) fn build_programs(
    graph: &Graph,
    inside: &dyn Fn(NodeId) -> bool,
    ring: &KernelRing,
) -> Vec<Program> {
    let mut programs: Vec<Program> = Vec::new();
    for (id, node) in graph.nodes_with_ids().filter(|(id, _)| inside(*id)) {
        let (Some(FilterKind::Source), Ok(attach)) = (node.kind(), attachment(node)) else {
            continue;
        };
        // Frames that a source takes from the host reach no other source, unless that source takes
        // the same frames.
        let same = |program: &Program| {
            let first = program.sources.first().and_then(|first| graph.node(*first).filter());
            let both = first.zip(node.filter());
            !attach.only_matching_flows
                || both.is_some_and(|(one, other)| one.arguments == other.arguments)
        };
        let known = programs.iter().position(|one| one.attach == attach && same(one));
        let at = known.unwrap_or_else(|| {
            let (sources, steps, exits) = (Vec::new(), Vec::new(), Vec::new());
            programs.push(Program { attach, sources, steps, exits, ring: ring.clone() });
            programs.len() - 1
        });
        programs[at].sources.push(id);
        programs[at].add_successors(graph, id, None, inside);
    }
    programs
}

/// Returns the attachment point of a source, or the reason why it has none.
pub(super) fn attachment(node: &Node) -> Result<AttachTarget, String> {
    let attach = node.filter().and_then(FilterUse::attachment);
    attach.unwrap_or_else(|| Err("reads in a process".to_owned()))
}

impl Program {
    /// Adds everything that follows node `id` to the program, recursively. A successor for which
    /// `inside` returns true becomes a step of the program; an edge to any other successor becomes
    /// an exit. `from` is the index of the step of `id`, or `None` for a source.
    fn add_successors(
        &mut self,
        graph: &Graph,
        id: NodeId,
        from: Option<usize>,
        inside: &dyn Fn(NodeId) -> bool,
    ) {
        for (number, edge) in graph.edges.iter().enumerate().filter(|(_, edge)| edge.from == id) {
            let classes = edge.classes.clone();
            if inside(edge.to) {
                let step = self.find_or_add_step(graph, edge.to, from, classes);
                self.add_successors(graph, edge.to, Some(step), inside);
            } else {
                self.exits.push(ExitEdge { edge: EdgeId(number), from, classes });
            }
        }
    }

    /// Returns the index of the step that executes node `id`. Uses an existing step with an equal
    /// filter, the same input and the same classes, or adds one. Always adds a step for a sink that
    /// sends frames.
    fn find_or_add_step(
        &mut self,
        graph: &Graph,
        id: NodeId,
        from: Option<usize>,
        classes: ClassSet,
    ) -> usize {
        let same = |step: &ProgramStep| {
            let first = step.nodes.first().and_then(|first| graph.node(*first).filter());
            let alike = first.zip(graph.node(id).filter()).is_some_and(|(one, other)| {
                let same = one.description.is_same_entry(other.description);
                // Sending a frame twice produces two frames.
                same && one.arguments == other.arguments && one.endpoint.outlet.is_none()
            });
            step.from == from && step.classes == classes && alike
        };
        if let Some(known) = self.steps.iter().position(same) {
            self.steps[known].nodes.push(id);
            return known;
        }
        self.steps.push(ProgramStep { nodes: vec![id], from, classes });
        self.steps.len() - 1
    }

    /// Returns the nodes of each step that executes several nodes.
    pub fn nodes_of_shared_steps(&self) -> impl Iterator<Item = &[NodeId]> {
        self.steps.iter().filter(|step| step.nodes.len() > 1).map(|step| step.nodes.as_slice())
    }

    /// Returns true if the edge with this number leaves the program.
    #[must_use]
    pub fn has_exit(&self, edge: usize) -> bool {
        self.exits.iter().any(|leave| leave.edge.0 == edge)
    }

    /// Returns the index of the step that executes a node, or `None` if no step does.
    #[must_use]
    pub fn step_of(&self, node: NodeId) -> Option<usize> {
        self.steps.iter().position(|step| step.nodes.contains(&node))
    }
}

impl Default for KernelRing {
    /// Returns the ring for a request that sets neither `--batch` nor `--latency`.
    fn default() -> Self {
        Self::from_ring_plan(&RingPlan::kernel_default())
    }
}

impl KernelRing {
    /// Returns the ring sizes and the doorbell frequency of a program whose edges have the
    /// parameters `ring`.
    pub(super) fn from_ring_plan(ring: &RingPlan) -> Self {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            pointers: number(ring.entries),
            bytes: RECORD_BUFFER_BYTES,
            record_max: RECORD_BYTES_MAX,
            signal_blocks: number(ring.signal_blocks),
            // A notification costs 12 us on a virtual machine, and 30 us if the reader sleeps, so
            // notifications are as rare as the time permits. [CONTRACT 29]
            interval_min_ns: ring.signal_ns / 2,
            signal_ns: ring.signal_ns,
        }
    }
}
