//! The drawing of a plan: a line per node, from the sources down, with a lane for every open edge.
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
//! it. A lane that crosses a rule is a ring, or a pipe into or out of a process. A back edge is a
//! lane with an arrow, from its target down to its origin.

use super::facts::arc_label;
use crate::graph::{Edge, Graph, NodeId};
use crate::names::node_text;
use crate::plan::Plan;
use filter::FilterKind;
use std::fmt::Write as _;

/// The maximum number of lanes of a readable drawing.
const LANES_MAX: usize = 24;
/// The maximum number of columns of a node's text.
const TEXT_MAX: usize = 70;
/// The width of a rule in columns.
const RULE_WIDTH: usize = 64;

/// Returns the nodes of a connected component, except operands, in drawing order: each node after
/// its inputs, otherwise space by space, and within a space in the order of the text.
pub(super) fn drawing_order(plan: &Plan, component: usize) -> Vec<NodeId> {
    let graph = &plan.graph;
    let mut left: Vec<NodeId> = graph
        .ids()
        .filter(|(id, node)| node.inside.is_none() && plan.space_of(*id).component == component)
        .map(|(id, _)| id)
        .collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let ready = |id: &NodeId| {
            graph.inputs(*id).filter(|edge| !edge.back).all(|edge| !left.contains(&edge.from))
        };
        let next =
            left.iter().copied().filter(ready).min_by_key(|id| (plan.placements[id.0].space, *id));
        // Without back edges a graph is acyclic, so some node is always ready.
        let Some(next) = next.or_else(|| left.first().copied()) else { break };
        left.retain(|id| *id != next);
        order.push(next);
    }
    order
}

/// Draws the nodes in this order.
pub(super) fn draw_nodes(plan: &Plan, order: &[NodeId], names: &[String]) -> String {
    let mut drawing = Drawing { plan, names, lanes: Vec::new(), rows: Vec::new() };
    let mut space = None;
    for id in order {
        let here = plan.placements[id.0].space;
        if space.replace(here) != Some(here) {
            drawing.add_rule(&plan.spaces[here].name);
        }
        drawing.add_node(*id);
    }
    drawing.row_text()
}

struct Drawing<'p> {
    plan: &'p Plan,
    names: &'p [String],
    /// The edge of each lane, by its index in the graph.
    lanes: Vec<Option<usize>>,
    rows: Vec<Row>,
}

enum Row {
    /// The cells of the lanes, and the text of the node.
    Line(String, String),
    /// The cells of the lanes, and the name of the space whose rows follow.
    Rule(String, String),
}

/// The vertical arms of a box-drawing character.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Arms {
    up: bool,
    down: bool,
}

