//! What one line does with the frames of an attach point: its part of a plan, as a tree.
//!
//! In: a program of the plan, and which nodes are ours. Out: the filters, each behind the one from
//! which its blocks come, and the ways out. A block leaves a step by the classes that its edges
//! want, and over several edges if several want it. One that a piece is unsure of goes to the user
//! implementation of that filter, as it came to it, and nowhere else from there on in the kernel.

use pipeline::ClassSet;
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::Program as Planned;
use std::fmt::Write as _;

/// What a program does with a frame, as far as one part of the graph is concerned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// The filters.
    pub(crate) steps: Vec<Step>,
    /// What leaves.
    pub(crate) hands: Vec<Handed>,
}

/// A filter in the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The nodes that it is.
    pub(crate) nodes: Vec<NodeId>,
    /// The step before, none: the source.
    pub(crate) from: Option<usize>,
    /// The classes that lead to it.
    pub(crate) classes: ClassSet,
}

/// A way out of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Handed {
    /// The step that it leaves, none: the source.
    pub(crate) from: Option<usize>,
    /// Which blocks, or those that the step is unsure of.
    pub(crate) which: Which,
    /// Over which edge of the graph; of what a step is unsure of, the one that led to it.
    pub(crate) edge: usize,
    /// To which node.
    pub(crate) to: NodeId,
}

/// Which blocks take a way out.
#[derive(Clone, Debug)]
pub(crate) enum Which {
    /// These classes.
    Classes(ClassSet),
    /// What the step cannot tell.
    Unsure,
}

impl Tree {
    /// The tree of what belongs to some nodes.
    pub(crate) fn new(planned: &Planned, graph: &Graph, ours: impl Fn(NodeId) -> bool) -> Self {
        let mut kept = vec![None; planned.steps.len()];
        let mut tree = Self::default();
        for (number, step) in planned.steps.iter().enumerate() {
            let nodes: Vec<NodeId> = step.nodes.iter().copied().filter(|id| ours(*id)).collect();
            if !nodes.is_empty() {
                kept[number] = Some(tree.steps.len());
                let from = step.from.and_then(|from| kept[from]);
                tree.steps.push(Step { nodes, from, classes: step.classes.clone() });
            }
        }
        for leave in &planned.leaves {
            let edge = &graph.edges[leave.edge.0];
            if ours(edge.from) {
                let from = leave.from.and_then(|from| kept[from]);
                let which = Which::Classes(leave.classes.clone());
                tree.hands.push(Handed { from, which, edge: leave.edge.0, to: edge.to });
            }
        }
        for (number, step) in tree.steps.iter().enumerate() {
            for node in &step.nodes {
                let into = graph.edges.iter().position(|edge| edge.to == *node);
                let (from, to) = (Some(number), *node);
                let unsure = Handed { from, which: Which::Unsure, edge: into.unwrap_or(0), to };
                tree.hands.push(unsure);
            }
        }
        tree
    }

    /// The first filter that must not be here, if there are to be no more ways out than this; none
    /// if even those of the source are too many. Filters come behind those that they follow.
    pub(crate) fn beyond(&self, ways: usize) -> Option<NodeId> {
        let kept = (0..self.steps.len()).rev().find(|kept| self.ways_of(*kept) <= ways)?;
        self.steps[kept].nodes.first().copied()
    }

    /// On how many ways frames would leave if only so many of the first filters were here: by those
    /// of theirs that there are, and to those that follow.
    fn ways_of(&self, kept: usize) -> usize {
        let here = |from: &Option<usize>| from.is_none_or(|from| from < kept);
        let hands = self.hands.iter().filter(|hand| here(&hand.from)).count();
        let follow = self.steps[kept..].iter().filter(|step| here(&step.from));
        hands + follow.map(|step| step.nodes.len()).sum::<usize>()
    }

    /// A number that two trees share which do the same, whoever has made them.
    pub(crate) fn print(&self, graph: &Graph) -> u64 {
        let mut text = String::new();
        // Writing to a text does not fail.
        for Step { nodes, from, classes } in &self.steps {
            let name = nodes.first().map_or("", |id| graph.node(*id).name());
            let _ = write!(text, "{name} {} {from:?} {classes};", nodes.len());
        }
        for Handed { from, which, .. } in &self.hands {
            let _ = match which {
                Which::Classes(classes) => write!(text, "{from:?} {classes};"),
                Which::Unsure => write!(text, "{from:?} ?;"),
            };
        }
        // FNV-1a: no secret is kept by it.
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// The words of the request that a node stands for.
pub(crate) fn word(graph: &Graph, id: NodeId) -> ebpf::Word {
    let node = graph.node(id);
    ebpf::Word::new(node.name(), node.span.start, node.span.end - node.span.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> Vec<NodeId> {
        (0..count).map(NodeId).collect()
    }

    fn tree(from: &[Option<usize>], leaves: &[Option<usize>]) -> Tree {
        let nodes = nodes(from.len());
        let step = |(node, from): (&NodeId, &Option<usize>)| Step {
            nodes: vec![*node],
            from: *from,
            classes: ClassSet::all(),
        };
        let hand = |from, which| Handed { from, which, edge: 0, to: NodeId(0) };
        let unsure = (0..from.len()).map(|step| hand(Some(step), Which::Unsure));
        let out = leaves.iter().map(|from| hand(*from, Which::Classes(ClassSet::all())));
        Tree {
            steps: nodes.iter().zip(from).map(step).collect(),
            hands: unsure.chain(out).collect(),
        }
    }

    #[test]
    fn of_a_line_with_too_many_ways_out_the_beginning_stays() {
        let chain: Vec<_> = (0..10_usize).map(|step| step.checked_sub(1)).collect();
        // Each filter may be unsure, and one edge leaves.
        let line = tree(&chain, &[Some(9)]);
        assert_eq!(line.beyond(10), Some(NodeId(9)));
        assert_eq!(line.beyond(4), Some(NodeId(3)), "three filters, and the edge to the fourth");
        assert_eq!(line.beyond(1), Some(NodeId(0)));
        assert_eq!(line.beyond(0), None);
        // Two filters behind the first, and an edge of its own.
        let fork = tree(&[None, Some(0), Some(0)], &[Some(0), Some(1), Some(2)]);
        assert_eq!(fork.hands.len(), 6);
        assert_eq!(fork.beyond(5), Some(NodeId(2)));
        assert_eq!(
            fork.beyond(4),
            Some(NodeId(1)),
            "the first, its edge and two that follow are 4"
        );
    }
}
