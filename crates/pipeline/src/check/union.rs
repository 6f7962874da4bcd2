//! `++` at the head of a line: the union of sources, which emits each block once (CONTRACT 10,
//! docs/book/decisions/0047-operands.md).
//!
//! Branches that begin with the same source become one source and a section after it: `(s | a) ++
//! (s | b)` is `s | (a ++ b)`, and `s ++ s` is `s`. Different sources are merged. Sources that are
//! written differently but may emit the same block are rejected, because the two copies of a block
//! could not be recognized as the same block.

use std::collections::HashMap;

use filter::{Arguments, ObservedSource, SourceOverlap, Value};

use super::arguments::parse_arguments;
use super::lower::{Draft, DraftPipe, DraftStep, Subgraph, SubgraphInput, SubgraphOutput};
use crate::graph::{BooleanExpression, FilterUse, NodeId, SectionOperand, reachable};
use crate::language::tree::{Branch, FilterTerm, Group, Label, Request, Stage, Term};
use crate::language::{Diagnostic, Span};
use crate::registry::Registry;

/// The numbers of the sources at the beginnings of `++` branches. Equal numbers denote the same
/// source. The key is the span of the source's filter term.
pub(super) struct SourceNumbers(HashMap<Span, usize>);

impl SourceNumbers {
    /// Assigns a number to each source at the beginning of a `++` branch. Equal numbers denote the
    /// same source. Omits sources that do not report what they observe.
    pub(super) fn number_sources(request: &Request, registry: &dyn Registry) -> Self {
        let mut known: Vec<(&str, Arguments)> = Vec::new();
        let mut numbers = HashMap::new();
        let mut nodes = Vec::new();
        request.pipelines.iter().for_each(|term| collect_branch_heads(term, false, &mut nodes));
        for node in nodes {
            let Some(entry) = registry.find_source(&node.name.text) else { continue };
            if registry.endpoint_facts(entry).observed_source.is_none() {
                continue;
            }
            let none = Arguments::default();
            let (given, _) = parse_arguments(node, entry, &none, registry, &mut Vec::new());
            let is = |other: &(&str, Arguments)| other.0 == entry.name && other.1 == given;
            let number = known.iter().position(is).unwrap_or(known.len());
            if number == known.len() {
                known.push((entry.name, given));
            }
            numbers.insert(node.span, number);
        }
        Self(numbers)
    }

    /// Returns true if two terms denote the same source, because their marks or their arguments are
    /// equal.
    fn is_same_source(&self, one: &FilterTerm, other: &FilterTerm) -> bool {
        match (&one.mark, &other.mark) {
            (Some(one), Some(other)) => one.text == other.text,
            _ => {
                let number = |node: &FilterTerm| self.0.get(&node.span);
                number(one).is_some() && number(one) == number(other)
            }
        }
    }
}

/// Collects, for each `++` in a term, the filters at the beginnings of its branches. `within` is
/// true if `term` itself begins such a branch.
fn collect_branch_heads<'t>(term: &'t Term, within: bool, nodes: &mut Vec<&'t FilterTerm>) {
    match term {
        Term::Hole(_) => {}
        Term::Filter(node) if within => nodes.push(node),
        Term::Filter(_) => {}
        Term::Not(not) => collect_branch_heads(&not.term, false, nodes),
        Term::Pipeline(pipeline) => {
            collect_branch_heads(&pipeline.first, within, nodes);
            pipeline.rest.iter().for_each(|stage| collect_branch_heads(&stage.term, false, nodes));
        }
        Term::Group(group) => {
            let within = group.operator == crate::language::tree::Operator::Union;
            group
                .branches
                .iter()
                .for_each(|branch| collect_branch_heads(&branch.term, within, nodes));
        }
    }
}

/// A `++` of sources, which is checked once the arguments are known: two of its operands must not
/// emit the same block.
pub(super) struct UnionOperands {
    /// The span of the `++` term.
    span: Span,
    /// For each operand, the nodes whose output leaves it.
    operands: Vec<Vec<NodeId>>,
}

/// A branch: its first term, which is a source, and its other stages.
type SourceBranch<'t> = (&'t FilterTerm, &'t [Stage]);

