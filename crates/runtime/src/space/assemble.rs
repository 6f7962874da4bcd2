//! The builder of a space's graph. It also computes the shape of the graph: the topological order
//! of its nodes, its forks and its joins. A fork is a node with several outgoing arcs.

use super::arc::NodeId;
use super::arc::{EdgeDrops, GraphArc};
use super::class_selection::SelectedClasses;
use super::graph_shape::GraphShape;
use super::node::{Node, Operator};
use endpoint::source::kernel::frames_in_place::FramesInPlace;
use filter::{Amount, Filter};
use std::sync::Arc;

/// The graph of a space under construction.
#[derive(Debug, Default)]
pub struct Assembly {
    nodes: Vec<Node>,
    /// Nodes that need no join although they have several incoming arcs, because only one of these
    /// arcs carries blocks at a time.
    exclusive_inputs: Vec<NodeId>,
}

impl Assembly {
    /// Adds a node to the graph. Returns the index of the node.
    pub fn add_node(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Adds an operand of a Boolean section. The section calls the operand directly, not over an
    /// arc.
    pub fn add_operand(&mut self, mut node: Node) -> NodeId {
        node.taken.push(Amount::default());
        self.add_node(node)
    }

    /// Declares that `node` needs no join although it has several incoming arcs, because only one
    /// of these arcs carries blocks at a time.
    pub fn declare_exclusive_inputs(&mut self, node: NodeId) {
        self.exclusive_inputs.push(node);
    }

    /// Returns the nodes added to the graph so far.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the nodes added to the graph so far, for modification.
    pub fn nodes_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// Replaces the operator of a node.
    pub fn replace_operator(&mut self, node: NodeId, part: Operator) {
        self.nodes[node].operator = part;
    }

    /// Adds an arc from the node `from` to the node `to`, after the existing arcs of `from`.
    /// `wanted` contains the classes that the arc accepts. `back` is true for a back edge.
    /// `planned` is the number of the edge.
    pub fn add_arc(
        &mut self,
        from: NodeId,
        to: NodeId,
        wanted: SelectedClasses,
        back: bool,
        planned: usize,
    ) {
        let branch = self.nodes[to].taken.len();
        self.nodes[to].taken.push(Amount::default());
        let (put, dropped) = (Amount::default(), EdgeDrops::default());
        let direct = false;
        self.nodes[from].arcs.push(GraphArc {
            to,
            branch,
            wanted,
            is_back: back,
            is_direct: direct,
            planned,
            put,
            dropped,
        });
    }

    /// Completes the graph. Returns its nodes and its shape: the topological order of the nodes,
    /// the forks (nodes with several outgoing arcs) and the joins. The topological order places
    /// editing filters as late as possible, after parallel readers of the same blocks.
    pub fn finish(mut self) -> (Vec<Node>, GraphShape) {
        let section_of = self.assign_operand_sections();
        let mut inputs = vec![0usize; self.nodes.len()];
        for arc in self.nodes.iter().flat_map(|n| &n.arcs).filter(|arc| !arc.is_back) {
            inputs[arc.to] += 1;
        }
        let mut joins: Vec<bool> = inputs.iter().map(|n| *n > 1).collect();
        self.exclusive_inputs.iter().for_each(|at| joins[*at] = false);
        for arc in self.nodes.iter_mut().flat_map(|node| &mut node.arcs) {
            arc.is_direct = !arc.is_back && !joins[arc.to];
        }
        let mut ready: Vec<NodeId> = (0..self.nodes.len()).filter(|n| inputs[*n] == 0).collect();
        ready.reverse();
        let mut order = Vec::with_capacity(self.nodes.len());
        // Edits come last, after all parallel readers of the same block. [Th §5.3.1]
        let edits =
            |at: NodeId| matches!(self.nodes[at].operator, Operator::Filter(Filter::Edit(_)));
        while !ready.is_empty() {
            let next = ready.iter().rposition(|at| !edits(*at)).unwrap_or(ready.len() - 1);
            let at = ready.remove(next);
            order.push(at);
            for arc in self.nodes[at].arcs.iter().filter(|arc| !arc.is_back) {
                inputs[arc.to] -= 1;
                if inputs[arc.to] == 0 {
                    ready.push(arc.to);
                }
            }
        }
        debug_assert_eq!(order.len(), self.nodes.len(), "back edges are marked");
        let order = self.insert_operands(order, &section_of);
        let mut rank = vec![0; self.nodes.len()];
        for (i, at) in order.iter().enumerate() {
            rank[*at] = i;
        }
        let numbering_forks = self.numbering_forks(&joins);
        let reads_bytes = self.nodes.iter().any(|node| node.operator.reads_bytes());
        let needs_bytes = self.nodes.iter().any(|node| node.operator.needs_bytes());
        let edits = (0..self.nodes.len()).any(edits);
        let sources = 0..self.nodes.len();
        let arcs_in_place = sources.map(|source| self.offer_frames_in_place(source)).collect();
        let is_dispatch = |at: &NodeId| matches!(self.nodes[*at].operator, Operator::Dispatch(_));
        let dispatchers = (0..self.nodes.len()).filter(is_dispatch).collect();
        (
            self.nodes,
            GraphShape {
                rank,
                order,
                numbering_forks,
                reads_bytes,
                needs_bytes,
                arcs_in_place,
                edits,
                dispatchers,
                section_of,
            },
        )
    }

    /// Offers the frames of a kernel source to the sinks, so that they use the frames directly in
    /// kernel memory. Returns a bit mask with one bit for each arc of the source. The bit is set if
    /// the arc leads only to sinks, and all of them accept the offer.
    fn offer_frames_in_place(&mut self, source: NodeId) -> u64 {
        let Operator::Source(part) = &self.nodes[source].operator else { return 0 };
        let Some(frames) = part.properties.in_place.clone() else { return 0 };
        let targets: Vec<NodeId> = self.nodes[source].arcs.iter().map(|arc| arc.to).collect();
        let bits = (0..u64::BITS).zip(targets);
        bits.map(|(bit, to)| u64::from(self.offer_frames_to_node(to, &frames)) << bit).sum()
    }

    /// Offers the frames of a kernel source to the node `at` and, if it only forwards blocks, to
    /// the nodes downstream. Returns true if all routes end in sinks that use the frames directly
    /// in kernel memory.
    fn offer_frames_to_node(&mut self, at: NodeId, frames: &Arc<FramesInPlace>) -> bool {
        match &mut self.nodes[at].operator {
            Operator::Sink(part) => part.sink.accepts_in_place(frames),
            Operator::Pass => {
                let forward = self.nodes[at].arcs.iter().filter(|arc| !arc.is_back);
                let targets: Vec<NodeId> = forward.map(|arc| arc.to).collect();
                targets.into_iter().all(|to| self.offer_frames_to_node(to, frames))
            }
            _ => false,
        }
    }

    /// Finds the operands of sections. Returns, for each node, the section to which it belongs as
    /// an operand, or `None` for other nodes. Also makes operands and sections, but no other nodes,
    /// record when a held block is released, dropped or merged.
    fn assign_operand_sections(&mut self) -> Vec<Option<NodeId>> {
        let mut section_of = vec![None; self.nodes.len()];
        let mut asked = vec![false; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            let Operator::OperandSection(section) = &node.operator else { continue };
            asked[at] = true;
            for operand in section.operands() {
                (section_of[operand], asked[operand]) = (Some(at), true);
            }
        }
        for (node, asked) in self.nodes.iter_mut().zip(asked) {
            node.holds.set_fate_tracking(asked);
        }
        section_of
    }

    /// Inserts the operands of sections into the order of the nodes, each directly before its
    /// section. The order determines the shutdown: nodes upstream of the section then release their
    /// held blocks before the operands do.
    fn insert_operands(&self, order: Vec<NodeId>, section_of: &[Option<NodeId>]) -> Vec<NodeId> {
        let mut with = Vec::with_capacity(order.len());
        for at in order.into_iter().filter(|at| section_of[*at].is_none()) {
            if let Operator::OperandSection(section) = &self.nodes[at].operator {
                with.extend(section.operands());
            }
            with.push(at);
        }
        with
    }

    /// Returns, for each node, true if it is a fork that must assign sequence numbers to blocks. A
    /// fork is a node with several forward arcs. A fork inside the branches of an outer fork
    /// assigns none, if these branches are joined further downstream.
    fn numbering_forks(&self, joins: &[bool]) -> Vec<bool> {
        let forward = |n: NodeId| self.nodes[n].arcs.iter().filter(|arc| !arc.is_back);
        let forks: Vec<NodeId> =
            (0..self.nodes.len()).filter(|n| forward(*n).count() > 1).collect();
        let mut is_numbering = vec![false; self.nodes.len()];
        for fork in &forks {
            let below = self.reachable_nodes(*fork, None);
            let around = forks.iter().filter(|above| *above != fork).any(|above| {
                let past = self.reachable_nodes(*above, Some(*fork));
                let joined = |n: usize| joins[n] && below[n] && past[n];
                self.reachable_nodes(*above, None)[*fork] && (0..self.nodes.len()).any(joined)
            });
            is_numbering[*fork] = !around;
        }
        is_numbering
    }

    /// Returns, for each node, true if it can be reached from `from` over forward arcs without
    /// passing through `without`.
    fn reachable_nodes(&self, from: NodeId, without: Option<NodeId>) -> Vec<bool> {
        let mut reached = vec![false; self.nodes.len()];
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            for arc in self.nodes[at].arcs.iter().filter(|arc| !arc.is_back) {
                if Some(arc.to) != without && !std::mem::replace(&mut reached[arc.to], true) {
                    open.push(arc.to);
                }
            }
        }
        reached
    }
}
