//! Tests of properties of all placements, most of them with random requests and costs. The random
//! tests print their seed; `SEED=` reproduces a run.

mod common;

use common::Random;
use common::planner_registry::{plan_without_errors, planner_registry};
use pipeline::plan::{
    ArcShare, Costs, FilterCost, KernelRefusal, Machine, PersistedPlan, Plan, Policy, SpaceKind,
    plan,
};

/// Filters that accept and emit frames, some with a twin.
const FRAME_FILTERS: &[&str] = &[
    "bpf \"udp\"",
    "bpf \"tcp port 80\"",
    "dport",
    "sport",
    "count",
    "ipproto",
    "sample 10",
    "regex \"a.b\"",
    "hist",
];
const SINK_TEXTS: &[&str] = &["print", "discard", "count", "pcap out.pcap"];

/// Returns a random request: sources, a chain, then possibly branches, which may join again.
fn random_request(random: &mut Random) -> String {
    let source = random.pick(&["rx eth0", "rx eth0", "rx eth1", "rx", "replay a.pcap"]);
    let mut line = source.to_owned();
    append_random_chain(random, &mut line, 4);
    if random.one_chance_in(2) {
        let branches = 2 + random.next_below(4);
        let joined = random.one_chance_in(3);
        let mut all = Vec::new();
        for number in 0..branches {
            let mut branch = match random.next_below(3) {
                0 => format!("|{number} count"),
                1 => "|all count".to_owned(),
                _ => "count".to_owned(),
            };
            append_random_chain(random, &mut branch, 3);
            if !joined {
                branch = format!("{branch} | {}", random.pick(SINK_TEXTS));
            }
            all.push(format!("({branch})"));
        }
        line = format!("{line} | dport | ({})", all.join(" + "));
        if !joined {
            return line;
        }
    }
    format!("{line} | {}", random.pick(SINK_TEXTS))
}

fn append_random_chain(random: &mut Random, line: &mut String, length: usize) {
    for _ in 0..random.next_below(length + 1) {
        let pipe = random.pick(&["|", "|", "|all"]);
        line.push_str(&format!(" {pipe} {}", random.pick(FRAME_FILTERS)));
    }
}

/// Returns a cost table with random values.
fn random_costs(random: &mut Random) -> Costs {
    let mut costs = Costs::default();
    for (name, value) in costs.named_costs() {
        // These costs are not measured by default.
        let value = if value > 0.0 { value } else { 30.0 };
        costs.set_field(name, value * random.next_below(300) as f64 / 100.0);
    }
    for filter in FRAME_FILTERS {
        for kernel in [false, true] {
            let (block, byte) =
                (random.next_below(400) as f64, random.next_below(10) as f64 / 10.0);
            costs.set_filter_cost(FilterCost { filter: (*filter).to_owned(), kernel, block, byte });
        }
        if random.one_chance_in(2) {
            let (classes, share) = ("!0".to_owned(), random.next_below(100) as f64 / 100.0);
            costs.set_arc_share(ArcShare { filter: (*filter).to_owned(), classes, share });
        }
    }
    costs
}

fn kernel_node_flags(plan: &Plan) -> Vec<bool> {
    let inside = |id| plan.space_of(id).kind == SpaceKind::Kernel;
    plan.graph.nodes_with_ids().map(|(id, _)| inside(id)).collect()
}

#[test]
fn o2_no_edge_leads_back_to_an_earlier_space_or_into_the_kernel() {
    let mut random = Random::from_environment();
    let mut inside = 0;
    for _ in 0..100 {
        let text = random_request(&mut random);
        let machine =
            Machine { costs: random_costs(&mut random), ..Machine::example_with_kernel() };
        for policy in ["", "--policy=deepest "] {
            let plan = plan_without_errors(&format!("{policy}{text}"), &machine);
            let kernel = kernel_node_flags(&plan);
            for edge in plan.graph.edges.iter().filter(|edge| !edge.back) {
                let (from, to) =
                    (plan.placements[edge.from.0].space, plan.placements[edge.to.0].space);
                assert!(from <= to, "{text}: {edge:?}");
                assert!(kernel[edge.from.0] || !kernel[edge.to.0], "{text}: {edge:?}");
            }
            let steps: usize =
                plan.programs.iter().flat_map(|p| &p.steps).map(|step| step.nodes.len()).sum();
            let sources: usize = plan.programs.iter().map(|p| p.sources.len()).sum();
            assert_eq!(steps + sources, kernel.iter().filter(|k| **k).count(), "{text}");
            let left = plan.graph.edges.iter().filter(|e| kernel[e.from.0] && !kernel[e.to.0]);
            let leaves: usize = plan.programs.iter().map(|p| p.exits.len()).sum();
            assert_eq!(leaves, left.count(), "{text}");
            inside += usize::from(steps > 0);
        }
    }
    assert!(inside > 20, "{inside} plans of 200 had a filter in the kernel");
}

