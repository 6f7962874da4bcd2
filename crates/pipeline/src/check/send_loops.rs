//! Rejection of requests that send frames to the interface on which they observe them, because the
//! frames would circulate forever. [CONTRACT 2]

use crate::graph::{FilterUse, Graph, NodeId, reachable};
use crate::language::Diagnostic;

/// Reports each sink that sends frames to an interface if a source upstream of the sink observes
/// the frames sent there.
pub(super) fn find_send_loops(graph: &Graph) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for (id, node) in graph.nodes_with_ids() {
        let Some(outlet) = node.filter().and_then(FilterUse::outlet) else { continue };
        let sees = |head: &NodeId| {
            let Some(source) = graph.node(*head).filter() else { return false };
            let of = |name: &str| source.arguments.text(name);
            let here = of("interface").is_none_or(|interface| interface == outlet.interface);
            let sent = source.description.name == "tx" || source.arguments.flag("both");
            here && sent && of("netns") == outlet.netns.as_deref()
        };
        if sources_upstream(graph, id).iter().any(sees) {
            let what = format!(
                "`{}` would send frames through {}, where they are observed as sent, forever",
                node.name(),
                outlet.interface
            );
            let hint = "name another interface, or observe received frames with `rx`";
            found.push(Diagnostic::error(node.span, what).hint(hint));
        }
    }
    found
}

/// Returns the sources upstream of a node.
pub(super) fn sources_upstream(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    let mut sources_upstream = reachable(&[id], |at| graph.inputs(at).map(|edge| edge.from));
    sources_upstream.retain(|id| graph.inputs(*id).next().is_none());
    sources_upstream
}
