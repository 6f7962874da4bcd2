//! Lowering of the syntax tree to nodes and arcs, before names are looked up.
//!
//! Each term becomes a subgraph. A subgraph has entries and an exit. An entry is a node that
//! receives input, with the labels of the branches that begin with this node. The exit consists of
//! the nodes whose output leaves the subgraph, grouped by branch, so that a join can order its
//! inputs. A `++` without an incoming stream unites sources (see `union`). With an incoming stream,
//! `++`, `+*` and `!` become sections, whose operands are nodes inside them. [SL §4.2], CONTRACT 10

use std::collections::HashMap;

use filter::Description;

use super::union::{SourceNumbers, UnionOperands};
use crate::graph::{BlockOrder, BooleanExpression, EdgeId, Join, NodeId, SectionOperand};
use crate::language::limits::ARCS_MAX;
use crate::language::tree::{Branch, FilterTerm, Label, Operator, Request, Term};
use crate::language::{Diagnostic, Span};
use crate::registry::Registry;

/// The warning about a repeated arc between two marked nodes.
pub(crate) const REPEATED_ARC_MESSAGE: &str = "this arc is given twice";

/// The graph of a request while the checks complete it.
pub(super) struct Draft<'t> {
    pub(super) nodes: Vec<DraftNode<'t>>,
    pub(super) edges: Vec<DraftEdge<'t>>,
    pub(super) joins: Vec<Join>,
    pub(super) mistakes: Vec<Diagnostic>,
    /// The values that the machine supplies for unset parameters, each with the byte offset at
    /// which to insert it into the text of the request.
    pub(super) insertions: Vec<(usize, String)>,
    /// The `++` terms that unite sources.
    pub(super) united: Vec<UnionOperands>,
    /// The number of each source in the request, which is the same for filter terms that denote the
    /// same source.
    pub(super) source_numbers: SourceNumbers,
    pub(super) marks: HashMap<&'t str, NodeId>,
    /// True if the number of arcs exceeds `ARCS_MAX`. The excess arcs are omitted.
    pub(super) too_many_arcs: bool,
}

pub(super) struct DraftNode<'t> {
    pub(super) step: DraftStep<'t>,
    pub(super) span: Span,
    pub(super) inside: Option<NodeId>,
    /// The registry entry for the node's name, or `None` for a section or an unknown name. The
    /// check `shape` sets it.
    pub(super) entry: Option<&'static Description>,
}

pub(super) enum DraftStep<'t> {
    /// A filter, with all terms that denote it. There are several terms if they share a mark.
    Filter(Vec<&'t FilterTerm>),
    /// A section, which combines operands with `++`, `+*` or `!`, and its operator.
    Section(BooleanExpression<Option<&'t Label>>, &'static str),
    Merge,
    Hole,
}

pub(super) struct DraftEdge<'t> {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) arc: Option<&'t Label>,
    /// The labels of the branches that begin with the arc's target, from the outermost to the
    /// innermost branch. They restrict the arc in addition to the label of its pipe.
    pub(super) branch_labels: Vec<&'t Label>,
    pub(super) span: Span,
    /// True if the pipe is plain and has no white space on either side, as in `dport|ssh`.
    pub(super) glued: bool,
    /// The target term of the arc, or `None` if the text does not contain it.
    pub(super) target: Option<&'t Term>,
    pub(super) back: bool,
}

impl DraftEdge<'_> {
    /// Returns the span of the only label of the arc, or of the pipe if the arc is plain. The span
    /// is empty if several labels restrict the arc.
    pub(super) fn label_span(&self) -> Span {
        match (self.arc, self.branch_labels.as_slice()) {
            (_, []) => self.span,
            (None, [label]) => label.span,
            _ => Span::new(self.span.start, self.span.start),
        }
    }
}

/// A node at which blocks enter a subgraph, with the labels of the branches that begin with this
/// node.
pub(super) struct SubgraphInput<'t> {
    pub(super) node: NodeId,
    pub(super) labels: Vec<&'t Label>,
}

