//! Golden tests of plans, each with a request, a named machine, and the expected output of
//! `explain`.
//!
//! Each file in `tests/plans` contains comments, a line `machine: NAME`, the request, a line
//! `----`, and the output. Setting `UPDATE=1` rewrites the outputs; review the difference before a
//! commit.

mod common;

use common::planner_registry::{RX, planner_registry};
use filter::EndpointFacts;
use pipeline::plan::{
    ArcShare, Costs, FilterCost, KernelRefusal, Machine, Plan, Processors, SpaceKind, plan,
};
use pipeline::{Registry, explain};
use std::fs;
use std::path::{Path, PathBuf};

fn machine_named(name: &str) -> Machine {
    match name {
        "example" => Machine::example(),
        "open kernel" => Machine::example_with_kernel(),
        "measured" => measured_machine(),
        "costly filters" => costly_machine(2),
        "costly filters, four processors" => costly_machine(4),
        "costly filters, one processor" => costly_machine(1),
        "two caches" => {
            let near = Processors { allowed: (0..8).collect(), ..Processors::with_shared_cache(4) };
            Machine { processors: 8, path_processors: near, ..Machine::example() }
        }
        "small cache" => Machine { l2: 64 << 10, ..Machine::example() },
        _ => panic!("no machine is called `{name}`"),
    }
}

/// Returns a machine with measured costs, among them an expensive twin and filters that pass few
/// blocks.
fn measured_machine() -> Machine {
    let mut costs = Costs { origin: "an example".to_owned(), ..Costs::default() };
    for (filter, thread, kernel) in
        [("udp", 20.0, 7.0), ("dport", 9.0, 6.0), ("ratelimit", 11.0, 35.0), ("count", 1.0, 1.5)]
    {
        for (kernel, block) in [(false, thread), (true, kernel)] {
            costs.set_filter_cost(FilterCost {
                filter: filter.to_owned(),
                kernel,
                block,
                byte: 0.0,
            });
        }
    }
    for (filter, classes, share) in [("udp", "!0", 0.4), ("dport", "53", 0.05)] {
        let (filter, classes) = (filter.to_owned(), classes.to_owned());
        costs.set_arc_share(ArcShare { filter, classes, share });
    }
    Machine { costs, ..Machine::example_with_kernel() }
}

/// Returns a machine on which some filters cost much more than a crossing.
fn costly_machine(processors: usize) -> Machine {
    let mut costs = Costs { origin: "an example".to_owned(), ..Costs::default() };
    for (filter, block) in [
        ("regex", 2_000.0),
        ("compress", 9_000.0),
        ("tcp", 400.0),
        ("http", 1_600.0),
        ("hist", 3_000.0),
    ] {
        let filter = filter.to_owned();
        costs.set_filter_cost(FilterCost { filter, kernel: false, block, byte: 0.0 });
    }
    costs.set_arc_share(ArcShare {
        filter: "bpf udp".to_owned(),
        classes: "!0".to_owned(),
        share: 0.01,
    });
    let near = Processors::with_shared_cache(processors);
    Machine { processors, path_processors: near, costs, ..Machine::example() }
}

struct PlanCase {
    path: PathBuf,
    head: String,
    machine: Machine,
    request: String,
    expected: String,
}

fn read_case(path: &Path) -> PlanCase {
    let text = fs::read_to_string(path).expect("a plan");
    let (head, expected) = text.split_once("----\n").unwrap_or((&text, ""));
    let (comments, rest) = head.split_once("machine: ").expect("the machine is named");
    assert!(comments.lines().all(|line| line.starts_with('#')), "{}", path.display());
    let (name, request) = rest.split_once('\n').expect("a request follows");
    PlanCase {
        path: path.to_owned(),
        head: head.to_owned(),
        machine: machine_named(name),
        request: request.trim_end().to_owned(),
        expected: expected.to_owned(),
    }
}

fn read_cases() -> Vec<PlanCase> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).expect("the plans").flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "plan"))
        .map(|p| read_case(p))
        .collect()
}

