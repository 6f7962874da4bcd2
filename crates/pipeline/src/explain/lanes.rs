//! Drawing of a graph as text: one line for each node, with the sources at the top, and a lane for
//! each edge whose target is not yet drawn.
//!
//! ```text
//! ── thread0 ────────
//!  ○    replay web.pcap
//!  ●    dport
//!  ├─╮
//!  ● │  |80 count
//!  │ ●  |53 inspect
//! ─┼─┼─ thread1 ─────
//!  ├─╯
//!  ■    pcap out.pcap
//! ```
//!
//! `○` is a source, `●` a filter, `■` a sink. A horizontal rule names the space of the rows below
//! it. A lane that crosses a rule is a ring, or a pipe into or out of a process. A back edge is
//! drawn as a lane with an arrow, from its target down to its origin.

use std::fmt::Write as _;

/// The maximum number of lanes for a readable drawing.
const LANES_MAX: usize = 24;
/// The maximum width of a node's text, in columns.
const TEXT_WIDTH_MAX: usize = 70;
/// The width of a horizontal rule in a drawing, in columns.
const RULE_WIDTH: usize = 64;

/// A graph to be drawn.
#[derive(Debug, Clone, Default)]
pub struct DrawnGraph {
    /// The nodes; edges refer to them by index.
    pub nodes: Vec<DrawnNode>,
    /// The edges. An edge is drawn only if both of its nodes are in the graph.
    pub edges: Vec<DrawnEdge>,
    /// The names of the spaces, in the order in which blocks pass through them.
    pub spaces: Vec<String>,
}

/// A node of a drawing.
#[derive(Debug, Clone, Default)]
pub struct DrawnNode {
    /// The text of the node, to the right of its symbol.
    pub text: String,
    /// Figures of the node, such as its rate, in a separate column after the text; may be empty.
    pub figures: String,
    /// The symbol that represents the node in its lane.
    pub symbol: Symbol,
    /// The index of the node's space in [`DrawnGraph::spaces`].
    pub space: usize,
}

/// The symbol that represents a node in a drawing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Symbol {
    /// A source, drawn as `○`.
    Source,
    /// A filter, drawn as `●`.
    #[default]
    Filter,
    /// A sink, drawn as `■`.
    Sink,
}

/// An edge of a drawing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawnEdge {
    /// The index of the node that sends blocks over the edge.
    pub from: usize,
    /// The index of the node that receives blocks over the edge.
    pub to: usize,
    /// True if the edge closes a cycle.
    pub back: bool,
}

impl DrawnGraph {
    /// Sorts the nodes with the indices in `left` for drawing. Every node follows the nodes from
    /// which it receives blocks. Subject to that, the nodes of a space with a lower index come
    /// first and, within a space, the nodes with a lower index.
    #[must_use]
    pub fn sort_for_drawing(&self, mut left: Vec<usize>) -> Vec<usize> {
        let mut order = Vec::new();
        while !left.is_empty() {
            let ready = |node: &usize| {
                let mut inputs = self.edges.iter().filter(|edge| edge.to == *node && !edge.back);
                inputs.all(|edge| !left.contains(&edge.from))
            };
            let space = |node: usize| self.nodes.get(node).map_or(0, |node| node.space);
            let next = left.iter().copied().filter(ready).min_by_key(|node| (space(*node), *node));
            // Without back edges a graph is acyclic, so some node is always ready.
            let Some(next) = next.or_else(|| left.first().copied()) else { break };
            left.retain(|node| *node != next);
            order.push(next);
        }
        order
    }

    /// Draws the nodes whose indices are in `order`, one per line, in this order.
    #[must_use]
    pub fn draw(&self, order: &[usize]) -> String {
        let mut drawing = Drawing { graph: self, lanes: Vec::new(), rows: Vec::new() };
        let mut space = None;
        for id in order {
            let Some(node) = self.nodes.get(*id) else { continue };
            if space.replace(node.space) != Some(node.space) {
                drawing.add_rule(self.spaces.get(node.space).map_or("", String::as_str));
            }
            drawing.add_node(*id, node);
        }
        drawing.row_text()
    }
}

struct Drawing<'g> {
    graph: &'g DrawnGraph,
    /// The edge drawn in each lane, as an index into the graph's edges. `None` for a free lane.
    lanes: Vec<Option<usize>>,
    rows: Vec<Row>,
}

enum Row {
    /// The row of a node: the cells of all lanes, the text of the node, and its figures.
    Line(String, String, String),
    /// A horizontal rule, with the cells of the lanes and the name of the space whose rows follow.
    Rule(String, String),
}

