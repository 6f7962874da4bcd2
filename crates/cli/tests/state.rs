//! Tests of published filter state (`state=NAME`), which other processes read while the path runs,
//! and of `streamline state`. [Th §5.3.3], FEATURES M3

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use engine::published::TableReader;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Stdio};
use testkit::{need, wait};

/// A running path that reads a capture from its standard input.
struct PathWithInput {
    child: Child,
    input: Option<ChildStdin>,
}

impl PathWithInput {
    fn start(folder: &Folder, line: &str) -> Self {
        let mut command = folder.streamline_command(&["run", "--json", "--report=report", line]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        Self { child, input }
    }

    fn write_input(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(bytes).unwrap();
        input.flush().unwrap();
    }

    fn finish_and_report(mut self, folder: &Folder) -> Value {
        drop(self.input.take());
        let ran = CommandResult::from(self.child.wait_with_output().unwrap());
        assert_eq!(ran.status, Some(0), "{}", ran.err);
        serde_json::from_str(&folder.read("report")).unwrap()
    }
}

fn unique_name(of: &str) -> String {
    format!("cli-{}-{of}", std::process::id())
}

fn open_state_table(name: &str) -> TableReader {
    let mut reader = None;
    wait::wait_until("the name", || {
        reader = TableReader::open(name).ok();
        reader.is_some()
    });
    reader.unwrap()
}

/// Returns the JSON output of `streamline state` for a name.
fn run_state_command(folder: &Folder, name: &str) -> Value {
    let ran = folder.run(&["state", name, "--json"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

fn report_node<'r>(report: &'r Value, name: &str) -> &'r Value {
    let nodes = report["filters"].as_array().unwrap();
    nodes.iter().find(|node| node["name"] == name).unwrap()
}

/// Returns a capture of 60-byte frames in two parts: the file header, and the frames with their
/// headers.
fn build_capture(frames: usize) -> (Vec<u8>, Vec<u8>) {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let head: Vec<u8> = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1]);
    let frame = |n: usize| {
        let mut frame: Vec<u8> = words(&[1000, u32::try_from(n).unwrap(), 60, 60]);
        frame.extend([0; 60]);
        frame
    };
    (head, (0..frames).flat_map(frame).collect())
}

#[test]
fn m3_published_state_equals_the_ledger() {
    let (folder, name) = (Folder::new(), unique_name("count"));
    let line = format!("replay - | sample 3 state={name}-3 | count state={name} | discard");
    let mut path = PathWithInput::start(&folder, &line);
    let (reader, sample) = (open_state_table(&name), open_state_table(&format!("{name}-3")));
    let (head, frames) = build_capture(300);
    path.write_input(&head);
    for round in 1..=4 {
        path.write_input(&frames);
        let all = vec![vec![100 * round, 6000 * round, 0]];
        wait::wait_until("what came", || reader.snapshot().rows == all);
        assert!(reader.snapshot().is_consistent);
        assert_eq!(sample.snapshot().rows, [[300 * round]]);
        let state = run_state_command(&folder, &name);
        assert_eq!((&state["rows"][0][0], &state["whole"]), (&(100 * round).into(), &true.into()));
        assert_eq!(
            (&state["filter"], &state["columns"][1]["unit"]),
            (&"count".into(), &"bytes".into())
        );
    }
    let listed = folder.run(&["state", "--json"]).out;
    assert!(listed.contains(&format!("/{name}\"")), "{listed}");
    let page = folder.run(&["state", &name]).out;
    assert!(page.contains("blocks      400  blocks"), "{page}");
    let report = path.finish_and_report(&folder);
    let passed = &report_node(&report, "count")["passed"];
    assert_eq!((&passed["blocks"], &passed["bytes"]), (&400.into(), &24_000.into()));
    assert_eq!(
        (&report["balanced"], &report_node(&report, "sample")["taken"]["blocks"]),
        (&true.into(), &1200.into())
    );
    let look = reader.snapshot();
    assert_eq!((look.rows, look.ended), (vec![vec![400, 24_000, 0]], true), "as it was at the end");
    let gone = folder.run(&["state", &name]);
    assert_eq!(gone.status, Some(3), "{}", gone.err);
    assert!(gone.err.contains("no state is called"), "{}", gone.err);
}

#[test]
fn m3_published_state_has_a_row_per_session() {
    let (folder, name) = (Folder::new(), unique_name("tcp"));
    // One connection ends with a reset, which takes effect after the time `gap` without further
    // data (in capture time).
    let tcp = format!("tcp gap=5ms state={name}");
    let line = format!("replay - | {tcp} | (|80 http state={name}-h + count) | discard");
    let mut path = PathWithInput::start(&folder, &line);
    let (reader, http) = (open_state_table(&name), open_state_table(&format!("{name}-h")));
    path.write_input(&std::fs::read(folder.path().join("examples/web.pcap")).unwrap());
    wait::wait_until("seven connections, all closed", || {
        let closed = reader.snapshot().rows.iter().filter(|row| row[7] == 1).count();
        closed == 7
    });
    let names: Vec<&str> =
        reader.shape().columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names[..4], ["session", "port", "client_bytes", "server_bytes"]);
    let look = reader.snapshot();
    let sum = |column: usize| look.rows.iter().map(|row| row[column]).sum::<u64>();
    let given = sum(2) + sum(3);
    assert_eq!(look.rows.iter().map(|row| row[0]).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    // Closed connections are no longer sessions of `http`.
    wait::wait_until("no exchange", || http.snapshot().rows.is_empty());
    let report = path.finish_and_report(&folder);
    assert_eq!(report["balanced"], true);
    assert_eq!(report_node(&report, "tcp")["counters"]["new sessions"], 7);
    let passed = report_node(&report, "count")["taken"]["bytes"].as_u64().unwrap();
    assert_eq!(given, passed, "the bytes that connections gave are those that went on");
}

