//! The ends of lines with replicas: regular, by a bug in one replica, by a number of blocks.

use crate::kept::{OURS, run};
use crate::line::Line;
use engine::build::Settings;

#[test]
fn n9_a_replica_with_a_bug_ends_the_line_without_a_hang() {
    for copies in [1, 2, 3, 4] {
        let text = "generate count=200000 seq=yes | fails | KEEP | discard";
        let (seen, outcome) = run(text, copies);
        let told: Vec<String> = outcome.failures.iter().map(ToString::to_string).collect();
        assert!(!told.is_empty() && told.len() <= copies, "{told:?}");
        assert!(told.iter().all(|told| told.contains("seventy-seven")), "{told:?}");
        assert!(seen.len() < 200_000);
    }
}

#[test]
fn n9_a_number_of_blocks_ends_a_line_with_copies() {
    for copies in [2, 4] {
        let text = format!("--parallel={copies} generate seq=yes | match hex=00 |all discard");
        let settings = Settings { count: Some(1234), ..Settings::default() };
        let outcome = Line::with(text, OURS).threads(settings);
        assert_eq!(outcome.ledger.imbalances(), []);
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        let sink = outcome.ledger.filters.iter().find(|filter| filter.name == "discard");
        assert_eq!(sink.expect("it is there").passed.blocks, 1234);
    }
}
