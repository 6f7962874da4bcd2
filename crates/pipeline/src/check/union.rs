//! `++` at the head of a line: each block of its sources once (CONTRACT 10,
//! docs/book/decisions/0047-operands.md).
//!
//! Branches that begin at one source are one source, and behind it a composite that asks them about
//! each of its blocks: `(s | a) ++ (s | b)` is `s | (a ++ b)`, and `s ++ s` is `s`. Different
//! sources are merged. Sources that are written differently and may give the same block are
//! refused: nothing tells its two copies apart.

use std::collections::HashMap;

use filter::{Arguments, Observed, Shares, Value};

use super::arguments::arguments;
use super::lower::{Draft, DraftStep, Entry, Exit, Part, Pipe};
use crate::catalogue::Catalogue;
use crate::graph::{Boolean, Link, NodeId, Use};
use crate::language::tree::{Branch, FilterTerm, Group, Label, Request, Stage, Term};
use crate::language::{Diagnostic, Span};

/// Nodes of the text that observe the same input in the same way, by span.
pub(super) struct Alike(HashMap<Span, usize>);

impl Alike {
    /// Numbers the sources of a request; those with one number are one source.
    pub(super) fn of(request: &Request, catalogue: &dyn Catalogue) -> Self {
        let mut known: Vec<(&str, Arguments)> = Vec::new();
        let mut numbers = HashMap::new();
        let mut nodes = Vec::new();
        request.pipelines.iter().for_each(|term| unions(term, false, &mut nodes));
        for node in nodes {
            let Some(entry) = catalogue.find_source(&node.name.text) else { continue };
            if catalogue.endpoint(entry).observes.is_none() {
                continue;
            }
            let none = Arguments::default();
            let (given, _) = arguments(node, entry, &none, catalogue, &mut Vec::new());
            let is = |other: &(&str, Arguments)| other.0 == entry.name && other.1 == given;
            let number = known.iter().position(is).unwrap_or(known.len());
            if number == known.len() {
                known.push((entry.name, given));
            }
            numbers.insert(node.span, number);
        }
        Self(numbers)
    }

    /// Returns true if two nodes are one source: by their mark, or by all that they say.
    fn are(&self, one: &FilterTerm, other: &FilterTerm) -> bool {
        match (&one.mark, &other.mark) {
            (Some(one), Some(other)) => one.text == other.text,
            _ => {
                let number = |node: &FilterTerm| self.0.get(&node.span);
                number(one).is_some() && number(one) == number(other)
            }
        }
    }
}

/// The nodes at which the branches of a `++` begin.
fn unions<'t>(term: &'t Term, within: bool, nodes: &mut Vec<&'t FilterTerm>) {
    match term {
        Term::Missing(_) => {}
        Term::Filter(node) if within => nodes.push(node),
        Term::Filter(_) => {}
        Term::Not(not) => unions(&not.term, false, nodes),
        Term::Pipeline(pipeline) => {
            unions(&pipeline.first, within, nodes);
            pipeline.rest.iter().for_each(|stage| unions(&stage.term, false, nodes));
        }
        Term::Group(group) => {
            let within = group.operator == crate::language::tree::Operator::Union;
            group.branches.iter().for_each(|branch| unions(&branch.term, within, nodes));
        }
    }
}

/// A `++` of sources, to be looked at once it is known what they observe.
pub(super) struct United {
    /// The span of the term.
    span: Span,
    /// The ways out of what it merges.
    operands: Vec<Vec<NodeId>>,
}

/// A branch that begins at a source, and what stands behind it.
type Begun<'t> = (&'t FilterTerm, &'t [Stage]);

