//! The graph of a request: the output of the checks and the input of the planner.
//!
//! - A **node** is a filter with checked arguments, a Boolean **section** of filters, or a
//!   **merge**, the `++` of different sources. Nodes are in text order. The filters of a section
//!   are nodes too, so they can be pinned and have counters; their `inside` is set, and they have
//!   no edges. Filters that `check` inserts before operands come last.
//! - An **edge** is an arc between two nodes with the set of classes that pass. A plain pipe is
//!   `ClassSet::plain_pipe()`. The label before a group is intersected with the labels of its
//!   branches. A **back edge** closes a cycle (CONTRACT 17): without back edges the graph is
//!   acyclic.
//! - A **join** defines the order in which a node receives blocks from several edges (CONTRACT 16):
//!   the order of the blocks at the fork and, among copies of the same block, the order of the
//!   branches.
//! - All uses of one mark are one node. A node with several outgoing edges sends each block to all
//!   of them.
//!
//! Sources are heads, heads are sources, and sinks have no outgoing edges. A node without outgoing
//! edges need not be a sink; the caller completes or rejects such open ends. Only a graph without
//! errors may be planned. A graph with errors is still complete, with `Step::Unknown` for unknown
//! filters. [SL §4.2, §7]

mod boolean;
mod classes;
mod display;

pub use boolean::{BooleanExpression, SectionOperand};

use crate::classes::ClassSet;
use crate::language::Span;
use filter::{
    Arguments, AttachTarget, Description, Effect, EndpointFacts, FilterKind, Form, ParameterType,
    STATE_PARAMETER, SendingInterface, StandardOutput, UNTRUSTED_PARAMETER,
};
use std::sync::Arc;

/// A checked request, as nodes and edges.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// The text of the request after `insertions` are applied. Parsing and checking this text
    /// yields the same graph. Empty if the graph was not made from a text.
    pub text: Arc<str>,
    /// Values of unset parameters from the machine, each with its byte offset in the text.
    pub insertions: Vec<(usize, String)>,
    /// The nodes of the graph, in text order.
    pub nodes: Vec<Node>,
    /// The edges. Edges to the same target are in text order.
    pub edges: Vec<Edge>,
    /// The nodes where branches meet, each with the order of the blocks that arrive there.
    pub joins: Vec<Join>,
    /// The checked options of the request, without defaults.
    pub options: Arguments,
    /// True if all nodes are planned as one connected component, so that they share threads, even
    /// if no edges connect them. A running path stays one component even if a change disconnects
    /// its sources from each other.
    pub one_component: bool,
}

/// An index into `Graph::nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// An index into `Graph::edges`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeId(pub usize);

/// A node of the graph: a filter, a section of filters, or a merge of sources.
#[derive(Debug, Clone)]
pub struct Node {
    /// The operation that the node performs.
    pub step: Step,
    /// The span in the text; for a node with a mark, the span of its first use.
    pub span: Span,
    /// The section that contains this node, or `None` if it is not an operand.
    pub inside: Option<NodeId>,
    /// The forms of the blocks that can arrive at the node.
    pub input_forms: Vec<Form>,
    /// The nodes that classify arriving blocks: the nearest nodes upstream that have classes, and
    /// sources whose blocks arrive without passing such a node. May be empty.
    pub classifiers: Vec<NodeId>,
}

/// The operation of a node.
#[derive(Debug, Clone)]
pub enum Step {
    /// A filter, source or sink.
    Filter(Box<FilterUse>),
    /// A section (CONTRACT 10): passes a block unchanged, with the class of the last operand that
    /// answered.
    Section(BooleanExpression),
    /// A merge of sources that have no block in common. Branches that begin with the same source
    /// form a section instead.
    Merge,
    /// An unknown or missing filter, which a diagnostic reports.
    Unknown,
}

/// A filter with its arguments in a request.
#[derive(Debug, Clone)]
pub struct FilterUse {
    /// The filter, source or sink.
    pub description: &'static Description,
    /// The facts about the filter as a source, sink or program.
    pub endpoint: &'static EndpointFacts,
    /// The checked arguments, including defaults.
    pub arguments: Arguments,
    /// The space in which the node must run, or `None` if the planner may choose. Set by the
    /// request, or by the program that plans it.
    pub pin: Option<String>,
    /// The reason for `pin`, to be stated in messages. `None` if messages only state that the node
    /// is pinned.
    pub pin_reason: Option<&'static str>,
    /// The mark (`--name=`), if any.
    pub mark: Option<String>,
    /// True if several filter terms of the text denote this node.
    pub repeated: bool,
}

impl FilterUse {
    /// Returns the reason why the filter is bound to one space, or `None` if it is not bound.
    #[must_use]
    pub fn bound_space_reason(&self) -> Option<String> {
        let pin = self.pin.as_ref()?;
        Some(self.pin_reason.map_or_else(|| format!("pinned to {pin}"), str::to_owned))
    }

