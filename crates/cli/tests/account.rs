//! Tests of `account` on captures. Its totals must equal sums over the blocks that `json` prints.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Sums for each pair of peers: the number of blocks and the number of bytes on the wire, for both
/// directions together. The key names the peers.
type SumsByPeers = BTreeMap<String, (u64, u64)>;

fn capture_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/web.pcap")
}

fn run_over_capture(folder: &Folder, rest: &str) -> CommandResult {
    let line = format!("replay {} | {rest}", capture_path().display());
    CommandResult::from(folder.streamline_command(&["run", &line]).output().unwrap())
}

fn parse_objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the protocol and the peers of a JSON object as text, in the same form for both
/// directions. Returns `None` for an object without addresses.
fn format_peers(object: &Value) -> Option<String> {
    let end = |address: &str, port: &str| format!("{} {}", object[address], object[port]);
    object.get("src")?;
    let mut ends = [end("src", "src_port"), end("dst", "dst_port")];
    ends.sort();
    Some(format!("{} {} {}", object["proto"], ends[0], ends[1]))
}

fn add_to_sums(sums: &mut SumsByPeers, object: &Value, blocks: u64, bytes: u64) {
    if let Some(peers) = format_peers(object) {
        let sum = sums.entry(peers).or_default();
        *sum = (sum.0 + blocks, sum.1 + bytes);
    }
}

#[test]
fn h15_accounts_are_the_sums_over_all_frames() {
    let folder = Folder::new();
    let number = |object: &Value, name: &str| object[name].as_u64().unwrap();
    let mut expected = SumsByPeers::new();
    for frame in parse_objects(&run_over_capture(&folder, "json").out) {
        add_to_sums(&mut expected, &frame, 1, number(&frame, "wire_length"));
    }
    assert!(expected.len() > 1);
    for given in ["account", "account flows=1", "account idle=1us"] {
        let ran = run_over_capture(&folder, given);
        assert_eq!(ran.status, Some(0), "{}", ran.err);
        let mut sums = SumsByPeers::new();
        for flow in parse_objects(&ran.out) {
            let blocks = number(&flow, "blocks") + number(&flow, "blocks_back");
            let bytes = number(&flow, "wire_bytes") + number(&flow, "wire_bytes_back");
            assert!(blocks > 0 && flow["start"].as_str() <= flow["end"].as_str(), "{flow}");
            add_to_sums(&mut sums, &flow, blocks, bytes);
        }
        assert_eq!(sums, expected, "{given}");
        assert!(ran.err.contains("none lost"), "{}", ran.err);
        let is_reported = ran.err.contains("flows cut short");
        assert_eq!(is_reported, given.contains("flows=1"), "{}", ran.err);
    }
}

#[test]
fn h15_accounts_of_sessions_are_appended_at_their_ends() {
    let folder = Folder::new();
    for lines in 1..=2 {
        let ran = run_over_capture(&folder, "tcp | account flows.jsonl");
        assert_eq!((ran.status, ran.out.as_str()), (Some(0), ""), "{}", ran.err);
        let flows = parse_objects(&folder.read("flows.jsonl"));
        let ended = flows.iter().filter(|flow| flow["why"] == "end").count();
        assert!(ended > 0 && ended % lines == 0, "{flows:?}");
        assert!(flows.iter().all(|flow| flow["session"].is_u64() && flow["dst_port"].is_u64()));
    }
}
