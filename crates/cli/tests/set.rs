//! Tests of `streamline set PATH arg NODE NAME=VALUE`, which sets arguments of running filters.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{Folder, Ran};
use serde_json::Value;
use std::process::{Child, Stdio};

/// Starts a path named `web` that writes its report to the file `report`. Returns when the daemon
/// lists the path.
fn start_path(folder: &Folder, words: &[&str]) -> Child {
    let words = [&["run", "-q", "--json", "--report=report", "--as=web"], words].concat();
    let mut command = folder.streamline(&words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    folder.wait_listed("web");
    child
}

/// Stops the path and returns its report.
fn stop_path(folder: &Folder, child: Child) -> Value {
    let stop = folder.run(&["stop", "web"]);
    assert_eq!(stop.status, Some(0), "{}", stop.err);
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let report: Value = serde_json::from_str(&folder.read("report")).unwrap();
    assert_eq!(report["balanced"], true, "{report}");
    report
}

/// Sets an argument of the path. Returns, for each space, the number of the block at which it
/// switched to the new value.
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

/// Waits until the sources have emitted this many more blocks.
fn wait_for_blocks(folder: &Folder, more: u64) {
    let count = || -> u64 {
        let told = folder.run(&["top", "--once", "--json", "web"]).out;
        let Ok(told) = serde_json::from_str::<Value>(&told) else { return 0 };
        told["given"]["blocks"].as_u64().unwrap_or(0)
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
    let _daemon = folder.daemon();
    let child = start_path(&folder, &["generate rate=5000 | sample 10 | count"]);
    wait_for_blocks(&folder, 100);
    let refused = |words: &[&str], why: &str| {
        let done = folder.run(&[&["set", "web", "arg"], words].concat());
        assert_eq!(done.status, Some(1), "{done:?}");
        assert!(done.err.contains("runs as before") && done.err.contains(why), "{done:?}");
        assert!(folder.run(&["ps"]).out.contains("sample 10 "));
    };
    refused(&["sample", "every=0"], "`every` of `sample`: 0 is not between 1 and 4294967295");
    refused(&["sample", "state=x"], "cannot change at run time; `arg` sets `every`");
    refused(&["count", "x=1"], "none of its arguments can be set");
    let [at] = set_argument(&folder, &["sample", "every=4"])[..] else { panic!("one thread") };
    assert!(at >= 100);
    assert!(folder.run(&["ps"]).out.contains("sample 4 "), "others see the new value");
    let complete = folder.run(&["complete", "--", "set", "web", "arg", "sample"]);
    assert_eq!(complete.out, "every=\n");
    wait_for_blocks(&folder, 100);
    let report = stop_path(&folder, child);
    let all = report["sources"][0]["given"]["blocks"].as_u64().unwrap();
    // The sample counts on: its first block is that of the whole run, not that of the change.
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
    let _daemon = folder.daemon();
    let line = "--engines=2 generate rate=5000 flows=16 | udp | regex x |all discard";
    let child = start_path(&folder, &[line]);
    wait_for_blocks(&folder, 100);
    let refused = folder.run(&["set", "web", "arg", "regex", "size=4k"]);
    assert_eq!(refused.status, Some(1), "{refused:?}");
    assert!(refused.err.contains("`arg` sets `keep`"), "{refused:?}");
    for keep in ["keep=yes", "keep=no"] {
        assert_eq!(set_argument(&folder, &["regex", keep]).len(), 2, "one switch in each process");
        assert!(folder.run(&["ps"]).out.contains(&format!("regex x {keep} |all")));
        wait_for_blocks(&folder, 100);
    }
    let report = stop_path(&folder, child);
    let rows = report["filters"].as_array().unwrap();
    let regex: Vec<&Value> = rows.iter().filter(|row| row["name"] == "regex").collect();
    assert_eq!(regex.len(), 1, "the same filter from the beginning to the end: {report}");
    let shared = rows.iter().find(|row| row["name"].as_str().unwrap().starts_with("shard"));
    assert_eq!(regex[0]["taken"]["blocks"], shared.unwrap()["passed"]["blocks"]);
}

#[test]
fn v3_v10_argument_set_in_a_recorded_run_is_replayed() {
    let folder = Folder::new();
    let _daemon = folder.daemon();
    let line = "generate rate=5000 | sample 10 | pcap got.pcap";
    let child = start_path(&folder, &["--record=r.pcapng", line]);
    wait_for_blocks(&folder, 100);
    set_argument(&folder, &["sample", "every=4"]);
    wait_for_blocks(&folder, 100);
    stop_path(&folder, child);
    let again = folder.run(&["run", "--replay", "r.pcapng"]);
    assert_eq!(again.status, Some(0), "{again:?}");
    assert!(
        again.err.contains("the replay matches the recorded run, block for block"),
        "{again:?}"
    );
    assert!(again.err.contains("and the replay repeats it: arg sample every=4"), "{again:?}");
    let got = |file: &str| std::fs::read(folder.path().join(file)).unwrap();
    assert!(got("r.pcapng.replay/got.pcap") == got("got.pcap"));
}