    /// Returns the name used in messages, such as `tcp` or `tcp#X`.
    #[must_use]
    pub fn display_name(&self) -> String {
        match &self.mark {
            Some(mark) => format!("{}#{mark}", self.description.name),
            None => self.description.name.to_owned(),
        }
    }

    /// Returns true if the filter is a sink.
    #[must_use]
    pub fn is_sink(&self) -> bool {
        self.description.kind == FilterKind::Sink
    }

    /// Returns the properties of the filter with these arguments: kind, emitted forms, bytes read.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.description.effect_of(&self.arguments)
    }

    /// Returns the attachment of a kernel program that can replace this source, or the reason why
    /// no program can. Returns `None` for a source of a kind that programs never replace.
    #[must_use]
    pub fn attachment(&self) -> Option<Result<AttachTarget, String>> {
        self.endpoint.attach_point.map(|attaches| attaches(&self.arguments))
    }

    /// Returns the interface through which this sink sends frames, or `None` for other sinks.
    #[must_use]
    pub fn outlet(&self) -> Option<SendingInterface> {
        self.endpoint.outlet.map(|outlet| outlet(&self.arguments))
    }

    /// Returns true if the filter runs in a sandbox (`untrusted=yes`).
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        self.description.constructor.is_some() && self.arguments.flag(UNTRUSTED_PARAMETER.name)
    }

    /// Returns true if `other` is the same filter with the same arguments, except for `untrusted`
    /// and writable arguments.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        fn fixed_arguments(used: &FilterUse) -> Vec<(&'static str, &filter::Value)> {
            let parameter = |name: &str| used.description.parameter(name);
            let fixed_arguments = |name: &str| {
                name != UNTRUSTED_PARAMETER.name
                    && !parameter(name).is_some_and(|known| known.writable)
            };
            used.arguments.iter().filter(|(name, _)| fixed_arguments(name)).collect()
        }
        self.description.is_same_entry(other.description)
            && fixed_arguments(self) == fixed_arguments(other)
    }

    /// Returns true if any writable argument has a different value in `other`, which must be the
    /// same filter.
    #[must_use]
    pub fn has_other_writable_values(&self, other: &Self) -> bool {
        let mut names = self.description.parameters.iter().filter(|p| p.writable).map(|p| p.name);
        names.any(|name| self.arguments.get(name) != other.arguments.get(name))
    }

    /// Returns the name under which the filter publishes its state (`state=NAME`), or `None` if it
    /// publishes none.
    #[must_use]
    pub fn published_state_name(&self) -> Option<&str> {
        self.description.constructor.and_then(|_| self.arguments.text(STATE_PARAMETER.name))
    }

    /// Returns true if the filter runs in its own process, as programs and untrusted filters do.
    #[must_use]
    pub fn has_own_process(&self) -> bool {
        self.endpoint.is_program || self.is_untrusted()
    }
}

/// An arc between two nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The node that sends blocks over the edge.
    pub from: NodeId,
    /// The node that receives blocks from the edge.
    pub to: NodeId,
    /// The classes of the blocks that pass over the edge.
    pub classes: ClassSet,
    /// The span of the label in the text, or of a plain pipe. Empty if several labels restrict the
    /// edge: the label of the pipe and the labels of branches.
    pub span: Span,
    /// True if the edge closes a cycle.
    pub back: bool,
}

/// A node where branches meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The node that receives the blocks of all branches.
    pub node: NodeId,
    /// The order in which the node receives the blocks of its incoming edges.
    pub order: BlockOrder,
}

/// The order in which a node receives the blocks of its incoming edges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockOrder {
    /// The node receives all blocks over this edge, in the order of the edge.
    Edge(EdgeId),
    /// Blocks arrive from several branches, in the order that they had before the branches forked.
    /// Among the blocks derived from one block, those of an earlier branch come first.
    Split {
        /// The nodes at which the branches fork; each of them sends every block to all branches.
        /// Empty if the branches begin with sources, whose blocks are ordered only by time.
        forks: Vec<NodeId>,
        /// The order of the blocks within each branch. The branches are listed as in the text.
        branches: Vec<Self>,
    },
}