/// The part of a `++` that is one operand: branches, and their source if they share one.
enum Operand<'t> {
    Branch(&'t Branch),
    Source(Vec<Begun<'t>>),
}

impl<'t> Draft<'t> {
    /// Lowers `++` before which no stream comes.
    pub(super) fn unite(&mut self, group: &'t Group, branches: &'t [Branch]) -> Part<'t> {
        let mut entries = Vec::new();
        let mut exits = Vec::new();
        for operand in self.operands(branches) {
            let part = match operand {
                Operand::Branch(branch) => self.branch(branch, &[]),
                Operand::Source(begun) => self.one_source(&begun, group.span),
            };
            entries.extend(part.entries);
            exits.push(part.exit);
        }
        if exits.len() < 2
            && let Some(exit) = exits.pop()
        {
            return Part { entries, exit };
        }
        let operands = exits.iter().map(Exit::nodes).collect();
        self.united.push(United { span: group.span, operands });
        let merge = self.push(DraftStep::Merge, group.span, None);
        let entry = Entry { node: merge, labels: Vec::new() };
        let exit = Exit::Split { forks: Vec::new(), branches: exits };
        self.connect(&exit, Pipe::plain(group.span), &[entry]);
        Part { entries, exit: Exit::Node(merge) }
    }

    /// The branches, those that begin at one source together, in the order of the text.
    fn operands(&self, branches: &'t [Branch]) -> Vec<Operand<'t>> {
        let mut operands: Vec<(&'t Branch, Vec<Begun<'t>>)> = Vec::new();
        for branch in branches {
            let begun = match (&branch.label, &branch.term) {
                (None, Term::Filter(node)) => Some((node, &[][..])),
                (None, Term::Pipeline(pipeline)) => match &*pipeline.first {
                    Term::Filter(node) => Some((node, &pipeline.rest[..])),
                    _ => None,
                },
                _ => None,
            };
            let one = |(_, known): &&mut (&Branch, Vec<Begun<'_>>)| {
                let first = known.first().zip(begun.as_ref());
                first.is_some_and(|((known, _), (node, _))| self.alike.are(known, node))
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

    /// One source, and behind it a composite of what its branches ask.
    fn one_source(&mut self, begun: &[Begun<'t>], span: Span) -> Part<'t> {
        let mut source: Option<Part<'t>> = None;
        for (node, _) in begun {
            match &source {
                None => source = Some(self.filter(node)),
                Some(Part { exit: Exit::Node(id), .. }) => self.used_again(*id, node),
                Some(_) => {}
            }
        }
        let Some(source) = source else { return self.branchless(span) };
        if begun.iter().all(|(_, rest)| rest.is_empty()) {
            return source;
        }
        let owner = self.push(DraftStep::Hole, span, None);
        let links: Vec<_> = begun.iter().map(|(_, rest)| self.link(rest, owner)).collect();
        self.nodes[owner.0].step = DraftStep::Boolean(Boolean::Any(links), "++");
        let entry = Entry { node: owner, labels: Vec::new() };
        self.connect(&source.exit, Pipe::plain(span), &[entry]);
        Part { entries: source.entries, exit: Exit::Node(owner) }
    }

    /// A part without anything; only where nothing was written.
    fn branchless(&mut self, span: Span) -> Part<'t> {
        let node = self.push(DraftStep::Hole, span, None);
        Part { entries: vec![Entry { node, labels: Vec::new() }], exit: Exit::Node(node) }
    }

    /// Another place of the text that means a node.
    fn used_again(&mut self, id: NodeId, node: &'t FilterTerm) {
        if let DraftStep::Filter(uses) = &mut self.nodes[id.0].step {
            uses.push(node);
        }
        if let Some(mark) = &node.mark {
            self.marks.entry(&mark.text).or_insert(id);
        }
    }

    /// Returns the label by which a branch selects from its source; `None` if it takes every block.
    fn link(&mut self, rest: &'t [Stage], owner: NodeId) -> Link<Option<&'t Label>> {
        let Some((first, rest)) = rest.split_first() else {
            return Link { classes: None, body: Boolean::All(Vec::new()) };
        };
        let mut body = self.boolean(&first.term, owner);
        if !rest.is_empty() {
            let rest = rest.iter().map(|stage| Link {
                classes: stage.arc.label.as_ref(),
                body: self.boolean(&stage.term, owner),
            });
            body = Boolean::Chain { rest: rest.collect(), first: Box::new(body) };
        }
        Link { classes: first.arc.label.as_ref(), body }
    }
}

/// Refuses operands that may give the same block, as far as nothing removes it.
pub(super) fn overlaps(draft: &mut Draft<'_>, used: &mut [Option<Use>]) {
    let mut mistakes = Vec::new();
    for United { span, operands } in &draft.united {
        let heads: Vec<Vec<NodeId>> = operands.iter().map(|exits| heads(draft, exits)).collect();
        for (at, one) in heads.iter().enumerate() {
            for (behind, other) in heads.iter().enumerate().skip(at + 1) {
                let bare = |operand: usize, head: NodeId| operands[operand] == [head];
                for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))) {
                    let bare = bare(at, a) && bare(behind, b);
                    mistakes.extend(overlap((a, b), bare, (draft, *span), used));
                }
            }
        }
    }
    draft.mistakes.append(&mut mistakes);
}

/// The sources from which blocks come to these nodes.
fn heads(draft: &Draft<'_>, exits: &[NodeId]) -> Vec<NodeId> {
    let mut seen = vec![false; draft.nodes.len()];
    let mut open = exits.to_vec();
    let mut heads = Vec::new();
    while let Some(at) = open.pop() {
        if std::mem::replace(&mut seen[at.0], true) {
            continue;
        }
        let before = open.len();
        open.extend(draft.edges.iter().filter(|edge| edge.to == at).map(|edge| edge.from));
        if open.len() == before {
            heads.push(at);
        }
    }
    heads.sort_unstable();
    heads
}

/// The mistake that two sources of one `++` are, unless they share nothing.
fn overlap(
    (a, b): (NodeId, NodeId),
    bare: bool,
    (draft, span): (&Draft<'_>, Span),
    used: &mut [Option<Use>],
) -> Option<Diagnostic> {
    let observed = |id: NodeId| -> Option<Observed> {
        let used = used[id.0].as_ref()?;
        used.endpoint.observes.map(|observes| observes(&used.arguments))
    };
    let (text_a, text_b) = (text(draft, a), text(draft, b));
    if a == b {
        let what = format!("`++` cannot unite what both sides make of `{text_a}`");
        let why = "each of its blocks goes to both, and it is not told which of them come twice";
        let hint = format!("write `{text_a} | (… ++ …)`, or `+` for a copy of each");
        return Some(Diagnostic::error(span, what).why(why).hint(hint));
    }
    let (one, other) = (observed(a)?, observed(b)?);
    let hint = match one.shares(&other) {
        Shares::Nothing => return None,
        Shares::Loopback if bare && leaves_loopback(used, a, b) => return None,
        Shares::Loopback => {
            "name the interfaces, or write `rx … both=yes`: it gives each packet on lo once"
                .to_owned()
        }
        Shares::Blocks if one.covers(&other) => format!("begin both with `{text_a}`"),
        Shares::Blocks if other.covers(&one) => format!("begin both with `{text_b}`"),
        Shares::Blocks => "begin both with one source, written alike".to_owned(),
    };
    let what = format!("`{text_a}` and `{text_b}` give the same blocks");
    let why = "`++` gives each block once, and nothing tells the two copies of one apart";
    let hint = format!("{hint}; for all that both give write `+`");
    Some(Diagnostic::error(place(draft, b, span), what).why(why).hint(hint))
}

/// Has the one of two sources that gives what is sent leave out the loopback interface, where the
/// other gives each of its packets. Answers false where it cannot.
fn leaves_loopback(used: &mut [Option<Use>], a: NodeId, b: NodeId) -> bool {
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

/// A source as the text has it.
fn text(draft: &Draft<'_>, id: NodeId) -> String {
    match &draft.nodes[id.0].step {
        DraftStep::Filter(uses) => uses.first().map_or_else(String::new, |node| {
            let arguments = node.arguments.iter().map(|argument| {
                let key =
                    argument.key.as_ref().map_or(String::new(), |key| format!("{}=", key.text));
                format!(" {key}{}", argument.value.lossy())
            });
            crate::language::label::brief(&format!(
                "{}{}",
                node.name.text,
                arguments.collect::<String>()
            ))
            .to_string()
        }),
        _ => "?".to_owned(),
    }
}

fn place(draft: &Draft<'_>, id: NodeId, otherwise: Span) -> Span {
    match &draft.nodes[id.0].step {
        DraftStep::Filter(uses) => uses.first().map_or(otherwise, |node| node.span),
        _ => otherwise,
    }
}
