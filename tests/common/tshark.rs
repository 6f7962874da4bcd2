//! Expected results from tshark: the TCP streams and HTTP bodies of a capture.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// tshark options for complete reassembly: tshark joins HTTP chunks and decodes content codings.
const REASSEMBLY_OPTIONS: [&str; 7] = [
    "tcp.desegment_tcp_streams:TRUE",
    "ip.defragment:TRUE",
    "ipv6.defragment:TRUE",
    "http.desegment_headers:TRUE",
    "http.desegment_body:TRUE",
    "http.dechunk_body:TRUE",
    "http.decompress_body:TRUE",
];

/// A contiguous part of one direction of a connection: its bytes, or the number of missing bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StreamSpan {
    Bytes(Vec<u8>),
    Missing(u64),
}

/// A connection as tshark prints it: its endpoints as text, and the data of both directions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct FollowedConnection {
    pub(crate) ends: [String; 2],
    pub(crate) sides: [Vec<StreamSpan>; 2],
}

fn tshark_command(capture: &Path) -> Command {
    let mut command = Command::new("tshark");
    command.args(["-n", "-q", "-r"]).arg(capture).stdin(Stdio::null()).stderr(Stdio::null());
    for setting in REASSEMBLY_OPTIONS {
        command.args(["-o", setting]);
    }
    command
}

/// Returns the TCP streams that tshark finds in a capture, in the order of their start. `expected`
/// is an estimate of their number; the first call of tshark requests a few streams more than that.
pub(crate) fn follow_streams(capture: &Path, expected: usize) -> Vec<FollowedConnection> {
    let mut streams = Vec::new();
    let mut to = expected + 8;
    loop {
        let from = streams.len();
        let mut command = tshark_command(capture);
        command.args(["-o", "tcp.reassemble_out_of_order:TRUE"]);
        for number in from..to {
            command.args(["-z", &format!("follow,tcp,raw,{number}")]);
        }
        let output = command.output().expect("tshark");
        let mut found = parse_follow_output(&String::from_utf8_lossy(&output.stdout));
        streams.extend((from..to).map_while(|number| found.remove(&number)));
        if streams.len() < to {
            return streams;
        }
        // There may be many connections without data.
        to += 1_000;
    }
}

/// Parses the output of `tshark -z follow,tcp,raw`. The keys are tshark's stream numbers.
fn parse_follow_output(text: &str) -> BTreeMap<usize, FollowedConnection> {
    let mut found = BTreeMap::new();
    let (mut number, mut stream) = (None, FollowedConnection::default());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Filter: tcp.stream eq ") {
            (number, stream) = (rest.trim().parse().ok(), FollowedConnection::default());
        } else if let Some(end) = line.strip_prefix("Node 0: ") {
            stream.ends[0] = end.to_owned();
        } else if let Some(end) = line.strip_prefix("Node 1: ") {
            stream.ends[1] = end.to_owned();
        } else if line.starts_with("===") {
            if let Some(number) = number.take().filter(|_| stream.ends[0] != ":0") {
                found.insert(number, std::mem::take(&mut stream));
            }
        } else if number.is_some() {
            let side = usize::from(line.starts_with('\t'));
            push_span(&mut stream.sides[side], parse_span(&decode_hex(line.trim())));
        }
    }
    found
}

/// Parses a span. In place of missing bytes, tshark prints a sentence.
fn parse_span(bytes: &[u8]) -> StreamSpan {
    let text = std::str::from_utf8(bytes).ok();
    let number = text
        .and_then(|text| text.strip_prefix('['))
        .and_then(|text| text.strip_suffix(" bytes missing in capture file]\0"))
        .and_then(|number| number.parse().ok());
    number.map_or_else(|| StreamSpan::Bytes(bytes.to_vec()), StreamSpan::Missing)
}

/// Appends a span, and merges it with the last one if both are bytes or both are gaps.
pub(crate) fn push_span(spans: &mut Vec<StreamSpan>, span: StreamSpan) {
    match (spans.last_mut(), span) {
        (Some(StreamSpan::Bytes(bytes)), StreamSpan::Bytes(more)) => bytes.extend(more),
        (Some(StreamSpan::Missing(length)), StreamSpan::Missing(more)) => *length += more,
        (_, StreamSpan::Bytes(bytes)) if bytes.is_empty() => {}
        (_, StreamSpan::Missing(0)) => {}
        (_, span) => spans.push(span),
    }
}

fn decode_hex(text: &str) -> Vec<u8> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map_while(pair).collect()
}

/// Returns the non-empty bodies of the HTTP messages of a capture, using the directory `folder` for
/// temporary files. If `waits_for_segments` is true, tshark reorders segments before dissection and
/// dissects nothing after a gap.
pub(crate) fn export_http_bodies(
    capture: &Path,
    folder: &Path,
    waits_for_segments: bool,
) -> Vec<Vec<u8>> {
    std::fs::create_dir_all(folder).expect("a folder");
    let objects = format!("http,{}", folder.display());
    let waits_for_segments = format!(
        "tcp.reassemble_out_of_order:{}",
        if waits_for_segments { "TRUE" } else { "FALSE" }
    );
    let mut command = tshark_command(capture);
    command.args(["-o", &waits_for_segments, "--export-objects", &objects]).stdout(Stdio::null());
    let status = command.status();
    // It fails on a truncated capture; its output until then is valid.
    status.expect("tshark");
    let files = std::fs::read_dir(folder).expect("the folder").flatten();
    let mut bodies: Vec<Vec<u8>> =
        files.map(|file| std::fs::read(file.path()).expect("a file")).collect();
    std::fs::remove_dir_all(folder).expect("the folder");
    bodies.retain(|body| !body.is_empty());
    bodies.sort();
    bodies
}

/// Returns tshark's one-line summary of a frame.
pub(crate) fn frame_summary(capture: &Path, frame: u32) -> String {
    let wanted = format!("frame.number == {frame}");
    let mut command = Command::new("tshark");
    command.args(["-n", "-Y", &wanted, "-r"]).arg(capture).stdin(Stdio::null());
    let output = command.stderr(Stdio::null()).output().expect("tshark");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
