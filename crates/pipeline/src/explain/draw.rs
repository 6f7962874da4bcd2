//! Drawing of a plan as text.

use super::facts::arc_label;
use super::figures::{DrawnFigures, node_figures};
use super::lanes::{DrawnEdge, DrawnGraph, DrawnNode, Symbol};
use crate::graph::{Edge, Graph, NodeId};
use crate::names::{node_text, unique_names};
use crate::plan::Plan;
use filter::FilterKind;
use std::fmt::Write as _;

/// Draws all nodes of a plan. If `figures` is given, includes rates, measured costs and losses.
#[must_use]
pub fn format_drawing(plan: &Plan, figures: Option<&DrawnFigures>) -> String {
    let names = unique_names(&plan.graph);
    let components = plan.spaces.iter().map(|space| space.component + 1).max().unwrap_or(0);
    let draw = |component| draw_nodes(plan, &drawing_order(plan, component), (&names, figures));
    (0..components).map(draw).collect()
}

/// Returns the nodes of a connected component, except operands, in drawing order: each node follows
/// its inputs; subject to that, nodes are ordered by space and, within a space, in text order.
pub(super) fn drawing_order(plan: &Plan, component: usize) -> Vec<NodeId> {
    let nodes = plan.graph.nodes_with_ids();
    let drawn = nodes
        .filter(|(id, node)| node.inside.is_none() && plan.space_of(*id).component == component)
        .map(|(id, _)| id.0);
    let order = drawn_graph(plan, |_| DrawnNode::default()).sort_for_drawing(drawn.collect());
    order.into_iter().map(NodeId).collect()
}

/// Draws the nodes in `order`, one per line, in this order.
pub(super) fn draw_nodes(
    plan: &Plan,
    order: &[NodeId],
    (names, figures): (&[String], Option<&DrawnFigures>),
) -> String {
    let node = |id| DrawnNode {
        text: drawn_node_text(plan, id, names),
        figures: figures.map_or_else(String::new, |figures| node_figures(plan, id, figures)),
        symbol: match plan.graph.node(id).kind() {
            Some(FilterKind::Source) => Symbol::Source,
            Some(FilterKind::Sink) => Symbol::Sink,
            _ if plan.graph.outputs(id).next().is_none() => Symbol::Sink,
            _ => Symbol::Filter,
        },
        ..DrawnNode::default()
    };
    let order: Vec<usize> = order.iter().map(|id| id.0).collect();
    drawn_graph(plan, node).draw(&order)
}

/// Converts a plan to a graph for a drawing. `node` returns the drawing of a node, in which this
/// function sets the space.
fn drawn_graph(plan: &Plan, node: impl Fn(NodeId) -> DrawnNode) -> DrawnGraph {
    let graph = &plan.graph;
    let nodes = graph.nodes_with_ids().map(|(id, _)| {
        let space = plan.placements.get(id.0).map_or(0, |placed| placed.space);
        DrawnNode { space, ..node(id) }
    });
    let edges = graph.edges.iter();
    DrawnGraph {
        nodes: nodes.collect(),
        edges: edges
            .map(|edge| DrawnEdge { from: edge.from.0, to: edge.to.0, back: edge.back })
            .collect(),
        spaces: plan.spaces.iter().map(|space| space.name.clone()).collect(),
    }
}

/// Formats the text of a node: the classes of its incoming arcs, the node, the number of its
/// replicas, and its back edges. For a sink that the planner added, the reason replaces the
/// classes.
fn drawn_node_text(plan: &Plan, id: NodeId, names: &[String]) -> String {
    let graph = &plan.graph;
    let mut text = match completion_reason(plan, id, names) {
        Some(why) => format!("{}  (added: {why})", node_text(graph, id)),
        None => format!("{}{}", incoming_labels(graph, id, names), node_text(graph, id)),
    };
    if let Some(replicas) = plan.replicas_of(id) {
        let _ = write!(text, "  (× {})", replicas.spaces.len());
    }
    for edge in graph.outputs(id).filter(|edge| edge.back) {
        let class = format_label(graph, edge).map_or_else(String::new, |label| format!("{label} "));
        let _ = write!(text, "  ({class}back to {})", names[edge.to.0]);
    }
    text
}

/// Returns the reason why the planner added this sink after a filter whose output was not used, or
/// `None` for other nodes.
fn completion_reason(plan: &Plan, id: NodeId, names: &[String]) -> Option<String> {
    let node = plan.graph.node(id);
    if node.kind() != Some(FilterKind::Sink) || node.span.start != node.span.end {
        return None;
    }
    let before = plan.graph.inputs(id).map(|edge| edge.from).next()?;
    Some(match plan.reports.contains(&before) {
        true => format!("the output is what {} reports", names[before.0]),
        false => "a request without a sink prints its blocks".to_owned(),
    })
}

fn incoming_labels(graph: &Graph, id: NodeId, names: &[String]) -> String {
    let edges: Vec<&Edge> = graph.inputs(id).filter(|edge| !edge.back).collect();
    let Some(first) = edges.first() else { return String::new() };
    if edges.iter().all(|edge| edge.classes == first.classes) {
        return format_label(graph, first).map_or_else(String::new, |label| format!("{label} "));
    }
    let mut labels = String::new();
    for edge in edges {
        let label = format_label(graph, edge).unwrap_or_else(|| "|".to_owned());
        let _ = write!(labels, "{label} of {}, ", names[edge.from.0]);
    }
    labels.truncate(labels.trim_end_matches(", ").len());
    labels.push_str(": ");
    labels
}

/// Formats an arc's label as written in the request. Returns `None` for a plain pipe.
pub(super) fn format_label(graph: &Graph, edge: &Edge) -> Option<String> {
    (!edge.classes.is_plain()).then(|| format!("|{}", arc_label(graph, edge)))
}
