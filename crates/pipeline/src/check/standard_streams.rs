//! Rejection of requests that use a standard stream twice. No reader could separate a capture on
//! standard output from other output, and two readers of standard input would each receive only
//! part of it.

use crate::graph::{Graph, Node};
use crate::language::Diagnostic;
use filter::StandardOutput;

/// Reports each sink that writes to standard output beside a sink that writes a capture there.
pub(super) fn find_mixed_output(graph: &Graph) -> Vec<Diagnostic> {
    let mut capture = None;
    let mut lines = Vec::new();
    let mut found = Vec::new();
    for (id, node) in graph.nodes_with_ids() {
        match (graph.standard_output(id), capture) {
            (StandardOutput::Unused, _) => {}
            (StandardOutput::Lines, _) => lines.push(node),
            (StandardOutput::Capture, None) => capture = Some(node),
            (StandardOutput::Capture, Some(_)) => found.push(node),
        }
    }
    let Some(capture) = capture else { return Vec::new() };
    found.append(&mut lines);
    let report = |node: &Node| {
        let (name, first) = (node.name(), capture.name());
        let what = format!(
            "`{name}` would write into the capture that `{first}` writes to standard output"
        );
        Diagnostic::error(node.span, what).hint(format!("give `{first}` the name of a file"))
    };
    found.into_iter().map(report).collect()
}

/// Reports each source that reads standard input besides the first.
pub(super) fn find_shared_input(graph: &Graph) -> Vec<Diagnostic> {
    let mut readers = graph.nodes_with_ids().filter(|(id, _)| graph.reads_standard_input(*id));
    let Some((_, first)) = readers.next() else { return Vec::new() };
    let report = |node: &Node| {
        let (name, first) = (node.name(), first.name());
        let what = format!("`{name}` would read the standard input that `{first}` reads");
        Diagnostic::error(node.span, what)
            .hint("read it once, and give its blocks to several filters")
    };
    readers.map(|(_, node)| report(node)).collect()
}
