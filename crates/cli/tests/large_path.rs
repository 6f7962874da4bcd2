//! Tests of a path with more counters than fit into one message.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::Folder;
use member::client::Client;
use serde_json::Value;
use std::time::Duration;
use streamline::figures::{PathState, query_figures};

/// Number of filters of the path.
const FILTERS: usize = 700;

#[test]
fn path_of_many_filters_is_counted_by_every_command() {
    let folder = Folder::new();
    let _daemon = folder.daemon();
    let line = format!("generate rate=10 | {}", vec!["count"; FILTERS].join(" | "));
    let _path = folder.spawn_named("large", &line);

    let listed = folder.run(&["ps", "--json"]);
    assert_eq!(listed.status, Some(0), "{}", listed.err);
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    let path = &listed["paths"][0];
    assert_eq!(path["state"], "running");
    let counted = path["counters"]["filters"].as_array().unwrap().len();
    assert!(counted > FILTERS, "{counted}");

    let spaces = folder.run(&["spaces", "large"]);
    assert_eq!(spaces.status, Some(0), "{}", spaces.err);
    assert!(spaces.out.contains("thread0"), "{}", spaces.out);

    let daemon = folder.path().join(common::DAEMON_DIR);
    let client = Client::connect_at(&daemon).unwrap();
    let figures = query_figures(&client, Duration::from_secs(20)).unwrap();
    let [large] = figures.as_slice() else { panic!("one path: {figures:?}") };
    assert_eq!(large.state, PathState::Running);
    assert_eq!(large.counters.filters.len(), counted);
}
