//! Tests of `streamline set`: arguments of running filters, and moves of filters between paths.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use serde_json::Value;
use std::process::{Child, Stdio};

/// Starts a path with a name, whose report is written to the file `NAME.json`. Returns when the
/// daemon lists the path.
fn start_named_path(folder: &Folder, name: &str, line: &str) -> Child {
    let (report, name_option) = (format!("--report={name}.json"), format!("--as={name}"));
    let words = ["run", "-q", "--json", &report, &name_option, line];
    let mut command = folder.streamline_command(&words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    folder.wait_until_listed(name);
    child
}

/// Stops a path, and asserts that its ledger balances. Returns its report.
fn stop_named_path(folder: &Folder, name: &str, child: Child) -> Value {
    let stop = folder.run(&["stop", name]);
    assert_eq!(stop.status, Some(0), "{}", stop.err);
    let ran = CommandResult::from(child.wait_with_output().unwrap());
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let report: Value = serde_json::from_str(&folder.read(&format!("{name}.json"))).unwrap();
    assert_eq!(report["balanced"], true, "{report}");
    report
}

/// Starts a path named `web` that writes its report to the file `report`. Returns when the daemon
/// lists the path.
fn start_path(folder: &Folder, words: &[&str]) -> Child {
    let words = [&["run", "-q", "--json", "--report=report", "--as=web"], words].concat();
    let mut command = folder.streamline_command(&words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    folder.wait_until_listed("web");
    child
}

/// Stops the path `web`, and returns its report.
fn stop_web_path(folder: &Folder, child: Child) -> Value {
    let stop = folder.run(&["stop", "web"]);
    assert_eq!(stop.status, Some(0), "{}", stop.err);
    let ran = CommandResult::from(child.wait_with_output().unwrap());
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let report: Value = serde_json::from_str(&folder.read("report")).unwrap();
    assert_eq!(report["balanced"], true, "{report}");
    report
}

/// Sets an argument of a filter in the path `web`. Returns, for each space, the number of the block
/// at which the space switched to the new value.
fn set_argument(folder: &Folder, words: &[&str]) -> Vec<u64> {
    let done = folder.run(&[&["set", "web", "arg"], words].concat());
    assert_eq!(done.status, Some(0), "{done:?}");
    let switches = done.out.split("switched at block ").skip(1);
    let at = switches.map(|text| {
        assert!(text.contains(": lost 0, duplicated 0, reordered 0, "), "{done:?}");
        text.split(':').next().unwrap().parse().unwrap()
    });
    at.collect()
}

/// Waits until the sources of the path `web` have emitted `more` blocks in addition to those
/// emitted before the call.
fn wait_for_blocks(folder: &Folder, more: u64) {
    let count = || -> u64 {
        let picture = folder.run(&["top", "--once", "--json", "web"]).out;
        let Ok(picture) = serde_json::from_str::<Value>(&picture) else { return 0 };
        picture["given"]["blocks"].as_u64().unwrap_or(0)
    };
    let from = count();
    testkit::wait_until("blocks come", || count() >= from + more);
}

fn passed_blocks(report: &Value, name: &str) -> u64 {
    let rows = report["filters"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == name).unwrap();
    row["passed"]["blocks"].as_u64().unwrap()
}

/// Returns the number of multiples of `every` in a range of block numbers.
fn count_multiples(blocks: std::ops::Range<u64>, every: u64) -> u64 {
    blocks.end.div_ceil(every) - blocks.start.div_ceil(every)
}

#[test]
fn v3_argument_is_set_while_the_path_runs() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let child = start_path(&folder, &["generate rate=5000 | sample 10 | count"]);
    wait_for_blocks(&folder, 100);
    let refused = |words: &[&str], why: &str| {
        let done = folder.run(&[&["set", "web", "arg"], words].concat());
        assert_eq!(done.status, Some(2), "{done:?}");
        assert!(done.err.contains("runs as before") && done.err.contains(why), "{done:?}");
        assert!(folder.run(&["ps"]).out.contains("sample 10 "));
    };
    refused(&["sample", "every=0"], "`every` of `sample`: 0 is not between 1 and 4294967295");
    refused(&["sample", "state=x"], "cannot change at run time; `arg` sets `every`");
    refused(&["count", "x=1"], "none of its arguments can be set");
    let mistakes = [&["sett", "sample"][..], &["pin", "thread0"], &["remove"]];
    for words in mistakes {
        let done = folder.run(&[&["set", "web"], words].concat());
        assert_eq!(done.status, Some(2), "{done:?}");
    }
    let [at] = set_argument(&folder, &["sample", "every=4"])[..] else { panic!("one thread") };
    assert!(at >= 100);
    assert!(folder.run(&["ps"]).out.contains("sample 4 "), "others see the new value");
    let complete = folder.run(&["complete", "--", "set", "web", "arg", "sample"]);
    assert_eq!(complete.out, "every=\n");
    wait_for_blocks(&folder, 100);
    let report = stop_web_path(&folder, child);
    let all = report["sources"][0]["given"]["blocks"].as_u64().unwrap();
    // `sample` counts from the first block of the run, not from the block at which the argument
    // changed.
    assert_eq!(
        passed_blocks(&report, "sample"),
        count_multiples(0..at, 10) + count_multiples(at..all, 4),
        "{at}"
    );
    assert_eq!(passed_blocks(&report, "count"), passed_blocks(&report, "sample"));
}

#[test]
fn v3_argument_is_set_in_all_worker_processes() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let line = "--engines=2 generate rate=5000 flows=16 | udp | regex x |all discard";
    let child = start_path(&folder, &[line]);
    wait_for_blocks(&folder, 100);
    let refused = folder.run(&["set", "web", "arg", "regex", "size=4k"]);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(refused.err.contains("`arg` sets `keep`"), "{refused:?}");
    for keep in ["keep=yes", "keep=no"] {
        assert_eq!(set_argument(&folder, &["regex", keep]).len(), 2, "one switch in each process");
        assert!(folder.run(&["ps"]).out.contains(&format!("regex x {keep} |all")));
        wait_for_blocks(&folder, 100);
    }
    let report = stop_web_path(&folder, child);
    let rows = report["filters"].as_array().unwrap();
    let regex: Vec<&Value> = rows.iter().filter(|row| row["name"] == "regex").collect();
    assert_eq!(regex.len(), 1, "the same filter from the beginning to the end: {report}");
    let shared = rows.iter().find(|row| row["name"].as_str().unwrap().starts_with("shard"));
    assert_eq!(regex[0]["taken"]["blocks"], shared.unwrap()["passed"]["blocks"]);
}