impl Drawing<'_> {
    /// Returns the edges that satisfy a condition.
    fn edges_where(&self, wanted: impl Fn(&Edge) -> bool) -> Vec<usize> {
        let edges = self.plan.graph.edges.iter().enumerate();
        edges.filter(|(_, edge)| wanted(edge)).map(|(at, _)| at).collect()
    }

    /// Returns the lanes whose edges satisfy a condition.
    fn lanes_with(&self, wanted: impl Fn(&Edge) -> bool) -> Vec<usize> {
        let edges = &self.plan.graph.edges;
        let edge = |lane: &usize| self.lanes[*lane].and_then(|edge| edges.get(edge));
        (0..self.lanes.len()).filter(|lane| edge(lane).is_some_and(&wanted)).collect()
    }

    fn add_rule(&mut self, space: &str) {
        let cells = self.lanes.iter().map(|lane| if lane.is_some() { "┼─" } else { "──" });
        self.rows.push(Row::Rule(cells.collect(), space.to_owned()));
    }

    fn add_node(&mut self, id: NodeId) {
        let incoming = self.lanes_with(|edge| edge.to == id && !edge.back);
        let own = incoming.first().copied().unwrap_or_else(|| self.free_lane(0));
        let above = !incoming.is_empty();
        if incoming.len() > 1 {
            let closing: Vec<usize> = incoming.iter().copied().skip(1).collect();
            self.connect(own, Arms { up: true, down: true }, &closing, &[], false);
            closing.iter().for_each(|lane| self.lanes[*lane] = None);
        }
        // The lane of the node is in use, even if it has no incoming edge.
        self.lanes[own] = incoming.first().and_then(|lane| self.lanes[*lane]).or(Some(usize::MAX));
        let back = self.edges_where(|edge| edge.to == id && edge.back);
        if !back.is_empty() {
            let opening = self.open_lanes(own, &back);
            self.connect(own, Arms { up: above, down: true }, &[], &opening, true);
        }
        self.add_node_line(id, own);
        self.assign_lanes(id, own);
        while self.lanes.last() == Some(&None) {
            self.lanes.pop();
        }
    }

    /// Adds the line with the dot and the text of the node.
    fn add_node_line(&mut self, id: NodeId, own: usize) {
        let glyph = match self.plan.graph.node(id).kind() {
            Some(FilterKind::Source) => '○',
            Some(FilterKind::Sink) => '■',
            _ if self.plan.graph.outputs(id).next().is_none() => '■',
            _ => '●',
        };
        let mut cells = String::new();
        for (lane, edge) in self.lanes.iter().enumerate() {
            cells.push(match edge {
                _ if lane == own => glyph,
                Some(_) => '│',
                None => ' ',
            });
            cells.push(' ');
        }
        let text = self.node_text(id);
        self.rows.push(Row::Line(cells, text));
    }

    /// Assigns lanes to the outgoing edges of the node; the first keeps the lane of the node.
    fn assign_lanes(&mut self, id: NodeId, own: usize) {
        let out = self.edges_where(|edge| edge.from == id && !edge.back);
        let closing = self.lanes_with(|edge| edge.from == id && edge.back);
        let first = out.first().copied();
        let opening = self.open_lanes(own, out.get(1..).unwrap_or_default());
        if !opening.is_empty() || !closing.is_empty() {
            let arms = Arms { up: true, down: first.is_some() };
            self.connect(own, arms, &closing, &opening, false);
        }
        closing.iter().for_each(|lane| self.lanes[*lane] = None);
        self.lanes[own] = first;
    }

    /// Returns the first free lane with index `from` or higher.
    fn free_lane(&mut self, from: usize) -> usize {
        let free = (from..self.lanes.len()).find(|lane| self.lanes[*lane].is_none());
        free.unwrap_or_else(|| {
            self.lanes.resize(self.lanes.len().max(from) + 1, None);
            self.lanes.len() - 1
        })
    }

    fn open_lanes(&mut self, own: usize, edges: &[usize]) -> Vec<usize> {
        let mut opened = Vec::new();
        for edge in edges {
            let lane = self.free_lane(own + 1);
            self.lanes[lane] = Some(*edge);
            opened.push(lane);
        }
        opened
    }

    /// Adds a row in which lanes join or leave the lane of a node.
    fn connect(
        &mut self,
        own: usize,
        arms: Arms,
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
                () if meets => Arms { up: closing.contains(&lane), down: opening.contains(&lane) },
                () => Arms { up: through, down: through },
            };
            let (left, right) = (lane > low && lane <= high, lane >= low && lane < high);
            cells.push(junction_character(arms, left, right));
            cells.push(match right {
                true if arrow && lane == own => '◄',
                true => '─',
                false => ' ',
            });
        }
        self.rows.push(Row::Line(cells, String::new()));
    }

    /// Formats the text of a node: the classes of its incoming arcs, the node, and its back edges.
    fn node_text(&self, id: NodeId) -> String {
        let graph = &self.plan.graph;
        let mut text = match self.completion_reason(id) {
            Some(why) => format!("{}  (added: {why})", node_text(graph, id)),
            None => format!("{}{}", self.incoming_labels(id), node_text(graph, id)),
        };
        if let Some(replicas) = self.plan.replicas_of(id) {
            let _ = write!(text, "  (× {})", replicas.spaces.len());
        }
        for edge in graph.outputs(id).filter(|edge| edge.back) {
            let class =
                format_label(graph, edge).map_or_else(String::new, |label| format!("{label} "));
            let _ = write!(text, "  ({class}back to {})", self.names[edge.to.0]);
        }
        if text.chars().count() > TEXT_MAX {
            text = text.chars().take(TEXT_MAX - 1).chain(['…']).collect();
        }
        text
    }

    /// Returns the reason for a sink that the planner added to an open end, or `None` for other
    /// nodes.
    fn completion_reason(&self, id: NodeId) -> Option<String> {
        let node = self.plan.graph.node(id);
        if node.kind() != Some(FilterKind::Sink) || node.span.start != node.span.end {
            return None;
        }
        let before = self.plan.graph.inputs(id).map(|edge| edge.from).next()?;
        Some(match self.plan.reports.contains(&before) {
            true => format!("the output is what {} reports", self.names[before.0]),
            false => "a request without a sink prints its blocks".to_owned(),
        })
    }

    fn incoming_labels(&self, id: NodeId) -> String {
        let edges: Vec<&Edge> = self.plan.graph.inputs(id).filter(|edge| !edge.back).collect();
        let Some(first) = edges.first() else { return String::new() };
        if edges.iter().all(|edge| edge.classes == first.classes) {
            return format_label(&self.plan.graph, first)
                .map_or_else(String::new, |label| format!("{label} "));
        }
        let mut labels = String::new();
        for edge in edges {
            let label = format_label(&self.plan.graph, edge).unwrap_or_else(|| "|".to_owned());
            let _ = write!(labels, "{label} of {}, ", self.names[edge.from.0]);
        }
        labels.truncate(labels.trim_end_matches(", ").len());
        labels.push_str(": ");
        labels
    }

    fn row_text(self) -> String {
        let cells = |row: &Row| match row {
            Row::Line(cells, _) | Row::Rule(cells, _) => cells.chars().count(),
        };
        let width = self.rows.iter().map(cells).max().unwrap_or(0);
        if width > 2 * LANES_MAX {
            return format!(
                " {} lanes: too many to draw for a terminal; --dot draws them\n",
                width / 2
            );
        }
        let mut out = String::new();
        for row in &self.rows {
            let line = match row {
                Row::Line(cells, text) => format!("  {cells:width$} {text}"),
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

/// Formats the label of an arc as the request has it. Returns `None` for a plain pipe.
pub(super) fn format_label(graph: &Graph, edge: &Edge) -> Option<String> {
    (!edge.classes.is_plain()).then(|| format!("|{}", arc_label(graph, edge)))
}

/// Returns the box-drawing character with these arms.
const fn junction_character(Arms { up, down }: Arms, left: bool, right: bool) -> char {
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
