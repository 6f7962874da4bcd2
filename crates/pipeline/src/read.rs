//! Conversion of a request's text to a checked graph.

use crate::check::read_native_request;
use crate::graph::Graph;
use crate::language::Diagnostic;
use crate::registry::Registry;
use crate::translate;

/// Parses and checks a text. Returns the graph and all diagnostics; if the text is in the syntax of
/// another program, returns only one diagnostic, which proposes a request.
pub fn read_request(text: &str, registry: &dyn Registry) -> (Graph, Vec<Diagnostic>) {
    let (graph, mistakes) = read_native_request(text, registry);
    match translate::translation_diagnostic(text, &mistakes, registry) {
        Some(mistake) => (graph, vec![mistake]),
        None => (graph, mistakes),
    }
}
