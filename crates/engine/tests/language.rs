//! The behaviour of each operator of the language while a line runs (docs/book/02-language.md).
//!
//! A line goes from its text through the parser, the checks and the planner to the ledger. Frames
//! are numbered and come in turn from ports 10000 and up, so that the blocks that an operator
//! passes are known in advance; `taken` returns the count of each node, in the order of the text.

use engine::build::{Settings, build};
use engine::catalogue::House;
use engine::run::{Outcome, Until, run};
use pipeline::plan::{Machine, plan};

/// Runs a line that is to end well.
fn runs(text: &str) -> Outcome {
    let (graph, mistakes) = pipeline::read(text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &House, &Machine::example()).expect("a plan");
    let paths = build(&plan, Settings::default()).expect("spaces");
    let outcome = run(paths, Until::default()).expect("a run");
    assert!(outcome.failures.is_empty(), "{text}: {:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    outcome
}

/// Returns the number of blocks that nodes of these names took, in the order of the text.
fn taken<const N: usize>(text: &str, names: [&str; N]) -> [u64; N] {
    let outcome = runs(text);
    let mut nodes: Vec<_> = outcome.ledger.filters.iter().collect();
    nodes.sort_by_key(|node| node.planned);
    names.map(|name| {
        let at = nodes.iter().position(|node| node.name == name);
        nodes.remove(at.unwrap_or_else(|| panic!("{text}: no {name} in the ledger"))).taken.blocks
    })
}

/// 600 numbered frames, 150 from each of the ports 10000 to 10003.
const FOUR: &str = "generate count=600 seq=yes flows=4";

#[test]
fn a2_a_pipe_composes_in_sequence() {
    // What `inspect` gets is what `dport` answered, and what `sport` lets through of that.
    let text = format!("{FOUR} | dport |9 sport |10001:10002 inspect | discard");
    assert_eq!(taken(&text, ["dport", "sport", "inspect", "discard"]), [600, 600, 300, 300]);
}

#[test]
fn a3_a_plus_gives_each_branch_all_and_joins_them() {
    let text = format!("{FOUR} | count + (sport |10003 inspect) + hist length | discard");
    let names = ["count", "sport", "inspect", "hist", "discard"];
    assert_eq!(taken(&text, names), [600, 600, 150, 600, 1350]);
}

#[test]
fn a4_parentheses_say_what_belongs_together() {
    // `+` binds closer than `|`.
    let names = ["count", "inspect", "discard"];
    let text = format!("{FOUR} | sport |10000 count + inspect | discard");
    assert_eq!(taken(&text, names), [150, 150, 300]);
    let text = format!("{FOUR} | (sport |10000 count) + inspect | discard");
    assert_eq!(taken(&text, names), [150, 600, 750]);
}

#[test]
fn a5_one_name_is_one_node_whichever_way_leads_there() {
    let text = format!("{FOUR} | sport | (|10000 count --name=X + |10001:10003 count --name=X)");
    let outcome = runs(&text);
    let counts = outcome.ledger.filters.iter().filter(|node| node.name.starts_with("count"));
    let counts: Vec<_> = counts.map(|node| (&*node.name, node.taken.blocks)).collect();
    assert_eq!(counts, [("count#X", 600)], "two places in the text, one node");
}

#[test]
fn a6_a7_a8_an_arc_takes_a_class_a_range_or_all_but_that() {
    for (label, blocks) in [
        ("10002", 150),
        ("!10002", 450),
        ("10001:10002", 300),
        ("10001:", 450),
        (":10000", 150),
        ("10000,10002:10003", 450),
        ("9", 0),
        ("!9", 600),
    ] {
        let text = format!("{FOUR} | sport |{label} count");
        assert_eq!(taken(&text, ["count"]), [blocks], "{label}");
    }
}

#[test]
fn a6_a7_a15_what_is_not_answered_passes_neither_a_plain_arc_nor_a_range() {
    // `bpf` answers a third of the frames nothing at all: class 0.
    let text =
        |arc: &str| format!("generate count=300 flows=3 | bpf \"src port 10001\" {arc} count");
    for (arc, blocks) in [("|", 100), ("|all", 300), ("|0", 200), ("|!0", 100), ("|!1", 200)] {
        assert_eq!(taken(&text(arc), ["count"]), [blocks], "{arc}");
    }
}

#[test]
fn a9_a_class_has_the_name_that_its_filter_gives_it() {
    let line = |label: &str| format!("generate count=100 port=53 | dport |{label} count");
    for (label, blocks) in [("dns", 100), ("ssh:dns", 100), ("ssh", 0), ("!dns", 0)] {
        assert_eq!(taken(&line(label), ["count"]), [blocks], "{label}");
    }
    let (_, mistakes) = pipeline::read(&line("dnss"), &House);
    assert!(mistakes[0].hint.contains("dns"), "what was meant: {mistakes:?}");
}

#[test]
fn a10_a_union_lets_each_block_through_once() {
    let text = format!("{FOUR} | bpf \"src port 10000\" ++ bpf \"udp\" | count");
    assert_eq!(taken(&text, ["count"]), [600], "both match 150, and nothing is there twice");
    let text = format!("{FOUR} | bpf \"src port 10000\" ++ bpf \"src port 10003\" | count");
    assert_eq!(taken(&text, ["count"]), [300]);
    // Of sources: what both give, once.
    let text = "generate count=200 seq=yes ++ generate count=100 seq=yes | count";
    assert_eq!(taken(text, ["count"]), [300]);
}

#[test]
fn a11_an_intersection_lets_through_what_both_answer() {
    let text =
        format!("{FOUR} | bpf \"src portrange 10000-10002\" +* bpf \"src port 10002\" | count");
    assert_eq!(taken(&text, ["count"]), [150]);
}

#[test]
fn a12_a_negation_lets_through_what_is_not_answered_as_it_came() {
    let text = format!("{FOUR} | !bpf \"src port 10000\" | count");
    assert_eq!(taken(&text, ["count"]), [450]);
    let text = format!("{FOUR} | sport +* !bpf \"src port 10000\" | discard");
    assert_eq!(taken(&text, ["discard"]), [450]);
    let text = format!("{FOUR} | !(bpf \"src port 10000\" ++ bpf \"src port 10001\") | count");
    assert_eq!(taken(&text, ["count"]), [300]);
}

/// Sinks first: who puts a block finds somebody who takes it. [SL §7.1]
#[test]
fn o5_spaces_are_activated_from_the_sinks_to_the_sources() {
    use engine::build::{Extras, build_with};
    use sys::steps::{InjectedFault, Steps};
    let text = "generate@thread0 count=100 | count@thread1 | inspect@thread2 | discard@thread3";
    let (graph, _) = pipeline::read(text, &House);
    let plan = plan(graph, &House, &Machine::example()).expect("a plan");
    // A log remembers its steps where one of them might fail.
    let steps = Steps::with(InjectedFault::Fail(u32::MAX));
    let extras = Extras { steps: steps.clone(), ..Extras::default() };
    let host = engine::kernel::point::Points::default();
    let paths = build_with(&plan, Settings::default(), &host, &extras).expect("spaces");
    run(paths, Until::default()).expect("a run");
    let taken = steps.taken();
    let active: Vec<_> = taken.iter().filter_map(|t| t.strip_prefix("Nothing thread")).collect();
    assert_eq!(active, ["3", "2", "1", "0"], "{taken:#?}");
    let first = taken.iter().position(|step| step == "Nothing thread3");
    let last = taken.iter().rposition(|step| !step.starts_with("Nothing "));
    assert!(last < first, "nothing that may fail comes behind the first: {taken:#?}");
}
