//! Drawing of a plan as SVG, with a lane for each space. A node's column is its distance from the
//! sources, in edges.
//!
//! Used by `streamline explain --svg=plan.svg 'REQUEST'`. The picture needs no other program. Its
//! colors follow the reader's preference for a dark or light page.

use super::draw::format_label;
use super::figures::{DrawnFigures, edge_figures, node_lines};
use crate::graph::{Edge, Graph, NodeId};
use crate::names::node_text;
use crate::plan::{Plan, PlannedEdge};
use filter::FilterKind;
use filter::text::visible_char;
use std::fmt::Write as _;

/// Width of a character of a node's text, in px.
const CHARACTER_WIDTH: usize = 8;
/// Height of a line of text in px.
const LINE_HEIGHT: usize = 16;
/// Distance in px between the text and the border of a node.
const NODE_PADDING: usize = 10;
/// Minimum distance between two columns, in px. The labels of edges are drawn between the columns.
const COLUMN_GAP: usize = 130;
/// Width of a character of a label in px, rounded up.
const LABEL_CHARACTER_WIDTH: usize = 7;
/// Distance between a label and the node to which its edge leads, in px.
const LABEL_DISTANCE: usize = 14;
/// Distance between two rows, and between lanes, in px.
const ROW_GAP: usize = 18;
/// Height of the title of a lane in px.
const TITLE_HEIGHT: usize = 24;
/// Maximum length of a node's text, in characters.
const TEXT_LENGTH_MAX: usize = 40;

const STYLE: &str = "text{font:13px monospace;fill:#1b1f24}\
     .lane{fill:#f3f5f8;stroke:#c8ced6}.node{fill:#fff;stroke:#4a5562}\
     .source{fill:#e2f0e6}.sink{fill:#e3ebf8}.process{stroke-dasharray:5 3}\
     .edge{fill:none;stroke:#4a5562}.back{stroke-dasharray:5 3}\
     .label{text-anchor:end}\
     .small{font-size:11px;fill:#58626e}.lost{fill:#c62828}.edge.loses{stroke:#c62828}\
     @media(prefers-color-scheme:dark){text{fill:#e6e9ed}.lane{fill:#1b1f24;stroke:#3a424c}\
     .node{fill:#2a3038;stroke:#98a3b0}.source{fill:#213a2a}.sink{fill:#22324f}\
     .edge{stroke:#98a3b0}.small{fill:#a9b3bf}.lost{fill:#ff8a80}.edge.loses{stroke:#ff8a80}}";

/// A node with its position and size in the picture, in px.
struct PlacedNode {
    id: NodeId,
    column: usize,
    lines: Vec<String>,
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

/// Draws the plan. If `figures` is given, includes rates, measured costs and losses.
#[must_use]
pub fn format_svg(plan: &Plan, figures: Option<&DrawnFigures>) -> String {
    let mut nodes = sized_nodes(plan, figures);
    let lanes = place_nodes(plan, &mut nodes);
    let width = nodes.iter().map(|node| node.x + node.width).max().unwrap_or(0) + 2 * ROW_GAP;
    let height = lanes.iter().map(|(_, y, height)| y + height).max().unwrap_or(0) + ROW_GAP;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}\
         </style>\n<defs><marker id=\"to\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" \
         markerWidth=\"9\" markerHeight=\"9\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">\
         <path d=\"M0 0L8 4L0 8z\" fill=\"#7a8592\"/></marker></defs>\n",
        escaped(&plan.graph.text)
    );
    for (name, y, height) in &lanes {
        let _ = writeln!(
            out,
            "<rect class=\"lane\" x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{height}\" rx=\"6\"/>\
             <text class=\"small\" x=\"{}\" y=\"{}\">{}</text>",
            ROW_GAP / 2,
            width - ROW_GAP,
            ROW_GAP,
            y + LINE_HEIGHT,
            escaped(name)
        );
    }
    for (number, (edge, planned)) in plan.graph.edges.iter().zip(&plan.edges).enumerate() {
        let end = |id: NodeId| nodes.iter().find(|node| node.id == id);
        if let (Some(from), Some(to)) = (end(edge.from), end(edge.to)) {
            let measured = figures.map(|figures| edge_figures(number, figures));
            write_edge(&mut out, &plan.graph, (from, to), (edge, planned, measured));
        }
    }
    nodes.iter().for_each(|node| write_node(&mut out, plan, node));
    out.push_str("</svg>\n");
    out
}