impl Graph {
    /// Returns the node with this id.
    ///
    /// # Panics
    /// If the graph has no node with this id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// Returns all nodes with their ids, in text order.
    pub fn nodes_with_ids(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(index, node)| (NodeId(index), node))
    }

    /// Returns a node's incoming edges, in text order.
    pub fn inputs(&self, to: NodeId) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.to == to)
    }

    /// Returns true if a sink writes a capture to standard output, where nothing else may be
    /// written.
    #[must_use]
    pub fn writes_capture_to_standard_output(&self) -> bool {
        self.nodes_with_ids().any(|(id, _)| self.standard_output(id) == StandardOutput::Capture)
    }

    /// Returns true if a node is a source that reads standard input.
    #[must_use]
    pub fn reads_standard_input(&self, id: NodeId) -> bool {
        let used =
            self.node(id).filter().filter(|used| used.description.kind == FilterKind::Source);
        used.is_some_and(|used| {
            let mut paths =
                used.description.parameters.iter().filter(|it| it.kind == ParameterType::Path);
            paths.any(|path| used.arguments.text(path.name) == Some("-"))
        })
    }

    /// Returns the way in which a node uses standard output.
    #[must_use]
    pub fn standard_output(&self, id: NodeId) -> StandardOutput {
        let Some(used) = self.node(id).filter() else { return StandardOutput::Unused };
        match used.endpoint.standard_output {
            Some(output) => output(&used.arguments),
            // A program at the end of a path inherits standard output.
            None if used.endpoint.is_program && self.outputs(id).next().is_none() => {
                StandardOutput::Lines
            }
            None => StandardOutput::Unused,
        }
    }

    /// Returns a node's outgoing edges, in text order.
    pub fn outputs(&self, from: NodeId) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.from == from)
    }

    /// Returns the operands of a section; none for any other node.
    pub fn operands(&self, section: NodeId) -> impl Iterator<Item = NodeId> {
        self.nodes_with_ids()
            .filter(move |(_, node)| node.inside == Some(section))
            .map(|(id, _)| id)
    }

    /// Returns the sources: the nodes that have no incoming edges except back edges.
    pub fn heads(&self) -> Vec<NodeId> {
        self.nodes_outside_sections(|id| !self.inputs(id).any(|edge| !edge.back))
    }

    /// Returns the nodes without outgoing edges: sinks, and filters whose output is not used.
    pub fn ends(&self) -> Vec<NodeId> {
        self.nodes_outside_sections(|id| self.outputs(id).next().is_none())
    }

    /// Returns the nodes in order from the sources to the sinks, one branch after another; operands
    /// follow their section.
    pub(crate) fn stream_order(&self) -> Vec<NodeId> {
        let inputs = |id: NodeId| self.inputs(id).filter(|edge| !edge.back).count();
        let mut missing: Vec<usize> = self.nodes_with_ids().map(|(id, _)| inputs(id)).collect();
        let mut open = self.heads();
        open.reverse();
        let mut order = Vec::new();
        while let Some(id) = open.pop() {
            order.push(id);
            order.extend(self.operands(id));
            for edge in self.outputs(id).filter(|edge| !edge.back) {
                missing[edge.to.0] -= 1;
                if missing[edge.to.0] == 0 {
                    open.push(edge.to);
                }
            }
        }
        order
    }

    fn nodes_outside_sections(&self, wanted: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        self.nodes_with_ids()
            .filter(|(id, node)| node.inside.is_none() && wanted(*id))
            .map(|(id, _)| id)
            .collect()
    }
}

impl Node {
    /// Returns the filter of the node, or `None` for a section, a merge or an unknown filter.
    pub fn filter(&self) -> Option<&FilterUse> {
        match &self.step {
            Step::Filter(filter) => Some(filter),
            Step::Section(_) | Step::Merge | Step::Unknown => None,
        }
    }

    /// Returns the node's name for messages.
    pub fn name(&self) -> &str {
        match &self.step {
            Step::Filter(filter) => filter.description.name,
            Step::Section(_) => "boolean",
            Step::Merge => "merge",
            Step::Unknown => "?",
        }
    }

    /// Returns true if the node runs in its own process, as programs and untrusted filters do.
    pub fn has_own_process(&self) -> bool {
        self.filter().is_some_and(FilterUse::has_own_process)
    }

    /// Returns true if the node is an untrusted filter.
    pub fn is_untrusted(&self) -> bool {
        self.filter().is_some_and(FilterUse::is_untrusted)
    }

    /// Returns the kind of the filter, given its arguments, or `None` if the node has no filter.
    pub fn kind(&self) -> Option<FilterKind> {
        self.filter().map(|filter| filter.effect().kind)
    }
}

/// Returns all nodes reachable from `from` through `next`, in breadth-first order, `from` first.
pub(crate) fn reachable<I: IntoIterator<Item = NodeId>>(
    from: &[NodeId],
    next: impl Fn(NodeId) -> I,
) -> Vec<NodeId> {
    let mut found = from.to_vec();
    let mut at = 0;
    while let Some(id) = found.get(at).copied() {
        at += 1;
        for new in next(id) {
            if !found.contains(&new) {
                found.push(new);
            }
        }
    }
    found
}