/// An operand of a `++`: one branch, or all branches that begin with the same source.
enum Operand<'t> {
    Branch(&'t Branch),
    Source(Vec<SourceBranch<'t>>),
}

impl<'t> Draft<'t> {
    /// Lowers a `++` that has no incoming stream, and therefore unites sources.
    pub(super) fn lower_union(&mut self, group: &'t Group, branches: &'t [Branch]) -> Subgraph<'t> {
        let mut entries = Vec::new();
        let mut exits = Vec::new();
        for operand in self.group_operands(branches) {
            let part = match operand {
                Operand::Branch(branch) => self.lower_branch(branch, &[]),
                Operand::Source(begun) => self.lower_common_source(&begun, group.span),
            };
            entries.extend(part.entries);
            exits.push(part.exit);
        }
        if exits.len() < 2
            && let Some(exit) = exits.pop()
        {
            return Subgraph { entries, exit };
        }
        let operands = exits.iter().map(SubgraphOutput::nodes).collect();
        self.united.push(UnionOperands { span: group.span, operands });
        let merge = self.push_node(DraftStep::Merge, group.span, None);
        let entry = SubgraphInput { node: merge, labels: Vec::new() };
        let exit = SubgraphOutput::Split { forks: Vec::new(), branches: exits };
        self.connect(&exit, DraftPipe::plain(group.span), &[entry]);
        Subgraph { entries, exit: SubgraphOutput::Node(merge) }
    }

    /// Groups the branches by source, in text order.
    fn group_operands(&self, branches: &'t [Branch]) -> Vec<Operand<'t>> {
        let mut operands: Vec<(&'t Branch, Vec<SourceBranch<'t>>)> = Vec::new();
        for branch in branches {
            let begun = match (&branch.label, &branch.term) {
                (None, Term::Filter(node)) => Some((node, &[][..])),
                (None, Term::Pipeline(pipeline)) => match &*pipeline.first {
                    Term::Filter(node) => Some((node, &pipeline.rest[..])),
                    _ => None,
                },
                _ => None,
            };
            let one = |(_, known): &&mut (&Branch, Vec<SourceBranch<'_>>)| {
                let first = known.first().zip(begun.as_ref());
                first.is_some_and(|((known, _), (node, _))| {
                    self.source_numbers.is_same_source(known, node)
                })
            };
            match operands.iter_mut().find(one) {
                Some((_, known)) => known.extend(begun),
                None => operands.push((branch, begun.into_iter().collect())),
            }
        }
        let operand = |(branch, begun): (_, Vec<_>)| match begun.len() {
            0 | 1 => Operand::Branch(branch),
            _ => Operand::Source(begun),
        };
        operands.into_iter().map(operand).collect()
    }

    /// Converts branches that begin with the same source to a subgraph: the source, followed by a
    /// section with one operand per branch.
    fn lower_common_source(&mut self, begun: &[SourceBranch<'t>], span: Span) -> Subgraph<'t> {
        let mut source: Option<Subgraph<'t>> = None;
        for (node, _) in begun {
            match &source {
                None => source = Some(self.lower_filter(node)),
                Some(Subgraph { exit: SubgraphOutput::Node(id), .. }) => self.add_term(*id, node),
                Some(_) => {}
            }
        }
        let Some(source) = source else { return self.single_node(DraftStep::Hole, span) };
        if begun.iter().all(|(_, rest)| rest.is_empty()) {
            return source;
        }
        let owner = self.push_node(DraftStep::Hole, span, None);
        let links: Vec<_> =
            begun.iter().map(|(_, rest)| self.branch_operand(rest, owner)).collect();
        self.nodes[owner.0].step = DraftStep::Section(BooleanExpression::Any(links), "++");
        let entry = SubgraphInput { node: owner, labels: Vec::new() };
        self.connect(&source.exit, DraftPipe::plain(span), &[entry]);
        Subgraph { entries: source.entries, exit: SubgraphOutput::Node(owner) }
    }

    /// Records that the filter term `node` denotes the node `id` of the graph, in addition to the
    /// terms recorded before.
    fn add_term(&mut self, id: NodeId, node: &'t FilterTerm) {
        if let DraftStep::Filter(uses) = &mut self.nodes[id.0].step {
            uses.push(node);
        }
        if let Some(mark) = &node.mark {
            self.marks.entry(&mark.text).or_insert(id);
        }
    }

    /// Returns the operand that represents a `++` branch in the section `owner`. `rest` contains
    /// the stages of the branch after its source. If there are none, the operand selects every
    /// block.
    fn branch_operand(
        &mut self,
        rest: &'t [Stage],
        owner: NodeId,
    ) -> SectionOperand<Option<&'t Label>> {
        let Some((first, rest)) = rest.split_first() else {
            return SectionOperand { classes: None, body: BooleanExpression::All(Vec::new()) };
        };
        let mut body = self.lower_body(&first.term, owner);
        if !rest.is_empty() {
            let rest = rest.iter().map(|stage| SectionOperand {
                classes: stage.arc.label.as_ref(),
                body: self.lower_body(&stage.term, owner),
            });
            body = BooleanExpression::Chain { rest: rest.collect(), first: Box::new(body) };
        }
        SectionOperand { classes: first.arc.label.as_ref(), body }
    }
}

/// Reports operands of a `++` that may emit the same block.
pub(super) fn check_overlaps(draft: &mut Draft<'_>, used: &mut [Option<FilterUse>]) {
    let mut mistakes = Vec::new();
    for UnionOperands { span, operands } in &draft.united {
        let heads: Vec<Vec<NodeId>> =
            operands.iter().map(|exits| sources_of_exits(draft, exits)).collect();
        for (at, one) in heads.iter().enumerate() {
            for (behind, other) in heads.iter().enumerate().skip(at + 1) {
                let bare = |operand: usize, head: NodeId| operands[operand] == [head];
                for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))) {
                    let bare = bare(at, a) && bare(behind, b);
                    mistakes.extend(overlap_error((a, b), bare, (draft, *span), used));
                }
            }
        }
    }
    draft.mistakes.append(&mut mistakes);
}