/// Returns the nodes, except operands, with their texts and sizes but without positions.
fn sized_nodes(plan: &Plan, figures: Option<&DrawnFigures>) -> Vec<PlacedNode> {
    let graph = &plan.graph;
    let columns = node_columns(plan);
    let outer = graph.nodes_with_ids().filter(|(_, node)| node.inside.is_none());
    let placed = outer.map(|(id, _)| {
        let mut text: String = node_text(graph, id).chars().take(TEXT_LENGTH_MAX).collect();
        if node_text(graph, id).chars().count() > TEXT_LENGTH_MAX {
            text.push('…');
        }
        let mut lines = vec![text];
        lines.extend(node_lines(plan, id, figures));
        if plan.sources_evaluating(id).next().is_some() {
            lines.push("in the kernel too".to_owned());
        }
        let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        let (width, height) = (
            longest * CHARACTER_WIDTH + 2 * NODE_PADDING,
            lines.len() * LINE_HEIGHT + NODE_PADDING,
        );
        PlacedNode { id, column: columns[id.0], lines, x: 0, y: 0, width, height }
    });
    placed.collect()
}

/// Returns each node's column: the length of the longest path from a source, ignoring back edges.
fn node_columns(plan: &Plan) -> Vec<usize> {
    let mut columns = vec![0; plan.graph.nodes.len()];
    // A path has fewer edges than the graph has nodes.
    for _ in 0..columns.len() {
        let mut changed = false;
        for edge in plan.graph.edges.iter().filter(|edge| !edge.back) {
            let least = columns[edge.from.0] + 1;
            if columns[edge.to.0] < least && least < columns.len() {
                columns[edge.to.0] = least;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    columns
}

/// Places all nodes. Returns the name, top and height of each lane, in px.
fn place_nodes(plan: &Plan, nodes: &mut [PlacedNode]) -> Vec<(String, usize, usize)> {
    let last = nodes.iter().map(|node| node.column).max().unwrap_or(0);
    let mut x = 2 * ROW_GAP;
    for column in 0..=last {
        if column > 0 {
            x += column_gap_before(plan, nodes, column);
        }
        let here = || nodes.iter().filter(|node| node.column == column);
        let width = here().map(|node| node.width).max().unwrap_or(0);
        for node in nodes.iter_mut().filter(|node| node.column == column) {
            node.x = x;
        }
        x += width;
    }
    let parts = plan.spaces.iter().map(|space| space.component + 1).max().unwrap_or(0);
    let mut lanes = Vec::new();
    let mut y = ROW_GAP / 2;
    for (number, space) in plan.spaces.iter().enumerate() {
        let mut bottom = y + TITLE_HEIGHT;
        for column in 0..=last {
            let mut next = y + TITLE_HEIGHT;
            for (wanted, index) in column_rows(plan, nodes, (column, number)) {
                let node = &mut nodes[index];
                node.y = next.max(wanted);
                next = node.y + node.height + ROW_GAP;
            }
            bottom = bottom.max(next);
        }
        let name = match parts {
            0 | 1 => space.name.clone(),
            _ => format!("path {}: {}", space.component + 1, space.name),
        };
        lanes.push((name, y, bottom - y));
        y = bottom + ROW_GAP / 2;
    }
    lanes
}

/// Returns the distance in px between a column and the previous one. The labels of the edges that
/// lead to the column fit into this distance.
fn column_gap_before(plan: &Plan, nodes: &[PlacedNode], column: usize) -> usize {
    let here = |edge: &Edge| nodes.iter().any(|node| node.id == edge.to && node.column == column);
    let edges = plan.graph.edges.iter().zip(&plan.edges).filter(|(edge, _)| here(edge));
    let lengths = edges.map(|(edge, planned)| {
        edge_label(&plan.graph, edge, planned).chars().count() * LABEL_CHARACTER_WIDTH
    });
    let longest = lengths.max().unwrap_or(0);
    COLUMN_GAP.max(longest + 2 * LABEL_DISTANCE)
}

/// Returns the nodes in a column of a lane from top to bottom, as pairs of a sort key and a node
/// index. The sort key is the top of the node's highest predecessor in this lane, or 0 if there is
/// none. In this order, most edges are straight, and few edges cross.
fn column_rows(
    plan: &Plan,
    nodes: &[PlacedNode],
    (column, lane): (usize, usize),
) -> Vec<(usize, usize)> {
    let is_in_lane = |node: &PlacedNode| plan.placements[node.id.0].space == lane;
    let top = |node: &PlacedNode| {
        let edges = plan.graph.edges.iter().filter(|edge| edge.to == node.id && !edge.back);
        let from = edges.filter_map(|edge| nodes.iter().find(|from| from.id == edge.from));
        from.filter(|from| is_in_lane(from)).map(|from| from.y).min().unwrap_or(0)
    };
    let here = nodes.iter().enumerate();
    let here = here.filter(|(_, node)| node.column == column && is_in_lane(node));
    let mut rows: Vec<(usize, usize)> = here.map(|(index, node)| (top(node), index)).collect();
    rows.sort_unstable();
    rows
}

/// Returns the label of an edge: its classes, and the ring or pipe that it crosses.
fn edge_label(graph: &Graph, edge: &Edge, planned: &PlannedEdge) -> String {
    let crossed = match planned {
        PlannedEdge::Call | PlannedEdge::Back => None,
        PlannedEdge::Pipe => Some("pipe".to_owned()),
        PlannedEdge::Ring(ring) | PlannedEdge::Kernel(ring) => {
            Some(format!("ring of {}", ring.entries))
        }
    };
    let parts: Vec<String> = format_label(graph, edge).into_iter().chain(crossed).collect();
    parts.join(" ")
}

fn write_node(out: &mut String, plan: &Plan, node: &PlacedNode) {
    let known = plan.graph.node(node.id);
    let class = match known.kind() {
        Some(FilterKind::Source) => " source",
        Some(FilterKind::Sink) => " sink",
        _ if known.has_own_process() => " process",
        _ => "",
    };
    let PlacedNode { x, y, width, height, .. } = node;
    let _ = write!(
        out,
        "<g><title>{}</title><rect class=\"node{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" \
         height=\"{height}\" rx=\"4\"/>",
        escaped(&plan.placements[node.id.0].because)
    );
    for (number, line) in node.lines.iter().enumerate() {
        let class = match number {
            0 => "",
            _ if line.starts_with("lost ") => " class=\"small lost\"",
            _ => " class=\"small\"",
        };
        let (x, y) = (x + NODE_PADDING, y + (number + 1) * LINE_HEIGHT);
        let _ = write!(out, "<text{class} x=\"{x}\" y=\"{y}\">{}</text>", escaped(line));
    }
    out.push_str("</g>\n");
}

fn write_edge(
    out: &mut String,
    graph: &Graph,
    (from, to): (&PlacedNode, &PlacedNode),
    (edge, planned, measured): (&Edge, &PlannedEdge, Option<(String, u64)>),
) {
    let style = match planned {
        PlannedEdge::Call | PlannedEdge::Pipe => "",
        PlannedEdge::Back => " back",
        PlannedEdge::Ring(_) | PlannedEdge::Kernel(_) => " ring",
    };
    let lost = measured.as_ref().map_or(0, |(_, lost)| *lost);
    let loses = if lost > 0 { " loses" } else { "" };
    let width = if style == " ring" { 3 } else { 1 };
    let (x1, y1) = (from.x + from.width, from.y + from.height / 2);
    let (x2, y2) = (to.x, to.y + to.height / 2);
    let (bend1, bend2) = match edge.back {
        // A back edge also leaves and enters at the sides of nodes, but in a wider curve.
        true => (x1 + COLUMN_GAP, x2.saturating_sub(COLUMN_GAP)),
        false => ((x1 + x2) / 2, (x1 + x2) / 2),
    };
    let _ = write!(
        out,
        "<path class=\"edge{style}{loses}\" stroke-width=\"{width}\" marker-end=\"url(#to)\" \
         d=\"M{x1} {y1}C{bend1} {y1} {bend2} {y2} {x2} {y2}\"/>"
    );
    // The labels are drawn at the end of the edge, where no other edge has one.
    let x = x2.saturating_sub(LABEL_DISTANCE);
    let mut label = |class: &str, y: usize, text: &str| {
        let _ = write!(
            out,
            "<text class=\"{class} label\" x=\"{x}\" y=\"{y}\">{}</text>",
            escaped(text)
        );
    };
    // The label of an edge from above is drawn below the end of the edge.
    let mut below = y2 + LINE_HEIGHT * 3 / 4;
    let first = if y1 < y2 { below } else { y2.saturating_sub(LINE_HEIGHT / 4) };
    let text = edge_label(graph, edge, planned);
    label("small", first, &text);
    below += if y1 < y2 && !text.is_empty() { LINE_HEIGHT } else { 0 };
    if let Some((rate, lost)) = measured {
        label("small", below, &rate);
        if lost > 0 {
            label("small lost", below + LINE_HEIGHT, &format!("lost {lost}"));
        }
    }
    out.push('\n');
}

/// Escapes a text for XML. Each hidden character is replaced by a placeholder ([`visible_char`]).
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(visible_char(c)),
        }
    }
    out
}
