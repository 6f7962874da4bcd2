//! Tests of the choice of replicas: which filters are replicated, how many times, and why other
//! filters are not.

mod common;

use common::planner_registry;
use filter::sharing::ShardKey;
use pipeline::graph::NodeId;
use pipeline::plan::{Costs, FilterCost, Machine, Plan, SpaceKind, plan};

/// The costs of filters on the test machine, in ns.
const FILTER_COSTS_NS: [(&str, f64); 4] =
    [("regex", 2_000.0), ("compress", 9_000.0), ("tcp", 400.0), ("http", 1_600.0)];

/// Returns a machine with `processors` processors and the costs in [`FILTER_COSTS_NS`].
fn test_machine(processors: usize) -> Machine {
    let mut costs = Costs::default();
    for (filter, block) in FILTER_COSTS_NS {
        costs.set_filter_cost(FilterCost {
            filter: filter.to_owned(),
            kernel: false,
            block,
            byte: 0.0,
        });
    }
    Machine { processors, costs, ..Machine::example() }
}

/// Plans a request, after adding `--parallel=auto` unless it sets `--parallel`, and asserts the
/// invariants of the plan.
fn plan_and_assert_invariants(text: &str, machine: &Machine) -> Plan {
    let world = planner_registry::planner_registry();
    let option = if text.starts_with("--parallel") { "" } else { "--parallel=auto " };
    let text = &format!("{option}{text}");
    let (graph, mistakes) = pipeline::read_request(text, &world);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &world, machine).expect("a plan");
    assert_valid(&plan, text);
    plan
}

/// Asserts the invariants that hold for every plan with replicas.
fn assert_valid(plan: &Plan, text: &str) {
    for replicas in &plan.replicas {
        assert!(replicas.spaces.len() > 1, "{text}");
        let part = plan.spaces[replicas.join].component;
        for space in replicas.spaces.iter().chain([&replicas.join]) {
            assert_eq!(plan.spaces[*space].kind, SpaceKind::Thread, "{text}");
            assert_eq!(plan.spaces[*space].component, part, "{text}");
            assert!(*space <= replicas.join, "{text}: a path moves forward");
        }
        let names = replicas.spaces.iter().map(|space| &plan.spaces[*space].name);
        let mut names: Vec<_> = names.collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), replicas.spaces.len(), "{text}: each has a thread of its own");
    }
    for edge in plan.graph.edges.iter().filter(|edge| !edge.back) {
        let (from, to) = (&plan.placements[edge.from.0], &plan.placements[edge.to.0]);
        assert!(from.output_space <= to.input_space, "{text}: a path moves forward");
    }
    for (operand, node) in plan.graph.nodes_with_ids() {
        if let Some(section) = node.inside {
            let of = |id: NodeId| {
                let it = &plan.placements[id.0];
                (it.space, it.input_space, it.output_space)
            };
            assert_eq!(of(operand), of(section), "{text}: a section runs in one thread");
        }
    }
}

/// Returns the names of the replicated filters, the number of replicas, and the key by which blocks
/// are distributed. Returns `None` unless exactly one chain of filters is replicated.
fn replica_choice(text: &str, processors: usize) -> Option<(Vec<String>, usize, Option<ShardKey>)> {
    let plan = plan_and_assert_invariants(text, &test_machine(processors));
    let [replicas] = plan.replicas.as_slice() else { return None };
    let names = replicas.nodes.iter().map(|id| plan.graph.node(*id).name().to_owned());
    Some((names.collect(), replicas.spaces.len(), replicas.shard_key))
}

fn replica_refusals(text: &str, processors: usize) -> String {
    let plan = plan_and_assert_invariants(text, &test_machine(processors));
    assert!(plan.replicas.is_empty(), "{text}");
    let reasons = plan
        .replica_refusals
        .iter()
        .map(|refusal| format!("{}: {}", plan.graph.node(refusal.node).name(), refusal.why));
    reasons.collect::<Vec<_>>().join("; ")
}

#[test]
fn n1_o11_costly_stateless_filters_are_replicated_by_load() {
    let found = replica_choice("replay a | regex x | print", 2);
    assert_eq!(found, Some((vec!["regex".to_owned()], 2, None)));
    let found = replica_choice("replay a | compress | print", 4).expect("copies");
    assert_eq!((found.1, found.2), (4, None));
    assert_eq!(
        replica_choice("replay a | bpf udp | print", 8),
        None,
        "it costs less than a crossing"
    );
}

