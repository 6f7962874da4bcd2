//! The static checks, which turn a syntax tree and a registry into a graph and diagnostics.
//!
//! Each step runs for the whole request, so that all errors are found at once: `splits` (the
//! branches of `split_rr`), `lower` (tree to nodes and arcs), `shape` (cycles, sources at heads,
//! sinks at ends, lookup of names), `uses` (arguments, marks, pins; then which filters may be
//! operands), `labels` (classes of the arcs), `forms` (forms of the streams), `options`. A step
//! skips everything that is unknown because of an earlier error. [SL §4.2]

mod arguments;
mod forms;
mod input_warnings;
mod labels;
mod links;
mod literature_names;
mod lower;
mod options;
mod send_loops;
mod shape;
mod splits;
mod standard_streams;
mod state;
mod union;
mod upstream;
mod uses;

use filter::{Arguments, EndpointFacts};

use crate::graph::{Edge, FilterUse, Graph, Node, NodeId, Step};
use crate::language::diagnose::{Diagnostic, sort_and_join_diagnostics};
use crate::language::{Request, parse};
use crate::registry::Registry;
use crate::workers;

pub(crate) use arguments::parse_arguments;
pub use labels::resolve_output_label;
pub(crate) use lower::REPEATED_ARC_MESSAGE;
pub use options::REQUEST_OPTIONS;

/// Checks a request against a registry.
///
/// The graph may be planned only if no diagnostic is an error. The request may contain missing
/// terms, which the parser has already reported.
pub fn check(request: &Request, registry: &dyn Registry) -> (Graph, Vec<Diagnostic>) {
    let request = &*splits::number_splitter_branches(request);
    let mut draft = lower::lower_request(request, registry);
    if draft.too_many_arcs {
        return (Graph::default(), sort_and_join_diagnostics(draft.mistakes));
    }
    shape::check_shape(&mut draft, registry);
    let mut used = uses::resolve_uses(&mut draft, registry);
    shape::check_operands(&mut draft, &used);
    shape::check_untrusted_filters(&mut draft, &used);
    union::check_overlaps(&mut draft, &mut used);
    state::check_published_states(&mut draft, &used);
    let resolved = labels::resolve_labels(&mut draft, registry);
    let stream_forms = forms::infer_forms(&mut draft, &used, registry);
    let options = options::parse_options(request, &mut draft.mistakes);

    let steps = used.into_iter().zip(resolved.bodies);
    let steps = steps.map(|(filter, body)| match (filter, body) {
        (Some(filter), _) => Step::Filter(Box::new(filter)),
        (None, Some(body)) => Step::Section(body),
        (None, None) => Step::Unknown,
    });
    let nodes = steps.zip(stream_forms.input_forms).zip(resolved.classifiers).zip(&draft.nodes);
    let nodes = nodes.map(|(((step, input_forms), classifiers), node)| {
        let step = if matches!(node.step, lower::DraftStep::Merge) { Step::Merge } else { step };
        Node { step, span: node.span, inside: node.inside, input_forms, classifiers }
    });
    let mut nodes: Vec<Node> = nodes.collect();
    stream_forms
        .insertions
        .into_iter()
        .for_each(|before| insert_before_operand(&mut nodes, before));
    let edges = draft.edges.iter().zip(resolved.classes).map(|(edge, classes)| Edge {
        from: edge.from,
        to: edge.to,
        classes,
        span: edge.label_span(),
        back: edge.back,
    });
    let edges = edges.collect();
    let (joins, insertions) = (draft.joins, draft.insertions);
    let graph = Graph { nodes, edges, joins, options, insertions, ..Graph::default() };
    draft.mistakes.extend(send_loops::find_send_loops(&graph));
    draft.mistakes.extend(standard_streams::find_mixed_output(&graph));
    draft.mistakes.extend(standard_streams::find_shared_input(&graph));
    draft.mistakes.extend(input_warnings::warn_of_missing_input(&graph));
    draft.mistakes.extend(input_warnings::warn_of_unrequested_classes(&graph));
    draft.mistakes.extend(input_warnings::warn_of_one_sided_sources(&graph, registry));
    draft.mistakes.extend(workers::worker_mistakes(&graph));
    draft.mistakes.extend(options::check_node_options(request, &graph));
    (graph, sort_and_join_diagnostics(draft.mistakes))
}

/// Inserts a filter that is not part of the text before an operand of a section.
fn insert_before_operand(nodes: &mut Vec<Node>, before: forms::FilterInsertion) {
    let forms::FilterInsertion { operand, filter, input_forms } = before;
    let Node { span, inside, ref classifiers, .. } = nodes[operand.0];
    let step = Step::Filter(Box::new(FilterUse {
        description: filter,
        endpoint: &EndpointFacts::NONE,
        arguments: Arguments::from_parameter_defaults(filter.parameters),
        pin: None,
        pin_reason: None,
        mark: None,
        repeated: false,
    }));
    let first = NodeId(nodes.len());
    let node = Node { step, span, inside, input_forms, classifiers: classifiers.clone() };
    nodes[operand.0].classifiers = vec![first];
    nodes.push(node);
    if let Some(owner) = inside
        && let Step::Section(body) = &mut nodes[owner.0].step
    {
        body.insert_before(operand, first);
    }
}

/// Parses and checks a text like [`read_request`](crate::read_request), but does not recognize the
/// syntax of other programs.
pub(crate) fn read_native_request(text: &str, registry: &dyn Registry) -> (Graph, Vec<Diagnostic>) {
    let (request, mut mistakes) = parse(text);
    let (graph, further) = check(&request, registry);
    mistakes.extend(further);
    let text = insert_parameter_values(text, &graph.insertions).into();
    (Graph { text, ..graph }, sort_and_join_diagnostics(mistakes))
}

/// Returns the text of a request after inserting parameter values. Each value comes with the byte
/// offset at which to insert it.
fn insert_parameter_values(text: &str, insertions: &[(usize, String)]) -> String {
    let mut insertions: Vec<&(usize, String)> = insertions.iter().collect();
    insertions.sort_by_key(|(at, _)| *at);
    let (mut written, mut from) = (String::with_capacity(text.len()), 0);
    for (at, what) in insertions {
        written.push_str(text.get(from..*at).unwrap_or_default());
        written.push_str(what);
        from = *at;
    }
    written.push_str(text.get(from..).unwrap_or_default());
    written
}
