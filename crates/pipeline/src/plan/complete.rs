//! Addition of sinks to requests that lack them. A request without a sink prints one line per
//! block. If its last filter has a final report, the request instead prints only final reports: of
//! this filter and of all filters before it. The same holds if the request ends with such a filter
//! and the sink `discard`.

use crate::classes::ClassSet;
use crate::graph::{Edge, FilterUse, Graph, Node, NodeId, Step};
use crate::language::Span;
use crate::registry::Registry;
use filter::{Arguments, FilterKind, Form};

/// Adds a sink after every filter whose output is not used. Returns the graph, and the nodes whose
/// final reports are the output of the request.
///
/// A final report is output only if the request ends with a filter that has one, such as `count`,
/// or with such a filter followed by `discard`. In that case all filters with a final report are
/// returned, because those before the end would otherwise report nothing.
#[must_use]
pub fn complete_with_sinks(mut graph: Graph, registry: &dyn Registry) -> (Graph, Vec<NodeId>) {
    let mut has_reporting_end =
        graph.nodes_with_ids().any(|(id, _)| reports_before_discard(&graph, id));
    for end in graph.ends() {
        let node = graph.node(end);
        if needs_no_sink(node) {
            continue;
        }
        let reports_at_end = node.filter().is_some_and(|used| used.description.ends_with_report());
        has_reporting_end |= reports_at_end;
        let Some(sink) = registry.find(if reports_at_end { "discard" } else { "print" }) else {
            continue;
        };
        let span = Span { start: node.span.end, end: node.span.end };
        let to = NodeId(graph.nodes.len());
        let classifiers = match node.filter() {
            Some(used) if used.description.classes == filter::Classes::Same => {
                node.classifiers.clone()
            }
            _ => vec![end],
        };
        let input_forms = output_forms(node);
        graph.nodes.push(Node {
            step: Step::Filter(Box::new(FilterUse {
                description: sink,
                endpoint: registry.endpoint_facts(sink),
                arguments: Arguments::from_parameter_defaults(sink.parameters),
                pin: None,
                pin_reason: None,
                mark: None,
                repeated: false,
            })),
            span,
            inside: None,
            input_forms,
            classifiers,
        });
        let (from, classes) =
            (end, if reports_at_end { ClassSet::all() } else { ClassSet::plain_pipe() });
        graph.edges.push(Edge { from, to, classes, span, back: false });
    }
    let reporting =
        graph.nodes_with_ids().filter(|(_, node)| has_reporting_end && has_final_report(node));
    let reports = reporting.map(|(id, _)| id).collect();
    (graph, reports)
}

/// Returns true if the node is a filter with a final report, and not an operand of a section.
fn has_final_report(node: &Node) -> bool {
    node.inside.is_none()
        && node.kind() != Some(FilterKind::Sink)
        && node.filter().is_some_and(|used| used.description.ends_with_report())
}

/// Returns true if the node's final report is its only output: the node has a final report, and all
/// of its blocks go to `discard`.
fn reports_before_discard(graph: &Graph, id: NodeId) -> bool {
    let name = |id: NodeId| graph.node(id).filter().map(|used| used.description.name);
    let mut targets = graph.outputs(id).map(|edge| name(edge.to)).peekable();
    has_final_report(graph.node(id))
        && targets.peek().is_some()
        && targets.all(|target| target == Some("discard"))
}

/// Returns true if the node needs no sink: it is a sink, an unknown filter, or a program that has
/// input and inherits the standard output of this process.
fn needs_no_sink(node: &Node) -> bool {
    let kind = node.kind();
    kind == Some(FilterKind::Sink)
        || node.has_own_process() && !node.is_untrusted() && kind != Some(FilterKind::Source)
        || matches!(node.step, Step::Unknown)
}

fn output_forms(node: &Node) -> Vec<Form> {
    match node.filter().map(|used| used.effect().output_form) {
        Some(filter::OutputForm::Form(form)) => vec![form],
        Some(filter::OutputForm::Nothing) => Vec::new(),
        Some(filter::OutputForm::Same) | None => node.input_forms.clone(),
    }
}
