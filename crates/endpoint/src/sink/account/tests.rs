//! Tests of the accounts of flows.

use super::*;
use crate::testing::{
    TEST_TIME, TempDir, batch_from_blocks, checked_arguments, decode_hex, description_block,
    description_record, frame_block, frameless_block, hole_block, sink_opening,
};
use filter::Form;
use serde_json::{Value, json};
use wire::record::{Field, RecordKind};

const SECOND: u64 = 1_000_000_000;

/// Returns a UDP frame of 44 bytes from 10.0.0.`from` to 10.0.0.`to`. The lower address has port
/// 1000, and the higher one port 53.
fn datagram(from: u8, to: u8) -> Vec<u8> {
    let ports = if from < to { "03e8 0035" } else { "0035 03e8" };
    decode_hex(&format!(
        "020000000002 020000000001 0800 4500001e 00010000 40110000 0a0000{from:02x} 0a0000{to:02x} \
         {ports} 000a 0000 6869"
    ))
}

/// Returns the lines that `account` writes for these blocks, and its report.
fn account_lines_of_frames(
    given: &[(&str, &str)],
    blocks: &[Block<'_>],
) -> (Vec<Value>, Vec<(String, u64)>) {
    account_lines_and_report(Form::Frame, given, blocks)
}

/// Returns the lines that `account` writes for these blocks of the form `form`, and its report.
fn account_lines_and_report(
    form: Form,
    given: &[(&str, &str)],
    blocks: &[Block<'_>],
) -> (Vec<Value>, Vec<(String, u64)>) {
    let dir = TempDir::new();
    let path = dir.path("flows");
    let given: Vec<_> = given.iter().copied().chain([("file", path.as_str())]).collect();
    let given = checked_arguments(&ACCOUNT, &given);
    let mut sink = open(&OpenArguments { form, ..sink_opening(&given, &[]) }).unwrap();
    for part in blocks.chunks(64) {
        sink.consume(&batch_from_blocks(part), 0).unwrap();
    }
    let rows = sink.finish().unwrap().rows;
    assert_eq!(sink.amount_written().unwrap().blocks, blocks.len() as u64);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), rows)
}

fn block_at<'b>(bytes: &'b [u8], seconds: u64) -> Block<'b> {
    let mut block = frame_block(bytes);
    block.context.time = TEST_TIME + seconds * SECOND;
    block
}