/// The nodes at which blocks leave a subgraph, grouped by branch if it has several.
pub(super) enum SubgraphOutput {
    Node(NodeId),
    Split { forks: Vec<NodeId>, branches: Vec<Self> },
}

pub(super) struct Subgraph<'t> {
    pub(super) entries: Vec<SubgraphInput<'t>>,
    pub(super) exit: SubgraphOutput,
}

/// A pipe in the text; it becomes one edge for each pair of connected nodes.
#[derive(Clone, Copy)]
pub(super) struct DraftPipe<'t> {
    label: Option<&'t Label>,
    span: Span,
    glued: bool,
    target: Option<&'t Term>,
}

impl DraftPipe<'_> {
    /// Returns a pipe without a label, for an arc that the text of the request does not contain.
    /// Messages about this arc point to `span`.
    pub(super) const fn plain(span: Span) -> Self {
        Self { label: None, span, glued: false, target: None }
    }
}

pub(super) fn lower_request<'t>(request: &'t Request, registry: &dyn Registry) -> Draft<'t> {
    let mut draft = Draft {
        nodes: Vec::new(),
        edges: Vec::new(),
        joins: Vec::new(),
        mistakes: Vec::new(),
        insertions: Vec::new(),
        united: Vec::new(),
        source_numbers: SourceNumbers::number_sources(request, registry),
        marks: HashMap::new(),
        too_many_arcs: false,
    };
    for pipeline in &request.pipelines {
        let subgraph = draft.lower_term(pipeline, &[]);
        for label in subgraph.entries.iter().flat_map(|entry| &entry.labels) {
            draft.report_label_without_stream(label);
        }
    }
    draft
}