/// The vertical strokes of a box-drawing character.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct VerticalStrokes {
    up: bool,
    down: bool,
}

impl Drawing<'_> {
    /// Returns the indices of the drawn edges that satisfy a condition.
    fn find_drawn_edges(&self, wanted: impl Fn(&DrawnEdge) -> bool) -> Vec<usize> {
        let nodes = self.graph.nodes.len();
        let edges = self.graph.edges.iter().enumerate();
        let drawn = edges.filter(|(_, edge)| edge.from < nodes && edge.to < nodes);
        drawn.filter(|(_, edge)| wanted(edge)).map(|(at, _)| at).collect()
    }

    /// Returns the indices of the lanes whose edges satisfy a condition.
    fn find_lanes(&self, wanted: impl Fn(&DrawnEdge) -> bool) -> Vec<usize> {
        let edge = |lane: &usize| self.lanes[*lane].and_then(|edge| self.graph.edges.get(edge));
        (0..self.lanes.len()).filter(|lane| edge(lane).is_some_and(&wanted)).collect()
    }

    fn add_rule(&mut self, space: &str) {
        let cells = self.lanes.iter().map(|lane| if lane.is_some() { "┼─" } else { "──" });
        self.rows.push(Row::Rule(cells.collect(), space.to_owned()));
    }

    fn add_node(&mut self, id: usize, node: &DrawnNode) {
        let incoming = self.find_lanes(|edge| edge.to == id && !edge.back);
        let own = incoming.first().copied().unwrap_or_else(|| self.find_or_add_free_lane(0));
        let above = !incoming.is_empty();
        if incoming.len() > 1 {
            let closing: Vec<usize> = incoming.iter().copied().skip(1).collect();
            self.connect(own, VerticalStrokes { up: true, down: true }, &closing, &[], false);
            closing.iter().for_each(|lane| self.lanes[*lane] = None);
        }
        // The lane of the node is in use, even if it has no incoming edge.
        self.lanes[own] = incoming.first().and_then(|lane| self.lanes[*lane]).or(Some(usize::MAX));
        let back = self.find_drawn_edges(|edge| edge.to == id && edge.back);
        if !back.is_empty() {
            let opening = self.open_lanes(own, &back);
            self.connect(own, VerticalStrokes { up: above, down: true }, &[], &opening, true);
        }
        self.add_node_line(node, own);
        self.assign_lanes(id, own);
        while self.lanes.last() == Some(&None) {
            self.lanes.pop();
        }
    }

    /// Adds the line with the node's symbol, which is drawn in lane `own`, and its text.
    fn add_node_line(&mut self, node: &DrawnNode, own: usize) {
        let symbol = match node.symbol {
            Symbol::Source => '○',
            Symbol::Filter => '●',
            Symbol::Sink => '■',
        };
        let mut cells = String::new();
        for (lane, edge) in self.lanes.iter().enumerate() {
            cells.push(match edge {
                _ if lane == own => symbol,
                Some(_) => '│',
                None => ' ',
            });
            cells.push(' ');
        }
        let mut text = node.text.clone();
        if text.chars().count() > TEXT_WIDTH_MAX {
            text = text.chars().take(TEXT_WIDTH_MAX - 1).chain(['…']).collect();
        }
        self.rows.push(Row::Line(cells, text, node.figures.clone()));
    }

    /// Assigns a lane to each outgoing edge of node `id`, which is drawn in lane `own`. The first
    /// edge continues in lane `own`.
    fn assign_lanes(&mut self, id: usize, own: usize) {
        let out = self.find_drawn_edges(|edge| edge.from == id && !edge.back);
        let closing = self.find_lanes(|edge| edge.from == id && edge.back);
        let first = out.first().copied();
        let opening = self.open_lanes(own, out.get(1..).unwrap_or_default());
        if !opening.is_empty() || !closing.is_empty() {
            let arms = VerticalStrokes { up: true, down: first.is_some() };
            self.connect(own, arms, &closing, &opening, false);
        }
        closing.iter().for_each(|lane| self.lanes[*lane] = None);
        self.lanes[own] = first;
    }

    /// Returns the first free lane with index `from` or higher. Adds a lane if there is none.
    fn find_or_add_free_lane(&mut self, from: usize) -> usize {
        let free = (from..self.lanes.len()).find(|lane| self.lanes[*lane].is_none());
        free.unwrap_or_else(|| {
            self.lanes.resize(self.lanes.len().max(from) + 1, None);
            self.lanes.len() - 1
        })
    }

    fn open_lanes(&mut self, own: usize, edges: &[usize]) -> Vec<usize> {
        let mut opened = Vec::new();
        for edge in edges {
            let lane = self.find_or_add_free_lane(own + 1);
            self.lanes[lane] = Some(*edge);
            opened.push(lane);
        }
        opened
    }

    /// Adds a row that connects lane `own` with the lanes that end here (`closing`) and the lanes
    /// that begin here (`opening`). `arms` are the vertical strokes of lane `own`; if `arrow` is
    /// true, an arrowhead points to lane `own`.
    fn connect(
        &mut self,
        own: usize,
        arms: VerticalStrokes,
        closing: &[usize],
        opening: &[usize],
        arrow: bool,
    ) {
        let ends = || closing.iter().chain(opening).copied().chain([own]);
        let (low, high) = (ends().min().unwrap_or(own), ends().max().unwrap_or(own));
        let mut cells = String::new();
        for lane in 0..self.lanes.len() {
            let (meets, through) = (ends().any(|end| end == lane), self.lanes[lane].is_some());
            let arms = match () {
                () if lane == own => arms,
                () if meets => {
                    VerticalStrokes { up: closing.contains(&lane), down: opening.contains(&lane) }
                }
                () => VerticalStrokes { up: through, down: through },
            };
            let (left, right) = (lane > low && lane <= high, lane >= low && lane < high);
            cells.push(junction_character(arms, left, right));
            cells.push(match right {
                true if arrow && lane == own => '◄',
                true => '─',
                false => ' ',
            });
        }
        self.rows.push(Row::Line(cells, String::new(), String::new()));
    }

    fn row_text(self) -> String {
        let length = |text: &String| text.chars().count();
        let cells = |row: &Row| match row {
            Row::Line(cells, ..) | Row::Rule(cells, _) => length(cells),
        };
        let width = self.rows.iter().map(cells).max().unwrap_or(0);
        if width > 2 * LANES_MAX {
            return format!(
                " {} lanes: too many to draw for a terminal; --dot draws them\n",
                width / 2
            );
        }
        let with_figures = self.rows.iter().filter_map(|row| match row {
            Row::Line(_, text, figures) if !figures.is_empty() => Some(length(text)),
            _ => None,
        });
        let text_width = with_figures.max().unwrap_or(0);
        let mut out = String::new();
        for row in &self.rows {
            let line = match row {
                Row::Line(cells, text, figures) => {
                    format!("  {cells:width$} {text:text_width$}  {figures}")
                }
                Row::Rule(cells, space) => {
                    let line = format!("──{cells:─<width$} {space} ");
                    format!("{line:─<RULE_WIDTH$}")
                }
            };
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out
    }
}

