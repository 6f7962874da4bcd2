//! Tests of `run`: output, reports, and remaining files.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{Folder, examples_directory};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use testkit::need;

const BRANCHED_WEB_REQUEST: &str =
    "replay examples/web.pcap | bpf \"tcp port 80\" | dport |80 count + !bpf \"tcp\" | print";

/// Parses the report of a run, which must be one line of JSON.
fn parse_report(text: &str) -> Value {
    let mut lines = text.lines();
    let value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(lines.next(), None, "one object in one line");
    value
}

fn block_count(amount: &Value) -> u64 {
    amount["blocks"].as_u64().unwrap()
}

fn dropped_blocks(reasons: &Value) -> u64 {
    reasons.as_object().unwrap().values().map(block_count).sum()
}

/// Asserts that the numbers in a report satisfy the rules of the ledger.
fn assert_balanced(report: &Value) {
    assert_eq!(report["version"], 1);
    assert_eq!(report["balanced"], true);
    for edge in report["edges"].as_array().unwrap() {
        let ended = block_count(&edge["taken"])
            + block_count(&edge["resident"])
            + dropped_blocks(&edge["dropped"]);
        assert_eq!(block_count(&edge["put"]), ended, "{edge}");
    }
    for filter in report["filters"].as_array().unwrap() {
        let ended =
            ["passed", "unselected", "consumed", "held"].map(|name| block_count(&filter[name]));
        let ended: u64 = ended.iter().sum::<u64>() + dropped_blocks(&filter["dropped"]);
        assert_eq!(block_count(&filter["taken"]) + block_count(&filter["made"]), ended, "{filter}");
    }
    for source in report["sources"].as_array().unwrap() {
        assert_eq!(source["seen"], source["given"], "{source}");
    }
}

