//! Tests of the static checks. A file contains requests, each with its expected graph or
//! diagnostics.

mod common;

use common::check_registry::check_registry;
use common::{Random, read_cases, request_text, trees, updated_case_file};
use pipeline::graph::{BlockOrder, Step};
use pipeline::language::limits::{ARCS_MAX, PROGRAMS_MAX};
use pipeline::{Diagnostic, Graph, check, read_request};

fn format_graph(line: &str) -> Vec<String> {
    let (graph, mistakes) = read_request(&request_text(line), &check_registry());
    let mut lines = Vec::new();
    if !mistakes.iter().any(Diagnostic::is_error) {
        lines.extend(graph.to_string().lines().map(|line| format!("= {line}")));
        if graph.options.iter().next().is_some() {
            lines.push(format!("= options {:?}", graph.options.iter().collect::<Vec<_>>()));
        }
    }
    for mistake in &mistakes {
        let sign = if mistake.is_error() { '!' } else { '~' };
        lines.push(format!("{sign} {} {}", mistake.span.start, mistake.what));
        for (sign, text) in [('%', &mistake.why), ('?', &mistake.hint)] {
            if !text.is_empty() {
                lines.push(format!("{sign} {text}"));
            }
        }
    }
    lines
}

#[test]
fn checks_match_the_case_file() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/check.cases");
    let text = std::fs::read_to_string(path).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, updated_case_file(&text, format_graph)).unwrap();
    }
    let cases = read_cases(&std::fs::read_to_string(path).unwrap());
    assert!(cases.len() > 100, "the cases are there");
    for (line, expected) in cases {
        assert_eq!(format_graph(&line), expected, "{line}");
    }
}

#[test]
fn arc_labels_before_and_within_groups_are_as_written() {
    let cases = [
        ("rx eth0 | ip | tcp | http |get count", "get"),
        ("rx eth0 | ip | tcp | http | (|get count + |post print)", "get post"),
        ("rx eth0 | ip | tcp | http |get (count + print)", "get get"),
        ("rx eth0 | ip | dport |80:90 (|85 count + |85:99 print)", "85 85:90"),
        ("rx eth0 | ip | dport | (|!80 count + |all print)", "!80 all"),
    ];
    for (line, expected) in cases {
        let (graph, mistakes) = read_request(line, &check_registry());
        assert!(!mistakes.iter().any(Diagnostic::is_error), "{line}: {mistakes:?}");
        let labels = graph.edges.iter().map(|edge| pipeline::explain::arc_label(&graph, edge));
        let labels: Vec<String> = labels.filter(|label| !label.is_empty()).collect();
        assert_eq!(labels.join(" "), expected, "{line}");
    }
}

#[test]
fn random_trees_give_valid_graphs_without_panic() {
    let mut random = Random::from_environment();
    for _ in 0..20_000 {
        let tree = trees::random_request(&mut random);
        let (graph, mistakes) = check(&tree, &check_registry());
        assert_valid(&graph);
        for mistake in mistakes {
            assert!(!mistake.what.is_empty());
        }
    }
}

/// Asserts the invariants of every graph, with or without errors.
fn assert_valid(graph: &Graph) {
    let count = graph.nodes.len();
    let mut open: Vec<usize> = vec![0; count];
    for edge in &graph.edges {
        assert!(edge.from.0 < count && edge.to.0 < count);
        assert!(graph.node(edge.from).inside.is_none() && graph.node(edge.to).inside.is_none());
        open[edge.to.0] += usize::from(!edge.back);
    }
    // Without back edges the graph is acyclic, so a topological order exists.
    let mut ready: Vec<usize> = (0..count).filter(|node| open[*node] == 0).collect();
    let mut ordered = 0;
    while let Some(node) = ready.pop() {
        ordered += 1;
        for edge in graph.edges.iter().filter(|edge| edge.from.0 == node && !edge.back) {
            open[edge.to.0] -= 1;
            if open[edge.to.0] == 0 {
                ready.push(edge.to.0);
            }
        }
    }
    assert_eq!(ordered, count, "{graph}");
    for join in &graph.joins {
        let mut edges = Vec::new();
        collect_edges(&join.order, &mut edges);
        assert!(edges.len() > 1, "{graph}");
        assert!(edges.iter().all(|edge| graph.edges[*edge].to == join.node), "{graph}");
    }
    for (id, node) in graph.nodes_with_ids() {
        if let Some(owner) = node.inside {
            assert!(matches!(graph.node(owner).step, Step::Section(_)), "{id:?}");
        }
    }
}

fn collect_edges(order: &BlockOrder, edges: &mut Vec<usize>) {
    match order {
        BlockOrder::Edge(edge) => edges.push(edge.0),
        BlockOrder::Split { branches, .. } => {
            branches.iter().for_each(|branch| collect_edges(branch, edges))
        }
    }
}

#[test]
fn request_with_too_many_arcs_is_rejected() {
    let wide = vec!["count"; 150].join("+");
    let (graph, mistakes) = read_request(&format!("rx|{wide}|{wide}|log"), &check_registry());
    assert!(graph.edges.is_empty() && 150 * 150 > ARCS_MAX);
    assert_eq!(mistakes.len(), 1);
    assert!(mistakes[0].what.contains("arcs"), "{mistakes:?}");
}

#[test]
fn request_with_too_many_programs_is_rejected() {
    let line = |count: usize| format!("rx{}", " | exec 'cat'".repeat(count));
    assert_eq!(read_request(&line(PROGRAMS_MAX), &check_registry()).1, []);
    let (_, mistakes) = read_request(&line(PROGRAMS_MAX + 3), &check_registry());
    let lines: Vec<&str> = mistakes.iter().map(|mistake| mistake.what.as_str()).collect();
    assert_eq!(lines, ["the request has more than 64 programs"]);
}
