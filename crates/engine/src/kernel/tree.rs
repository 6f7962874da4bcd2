//! The part of a plan that one request runs at an attach point, as a tree.
//!
//! Input: a program of the plan, and the nodes that belong to the request. Output: the filters,
//! each with its predecessor, and the exits. A block leaves a step over all edges that select its
//! class. If a twin is unsure about a block, the block is passed unchanged to the filter's user
//! implementation, and no further step in the kernel processes it.
//!
//! Most exits therefore exclude each other: in a chain, a frame takes at most one exit. Such exits
//! share a *ring output* (`sink` in the code): a sequence of pointers to frames that each ring of
//! the request contains. A request needs as many ring outputs as there are exits that one frame can
//! take.

use super::taps::TreeTap;
use pipeline::ClassSet;
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::Program as Planned;
use std::fmt::Write as _;

/// The filters that a program runs on each frame for one request, and the exits of the request.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestTree {
    /// The filters in the kernel; each follows its predecessor in the list.
    pub(crate) steps: Vec<TreeStep>,
    /// The exits, over which blocks leave the kernel.
    pub(crate) exits: Vec<TreeExit>,
    /// The source whose expression selects the frames that the request takes from the host; `None`
    /// if the request only observes frames.
    pub(crate) gate: Option<NodeId>,
    /// The taps of the request. A pointer names an exit or a tap by its number; the numbers of taps
    /// follow those of exits.
    pub(crate) taps: Vec<TreeTap>,
}

/// A filter in the kernel, with its predecessor.
#[derive(Clone, Debug)]
pub(crate) struct TreeStep {
    /// The nodes of the graph that this filter implements.
    pub(crate) nodes: Vec<NodeId>,
    /// The preceding step, or `None` for the source.
    pub(crate) from: Option<usize>,
    /// The classes of the preceding step's output that lead to this step.
    pub(crate) classes: ClassSet,
}

/// An exit from the kernel: the blocks that take it, and the node that receives them.
#[derive(Clone, Debug)]
pub(crate) struct TreeExit {
    /// The step that a block leaves over this exit, or `None` for the source.
    pub(crate) from: Option<usize>,
    /// The set of blocks that take this exit.
    pub(crate) which: ExitBlocks,
    /// Index in the graph of the edge that leaves the kernel. For unsure blocks, this is the edge
    /// that leads to the step.
    pub(crate) edge: usize,
    /// The node in user space that receives the blocks.
    pub(crate) to: NodeId,
    /// The number of the ring output to which the program adds the frames that take this exit. A
    /// ring output is a sequence of pointers; exits share one only if no frame can take two of
    /// them.
    pub(crate) sink: u32,
}

/// The blocks that take an exit.
#[derive(Clone, Debug)]
pub(crate) enum ExitBlocks {
    /// Blocks whose class is in the set.
    Classes(ClassSet),
    /// Blocks that the step is unsure about.
    Unsure,
}

impl RequestTree {
    /// Builds the tree of the nodes for which `ours` returns true.
    pub(crate) fn new(planned: &Planned, graph: &Graph, ours: impl Fn(NodeId) -> bool) -> Self {
        let mut kept = vec![None; planned.steps.len()];
        let mut sources = planned.sources.iter().copied().filter(|id| ours(*id));
        let gate = sources.next().filter(|_| planned.attach.only_matching_flows);
        let mut tree = Self { gate, ..Self::default() };
        for (number, step) in planned.steps.iter().enumerate() {
            let nodes: Vec<NodeId> = step.nodes.iter().copied().filter(|id| ours(*id)).collect();
            if !nodes.is_empty() {
                kept[number] = Some(tree.steps.len());
                let from = step.from.and_then(|from| kept[from]);
                tree.steps.push(TreeStep { nodes, from, classes: step.classes.clone() });
            }
        }
        for leave in &planned.exits {
            let edge = &graph.edges[leave.edge.0];
            if ours(edge.from) {
                let from = leave.from.and_then(|from| kept[from]);
                let which = ExitBlocks::Classes(leave.classes.clone());
                let (edge, to) = (leave.edge.0, edge.to);
                tree.exits.push(TreeExit { from, which, edge, to, sink: 0 });
            }
        }
        for (number, step) in tree.steps.iter().enumerate() {
            for node in &step.nodes {
                let into = graph.edges.iter().position(|edge| edge.to == *node);
                let (from, to) = (Some(number), *node);
                let (which, edge) = (ExitBlocks::Unsure, into.unwrap_or(0));
                tree.exits.push(TreeExit { from, which, edge, to, sink: 0 });
            }
        }
        tree.assign_sinks();
        // A redirected frame reaches no other reader.
        if !planned.attach.redirects {
            tree.add_taps(planned.sources.iter().copied().find(|id| ours(*id)));
        }
        tree
    }

