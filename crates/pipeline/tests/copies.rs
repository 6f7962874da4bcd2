//! The choice of replicas: for which filters, how many, and why none for the others.

mod common;

use common::fixture;
use filter::sharing::Sharing;
use pipeline::plan::{Costs, FilterCost, Machine, Plan, SpaceKind, plan};

/// Costs of filters here, in ns.
const COSTS: [(&str, f64); 4] =
    [("regex", 2_000.0), ("compress", 9_000.0), ("tcp", 400.0), ("http", 1_600.0)];

fn machine(processors: usize) -> Machine {
    let mut costs = Costs::default();
    for (filter, block) in COSTS {
        costs.put(FilterCost { filter: filter.to_owned(), kernel: false, block, byte: 0.0 });
    }
    Machine { processors, costs, ..Machine::example() }
}

/// The plan of a line, which asks for the copies that pay unless it says something else.
fn planned(text: &str, machine: &Machine) -> Plan {
    let world = fixture::world();
    let asks = if text.starts_with("--parallel") { "" } else { "--parallel=auto " };
    let text = &format!("{asks}{text}");
    let (graph, mistakes) = pipeline::read(text, &world);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &world, machine).expect("a plan");
    holds(&plan, text);
    plan
}

/// Asserts the invariants of every plan.
fn holds(plan: &Plan, text: &str) {
    for copied in &plan.copied {
        assert!(copied.spaces.len() > 1, "{text}");
        let part = plan.spaces[copied.join].part;
        for space in copied.spaces.iter().chain([&copied.join]) {
            assert_eq!(plan.spaces[*space].kind, SpaceKind::Thread, "{text}");
            assert_eq!(plan.spaces[*space].part, part, "{text}");
            assert!(*space <= copied.join, "{text}: a path moves forward");
        }
        let names = copied.spaces.iter().map(|space| &plan.spaces[*space].name);
        let mut names: Vec<_> = names.collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), copied.spaces.len(), "{text}: each has a thread of its own");
    }
    for edge in plan.graph.edges.iter().filter(|edge| !edge.back) {
        let (from, to) = (&plan.placed[edge.from.0], &plan.placed[edge.to.0]);
        assert!(from.leaves <= to.enters, "{text}: a path moves forward");
    }
}

/// The names of the filters that have copies, how many, and by what they are shared out.
fn copies(text: &str, processors: usize) -> Option<(Vec<String>, usize, Option<Sharing>)> {
    let plan = planned(text, &machine(processors));
    let [copied] = plan.copied.as_slice() else { return None };
    let names = copied.nodes.iter().map(|id| plan.graph.node(*id).name().to_owned());
    Some((names.collect(), copied.spaces.len(), copied.sharing))
}

fn why(text: &str, processors: usize) -> String {
    let plan = planned(text, &machine(processors));
    assert!(plan.copied.is_empty(), "{text}");
    let told = plan
        .alone
        .iter()
        .map(|alone| format!("{}: {}", plan.graph.node(alone.node).name(), alone.why));
    told.collect::<Vec<_>>().join("; ")
}

#[test]
fn n1_o11_costly_stateless_filters_are_replicated_by_load() {
    let found = copies("replay a | regex x | print", 2);
    assert_eq!(found, Some((vec!["regex".to_owned()], 2, None)));
    let found = copies("replay a | compress | print", 4).expect("copies");
    assert_eq!((found.1, found.2), (4, None));
    assert_eq!(copies("replay a | bpf udp | print", 8), None, "it costs less than a crossing");
}

#[test]
fn n2_filters_with_sessions_are_replicated_by_session() {
    let of = |text: &str| copies(text, 2).map(|(names, _, by)| (names.join(" "), by));
    let flow = Some(Sharing::Flow);
    assert_eq!(of("replay a | tcp | http | print"), Some(("tcp http".to_owned(), flow)));
    assert_eq!(of("replay a | tcp | regex x | print"), Some(("tcp regex".to_owned(), flow)));
    let addresses = Some(Sharing::Addresses);
    let found = of("replay a | ip | tcp | http | print").expect("copies");
    assert!(found.0.ends_with("tcp http"), "{found:?}");
    assert_eq!(found.1, if found.0.starts_with("ip") { addresses } else { flow });
    let session = Some(Sharing::Session);
    let found = of("replay a | tcp @thread0 | http | print");
    assert_eq!(found, Some(("http".to_owned(), session)), "the first told them apart");
}

#[test]
fn n4_every_part_of_a_request_has_copies_of_its_own() {
    let text = "replay a | regex x | print ; replay b | compress | discard";
    let plan = planned(text, &machine(2));
    assert_eq!(plan.copied.len(), 2);
    let parts: Vec<usize> = plan.copied.iter().map(|c| plan.spaces[c.join].part).collect();
    assert_eq!(parts, [0, 1]);
}

#[test]
fn n1_nothing_is_copied_unasked() {
    let (graph, _) = pipeline::read("replay a | compress | print", &fixture::world());
    let plan = plan(graph, &fixture::world(), &machine(16)).expect("a plan");
    assert_eq!((plan.copied, plan.alone), (vec![], vec![]));
}

#[test]
fn n5_the_number_of_replicas_follows_the_goal() {
    let line = "replay a | tcp | print";
    let number = |option: &str| copies(&format!("{option} {line}"), 16).map_or(1, |c| c.1);
    let (power, auto, latency) =
        (number("--parallel=power"), number("--parallel=auto"), number("--parallel=latency"));
    assert_eq!((power, latency), (1, 16), "half of what a copy does is crossing");
    assert!(1 < auto && auto < 16, "{auto}");
    assert_eq!(
        [number("--parallel=no"), number("--parallel=1"), number("--parallel=7")],
        [1, 1, 7]
    );
    for wrong in ["--parallel=0", "--parallel=65", "--parallel=some", "--parallel"] {
        let (_, mistakes) = pipeline::read(&format!("{wrong} {line}"), &fixture::world());
        assert_eq!(mistakes.len(), 1, "{wrong}");
    }
}

#[test]
fn n1_explain_says_why_a_costly_filter_has_no_replicas() {
    assert_eq!(why("replay a | regex x | print", 1), "regex: there is one processor");
    assert_eq!(why("replay a | regex x @thread0 | print", 2), "regex: pinned to thread0");
    let told = why("replay a | dport | (|80 regex x + |22 bpf tcp) | print", 2);
    assert_eq!(told, "regex: another branch meets what follows");
    let told = why("replay a | tcp @thread0 | http @thread0 | print", 2);
    assert_eq!(told, "http: pinned to thread0");
    assert_eq!(why("replay a | count | print", 2), "", "what costs little is not told");
    let told = why("--parallel=2 replay a | count | print", 2);
    assert_eq!(told, "count: private state: one for all blocks");
}

#[test]
fn o11_sharing_key_is_not_taken_from_changed_blocks() {
    let line = "replay a | rewrite dst=10.0.0.9 | tcp | http | print";
    let (names, ..) = copies(line, 2).expect("copies");
    assert_eq!(names, ["tcp", "http"]);
}
