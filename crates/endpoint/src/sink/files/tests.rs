//! Tests of the files and index lines that `files` writes.

use super::*;
use crate::sink::file_set::INDEX_FILE_NAME;
use crate::testing::{
    TEST_TIME, TempDir, batch_from_blocks, checked_arguments, decode_hex, description_block,
    description_record, expect_failure, frame_block, frameless_block, hole_block, sink_opening,
};
use abi::Marks;
use serde_json::{Value, json};
use std::fs;
use wire::record::{self, Field};

/// Returns a `files` sink on `dir` with these arguments, for blocks of this form.
fn files_sink(dir: &str, given: &[(&str, &str)], form: Form) -> FilesSink {
    let given: Vec<_> = [("dir", dir)].iter().chain(given).copied().collect();
    let given = checked_arguments(&FILES, &given);
    FilesSink::new(&OpenArguments { form, ..sink_opening(&given, &[]) }).unwrap()
}

/// Returns a block of a session with these flags and bytes.
fn session_block(session: u32, flags: u16, bytes: &[u8]) -> Block<'_> {
    let mut block = frameless_block(bytes);
    block.context.session = session;
    block.context.flags = BlockFlags(flags);
    block
}

const FIRST_FLAG: u16 = BlockFlags::FIRST.0;
const LAST_FLAG: u16 = BlockFlags::LAST.0;
const BACKWARD_FLAG: u16 = BlockFlags::BACKWARD.0;
const END_FLAG: u16 = BlockFlags::SESSION_END.0;

/// Returns the names and contents of all files in a directory except the index.
fn file_contents(dir: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .filter(|(name, _)| name != INDEX_FILE_NAME)
        .map(|(name, path)| (name, fs::read_to_string(path).unwrap()))
        .collect();
    found.sort();
    found
}

fn index_lines(dir: &str) -> Vec<Value> {
    let text = fs::read_to_string(format!("{dir}/{INDEX_FILE_NAME}")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the contents of all files in the order of their numbers, without their names.
fn file_texts(dir: &str) -> Vec<String> {
    file_contents(dir).into_iter().map(|(_, text)| text).collect()
}

fn index_column(dir: &str, name: &str) -> Vec<Value> {
    index_lines(dir).iter().map(|line| line[name].clone()).collect()
}

#[test]
fn h10_each_direction_of_a_session_has_its_own_file() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[], Form::Stream);
    let mut later = session_block(7, 0, b"c");
    later.context.time = TEST_TIME + 5;
    let (first, alone) = (session_block(7, FIRST_FLAG, b"a"), session_block(0, FIRST_FLAG, b"x"));
    let blocks = [
        first,
        session_block(7, BACKWARD_FLAG, b"b"),
        later,
        alone,
        session_block(7, END_FLAG, b"d"),
    ];
    files.consume(&batch_from_blocks(&blocks), 0).unwrap();
    let rows = files.finish().unwrap().rows;
    let expected = [("files", 3), ("blocks", 5), ("bytes", 5)].map(|(n, v)| (n.to_owned(), v));
    assert_eq!(rows, expected);
    assert_eq!(file_texts(&out), ["acd", "b", "x"]);
    assert_eq!(files.amount_written(), Some(Amount { blocks: 5, bytes: 5 }));
    let time = "2009-02-13T23:31:30.123456789Z";
    let line = |file: &str, blocks: u64, complete: bool, sha256: &str| {
        json!({
            "version": 1, "file": file, "first": time, "last": time, "blocks": blocks,
            "bytes": blocks, "complete": complete, "sha256": sha256,
        })
    };
    let x = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
    let acd = "b647eb1fbb0e2e29c14dbe1d3ed6d706eb5ae292e01eab9f1c52e003a9e08a02";
    let b = "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d";
    let mut expected =
        [line("000003", 1, true, x), line("000001", 3, true, acd), line("000002", 1, false, b)];
    for (line, direction) in expected[1..].iter_mut().zip(["forward", "backward"]) {
        line["session"] = json!(7);
        line["direction"] = json!(direction);
    }
    expected[1]["last"] = json!("2009-02-13T23:31:30.123456794Z");
    assert_eq!(index_lines(&out), expected);
}