#[test]
fn a1_first_request_prints_its_output() {
    let folder = Folder::new();
    let ran = folder.run(&["run", BRANCHED_WEB_REQUEST]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert_eq!(ran.out.lines().count(), 39, "what goes to port 80, once: none of it is no TCP");
    assert!(ran.out.lines().all(|line| line.contains(":80 tcp [")), "{}", ran.out);
    assert!(
        ran.err.starts_with("39 blocks printed of 105 blocks read, 27828 bytes in ")
            && ran.err.ends_with("none lost\n")
    );
    let times: Vec<&str> = ran.out.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(times.is_sorted(), "in the order of the capture");
}

#[test]
fn report_and_data_use_separate_streams() {
    let folder = Folder::new();
    let plain = folder.run(&["run", "-q", BRANCHED_WEB_REQUEST]);
    assert_eq!(plain.err, "");
    let ran = folder.run(&["run", "--stats", BRANCHED_WEB_REQUEST]);
    assert_eq!(ran.out, plain.out);
    for word in ["replay", "dport", "!bpf", "unselected", "ns/block", "the ledger balances"] {
        assert!(ran.err.contains(word), "{word}: {}", ran.err);
    }
    let json = folder.run(&["run", "--json", BRANCHED_WEB_REQUEST]);
    assert_eq!(json.out, plain.out);
    let value = parse_report(&json.err);
    assert_balanced(&value);
    assert_eq!(value["sources"][0]["given"], serde_json::json!({"blocks": 105, "bytes": 27828}));
}

#[test]
fn replicas_and_equal_ring_ends_are_one_row_each() {
    let folder = Folder::new();
    let line = "--parallel=3 replay examples/web.pcap | tcp | http | discard";
    let ran = folder.run(&["run", "--stats", line]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let table = ran.err.split("\n\n").next().unwrap();
    let space = |line: &&str| line.find("thread");
    let rows: Vec<&str> = table
        .lines()
        .skip(1)
        .filter_map(|line| Some(line[..space(&line)? + "thread0".len()].trim_start()))
        .collect();
    let mut names = rows.clone();
    names.sort_unstable();
    names.dedup();
    assert!(rows.len() == names.len() && rows.len() > 5, "{}", ran.err);
    assert!(rows.iter().any(|row| row.starts_with("ring ")), "{}", ran.err);
}

#[test]
fn report_option_selects_the_destination() {
    let folder = Folder::new();
    fs::write(folder.path().join("report"), "something longer than a report ".repeat(200)).unwrap();
    let line = "replay examples/web.pcap | udp | pcap udp.pcap";
    let ran = folder.run(&["run", "--json", "--report=report", line]);
    assert_eq!((ran.status, ran.out.as_str(), ran.err.as_str()), (Some(0), "", ""));
    let value = parse_report(&folder.read("report"));
    assert_balanced(&value);
    let pcap = value["filters"].as_array().unwrap().iter().find(|f| f["name"] == "pcap").unwrap();
    assert_eq!(pcap["report"][0], serde_json::json!({"what": "frames", "value": 9}));
    let ran = folder.run(&["run", "--report=-", "replay udp.pcap | discard"]);
    assert!(ran.out.contains("the ledger balances") && ran.err.is_empty(), "{ran:?}");
}

#[test]
fn v2_loss_is_a_warning_or_with_option_no_loss_a_failure() {
    let folder = Folder::new();
    let line = "replay examples/web.pcap | dport --name=again |80 count | dport --name=again";
    let ran = folder.run(&["run", line]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let warning =
        "warning: 39 blocks were lost: 39 between count and dport#again (too many hops)\n";
    assert!(ran.err.starts_with(warning), "{}", ran.err);
    assert!(ran.err.contains("the ledger balances"), "{}", ran.err);
    let refused = folder.run(&["run", "--no-loss", line]);
    assert_eq!(refused.status, Some(1));
    assert!(refused.err.starts_with(&warning.replace("warning", "error")), "{}", refused.err);
    let inside = folder.run(&[&format!("--no-loss {line}")]);
    assert_eq!((inside.status, inside.err.starts_with("error: 39 blocks")), (Some(1), true));
    let json = parse_report(folder.run(&["run", "--json", line]).err.lines().nth(1).unwrap());
    assert_balanced(&json);
    assert_eq!(json["lost"], 39);
}

#[test]
fn run_ends_after_count_or_time() {
    let folder = Folder::new();
    let ran = folder.run(&["run", "-c", "5", "generate | print"]);
    assert_eq!((ran.status, ran.out.lines().count()), (Some(0), 5), "{}", ran.err);
    let ran = folder.run(&["run", "--for", "50ms", "--json", "generate | count"]);
    assert_eq!(ran.status, Some(0));
    let value = parse_report(&ran.err);
    assert_balanced(&value);
    assert_eq!(value["stopped"], true);
    assert!(value["elapsed_ns"].as_u64().unwrap() >= 50_000_000);
    let ended = parse_report(&ran.out);
    assert_eq!(ended["report"][0]["value"], value["sources"][0]["given"]["blocks"]);
}

#[test]
fn closed_output_causes_no_error_message() {
    let folder = Folder::new();
    let script = "streamline 'generate | print' | head -n 3";
    let ran = common::CommandResult::from(folder.shell_command(script).output().unwrap());
    assert_eq!((ran.out.lines().count(), ran.err.as_str()), (3, ""));
    let script = "{ streamline 'generate | print'; echo $? >&2; } | head -n 1";
    let ran = common::CommandResult::from(folder.shell_command(script).output().unwrap());
    assert_eq!(ran.err, "141\n");
    for words in [&["filters"][..], &["examples"], &["explain", "generate | print"]] {
        // The reader of the pipe is closed before the command starts.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        testkit::wait_until_closed(&writer);
        let ran = folder.streamline_command(words).stdout(writer).output().unwrap();
        assert_eq!((ran.status.code(), ran.stderr.as_slice()), (Some(141), &b""[..]), "{words:?}");
    }
}

#[test]
fn every_example_runs_and_balances() {
    let folder = Folder::new();
    let mut found = 0;
    for entry in fs::read_dir(examples_directory()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "pipe") {
            continue;
        }
        found += 1;
        let words = ["run", "--json", "--report=report", "-f", path.to_str().unwrap()];
        let live = fs::read_to_string(&path).unwrap().lines().any(|line| line.starts_with("rx "));
        if live {
            // This example captures live traffic and never ends by itself, so its running time is
            // limited.
            let Some(()) = need::require_net_raw() else { continue };
            let ran = folder.run(&[&words[..], &["--for", "200ms"]].concat());
            assert_eq!(ran.status, Some(0), "{}: {}", path.display(), ran.err);
            assert_balanced(&parse_report(&folder.read("report")));
            continue;
        }
        let ran = folder.run(&words);
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{}", path.display());
        let value = parse_report(&folder.read("report"));
        assert_balanced(&value);
        assert_eq!(value["lost"], 0);
        let written = folder.path().join("dns.pcap").exists();
        assert!(!ran.out.is_empty() || written, "{} shows something", path.display());
    }
    assert!(found >= 8, "the examples are there");
}

#[test]
fn panic_ends_only_its_path_and_saves_a_capture() {
    let folder = Folder::new();
    let line = "replay examples/web.pcap | panics 60 | count ; replay examples/web.pcap | count";
    let ran = folder.run(&["run", line]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.out.contains("  105 blocks, 27828 bytes"), "the other path ran on: {}", ran.out);
    assert!(ran.err.contains("`panics` has a bug and ended its path"), "{}", ran.err);
    assert!(!ran.err.contains("panicked at"), "{}", ran.err);
    let (_, rest) = ran.err.split_once("note: the block was saved to ").unwrap();
    let (path, rest) = rest.split_once("; replay it with\n").unwrap();
    let mode = fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let command = rest.lines().next().unwrap();
    assert!(command.contains(path), "{command}");
    let again = common::CommandResult::from(folder.shell_command(command).output().unwrap());
    assert_eq!(again.status, Some(1));
    assert!(again.err.contains("`panics` has a bug"), "{}", again.err);
    let json = folder.run(&["run", "--json", "--report=report", line]);
    assert_eq!(json.status, Some(1));
    let failure = &parse_report(&folder.read("report"))["failures"][0];
    assert_eq!(failure["node"], "panics");
    assert!(std::path::Path::new(failure["block"].as_str().unwrap()).is_file());
}

/// A build for tests can lose a block on purpose. The report must detect this loss.
#[test]
fn unbalanced_ledger_is_a_failure() {
    let cycle = "replay examples/web.pcap | dport --name=x |80 count | dport --name=x";
    for (kind, line) in
        [("call", "replay examples/web.pcap | count | discard"), ("back edge", cycle)]
    {
        let folder = Folder::new();
        let mut command = folder.streamline_command(&["run", "--json", "--report=report", line]);
        let ran =
            common::CommandResult::from(command.env("STREAMLINE_LOSE", kind).output().unwrap());
        assert_eq!(ran.status, Some(1), "{kind}");
        assert!(ran.err.contains("error: the ledger does not balance: "), "{kind}: {}", ran.err);
        let value = parse_report(&folder.read("report"));
        assert_eq!(value["balanced"], false);
        let found = &value["imbalances"][0];
        assert!(found["place"].as_str().unwrap().ends_with(&format!("({kind})")), "{found}");
        assert_eq!(found["left"].as_u64(), found["right"].as_u64().map(|right| right + 1));
    }
}