/// Returns the box-drawing character with these strokes: up and down, to the left and to the right.
const fn junction_character(
    VerticalStrokes { up, down }: VerticalStrokes,
    left: bool,
    right: bool,
) -> char {
    match (up, down, left, right) {
        (true, true, false, false) => '│',
        (true, true, false, true) => '├',
        (true, true, true, false) => '┤',
        (true, true, true, true) => '┼',
        (true, false, true, false) => '╯',
        (true, false, false, true) => '╰',
        (true, false, true, true) => '┴',
        (false, true, true, false) => '╮',
        (false, true, false, true) => '╭',
        (false, true, true, true) => '┬',
        (false, false, true, true) => '─',
        _ => ' ',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_aligned_and_dangling_edges_ignored() {
        let node = |text: &str, figures: &str, symbol, space| DrawnNode {
            text: text.to_owned(),
            figures: figures.to_owned(),
            symbol,
            space,
        };
        let graph = DrawnGraph {
            nodes: vec![
                node("rx lo", "5/s", Symbol::Source, 0),
                node("count", "lost 2", Symbol::Sink, 1),
            ],
            edges: vec![
                DrawnEdge { from: 0, to: 1, back: false },
                DrawnEdge { from: 0, to: 9, back: false },
            ],
            spaces: vec!["kernel".to_owned(), "thread0".to_owned()],
        };
        let order = graph.sort_for_drawing(vec![1, 0]);
        assert_eq!(order, [0, 1]);
        let drawn = graph.draw(&order);
        let lines: Vec<&str> = drawn.lines().filter(|line| !line.starts_with('─')).collect();
        assert_eq!(lines, ["  ○  rx lo  5/s", "  ■  count  lost 2"]);
        assert_eq!(drawn.lines().nth(2).unwrap().chars().nth(2), Some('┼'), "{drawn}");
    }
}