#[test]
fn fragments_without_a_session_share_a_file_until_the_last() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[], Form::Bytes);
    let blocks = [
        session_block(0, FIRST_FLAG, b"a"),
        session_block(0, 0, b"b"),
        session_block(0, LAST_FLAG, b"c"),
        session_block(0, FIRST_FLAG | LAST_FLAG, b"d"),
        session_block(0, 0, b"e"),
        session_block(0, FIRST_FLAG, b"f"),
        session_block(0, 0, b"g"),
    ];
    files.consume(&batch_from_blocks(&blocks), 0).unwrap();
    files.finish().unwrap();
    assert_eq!(file_texts(&out), ["abc", "d", "e", "fg"]);
}

#[test]
fn per_parameter_selects_unit_of_files() {
    let blocks = [
        session_block(1, FIRST_FLAG, b"a"),
        session_block(1, BACKWARD_FLAG | FIRST_FLAG | LAST_FLAG, b"b"),
        session_block(2, FIRST_FLAG | LAST_FLAG, b"c"),
        session_block(1, LAST_FLAG, b"d"),
        session_block(1, FIRST_FLAG, b"e"),
    ];
    for (per, form, expected, complete) in [
        ("auto", Form::Stream, vec!["ade", "b", "c"], vec![false; 3]),
        ("connection", Form::Stream, vec!["abde", "c"], vec![false; 2]),
        ("block", Form::Stream, vec!["a", "b", "c", "d", "e"], vec![true; 5]),
        ("auto", Form::Message, vec!["ad", "b", "c", "e"], vec![true, true, true, false]),
        ("message", Form::Stream, vec!["ad", "b", "c", "e"], vec![true, true, true, false]),
        ("session", Form::Message, vec!["ade", "b", "c"], vec![false; 3]),
    ] {
        let dir = TempDir::new();
        let out = dir.path("out");
        let mut files = files_sink(&out, &[("per", per)], form);
        files.consume(&batch_from_blocks(&blocks), 0).unwrap();
        files.finish().unwrap();
        assert_eq!(file_texts(&out), expected, "{per}");
        assert_eq!(index_column(&out, "complete"), complete, "{per}");
    }
}

#[test]
fn stream_without_beginning_is_incomplete_beside_segments() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let given = checked_arguments(&FILES, &[("dir", &out)]);
    let opening = sink_opening(&given, &[]);
    let other_forms = &[Form::Stream];
    let mut files =
        FilesSink::new(&OpenArguments { form: Form::Segment, other_forms, ..opening }).unwrap();
    let blocks =
        [session_block(1, END_FLAG, b"late"), session_block(2, FIRST_FLAG | END_FLAG, b"x")];
    files.consume(&batch_from_blocks(&blocks), 0).unwrap();
    files.finish().unwrap();
    assert_eq!(index_column(&out, "complete"), [false, true]);
}

#[test]
fn message_without_beginning_is_incomplete() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[], Form::Message);
    let blocks = [
        session_block(1, LAST_FLAG, b"tail"),
        session_block(1, FIRST_FLAG, b"one"),
        session_block(1, FIRST_FLAG | LAST_FLAG, b"two"),
    ];
    files.consume(&batch_from_blocks(&blocks), 0).unwrap();
    files.finish().unwrap();
    assert_eq!(file_texts(&out), ["tail", "one", "two"]);
    assert_eq!(index_column(&out, "complete"), [false, false, true]);
}

#[test]
fn file_names_and_index_contain_addresses() {
    let dir = TempDir::new();
    let out = dir.path("out/");
    let bytes = decode_hex(
        "020000000002 020000000001 86dd 60000000 000a 11 40
                     fe800000000000000000000000000001 20010db8000000000000000000000002
                     0035 0400 000a 0000 6869",
    );
    let mut files = files_sink(&out, &[], Form::Segment);
    files.consume(&batch_from_blocks(&[frame_block(&bytes).narrow(62, 2)]), 0).unwrap();
    files.finish().unwrap();
    let name = "000001-fe80__1.53-2001_db8__2.1024";
    assert_eq!(file_contents(&out), [(name.to_owned(), "hi".to_owned())]);
    let line = &index_lines(&out)[0];
    assert_eq!((&line["file"], &line["src"]), (&json!(name), &json!("fe80::1")));
    assert_eq!((&line["proto"], &line["dst_port"]), (&json!("udp"), &json!(1024)));
}