/// The thread that writes a process's input comes before the thread that reads its output. A single
/// thread for both could deadlock, waiting for output while the process waits for input.
#[test]
fn j5_thread_feeding_a_process_precedes_its_reader() {
    for line in [
        "rx eth0 | exec 'cat' | print",
        "rx eth0 | tcp untrusted=yes | http | print",
        "rx eth0 | udp | tcp untrusted=yes | http untrusted=yes | print",
        "rx eth0 | udp @thread0 | exec 'cat' | print",
        "replay a.pcap | tcp untrusted=yes | print",
        "rx eth0 | dport | (|53 exec 'cat' + |80 exec 'cat') | count",
    ] {
        let plan = plan_without_errors(line, &Machine::example_with_kernel());
        let processes = plan.graph.nodes_with_ids().filter(|(_, node)| node.has_own_process());
        for (id, node) in processes {
            let placement = &plan.placements[id.0];
            for side in [placement.input_space, placement.output_space] {
                assert_eq!(plan.spaces[side].kind, SpaceKind::Thread, "{line}: {}", node.name());
            }
            assert!(placement.input_space < placement.output_space, "{line}: {}", node.name());
        }
    }
}

#[test]
fn o3_cost_policy_is_never_worse_than_deepest_or_threads() {
    let mut random = Random::from_environment();
    let (mut deepest_loses, mut threads_lose) = (0, 0);
    for _ in 0..100 {
        // Several threads raise the rate, although they cost more in total.
        let text = format!("--parallel=no {}", random_request(&mut random));
        let machine =
            Machine { costs: random_costs(&mut random), ..Machine::example_with_kernel() };
        let best = plan_without_errors(&text, &machine);
        let cost = best.choice.cost_ns;
        assert!(best.choice.policy == Policy::Cost && best.choice.is_exact, "{text}");
        let deepest = plan_without_errors(&format!("--policy=deepest {text}"), &machine);
        let sources = best.graph.heads().into_iter();
        let why = "all in threads".to_owned();
        let refused: Vec<_> =
            sources.map(|node| KernelRefusal { node, why: why.clone() }).collect();
        let threads = best.replan_after_refusals(&machine, &refused).unwrap().unwrap();
        assert!(threads.programs.is_empty());
        for (name, other) in [("deepest", &deepest), ("threads", &threads)] {
            let there = other.choice.cost_ns;
            assert!(cost <= there + 1e-6, "{text}: {cost}, and {name} {there}");
        }
        deepest_loses += usize::from(deepest.choice.cost_ns > 1.3 * cost);
        threads_lose += usize::from(threads.choice.cost_ns > 1.3 * cost);
    }
    // The random costs make a difference: each choice is worse than the best for some request.
    assert!(deepest_loses > 0 && threads_lose > 0, "{deepest_loses} and {threads_lose} of 100");
}

#[test]
fn v6_cost_errors_of_50_percent_change_some_plans() {
    let mut random = Random::from_environment();
    let mut changed = 0;
    for _ in 0..100 {
        let text = random_request(&mut random);
        let machine =
            Machine { costs: random_costs(&mut random), ..Machine::example_with_kernel() };
        let mut other = machine.clone();
        for (name, value) in machine.costs.named_costs() {
            other.costs.set_field(name, value * (0.5 + random.next_below(101) as f64 / 100.0));
        }
        for filter in &mut other.costs.filters {
            filter.block *= 0.5 + random.next_below(101) as f64 / 100.0;
        }
        let moved = kernel_node_flags(&plan_without_errors(&text, &machine))
            != kernel_node_flags(&plan_without_errors(&text, &other));
        changed += usize::from(moved);
    }
    assert!(changed > 0, "no plan of 100 is another");
}