#[test]
fn v3_v10_argument_set_in_a_recorded_run_is_replayed() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let line = "generate rate=5000 | sample 10 | pcap got.pcap";
    let child = start_path(&folder, &["--record=r.pcapng", line]);
    wait_for_blocks(&folder, 100);
    set_argument(&folder, &["sample", "every=4"]);
    wait_for_blocks(&folder, 100);
    stop_web_path(&folder, child);
    let again = folder.run(&["run", "--replay", "r.pcapng"]);
    assert_eq!(again.status, Some(0), "{again:?}");
    assert!(
        again.err.contains("the replay matches the recorded run, block for block"),
        "{again:?}"
    );
    assert!(again.err.contains("and the replay repeats it: arg sample every=4"), "{again:?}");
    let read_file = |file: &str| std::fs::read(folder.path().join(file)).unwrap();
    assert!(read_file("r.pcapng.replay/got.pcap") == read_file("got.pcap"));
}

#[test]
fn v3_subtree_moves_to_another_path_with_its_state() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let one = start_named_path(&folder, "one", "generate rate=5000 | sample 10 | count");
    let two =
        start_named_path(&folder, "two", "generate count=7 | discard ; generate rate=1 | discard");
    let other =
        start_named_path(&folder, "other", "generate rate=1000 | (inspect + pcap other.pcap)");
    let lines = |name: &str| -> String {
        let listed = folder.run(&["ps", "--json"]).out;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let paths = listed.as_array().or_else(|| listed["paths"].as_array()).unwrap();
        let path = paths.iter().find(|path| path["name"] == name).unwrap();
        path["line"].as_str().unwrap().to_owned()
    };
    let before = [lines("one"), lines("other")];
    let refused = |words: &[&str], why: &str| {
        let done = folder.run(&[&["set"], words].concat());
        assert_eq!(done.status, Some(1), "{done:?}");
        assert!(done.err.contains(why), "{why}: {done:?}");
        assert_eq!([lines("one"), lines("other")], before, "both run as before");
    };
    refused(&["one", "move", "count", "into", "other", "below", "nothing"], "no `nothing`");
    refused(&["one", "move", "count", "into", "one", "below", "generate"], "the same path");
    refused(&["one", "move", "count", "into", "nobody", "below", "generate"], "nobody");
    refused(&["one", "move", "generate", "into", "other", "below", "generate"], "is a source");
    refused(&["other", "move", "pcap", "into", "one", "below", "generate"], "its files are open");
    refused(&["one", "move", "count", "into", "two", "below", "generate:1"], "unconnected parts");
    wait_for_total_blocks(&folder, "one", 200);
    let moved = folder.run(&["set", "one", "move", "sample", "into", "other", "below", "generate"]);
    assert_eq!(moved.status, Some(0), "{moved:?}");
    let clean = "lost 0, duplicated 0, reordered 0";
    assert_eq!(moved.out.matches(clean).count(), 2, "each path reports its switch: {moved:?}");
    assert_eq!(lines("one"), "generate rate=5000 | discard");
    assert!(lines("other").contains("sample 10 | count"), "{}", lines("other"));
    wait_for_total_blocks(&folder, "other", 300);
    stop_named_path(&folder, "two", two);
    let (one, other) =
        (stop_named_path(&folder, "one", one), stop_named_path(&folder, "other", other));
    let position = |text: &str| -> u64 { text.split(':').next().unwrap().parse().unwrap() };
    let mut positions = moved.out.split("switched at block ").skip(1).map(position);
    let (from, to) = (positions.next().unwrap(), positions.next().unwrap());
    let given = other["sources"][0]["given"]["blocks"].as_u64().unwrap();
    // `sample` preserves its position: its last block in one path is followed by block `to` of the
    // other path.
    let all = (from + given - to).div_ceil(10);
    let rows = other["filters"].as_array().unwrap();
    let count = rows.iter().find(|row| row["name"] == "count").unwrap();
    assert_eq!(count["report"][0]["value"], all, "it goes on counting: {from} {to} {given}");
    assert_eq!(passed_blocks(&other, "sample"), all - from.div_ceil(10), "{from} {to} {given}");
    assert!(one["sources"][0]["given"]["blocks"].as_u64().unwrap() > from);
}

