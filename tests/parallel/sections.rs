//! Tests of Boolean sections directly after the merge of replicas: the same output as in one
//! thread, in the same order, with any number of replicas.

use crate::collected::{RecordedBlock, collect_adaptive, collect_replicated, run_replicated};
use crate::scratch::Scratch;
use crate::sessions::renumber_sessions;
use testkit::Random;

/// Sets the times of all blocks to 0, because they differ between runs.
fn without_times(blocks: Vec<RecordedBlock>) -> Vec<RecordedBlock> {
    blocks.into_iter().map(|block| RecordedBlock { time: 0, ..block }).collect()
}

/// Returns a random Boolean expression over these operands, in parentheses unless it is one
/// operand or a negation.
fn random_expression(random: &mut Random, operands: &[&str], depth: u32) -> String {
    let leaf = |random: &mut Random| (*random.pick(operands)).to_owned();
    if depth == 0 {
        return leaf(random);
    }
    let part = |random: &mut Random| random_expression(random, operands, depth - 1);
    match random.below(5) {
        0 => leaf(random),
        1 => format!("!{}", part(random)),
        2 => format!("({} ++ {})", part(random), part(random)),
        3 => format!("({} +* {})", part(random), part(random)),
        // After any operand, since each takes blocks of any form.
        _ => format!("({} | {})", part(random), random.pick(&["match \"a\"", "sample 2"])),
    }
}

/// Returns a random section, which may have branches around it.
fn random_section(random: &mut Random, operands: &[&str]) -> String {
    let part = |random: &mut Random| random_expression(random, operands, 2);
    match random.below(5) {
        0 => format!("!{}", part(random)),
        1 => format!("{} ++ {}", part(random), part(random)),
        2 => format!("{} +* {}", part(random), part(random)),
        // The first filter keeps the form of the blocks, which the operands behind it need.
        3 => {
            let first = random.pick(&["match \"a\"", "sample 2"]);
            format!("({first} | count + !{})", part(random))
        }
        _ => format!("count |all (!{}) |0 {}", part(random), part(random)),
    }
}

/// Asserts that a request gives the same blocks with replicas as in one thread: with 2 replicas,
/// with 3, and with as many as the planner chooses. Returns the number of blocks, and the number of
/// replicas that the planner chose.
fn assert_sections_agree(text: &str) -> (usize, usize) {
    let ready = |blocks| renumber_sessions(without_times(blocks));
    let assert_same = |one: &[RecordedBlock], several: &[RecordedBlock], how: &str| {
        let first = one.iter().zip(several).position(|(one, other)| one != other);
        let differ = first.map(|at| (at, &one[at], &several[at]));
        assert_eq!(differ, None, "{text}: {how}");
        assert_eq!(one.len(), several.len(), "{text}: {how}");
    };
    let one = ready(collect_replicated(text, 1));
    for replicas in 2..=3 {
        let (several, outcome) = run_replicated(text, replicas);
        assert!(outcome.failures.is_empty(), "{text}: {:?}", outcome.failures);
        assert_same(&one, &ready(several), &format!("{replicas} replicas"));
    }
    let (several, chosen) = collect_adaptive(text, 4);
    assert_same(&one, &ready(several), "as many replicas as the planner chooses");
    (one.len(), chosen)
}

/// Operands of Boolean sections that have no sessions: filters that only set a class, filters that
/// move the view, and a filter that emits blocks several times.
const STATELESS_OPERANDS: [&str; 8] = [
    "match hex=07",
    "match hex=11 hex=03",
    "regex \"[0-4]\"",
    "bpf \"udp\"",
    "bpf \"len > 150\"",
    "dport",
    "udp",
    "times most=2",
];

#[test]
fn n1_n9_v1_section_after_replicas_by_load_keeps_its_output() {
    let mut random = Random::with_replayable_seed();
    let (mut passed, mut most) = (0, 0);
    for _ in 0..12 {
        let before = random.pick(&["dport", "regex \"[0-4]\"", "match hex=07", "times most=3"]);
        let text = format!(
            "generate count={} seq=yes flows={} size={} | {before} {} {} |all KEEP | discard",
            random.within(1..2000),
            random.within(1..9),
            random.within(64..300),
            random.pick(&["|", "|all", "|0"]),
            random_section(&mut random, &STATELESS_OPERANDS),
        );
        let (blocks, chosen) = assert_sections_agree(&text);
        (passed, most) = (passed + blocks, most.max(chosen));
    }
    assert!(passed > 0, "no section passed any block");
    assert!(most > 1, "the planner chose no replicas before any section");
}

#[test]
fn n2_n9_v1_section_after_replicas_by_session_keeps_its_output() {
    let scratch = Scratch::new();
    let file = scratch.path("traffic.pcap");
    let mut random = Random::with_replayable_seed();
    let operands = ["http", "tls", "dns", "match \"GET\"", "regex \"a[0-9]\"", "bpf \"port 80\""];
    let mut passed = 0;
    for connections in [5, 50] {
        let capture = testkit::traffic::mixed_traffic(random.below(1 << 32), connections);
        std::fs::write(&file, capture.to_pcap()).expect("a capture");
        for _ in 0..4 {
            let section = random_section(&mut random, &operands);
            let text =
                format!("replay '{}' | tcp gap=1h | {section} |all KEEP | discard", file.display());
            passed += assert_sections_agree(&text).0;
        }
    }
    assert!(passed > 0, "no section passed any block");
}

#[test]
fn n1_v1_each_form_of_section_after_replicas_keeps_its_output() {
    let scratch = Scratch::new();
    let file = scratch.path("traffic.pcap");
    let capture = testkit::traffic::mixed_traffic(7, 40);
    std::fs::write(&file, capture.to_pcap()).expect("a capture");
    for behind in [
        "dport |80 !match \"x\" |",
        "bpf \"tcp\" | bpf \"len > 100\" +* bpf \"port 80\" |",
        "dport | match \"x\" ++ match \"y\" |",
        "tcp gap=1h | http ++ tls |",
        "sport | count |443: (!bpf \"tcp\") |0 bpf \"tcp\" |",
        "dport | (bpf \"tcp\" | count + !bpf \"tcp\") |",
    ] {
        let text = format!("replay '{}' | {behind} KEEP | discard", file.display());
        assert_sections_agree(&text);
    }
}
