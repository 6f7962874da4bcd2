//! The user's choices on the interactive screen of `top`: order, filter, selected node, and the
//! details that are shown.

use super::snapshot::{NodeRates, Snapshot};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The order of the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Order {
    /// The order of the graph, with nodes indented by the number of forks before them.
    #[default]
    Graph,
    /// The busiest node first, in blocks per second.
    Blocks,
    /// The busiest node first, in bytes per second.
    Bytes,
    /// The node with the longest time per block first.
    Time,
    /// The node that holds the most blocks first.
    Held,
    /// The node with the most lost blocks first.
    Lost,
}

impl Order {
    const ALL: [Self; 6] =
        [Self::Graph, Self::Blocks, Self::Bytes, Self::Time, Self::Held, Self::Lost];

    /// Returns the title of the column by which the nodes are ordered.
    pub(super) const fn column(self) -> &'static str {
        match self {
            Self::Graph => "graph",
            Self::Blocks => "blocks/s",
            Self::Bytes => "bytes/s",
            Self::Time => "ns/block",
            Self::Held => "held",
            Self::Lost => "lost",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
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

/// The action that a key causes in addition to changing the view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// Redraw the screen.
    Redraw,
    /// Leave the screen.
    Quit,
}

/// The choices of the user.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct View {
    /// Order of the nodes.
    pub(super) order: Order,
    /// Only nodes whose name or space contains this text are shown.
    pub(super) filter: String,
    /// True while the user types the filter.
    pub(super) is_typing: bool,
    /// True while the help covers the nodes.
    pub(super) shows_help: bool,
    /// True while the graph with its rates is shown in place of the table.
    pub(super) shows_graph: bool,
    /// Index of the selected node among the shown nodes.
    pub(super) selected: usize,
    /// True while the details of the selected node are shown in place of the rings.
    pub(super) is_open: bool,
}

impl View {
    /// Returns the nodes to show, in their order.
    pub(super) fn nodes<'s>(&self, snapshot: &'s Snapshot) -> Vec<&'s NodeRates> {
        let wanted = self.filter.to_lowercase();
        let is_listed = |node: &&NodeRates| {
            [&node.name, &node.space].iter().any(|text| text.to_lowercase().contains(&wanted))
        };
        let mut nodes: Vec<&NodeRates> = snapshot.nodes.iter().filter(is_listed).collect();
        if self.order != Order::Graph {
            nodes.sort_by(|a, b| self.order.value(b).total_cmp(&self.order.value(a)));
        }
        nodes
    }

    /// Returns the index of the selected node, which is one of `count` shown nodes.
    pub(super) fn selected_of(&self, count: usize) -> usize {
        self.selected.min(count.saturating_sub(1))
    }

    /// Applies a key.
    pub(super) fn apply_key(&mut self, key: KeyEvent, snapshot: Option<&Snapshot>) -> Effect {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Effect::Quit;
        }
        if self.is_typing {
            self.type_key(key.code);
            return Effect::Redraw;
        }
        let count = snapshot.map_or(0, |snapshot| self.nodes(snapshot).len());
        let last = count.saturating_sub(1);
        let selected = self.selected_of(count);
        match key.code {
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Esc => return self.close(),
            KeyCode::Char('?' | 'h') => self.shows_help = !self.shows_help,
            KeyCode::Char('g') => self.shows_graph = !self.shows_graph,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Enter => self.is_open = !self.is_open,
            KeyCode::Down | KeyCode::Char('j') => self.selected = (selected + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.selected = selected.saturating_sub(1),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = last,
            _ => {}
        }
        Effect::Redraw
    }

    fn type_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
    }

    /// Takes one step back: closes the help, else the details of the node, else removes the filter.
    /// Quits if there are none of these.
    fn close(&mut self) -> Effect {
        match () {
            () if self.shows_help => self.shows_help = false,
            () if self.is_open => self.is_open = false,
            () if self.shows_graph => self.shows_graph = false,
            () if !self.filter.is_empty() => self.filter.clear(),
            () => return Effect::Quit,
        }
        Effect::Redraw
    }
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::PathSampler;
    use super::*;
    use member::protocol::{Amount, Counters, Filter, Node, PathDescription};

    /// Returns a snapshot of nodes with these names, each with this number of blocks received
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

    fn press(view: &mut View, keys: &str, snapshot: &Snapshot) -> Effect {
        let mut effect = Effect::Redraw;
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

    fn names(view: &View, snapshot: &Snapshot) -> Vec<String> {
        view.nodes(snapshot).iter().map(|node| node.name.clone()).collect()
    }

    #[test]
    fn key_s_sorts_by_the_next_column() {
        let snapshot = snapshot(&[("rx", 10), ("tcp", 30), ("http", 20)]);
        let mut view = View::default();
        assert_eq!(names(&view, &snapshot), ["rx", "tcp", "http"]);
        press(&mut view, "s", &snapshot);
        assert_eq!((view.order, names(&view, &snapshot)[0].as_str()), (Order::Blocks, "tcp"));
        press(&mut view, "s", &snapshot);
        assert_eq!((view.order, names(&view, &snapshot)[0].as_str()), (Order::Bytes, "rx"));
        press(&mut view, "ssss", &snapshot);
        assert_eq!(view.order, Order::Graph);
    }

    #[test]
    fn typed_filter_limits_the_nodes_and_escape_clears_it() {
        let snapshot = snapshot(&[("rx", 10), ("tcp", 30), ("http", 20)]);
        let mut view = View::default();
        press(&mut view, "jj/TP\n", &snapshot);
        // `q` was typed into no filter, so it still quits.
        assert_eq!(names(&view, &snapshot), ["http"]);
        assert_eq!(view.selected_of(1), 0, "the selection stays within the shown nodes");
        assert_eq!(press(&mut view, "\x1b", &snapshot), Effect::Redraw);
        assert_eq!(names(&view, &snapshot).len(), 3);
        press(&mut view, "/q", &snapshot);
        assert!(view.is_typing && view.filter == "q");
    }

    #[test]
    fn escape_closes_before_it_quits() {
        let snapshot = snapshot(&[("rx", 10)]);
        let mut view = View::default();
        press(&mut view, "?\ng", &snapshot);
        assert!(view.shows_help && view.is_open && view.shows_graph);
        assert_eq!(press(&mut view, "\x1b\x1b\x1b", &snapshot), Effect::Redraw);
        assert!(!view.shows_help && !view.is_open && !view.shows_graph);
        assert_eq!(press(&mut view, "\x1b", &snapshot), Effect::Quit);
        assert_eq!(press(&mut view, "q", &snapshot), Effect::Quit);
    }
}