#[test]
fn h15_account_has_both_directions_of_a_flow() {
    let (there, back) = (datagram(1, 2), datagram(2, 1));
    let blocks = [block_at(&there, 0), block_at(&back, 1), block_at(&back, 2), block_at(&there, 4)];
    let (lines, rows) = account_lines_of_frames(&[], &blocks);
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
fn h15_idle_flow_is_written_and_starts_again() {
    let (one, other) = (datagram(1, 2), datagram(3, 4));
    let blocks = [
        block_at(&one, 0),
        block_at(&other, 9),
        block_at(&one, 9),
        block_at(&other, 20),
        block_at(&one, 30),
    ];
    let (lines, _) = account_lines_of_frames(&[("idle", "10s")], &blocks);
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

/// A flow that was examined while it was not idle comes before flows with later blocks.
#[test]
fn h15_idle_flow_does_not_wait_behind_another() {
    let (one, other) = (datagram(1, 2), datagram(3, 4));
    let blocks = [
        block_at(&one, 0),
        block_at(&one, 5),
        block_at(&other, 9),
        block_at(&other, 10),
        block_at(&one, 16),
        block_at(&other, 18),
    ];
    let (lines, _) = account_lines_of_frames(&[("idle", "10s")], &blocks);
    let of = |line: &Value| ["src", "why", "blocks"].map(|key| line[key].clone());
    let lines: Vec<_> = lines.iter().map(of).collect();
    let expected =
        json!([["10.0.0.1", "idle", 2], ["10.0.0.3", "stop", 3], ["10.0.0.1", "stop", 1]]);
    assert_eq!(json!(lines), expected);
}

#[test]
fn h15_captures_of_different_days_have_their_own_clocks() {
    let (one, other) = (datagram(1, 2), datagram(3, 4));
    let of = |bytes, seconds, origin| {
        let mut block = block_at(bytes, seconds);
        block.context.origin = origin;
        block
    };
    let blocks = [of(&one, 0, 0), of(&other, 86_400, 1), of(&one, 1, 0), of(&other, 86_401, 1)];
    let (lines, _) = account_lines_of_frames(&[("idle", "10s")], &blocks);
    let of = |line: &Value| (line["why"].clone(), line["blocks"].clone());
    let lines: Vec<_> = lines.iter().map(of).collect();
    assert_eq!(lines, [(json!("stop"), json!(2)), (json!("stop"), json!(2))]);
}

#[test]
fn h15_session_is_written_at_its_end() {
    let frame = datagram(2, 1);
    let block = |seconds, session, flags| {
        let mut block = block_at(&frame, seconds).narrow(42, 2);
        (block.context.session, block.context.flags) = (session, flags);
        block
    };
    let blocks = [
        block(0, 7, BlockFlags::BACKWARD),
        block(1, 8, BlockFlags::NONE),
        block(2, 7, BlockFlags::SESSION_END),
        block(3, 7, BlockFlags::BACKWARD.with(BlockFlags::SESSION_END)),
        block(4, 7, BlockFlags::NONE),
    ];
    let (lines, _) = account_lines_of_frames(&[], &blocks);
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
fn h15_full_table_evicts_the_longest_idle_flow() {
    let frames: Vec<_> = (1..=200).map(|host| datagram(host, 250)).collect();
    // A block of the first flow follows each block of another flow, so the first flow is never the
    // flow with the longest idle time.
    let pairs = frames.iter().skip(1).flat_map(|frame| [frame, &frames[0]]);
    let frames: Vec<_> = std::iter::once(&frames[0]).chain(pairs).collect();
    let blocks: Vec<_> =
        (0..).zip(&frames).map(|(second, frame)| block_at(frame, second)).collect();
    let (lines, rows) = account_lines_of_frames(&[("flows", "10"), ("idle", "1h")], &blocks);
    assert_eq!(rows[0], ("flows".to_owned(), 200));
    assert_eq!(rows[1], ("flows cut short: the table was full".to_owned(), 190));
    let full = lines.iter().filter(|line| line["why"] == "full").count();
    assert_eq!((lines.len(), full), (200, 190));
    let first: Vec<_> = lines.iter().filter(|line| line["src"] == "10.0.0.1").collect();
    assert_eq!(first.len(), 1);
    assert_eq!((&first[0]["blocks"], &first[0]["why"]), (&json!(200), &json!("stop")));
    let total: u64 = lines.iter().map(|line| line["blocks"].as_u64().unwrap()).sum();
    assert_eq!(total, blocks.len() as u64, "each block is counted in one line");
}

#[test]
fn h15_blocks_without_a_flow_are_counted() {
    let (lines, rows) =
        account_lines_of_frames(&[], &[frameless_block(b"a line"), frameless_block(b"another")]);
    assert!(lines.is_empty());
    assert_eq!(rows[1], ("blocks without addresses and session".to_owned(), 2));
}

/// Returns the block with this session and these flags, which include the direction.
fn in_session<'b>(mut block: Block<'b>, session: u32, flags: BlockFlags) -> Block<'b> {
    (block.context.session, block.context.flags) = (session, flags);
    block
}

#[test]
fn h15_account_of_described_messages_has_endpoints() {
    let answer = |session: u32| {
        description_record(RecordKind::Dns, |writer| {
            writer.add_text(Field::Client, &[10, 0, 0, 1]);
            writer.add_number(Field::ClientPort, 1000 + u64::from(session));
            writer.add_text(Field::Server, &[10, 0, 0, 2]);
            writer.add_number(Field::ServerPort, 53);
            writer.add_number(Field::Answer, 1);
        })
    };
    let (one, other, frame) = (answer(0), answer(1), datagram(2, 1));
    let blocks = [
        // The first block is a response, so its direction is forward.
        in_session(description_block(&one), 1, BlockFlags::FIRST),
        in_session(block_at(&frame, 0).narrow(42, 2), 1, BlockFlags::LAST),
        // This session consists of a description only, in the other direction.
        in_session(description_block(&other), 2, BlockFlags::FIRST.with(BlockFlags::BACKWARD)),
    ];
    let (lines, _) = account_lines_and_report(Form::Message, &[], &blocks);
    let ends = |line: &Value| {
        ["network", "src", "src_port", "dst", "dst_port", "proto"].map(|key| line[key].clone())
    };
    let first = json!(["ipv4", "10.0.0.2", 53, "10.0.0.1", 1000, "udp"]);
    assert_eq!(json!(ends(&lines[0])), first);
    let second = json!(["ipv4", "10.0.0.1", 1001, "10.0.0.2", 53, null]);
    assert_eq!(json!(ends(&lines[1])), second);
}

#[test]
fn h15_frame_with_several_views_is_counted_once() {
    let (one, two) = (datagram(1, 2), datagram(1, 2));
    let place = |mut block: Block<'static>, at: u32| {
        block.pointer = abi::RichPointer::new(
            abi::DbufId::new(1).unwrap(),
            abi::Extent::new(at.into(), 44),
            abi::Class::YES,
        );
        in_session(block, 1, BlockFlags::NONE)
    };
    let (one, two) = (place(frame_block(one.leak()), 4096), place(frame_block(two.leak()), 8192));
    let mut again = one;
    again.context.time += SECOND;
    let blocks = [one.narrow(42, 1), two.narrow(42, 2), one.narrow(43, 1), again.narrow(42, 2)];
    let (lines, _) = account_lines_and_report(Form::Stream, &[], &blocks);
    assert_eq!((&lines[0]["bytes"], &lines[0]["wire_bytes"]), (&json!(6), &json!(3 * 44)));
    let (lines, _) = account_lines_of_frames(&[], &[one, one]);
    assert_eq!(lines[0]["wire_bytes"], 88, "a copy for each branch counts as a separate frame");
}