/// Returns the description record of an HTTP request.
fn request_record() -> Vec<u8> {
    description_record(record::RecordKind::HttpRequest, |writer| {
        writer.add_number(Field::Time, TEST_TIME - 1);
        writer.add_text(Field::Client, &[10, 0, 0, 1]);
        writer.add_number(Field::ClientPort, 1234);
        writer.add_text(Field::Server, &[10, 0, 0, 2]);
        writer.add_number(Field::ServerPort, 80);
        writer.add_text(Field::Method, b"POST");
        writer.add_text(Field::Url, b"/../../etc/passwd");
        writer.add_number(Field::ContentLength, 9);
    })
}

/// Returns the block with session 1 and these flags.
fn with_session_and_flags(block: Block<'_>, flags: u16) -> Block<'_> {
    let mut block = block;
    (block.context.session, block.context.flags) = (1, BlockFlags(flags));
    block
}

#[test]
fn index_contains_message_descriptions() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[], Form::Message);
    let request = request_record();
    let first = with_session_and_flags(description_block(&request), FIRST_FLAG);
    let blocks = [
        first,
        session_block(1, FIRST_FLAG, b"one"),
        with_session_and_flags(description_block(&request), FIRST_FLAG | LAST_FLAG | BACKWARD_FLAG),
        session_block(1, LAST_FLAG, b"two"),
        first,
        with_session_and_flags(hole_block(0), LAST_FLAG),
        with_session_and_flags(description_block(&request), FIRST_FLAG | LAST_FLAG),
    ];
    files.consume(&batch_from_blocks(&blocks), 0).unwrap();
    let rows = files.finish().unwrap().rows;
    let expected = [("files", 1), ("blocks", 7), ("bytes", 6), ("messages", 4)];
    assert_eq!(rows, expected.map(|(name, value)| (name.to_owned(), value)));
    let name = "000001-10.0.0.1.1234-10.0.0.2.80";
    assert_eq!(file_contents(&out), [(name.to_owned(), "onetwo".to_owned())]);
    let lines = index_lines(&out);
    assert_eq!(index_column(&out, "file"), [Value::Null, json!(name), Value::Null, Value::Null]);
    assert_eq!(index_column(&out, "complete"), [true; 4]);
    assert_eq!(index_column(&out, "direction"), ["backward", "forward", "forward", "forward"]);
    let (begin, end) = ("2009-02-13T23:31:30.123456788Z", "2009-02-13T23:31:30.123456789Z");
    let expected = json!({
        "version": 1, "file": name, "first": begin, "last": end, "blocks": 2, "bytes": 6,
        "complete": true, "session": 1, "direction": "forward", "kind": "http_request",
        "sha256": "25b6746d5172ed6352966a013d93ac846e1110d5a25e8f183b5931f4688842a1",
        "client": "10.0.0.1", "client_port": 1234, "server": "10.0.0.2", "server_port": 80,
        "method": "POST", "url": "/../../etc/passwd", "content_length": 9,
    });
    assert_eq!(lines[1], expected);
}

#[test]
fn index_marks_decoded_bodies() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[], Form::Message);
    let (plain, coded) = (
        request_record(),
        description_record(record::RecordKind::HttpResponse, |w| {
            w.add_text(Field::ContentEncoding, b"gzip")
        }),
    );
    let begin = |record| with_session_and_flags(description_block(record), FIRST_FLAG);
    let decoded = BlockFlags::DECODED.0;
    let blocks = [
        begin(&plain),
        session_block(1, LAST_FLAG, b"plain"),
        begin(&coded),
        session_block(1, LAST_FLAG, b"coded"),
        begin(&coded),
        session_block(1, decoded, b"a text "),
        session_block(1, LAST_FLAG | decoded, b"whole"),
        begin(&coded),
        session_block(1, END_FLAG | decoded, b"a text in part"),
    ];
    files.consume(&batch_from_blocks(&blocks), 0).unwrap();
    files.finish().unwrap();
    assert_eq!(file_texts(&out), ["plain", "coded", "a text whole", "a text in part"]);
    assert_eq!(json!(index_column(&out, "decoded")), json!([null, false, true, true]));
    assert_eq!(index_column(&out, "complete"), [true, true, true, false]);
}

