//! The user's choices on the interactive screen of `top`: order, text filter, selected node, and
//! visible details.

use super::list_state::{KeyEffect, ListState, next_value};
use super::snapshot::{NodeRates, Snapshot};
use ratatui::crossterm::event::{KeyCode, KeyEvent};

/// The sort order of the table of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum NodeOrder {
    /// Keeps the order of the graph. Each node is indented by the number of forks before it.
    #[default]
    Graph,
    /// Sorts by the rate in blocks per second, the highest first.
    Blocks,
    /// Sorts by the rate in bytes per second, the highest first.
    Bytes,
    /// Sorts by the processing time per block, the longest first.
    Time,
    /// Sorts by the number of held blocks, the largest first.
    Held,
    /// Sorts by the number of lost blocks, the largest first.
    Lost,
}

impl NodeOrder {
    const ALL: [Self; 6] =
        [Self::Graph, Self::Blocks, Self::Bytes, Self::Time, Self::Held, Self::Lost];

    /// Returns the title of the column by which the nodes are ordered.
    pub(super) const fn column_title(self) -> &'static str {
        match self {
            Self::Graph => "graph",
            Self::Blocks => "blocks/s",
            Self::Bytes => "bytes/s",
            Self::Time => "ns/block",
            Self::Held => "held",
            Self::Lost => "lost",
        }
    }

    fn value(self, node: &NodeRates) -> f64 {
        match self {
            Self::Graph => 0.0,
            Self::Blocks => node.rate.blocks,
            Self::Bytes => node.rate.bytes,
            Self::Time => node.block_ns.unwrap_or(0.0),
            Self::Held => node.held as f64,
            Self::Lost => node.lost as f64,
        }
    }
}

/// State of the interactive screen: the order, the list, and the visible parts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ViewChoices {
    /// Order in which the table of nodes is sorted.
    pub(super) order: NodeOrder,
    /// State of the list of nodes: the selected node, the text filter (for names and spaces), and
    /// the help.
    pub(super) list: ListState,
    /// True while the screen shows the graph with its rates instead of the table.
    pub(super) shows_graph: bool,
    /// True while the screen shows the details of the selected node instead of the rings.
    pub(super) is_open: bool,
}