    /// Assigns a ring output, which is a sequence of pointers, to each exit. An exit gets the first
    /// ring output that it can share, because no frame can take both this exit and another exit
    /// with the same output.
    fn assign_sinks(&mut self) {
        let mut sinks: Vec<Vec<usize>> = Vec::new();
        for way in 0..self.exits.len() {
            let fits =
                |sink: &&mut Vec<usize>| sink.iter().all(|one| self.are_exclusive_exits(*one, way));
            let found = sinks.iter_mut().find(fits);
            match found {
                Some(sink) => sink.push(way),
                None => sinks.push(vec![way]),
            }
        }
        for (number, sink) in (0..).zip(sinks) {
            sink.into_iter().for_each(|way| self.exits[way].sink = number);
        }
    }

    /// Returns true if no frame can take both exits: their routes diverge at disjoint classes, or
    /// at a step where only unsure blocks take one of the exits.
    fn are_exclusive_exits(&self, one: usize, other: usize) -> bool {
        let [mut one, mut other] = [&self.exits[one], &self.exits[other]].map(|exit| {
            let classes = match &exit.which {
                ExitBlocks::Classes(classes) => Some(classes),
                ExitBlocks::Unsure => None,
            };
            (exit.from, classes)
        });
        // A step has a higher number than its predecessor.
        while one.0 != other.0 {
            let later = if one.0 > other.0 { &mut one } else { &mut other };
            let Some(step) = later.0.and_then(|step| self.steps.get(step)) else { return false };
            *later = (step.from, Some(&step.classes));
        }
        match (one.1, other.1) {
            (Some(one), Some(other)) => one.intersection(other).is_empty(),
            (None, None) => false,
            _ => true,
        }
    }

    /// Returns the number of ring outputs (sequences of pointers in each ring) that the exits need.
    pub(crate) fn sink_count(&self) -> usize {
        self.exits.iter().map(|exit| exit.sink as usize + 1).max().unwrap_or(0)
    }

    /// Returns true if the exit with the index `way` shares its ring output with another exit or
    /// with taps.
    pub(crate) fn shares_sink(&self, way: usize) -> bool {
        let here = |exit: &&TreeExit| exit.sink == self.exits[way].sink;
        // Taps use the first ring output.
        let of_taps = self.exits[way].sink == 0 && !self.taps.is_empty();
        of_taps || self.exits.iter().filter(here).nth(1).is_some()
    }

    /// Returns the first filter that must leave the kernel for the remaining tree to satisfy
    /// `fits`. Returns `None` if `fits` returns false even for a tree without filters.
    pub(crate) fn first_filter_to_remove(&self, fits: impl Fn(&Self) -> bool) -> Option<NodeId> {
        let kept = (0..self.steps.len()).rev().find(|kept| fits(&self.prefix(*kept)))?;
        self.steps[kept].nodes.first().copied()
    }

    /// Returns a tree of the first `kept` filters, without taps. Its exits are the exits of these
    /// filters and, for each later filter that directly follows one of them, an exit to that
    /// filter.
    fn prefix(&self, kept: usize) -> Self {
        let here = |from: &Option<usize>| from.is_none_or(|from| from < kept);
        let (steps, rest) = self.steps.split_at(kept);
        let exits = self.exits.iter().filter(|exit| here(&exit.from)).cloned();
        let follow = rest.iter().filter(|step| here(&step.from));
        let follow = follow.flat_map(|TreeStep { nodes, from, classes }| {
            nodes.iter().map(|to| {
                let which = ExitBlocks::Classes(classes.clone());
                TreeExit { from: *from, which, edge: 0, to: *to, sink: 0 }
            })
        });
        let exits = exits.chain(follow).collect();
        let (steps, taps) = (steps.to_vec(), Vec::new());
        let mut tree = Self { steps, exits, gate: self.gate, taps };
        tree.assign_sinks();
        tree
    }

