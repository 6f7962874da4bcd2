//! Tests of each operator of the language while a request runs (docs/book/02-language.md).
//!
//! Each test parses, checks, plans and runs a request. The frames are numbered, and their ports
//! cycle through 10000, 10001 and so forth, so that each test knows which blocks an operator
//! passes. `node_input_counts` returns the number of blocks that reached each node, in the order of
//! the request's text.

use engine::build::{RunSettings, build};
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use pipeline::Registry as _;
use pipeline::plan::{Machine, plan};

/// Runs a request that must end without a failure.
fn run_to_end(text: &str) -> RunOutcome {
    let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    let plan = plan(graph, &MachineRegistry::Local, &Machine::example()).expect("a plan");
    let paths = build(&plan, RunSettings::default()).expect("spaces");
    let outcome = run(paths, StopConditions::default()).expect("a run");
    assert!(outcome.failures.is_empty(), "{text}: {:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    outcome
}

/// Returns the number of blocks that the nodes with these names received, in the order of the
/// request's text.
fn node_input_counts<const N: usize>(text: &str, names: [&str; N]) -> [u64; N] {
    let outcome = run_to_end(text);
    let mut nodes: Vec<_> = outcome.ledger.filters.iter().collect();
    nodes.sort_by_key(|node| node.planned);
    names.map(|name| {
        let at = nodes.iter().position(|node| node.name == name);
        nodes.remove(at.unwrap_or_else(|| panic!("{text}: no {name} in the ledger"))).taken.blocks
    })
}

/// A source of 600 numbered frames, 150 with each of the ports 10000 to 10003.
const FOUR_PORT_SOURCE: &str = "generate count=600 seq=yes flows=4";

#[test]
fn a2_pipe_composes_filters_in_sequence() {
    // `inspect` receives the blocks that both `dport` and `sport` pass.
    let text = format!("{FOUR_PORT_SOURCE} | dport |9 sport |10001:10002 inspect | discard");
    assert_eq!(
        node_input_counts(&text, ["dport", "sport", "inspect", "discard"]),
        [600, 600, 300, 300]
    );
}

#[test]
fn a3_plus_feeds_every_branch_and_joins_them() {
    let text =
        format!("{FOUR_PORT_SOURCE} | count + (sport |10003 inspect) + hist length | discard");
    let names = ["count", "sport", "inspect", "hist", "discard"];
    assert_eq!(node_input_counts(&text, names), [600, 600, 150, 600, 1350]);
}

#[test]
fn a4_parentheses_group_branches() {
    // `+` binds closer than `|`.
    let names = ["count", "inspect", "discard"];
    let text = format!("{FOUR_PORT_SOURCE} | sport |10000 count + inspect | discard");
    assert_eq!(node_input_counts(&text, names), [150, 150, 300]);
    let text = format!("{FOUR_PORT_SOURCE} | (sport |10000 count) + inspect | discard");
    assert_eq!(node_input_counts(&text, names), [150, 600, 750]);
}

#[test]
fn a5_label_denotes_one_node_on_every_route() {
    let text = format!(
        "{FOUR_PORT_SOURCE} | sport | (|10000 count --name=X + |10001:10003 count --name=X)"
    );
    let outcome = run_to_end(&text);
    let counts = outcome.ledger.filters.iter().filter(|node| node.name.starts_with("count"));
    let counts: Vec<_> = counts.map(|node| (&*node.name, node.taken.blocks)).collect();
    assert_eq!(counts, [("count#X", 600)], "two places in the text, one node");
}

#[test]
fn a6_a7_a8_arc_selects_a_class_a_range_or_its_complement() {
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
        let text = format!("{FOUR_PORT_SOURCE} | sport |{label} count");
        assert_eq!(node_input_counts(&text, ["count"]), [blocks], "{label}");
    }
}

#[test]
fn a6_a7_a15_unanswered_block_passes_no_arc_or_range() {
    // `bpf` matches a third of the frames and leaves the others unanswered (class 0).
    let text =
        |arc: &str| format!("generate count=300 flows=3 | bpf \"src port 10001\" {arc} count");
    for (arc, blocks) in [("|", 100), ("|all", 300), ("|0", 200), ("|!0", 100), ("|!1", 200)] {
        assert_eq!(node_input_counts(&text(arc), ["count"]), [blocks], "{arc}");
    }
}

#[test]
fn a9_arc_accepts_the_class_names_of_its_filter() {
    let line = |label: &str| format!("generate count=100 port=53 | dport |{label} count");
    for (label, blocks) in [("dns", 100), ("ssh:dns", 100), ("ssh", 0), ("!dns", 0)] {
        assert_eq!(node_input_counts(&line(label), ["count"]), [blocks], "{label}");
    }
    let (_, mistakes) = pipeline::read_request(&line("dnss"), &MachineRegistry::Local);
    assert!(mistakes[0].hint.contains("dns"), "what was meant: {mistakes:?}");
}

#[test]
fn a10_union_of_operands_passes_each_block_once() {
    let text = format!("{FOUR_PORT_SOURCE} | bpf \"src port 10000\" ++ bpf \"udp\" | count");
    assert_eq!(
        node_input_counts(&text, ["count"]),
        [600],
        "both match 150, and nothing is there twice"
    );
    let text =
        format!("{FOUR_PORT_SOURCE} | bpf \"src port 10000\" ++ bpf \"src port 10003\" | count");
    assert_eq!(node_input_counts(&text, ["count"]), [300]);
    // A union of sources passes the blocks of both.
    let text = "generate count=200 seq=yes ++ generate count=100 seq=yes | count";
    assert_eq!(node_input_counts(text, ["count"]), [300]);
}

