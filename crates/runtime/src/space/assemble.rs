//! Putting nodes and arcs together, and finding out what does not change while they run.

use super::node::{Arc, EdgeDrops, Node, NodeId, Part};
use super::select::Wanted;
use super::walk::Shape;
use filter::{Amount, Filter};

/// The graph of a space while it is being built.
#[derive(Debug, Default)]
pub struct Assembly {
    nodes: Vec<Node>,
    /// Nodes to which several arcs lead, of which one at a time has blocks.
    in_turn: Vec<NodeId>,
}

impl Assembly {
    /// Adds a node.
    pub fn node(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Adds an operand of a Boolean section: called by the section, joined by no arc.
    pub fn operand(&mut self, mut node: Node) -> NodeId {
        node.taken.push(Amount::default());
        self.node(node)
    }

    /// Says that of the arcs that lead to a node one at a time has blocks: nothing is to be sorted.
    pub fn in_turn(&mut self, node: NodeId) {
        self.in_turn.push(node);
    }

    /// The nodes so far.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The nodes so far, to be changed.
    pub fn nodes_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// Puts into a node what could not be made before.
    pub fn replace(&mut self, node: NodeId, part: Part) {
        self.nodes[node].part = part;
    }

    /// Adds an arc behind those that `from` already has.
    pub fn arc(&mut self, from: NodeId, to: NodeId, wanted: Wanted, back: bool, planned: usize) {
        let branch = self.nodes[to].taken.len();
        self.nodes[to].taken.push(Amount::default());
        let (put, dropped) = (Amount::default(), EdgeDrops::default());
        let direct = false;
        self.nodes[from].arcs.push(Arc { to, branch, wanted, back, direct, planned, put, dropped });
    }

    /// The nodes, where branches meet, and the order from the sources to the sinks.
    pub fn done(mut self) -> (Vec<Node>, Shape) {
        let asked_by = self.asked_by();
        let mut inputs = vec![0usize; self.nodes.len()];
        for arc in self.nodes.iter().flat_map(|n| &n.arcs).filter(|arc| !arc.back) {
            inputs[arc.to] += 1;
        }
        let mut joins: Vec<bool> = inputs.iter().map(|n| *n > 1).collect();
        self.in_turn.iter().for_each(|at| joins[*at] = false);
        for arc in self.nodes.iter_mut().flat_map(|node| &mut node.arcs) {
            arc.direct = !arc.back && !joins[arc.to];
        }
        let mut ready: Vec<NodeId> = (0..self.nodes.len()).filter(|n| inputs[*n] == 0).collect();
        ready.reverse();
        let mut order = Vec::with_capacity(self.nodes.len());
        // Edits come last: by then everybody else who is to see the blocks has. [Th §5.3.1]
        let edits = |at: NodeId| matches!(self.nodes[at].part, Part::Filter(Filter::Edit(_)));
        while !ready.is_empty() {
            let next = ready.iter().rposition(|at| !edits(*at)).unwrap_or(ready.len() - 1);
            let at = ready.remove(next);
            order.push(at);
            for arc in self.nodes[at].arcs.iter().filter(|arc| !arc.back) {
                inputs[arc.to] -= 1;
                if inputs[arc.to] == 0 {
                    ready.push(arc.to);
                }
            }
        }
        debug_assert_eq!(order.len(), self.nodes.len(), "back edges are marked");
        let order = self.with_operands(order, &asked_by);
        let mut rank = vec![0; self.nodes.len()];
        for (i, at) in order.iter().enumerate() {
            rank[*at] = i;
        }
        let parts = self.parts(&joins);
        let looks = self.nodes.iter().any(|node| node.part.looks());
        let edits = (0..self.nodes.len()).any(edits);
        let is_deal = |at: &NodeId| matches!(self.nodes[*at].part, Part::Deal(_));
        let deals = (0..self.nodes.len()).filter(is_deal).collect();
        (self.nodes, Shape { rank, order, parts, looks, edits, deals, asked_by })
    }

    /// Returns, for every operand that may hold blocks, its section; the fates of blocks there are
    /// recorded for it.
    fn asked_by(&mut self) -> Vec<Option<NodeId>> {
        let mut asked_by = vec![None; self.nodes.len()];
        let mut asked = vec![false; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            let Part::Asks(section) = &node.part else { continue };
            asked[at] = true;
            for operand in section.operands() {
                (asked_by[operand], asked[operand]) = (Some(at), true);
            }
        }
        for (node, asked) in self.nodes.iter_mut().zip(asked) {
            node.holds.be_asked(asked);
        }
        asked_by
    }

    /// The order of nodes with operands right before their section: what comes before it has let
    /// everything out by then.
    fn with_operands(&self, order: Vec<NodeId>, asked_by: &[Option<NodeId>]) -> Vec<NodeId> {
        let mut with = Vec::with_capacity(order.len());
        for at in order.into_iter().filter(|at| asked_by[*at].is_none()) {
            if let Part::Asks(section) = &self.nodes[at].part {
                with.extend(section.operands());
            }
            with.push(at);
        }
        with
    }

    /// Returns, by node, true where paths fork and no path from further upstream leads around to
    /// the same join.
    fn parts(&self, joins: &[bool]) -> Vec<bool> {
        let forward = |n: NodeId| self.nodes[n].arcs.iter().filter(|arc| !arc.back);
        let forks: Vec<NodeId> =
            (0..self.nodes.len()).filter(|n| forward(*n).count() > 1).collect();
        let mut parts = vec![false; self.nodes.len()];
        for fork in &forks {
            let below = self.reachable(*fork, None);
            let around = forks.iter().filter(|above| *above != fork).any(|above| {
                let past = self.reachable(*above, Some(*fork));
                let joined = |n: usize| joins[n] && below[n] && past[n];
                self.reachable(*above, None)[*fork] && (0..self.nodes.len()).any(joined)
            });
            parts[*fork] = !around;
        }
        parts
    }

    /// The nodes that forward arcs lead to from `from`, without going through `without`.
    fn reachable(&self, from: NodeId, without: Option<NodeId>) -> Vec<bool> {
        let mut reached = vec![false; self.nodes.len()];
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            for arc in self.nodes[at].arcs.iter().filter(|arc| !arc.back) {
                if Some(arc.to) != without && !std::mem::replace(&mut reached[arc.to], true) {
                    open.push(arc.to);
                }
            }
        }
        reached
    }
}
