//! Rejection of requests that write a capture to standard output, and something else with it: no
//! reader could separate the two.

use crate::graph::{Graph, Node};
use crate::language::Diagnostic;
use filter::StandardOutput;

/// Reports each sink that writes to standard output beside a sink that writes a capture there.
pub(super) fn find_mixed_output(graph: &Graph) -> Vec<Diagnostic> {
    let mut capture = None;
    let mut lines = Vec::new();
    let mut found = Vec::new();
    for (id, node) in graph.ids() {
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
