//! Decides which filter a source asks in the kernel: a source that can filter there takes over the
//! question of the first filter behind it, so that refused frames never enter. The filter itself
//! stays, and the kernel may refuse nothing that the filter would pass. [SL §7.1; CONTRACT 18]
//!
//! In: a graph. Out: for each such source the filter, or the reason why there is none. It depends
//! on the arguments alone, not on the machine.
//!
//! It is correct where no difference can be observed: everything the source gives comes to that one
//! filter, perhaps through a merge of sources, and no arc selects what the filter refuses.

use super::Plan;
use crate::graph::{Graph, NodeId, Step};
use filter::{Arguments, Kind};

/// A source that can ask the kernel, and what it asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// The source.
    pub source: NodeId,
    /// The filter that is asked ahead, or why none is.
    pub filter: Result<NodeId, String>,
    /// The frames that are excepted.
    pub except: Option<&'static str>,
}

/// One for each source that can ask the kernel, in the order of the text.
pub(super) fn pushed(graph: &Graph) -> Vec<Pushed> {
    let asks = |source: NodeId| {
        let used = graph.node(source).filter();
        used.is_some_and(|u| u.description.kind == Kind::Source && u.endpoint.takes_filter)
    };
    let sources = graph.ids().map(|(id, _)| id).filter(|id| asks(*id));
    let taken = |source: NodeId| {
        let used = graph.node(source).filter();
        used.is_some_and(|used| used.arguments.text("how") == Some("take"))
    };
    let own =
        |source: NodeId| graph.node(source).filter().is_some_and(|used| used.arguments.flag("own"));
    let first = |graph, source| match source {
        source if taken(source) => Err("all is taken, and asked here".to_owned()),
        source if own(source) => Err("there is no packet socket to be asked".to_owned()),
        source => first(graph, source),
    };
    let push = |source| match first(graph, source) {
        Ok((filter, except)) => Pushed { source, filter: Ok(filter), except },
        Err(why) => Pushed { source, filter: Err(why), except: None },
    };
    sources.map(push).collect()
}

/// The filter behind a source that can be asked ahead, and of which frames not.
fn first(graph: &Graph, source: NodeId) -> Result<(NodeId, Option<&'static str>), String> {
    let mut to = only(graph, source)?;
    if matches!(graph.node(to).step, Step::Merge) {
        to = only(graph, to)?;
    }
    fits(graph, to).map(|except| (to, except))
}

/// Returns the only node to which everything goes that leaves a node.
fn only(graph: &Graph, from: NodeId) -> Result<NodeId, String> {
    let mut behind = graph.outputs(from);
    match (behind.next(), behind.next()) {
        (Some(edge), None) => Ok(edge.to),
        (None, _) => Err("nothing follows".to_owned()),
        (Some(_), Some(_)) => Err("several branches begin there".to_owned()),
    }
}

/// Checks that a filter can be asked ahead of its place.
fn fits(graph: &Graph, id: NodeId) -> Result<Option<&'static str>, String> {
    let node = graph.node(id);
    let Some(used) = node.filter() else {
        return Err("a section cannot be asked ahead, only one filter".to_owned());
    };
    let name = used.description.name;
    let Some(ahead) = used.description.analysis.ahead else {
        return Err(format!("`{name}` cannot be asked ahead"));
    };
    if graph.outputs(id).any(|edge| edge.classes.contains(0)) {
        return Err(format!("an arc takes what `{name}` refuses"));
    }
    ahead(&used.arguments).map_err(|why| format!("`{name}` cannot be asked ahead: {why}"))
}

impl Plan {
    /// The arguments of the filter that this source asks ahead.
    #[must_use]
    pub fn ahead(&self, source: NodeId) -> Option<&Arguments> {
        let pushed = self.pushed.iter().find(|pushed| pushed.source == source)?;
        let filter = pushed.filter.as_ref().ok()?;
        self.graph.node(*filter).filter().map(|used| &used.arguments)
    }

    /// The sources that ask this filter ahead.
    pub fn asked_by(&self, filter: NodeId) -> impl Iterator<Item = NodeId> {
        let asks = move |pushed: &&Pushed| pushed.filter == Ok(filter);
        self.pushed.iter().filter(asks).map(|pushed| pushed.source)
    }
}
