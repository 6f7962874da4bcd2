//! Tests that compare `weblog` with the log of a web server (nginx 1.22). The capture, made with
//! `tcpdump`, contains 100 requests over IPv4 and IPv6, on separate and persistent connections,
//! with paths and user agents that need escaping. The tests run in the server's time zone.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::need;

const TIME_ZONE: &str = "<-0330>3:30";

fn test_data_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/weblog").join(name)
}

/// Runs a request that reads the capture, with `rest` after the filter `http`.
fn run_over_capture(folder: &Folder, rest: &str) -> CommandResult {
    let line = format!("replay {} | tcp | http {rest}", test_data_path("nginx.pcap").display());
    CommandResult::from(
        folder.streamline_command(&["run", "-q", &line]).env("TZ", TIME_ZONE).output().unwrap(),
    )
}

fn sorted_lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn v22_log_lines_equal_those_of_the_server() {
    let folder = Folder::new();
    let expected = std::fs::read_to_string(test_data_path("access.log")).unwrap();
    let ran = run_over_capture(&folder, "|exchange weblog");
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert_eq!(sorted_lines(&ran.out), sorted_lines(&expected));
    assert_eq!(ran.out.lines().count(), 100);
    let ran = run_over_capture(&folder, "|exchange weblog ours.log");
    assert_eq!(ran.out, "");
    assert_eq!(sorted_lines(&folder.read("ours.log")), sorted_lines(&expected));
}

#[test]
fn json_and_weblog_report_the_same_requests() {
    let folder = Folder::new();
    let values = |text: &str| -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let exchanges = values(&run_over_capture(&folder, "|exchange weblog ecs=yes").out);
    let messages = values(&run_over_capture(&folder, "| json").out);
    assert_eq!((exchanges.len(), messages.len()), (100, 200));
    let mut ours: Vec<String> = exchanges
        .iter()
        .map(|object| {
            format!("{}{}", object["http"]["request"]["method"], object["url"]["original"])
        })
        .collect();
    let mut theirs: Vec<String> = messages
        .iter()
        .filter(|object| object["kind"] == "http_request")
        .map(|object| format!("{}{}", object["method"], object["url"]))
        .collect();
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
}

#[test]
fn index_of_files_lists_the_same_messages() {
    let folder = Folder::new();
    let ran = run_over_capture(&folder, "emit=body |response files out");
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let index = folder.read("out/index.jsonl");
    let lines: Vec<Value> = index.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 100);
    for line in &lines {
        assert_eq!(line["complete"], true, "{line}");
        assert_eq!(line["kind"], "http_response");
        assert!(line["url"].as_str().unwrap().contains("?n="), "{line}");
        let Some(name) = line["file"].as_str() else {
            assert_eq!(line["bytes"], 0, "{line}");
            continue;
        };
        assert_eq!(line["content_length"], line["bytes"], "{line}");
        let size = folder.path().join("out").join(name).metadata().unwrap().len();
        assert_eq!(line["bytes"], size);
    }
    let empty = lines.iter().filter(|line| line["file"].is_null()).count();
    assert!((10..50).contains(&empty), "answers without bodies: {empty}");
}

/// Returns the SHA-256 digests of the files in a directory, sorted.
fn file_digests(folder: &Folder, name: &str) -> Vec<String> {
    let script = format!("sha256sum {name}/*[!l] | cut -c1-64 | sort");
    let ran = CommandResult::from(folder.shell_command(&script).output().unwrap());
    ran.out.lines().map(str::to_owned).collect()
}

#[test]
fn bodies_equal_the_objects_exported_by_tshark() {
    let folder = Folder::new();
    let ran = run_over_capture(&folder, "emit=body | files out");
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let index = folder.read("out/index.jsonl");
    let lines = index.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut digests: Vec<String> =
        lines.filter_map(|line| Some(line["sha256"].as_str()?.to_owned())).collect();
    digests.sort();
    assert_eq!(digests, file_digests(&folder, "out"));
    let Some(tshark) = need::require_command("tshark") else { return };
    let exported = Command::new(tshark)
        .args(["-Q", "-d", "tcp.port==8080,http", "--export-objects", "http,objects", "-r"])
        .arg(test_data_path("nginx.pcap"))
        .current_dir(folder.path())
        .status();
    assert!(exported.unwrap().success());
    assert_eq!(digests, file_digests(&folder, "objects"));
    assert!(digests.len() > 50, "{} bodies", digests.len());
}

#[test]
fn non_exchange_input_is_refused_with_a_remedy() {
    let folder = Folder::new();
    let line = format!("replay {} | tcp | http | weblog", test_data_path("nginx.pcap").display());
    let ran = folder.run(&["run", "--stats", &line]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(0), ""));
    assert!(ran.err.contains("no exchange; write `http |exchange weblog`"), "{}", ran.err);
    let refused = folder.run(&["check", "replay x | tcp | weblog"]);
    assert_eq!(refused.status, Some(2));
    assert!(refused.err.contains("`weblog`"), "{}", refused.err);
}
