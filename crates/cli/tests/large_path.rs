//! Test of a path whose counters do not fit into one message.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::{ChildGuard, Folder};
use member::client::{COUNT_METHOD, Client};
use member::protocol::{CountReply, PathCountParameters};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;
use streamline::figures::{PathState, query_figures};

/// Number of filters of the path. The counters of so many filters do not fit into one message.
const FILTER_COUNT: usize = 450;

#[test]
fn path_of_many_filters_is_counted_and_followed() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let line = format!("generate rate=10 | {}", vec!["count"; FILTER_COUNT].join(" | "));
    let _path = folder.spawn_named_path("large", &line);

    let listed = folder.run(&["ps", "--json"]);
    assert_eq!(listed.status, Some(0), "{}", listed.err);
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    let path = &listed["paths"][0];
    assert_eq!(path["state"], "running");
    let counted = path["counters"]["filters"].as_array().unwrap().len();
    assert!(counted > FILTER_COUNT, "{counted}");

    let spaces = folder.run(&["spaces", "large"]);
    assert_eq!(spaces.status, Some(0), "{}", spaces.err);
    assert!(spaces.out.contains("thread0"), "{}", spaces.out);

    let daemon = folder.path().join(common::DAEMON_DIR);
    let client = Client::connect_at(&daemon).unwrap();
    let figures = query_figures(&client, Duration::from_secs(20)).unwrap();
    let [large] = figures.as_slice() else { panic!("one path: {figures:?}") };
    assert_eq!(large.state, PathState::Running);
    assert_eq!(large.counters.filters.len(), counted);

    let to = client.connect("large").unwrap();
    let whole = to
        .call::<CountReply>(COUNT_METHOD, &PathCountParameters::default())
        .unwrap_err()
        .to_string();
    assert!(whole.contains("too many filters for one reply"), "{whole}");

    follow_path_and_stop(&folder);
}

/// Follows the path with `top`, then stops the path.
fn follow_path_and_stop(folder: &Folder) {
    let mut top = folder.streamline_command(&["top", "--json", "--every", "100ms", "large"]);
    let mut top = ChildGuard(top.stdout(Stdio::piped()).spawn().unwrap());
    let mut samples = BufReader::new(top.0.stdout.take().unwrap()).lines();
    let mut sample = || {
        let sample: Value = serde_json::from_str(&samples.next()?.unwrap()).unwrap();
        let nodes = sample["nodes"].as_array().unwrap();
        assert!(nodes.len() > FILTER_COUNT, "{}", nodes.len());
        nodes.last().unwrap()["taken"]["blocks"].as_u64()
    };
    let first = sample().unwrap();
    while sample().unwrap() <= first {}
    let stopped = folder.run(&["stop", "large"]);
    assert_eq!(stopped.status, Some(0), "{}", stopped.err);
    assert!(stopped.err.contains("large: "), "{}", stopped.err);
    // `top` exits when the path has ended, after a last sample.
    while sample().is_some() {}
    assert!(top.0.wait().unwrap().success());
}
