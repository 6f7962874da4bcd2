//! Filtering ahead: a source that can filter in the kernel evaluates the filter that follows it, so
//! that rejected frames never enter the process. The filter itself remains in the graph, and the
//! kernel must pass every frame that the filter would pass. [SL §7.1; CONTRACT 18]
//!
//! Filtering ahead is allowed only if it makes no observable difference: all output of the source
//! goes to that filter, directly or through a merge of sources, and no arc selects blocks that the
//! filter rejects. The decision depends only on the arguments, not on the machine.

use crate::graph::{Graph, NodeId, Step};
use filter::FilterKind;

/// A source that can filter in the kernel, and the filter that it evaluates there before frames
/// reach the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushdown {
    /// The source, which can filter in the kernel.
    pub source: NodeId,
    /// The filter that the source evaluates in the kernel, or the reason why it evaluates none.
    pub filter: Result<NodeId, String>,
    /// A description of the frames that the kernel passes without evaluating the filter; `None` if
    /// there are none.
    pub except: Option<&'static str>,
}

/// Returns an entry for each source that can filter in the kernel, in text order.
pub(super) fn find_pushdowns(graph: &Graph) -> Vec<Pushdown> {
    let asks = |source: NodeId| {
        let used = graph.node(source).filter();
        used.is_some_and(|u| {
            u.description.kind == FilterKind::Source && u.endpoint.accepts_pushdown
        })
    };
    let sources = graph.nodes_with_ids().map(|(id, _)| id).filter(|id| asks(*id));
    let taken = |source: NodeId| {
        let used = graph.node(source).filter();
        used.is_some_and(|used| used.arguments.text("how") == Some("take"))
    };
    let own =
        |source: NodeId| graph.node(source).filter().is_some_and(|used| used.arguments.flag("own"));
    let checked = |source| match source {
        source if taken(source) => {
            Err("a program takes all frames, and the filter runs here".to_owned())
        }
        source if own(source) => Err("there is no packet socket that could filter".to_owned()),
        source => pushable_filter(graph, source),
    };
    let push = |source| match checked(source) {
        Ok((filter, except)) => Pushdown { source, filter: Ok(filter), except },
        Err(why) => Pushdown { source, filter: Err(why), except: None },
    };
    sources.map(push).collect()
}

/// Returns the filter that a source can evaluate, and a description of the frames that the source
/// passes unfiltered. Fails with the reason if there is no such filter.
fn pushable_filter(
    graph: &Graph,
    source: NodeId,
) -> Result<(NodeId, Option<&'static str>), String> {
    let mut to = only_successor(graph, source)?;
    if matches!(graph.node(to).step, Step::Merge) {
        to = only_successor(graph, to)?;
    }
    check_pushable(graph, to).map(|except| (to, except))
}

/// Returns the only successor of a node. Fails with the reason if it has none or several.
fn only_successor(graph: &Graph, from: NodeId) -> Result<NodeId, String> {
    let mut behind = graph.outputs(from);
    match (behind.next(), behind.next()) {
        (Some(edge), None) => Ok(edge.to),
        (None, _) => Err("nothing follows".to_owned()),
        (Some(_), Some(_)) => Err("several branches begin there".to_owned()),
    }
}

/// Checks that a source can evaluate this filter in the kernel, before frames reach the process.
/// Returns a description of the frames that then pass unfiltered. Fails with the reason if the
/// source cannot evaluate the filter.
fn check_pushable(graph: &Graph, id: NodeId) -> Result<Option<&'static str>, String> {
    let node = graph.node(id);
    let Some(used) = node.filter() else {
        return Err("a section cannot be evaluated in the kernel, only one filter".to_owned());
    };
    let name = used.description.name;
    let Some(test) = used.description.analysis.pushdown else {
        return Err(format!("`{name}` cannot be evaluated in the kernel"));
    };
    if graph.outputs(id).any(|edge| edge.classes.contains(0)) {
        return Err(format!("an arc selects what `{name}` rejects"));
    }
    test(&used.arguments)
        .map_err(|why| format!("`{name}` cannot be evaluated in the kernel: {why}"))
}
