//! Completion of open ends. A request without a sink prints a line per block, or a final report.

use crate::classes::ClassSet;
use crate::graph::{Edge, Graph, Node, NodeId, Step, Use};
use crate::language::Span;
use crate::registry::Registry;
use filter::{Arguments, FilterKind, Form};

/// Adds a sink to every open end. Returns the graph, and the nodes whose final report is the output
/// of the request: filters such as `count` at the end of a line.
#[must_use]
pub fn complete(mut graph: Graph, registry: &dyn Registry) -> (Graph, Vec<NodeId>) {
    let mut reports = Vec::new();
    for end in graph.ends() {
        let node = graph.node(end);
        if needs_no_sink(node) {
            continue;
        }
        let says = node.filter().is_some_and(|used| used.description.ends_with_report());
        if says {
            reports.push(end);
        }
        let Some(sink) = registry.find(if says { "discard" } else { "print" }) else { continue };
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
            step: Step::Filter(Box::new(Use {
                description: sink,
                endpoint: registry.endpoint(sink),
                arguments: Arguments::defaults(sink.parameters),
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
        let (from, classes) = (end, if says { ClassSet::all() } else { ClassSet::plain_pipe() });
        graph.edges.push(Edge { from, to, classes, span, back: false });
    }
    (graph, reports)
}

/// Returns true if the node needs no other sink. It is a sink, or a program, which inherits the
/// standard output of this process.
fn needs_no_sink(node: &Node) -> bool {
    let kind = node.kind();
    kind == Some(FilterKind::Sink)
        || node.is_process() && !node.is_untrusted() && kind != Some(FilterKind::Source)
        || matches!(node.step, Step::Unknown)
}

fn output_forms(node: &Node) -> Vec<Form> {
    match node.filter().map(|used| used.effect().output_form) {
        Some(filter::OutputForm::Form(form)) => vec![form],
        Some(filter::OutputForm::Nothing) => Vec::new(),
        Some(filter::OutputForm::Same) | None => node.input_forms.clone(),
    }
}
