//! Tests of the counters of a request that runs in the kernel (time, notifications), and of
//! requests that do not fit into one program.

use crate::frame_sending::send_all;
use crate::numbered_frames::{FRAME_LENGTH, numbered_frames};
use crate::observer::{Observer, ObserverResult};
use crate::scratch::Scratch;
use serde_json::Value;
use std::process::{Command, Stdio};
use testkit::need;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER_DEVICE, is_capturing, wait_until};
use testkit::streamline_program;

/// Returns a veth pair that carries only the test's traffic, or `None` if programs cannot be
/// loaded.
pub(crate) fn quiet_pair() -> Option<NamespacePair> {
    need::require_bpf()?;
    NamespacePair::new(DevicePairSettings { addresses: false, ..DevicePairSettings::default() })
}

/// Sends `number` datagrams to port 9, and waits until they have arrived.
fn send_datagrams(pair: &NamespacePair, number: u64) {
    send_all(pair, &numbered_frames(0..number, FRAME_LENGTH));
}

pub(crate) fn filter_entry<'r>(ran: &'r ObserverResult, name: &str) -> &'r Value {
    let filters = ran.ledger["filters"].as_array().expect("filters");
    filters.iter().find(|filter| filter["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

pub(crate) fn kernel_refusals(ran: &ObserverResult) -> Vec<(&str, &str)> {
    let refused = ran.ledger["refused"].as_array().expect("an array");
    refused
        .iter()
        .map(|one| (one["filter"].as_str().expect("a name"), one["why"].as_str().expect("a text")))
        .collect()
}

#[test]
fn v1_analysis_reports_program_time_and_notifications() {
    let Some(pair) = quiet_pair() else { return };
    let folder = Scratch::new();
    let line = format!("rx {SERVER_DEVICE} | bpf \"udp port 9\" | print");
    let mut command = pair.server.command(streamline_program());
    command.args(["explain", "--analyze", &line]).current_dir(folder.path(""));
    command.env("XDG_STATE_HOME", folder.path("state")).env("NO_COLOR", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    wait_until("it is attached", || {
        assert!(child.try_wait().expect("a child").is_none(), "it ended");
        is_capturing(&pair.server, child.id())
    });
    send_datagrams(&pair, 500);
    let process = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &process]).status().expect("kill").success());
    let output = child.wait_with_output().expect("it ends");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).replace("\n   ", " ");
    assert!(output.status.success(), "{text}");
    let of = text.lines().find(|line| line.starts_with(" program of rx: "));
    let of = of.unwrap_or_else(|| panic!("{text}"));
    // Root in its own namespace may have the time measured.
    assert!(of.contains(" ns for a frame, ") && of.contains("; 500 frames, "), "{of}");
    let doorbells =
        of.split("notifications").next().and_then(|head| head.split_whitespace().last());
    let doorbells: u64 = doorbells.and_then(|number| number.parse().ok()).expect("a number");
    assert!(doorbells > 0, "{of}");
    let edge =
        text.lines().find(|line| line.contains("bpf → print") && line.contains("kernel ring"));
    let edge = edge.unwrap_or_else(|| panic!("{text}"));
    assert!(edge.split_whitespace().any(|word| word == doorbells.to_string()), "{edge}");
}

#[test]
fn ledger_counts_program_frames_and_notifications() {
    let Some(pair) = quiet_pair() else { return };
    let line = format!("rx {SERVER_DEVICE} | bpf \"udp port 9\" | pcap seen.pcap");
    let observer = Observer::start(&pair.server, &line);
    send_datagrams(&pair, 200);
    let ran = observer.stop();
    ran.assert_lossless();
    let programs = ran.ledger["programs"].as_array().expect("an array");
    let [program] = &programs[..] else { panic!("{}", ran.ledger) };
    assert_eq!((&program["source"], &program["frames"]), (&"rx".into(), &200.into()));
    let doorbells = program["bells"].as_u64().expect("a number");
    assert!((1..=200).contains(&doorbells), "{program}");
    // This request did not enable time measurement, but any process may for the whole machine.
    assert!(program["runs"].as_u64().is_none_or(|runs| runs <= 200), "{program}");
}

/// Runs a request with a block limit (`--count`). Asserts that the filter that counts for the limit
/// runs in a thread, after the filters in the kernel.
#[test]
fn v5_block_limit_is_counted_after_the_kernel() {
    let Some(pair) = quiet_pair() else { return };
    let line = format!("rx {SERVER_DEVICE} | ip | udp | count");
    let observer = Observer::start_with_options(&pair.server, &["--count=5"], &line);
    send_datagrams(&pair, 40);
    let ran = observer.wait();
    ran.assert_balanced();
    assert_eq!(filter_entry(&ran, "udp")["space"], "kernel", "{}", ran.err);
    assert_eq!(filter_entry(&ran, "count")["space"], "thread0", "{}", ran.err);
    assert_eq!(filter_entry(&ran, "count")["passed"]["blocks"], 5, "{}", ran.ledger);
    let [(name, why)] = kernel_refusals(&ran)[..] else { panic!("{}", ran.ledger) };
    assert_eq!((name, why.contains("`-c`")), ("count", true), "{why}");
    assert!(ran.err.contains("`count` runs in thread0: `-c` counts blocks"), "{}", ran.err);
}

/// Runs a request whose filter `dport` has arcs to 40 files. `way` returns the classes of the arc
/// to the file with the given index.
fn run_with_branches(pair: &NamespacePair, way: impl Fn(usize) -> String) -> ObserverResult {
    let ways: Vec<String> =
        (0..40).map(|file| format!("|{} pcap {file}.pcap", way(file))).collect();
    let line = format!("rx {SERVER_DEVICE} | dport | ( {} )", ways.join(" + "));
    let observer = Observer::start_with_options(&pair.server, &["--policy=deepest"], &line);
    send_datagrams(pair, 30);
    let ran = observer.stop();
    ran.assert_lossless();
    assert_eq!(filter_entry(&ran, "rx")["space"], "kernel", "{}", ran.err);
    assert_eq!(ran.frames("0.pcap").len(), 30);
    ran
}

/// Runs a filter with an arc for each of 40 classes in the kernel. A frame has only one class, so
/// it leaves the kernel at only one place (exit), and the number of exits per frame stays within
/// the limit.
#[test]
fn v5_exclusive_exits_fit_the_limit_of_a_program() {
    let Some(pair) = quiet_pair() else { return };
    let ran = run_with_branches(&pair, |file| (9 + file).to_string());
    assert_eq!(filter_entry(&ran, "dport")["space"], "kernel", "{}", ran.err);
    assert_eq!(kernel_refusals(&ran), []);
    assert_eq!(ran.frames("1.pcap").len(), 0);
}

/// Runs a filter from which one frame can leave the kernel at more places (exits) than a program
/// may have. Asserts that the filter runs in a thread, and that the report gives the reason.
#[test]
fn v5_filter_with_too_many_exits_runs_in_a_thread() {
    let Some(pair) = quiet_pair() else { return };
    let ran = run_with_branches(&pair, |_| "all".to_owned());
    assert_eq!(filter_entry(&ran, "dport")["space"], "thread0", "{}", ran.err);
    assert_eq!(ran.frames("39.pcap").len(), 30);
    let [(name, why)] = kernel_refusals(&ran)[..] else { panic!("{}", ran.ledger) };
    assert_eq!(name, "dport");
    assert!(why.contains("40 exits from the kernel at once") && why.contains("31"), "{why}");
    assert!(ran.err.contains(why), "{}", ran.err);
}