fn plan_case(case: &PlanCase) -> Result<Plan, String> {
    let world = planner_registry();
    let (graph, mistakes) = pipeline::read_request(&case.request, &world);
    assert!(mistakes.is_empty(), "{}", pipeline::render(&case.request, &mistakes, false));
    plan(graph.clone(), &world, &case.machine)
        .map_err(|refused| explain::format_unplaceable(&graph, &refused))
}

#[test]
fn o1_v1_explain_matches_the_golden_files() {
    let cases = read_cases();
    assert!(cases.len() >= 12, "the plans are there");
    for case in cases {
        let text = match plan_case(&case) {
            Ok(plan) => explain::format_plan(&plan, &case.machine),
            Err(text) => text,
        };
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&case.path, format!("{}----\n{text}", case.head)).unwrap();
            continue;
        }
        assert_eq!(text, case.expected, "{}", case.path.display());
        for line in text.lines() {
            assert!(
                line.chars().count() <= explain::TEXT_COLUMNS_MAX,
                "{}: {line}",
                case.path.display()
            );
        }
    }
}

fn case_named(name: &str) -> PlanCase {
    read_cases().into_iter().find(|case| case.path.ends_with(name)).expect("a plan of this name")
}

#[test]
fn o9_refused_filters_run_in_the_next_space_with_the_reason() {
    let case = case_named("22-kernel-only.plan");
    let first = plan_case(&case).unwrap();
    let node = |name: &str| first.graph.nodes_with_ids().find(|(_, n)| n.name() == name).unwrap().0;
    assert!(
        first.graph.nodes_with_ids().all(|(id, _)| first.space_of(id).kind == SpaceKind::Kernel)
    );
    assert_eq!(first.programs[0].steps.len(), 4);
    let why = "R2 invalid mem access 'scalar'".to_owned();
    let refused = [KernelRefusal { node: node("dport"), why: why.clone() }];
    let second = first.replan_after_refusals(&case.machine, &refused).unwrap().unwrap();
    for (name, kind) in [("udp", SpaceKind::Kernel), ("dport", SpaceKind::Thread)] {
        assert_eq!(second.space_of(node(name)).kind, kind, "{name}");
    }
    assert_eq!((second.programs[0].steps.len(), second.programs[0].exits.len()), (1, 1));
    assert_eq!(second.reports, first.reports);
    let text = explain::format_plan(&second, &case.machine);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&format!("kernel: {why}")), "{text}");
    assert!(text.contains("kernel: after `dport`, which the kernel refused"), "{text}");
    assert!(second.replan_after_refusals(&case.machine, &refused).is_none(), "nothing new");
    let all = [KernelRefusal { node: node("rx"), why: "no such interface".to_owned() }];
    let third = second.replan_after_refusals(&case.machine, &all).unwrap().unwrap();
    assert!(third.programs.is_empty() && third.pushdowns.len() == 1);
    assert!(
        third.graph.nodes_with_ids().all(|(id, _)| third.space_of(id).kind == SpaceKind::Thread)
    );
}

#[test]
fn v1_plan_in_the_book_matches_explain_output() {
    let case = case_named("30-measured.plan");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/06-planner.md");
    let page = fs::read_to_string(page).expect("the book");
    let text = format!("$ streamline explain '{}'\n{}", case.request, case.expected);
    assert!(page.contains(&text), "docs/book/06-planner.md is to show:\n{text}");
}

#[test]
fn o6_branches_with_a_common_prefix_share_one_program() {
    let plan = plan_case(&case_named("24-shared-prefix.plan")).unwrap();
    let [program] = &plan.programs[..] else { panic!("{:?}", plan.programs) };
    assert_eq!(program.sources.len(), 2);
    let nodes: Vec<usize> = program.steps.iter().map(|step| step.nodes.len()).collect();
    assert_eq!(nodes, [2, 1, 1, 1], "`bpf` is one, what follows it is not");
    let froms: Vec<_> = program.steps.iter().map(|step| step.from).collect();
    assert_eq!(froms, [None, Some(0), Some(0), Some(2)]);
    let leave = &program.exits[..];
    assert!(leave.len() == 1 && leave[0].from == Some(1) && leave[0].classes.contains(53));
    assert!(!leave[0].classes.contains(54));
}

