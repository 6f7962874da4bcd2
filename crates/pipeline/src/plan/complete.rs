//! Open ends: a line without a sink prints one line per block, or the report of its last filter.

use crate::catalogue::Catalogue;
use crate::classes::ClassSet;
use crate::graph::{Edge, Graph, Node, NodeId, Step, Use};
use crate::language::Span;
use filter::{Arguments, Form, Kind};

/// Gives every open end a sink, and answers whose reports are then the output of the line: filters
/// that have something to say when the path stops and stand at its end (`… | count`).
#[must_use]
pub fn complete(mut graph: Graph, catalogue: &dyn Catalogue) -> (Graph, Vec<NodeId>) {
    let mut reports = Vec::new();
    for end in graph.ends() {
        let node = graph.node(end);
        if ends_by_itself(node) {
            continue;
        }
        let says = node.filter().is_some_and(|used| used.description.ends_with_report());
        if says {
            reports.push(end);
        }
        let Some(sink) = catalogue.find(if says { "discard" } else { "print" }) else { continue };
        let span = Span { start: node.span.end, end: node.span.end };
        let to = NodeId(graph.nodes.len());
        let classifiers = match node.filter() {
            Some(used) if used.description.classes == filter::Classes::Same => {
                node.classifiers.clone()
            }
            _ => vec![end],
        };
        let comes = gives(node);
        graph.nodes.push(Node {
            step: Step::Filter(Box::new(Use {
                description: sink,
                endpoint: catalogue.endpoint(sink),
                arguments: Arguments::defaults(sink),
                pin: None,
                only: None,
                mark: None,
                again: false,
            })),
            span,
            inside: None,
            comes,
            classifiers,
        });
        let (from, classes) = (end, if says { ClassSet::all() } else { ClassSet::plain() });
        graph.edges.push(Edge { from, to, classes, span, back: false });
    }
    (graph, reports)
}

/// Returns true if nothing need follow: a sink, or a program, whose standard output is then ours.
fn ends_by_itself(node: &Node) -> bool {
    let kind = node.kind();
    kind == Some(Kind::Sink)
        || node.is_process() && !node.is_untrusted() && kind != Some(Kind::Source)
        || matches!(node.step, Step::Unknown)
}

fn gives(node: &Node) -> Vec<Form> {
    match node.filter().map(|used| used.effect().gives) {
        Some(filter::Gives::Form(form)) => vec![form],
        Some(filter::Gives::Nothing) => Vec::new(),
        Some(filter::Gives::Same) | None => node.comes.clone(),
    }
}