#[test]
fn index_marks_message_described_as_incomplete() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[], Form::Message);
    let cut = description_record(record::RecordKind::HttpExchange, |w| {
        w.add_number(Field::Incomplete, 1)
    });
    files
        .consume(
            &batch_from_blocks(&[with_session_and_flags(
                description_block(&cut),
                FIRST_FLAG | LAST_FLAG,
            )]),
            0,
        )
        .unwrap();
    files.finish().unwrap();
    assert_eq!(
        (index_column(&out, "complete"), index_column(&out, "incomplete")),
        (vec![json!(false)], vec![json!(true)])
    );
}

#[test]
fn message_truncated_by_end_of_stream_is_incomplete() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[], Form::Message);
    let request = request_record();
    let first = with_session_and_flags(description_block(&request), FIRST_FLAG);
    files.consume(&batch_from_blocks(&[first, session_block(1, END_FLAG, b"half")]), 0).unwrap();
    assert_eq!(files.file_set.file_counts(), (0, 0));
    files
        .consume(&batch_from_blocks(&[first, session_block(1, LAST_FLAG | END_FLAG, b"whole")]), 0)
        .unwrap();
    files.finish().unwrap();
    assert_eq!(file_texts(&out), ["half", "whole"]);
    assert_eq!(index_column(&out, "complete"), [false, true]);
}

#[test]
fn lost_bytes_are_zero_filled_or_skipped_and_counted() {
    let large = || (0..20).map(|_| hole_block(0xf_ffff));
    for (holes, expected, unfilled) in
        [("zero", "\0\0\0a\0\0b", 20 * 0xf_ffff - 15 * 0xf_ffff), ("skip", "ab", 0)]
    {
        let dir = TempDir::new();
        let out = dir.path("out");
        let mut files = files_sink(&out, &[("holes", holes)], Form::Stream);
        let blocks = [
            hole_block(3),
            frameless_block(b"a"),
            hole_block(2),
            frameless_block(b"b"),
            hole_block(0),
        ]
        .map(|block| with_session_and_flags(block, 0));
        files.consume(&batch_from_blocks(&blocks), 0).unwrap();
        let blocks = [session_block(2, 0, b"x")].into_iter();
        let blocks: Vec<_> = blocks
            .chain(large().map(|mut b| {
                b.context.session = 2;
                b
            }))
            .collect();
        files.consume(&batch_from_blocks(&blocks), 0).unwrap();
        files
            .consume(
                &batch_from_blocks(&[
                    session_block(2, 0, b"y"),
                    with_session_and_flags(hole_block(9), BACKWARD_FLAG | END_FLAG),
                ]),
                0,
            )
            .unwrap();
        let rows = files.finish().unwrap().rows;
        let missing = 5 + 9 + 20 * 0xf_ffff_u64;
        assert_eq!(rows.last(), Some(&("missing bytes".to_owned(), missing)));
        assert_eq!(file_texts(&out)[0], expected);
        assert_eq!(index_column(&out, "missing"), [json!(9), json!(5), json!(20 * 0xf_ffff)]);
        assert_eq!(index_column(&out, "file"), [Value::Null, json!("000001"), json!("000002")]);
        assert_eq!(index_column(&out, "complete"), [false; 3]);
        let reported = index_lines(&out)[2]["unfilled"].as_u64().unwrap_or(0);
        let size = fs::metadata(format!("{out}/000002")).unwrap().len();
        if holes == "zero" {
            assert_eq!((reported, size), (4 * 0xf_ffff, 16 * 0xf_ffff + 2), "16 MiB at most");
        } else {
            assert_eq!((reported, size), (unfilled, 2));
        }
        let digest = sha256(&fs::read(format!("{out}/000002")).unwrap());
        assert_eq!(index_lines(&out)[2]["sha256"], json!(digest));
    }
}

