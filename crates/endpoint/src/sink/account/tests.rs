//! Tests of the accounts of flows.

use super::*;
use crate::testing::{
    TEST_TIME, TempDir, bare_block, batch_of, checked_arguments, decode_hex, frame_block,
    sink_opening,
};
use serde_json::{Value, json};

const SECOND: u64 = 1_000_000_000;

/// Returns a UDP frame of 44 bytes between 10.0.0.A:1000 and 10.0.0.B:53.
fn datagram(from: u8, to: u8) -> Vec<u8> {
    let ports = if from < to { "03e8 0035" } else { "0035 03e8" };
    decode_hex(&format!(
        "020000000002 020000000001 0800 4500001e 00010000 40110000 0a0000{from:02x} 0a0000{to:02x} \
         {ports} 000a 0000 6869"
    ))
}

/// Returns the lines for these blocks, and the report.
fn accounts(given: &[(&str, &str)], blocks: &[Block<'_>]) -> (Vec<Value>, Vec<(String, u64)>) {
    let dir = TempDir::new();
    let path = dir.path("flows");
    let given: Vec<_> = given.iter().copied().chain([("file", path.as_str())]).collect();
    let given = checked_arguments(&ACCOUNT, &given);
    let mut sink = open(&sink_opening(&given, &[])).unwrap();
    for part in blocks.chunks(64) {
        sink.consume(&batch_of(part), 0).unwrap();
    }
    let rows = sink.finish().unwrap().rows;
    assert_eq!(sink.amount_written().unwrap().blocks, blocks.len() as u64);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), rows)
}

fn at<'b>(bytes: &'b [u8], seconds: u64) -> Block<'b> {
    let mut block = frame_block(bytes);
    block.context.time = TEST_TIME + seconds * SECOND;
    block
}

#[test]
fn h15_account_has_both_directions_of_a_flow() {
    let (there, back) = (datagram(1, 2), datagram(2, 1));
    let blocks = [at(&there, 0), at(&back, 1), at(&back, 2), at(&there, 4)];
    let (lines, rows) = accounts(&[], &blocks);
    let expected = json!({
        "version": 1, "start": "2009-02-13T23:31:30.123456789Z",
        "end": "2009-02-13T23:31:34.123456789Z", "why": "stop", "network": "ipv4",
        "src": "10.0.0.1", "dst": "10.0.0.2", "proto": "udp", "src_port": 1000, "dst_port": 53,
        "blocks": 2, "bytes": 88, "wire_bytes": 88,
        "blocks_back": 2, "bytes_back": 88, "wire_bytes_back": 88,
    });
    assert_eq!(lines, [expected]);
    assert_eq!(rows, [("flows".to_owned(), 1)]);
}

#[test]
fn h15_idle_flow_is_written_and_begins_anew() {
    let (one, other) = (datagram(1, 2), datagram(3, 4));
    let blocks = [at(&one, 0), at(&other, 9), at(&one, 9), at(&other, 20), at(&one, 30)];
    let (lines, _) = accounts(&[("idle", "10s")], &blocks);
    let of = |line: &Value| (line["src"].clone(), line["why"].clone(), line["blocks"].clone());
    let lines: Vec<_> = lines.iter().map(of).collect();
    let line = |source: &str, why: &str, blocks: u64| (json!(source), json!(why), json!(blocks));
    assert_eq!(
        lines,
        [
            line("10.0.0.1", "idle", 2),
            line("10.0.0.3", "idle", 1),
            line("10.0.0.3", "idle", 1),
            line("10.0.0.1", "stop", 1),
        ]
    );
}

#[test]
fn h15_session_is_written_at_its_end() {
    let frame = datagram(2, 1);
    let block = |seconds, session, flags| {
        let mut block = at(&frame, seconds).narrow(42, 2);
        (block.context.session, block.context.flags) = (session, flags);
        block
    };
    let blocks = [
        block(0, 7, Flags::BACKWARD),
        block(1, 8, Flags::NONE),
        block(2, 7, Flags::END),
        block(3, 7, Flags::BACKWARD.with(Flags::END)),
        block(4, 7, Flags::NONE),
    ];
    let (lines, _) = accounts(&[], &blocks);
    let ended = &lines[0];
    assert_eq!((&ended["session"], &ended["why"]), (&json!(7), &json!("end")));
    // The session began with a block from its server.
    assert_eq!((&ended["src"], &ended["dst"]), (&json!("10.0.0.1"), &json!("10.0.0.2")));
    assert_eq!((&ended["blocks"], &ended["bytes"]), (&json!(1), &json!(2)));
    assert_eq!((&ended["blocks_back"], &ended["bytes_back"]), (&json!(2), &json!(4)));
    assert_eq!(lines.len(), 3);
    assert!(lines[1..].iter().all(|line| line["why"] == "stop"));
}

#[test]
fn h15_full_table_cuts_the_longest_idle_flow_short() {
    let frames: Vec<_> = (1..=200).map(|host| datagram(host, 250)).collect();
    // The first flow has a block after each other one, and is never idle the longest.
    let pairs = frames.iter().skip(1).flat_map(|frame| [frame, &frames[0]]);
    let frames: Vec<_> = std::iter::once(&frames[0]).chain(pairs).collect();
    let blocks: Vec<_> = (0..).zip(&frames).map(|(second, frame)| at(frame, second)).collect();
    let (lines, rows) = accounts(&[("flows", "10"), ("idle", "1h")], &blocks);
    assert_eq!(rows[0], ("flows".to_owned(), 200));
    assert_eq!(rows[1], ("flows cut short: the table was full".to_owned(), 190));
    let full = lines.iter().filter(|line| line["why"] == "full").count();
    assert_eq!((lines.len(), full), (200, 190));
    let first: Vec<_> = lines.iter().filter(|line| line["src"] == "10.0.0.1").collect();
    assert_eq!(first.len(), 1);
    assert_eq!((&first[0]["blocks"], &first[0]["why"]), (&json!(200), &json!("stop")));
    let total: u64 = lines.iter().map(|line| line["blocks"].as_u64().unwrap()).sum();
    assert_eq!(total, blocks.len() as u64, "each block is in one line");
}

#[test]
fn h15_blocks_without_a_flow_are_counted() {
    let (lines, rows) = accounts(&[], &[bare_block(b"a line"), bare_block(b"another")]);
    assert!(lines.is_empty());
    assert_eq!(rows[1], ("blocks without addresses and session".to_owned(), 2));
}
