//! Drawing of a path's graph with its rates, in the style in which `explain` draws a plan.

use super::super::rates::format_rate_short;
use super::snapshot::{NodeRates, Snapshot};
use member::client::mask_hidden_characters;
use pipeline::explain::{DrawnEdge, DrawnGraph, DrawnNode, Symbol};
use std::fmt::Write as _;

/// Maximum number of nodes that are drawn. The description of a path is untrusted, and may contain
/// any number of nodes.
const NODES_MAX: usize = 500;

/// Returns the rows of the graph, or a single row with a message if the graph has too many nodes.
pub(super) fn graph_rows(snapshot: &Snapshot) -> Vec<String> {
    let path = &snapshot.path;
    if path.nodes.len() > NODES_MAX {
        return vec![format!("  {} nodes: too many to draw", path.nodes.len())];
    }
    let mut spaces: Vec<String> = Vec::new();
    for node in &path.nodes {
        if !spaces.contains(&node.space) {
            spaces.push(node.space.clone());
        }
    }
    let sends = |node: usize| path.links.iter().any(|link| link.from == node);
    let receives = |node: usize| path.links.iter().any(|link| link.to == node);
    let node = |(number, node): (usize, &member::protocol::Node)| {
        let rates = snapshot.nodes.iter().find(|rates| rates.name == node.name);
        let label = rates.filter(|rates| !rates.classes.is_empty());
        let label = label.map_or_else(String::new, |rates| format!("|{} ", rates.classes));
        let copies = match node.copies.len() {
            0 | 1 => String::new(),
            copies => format!("  (× {copies})"),
        };
        DrawnNode {
            text: mask_hidden_characters(&format!("{label}{}{copies}", node.name)),
            figures: rates.map_or_else(String::new, format_node_figures),
            symbol: match (receives(number), sends(number)) {
                (false, _) => Symbol::Source,
                (true, true) => Symbol::Filter,
                (true, false) => Symbol::Sink,
            },
            space: spaces.iter().position(|space| *space == node.space).unwrap_or(0),
        }
    };
    let edge = |link: &member::protocol::Link| DrawnEdge {
        from: link.from,
        to: link.to,
        back: link.transport == "back",
    };
    let graph = DrawnGraph {
        nodes: path.nodes.iter().enumerate().map(node).collect(),
        edges: path.links.iter().map(edge).collect(),
        spaces: spaces.iter().map(|space| mask_hidden_characters(space)).collect(),
    };
    let order = graph.sort_for_drawing((0..graph.nodes.len()).collect());
    graph.draw(&order).lines().map(str::to_owned).collect()
}

/// Formats the rate, the time per block and the losses of a node.
fn format_node_figures(rates: &NodeRates) -> String {
    let mut text = format!("{:>8}/s", format_rate_short(rates.rate.blocks));
    let time =
        rates.block_ns.map_or_else(String::new, |ns| format!("{} ns", format_rate_short(ns)));
    let _ = write!(text, "  {time:>9}");
    if rates.lost > 0 {
        let _ = write!(text, "  lost {}", rates.lost);
    }
    text
}
