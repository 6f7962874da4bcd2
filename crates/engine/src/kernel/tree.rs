//! The part of a plan that one request runs at an attach point, as a tree.
//!
//! In: a program of the plan, and which nodes are ours. Out: the filters, each behind the one from
//! which its blocks come, and the ways out. A block leaves a step by the classes that its edges
//! want, and over several edges if several want it. One that a piece is unsure of goes to the user
//! implementation of that filter, as it came to it, and nowhere else from there on in the kernel.
//!
//! So most ways out exclude each other: a frame takes at most one of all those of a chain. Ways
//! that do so share a sink of the rings, and a line has as many sinks as a frame has ways at most.

use pipeline::ClassSet;
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::Program as Planned;
use std::fmt::Write as _;

/// The work of a program on a frame for one part of the graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// The filters.
    pub(crate) steps: Vec<Step>,
    /// The exits.
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
    /// The blocks that leave: by class, or those that the step is unsure of.
    pub(crate) which: Which,
    /// Over which edge of the graph; of what a step is unsure of, the one that led to it.
    pub(crate) edge: usize,
    /// To which node.
    pub(crate) to: NodeId,
    /// To which sink of the rings: of the ways that share one, a frame takes at most one.
    pub(crate) sink: u32,
}

/// Selects the blocks that take an exit.
#[derive(Clone, Debug)]
pub(crate) enum Which {
    /// These classes.
    Classes(ClassSet),
    /// Blocks that the step is unsure of.
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
                let (edge, to) = (leave.edge.0, edge.to);
                tree.hands.push(Handed { from, which, edge, to, sink: 0 });
            }
        }
        for (number, step) in tree.steps.iter().enumerate() {
            for node in &step.nodes {
                let into = graph.edges.iter().position(|edge| edge.to == *node);
                let (from, to) = (Some(number), *node);
                let (which, edge) = (Which::Unsure, into.unwrap_or(0));
                tree.hands.push(Handed { from, which, edge, to, sink: 0 });
            }
        }
        tree.share();
        tree
    }

    /// Finds the sinks: each way shares the first one of which it excludes all others.
    fn share(&mut self) {
        let mut sinks: Vec<Vec<usize>> = Vec::new();
        for way in 0..self.hands.len() {
            let fits = |sink: &&mut Vec<usize>| sink.iter().all(|one| self.exclude(*one, way));
            let found = sinks.iter_mut().find(fits);
            match found {
                Some(sink) => sink.push(way),
                None => sinks.push(vec![way]),
            }
        }
        for (number, sink) in (0..).zip(sinks) {
            sink.into_iter().for_each(|way| self.hands[way].sink = number);
        }
    }

    /// Returns true if no frame can take both exits: their paths part at disjoint classes, or at a
    /// step that is unsure and so goes no further.
    fn exclude(&self, one: usize, other: usize) -> bool {
        let [mut one, mut other] = [&self.hands[one], &self.hands[other]].map(|hand| {
            let classes = match &hand.which {
                Which::Classes(classes) => Some(classes),
                Which::Unsure => None,
            };
            (hand.from, classes)
        });
        // Filters come behind those that they follow.
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

    /// Returns the number of sinks.
    pub(crate) fn sinks(&self) -> usize {
        self.hands.iter().map(|hand| hand.sink as usize + 1).max().unwrap_or(0)
    }

    /// Returns true if the exit shares its sink.
    pub(crate) fn shares(&self, way: usize) -> bool {
        let here = |hand: &&Handed| hand.sink == self.hands[way].sink;
        self.hands.iter().filter(here).nth(1).is_some()
    }

    /// The first filter that must not be here for `fits` to say yes; none if it does not say so
    /// even of the source alone. Filters come behind those that they follow.
    pub(crate) fn beyond(&self, fits: impl Fn(&Self) -> bool) -> Option<NodeId> {
        let kept = (0..self.steps.len()).rev().find(|kept| fits(&self.beginning(*kept)))?;
        self.steps[kept].nodes.first().copied()
    }

    /// Returns the tree of the first `kept` filters only: their exits, and exits to the filters
    /// that follow.
    fn beginning(&self, kept: usize) -> Self {
        let here = |from: &Option<usize>| from.is_none_or(|from| from < kept);
        let (steps, rest) = self.steps.split_at(kept);
        let hands = self.hands.iter().filter(|hand| here(&hand.from)).cloned();
        let follow = rest.iter().filter(|step| here(&step.from));
        let follow = follow.flat_map(|Step { nodes, from, classes }| {
            nodes.iter().map(|to| {
                let which = Which::Classes(classes.clone());
                Handed { from: *from, which, edge: 0, to: *to, sink: 0 }
            })
        });
        let mut tree = Self { steps: steps.to_vec(), hands: hands.chain(follow).collect() };
        tree.share();
        tree
    }

    /// A number that two trees share which do the same, whoever has made them.
    pub(crate) fn print(&self, graph: &Graph) -> u64 {
        let mut text = String::new();
        // Writing to a text does not fail.
        for Step { nodes, from, classes } in &self.steps {
            let name = nodes.first().map_or("", |id| graph.node(*id).name());
            let _ = write!(text, "{name} {} {from:?} {classes};", nodes.len());
        }
        for Handed { from, which, sink, .. } in &self.hands {
            let _ = match which {
                Which::Classes(classes) => write!(text, "{from:?} {classes} {sink};"),
                Which::Unsure => write!(text, "{from:?} ? {sink};"),
            };
        }
        // FNV-1a: no secret is kept by it.
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// The words of the request that a node stands for.
pub(crate) fn word(graph: &Graph, id: NodeId) -> ebpf::FilterSpan {
    let node = graph.node(id);
    ebpf::FilterSpan::new(node.name(), node.span.start, node.span.end - node.span.start)
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
        let hand = |from, which| Handed { from, which, edge: 0, to: NodeId(0), sink: 0 };
        let unsure = (0..from.len()).map(|step| hand(Some(step), Which::Unsure));
        let out = leaves.iter().map(|from| hand(*from, Which::Classes(ClassSet::all())));
        let mut tree = Tree {
            steps: nodes.iter().zip(from).map(step).collect(),
            hands: unsure.chain(out).collect(),
        };
        tree.share();
        tree
    }

    fn sinks(tree: &Tree) -> Vec<u32> {
        tree.hands.iter().map(|hand| hand.sink).collect()
    }

    #[test]
    fn ways_of_which_a_frame_takes_one_share_a_sink() {
        let chain: Vec<_> = (0..200_usize).map(|step| step.checked_sub(1)).collect();
        let line = tree(&chain, &[Some(199)]);
        assert_eq!((line.hands.len(), line.sinks()), (201, 1));
        assert!(line.shares(0) && line.shares(200));
        // An edge on the way goes beside whatever comes of the frame behind it, and takes part with
        // what the filters up to there are unsure of.
        let line = tree(&[None, Some(0), Some(1)], &[Some(0), Some(2)]);
        assert_eq!(sinks(&line), [0, 0, 0, 1, 0]);
        assert!(line.shares(0) && !line.shares(3));
        // Two branches: each may be unsure of the same frame.
        let fork = tree(&[None, Some(0), Some(0)], &[Some(1), Some(2)]);
        assert_eq!(sinks(&fork), [0, 0, 1, 0, 1]);
        assert_eq!(sinks(&tree(&[None, None], &[None])), [0, 1, 2]);
    }

    #[test]
    fn branches_of_other_classes_share_sinks_too() {
        let mut fork = tree(&[None, Some(0), Some(0), Some(0)], &[Some(1), Some(2), Some(3)]);
        for (step, (low, high)) in [(1, (53, 53)), (2, (80, 443)), (3, (100, 100))] {
            fork.steps[step].classes = ClassSet::range(low, high);
        }
        fork.share();
        assert_eq!(sinks(&fork), [0, 0, 0, 1, 0, 0, 1]);
        // One filter that stands for two nodes is unsure for both.
        fork.steps[0].nodes.push(NodeId(9));
        fork.hands.push(Handed { to: NodeId(9), ..fork.hands[0].clone() });
        fork.share();
        assert_eq!(sinks(&fork), [0, 0, 0, 1, 0, 0, 1, 1]);
    }

    #[test]
    fn of_a_line_with_too_many_ways_out_the_beginning_stays() {
        let most = |ways: usize, sinks: usize| {
            move |tree: &Tree| tree.hands.len() <= ways && tree.sinks() <= sinks
        };
        let chain: Vec<_> = (0..10_usize).map(|step| step.checked_sub(1)).collect();
        // Each filter may be unsure, and one edge leaves.
        let line = tree(&chain, &[Some(9)]);
        assert_eq!(line.beyond(most(10, 1)), Some(NodeId(9)));
        let three = line.beyond(most(4, 1));
        assert_eq!(three, Some(NodeId(3)), "three filters, and the edge to the fourth");
        assert_eq!(line.beyond(most(1, 1)), Some(NodeId(0)));
        assert_eq!(line.beyond(most(0, 1)), None);
        // Two filters behind the first, and an edge of its own.
        let fork = tree(&[None, Some(0), Some(0)], &[Some(0), Some(1), Some(2)]);
        assert_eq!((fork.hands.len(), fork.sinks()), (6, 3));
        assert_eq!(fork.beyond(most(5, 3)), Some(NodeId(2)));
        let first = fork.beyond(most(4, 3));
        assert_eq!(first, Some(NodeId(1)), "the first, its edge and two that follow are 4");
        let first = fork.beyond(most(6, 2));
        assert_eq!(first, Some(NodeId(0)), "three branches are three ways of one frame");
    }
}