impl ViewChoices {
    /// Returns the nodes that match the text filter, in the order that the user has selected.
    pub(super) fn nodes<'s>(&self, snapshot: &'s Snapshot) -> Vec<&'s NodeRates> {
        let is_listed = |node: &&NodeRates| self.list.matches_filter(&[&node.name, &node.space]);
        let mut nodes: Vec<&NodeRates> = snapshot.nodes.iter().filter(is_listed).collect();
        if self.order != NodeOrder::Graph {
            nodes.sort_by(|a, b| self.order.value(b).total_cmp(&self.order.value(a)));
        }
        nodes
    }

    /// Applies a key to the screen of a path, and returns the action that the screen must perform.
    pub(super) fn apply_key(&mut self, key: KeyEvent, snapshot: Option<&Snapshot>) -> KeyEffect {
        let count = snapshot.map_or(0, |snapshot| self.nodes(snapshot).len());
        match self.list.apply_key(key, count) {
            Some(KeyEffect::Open) => self.is_open = !self.is_open,
            Some(effect) => return effect,
            None => match key.code {
                KeyCode::Esc => return self.close_or_quit(),
                KeyCode::Char('g') => self.shows_graph = !self.shows_graph,
                KeyCode::Char('s') => self.order = next_value(NodeOrder::ALL, self.order),
                _ => {}
            },
        }
        KeyEffect::Redraw
    }

    /// Closes the first of these that is open: the help, the details of the node, the graph, the
    /// filter. Quits if none of them is open.
    fn close_or_quit(&mut self) -> KeyEffect {
        match () {
            () if self.list.close_help() => {}
            () if self.is_open => self.is_open = false,
            () if self.shows_graph => self.shows_graph = false,
            () if self.list.clear_filter() => {}
            () => return KeyEffect::Quit,
        }
        KeyEffect::Redraw
    }
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::PathSampler;
    use super::*;
    use member::protocol::{Amount, Counters, Filter, Node, PathDescription};

    /// Returns a snapshot of nodes, given their names and the numbers of blocks that they received
    /// within one second.
    fn snapshot(nodes: &[(&str, u64)]) -> Snapshot {
        let node = |(name, _): &(&str, u64)| Node {
            name: (*name).to_owned(),
            space: "thread0".to_owned(),
            copies: Vec::new(),
        };
        let filter = |(number, (name, blocks)): (usize, &(&str, u64))| Filter {
            node: number,
            name: (*name).to_owned(),
            taken: Amount { blocks: *blocks, bytes: 100 - blocks },
            made: Amount::default(),
            passed: Amount::default(),
            unselected: Amount::default(),
            consumed: Amount::default(),
            held: Amount::default(),
            lost: Vec::new(),
            calls: 1,
            busy_ns: 0,
            ring: None,
            kept: None,
            operand: false,
        };
        let counters = Counters {
            elapsed_ns: 1_000_000_000,
            filters: nodes.iter().enumerate().map(filter).collect(),
            ..Counters::default()
        };
        let nodes = nodes.iter().map(node).collect();
        PathSampler::new(PathDescription { nodes, ..PathDescription::default() }, 0)
            .snapshot(counters)
    }

    fn press(view: &mut ViewChoices, keys: &str, snapshot: &Snapshot) -> KeyEffect {
        let mut effect = KeyEffect::Redraw;
        for letter in keys.chars() {
            let code = match letter {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                letter => KeyCode::Char(letter),
            };
            effect = view.apply_key(code.into(), Some(snapshot));
        }
        effect
    }

    fn node_names(view: &ViewChoices, snapshot: &Snapshot) -> Vec<String> {
        view.nodes(snapshot).iter().map(|node| node.name.clone()).collect()
    }

    #[test]
    fn key_s_sorts_by_the_next_column() {
        let snapshot = snapshot(&[("rx", 10), ("tcp", 30), ("http", 20)]);
        let mut view = ViewChoices::default();
        assert_eq!(node_names(&view, &snapshot), ["rx", "tcp", "http"]);
        press(&mut view, "s", &snapshot);
        assert_eq!(
            (view.order, node_names(&view, &snapshot)[0].as_str()),
            (NodeOrder::Blocks, "tcp")
        );
        press(&mut view, "s", &snapshot);
        assert_eq!(
            (view.order, node_names(&view, &snapshot)[0].as_str()),
            (NodeOrder::Bytes, "rx")
        );
        press(&mut view, "ssss", &snapshot);
        assert_eq!(view.order, NodeOrder::Graph);
    }

    #[test]
    fn typed_filter_limits_the_nodes_and_escape_clears_it() {
        let snapshot = snapshot(&[("rx", 10), ("tcp", 30), ("http", 20)]);
        let mut view = ViewChoices::default();
        press(&mut view, "jj/TP\n", &snapshot);
        assert_eq!(node_names(&view, &snapshot), ["http"]);
        assert_eq!(
            view.list.selected_row_index(1),
            0,
            "the selection stays within the shown nodes"
        );
        assert_eq!(press(&mut view, "\x1b", &snapshot), KeyEffect::Redraw);
        assert_eq!(node_names(&view, &snapshot).len(), 3);
        press(&mut view, "/q", &snapshot);
        assert!(view.list.is_typing && view.list.filter == "q");
    }

    #[test]
    fn escape_closes_before_it_quits() {
        let snapshot = snapshot(&[("rx", 10)]);
        let mut view = ViewChoices::default();
        press(&mut view, "?\ng", &snapshot);
        assert!(view.list.shows_help && view.is_open && view.shows_graph);
        assert_eq!(press(&mut view, "\x1b\x1b\x1b", &snapshot), KeyEffect::Redraw);
        assert!(!view.list.shows_help && !view.is_open && !view.shows_graph);
        assert_eq!(press(&mut view, "\x1b", &snapshot), KeyEffect::Quit);
        assert_eq!(press(&mut view, "q", &snapshot), KeyEffect::Quit);
    }
}