/// Computes the digest with `sha256sum`, independently of this crate.
fn sha256(bytes: &[u8]) -> String {
    use std::io::Write;
    let mut child = std::process::Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let reported = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    reported.split(' ').next().unwrap().to_owned()
}

#[test]
fn connection_file_ends_with_both_directions() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[("per", "connection")], Form::Stream);
    let blocks = [
        session_block(1, FIRST_FLAG, b"ask"),
        with_session_and_flags(hole_block(0), END_FLAG),
        session_block(1, FIRST_FLAG | BACKWARD_FLAG, b"answer"),
        with_session_and_flags(hole_block(0), BACKWARD_FLAG | END_FLAG),
        with_session_and_flags(hole_block(0), END_FLAG),
    ];
    files.consume(&batch_from_blocks(&blocks), 0).unwrap();
    assert_eq!(files.file_set.file_counts(), (0, 0));
    files
        .consume(
            &batch_from_blocks(&[
                session_block(2, FIRST_FLAG, b"half"),
                session_block(3, END_FLAG, b"no beginning"),
            ]),
            0,
        )
        .unwrap();
    let mut alone = session_block(4, FIRST_FLAG | END_FLAG, b"one way");
    alone.marks = Marks::for_plain_block(7);
    files.consume(&batch_from_blocks(&[alone]), 0).unwrap();
    files.finish().unwrap();
    assert_eq!(file_texts(&out), ["askanswer", "half", "no beginning", "one way"]);
    assert_eq!(index_column(&out, "complete"), [true, false, false, true]);
    assert_eq!(index_column(&out, "session"), [1, 2, 3, 4]);
    assert_eq!(index_column(&out, "blocks"), [2, 1, 1, 1], "without the marks of ends");
}

#[test]
fn session_file_counts_its_messages() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[("per", "session")], Form::Message);
    let request = request_record();
    let first = with_session_and_flags(description_block(&request), FIRST_FLAG);
    files
        .consume(
            &batch_from_blocks(&[
                first,
                session_block(1, LAST_FLAG, b"one"),
                first,
                session_block(1, LAST_FLAG, b"two"),
            ]),
            0,
        )
        .unwrap();
    files.finish().unwrap();
    assert_eq!(
        file_contents(&out),
        [("000001-10.0.0.1.1234-10.0.0.2.80".to_owned(), "onetwo".to_owned())]
    );
    let line = &index_lines(&out)[0];
    assert_eq!((&line["messages"], &line["method"]), (&json!(2), &Value::Null));
}

#[test]
fn finished_messages_use_no_file_or_state() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[], Form::Message);
    let request = request_record();
    for _ in 0..500 {
        let message = [
            with_session_and_flags(description_block(&request), FIRST_FLAG),
            session_block(1, LAST_FLAG, b"short"),
        ];
        let blocks: Vec<_> = message.into_iter().cycle().take(40).collect();
        files.consume(&batch_from_blocks(&blocks), 0).unwrap();
        assert_eq!(
            files.file_set.file_counts(),
            (0, 0),
            "an ended message uses no file and no state"
        );
    }
    assert_eq!(files.finish().unwrap().rows[0], ("files".to_owned(), 10_000));
    assert_eq!(index_lines(&out).len(), 10_000);
}

#[test]
fn many_sessions_share_few_open_files() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[("open", "3")], Form::Stream);
    let mut expected = vec![String::new(); 20];
    for round in 0..10_u32 {
        for session in 0..20_u32 {
            let text = format!("{round}:{session} ");
            files
                .consume(&batch_from_blocks(&[session_block(session + 1, 0, text.as_bytes())]), 0)
                .unwrap();
            expected[session as usize] += &text;
            let (_, open) = files.file_set.file_counts();
            assert!(open <= 3, "{open} files are open");
        }
    }
    files.finish().unwrap();
    assert_eq!(file_texts(&out), expected);
    assert_eq!(index_lines(&out).len(), 20);
}