    /// Returns a fingerprint that is equal, in any process, for trees with the same filter names,
    /// predecessors, classes, exits, number of taps and gate expression. The arguments of filters
    /// other than the gate do not affect it.
    pub(crate) fn fingerprint(&self, graph: &Graph) -> u64 {
        let gate = self.gate.and_then(|id| graph.node(id).filter());
        let expression = gate.and_then(|used| used.arguments.text("expression"));
        let mut text = expression.unwrap_or_default().to_owned();
        // Writing to a string cannot fail.
        for TreeStep { nodes, from, classes } in &self.steps {
            let name = nodes.first().map_or("", |id| graph.node(*id).name());
            let _ = write!(text, "{name} {} {from:?} {classes};", nodes.len());
        }
        for TreeExit { from, which, sink, .. } in &self.exits {
            let _ = match which {
                ExitBlocks::Classes(classes) => write!(text, "{from:?} {classes} {sink};"),
                ExitBlocks::Unsure => write!(text, "{from:?} ? {sink};"),
            };
        }
        let _ = write!(text, "{}", self.taps.len());
        // The hash is FNV-1a. Deliberate collisions do no harm.
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// Returns the text span of a node.
pub(crate) fn filter_span(graph: &Graph, id: NodeId) -> ebpf::FilterSpan {
    let node = graph.node(id);
    ebpf::FilterSpan::new(node.name(), node.span.start, node.span.end - node.span.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node_ids(count: usize) -> Vec<NodeId> {
        (0..count).map(NodeId).collect()
    }

    fn build_tree(from: &[Option<usize>], leaves: &[Option<usize>]) -> RequestTree {
        let nodes = node_ids(from.len());
        let step = |(node, from): (&NodeId, &Option<usize>)| TreeStep {
            nodes: vec![*node],
            from: *from,
            classes: ClassSet::all(),
        };
        let exit = |from, which| TreeExit { from, which, edge: 0, to: NodeId(0), sink: 0 };
        let unsure = (0..from.len()).map(|step| exit(Some(step), ExitBlocks::Unsure));
        let out = leaves.iter().map(|from| exit(*from, ExitBlocks::Classes(ClassSet::all())));
        let mut tree = RequestTree {
            steps: nodes.iter().zip(from).map(step).collect(),
            exits: unsure.chain(out).collect(),
            gate: None,
            taps: Vec::new(),
        };
        tree.assign_sinks();
        tree
    }

    fn exit_sinks(tree: &RequestTree) -> Vec<u32> {
        tree.exits.iter().map(|exit| exit.sink).collect()
    }

    #[test]
    fn exclusive_exits_share_a_sink() {
        let chain: Vec<_> = (0..200_usize).map(|step| step.checked_sub(1)).collect();
        let line = build_tree(&chain, &[Some(199)]);
        assert_eq!((line.exits.len(), line.sink_count()), (201, 1));
        assert!(line.shares_sink(0) && line.shares_sink(200));
        // A frame that takes the edge after the first filter may also take any later exit, so this
        // edge needs a sink of its own.
        let line = build_tree(&[None, Some(0), Some(1)], &[Some(0), Some(2)]);
        assert_eq!(exit_sinks(&line), [0, 0, 0, 1, 0]);
        assert!(line.shares_sink(0) && !line.shares_sink(3));
        // Both branches may be unsure about the same frame.
        let fork = build_tree(&[None, Some(0), Some(0)], &[Some(1), Some(2)]);
        assert_eq!(exit_sinks(&fork), [0, 0, 1, 0, 1]);
        assert_eq!(exit_sinks(&build_tree(&[None, None], &[None])), [0, 1, 2]);
    }

    #[test]
    fn branches_of_disjoint_classes_share_sinks() {
        let mut fork = build_tree(&[None, Some(0), Some(0), Some(0)], &[Some(1), Some(2), Some(3)]);
        for (step, (low, high)) in [(1, (53, 53)), (2, (80, 443)), (3, (100, 100))] {
            fork.steps[step].classes = ClassSet::range(low, high);
        }
        fork.assign_sinks();
        assert_eq!(exit_sinks(&fork), [0, 0, 0, 1, 0, 0, 1]);
        // A filter that implements two nodes is unsure for both.
        fork.steps[0].nodes.push(NodeId(9));
        fork.exits.push(TreeExit { to: NodeId(9), ..fork.exits[0].clone() });
        fork.assign_sinks();
        assert_eq!(exit_sinks(&fork), [0, 0, 0, 1, 0, 0, 1, 1]);
    }

    #[test]
    fn tree_with_too_many_exits_is_split_after_a_prefix() {
        let most = |ways: usize, sinks: usize| {
            move |tree: &RequestTree| tree.exits.len() <= ways && tree.sink_count() <= sinks
        };
        let chain: Vec<_> = (0..10_usize).map(|step| step.checked_sub(1)).collect();
        // Each filter may be unsure, and one edge leaves the kernel.
        let line = build_tree(&chain, &[Some(9)]);
        assert_eq!(line.first_filter_to_remove(most(10, 1)), Some(NodeId(9)));
        let three = line.first_filter_to_remove(most(4, 1));
        assert_eq!(three, Some(NodeId(3)), "three filters, and the edge to the fourth");
        assert_eq!(line.first_filter_to_remove(most(1, 1)), Some(NodeId(0)));
        assert_eq!(line.first_filter_to_remove(most(0, 1)), None);
        // Two filters follow the first one, and one edge leaves the first filter.
        let fork = build_tree(&[None, Some(0), Some(0)], &[Some(0), Some(1), Some(2)]);
        assert_eq!((fork.exits.len(), fork.sink_count()), (6, 3));
        assert_eq!(fork.first_filter_to_remove(most(5, 3)), Some(NodeId(2)));
        let first = fork.first_filter_to_remove(most(4, 3));
        assert_eq!(first, Some(NodeId(1)), "the first, its edge and two that follow are 4");
        let first = fork.first_filter_to_remove(most(6, 2));
        assert_eq!(first, Some(NodeId(0)), "three branches are three ways of one frame");
    }
}
