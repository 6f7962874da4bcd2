//! Tests of session numbers at nodes that receive the output of several filters. The numbers must
//! be unique, even across threads and processes. (A14)

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{ChildGuard, Folder};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};
use testkit::wait_until;

/// Creates a directory with two captures of web traffic, whose connections have the same addresses.
fn create_capture_folder() -> Folder {
    let folder = Folder::new();
    for (name, seed) in [("a.pcap", 19), ("b.pcap", 20)] {
        fs::write(folder.path().join(name), testkit::mixed_traffic(seed, 60).to_pcap()).unwrap();
    }
    folder
}

/// Runs a request that ends with `count`. Returns the printed numbers in the order of the output.
fn run_and_parse_counts(folder: &Folder, line: &str) -> Vec<u64> {
    let ran = folder.run(&["run", "-q", line]);
    assert_eq!(ran.status, Some(0), "{line}: {ran:?}");
    let words = ran.out.lines().next().unwrap().split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

fn pairwise_sums(one: &[u64], other: &[u64]) -> Vec<u64> {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| one + other).collect()
}

/// Parses the blocks in the output of `json`.
fn parse_json_blocks(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the flow of every session, as its protocol and endpoints. Asserts that all blocks of a
/// session belong to one flow.
fn flows_by_session(blocks: &[Value]) -> BTreeMap<u64, BTreeSet<String>> {
    let mut flows: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    for block in blocks {
        // Holes do not belong to a frame, and have no addresses.
        let framed = block["src"].is_string();
        let Some(session) = block["session"].as_u64().filter(|_| framed) else { continue };
        let end = |side: &str| format!("{} {}", block[side], block[format!("{side}_port")]);
        let ends = BTreeSet::from([end("src"), end("dst"), block["proto"].to_string()]);
        let known = flows.entry(session).or_insert_with(|| ends.clone());
        assert_eq!(*known, ends, "session {session}: {block}");
    }
    flows
}

#[test]
fn a14_two_tcp_filters_have_distinct_sessions_in_one_sink() {
    let folder = create_capture_folder();
    let alone = |file: &str, behind: &str| {
        run_and_parse_counts(&folder, &format!("replay {file} | tcp | {behind}"))
    };
    for behind in [
        "http | count",
        "http |get count",
        "tls | count",
        "dns | count",
        "regex \"html\" \"GET\" | count",
        "regex \"html\" \"GET\" keep=yes | count",
    ] {
        let wanted = pairwise_sums(&alone("a.pcap", behind), &alone("b.pcap", behind));
        assert!(behind.starts_with("dns") || wanted[0] > 9, "{behind}: {wanted:?}");
        let both = format!("(replay a.pcap | tcp) + (replay b.pcap | tcp) | {behind}");
        assert_eq!(run_and_parse_counts(&folder, &both), wanted, "{behind}");
    }
    let split = "replay a.pcap | split 2 | (|1 tcp + |2 tcp) | http | count";
    assert_eq!(run_and_parse_counts(&folder, split), alone("a.pcap", "http | count"));
}

#[test]
fn a14_files_of_tcp_and_udp_contain_one_flow_each() {
    let folder = create_capture_folder();
    // The map contains the digest of each file and the number of blocks in the file.
    let digests = |line: &str, into: &str| {
        let ran = folder.run(&["run", "-q", &format!("{line} | files {into}")]);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        let index = folder.read(&format!("{into}/index.jsonl"));
        let mut all: Vec<_> = parse_json_blocks(&index)
            .iter()
            .map(|file| (file["sha256"].to_string(), file["blocks"].as_u64().unwrap()))
            .collect();
        all.sort();
        all
    };
    let mut wanted = digests("replay a.pcap | tcp", "tcp");
    wanted.extend(digests("replay a.pcap | udp", "udp"));
    wanted.sort();
    assert!(wanted.len() > 50, "{}", wanted.len());
    assert_eq!(digests("replay a.pcap | (tcp + udp)", "both"), wanted);
    let session = |folder: &str, file: &Value| (folder.to_owned(), file["session"].to_string());
    let index = parse_json_blocks(&folder.read("both/index.jsonl"));
    let sessions: BTreeSet<_> = index.iter().map(|file| session("both", file)).collect();
    let apart: BTreeSet<_> = ["tcp", "udp"]
        .iter()
        .flat_map(|name| {
            let index = parse_json_blocks(&folder.read(&format!("{name}/index.jsonl")));
            index.iter().map(|file| session(name, file)).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(sessions.len(), apart.len(), "as many sessions as both have apart");
}

#[test]
fn a14_single_filter_numbers_from_1_and_two_in_steps() {
    let folder = create_capture_folder();
    let sessions = |line: &str| {
        let ran = folder.run(&["run", "-q", &format!("{line} | json")]);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        flows_by_session(&parse_json_blocks(&ran.out))
    };
    let lone = sessions("replay a.pcap | udp");
    assert!(lone.keys().copied().eq(1..=lone.len() as u64), "{lone:?}");
    let tcp = sessions("replay a.pcap | tcp");
    assert!(tcp.keys().copied().eq(1..=tcp.len() as u64), "{tcp:?}");
    let both = sessions("replay a.pcap | (tcp + udp)");
    assert_eq!(both.len(), lone.len() + tcp.len());
    let of = |flows: &BTreeMap<u64, BTreeSet<String>>, from: u64| -> BTreeMap<u64, _> {
        flows.iter().map(|(number, flow)| (from + 2 * (number - 1), flow.clone())).collect()
    };
    let mut wanted = of(&tcp, 1);
    wanted.extend(of(&lone, 2));
    assert_eq!(both, wanted, "every flow has its number, twice as far apart");
}

#[test]
fn a14_workers_and_sandboxes_assign_unique_numbers() {
    let folder = create_capture_folder();
    let sessions = |words: &[&str]| {
        let ran = folder.run(words);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        flows_by_session(&parse_json_blocks(&ran.out))
    };
    let line = "replay a.pcap | (tcp + udp) | json";
    let one = sessions(&["run", "-q", line]);
    let apart = "replay a.pcap | (tcp untrusted=yes + udp) | json";
    assert_eq!(sessions(&["run", "-q", apart]), one, "where it runs does not matter");
    for line in [line.to_owned(), apart.to_owned()] {
        let workers = sessions(&["run", "-q", &format!("--engines=3 {line}")]);
        assert_eq!(workers.len(), one.len(), "{line}");
        let count = |flows: &BTreeMap<u64, BTreeSet<String>>| {
            let mut all: Vec<_> = flows.values().cloned().collect();
            all.sort();
            all
        };
        assert_eq!(count(&workers), count(&one), "{line}");
    }
}

#[test]
fn a14_v10_record_of_two_session_filters_replays_identically() {
    let folder = create_capture_folder();
    let line = "(replay a.pcap | tcp) + (replay b.pcap | (tcp + udp)) | json";
    let first = folder.run(&["run", "--record=r.pcapng", line]);
    assert_eq!(first.status, Some(0), "{first:?}");
    let again = folder.run(&["run", "--replay", "r.pcapng"]);
    assert_eq!((again.status, again.out == first.out), (Some(0), true), "{}", again.err);
    assert!(
        again.err.contains("the replay matches the recorded run, block for block"),
        "{}",
        again.err
    );
    let sessions = flows_by_session(&parse_json_blocks(&first.out));
    let thirds = [0, 1, 2].map(|rest| sessions.keys().any(|session| session % 3 == rest));
    assert_eq!(thirds, [true; 3], "{sessions:?}");
}

#[test]
fn a14_v3_v10_inserted_session_filter_replays_identically() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let line = "generate rate=1000 size=60 flows=5 | (udp + inspect) | json";
    let out = || fs::read_to_string(folder.path().join("out")).unwrap_or_default();
    let mut path =
        folder.streamline_command(&["run", "--as", "two", "-q", "--record=r.pcapng", line]);
    let path =
        path.stdin(Stdio::null()).stdout(fs::File::create(folder.path().join("out")).unwrap());
    let mut path = ChildGuard(path.stderr(Stdio::null()).spawn().unwrap());
    folder.wait_until_listed("two");
    wait_until("all flows have come", || out().lines().count() > 100);
    let done = folder.run(&["set", "two", "replace", "inspect", "with", "udp"]);
    assert_eq!(done.status, Some(0), "{done:?}");
    let later = format!("\"session\":{}", (1_u64 << 31) + 4);
    wait_until("all flows have come to both", || out().contains(&later));
    let stopped = Command::new("kill").args(["-INT", &path.0.id().to_string()]).status();
    assert!(stopped.unwrap().success() && path.0.wait().unwrap().success());
    let sessions = flows_by_session(&parse_json_blocks(&out()));
    let first = 1_u64 << 31;
    assert!(sessions.keys().copied().eq((1..=5).chain(first..first + 5)), "{sessions:?}");
    let again = folder.run(&["run", "--replay", "r.pcapng"]);
    assert_eq!((again.status, again.out == out()), (Some(0), true), "{}", again.err);
    assert!(
        again.err.contains("the replay matches the recorded run, block for block"),
        "{}",
        again.err
    );
}

/// Replays records of format version 2, in which each filter numbered its sessions independently.
/// The first record was made by `run --record=… 'generate count=12 size=60 seq=yes flows=3 | (udp +
/// (inspect | udp)) | print'`, the second by a path into which another `udp` was inserted during
/// the run.
#[test]
fn a14_v10_version_2_record_replays_with_its_numbers() {
    for (record, blocks) in [
        (&include_bytes!("records/second-form.pcapng")[..], 24),
        (include_bytes!("records/second-form-changed.pcapng"), 48),
    ] {
        let folder = Folder::new();
        fs::write(folder.path().join("second.pcapng"), record).unwrap();
        let again = folder.run(&["run", "--replay", "second.pcapng"]);
        assert_eq!(again.status, Some(0), "{again:?}");
        assert!(
            again.err.contains("the replay matches the recorded run, block for block"),
            "{again:?}"
        );
        assert_eq!(again.out.lines().count(), blocks, "{again:?}");
        let mut ports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for line in again.out.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let Some(at) = words.iter().position(|word| *word == "session") {
                ports.entry(words[at + 1]).or_default().insert(words[2]);
            }
        }
        let all: BTreeSet<&str> = ["1", "2", "3"].into_iter().take(ports.len()).collect();
        assert!(ports.len() > 1 && ports.keys().copied().eq(all), "{ports:?}");
        let mixed = ports.values().any(|ports| ports.len() > 1);
        assert_eq!(mixed, blocks == 48, "what was mixed then is mixed again: {ports:?}");
    }
}
