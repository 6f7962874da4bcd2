//! Tests of the division of a request into threads: which nodes run in threads of their own, and
//! which nodes stay together.

mod common;

use common::planner_registry;
use pipeline::plan::{Costs, FilterCost, Machine, Plan, plan};

/// Returns a description of a machine with this number of processors, on which some filters are
/// expensive.
fn costly_machine(processors: usize) -> Machine {
    let mut costs = Costs::default();
    for (filter, block) in
        [("regex", 2_000.0), ("tcp", 2_000.0), ("http", 2_000.0), ("match", 100.0)]
    {
        costs.set_filter_cost(FilterCost {
            filter: filter.to_owned(),
            kernel: false,
            block,
            byte: 0.0,
        });
    }
    Machine { processors, costs, ..Machine::example() }
}

fn plan_request(text: &str, processors: usize) -> Plan {
    let world = planner_registry::planner_registry();
    let (graph, mistakes) = pipeline::read_request(text, &world);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &world, &costly_machine(processors)).expect("a plan");
    for edge in plan.graph.edges.iter().filter(|edge| !edge.back) {
        let (from, to) = (&plan.placements[edge.from.0], &plan.placements[edge.to.0]);
        assert!(from.output_space <= to.input_space, "{text}: a path moves forward");
    }
    plan
}

/// Returns each node's thread as text, such as `replay 0, tcp 0, http 1`.
fn node_threads(text: &str, processors: usize) -> String {
    let plan = plan_request(text, processors);
    let names = pipeline::explain::unique_names(&plan.graph);
    let each = plan.graph.nodes_with_ids().map(|(id, _)| {
        let space = plan.space_of(id).name.clone();
        format!("{} {}", names[id.0], space.strip_prefix("thread").unwrap_or(&space))
    });
    each.collect::<Vec<_>>().join(", ")
}

#[test]
fn n4_costly_stages_of_one_line_get_threads() {
    let line = "replay a | tcp | http | print";
    assert_eq!(node_threads(line, 2), "replay 0, tcp 0, http 1, print 1");
    assert_eq!(node_threads(line, 1), "replay 0, tcp 0, http 0, print 0", "there is one processor");
    let all = "replay a | regex x | regex y | regex z | print";
    assert_eq!(node_threads(all, 3), "replay 0, regex#1 0, regex#2 1, regex#3 2, print 2");
    let cheap = "replay a | match x | match y | match z | print";
    assert_eq!(plan_request(cheap, 2).spaces.len(), 1, "a crossing costs more");
    let why = &plan_request(line, 2).placements;
    assert!(why.iter().any(|place| place.because.starts_with("a stage of its own: a block takes")));
}

#[test]
fn n4_branches_get_threads_and_stay_together_where_they_meet() {
    let apart = "replay a | (regex x | pcap one) + (regex y | pcap two)";
    let found = node_threads(apart, 3);
    let thread =
        |name: &str| found.split(", ").find_map(|node| node.strip_prefix(name)).map(str::to_owned);
    assert_ne!(thread("regex#1 "), thread("regex#2 "), "{found}");
    // The order at the join is the order of the input, so the branches enter the join in one
    // thread.
    let meet = node_threads("replay a | (regex x + regex y) | print", 2);
    let thread = |name: &str| meet.split(", ").find_map(|node| node.strip_prefix(name));
    assert_eq!(thread("regex#1 "), thread("regex#2 "), "{meet}");
    // Both branches write to the standard output, one after the other.
    let both = node_threads("replay a | (regex x | print) + (regex y | print)", 2);
    assert_eq!(both.matches(" 1").count() % 4, 0, "{both}");
}

#[test]
fn n5_policy_determines_the_thread_count() {
    let line = "replay a | regex x | regex y | regex z | print";
    let count = |option: &str| {
        let text = format!("{option} {line}");
        let plan = plan_request(&text, 3);
        let mut used: Vec<usize> = plan.placements.iter().map(|place| place.space).collect();
        used.sort_unstable();
        used.dedup();
        used.len()
    };
    assert_eq!(count("--parallel=no"), 1);
    assert_eq!(count("--policy=latency"), 3);
    assert_eq!(count("--policy=throughput"), 3);
    // One of the three stages takes twice as long as the other two, so two threads would have a
    // utilization of 3/4.
    let uneven = "replay a | match x | regex x | print";
    assert_eq!(plan_request(&format!("--policy=power {uneven}"), 2).spaces.len(), 1);
}

#[test]
fn n4_pins_and_replica_counts_prevent_stages() {
    let all_in_one = |text: &str| plan_request(text, 2).placements.iter().all(|p| p.space == 0);
    assert!(all_in_one("replay a | tcp@thread0 | http | print"));
    assert!(all_in_one("--parallel=1 replay a | tcp | http | print"));
    assert!(all_in_one("--latency=1ms replay a | tcp | http | print"));
    // The amount of input from an interface is known only while the path runs.
    assert!(all_in_one("rx | tcp | http | print"));
}