#[test]
fn m3_authorized_reader_sees_state_and_end_of_killed_path() {
    let Some(()) = need::require_root() else { return };
    let (folder, name) = (Folder::new(), unique_name("killed"));
    let line = "generate rate=1000";
    let line =
        format!("{line} | count state={name} state_mode=644 | count state={name}-own | discard");
    let mut path = PathWithInput::start(&folder, &line);
    let reader = open_state_table(&name);
    wait::wait_until("blocks", || reader.snapshot().rows.first().is_some_and(|row| row[0] > 0));
    let as_unprivileged = |words: &[&str]| {
        let mut command = folder.streamline_command(words);
        CommandResult::from(command.current_dir("/").uid(65534).gid(65534).output().unwrap())
    };
    let permitted = as_unprivileged(&["state", &format!("0/{name}")]);
    assert_eq!(path.child.try_wait().unwrap(), None, "the path runs: {}", permitted.err);
    if permitted.status.is_none() || permitted.err.contains("ermission denied") {
        let _: Option<()> = need::report_skip("nobody may not run this program");
        return;
    }
    assert_eq!(
        (permitted.status, permitted.out.contains("blocks")),
        (Some(0), true),
        "{}",
        permitted.err
    );
    let refused = as_unprivileged(&["state", &format!("0/{name}-own")]);
    assert_eq!(refused.status, Some(1), "{}", refused.out);
    assert!(refused.err.contains("may not open 0/"), "{}", refused.err);
    let mut follows = folder.streamline_command(&["state", "--follow", "--json", &name]);
    let mut follows = follows.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follows.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    path.child.kill().unwrap();
    path.child.wait().unwrap();
    let last = lines.map(Result::unwrap).last().unwrap_or(first);
    let followed = CommandResult::from(follows.wait_with_output().unwrap());
    assert_eq!(followed.status, Some(0), "{}", followed.err);
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(last["ended"], true, "{last}");
    let look = reader.snapshot();
    assert!(look.ended && look.rows.len() + look.torn_rows == 1, "{look:?}");
    assert_eq!(folder.run(&["state", &name]).status, Some(3), "the name is free");
}

#[test]
fn m3_inaccessible_state_is_refused_with_a_reason() {
    let folder = Folder::new();
    let refused = |line: &str, why: &str| {
        let ran = folder.run(&["check", line]);
        assert_eq!(ran.status, Some(2), "{line}: {}", ran.err);
        assert!(ran.err.contains(why), "{line}: {}", ran.err);
    };
    refused("generate | dport state=a | discard", "keeps no state between blocks");
    refused("generate | ip state=a | discard", "no fields for publication");
    refused("generate | count state=a | count state=a | discard", "is given twice");
    refused(
        "generate | count state=a | count state=a | discard",
        "with the same mark in both places",
    );
    refused("generate | count state_mode=644 | discard", "`state_mode=` sets who may read");
    refused("generate | sample 2 state=a untrusted=yes | discard", "an untrusted process");
    refused("generate | count state=a/b | discard", "`a/b` is not a valid name");
    refused("generate | count state=a state_mode=666 | discard", "not one of 600, 640, 644");
    let name = unique_name("taken");
    let line = format!("generate rate=100 | count state={name} | discard");
    let mut first = PathWithInput::start(&folder, &line);
    open_state_table(&name);
    let second = folder.run(&["run", &line]);
    assert_eq!(second.status, Some(1), "{}", second.err);
    assert!(second.err.contains("is taken by another state of the same user"), "{}", second.err);
    first.child.kill().unwrap();
    first.child.wait().unwrap();
}

/// The kernel could run `count`. Because the state of the filter is published, the filter runs in a
/// thread without replicas instead, and the plan contains the reason.
#[test]
fn m3_filter_with_published_state_stays_in_a_thread() {
    let folder = Folder::new();
    let ran = folder.run(&["explain", "rx lo | udp | dport |53 count state=web | discard"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let text = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("its state is published as `web` (mode 600)"), "{}", ran.out);
    assert!(!text.contains("count kernel"), "{}", ran.out);
}

#[test]
fn m3_filter_shared_by_its_label_has_one_state() {
    let folder = Folder::new();
    let name = format!("m3-mark-{}", std::process::id());
    let line = format!(
        "generate count=10 | ((ipproto |17 count --name=X state={name}) + \
         (sample every=2 | count --name=X)) | discard"
    );
    let ran = folder.run(&["run", "-q", "--stats", &line]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(ran.out.contains("15 blocks, 960 bytes"), "ten and five: {}", ran.out);
    // Both branches share one token bucket, which is exhausted after the first block.
    let line = "generate count=100 | (ratelimit 1 per=1h --name=U | count) + \
                (sample every=2 | ratelimit --name=U | drop)";
    let ran = folder.run(&["run", "-q", "--stats", line]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(ran.err.contains("ratelimit#U: not answered: 149 too fast"), "{}", ran.err);
}
