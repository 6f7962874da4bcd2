//! The drawing of a plan: one line per node, from the sources down, with a lane for every edge that
//! is under way.
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
//! `○` is a source, `●` a filter, `■` a sink. The space of a line is that of the rule above it;
//! what crosses a rule crosses into another space: over a ring, into or out of a process over a
//! pipe. A back edge is a lane that begins at
//! the node to which it leads, with an arrow, and ends at the node from which it comes.

use super::words;
use crate::ClassSet;
use crate::graph::{Edge, NodeId};
use crate::plan::Plan;
use filter::Kind;
use std::fmt::Write as _;

/// The most lanes that an eye can follow.
const LANES_MAX: usize = 24;
/// The most columns of a node's text.
const TEXT_MAX: usize = 70;
/// The columns of a rule.
const RULE: usize = 64;

/// The nodes of a part in the order of the drawing: from the sources down, space by space, else as
/// the request says. Operands are not among them.
pub(super) fn order(plan: &Plan, part: usize) -> Vec<NodeId> {
    let graph = &plan.graph;
    let mut left: Vec<NodeId> = graph
        .ids()
        .filter(|(id, node)| node.inside.is_none() && plan.space_of(*id).part == part)
        .map(|(id, _)| id)
        .collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let ready = |id: &NodeId| {
            graph.inputs(*id).filter(|edge| !edge.back).all(|edge| !left.contains(&edge.from))
        };
        let next =
            left.iter().copied().filter(ready).min_by_key(|id| (plan.placed[id.0].space, *id));
        // Without its back edges a graph has no cycle, so one is always ready.
        let Some(next) = next.or_else(|| left.first().copied()) else { break };
        left.retain(|id| *id != next);
        order.push(next);
    }
    order
}

/// Draws the nodes in this order.
pub(super) fn draw(plan: &Plan, order: &[NodeId], names: &[String]) -> String {
    let mut drawing = Drawing { plan, names, lanes: Vec::new(), rows: Vec::new() };
    let mut space = None;
    for id in order {
        let here = plan.placed[id.0].space;
        if space.replace(here) != Some(here) {
            drawing.rule(&plan.spaces[here].name);
        }
        drawing.node(*id);
    }
    drawing.text()
}

struct Drawing<'p> {
    plan: &'p Plan,
    names: &'p [String],
    /// The edge in each lane, by its place in the graph.
    lanes: Vec<Option<usize>>,
    rows: Vec<Row>,
}

enum Row {
    /// Cells of the lanes, and what stands beside them.
    Line(String, String),
    /// The border of a space: the cells, and its name.
    Rule(String, String),
}

/// A lane's part in a row, as arms that reach up and down.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Arms {
    up: bool,
    down: bool,
}

