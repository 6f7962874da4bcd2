//! Rejects lines that send a frame back to the interface where they observe it: the frame would
//! circle for ever. [CONTRACT 2]

use crate::graph::{Graph, NodeId, Use};
use crate::language::Diagnostic;

/// The sinks that send by an interface what comes from a source that sees what it sends.
pub(super) fn loops(graph: &Graph) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for (id, node) in graph.ids() {
        let Some(outlet) = node.filter().and_then(Use::outlet) else { continue };
        let sees = |head: &NodeId| {
            let Some(source) = graph.node(*head).filter() else { return false };
            let of = |name: &str| source.arguments.text(name);
            let here = of("interface").is_none_or(|interface| interface == outlet.interface);
            let sent = source.description.name == "tx" || source.arguments.flag("both");
            here && sent && of("netns") == outlet.netns.as_deref()
        };
        if heads(graph, id).iter().any(sees) {
            let what = format!(
                "`{}` would send by {} what is seen there as sent, for ever",
                node.name(),
                outlet.interface
            );
            let hint = "name another interface, or observe with `rx` what is received";
            found.push(Diagnostic::error(node.span, what).hint(hint));
        }
    }
    found
}

/// The nodes without inputs from which blocks come to a node.
pub(super) fn heads(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    let (mut seen, mut next) = (vec![id], 0);
    while let Some(at) = seen.get(next).copied() {
        next += 1;
        for edge in graph.inputs(at) {
            if !seen.contains(&edge.from) {
                seen.push(edge.from);
            }
        }
    }
    seen.retain(|id| graph.inputs(*id).next().is_none());
    seen
}