/// Waits until the sources of a path have emitted `wanted` blocks.
fn wait_for_total_blocks(folder: &Folder, path: &str, wanted: u64) {
    let count = || -> u64 {
        let picture = folder.run(&["top", "--once", "--json", path]).out;
        let Ok(picture) = serde_json::from_str::<Value>(&picture) else { return 0 };
        picture["given"]["blocks"].as_u64().unwrap_or(0)
    };
    testkit::wait_until("blocks come", || count() >= wanted);
}

#[test]
fn v3_move_to_a_stopped_path_changes_neither() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let one = start_named_path(&folder, "one", "generate rate=5000 | count");
    let other = start_named_path(&folder, "other", "generate rate=1000 | discard");
    let signal = |name: &str| {
        let mut kill = std::process::Command::new("kill");
        assert!(kill.args([name, &other.id().to_string()]).status().unwrap().success());
    };
    let words = ["set", "one", "move", "count", "into", "other", "below", "generate"];
    signal("-STOP");
    let refused = folder.run(&words);
    assert_eq!(refused.status, Some(1), "{refused:?}");
    assert!(refused.err.contains("runs as before"), "{refused:?}");
    // When the stopped path continues, it receives the request, but the coordinator no longer
    // waits.
    signal("-CONT");
    wait_for_total_blocks(&folder, "other", 100);
    let listed = folder.run(&["ps"]).out;
    assert!(listed.contains("generate rate=5000 | count"), "{listed}");
    assert!(listed.contains("generate rate=1000 | discard"), "{listed}");
    let moved = folder.run(&words);
    assert_eq!(moved.status, Some(0), "the next one finds both as they were: {moved:?}");
    let (one, other) =
        (stop_named_path(&folder, "one", one), stop_named_path(&folder, "other", other));
    assert!(passed_blocks(&other, "count") > 0);
    let rows = one["filters"].as_array().unwrap();
    let gone = rows.iter().find(|row| row["name"] == "count").unwrap();
    assert!(gone["space"].is_null(), "it is no part of its old path: {gone}");
}

#[test]
fn request_file_may_have_dos_line_endings() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let text = "generate rate=100\r\n| count\r\n";
    std::fs::write(folder.path().join("r.pipe"), text).unwrap();
    let started = folder.run(&["start", "dos", text]);
    assert_eq!(started.status, Some(0), "{started:?}");
    assert!(folder.run(&["ps"]).out.contains("generate"));
    assert_eq!(folder.run(&["stop", "dos"]).status, Some(0));
    let ran = folder.run(&["run", "--as", "dos", "--for=100ms", "-f", "r.pipe"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let ran = folder.run(&["run", "--as", "dos", "--for=100ms", text]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
}
