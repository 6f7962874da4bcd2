//! The origin of blocks, as a number that travels with each of them.
//!
//! A source keeps its number for as long as the path lives, under any plan and at any place in it:
//! later readers of a record depend on it. A source added by a change takes the next number.

use filter::Kind;
use pipeline::Graph;
use pipeline::graph::{NodeId, Use};

/// Nodes that give blocks of their own.
pub(crate) fn sources(graph: &Graph) -> impl Iterator<Item = (NodeId, &Use)> {
    graph
        .ids()
        .filter_map(|(id, node)| Some((id, node.filter()?)))
        .filter(|(_, used)| used.description.kind == Kind::Source || used.endpoint.process)
}

/// The origins of a path, and the sources that have them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins {
    /// Their names, by origin.
    names: Vec<String>,
    /// The numbers of their nodes, by origin.
    nodes: Vec<usize>,
    /// The names as published to sinks, updated only by [`Origins::tell`].
    told: endpoint::Origins,
}

impl Origins {
    /// Creates the origins of a graph whose nodes have these numbers.
    pub(crate) fn of(graph: &Graph, numbers: &[usize]) -> Self {
        let mut all = Self::default();
        all.follow(graph, numbers);
        all.tell();
        all
    }

    /// Adds the origins of this graph, unpublished until [`Origins::tell`].
    pub(crate) fn follow(&mut self, graph: &Graph, numbers: &[usize]) {
        for (id, used) in sources(graph) {
            let number = numbers[id.0];
            if !self.nodes.contains(&number) {
                self.nodes.push(number);
                self.names.push(used.title());
            }
        }
    }

    /// The names of all sources that there have been, by origin.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Publishes the names to all readers of [`Origins::told`], earlier ones too.
    pub(crate) fn tell(&self) {
        self.told.grow(&self.names);
    }

    /// Returns the published names.
    pub(crate) const fn told(&self) -> &endpoint::Origins {
        &self.told
    }

    /// The origin of the source of this number.
    pub(crate) fn at(&self, number: usize) -> u16 {
        let at = self.nodes.iter().position(|node| *node == number).unwrap_or(0);
        u16::try_from(at).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::House;

    #[test]
    fn v10_a_source_keeps_its_origin_wherever_it_stands() {
        let graph = |text: &str| pipeline::read(text, &House).0;
        let one = graph("replay one.pcap | count");
        let both = graph("(replay two.pcap + replay one.pcap) | count");
        let numbers = |graph: &Graph, of: &[(&str, usize)]| -> Vec<usize> {
            let number = |used: &Use| {
                let named = of.iter().find(|(name, _)| used.arguments.text("file") == Some(name));
                named.map_or(90, |(_, number)| *number)
            };
            graph.ids().map(|(_, node)| node.filter().map_or(91, number)).collect()
        };
        let (first, second) = (("one.pcap", 0), ("two.pcap", 5));
        let mut origins = Origins::of(&one, &numbers(&one, &[first]));
        assert_eq!((origins.told().count(), origins.at(0)), (1, 0));
        origins.follow(&both, &numbers(&both, &[first, second]));
        let sink = origins.told().clone();
        assert_eq!((sink.count(), origins.at(0), origins.at(5)), (1, 0, 1));
        origins.tell();
        assert_eq!(sink.told_apart(1), Some(origins.names()[1].as_str()));
        // One that is no more keeps it, too: what came from it is still on its way.
        let two = graph("replay two.pcap | count");
        origins.follow(&two, &numbers(&two, &[second]));
        assert_eq!((sink.count(), origins.at(5)), (2, 1));
    }
}
