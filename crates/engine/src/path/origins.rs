//! The origins of blocks. An *origin* is a number that travels with each block and names its
//! source.
//!
//! A source keeps its number for the lifetime of the path, whatever its index in a plan, because
//! readers of a recording depend on the number. A source that a change adds gets the next number.

use filter::FilterKind;
use pipeline::Graph;
use pipeline::graph::{FilterUse, NodeId};

/// Returns the nodes that create blocks: sources and programs.
pub(crate) fn sources_and_programs(graph: &Graph) -> impl Iterator<Item = (NodeId, &FilterUse)> {
    graph
        .nodes_with_ids()
        .filter_map(|(id, node)| Some((id, node.filter()?)))
        .filter(|(_, used)| used.description.kind == FilterKind::Source || used.endpoint.is_program)
}

/// The origins of a path: a number for each source, which the blocks of the source carry.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathOrigins {
    /// Titles of the sources, by origin.
    pub(crate) names: Vec<String>,
    /// The node number of each source. The index in the list is the source's origin.
    nodes: Vec<usize>,
    /// The names of the sources, by origin, as sinks see them. Only [`PathOrigins::publish`]
    /// updates these names.
    pub(crate) published: endpoint::Origins,
}

impl PathOrigins {
    /// Creates and publishes the origins of a graph; `numbers` holds each node's number.
    pub(crate) fn for_first_plan(graph: &Graph, numbers: &[usize]) -> Self {
        let mut all = Self::default();
        all.add_sources(graph, numbers);
        all.publish();
        all
    }

    /// Adds the sources of this graph that have no origin yet. Call [`PathOrigins::publish`] to
    /// publish them.
    pub(crate) fn add_sources(&mut self, graph: &Graph, numbers: &[usize]) {
        for (id, used) in sources_and_programs(graph) {
            let number = numbers[id.0];
            if !self.nodes.contains(&number) {
                self.nodes.push(number);
                self.names.push(source_title(used));
            }
        }
    }

    /// Makes the current names visible to the sinks, in all clones of [`PathOrigins::published`].
    pub(crate) fn publish(&self) {
        self.published.extend_to(&self.names);
    }

    /// Returns the origin of the source with this node number, or 0 if it has none.
    pub(crate) fn origin_of_node(&self, number: usize) -> u16 {
        let at = self.nodes.iter().position(|node| *node == number).unwrap_or(0);
        u16::try_from(at).unwrap_or(u16::MAX)
    }
}

/// Returns the title that distinguishes a source from others. This is the display name of a marked
/// source; otherwise, it is the name with the file or interface, such as `replay web.pcap`.
fn source_title(used: &FilterUse) -> String {
    let first = used.description.parameters.iter().find(|parameter| parameter.positional);
    match first.and_then(|parameter| used.arguments.text(parameter.name)) {
        Some(text) if used.mark.is_none() => format!("{} {text}", used.description.name),
        _ => used.display_name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::MachineRegistry;

    #[test]
    fn v10_source_keeps_its_origin_in_every_plan() {
        let graph = |text: &str| pipeline::read_request(text, &MachineRegistry::Local).0;
        let one = graph("replay one.pcap | count");
        let both = graph("(replay two.pcap + replay one.pcap) | count");
        let numbers = |graph: &Graph, of: &[(&str, usize)]| -> Vec<usize> {
            let number = |used: &FilterUse| {
                let named = of.iter().find(|(name, _)| used.arguments.text("file") == Some(name));
                named.map_or(90, |(_, number)| *number)
            };
            graph.nodes_with_ids().map(|(_, node)| node.filter().map_or(91, number)).collect()
        };
        let (first, second) = (("one.pcap", 0), ("two.pcap", 5));
        let mut origins = PathOrigins::for_first_plan(&one, &numbers(&one, &[first]));
        assert_eq!((origins.published.count(), origins.origin_of_node(0)), (1, 0));
        origins.add_sources(&both, &numbers(&both, &[first, second]));
        let sink = origins.published.clone();
        assert_eq!((sink.count(), origins.origin_of_node(0), origins.origin_of_node(5)), (1, 0, 1));
        origins.publish();
        assert_eq!(sink.distinguishing_name(1), Some(origins.names[1].as_str()));
        // A removed source keeps its origin, because blocks from it are still in flight.
        let two = graph("replay two.pcap | count");
        origins.add_sources(&two, &numbers(&two, &[second]));
        assert_eq!((sink.count(), origins.origin_of_node(5)), (2, 1));
    }
}
