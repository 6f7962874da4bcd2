//! Tests of the end of requests with replicas: by a panic in one replica, and by a block limit.

use crate::collected::{TEST_FILTERS, run_replicated};
use crate::request::PlannedRequest;
use engine::build::RunSettings;

#[test]
fn n9_panicking_replica_ends_the_request_without_hanging() {
    for replicas in [1, 2, 3, 4] {
        let text = "generate count=200000 seq=yes | fails | KEEP | discard";
        let (blocks, outcome) = run_replicated(text, replicas);
        let failures: Vec<String> = outcome.failures.iter().map(ToString::to_string).collect();
        assert!(!failures.is_empty() && failures.len() <= replicas, "{failures:?}");
        assert!(failures.iter().all(|failures| failures.contains("seventy-seven")), "{failures:?}");
        assert!(blocks.len() < 200_000);
    }
}

#[test]
fn n9_block_limit_ends_a_replicated_request() {
    for replicas in [2, 4] {
        let text = format!("--parallel={replicas} generate seq=yes | match hex=00 |all discard");
        let settings = RunSettings { count: Some(1234), ..RunSettings::default() };
        let outcome = PlannedRequest::with_filters(text, TEST_FILTERS).run_threaded(settings);
        assert_eq!(outcome.ledger.imbalances(), []);
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        let sink = outcome.ledger.filters.iter().find(|filter| filter.name == "discard");
        assert_eq!(sink.expect("it is there").passed.blocks, 1234);
    }
}