#[test]
fn a11_intersection_passes_blocks_that_both_answer() {
    let text = format!(
        "{FOUR_PORT_SOURCE} | bpf \"src portrange 10000-10002\" +* bpf \"src port 10002\" | count"
    );
    assert_eq!(node_input_counts(&text, ["count"]), [150]);
}

#[test]
fn a12_negation_passes_unanswered_blocks_unchanged() {
    let text = format!("{FOUR_PORT_SOURCE} | !bpf \"src port 10000\" | count");
    assert_eq!(node_input_counts(&text, ["count"]), [450]);
    let text = format!("{FOUR_PORT_SOURCE} | sport +* !bpf \"src port 10000\" | discard");
    assert_eq!(node_input_counts(&text, ["discard"]), [450]);
    let text =
        format!("{FOUR_PORT_SOURCE} | !(bpf \"src port 10000\" ++ bpf \"src port 10001\") | count");
    assert_eq!(node_input_counts(&text, ["count"]), [300]);
}

/// Expects spaces to be activated from the sinks to the sources, so that every writer finds an
/// active reader. [SL §7.1]
#[test]
fn o5_spaces_are_activated_from_the_sinks_to_the_sources() {
    use engine::build::{PathOptions, build_with_options};
    use sys::rollback::{InjectedFault, RollbackLog};
    let text = "generate@thread0 count=100 | count@thread1 | inspect@thread2 | discard@thread3";
    let (graph, _) = pipeline::read_request(text, &MachineRegistry::Local);
    let plan = plan(graph, &MachineRegistry::Local, &Machine::example()).expect("a plan");
    // The log records steps only if a fault is configured; this one never occurs.
    let steps = RollbackLog::with_fault(InjectedFault::Fail(u32::MAX));
    let extras = PathOptions { steps: steps.clone(), ..PathOptions::default() };
    let host = engine::kernel::shared_attach_point::AttachPoints::default();
    let paths = build_with_options(&plan, RunSettings::default(), &host, &extras).expect("spaces");
    run(paths, StopConditions::default()).expect("a run");
    let inputs = steps.announced_steps();
    let active: Vec<_> = inputs.iter().filter_map(|t| t.strip_prefix("Nothing thread")).collect();
    assert_eq!(active, ["3", "2", "1", "0"], "{inputs:#?}");
    let first = inputs.iter().position(|step| step == "Nothing thread3");
    let last = inputs.iter().rposition(|step| !step.starts_with("Nothing "));
    assert!(last < first, "nothing that may fail comes behind the first: {inputs:#?}");
}

/// Returns the messages of the checks on a request, one per line.
fn mistake_messages(text: &str) -> String {
    let (_, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    pipeline::render(text, &mistakes, false)
}

#[test]
fn b3_frame_filters_are_refused_after_streams_without_frames() {
    use filter::{FilterKind, Form};
    let mut refused = 0;
    for name in MachineRegistry::Local.names() {
        let entry = MachineRegistry::Local.find(name).unwrap();
        let bare_forms = [Form::Bytes, Form::Stream].map(|form| entry.input_forms.contains(form));
        if entry.kind == FilterKind::Source || !entry.input_forms.contains(Form::Frame) {
            continue;
        }
        // A filter that accepts frames and streams, but not bytes, reads headers, so a stream
        // without frames is refused.
        if bare_forms == [false, true] {
            let messages = mistake_messages(&format!("stream | {name}"));
            assert!(messages.contains(&format!("`{name}` needs frames")), "{name}: {messages}");
            refused += 1;
        }
        let messages = mistake_messages(&format!("stream form=frame | {name}"));
        assert!(!messages.contains("needs frames"), "{name}: {messages}");
    }
    assert!(refused >= 9, "{refused}");
    for (text, what, hint) in [
        ("stream | dport |80 count", "`stream` emits a stream that no frame", "form=frame"),
        ("stream | sample 3 | tls | tcp", "`tls` emits a stream that no frame", "form=frame"),
        ("stream | http |get pcap x", "`http` emits a message that no frame", "form=frame"),
        ("stream | (dport +* http) | count", "it gets a stream that no", "form=frame"),
        ("stream + rx lo | udp | count", "a stream that no frame carried", "form=frame"),
        ("stream form=bytes | dport | count", "`stream` emits bytes", "form=frame"),
        ("buffer x link=stream | udp | count", "a stream that no frame", "link=ethernet"),
    ] {
        let messages = mistake_messages(text);
        assert!(messages.contains(what) && messages.contains(hint), "{text}: {messages}");
    }
    for text in [
        "stream | http |get count",
        "stream | dns | count",
        "stream | tls | count",
        "stream form=frame | tcp | dport |80 http |get pcap x",
        "rx lo | tcp | dport |80 http |get pcap x",
        "stream form=frame + rx lo | dport | count",
        "buffer x link=raw | udp | count",
    ] {
        assert_eq!(mistake_messages(text), "", "{text}");
    }
}
