//! Formatting of a plan as a Graphviz graph: `streamline explain --dot … | dot -Tsvg > plan.svg`.

use super::draw::format_label;
use super::figures::{DrawnFigures, edge_figures, node_lines};
use crate::graph::{Edge, Graph};
use crate::names::node_text;
use crate::plan::{Plan, PlannedEdge};
use filter::FilterKind;
use filter::text::visible_char;
use std::fmt::Write as _;

/// Formats the graph. Spaces are drawn as boxes, rings as thick edges, pipes as edges with an empty
/// arrowhead, and back edges as dashed edges. If `figures` is given, includes rates, measured costs
/// and losses.
#[must_use]
pub fn format_dot(plan: &Plan, figures: Option<&DrawnFigures>) -> String {
    let graph = &plan.graph;
    let parts = plan.spaces.iter().map(|space| space.component + 1).max().unwrap_or(0);
    let mut out = String::from("digraph streamline {\n  rankdir=LR;\n");
    out.push_str("  node [shape=box, style=rounded, fontname=\"monospace\"];\n");
    for (number, space) in plan.spaces.iter().enumerate() {
        let name = match parts {
            0 | 1 => space.name.clone(),
            _ => format!("path {}: {}", space.component + 1, space.name),
        };
        let _ = writeln!(
            out,
            "  subgraph cluster_{number} {{\n    label={};",
            quoted_dot_string(&name)
        );
        let here = |id: usize| plan.placements[id].space == number;
        for (id, node) in
            graph.nodes_with_ids().filter(|(id, node)| node.inside.is_none() && here(id.0))
        {
            let shape = match node.kind() {
                Some(FilterKind::Source) => ", shape=cds, style=solid",
                Some(FilterKind::Sink) => ", peripheries=2, style=solid",
                _ if node.has_own_process() => ", style=dashed",
                _ => "",
            };
            let mut lines = vec![node_text(graph, id)];
            lines.extend(node_lines(plan, id, figures));
            let loses = lines.iter().skip(1).any(|line| line.starts_with("lost "));
            let red = if loses { ", color=red" } else { "" };
            let lines: Vec<String> = lines.iter().map(|line| quoted_dot_string(line)).collect();
            let text = lines.join("\\n").replace("\"\\n\"", "\\n");
            let kernel = match plan.sources_evaluating(id).next() {
                Some(_) => ", xlabel=\"in the kernel too\"",
                None => "",
            };
            let _ = writeln!(out, "    n{} [label={text}{shape}{red}{kernel}];", id.0);
        }
        out.push_str("  }\n");
    }
    for (number, (edge, planned)) in graph.edges.iter().zip(&plan.edges).enumerate() {
        let measured = figures.map(|figures| edge_figures(number, figures));
        let _ = writeln!(
            out,
            "  n{} -> n{} [{}];",
            edge.from.0,
            edge.to.0,
            edge_attributes(graph, (edge, planned), measured)
        );
    }
    out.push_str("}\n");
    out
}

fn edge_attributes(
    graph: &Graph,
    (edge, planned): (&Edge, &PlannedEdge),
    measured: Option<(String, u64)>,
) -> String {
    let class = format_label(graph, edge);
    let (what, style) = match planned {
        PlannedEdge::Call => (None, ""),
        PlannedEdge::Back => (Some("back".to_owned()), ", style=dashed, constraint=false"),
        PlannedEdge::Pipe => (Some("pipe".to_owned()), ", arrowhead=empty"),
        PlannedEdge::Ring(ring) | PlannedEdge::Kernel(ring) => {
            (Some(format!("ring of {}", ring.entries)), ", penwidth=3")
        }
    };
    let (rate, lost) = measured.unzip();
    let lost = lost.filter(|lost| *lost > 0);
    let red = if lost.is_some() { ", color=red, fontcolor=red" } else { "" };
    let lost = lost.map(|lost| format!("lost {lost}"));
    let text: Vec<String> = class.into_iter().chain(what).chain(rate).chain(lost).collect();
    format!("label={}{style}{red}", quoted_dot_string(&text.join(" ")))
}

/// Quotes text as a Graphviz string. Each hidden character is replaced by a placeholder
/// ([`visible_char`]).
fn quoted_dot_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c => out.push(visible_char(c)),
        }
    }
    out.push('"');
    out
}
