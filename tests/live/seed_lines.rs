//! Test of the example requests of the papers, as printed there: each either runs over frames from
//! a veth pair, or is refused with a message that names the filter to use instead. [SL §4.1 to
//! §4.3; Th §5.4]
//!
//! Some of the papers' requests have no source; `rx |` is then added in front. `f`, `a` and `b` of
//! the papers stand for any filter, and are replaced by `count` and `sample`.

use crate::frame_sending::{parse_capture, send_all};
use crate::observer::{Observer, ObserverResult};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, NamespacePair, device_counters, wait_until,
    wait_until_received,
};
use testkit::streamline_program;

/// The expected outcome of a request.
enum ExpectedOutcome {
    /// The request runs and loses nothing. Its result passes this check.
    Runs(fn(&ObserverResult)),
    /// The request runs while a program reads its named sink. The fields are the name of the sink,
    /// and a check of the result and of the bytes that the program received.
    RunsWithReader(&'static str, fn(&ObserverResult, &[u8])),
    /// The request runs while a program writes the capture to its named source. The fields are the
    /// name of the source, and a check of the result. The frames of the capture arrive at the other
    /// end of the veth pair.
    RunsWithWriter(&'static str, fn(&ObserverResult)),
    /// The request is refused with a message that contains this hint.
    Refused(&'static str),
}

use ExpectedOutcome::{Refused, Runs, RunsWithReader, RunsWithWriter};

/// The example requests, each as the paper prints it, as the test runs it, and with its expected
/// outcome.
const REQUESTS: &[(&str, &str, ExpectedOutcome)] = &[
    ("rx | tcp | http | files", "rx | tcp | http | files", Runs(assert_sixteen_messages)),
    (
        "tcp | http + ssh + rtsp | inspect",
        "rx | tcp | http + ssh + rtsp | inspect",
        Runs(|ran| assert_eq!(received_blocks(ran, "inspect"), HTTP_MESSAGE_BLOCKS)),
    ),
    (
        "tcp | http + ssh + rtsp | inspect",
        "tcp | http + ssh + rtsp | inspect",
        Refused("begin with a source, for instance `rx … |`"),
    ),
    (
        "a --name=X | b | a --name=X",
        "rx | count --name=X | sample 2 | count --name=X",
        Runs(|ran| assert_eq!(received_blocks(ran, "count#X"), 2 * FRAMES_IN_CAPTURE)),
    ),
    (
        "dport |22 ssh",
        "rx | tcp | dport |22 ssh",
        Runs(|ran| {
            assert_eq!(
                (received_blocks(ran, "dport"), received_blocks(ran, "ssh")),
                (TCP_STREAM_BLOCKS, 0)
            )
        }),
    ),
    ("dport |22 ssh", "rx | dport |22 ssh", Refused("put `tcp` before it")),
    ("dport |!80 ids", "rx | dport |!80 ids", Refused("`regex \"PATTERN\"`")),
    (
        "dport |!80 ids",
        "rx | dport |!80 count",
        Runs(|ran| {
            assert_eq!(received_blocks(ran, "count"), FRAMES_IN_CAPTURE - FRAMES_TO_PORT_80)
        }),
    ),
    ("dport |22:23 log", "rx | dport |22:23 log", Refused("`json` writes a line")),
    (
        "dport |22:23 log",
        "rx | dport |80:81 json",
        Runs(|ran| assert_eq!(count_lines(&ran.out), FRAMES_TO_PORT_80)),
    ),
    ("dport |ssh:telnet log", "rx | dport |ssh:telnet log", Refused("`json` writes a line")),
    (
        "dport |ssh:telnet log",
        "rx | dport |dns:http json",
        Runs(|ran| assert!(count_lines(&ran.out) > FRAMES_TO_PORT_80)),
    ),
    (
        "rx ++ tx | ip | mpeg +* !http",
        "rx ++ tx | ip | mpeg +* !http",
        Runs(|ran| assert_eq!(received_blocks(ran, "ip"), FRAMES_IN_CAPTURE)),
    ),
    (
        "split_rr | f + f + .. + f | join",
        "rx | split_rr | count + count + count | join",
        Runs(|ran| {
            let shares = [1, 2, 3].map(|n| received_blocks(ran, &format!("count#{n}")));
            assert_eq!(shares, [FRAMES_IN_CAPTURE / 3; 3]);
            assert_eq!(received_blocks(ran, "join"), FRAMES_IN_CAPTURE);
        }),
    ),
    (
        "rx | ip | tcp | pcap | compress | files",
        "rx | ip | tcp | pcap | compress | files",
        Runs(assert_connection_captures),
    ),
    (
        "buffer txport_53 |all tx",
        "buffer txport_53 |all tx",
        RunsWithWriter("txport_53", |ran| assert_eq!(ran.source().given, FRAMES_IN_CAPTURE)),
    ),
    (
        "rx + tx | bpf \"tcp\" | user",
        "rx + tx | bpf \"tcp\" | user",
        RunsWithReader("user", |_, read| assert_eq!(read.len(), TCP_BYTES)),
    ),
    (
        "rx | udp | dport |53 socket export=yes name=rxport_53",
        "rx | udp | dport |53 socket export=yes name=rxport_53",
        RunsWithReader("rxport_53", |_, read| assert_eq!(read.len(), DNS_QUESTION_BYTES)),
    ),
    (
        "cat /pipes/rx/ip/dport/80/untcp/http/get/all | gzip > log.gz",
        "cat /pipes/rx/ip/dport/80/untcp/http/get/all | gzip > log.gz",
        Refused("`rx | ip | dport |80 untcp | http |get exec \"gzip > log.gz\"`"),
    ),
    (
        "/pipes/rx/ip/dport/80/untcp/http/get/all",
        "rx | ip | dport |80 untcp | http |get exec \"gzip > log.gz\"",
        Runs(assert_archived_requests),
    ),
];

/// Number of frames in `web.pcap`, which the tests send.
const FRAMES_IN_CAPTURE: u64 = 105;
/// Number of frames in `web.pcap` that go to port 80.
const FRAMES_TO_PORT_80: u64 = 39;
/// Number of blocks in all TCP streams of `web.pcap`.
const TCP_STREAM_BLOCKS: u64 = 43;
/// Number of blocks in all HTTP messages of `web.pcap`.
const HTTP_MESSAGE_BLOCKS: u64 = 40;
/// Number of connections in `web.pcap` that transfer data.
const CONNECTIONS: usize = 7;
/// Number of frames in `web.pcap` with TCP data.
const TCP_DATA_FRAMES: usize = 29;
/// Number of bytes in the TCP frames of `web.pcap`.
const TCP_BYTES: usize = 26_707;
/// Number of bytes in the DNS questions of `web.pcap`.
const DNS_QUESTION_BYTES: usize = 143;

/// Returns the number of blocks that a filter received.
#[track_caller]
fn received_blocks(ran: &ObserverResult, name: &str) -> u64 {
    let filters = ran.ledger["filters"].as_array().expect("a ledger");
    let named = filters.iter().find(|filter| filter["name"] == name);
    let named = named.unwrap_or_else(|| panic!("no `{name}`: {}", ran.ledger));
    named["taken"]["blocks"].as_u64().expect("a number")
}

fn count_lines(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}

fn assert_sixteen_messages(ran: &ObserverResult) {
    let folder = std::fs::read_dir(ran.path("files")).expect("the folder of a line without one");
    assert_eq!(folder.count(), 16 + 1, "16 messages, and the index");
}

/// Asserts that a request has written a compressed capture for each connection with data. The name
/// of the capture contains both ends of the connection.
fn assert_connection_captures(ran: &ObserverResult) {
    let index = String::from_utf8(ran.file("files/index.jsonl")).expect("text");
    assert_eq!(index.lines().count(), CONNECTIONS, "{index}");
    let mut frames = 0;
    for line in index.lines() {
        let entry: serde_json::Value = serde_json::from_str(line).expect("an object");
        let name = entry["file"].as_str().expect("a file");
        assert!(name.contains("-10.0.0.") || name.contains("-2001_db8_"), "{line}");
        assert!(entry["session"].as_u64() > Some(0) && entry["src_port"].is_u64(), "{line}");
        let trace = Command::new("zcat").arg(ran.path("files").join(name)).output().expect("zcat");
        assert!(trace.status.success(), "{name}");
        frames += parse_capture(&trace.stdout).len();
    }
    assert_eq!(frames, TCP_DATA_FRAMES);
}

fn assert_archived_requests(ran: &ObserverResult) {
    let path = ran.path("log.gz");
    let unpacked = Command::new("zcat").arg(path).output().expect("zcat");
    let text = String::from_utf8_lossy(&unpacked.stdout).into_owned();
    assert!(text.starts_with("GET /") && text.contains("Host: "), "{text}");
}

/// Waits until a named source or sink has at least this many sockets: a listening one, and one for
/// each reader or writer.
fn wait_for_sockets(pair: &NamespacePair, name: &str, sockets: usize) {
    wait_until(&format!("{name} has {sockets} sockets"), || {
        let names = pair.server.run_program("cat", "/proc/net/unix");
        names.lines().filter(|line| line.ends_with(&format!("/{name}"))).count() >= sockets
    });
}

/// Runs a request while a program reads its named sink. Returns the bytes that the program
/// received.
fn run_with_reader(
    pair: &NamespacePair,
    line: &str,
    name: &str,
    frames: &[Vec<u8>],
) -> (ObserverResult, Vec<u8>) {
    let observer = Observer::start(&pair.server, line);
    wait_for_sockets(pair, name, 1);
    let mut cat = pair.server.command(streamline_program());
    let cat = cat.args(["cat", name]).stdout(Stdio::piped()).spawn().expect("cat");
    // The doorbell of a reader is a connection to the name.
    wait_for_sockets(pair, name, 2);
    send_all(pair, frames);
    let ran = observer.stop();
    ran.assert_lossless();
    (ran, cat.wait_with_output().expect("it ends with the path").stdout)
}

/// Runs a request while a program writes a capture to its named source, until the client has
/// received as many frames as the capture contains.
fn run_with_writer(pair: &NamespacePair, line: &str, name: &str, capture: &Path) -> ObserverResult {
    let observer = Observer::spawn(pair.server.command(streamline_program()), line);
    wait_for_sockets(pair, name, 1);
    let before =
        device_counters(&pair.client, CLIENT_DEVICE).expect("the device is there").received;
    let mut cat = pair.server.command(streamline_program());
    let cat = cat.args(["cat", "--write", "--pcap", name]);
    let wrote = cat.stdin(File::open(capture).expect("the example")).status().expect("cat");
    assert!(wrote.success());
    wait_until_received(&pair.client, CLIENT_DEVICE, before + FRAMES_IN_CAPTURE);
    let ran = observer.stop();
    ran.assert_lossless();
    ran
}

/// Runs a request in the server's namespace while the client sends the capture.
fn run_while_sending(pair: &NamespacePair, line: &str, frames: &[Vec<u8>]) -> ObserverResult {
    let observer = Observer::start(&pair.server, line);
    send_all(pair, frames);
    let ran = observer.stop();
    ran.assert_lossless();
    ran
}

#[test]
fn a1_a5_a9_a15_h10_h18_h19_example_requests_run_or_name_a_filter() {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let capture = testkit::cases::workspace_root().join("examples/web.pcap");
    let frames = parse_capture(&std::fs::read(&capture).expect("the example"));
    assert_eq!(frames.len() as u64, FRAMES_IN_CAPTURE);
    for (paper, line, outcome) in REQUESTS {
        eprintln!("{paper}: {line}");
        match outcome {
            Runs(has_result) => has_result(&run_while_sending(&pair, line, &frames)),
            RunsWithReader(name, has_result) => {
                let (ran, bytes) = run_with_reader(&pair, line, name, &frames);
                has_result(&ran, &bytes);
            }
            RunsWithWriter(name, has_result) => {
                has_result(&run_with_writer(&pair, line, name, &capture))
            }
            Refused(hint) => {
                let check = Command::new(streamline_program())
                    .args(["check", line])
                    .output()
                    .expect("runs");
                let stderr = String::from_utf8_lossy(&check.stderr).into_owned();
                assert_eq!(check.status.code(), Some(2), "{line}: {stderr}");
                assert!(stderr.contains(hint), "{line}: {stderr}");
            }
        }
    }
}
