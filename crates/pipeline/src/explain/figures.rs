//! Measurements shown in the drawing of a plan, and their formatting.

use super::analysis::Measurements;
use crate::format::format_one_decimal;
use crate::graph::NodeId;
use crate::plan::Plan;
use std::fmt::Write as _;

/// The measurements shown in a drawing. Losses are indexed by node and by edge of the plan.
#[derive(Debug, Clone, Default)]
pub struct DrawnFigures {
    /// The measurements of the run: blocks, times and wakeups by node and by edge.
    pub measured: Measurements,
    /// The number of blocks lost in each node; for a source, the number of blocks lost before it.
    pub lost_in_nodes: Vec<u64>,
    /// The number of blocks lost on each edge.
    pub lost_on_edges: Vec<u64>,
}

/// Returns the lines below a node's name: its cost, its rate and its losses. If `figures` is
/// `None`, returns only the expected cost.
pub(super) fn node_lines(plan: &Plan, id: NodeId, figures: Option<&DrawnFigures>) -> Vec<String> {
    let expected = plan.expected_cost(id).map(format_one_decimal);
    let Some(figures) = figures else {
        return expected.map(|ns| format!("{ns} ns expected")).into_iter().collect();
    };
    let mut lines = Vec::new();
    let node = figures.measured.nodes.get(id.0).copied().unwrap_or_default();
    let measured = node.ns_per_block().map(format_one_decimal);
    match (measured, expected) {
        (Some(ns), Some(expected)) => lines.push(format!("{ns} ns, {expected} expected")),
        (Some(ns), None) => lines.push(format!("{ns} ns")),
        (None, Some(expected)) => lines.push(format!("{expected} ns expected")),
        (None, None) => {}
    }
    lines.push(rate_text(node.blocks, figures.measured.elapsed_ns));
    let lost = figures.lost_in_nodes.get(id.0).copied().unwrap_or(0);
    if lost > 0 {
        lines.push(format!("lost {lost}"));
    }
    lines
}

/// Returns a node's rate, its measured cost and its losses, including losses on its incoming edges,
/// as one line.
pub(super) fn node_figures(plan: &Plan, id: NodeId, figures: &DrawnFigures) -> String {
    let node = figures.measured.nodes.get(id.0).copied().unwrap_or_default();
    let mut text = format!("{:>8}", rate_text(node.blocks, figures.measured.elapsed_ns));
    let ns = node.ns_per_block().map(format_one_decimal);
    let _ = write!(text, "  {:>9}", ns.map_or_else(String::new, |ns| format!("{ns} ns")));
    let edges = plan.graph.edges.iter().enumerate().filter(|(_, edge)| edge.to == id);
    let on_edges = edges.filter_map(|(number, _)| figures.lost_on_edges.get(number));
    let lost = figures.lost_in_nodes.get(id.0).into_iter().chain(on_edges).sum::<u64>();
    if lost > 0 {
        let _ = write!(text, "  lost {lost}");
    }
    text
}

impl DrawnFigures {
    /// Returns the measurements since the earlier sample `before`: the duration, and the numbers of
    /// blocks, calls and nanoseconds. All other measurements, such as losses, still count from the
    /// start of the run. Returns an unchanged copy if `before` belongs to another plan.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let (now, old) = (&self.measured, &before.measured);
        let same = now.nodes.len() == old.nodes.len() && now.edges.len() == old.edges.len();
        if !same {
            return self.clone();
        }
        let mut figures = self.clone();
        let measured = &mut figures.measured;
        measured.elapsed_ns = now.elapsed_ns.saturating_sub(old.elapsed_ns);
        for (node, old) in measured.nodes.iter_mut().zip(&old.nodes) {
            node.blocks = node.blocks.saturating_sub(old.blocks);
            node.calls = node.calls.saturating_sub(old.calls);
            node.busy_ns = node.busy_ns.saturating_sub(old.busy_ns);
        }
        for (edge, old) in measured.edges.iter_mut().zip(&old.edges) {
            edge.put = edge.put.saturating_sub(old.put);
        }
        figures
    }
}

/// Returns the rate of blocks on an edge as text, and the number of blocks lost on the edge.
pub(super) fn edge_figures(edge: usize, figures: &DrawnFigures) -> (String, u64) {
    let put = figures.measured.edges.get(edge).map_or(0, |edge| edge.put);
    let lost = figures.lost_on_edges.get(edge).copied().unwrap_or(0);
    (rate_text(put, figures.measured.elapsed_ns), lost)
}

/// Formats a number of blocks per second, such as `950/s` or `12.5k/s`.
fn rate_text(blocks: u64, elapsed_ns: u64) -> String {
    let rate = blocks as f64 * 1e9 / elapsed_ns.max(1) as f64;
    match rate {
        rate if rate >= 1e6 => format!("{}M/s", format_one_decimal(rate / 1e6)),
        rate if rate >= 1e4 => format!("{}k/s", format_one_decimal(rate / 1e3)),
        rate if rate >= 10.0 || blocks == 0 => format!("{rate:.0}/s"),
        rate => format!("{}/s", format_one_decimal(rate)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_digits_or_fewer() {
        for (blocks, text) in
            [(0, "0/s"), (5, "5/s"), (950, "950/s"), (12_500, "12.5k/s"), (3_200_000, "3.2M/s")]
        {
            assert_eq!(rate_text(blocks, 1_000_000_000), text);
        }
    }
}