/// Returns the sources upstream of the nodes in `exits`.
fn sources_of_exits(draft: &Draft<'_>, exits: &[NodeId]) -> Vec<NodeId> {
    let inputs = |to| draft.edges.iter().filter(move |edge| edge.to == to).map(|edge| edge.from);
    let mut heads = reachable(exits, inputs);
    heads.retain(|id| inputs(*id).next().is_none());
    heads.sort_unstable();
    heads
}

/// Returns the error for two sources of a `++` that may emit the same block, or for one source (`a`
/// equals `b`) that leads to two operands. Returns `None` if the sources cannot emit the same
/// block, or if a source does not report what it observes.
///
/// `bare` is true if each source is an entire operand. Such sources may overlap on the loopback
/// interface if one of them can exclude this interface. In that case this function changes the
/// arguments of this source accordingly, and returns `None`.
fn overlap_error(
    (a, b): (NodeId, NodeId),
    bare: bool,
    (draft, span): (&Draft<'_>, Span),
    used: &mut [Option<FilterUse>],
) -> Option<Diagnostic> {
    let observed = |id: NodeId| -> Option<ObservedSource> {
        let used = used[id.0].as_ref()?;
        used.endpoint.observed_source.map(|observes| observes(&used.arguments))
    };
    let (text_a, text_b) = (source_text(draft, a), source_text(draft, b));
    if a == b {
        let what = format!("`++` cannot unite two outputs made from `{text_a}`");
        let why = "each of its blocks goes to both, and nothing shows which of them arrive twice";
        let hint = format!("write `{text_a} | (… ++ …)`, or `+` for a copy of each");
        return Some(Diagnostic::error(span, what).why(why).hint(hint));
    }
    let (one, other) = (observed(a)?, observed(b)?);
    let hint = match one.overlap(&other) {
        SourceOverlap::Nothing => return None,
        SourceOverlap::Loopback if bare && exclude_loopback(used, a, b) => return None,
        SourceOverlap::Loopback => {
            "name the interfaces, or write `rx … both=yes`, which emits each packet on lo once"
                .to_owned()
        }
        SourceOverlap::Blocks if one.covers(&other) => format!("begin both with `{text_a}`"),
        SourceOverlap::Blocks if other.covers(&one) => format!("begin both with `{text_b}`"),
        SourceOverlap::Blocks => "begin both with the same source, written alike".to_owned(),
    };
    let what = format!("`{text_a}` and `{text_b}` emit the same blocks");
    let why = "`++` passes each block once, and the two copies of a block cannot be distinguished";
    let hint = format!("{hint}; for the blocks of both write `+`");
    Some(Diagnostic::error(source_span(draft, b, span), what).why(why).hint(hint))
}

/// Sets `loopback=no` for one of two sources, because the other source observes all packets of the
/// loopback interface too. Returns false if neither source has `loopback=yes`.
fn exclude_loopback(used: &mut [Option<FilterUse>], a: NodeId, b: NodeId) -> bool {
    let can = |id: &NodeId| {
        let used = used[id.0].as_ref();
        used.is_some_and(|used| used.arguments.get("loopback") == Some(&Value::Flag(true)))
    };
    let Some(id) = [b, a].into_iter().find(can) else { return false };
    if let Some(used) = &mut used[id.0] {
        used.arguments.set("loopback", Value::Flag(false));
    }
    true
}

/// Formats a source for a message: without quotes, and truncated.
fn source_text(draft: &Draft<'_>, id: NodeId) -> String {
    match &draft.nodes[id.0].step {
        DraftStep::Filter(uses) => uses.first().map_or_else(String::new, |node| {
            let arguments = node.arguments.iter().map(|argument| {
                let key =
                    argument.key.as_ref().map_or(String::new(), |key| format!("{}=", key.text));
                format!(" {key}{}", argument.value.to_string_lossy())
            });
            crate::language::label::truncate_word(&format!(
                "{}{}",
                node.name.text,
                arguments.collect::<String>()
            ))
            .to_string()
        }),
        _ => "?".to_owned(),
    }
}

fn source_span(draft: &Draft<'_>, id: NodeId, otherwise: Span) -> Span {
    match &draft.nodes[id.0].step {
        DraftStep::Filter(uses) => uses.first().map_or(otherwise, |node| node.span),
        _ => otherwise,
    }
}