#[test]
fn n2_filters_with_sessions_are_replicated_by_session() {
    let of = |text: &str| replica_choice(text, 2).map(|(names, _, by)| (names.join(" "), by));
    let flow = Some(ShardKey::Flow);
    assert_eq!(of("replay a | tcp | http | print"), Some(("tcp http".to_owned(), flow)));
    assert_eq!(of("replay a | tcp | regex x | print"), Some(("tcp regex".to_owned(), flow)));
    let addresses = Some(ShardKey::Addresses);
    let found = of("replay a | ip | tcp | http | print").expect("copies");
    assert!(found.0.ends_with("tcp http"), "{found:?}");
    assert_eq!(found.1, if found.0.starts_with("ip") { addresses } else { flow });
    let session = Some(ShardKey::Session);
    let found = of("replay a | tcp @thread0 | http | print");
    assert_eq!(found, Some(("http".to_owned(), session)), "the first told them apart");
}

#[test]
fn n1_v1_section_after_replicas_moves_with_its_operands() {
    for behind in [
        "!match x",
        "match x ++ match y",
        "bpf udp +* !(match x ++ bpf tcp)",
        "count | (bpf tcp | match x) ++ tcp | (bpf tcp | count + !bpf udp)",
    ] {
        for option in ["--parallel=2", "--parallel=3", "--parallel=auto"] {
            let text = format!("{option} replay a | regex x | {behind} | discard");
            let plan = plan_and_assert_invariants(&text, &test_machine(4));
            assert_eq!(plan.replicas.len(), 1, "{text}");
        }
        let text = format!("--parallel=2 replay a | tcp | {behind} | pcap x");
        plan_and_assert_invariants(&text, &test_machine(4));
    }
}

#[test]
fn n4_every_connected_component_gets_its_own_replicas() {
    let text = "replay a | regex x | print ; replay b | compress | discard";
    let plan = plan_and_assert_invariants(text, &test_machine(2));
    assert_eq!(plan.replicas.len(), 2);
    let parts: Vec<usize> = plan.replicas.iter().map(|c| plan.spaces[c.join].component).collect();
    assert_eq!(parts, [0, 1]);
}

#[test]
fn n1_request_without_the_option_gets_no_replicas() {
    let (graph, _) = pipeline::read_request(
        "replay a | compress | print",
        &planner_registry::planner_registry(),
    );
    let plan =
        plan(graph, &planner_registry::planner_registry(), &test_machine(16)).expect("a plan");
    assert_eq!((plan.replicas, plan.replica_refusals), (vec![], vec![]));
}

#[test]
fn n5_number_of_replicas_follows_the_goal_of_the_option() {
    let line = "replay a | tcp | print";
    let number = |option: &str| replica_choice(&format!("{option} {line}"), 16).map_or(1, |c| c.1);
    let (power, auto, latency) =
        (number("--parallel=power"), number("--parallel=auto"), number("--parallel=latency"));
    assert_eq!((power, latency), (1, 16), "half of what a copy does is crossing");
    assert!(1 < auto && auto < 16, "{auto}");
    assert_eq!(
        [number("--parallel=no"), number("--parallel=1"), number("--parallel=7")],
        [1, 1, 7]
    );
    for wrong in ["--parallel=0", "--parallel=65", "--parallel=some", "--parallel"] {
        let (_, mistakes) = pipeline::read_request(
            &format!("{wrong} {line}"),
            &planner_registry::planner_registry(),
        );
        assert_eq!(mistakes.len(), 1, "{wrong}");
    }
}

#[test]
fn n1_costly_filter_without_replicas_has_a_reason() {
    assert_eq!(replica_refusals("replay a | regex x | print", 1), "regex: there is one processor");
    assert_eq!(
        replica_refusals("replay a | regex x @thread0 | print", 2),
        "regex: pinned to thread0"
    );
    let refusals = replica_refusals("replay a | dport | (|80 regex x + |22 bpf tcp) | print", 2);
    assert_eq!(refusals, "regex: another branch joins the next filters");
    let refusals = replica_refusals("replay a | tcp @thread0 | http @thread0 | print", 2);
    assert_eq!(refusals, "http: pinned to thread0");
    assert_eq!(
        replica_refusals("replay a | count | print", 2),
        "",
        "what costs little is not told"
    );
    let refusals = replica_refusals("--parallel=2 replay a | count | print", 2);
    assert_eq!(refusals, "count: private state: one for all blocks");
}

#[test]
fn o11_replicas_by_session_begin_after_an_editing_filter() {
    let line = "replay a | rewrite dst=10.0.0.9 | tcp | http | print";
    let (names, ..) = replica_choice(line, 2).expect("copies");
    assert_eq!(names, ["tcp", "http"]);
}
