//! The static rules: a tree and a catalogue come in, a graph and all further mistakes go out.
//!
//! In this order, each step for the whole request, so that all mistakes are found at once: `lower`
//! (tree to nodes and arcs), `shape` (cycles, heads, ends, which entry a name means), `uses`
//! (arguments, marks, pins; and with them what may be an operand), `labels` (classes of the arcs),
//! `forms` (what streams carry), `options`. What a mistake has made unknown is left out of the
//! later steps. [SL §4.2]

mod answers;
mod arguments;
mod forms;
mod labels;
mod leads;
mod links;
mod lower;
mod needs;
mod options;
mod shape;
mod state;
mod union;
mod uses;

use filter::{Arguments, EndpointFacts};

use crate::catalogue::Catalogue;
use crate::engines;
use crate::graph::{Edge, Graph, Node, NodeId, Step, Use};
use crate::habits;
use crate::language::diagnose::{Diagnostic, settle};
use crate::language::{Request, parse};

pub use options::OPTIONS;

/// Checks a request against a catalogue.
///
/// The graph may only be placed if no diagnostic is an error. The request may have holes: what the
/// parser has reported is not reported again.
pub fn check(request: &Request, catalogue: &dyn Catalogue) -> (Graph, Vec<Diagnostic>) {
    let mut draft = lower::lower(request, catalogue);
    if draft.too_many {
        return (Graph::default(), settle(draft.mistakes));
    }
    shape::shape(&mut draft, catalogue);
    let mut used = uses::uses(&mut draft, catalogue);
    shape::operands(&mut draft, &used);
    shape::apart(&mut draft, &used);
    union::overlaps(&mut draft, &mut used);
    state::seen(&mut draft, &used);
    let labelled = labels::labels(&mut draft, catalogue);
    let carried = forms::forms(&mut draft, &used, catalogue);
    let options = options::options(request, &mut draft.mistakes);

    let steps = used.into_iter().zip(labelled.bodies);
    let steps = steps.map(|(filter, body)| match (filter, body) {
        (Some(filter), _) => Step::Filter(Box::new(filter)),
        (None, Some(body)) => Step::Boolean(body),
        (None, None) => Step::Unknown,
    });
    let nodes = steps.zip(carried.comes).zip(labelled.classifiers).zip(&draft.nodes);
    let nodes = nodes.map(|(((step, comes), classifiers), node)| {
        let step = if matches!(node.step, lower::DraftStep::Merge) { Step::Merge } else { step };
        Node { step, span: node.span, inside: node.inside, comes, classifiers }
    });
    let mut nodes: Vec<Node> = nodes.collect();
    carried.before.into_iter().for_each(|before| stands_before(&mut nodes, before));
    let edges = draft.edges.iter().zip(labelled.classes).map(|(edge, classes)| Edge {
        from: edge.from,
        to: edge.to,
        classes,
        span: edge.span,
        back: edge.back,
    });
    let edges = edges.collect();
    let (joins, settled) = (draft.joins, draft.settled);
    let graph = Graph { nodes, edges, joins, options, settled, ..Graph::default() };
    draft.mistakes.extend(leads::loops(&graph));
    draft.mistakes.extend(needs::starved(&graph));
    draft.mistakes.extend(needs::one_sided(&graph, catalogue));
    draft.mistakes.extend(engines::mistakes(&graph));
    (graph, settle(draft.mistakes))
}

/// Puts a filter that was not written before an operand.
fn stands_before(nodes: &mut Vec<Node>, before: forms::Before) {
    let forms::Before { operand, filter, comes } = before;
    let Node { span, inside, ref classifiers, .. } = nodes[operand.0];
    let step = Step::Filter(Box::new(Use {
        description: filter,
        endpoint: &EndpointFacts::NONE,
        arguments: Arguments::defaults(filter),
        pin: None,
        only: None,
        mark: None,
        again: false,
    }));
    let first = NodeId(nodes.len());
    let node = Node { step, span, inside, comes, classifiers: classifiers.clone() };
    nodes[operand.0].classifiers = vec![first];
    nodes.push(node);
    if let Some(owner) = inside
        && let Step::Boolean(body) = &mut nodes[owner.0].step
    {
        body.put_before(operand, first);
    }
}

/// Reads and checks a text: the graph, and all mistakes of both.
pub fn read(text: &str, catalogue: &dyn Catalogue) -> (Graph, Vec<Diagnostic>) {
    let (graph, mistakes) = read_as_written(text, catalogue);
    match habits::mistake(text, &mistakes, catalogue) {
        Some(mistake) => (graph, vec![mistake]),
        None => (graph, mistakes),
    }
}

/// The same, without a look at what other programs would understand.
pub(crate) fn read_as_written(text: &str, catalogue: &dyn Catalogue) -> (Graph, Vec<Diagnostic>) {
    let (request, mut mistakes) = parse(text);
    let (graph, further) = check(&request, catalogue);
    mistakes.extend(further);
    let text = written(text, &graph.settled).into();
    (Graph { text, ..graph }, settle(mistakes))
}

/// The text with what was asked while it was read.
fn written(text: &str, settled: &[(usize, String)]) -> String {
    let mut settled: Vec<&(usize, String)> = settled.iter().collect();
    settled.sort_by_key(|(at, _)| *at);
    let (mut written, mut from) = (String::with_capacity(text.len()), 0);
    for (at, what) in settled {
        written.push_str(text.get(from..*at).unwrap_or_default());
        written.push_str(what);
        from = *at;
    }
    written.push_str(text.get(from..).unwrap_or_default());
    written
}
