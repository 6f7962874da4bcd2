//! Tests of replicated stateless filters. Complete batches are dispatched to the replicas by load.

use crate::collected::{RecordedBlock, collect_replicated, run_replicated};
use testkit::Random;

/// Sets the times of all blocks to 0, because they differ between runs.
fn without_times(blocks: Vec<RecordedBlock>) -> Vec<RecordedBlock> {
    blocks.into_iter().map(|block| RecordedBlock { time: 0, ..block }).collect()
}

/// Returns a random chain of stateless filters, and the arc after it.
fn random_chain(random: &mut Random) -> String {
    let mut filters = Vec::new();
    for _ in 0..random.within(1..4) {
        let seed = random.below(1 << 30);
        filters.push(match random.below(8) {
            0 => "regex \"[0-4]\" \"[5-9a-f]\"".to_owned(),
            1 => "match hex=07 hex=11".to_owned(),
            2 => "match at=0 hex=02".to_owned(),
            3 => format!("times most={}", random.within(1..5)),
            4 => "compress level=1".to_owned(),
            5 => "decompress".to_owned(),
            _ => format!("stumble seed={seed}"),
        });
    }
    let arcs = ["| ", "|all ", "| "];
    let mut text = filters[0].clone();
    for next in &filters[1..] {
        text += &format!(" {}{next}", random.pick(&arcs));
    }
    format!("{text} {}", random.pick(&arcs))
}

#[test]
fn n1_n9_v13_replicas_by_load_keep_output_and_order() {
    let mut random = Random::with_replayable_seed();
    for _ in 0..8 {
        let before = random.pick(&["", "| sample 2 ", "| hist ", "| dport |all count "]);
        let text = format!(
            "generate count={} seq=yes flows={} size={} {before}| {}KEEP | discard",
            random.within(1..3000),
            random.within(1..9),
            random.within(64..300),
            random_chain(&mut random)
        );
        let one = without_times(collect_replicated(&text, 1));
        for replicas in 2..=4 {
            let several = without_times(collect_replicated(&text, replicas));
            let first = one.iter().zip(&several).position(|(one, other)| one != other);
            let differ = first.map(|at| (at, &one[at], &several[at]));
            assert_eq!(differ, None, "{text}: {replicas} copies");
            assert_eq!(one.len(), several.len(), "{text}: {replicas} copies");
        }
    }
}

#[test]
fn n1_replicated_filter_has_one_ledger_entry() {
    let text = "generate count=5000 seq=yes flows=3 | match hex=07 | count | KEEP | discard";
    let (_, one) = run_replicated(text, 1);
    let (_, several) = run_replicated(text, 3);
    let line = |outcome: &engine::run::RunOutcome, name: &str| {
        let mut of = outcome.ledger.filters.iter().filter(|filter| filter.name == name);
        let filter = of.next().expect("it is there").clone();
        assert!(of.next().is_none(), "{name} is one line");
        filter
    };
    let (one, several) = (line(&one, "match"), line(&several, "match"));
    assert_eq!(one.taken, several.taken);
    assert_eq!(one.unanswered, several.unanswered);
}
