//! Resolution of a label against the blocks that leave a node of a checked request, even if no arc
//! carries the label's classes.

use super::arc_classifiers::ArcClassifiers;
use crate::classes::ClassSet;
use crate::graph::{Graph, NodeId};
use crate::language::Span;
use crate::language::label::read_label;
use crate::registry::Registry;
use filter::{Classes, Description};

/// Resolves a label, such as `80`, `!80`, `22:23`, `ssh` or `all`, against the blocks that leave a
/// node. An empty label is a plain pipe. Returns the classes, or the reason why the label is
/// invalid there.
pub fn resolve_output_label(
    graph: &Graph,
    node: NodeId,
    label: &str,
    registry: &dyn Registry,
) -> Result<ClassSet, String> {
    if label.is_empty() {
        return Ok(ClassSet::plain_pipe());
    }
    let start = usize::from(label.starts_with('!'));
    let (read, mut mistakes) = read_label(label, Span::new(0, label.len()), start, start == 1);
    let classifiers = ArcClassifiers::from_filters(&classifiers(graph, node), registry);
    let classes = classifiers.label_classes(&read, &mut mistakes);
    match mistakes.first() {
        Some(mistake) => Err(mistake.what.clone()),
        None => Ok(classes),
    }
}

/// Returns the filters that determine the classes of a node's output: the node's own filter or, if
/// it preserves classes, filters upstream.
fn classifiers(graph: &Graph, node: NodeId) -> Vec<&'static Description> {
    let of = |id: NodeId| {
        graph.nodes.get(id.0).and_then(|node| node.filter()).map(|used| used.description)
    };
    match of(node) {
        Some(own) if own.classes != Classes::Same => vec![own],
        _ => {
            let upstream = graph.nodes.get(node.0).map(|node| node.classifiers.as_slice());
            upstream.unwrap_or_default().iter().filter_map(|id| of(*id)).collect()
        }
    }
}