impl Drawing<'_> {
    /// The edges of the graph for which this holds.
    fn edges(&self, wanted: impl Fn(&Edge) -> bool) -> Vec<usize> {
        let edges = self.plan.graph.edges.iter().enumerate();
        edges.filter(|(_, edge)| wanted(edge)).map(|(at, _)| at).collect()
    }

    /// The lanes whose edge this holds for.
    fn holding(&self, wanted: impl Fn(&Edge) -> bool) -> Vec<usize> {
        let edges = &self.plan.graph.edges;
        let edge = |lane: &usize| self.lanes[*lane].and_then(|edge| edges.get(edge));
        (0..self.lanes.len()).filter(|lane| edge(lane).is_some_and(&wanted)).collect()
    }

    fn rule(&mut self, space: &str) {
        let cells = self.lanes.iter().map(|lane| if lane.is_some() { "┼─" } else { "──" });
        self.rows.push(Row::Rule(cells.collect(), space.to_owned()));
    }

    fn node(&mut self, id: NodeId) {
        let came = self.holding(|edge| edge.to == id && !edge.back);
        let own = came.first().copied().unwrap_or_else(|| self.free(0));
        let above = !came.is_empty();
        if came.len() > 1 {
            let ending: Vec<usize> = came.iter().copied().skip(1).collect();
            self.connect(own, Arms { up: true, down: true }, &ending, &[], false);
            ending.iter().for_each(|lane| self.lanes[*lane] = None);
        }
        // The lane of the node is taken, even at its first line.
        self.lanes[own] = came.first().and_then(|lane| self.lanes[*lane]).or(Some(usize::MAX));
        let back = self.edges(|edge| edge.to == id && edge.back);
        if !back.is_empty() {
            let starting = self.open(own, &back);
            self.connect(own, Arms { up: above, down: true }, &[], &starting, true);
        }
        self.dot(id, own);
        self.leave(id, own);
        while self.lanes.last() == Some(&None) {
            self.lanes.pop();
        }
    }

    /// The line of the node itself.
    fn dot(&mut self, id: NodeId, own: usize) {
        let glyph = match self.plan.graph.node(id).kind() {
            Some(Kind::Source) => '○',
            Some(Kind::Sink) => '■',
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
        let text = self.beside(id);
        self.rows.push(Row::Line(cells, text));
    }

    /// Puts the edges that leave the node into lanes; the first takes over its own.
    fn leave(&mut self, id: NodeId, own: usize) {
        let out = self.edges(|edge| edge.from == id && !edge.back);
        let ending = self.holding(|edge| edge.from == id && edge.back);
        let first = out.first().copied();
        let starting = self.open(own, out.get(1..).unwrap_or_default());
        if !starting.is_empty() || !ending.is_empty() {
            let arms = Arms { up: true, down: first.is_some() };
            self.connect(own, arms, &ending, &starting, false);
        }
        ending.iter().for_each(|lane| self.lanes[*lane] = None);
        self.lanes[own] = first;
    }

    /// The first free lane from this one on.
    fn free(&mut self, from: usize) -> usize {
        let free = (from..self.lanes.len()).find(|lane| self.lanes[*lane].is_none());
        free.unwrap_or_else(|| {
            self.lanes.resize(self.lanes.len().max(from) + 1, None);
            self.lanes.len() - 1
        })
    }

    fn open(&mut self, own: usize, edges: &[usize]) -> Vec<usize> {
        let mut opened = Vec::new();
        for edge in edges {
            let lane = self.free(own + 1);
            self.lanes[lane] = Some(*edge);
            opened.push(lane);
        }
        opened
    }

    /// A row in which lanes meet the lane of a node: some end there, some begin.
    fn connect(
        &mut self,
        own: usize,
        arms: Arms,
        ending: &[usize],
        starting: &[usize],
        arrow: bool,
    ) {
        let ends = || ending.iter().chain(starting).copied().chain([own]);
        let (low, high) = (ends().min().unwrap_or(own), ends().max().unwrap_or(own));
        let mut cells = String::new();
        for lane in 0..self.lanes.len() {
            let (meets, through) = (ends().any(|end| end == lane), self.lanes[lane].is_some());
            let arms = match () {
                () if lane == own => arms,
                () if meets => Arms { up: ending.contains(&lane), down: starting.contains(&lane) },
                () => Arms { up: through, down: through },
            };
            let (left, right) = (lane > low && lane <= high, lane >= low && lane < high);
            cells.push(joint(arms, left, right));
            cells.push(match right {
                true if arrow && lane == own => '◄',
                true => '─',
                false => ' ',
            });
        }
        self.rows.push(Row::Line(cells, String::new()));
    }

    /// The text of a node: the class of the arc that leads to it, what it is, where it leads back.
    fn beside(&self, id: NodeId) -> String {
        let graph = &self.plan.graph;
        let mut text = match self.added(id) {
            Some(why) => format!("{}  (added: {why})", words::shown(graph, id)),
            None => format!("{}{}", self.labels(id), words::shown(graph, id)),
        };
        if let Some(copied) = self.plan.copies_of(id) {
            let _ = write!(text, "  (× {})", copied.spaces.len());
        }
        for edge in graph.outputs(id).filter(|edge| edge.back) {
            let class = label(&edge.classes).map_or_else(String::new, |label| format!("{label} "));
            let _ = write!(text, "  ({class}back to {})", self.names[edge.to.0]);
        }
        if text.chars().count() > TEXT_MAX {
            text = text.chars().take(TEXT_MAX - 1).chain(['…']).collect();
        }
        text
    }

    /// Explains a sink that the planner added at an open end.
    fn added(&self, id: NodeId) -> Option<String> {
        let node = self.plan.graph.node(id);
        if node.kind() != Some(Kind::Sink) || node.span.start != node.span.end {
            return None;
        }
        let before = self.plan.graph.inputs(id).map(|edge| edge.from).next()?;
        Some(match self.plan.reports.contains(&before) {
            true => format!("the output is what {} reports", self.names[before.0]),
            false => "a line without a sink prints its blocks".to_owned(),
        })
    }

    fn labels(&self, id: NodeId) -> String {
        let edges: Vec<&Edge> = self.plan.graph.inputs(id).filter(|edge| !edge.back).collect();
        let Some(first) = edges.first() else { return String::new() };
        if edges.iter().all(|edge| edge.classes == first.classes) {
            return label(&first.classes).map_or_else(String::new, |label| format!("{label} "));
        }
        let mut labels = String::new();
        for edge in edges {
            let label = label(&edge.classes).unwrap_or_else(|| "|".to_owned());
            let _ = write!(labels, "{label} of {}, ", self.names[edge.from.0]);
        }
        labels.truncate(labels.trim_end_matches(", ").len());
        labels.push_str(": ");
        labels
    }

    fn text(self) -> String {
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
                    format!("{line:─<RULE$}")
                }
            };
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out
    }
}

/// The label of an arc, if it is not a plain pipe.
pub(super) fn label(classes: &ClassSet) -> Option<String> {
    (!classes.is_plain()).then(|| format!("|{classes}"))
}

/// The character with these arms.
const fn joint(Arms { up, down }: Arms, left: bool, right: bool) -> char {
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