#[test]
fn h15_lost_bytes_are_not_counted() {
    let frame = datagram(1, 2);
    let blocks = [
        in_session(block_at(&frame, 0).narrow(42, 2), 1, BlockFlags::FIRST),
        in_session(hole_block(1000), 1, BlockFlags::NONE),
        in_session(hole_block(0), 1, BlockFlags::SESSION_END),
    ];
    let (lines, _) = account_lines_and_report(Form::Stream, &[], &blocks);
    assert_eq!((&lines[0]["blocks"], &lines[0]["bytes"]), (&json!(2), &json!(2)));
}

#[test]
fn h15_end_mark_after_its_flow_opens_no_flow() {
    let (frame, other) = (datagram(1, 2), datagram(3, 4));
    let end = |seconds, flags| {
        let mut block = in_session(hole_block(0), 1, BlockFlags::SESSION_END.with(flags));
        block.context.time = TEST_TIME + seconds * SECOND;
        block
    };
    let data = in_session(block_at(&frame, 0).narrow(42, 2), 1, BlockFlags::FIRST);
    let later = in_session(block_at(&other, 20).narrow(42, 2), 2, BlockFlags::FIRST);
    // The end marks have the time of the last segment or a later time.
    for seconds in [0, 600] {
        let blocks =
            [data, later, end(seconds, BlockFlags::NONE), end(seconds, BlockFlags::BACKWARD)];
        let (lines, rows) = account_lines_and_report(Form::Stream, &[("idle", "10s")], &blocks);
        let of = |line: &Value| ["session", "src", "blocks"].map(|key| line[key].clone());
        let lines: Vec<_> = lines.iter().map(of).collect();
        assert_eq!(json!(lines), json!([[1, "10.0.0.1", 1], [2, "10.0.0.3", 1]]), "{seconds}");
        assert_eq!(rows, [("flows".to_owned(), 2)]);
    }
}

/// `tcp` may emit a hole of a flow that `account` has already written because the flow was idle.
/// The hole opens no new flow, because it has no headers from which a flow could be determined.
#[test]
fn h15_gap_after_its_flow_opens_no_flow() {
    let (frame, other) = (datagram(1, 2), datagram(3, 4));
    let mut gap = in_session(hole_block(1000), 1, BlockFlags::NONE);
    gap.context.time = TEST_TIME + 30 * SECOND;
    let data = in_session(block_at(&frame, 0).narrow(42, 2), 1, BlockFlags::FIRST);
    let later = in_session(block_at(&other, 20).narrow(42, 2), 2, BlockFlags::FIRST);
    let (lines, _) =
        account_lines_and_report(Form::Stream, &[("idle", "10s")], &[data, later, gap]);
    let sources: Vec<_> = lines.iter().map(|line| line["src"].clone()).collect();
    assert_eq!(json!(sources), json!(["10.0.0.1", "10.0.0.3"]));
}