impl<'t> Draft<'t> {
    /// Converts a term to a subgraph. `incoming` contains the nodes whose output the term receives;
    /// it is empty at the beginning of a line.
    fn lower_term(&mut self, term: &'t Term, incoming: &[NodeId]) -> Subgraph<'t> {
        match term {
            Term::Hole(span) => self.single_node(DraftStep::Hole, *span),
            Term::Filter(node) => self.lower_filter(node),
            Term::Not(not) => self.lower_section(term, "!", not.span),
            Term::Group(group) => match (group.operator, group.branches.as_slice()) {
                (Operator::Parallel, [only]) => self.lower_branch(only, incoming),
                (Operator::Parallel, branches) => self.lower_parallel(branches, incoming),
                (Operator::Union, branches) if incoming.is_empty() => {
                    self.lower_union(group, branches)
                }
                (operator, _) => self.lower_section(term, operator.symbol(), group.span),
            },
            Term::Pipeline(pipeline) => {
                let mut subgraph = self.lower_term(&pipeline.first, incoming);
                let mut before = pipeline.first.span();
                for stage in &pipeline.rest {
                    let next = self.lower_term(&stage.term, &subgraph.exit.nodes());
                    let span = stage.term.span();
                    let pipe = DraftPipe {
                        label: stage.arc.label.as_ref(),
                        span: stage.arc.span,
                        glued: before.end == stage.arc.span.start
                            && stage.arc.span.end == span.start,
                        target: Some(&stage.term),
                    };
                    self.connect(&subgraph.exit, pipe, &next.entries);
                    subgraph.exit = next.exit;
                    before = span;
                }
                subgraph
            }
        }
    }

    pub(super) fn single_node(&mut self, step: DraftStep<'t>, span: Span) -> Subgraph<'t> {
        let node = self.push_node(step, span, None);
        Subgraph::from_node(node)
    }

    pub(super) fn push_node(
        &mut self,
        step: DraftStep<'t>,
        span: Span,
        inside: Option<NodeId>,
    ) -> NodeId {
        self.nodes.push(DraftNode { step, span, inside, entry: None });
        NodeId(self.nodes.len() - 1)
    }

    pub(super) fn lower_filter(&mut self, node: &'t FilterTerm) -> Subgraph<'t> {
        let mark = node.mark.as_ref().map(|mark| mark.text.as_str());
        let known = mark.and_then(|mark| self.marks.get(mark)).copied();
        if let Some(id) = known {
            if let DraftStep::Filter(uses) = &mut self.nodes[id.0].step {
                uses.push(node);
            }
            return Subgraph::from_node(id);
        }
        let subgraph = self.single_node(DraftStep::Filter(vec![node]), node.span);
        if let (Some(mark), SubgraphOutput::Node(id)) = (mark, &subgraph.exit) {
            self.marks.insert(mark, *id);
        }
        subgraph
    }

    pub(super) fn lower_branch(&mut self, branch: &'t Branch, incoming: &[NodeId]) -> Subgraph<'t> {
        let mut subgraph = self.lower_term(&branch.term, incoming);
        if let Some(label) = &branch.label {
            subgraph.entries.iter_mut().for_each(|entry| entry.labels.insert(0, label));
        }
        subgraph
    }

    fn lower_parallel(&mut self, branches: &'t [Branch], incoming: &[NodeId]) -> Subgraph<'t> {
        let mut entries = Vec::new();
        let mut exits = Vec::new();
        for branch in branches {
            let subgraph = self.lower_branch(branch, incoming);
            entries.extend(subgraph.entries);
            exits.push(subgraph.exit);
        }
        Subgraph {
            entries,
            exit: SubgraphOutput::Split { forks: incoming.to_vec(), branches: exits },
        }
    }

    fn lower_section(
        &mut self,
        term: &'t Term,
        operator: &'static str,
        span: Span,
    ) -> Subgraph<'t> {
        let owner = self.push_node(DraftStep::Hole, span, None);
        let body = self.lower_body(term, owner);
        self.nodes[owner.0].step = DraftStep::Section(body, operator);
        Subgraph::from_node(owner)
    }

    pub(super) fn lower_body(
        &mut self,
        term: &'t Term,
        owner: NodeId,
    ) -> BooleanExpression<Option<&'t Label>> {
        match term {
            Term::Hole(span) => {
                BooleanExpression::Filter(self.push_node(DraftStep::Hole, *span, Some(owner)))
            }
            Term::Filter(node) => {
                if let Some(mark) = &node.mark {
                    self.mistakes
                        .push(Diagnostic::error(mark.span, "an operand cannot be marked").why(
                        "a mark leads a second arc to a filter, and no arc leads into an operand",
                    ));
                }
                BooleanExpression::Filter(self.push_node(
                    DraftStep::Filter(vec![node]),
                    node.span,
                    Some(owner),
                ))
            }
            Term::Not(not) => BooleanExpression::Not(Box::new(self.lower_body(&not.term, owner))),
            Term::Pipeline(pipeline) => {
                let first = Box::new(self.lower_body(&pipeline.first, owner));
                let rest = pipeline.rest.iter().map(|stage| SectionOperand {
                    classes: stage.arc.label.as_ref(),
                    body: self.lower_body(&stage.term, owner),
                });
                BooleanExpression::Chain { first, rest: rest.collect() }
            }
            Term::Group(group) => {
                let links = group.branches.iter().map(|branch| SectionOperand {
                    classes: branch.label.as_ref(),
                    body: self.lower_body(&branch.term, owner),
                });
                let links: Vec<_> = links.collect();
                if group.operator == Operator::Parallel && links.len() > 1 {
                    self.mistakes.push(
                        Diagnostic::error(group.span, "an operand cannot hold `+`")
                            .why("`+` copies a block to each branch, and an operand only answers")
                            .hint("for one or the other write `++`"),
                    );
                }
                match group.operator {
                    Operator::Parallel | Operator::Union => BooleanExpression::Any(links),
                    Operator::Section => BooleanExpression::All(links),
                }
            }
        }
    }

    /// Connects every output node in `exit` to the node of every entry. Records a join for each of
    /// these nodes at which branches meet. Stops when the number of arcs exceeds `ARCS_MAX`.
    pub(super) fn connect(
        &mut self,
        exit: &SubgraphOutput,
        pipe: DraftPipe<'t>,
        entries: &[SubgraphInput<'t>],
    ) {
        for entry in entries {
            let Some(order) = self.connect_to_entry(exit, pipe, entry) else { return };
            if matches!(order, BlockOrder::Split { .. }) {
                self.joins.push(Join { node: entry.node, order });
            }
        }
    }

    fn connect_to_entry(
        &mut self,
        exit: &SubgraphOutput,
        pipe: DraftPipe<'t>,
        entry: &SubgraphInput<'t>,
    ) -> Option<BlockOrder> {
        match exit {
            SubgraphOutput::Node(from) => self.add_edge(*from, pipe, entry).map(BlockOrder::Edge),
            SubgraphOutput::Split { forks, branches } => {
                let branches =
                    branches.iter().map(|branch| self.connect_to_entry(branch, pipe, entry));
                let branches = branches.collect::<Option<Vec<BlockOrder>>>()?;
                Some(BlockOrder::Split { forks: forks.clone(), branches })
            }
        }
    }

    fn add_edge(
        &mut self,
        from: NodeId,
        pipe: DraftPipe<'t>,
        entry: &SubgraphInput<'t>,
    ) -> Option<EdgeId> {
        if let Some(twice) = self.find_repeated_edge(from, pipe, entry) {
            return Some(twice);
        }
        if self.edges.len() >= ARCS_MAX {
            if !self.too_many_arcs {
                let what = format!("the request has more than {ARCS_MAX} arcs");
                let hint = "each filter of a group leads to each of the next; put a `join` between";
                self.mistakes.push(Diagnostic::error(pipe.span, what).hint(hint));
            }
            self.too_many_arcs = true;
            return None;
        }
        self.edges.push(DraftEdge {
            from,
            to: entry.node,
            arc: pipe.label,
            branch_labels: entry.labels.clone(),
            span: pipe.span,
            glued: pipe.glued && pipe.label.is_none(),
            target: pipe.target,
            back: false,
        });
        Some(EdgeId(self.edges.len() - 1))
    }

    /// Returns the edge that the request already contains between the same two marked nodes, with
    /// the same labels as this pipe, and warns about the repetition. Returns `None` if there is no
    /// such edge. A request may repeat an arc only to continue from its second node.
    fn find_repeated_edge(
        &mut self,
        from: NodeId,
        pipe: DraftPipe<'t>,
        entry: &SubgraphInput<'t>,
    ) -> Option<EdgeId> {
        let marked = |id: NodeId| match &self.nodes[id.0].step {
            DraftStep::Filter(uses) => uses.len() > 1,
            _ => false,
        };
        if !marked(from) || !marked(entry.node) {
            return None;
        }
        let text = |label: Option<&Label>, branch: &[&Label]| -> Vec<String> {
            label.into_iter().chain(branch.iter().copied()).map(Label::to_string).collect()
        };
        let wanted = text(pipe.label, &entry.labels);
        let at = self.edges.iter().position(|edge| {
            edge.from == from
                && edge.to == entry.node
                && text(edge.arc, &edge.branch_labels) == wanted
        })?;
        self.mistakes.push(
            Diagnostic::warning(pipe.span, REPEATED_ARC_MESSAGE)
                .why("equal marks are one node, so blocks pass it once"),
        );
        Some(EdgeId(at))
    }

    fn report_label_without_stream(&mut self, label: &Label) {
        let mistake =
            Diagnostic::error(label.span, format!("`{label}` has nothing to choose from"));
        self.mistakes.push(mistake.why("no stream can enter the start of a pipeline"));
    }
}

impl Subgraph<'_> {
    /// Returns a subgraph that consists of this node.
    fn from_node(node: NodeId) -> Self {
        Self {
            entries: vec![SubgraphInput { node, labels: Vec::new() }],
            exit: SubgraphOutput::Node(node),
        }
    }
}

impl SubgraphOutput {
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        match self {
            Self::Node(node) => vec![*node],
            Self::Split { branches, .. } => branches.iter().flat_map(Self::nodes).collect(),
        }
    }
}