#[test]
fn dot_output_contains_every_node_and_edge() {
    for case in read_cases() {
        let Ok(plan) = plan_case(&case) else { continue };
        let dot = explain::format_dot(&plan, None);
        let edges = dot.lines().filter(|line| line.contains(" -> ")).count();
        assert_eq!(edges, plan.graph.edges.len());
        let outer = plan.graph.nodes_with_ids().filter(|(_, node)| node.inside.is_none()).count();
        assert_eq!(
            dot.lines().filter(|line| line.trim_start().starts_with('n')).count(),
            outer + edges + 1
        );
        assert_eq!(dot.matches('{').count(), dot.matches('}').count());
    }
}

/// Returns the value of the attribute `name` of each node's box in an SVG drawing, in order.
fn node_box_attributes(svg: &str, name: &str) -> Vec<usize> {
    let frames = svg.split("<rect class=\"node").skip(1);
    let value = |frame: &str| {
        let (_, rest) = frame.split_once(&format!(" {name}=\"")).expect("the attribute");
        rest.split('"').next().and_then(|digits| digits.parse().ok()).expect("a number")
    };
    frames.map(value).collect()
}

#[test]
fn svg_shows_every_node_and_edge_without_overlap() {
    for case in read_cases() {
        let Ok(plan) = plan_case(&case) else { continue };
        let svg = explain::format_svg(&plan, None);
        let outer = plan.graph.nodes_with_ids().filter(|(_, node)| node.inside.is_none()).count();
        assert_eq!(svg.matches("<rect class=\"node").count(), outer, "{}", case.request);
        assert_eq!(svg.matches("<path class=\"edge").count(), plan.graph.edges.len());
        assert_eq!(svg.matches("<rect class=\"lane").count(), plan.spaces.len());
        for tag in ["g", "text", "title", "svg", "style"] {
            let opened =
                svg.matches(&format!("<{tag}>")).count() + svg.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, svg.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        let [x, y, width, height] =
            ["x", "y", "width", "height"].map(|name| node_box_attributes(&svg, name));
        for a in 0..outer {
            for b in a + 1..outer {
                let beside = x[a] + width[a] < x[b] || x[b] + width[b] < x[a];
                let below = y[a] + height[a] < y[b] || y[b] + height[b] < y[a];
                assert!(beside || below, "{a} and {b} overlap in\n{svg}");
            }
        }
    }
}

#[test]
fn drawings_label_arcs_as_the_request_does() {
    let case = case_named("04-no-sink.plan");
    let request = "replay web.pcap | tcp | http | (|exchange count + |get,post count)";
    let plan = plan_case(&PlanCase { request: request.to_owned(), ..case }).unwrap();
    let drawings = [
        explain::format_dot(&plan, None),
        explain::format_svg(&plan, None),
        explain::format_plan(&plan, &Machine::example()),
    ];
    for drawing in drawings {
        assert!(drawing.contains("|exchange") && drawing.contains("|get,post"), "{drawing}");
        assert!(!drawing.contains("|1000"), "{drawing}");
    }
}

#[test]
fn report_before_discard_is_the_output() {
    let reports = |request: &str| {
        let case = case_named("04-no-sink.plan");
        let plan = plan_case(&PlanCase { request: request.to_owned(), ..case }).unwrap();
        let names = explain::unique_names(&plan.graph);
        plan.reports.iter().map(|id| names[id.0].clone()).collect::<Vec<_>>()
    };
    assert_eq!(reports("replay a | count | discard"), ["count"]);
    assert_eq!(reports("replay a | dport | (|53 count + |80 hist) | discard"), ["count", "hist"]);
    assert_eq!(reports("replay a | ((udp | count) + (tcp | hist)) | discard"), ["count", "hist"]);
    assert_eq!(reports("replay a | ((count | discard) + (udp | count))"), ["count#1", "count#2"]);
    assert!(reports("replay a | count | pcap b").is_empty());
    assert!(reports("replay a | count | (discard + pcap b)").is_empty());
    assert_eq!(reports("replay a | hist | count | discard"), ["hist", "count"], "all before it");
    assert_eq!(reports("replay a | count | tcp | count"), ["count#1", "count#2"]);
    assert_eq!(reports("replay a | ((count | pcap b) + (udp | count))"), ["count#1", "count#2"]);
    assert_eq!(reports("replay a | !count | count"), ["count#2"], "an operand prints nothing");
}

#[test]
fn drawings_show_rates_costs_and_losses_once_measured() {
    let case = case_named("24-shared-prefix.plan");
    let plan = plan_case(&case).unwrap();
    let mut figures = explain::DrawnFigures::default();
    figures.measured.elapsed_ns = 1_000_000_000;
    figures.measured.nodes.resize_with(plan.graph.nodes.len(), Default::default);
    figures.measured.edges.resize_with(plan.graph.edges.len(), Default::default);
    let node = &mut figures.measured.nodes[0];
    (node.blocks, node.calls, node.busy_ns) = (20_500, 10, 20_500 * 105);
    figures.measured.edges[0].put = 20_500;
    figures.lost_in_nodes = vec![7];
    figures.lost_on_edges = vec![9];
    for drawing in
        [explain::format_dot(&plan, Some(&figures)), explain::format_svg(&plan, Some(&figures))]
    {
        for text in ["105 ns", "20.5k/s", "lost 7", "lost 9"] {
            assert!(drawing.contains(text), "{text} is not in\n{drawing}");
        }
    }
}

#[test]
fn explain_and_dot_name_filters_evaluated_ahead() {
    let plan = plan_case(&case_named("19-asked-ahead.plan")).unwrap();
    assert_eq!(explain::format_dot(&plan, None).matches("xlabel=\"in the kernel too\"").count(), 3);
    let asked: Vec<_> =
        plan.pushdowns.iter().map(|p| plan.pushed_filter(p.source).unwrap()).collect();
    let asked: Vec<_> = asked.iter().filter_map(|given| given.text("expression")).collect();
    assert_eq!(asked, ["tcp port 80", "udp", "udp", "arp", "arp"]);
    let hosts: Vec<String> = (0..200).map(|n| format!("host 10.0.0.{n}")).collect();
    let request = format!("rx | bpf \"{}\" | discard", hosts.join(" or "));
    let long = PlanCase { request, ..case_named("19-asked-ahead.plan") };
    let text = explain::format_plan(&plan_case(&long).unwrap(), &long.machine);
    let except = "frames of devices without an Ethernet header enter";
    assert!(text.contains(except), "{text}");
    let plan = plan_case(&case_named("20-not-asked-ahead.plan")).unwrap();
    assert!(!explain::format_dot(&plan, None).contains("in the kernel too"));
    assert_eq!(plan.pushdowns.len(), 6);
    assert!(
        plan.pushdowns.iter().all(|p| p.filter.is_err() && plan.pushed_filter(p.source).is_none())
    );
    assert!(
        explain::format_help(&RX, planner_registry().endpoint_facts(&RX))
            .contains("    pushdown      the kernel checks the condition of the next filter")
    );
    let bpf = filter::catalog::FILTERS.iter().find(|entry| entry.name == "bpf").unwrap();
    assert!(
        explain::format_help(bpf, &EndpointFacts::NONE)
            .contains("    pushdown      the kernel checks its condition for the source before it")
    );
}

#[test]
fn every_filter_has_a_help_text() {
    for entry in filter::catalog::FILTERS {
        let help = explain::format_help(entry, planner_registry().endpoint_facts(entry));
        assert!(help.starts_with(entry.name) && help.contains("Example\n"), "{help}");
        for parameter in entry.parameters {
            assert!(help.contains(&format!("    {}", parameter.name)), "{help}");
        }
        assert!(help.lines().all(|l| l.chars().count() <= 104 && !l.ends_with(' ')), "{help}");
    }
}