#[test]
fn o3_header_search_costs_once_in_the_kernel_and_once_outside() {
    let inside = |line: &str, look, twin_look| {
        let mut costs =
            Costs { header_search: look, twin_header_search: twin_look, ..Costs::default() };
        for name in ["ip", "udp", "dport", "ipproto"] {
            for (kernel, block) in [(false, 10.0), (true, 5.0)] {
                costs.set_filter_cost(FilterCost {
                    filter: name.to_owned(),
                    kernel,
                    block,
                    byte: 0.0,
                });
            }
        }
        let plan = plan_without_errors(line, &Machine { costs, ..Machine::example_with_kernel() });
        kernel_node_flags(&plan).iter().filter(|inside| **inside).count()
    };
    let line = "rx eth0 | ip | udp | match \"Y\" @thread0 | discard";
    // Two twins cost 10 less than the filters, but must find the headers.
    assert_eq!(inside(line, 0.0, 5.0), 3, "finding them costs less than that");
    assert_eq!(inside(line, 0.0, 15.0), 1, "the source alone");
    assert_eq!(inside(line, 60.0, 15.0), 1, "who reads has found them, whatever that costs");
    // The search is charged once for all twins, so four twins save 20.
    let line = "rx eth0 | ip | udp | dport |all ipproto |all match \"Y\" @thread0 | discard";
    assert_eq!(inside(line, 60.0, 15.0), 5, "found once in the kernel");
}

#[test]
fn o3_request_with_many_branches_is_placed_exactly() {
    let machine = Machine::example_with_kernel();
    let branch = |n: usize| format!("(|{n} bpf \"host 10.0.0.{n}\" | print)");
    let branches: Vec<String> = (1..=30).map(branch).collect();
    let text = format!("rx eth0 | dport | ({})", branches.join(" + "));
    let plan = plan_without_errors(&text, &machine);
    assert!(plan.choice.is_exact, "looked at {}", plan.choice.examined);
    let deepest = plan_without_errors(&format!("--policy=deepest {text}"), &machine);
    assert!(plan.choice.cost_ns <= deepest.choice.cost_ns);
}

#[test]
fn random_requests_have_no_errors() {
    let mut random = Random::from_environment();
    for _ in 0..200 {
        let text = random_request(&mut random);
        let (graph, mistakes) = pipeline::read_request(&text, &planner_registry());
        assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
        assert!(plan(graph, &planner_registry(), &Machine::example()).is_ok(), "{text}");
    }
}

#[test]
fn v6_measurements_move_a_filter_and_explain_gives_the_reason() {
    let machine = Machine::example_with_kernel();
    let text = "rx eth0 | ipproto | bpf \"tcp port 80\" | print";
    let first = plan_without_errors(text, &machine);
    assert_eq!(kernel_node_flags(&first), [true, true, true, false]);
    // The twin of `bpf` turned out to be far more expensive than expected.
    let mut slow = machine.clone();
    let filter = "bpf \"tcp port 80\"".to_owned();
    slow.costs.set_filter_cost(FilterCost { filter, kernel: true, block: 500.0, byte: 0.0 });
    let second = first.replan(&slow).unwrap();
    assert_eq!(kernel_node_flags(&second), [true, true, false, false]);
    let changes = PersistedPlan::from_plan(&first).describe_changes(&second);
    let wanted = "`bpf \"tcp port 80\"` runs in thread0 now, not in kernel: thread0 9 ns; \
                  kernel 500 ns, then 3 ns";
    assert_eq!(changes[0], wanted);
    assert!(changes[1].starts_with("it costs "), "{changes:?}");
    assert_eq!(PersistedPlan::from_plan(&first).describe_changes(&first), Vec::<String>::new());
}

#[test]
fn v6_blocks_that_a_filter_refuses_stay_in_the_kernel() {
    let mut machine = Machine::example_with_kernel();
    // The twin costs more than the filter in a thread, but passes few blocks.
    let dport = |kernel, block| {
        let filter = "dport".to_owned();
        FilterCost { filter, kernel, block, byte: 0.0 }
    };
    machine.costs.set_filter_cost(dport(true, 60.0));
    machine.costs.set_filter_cost(dport(false, 20.0));
    let text = "rx eth0 | dport |53 print";
    assert_eq!(kernel_node_flags(&plan_without_errors(text, &machine)), [true, false, false]);
    let (filter, classes) = ("dport".to_owned(), "53".to_owned());
    machine.costs.set_arc_share(ArcShare { filter, classes, share: 0.01 });
    let plan = plan_without_errors(text, &machine);
    assert_eq!(kernel_node_flags(&plan), [true, true, false]);
    assert!((plan.flows.1[1] - 0.01).abs() < 1e-9, "{:?}", plan.flows);
}