#[test]
fn evicted_session_continues_in_a_new_file() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[("sessions", "2")], Form::Stream);
    let blocks = [
        session_block(1, 0, b"1"),
        session_block(2, 0, b"2"),
        session_block(1, 0, b"1"),
        session_block(3, 0, b"3"),
    ];
    files.consume(&batch_from_blocks(&blocks), 0).unwrap();
    assert_eq!(files.file_set.file_counts().0, 2);
    files.consume(&batch_from_blocks(&[session_block(2, 0, b"more")]), 0).unwrap();
    files.finish().unwrap();
    assert_eq!(file_texts(&out), ["11", "2", "3", "more"]);
    assert_eq!(index_column(&out, "session"), [2, 1, 3, 2]);
}

#[test]
fn memory_for_long_descriptions_is_bounded() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[], Form::Message);
    let long = vec![b'x'; 1 << 20];
    let mut record = request_record();
    record.extend_from_slice(&long);
    for session in 1..=200 {
        let mut first = with_session_and_flags(description_block(&record), FIRST_FLAG);
        first.context.session = session;
        files.consume(&batch_from_blocks(&[first]), 0).unwrap();
    }
    let (kept, _) = files.file_set.file_counts();
    assert!((60..70).contains(&kept), "{kept} descriptions of 1 MiB");
    files.finish().unwrap();
    assert_eq!(index_lines(&out).len(), 200);
}

#[test]
fn second_run_appends_files_and_overwrites_nothing() {
    let dir = TempDir::new();
    let out = dir.path("out");
    for text in ["first", "second"] {
        let mut files = files_sink(&out, &[], Form::Stream);
        files.consume(&batch_from_blocks(&[session_block(1, 0, text.as_bytes())]), 0).unwrap();
        files.finish().unwrap();
    }
    assert_eq!(file_texts(&out), ["first", "second"]);
    assert_eq!(index_column(&out, "file"), ["000001", "000002"]);
}

#[test]
fn replaced_file_is_not_written() {
    let dir = TempDir::new();
    let out = dir.path("out");
    let mut files = files_sink(&out, &[("open", "1")], Form::Stream);
    files
        .consume(&batch_from_blocks(&[session_block(1, 0, b"a"), session_block(2, 0, b"b")]), 0)
        .unwrap();
    fs::write(dir.path("theirs"), "of others").unwrap();
    fs::rename(dir.path("theirs"), format!("{out}/000001")).unwrap();
    let failure =
        expect_failure(files.consume(&batch_from_blocks(&[session_block(1, 0, b"c")]), 0))
            .to_string();
    assert!(failure.ends_with("000001: another process has replaced it"), "{failure}");
    assert_eq!(fs::read_to_string(format!("{out}/000001")).unwrap(), "of others");
    assert_eq!(files.amount_written(), Some(Amount { blocks: 2, bytes: 2 }));
    drop(files);
    assert_eq!(index_lines(&out).len(), 2, "the index lists the files even after a failure");
}

/// A mounted file system of 64 KB, which is unmounted on drop.
struct SmallDisk(String);

impl SmallDisk {
    fn mount(path: String) -> Option<Self> {
        testkit::need::require_root()?;
        fs::create_dir(&path).unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "none", &path])
            .status();
        if mount.is_ok_and(|status| status.success()) {
            return Some(Self(path));
        }
        testkit::need::report_skip("needs to mount a tmpfs")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn full_disk_failure_names_the_file() {
    let dir = TempDir::new();
    let Some(disk) = SmallDisk::mount(dir.path("small")) else { return };
    let mut files = files_sink(&disk.0, &[], Form::Stream);
    let large = vec![b'x'; 40_000];
    let outcome = files.consume(
        &batch_from_blocks(&[session_block(1, 0, &large), session_block(1, 0, &large)]),
        0,
    );
    let failure = expect_failure(outcome).to_string();
    assert!(
        failure.starts_with(&format!("cannot write {}/000001: no space left", disk.0)),
        "{failure}"
    );
    assert_eq!(files.amount_written(), Some(Amount { blocks: 1, bytes: 40_000 }));
}
