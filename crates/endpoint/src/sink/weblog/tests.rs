//! Tests of the log lines that `weblog` writes for HTTP exchanges.

use super::*;
use crate::testing::{
    TEST_TIME, TempDir, batch_from_blocks, checked_arguments, description_block,
    description_record, expect_failure, sink_opening,
};
use filter::Amount;
use serde_json::{Value, json};
use wire::record::{RecordKind, Writer};

/// Returns the output for these blocks, and the rows of the report.
fn log_output(given: &[(&str, &str)], blocks: &[Block<'_>]) -> (String, Vec<(String, u64)>) {
    let dir = TempDir::new();
    let path = dir.path("access.log");
    let given: Vec<_> = given.iter().copied().chain([("file", path.as_str())]).collect();
    let given = checked_arguments(&WEBLOG, &given);
    let mut sink =
        open(&OpenArguments { form: Form::Message, ..sink_opening(&given, &[]) }).unwrap();
    sink.consume(&batch_from_blocks(blocks), 0).unwrap();
    let rows = sink.finish().unwrap().rows;
    assert_eq!(sink.amount_written().unwrap().blocks, blocks.len() as u64);
    (std::fs::read_to_string(path).unwrap(), rows)
}

fn exchange_record(change: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    description_record(RecordKind::HttpExchange, |writer| {
        writer.add_number(Field::Time, TEST_TIME);
        writer.add_number(Field::End, TEST_TIME + 1_000_000_000);
        writer.add_text(Field::Client, &[10, 0, 0, 1]);
        writer.add_number(Field::ClientPort, 1234);
        writer.add_text(Field::Server, &[10, 0, 0, 2]);
        writer.add_number(Field::ServerPort, 80);
        writer.add_text(Field::Method, b"GET");
        change(writer);
    })
}

fn log_line(change: impl FnOnce(&mut Writer<'_>)) -> String {
    let bytes = exchange_record(change);
    let (text, rows) = log_output(&[("zone", "utc")], &[description_block(&bytes)]);
    assert_eq!(rows, [("exchanges".to_owned(), 1)]);
    text
}

#[test]
fn lines_match_those_of_nginx() {
    let full = log_line(|writer| {
        writer.add_text(Field::Url, b"/a?b=\"c\\d\xe2\x82\xac e~\x7f");
        writer.add_text(Field::Version, b"1.1");
        writer.add_text(Field::User, b"frank");
        writer.add_number(Field::Status, 206);
        writer.add_number(Field::ResponseBody, 2326);
        writer.add_text(Field::Referer, b"http://example.com/\r\n127.0.0.1 - - forged");
        writer.add_text(Field::UserAgent, b"Mozilla/5.0 (X11; \x1b[2J)");
    });
    assert_eq!(
        full,
        "10.0.0.1 - frank [13/Feb/2009:23:31:31 +0000] \
         \"GET /a?b=\\x22c\\x5Cd\\xE2\\x82\\xAC e~\\x7F HTTP/1.1\" 206 2326 \
         \"http://example.com/\\x0D\\x0A127.0.0.1 - - forged\" \"Mozilla/5.0 (X11; \\x1B[2J)\"\n"
    );
    let poor = log_line(|writer| {
        writer.add_text(Field::Url, b"/");
        writer.add_text(Field::User, b"");
        writer.add_text(Field::UserAgent, b"");
    });
    let stamp = "[13/Feb/2009:23:31:31 +0000]";
    assert_eq!(poor, format!("10.0.0.1 - - {stamp} \"GET /\" 000 0 \"-\" \"\"\n"));
    let other = log_line(|writer| {
        writer.add_text(Field::Url, b"*");
        writer.add_text(Field::Version, b"HTTP/1.0");
    });
    assert_eq!(other, format!("10.0.0.1 - - {stamp} \"GET * HTTP/1.0\" 000 0 \"-\" \"-\"\n"));
    let nothing = description_record(RecordKind::HttpExchange, |_| {});
    let (text, _) = log_output(&[("zone", "utc")], &[description_block(&nothing)]);
    assert_eq!(text, "- - - [13/Feb/2009:23:31:30 +0000] \"-\" 000 0 \"-\" \"-\"\n");
}

#[test]
fn times_have_the_offset_of_the_zone() {
    let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
    let mut stamp = CachedTime { zone, second: None, text: Vec::new() };
    let mut at = |second: u64| {
        String::from_utf8(stamp.format_time(second * 1_000_000_000).to_vec()).unwrap()
    };
    assert_eq!(at(1_234_567_890), "14/Feb/2009:00:31:30 +0100");
    assert_eq!(at(1_250_000_000), "11/Aug/2009:16:13:20 +0200");
    assert_eq!(at(1_250_000_000), "11/Aug/2009:16:13:20 +0200", "the same second");
    assert_eq!(at(u64::MAX / 1_000_000_000), "22/Jul/2554:01:34:33 +0200", "the last one");
    let zone = TimeZone::posix("NST3:30").unwrap();
    let mut stamp = CachedTime { zone, second: None, text: Vec::new() };
    assert_eq!(stamp.format_time(1_234_567_890_999_999_999), b"13/Feb/2009:20:01:30 -0330");
}

#[test]
fn objects_match_the_ecs_schema() {
    let bytes = exchange_record(|writer| {
        writer.add_text(Field::Url, b"/a/b?c=d?e");
        writer.add_text(Field::Host, b"example.com:8080");
        writer.add_text(Field::Version, b"1.1");
        writer.add_number(Field::Status, 404);
        writer.add_text(Field::UserAgent, b"curl\x00");
        writer.add_number(Field::RequestHead, 100);
        writer.add_number(Field::ResponseHead, 50);
        writer.add_number(Field::ResponseBody, 7);
    });
    let (text, _) =
        log_output(&[("ecs", "yes")], &[description_block(&bytes), description_block(&bytes)]);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (start, end) = ("2009-02-13T23:31:30.123456789Z", "2009-02-13T23:31:31.123456789Z");
    let expected = json!({
        "@timestamp": start,
        "ecs": {"version": "8.11.0"},
        "event": {
            "kind": "event", "category": ["web"], "type": ["access"], "outcome": "failure",
            "start": start, "end": end, "duration": 1_000_000_000,
        },
        "network": {"protocol": "http", "transport": "tcp", "type": "ipv4"},
        "source": {"ip": "10.0.0.1", "port": 1234},
        "destination": {"ip": "10.0.0.2", "port": 80},
        "http": {
            "version": "1.1",
            "request": {"method": "GET", "bytes": 100},
            "response": {"status_code": 404, "bytes": 57, "body": {"bytes": 7}},
        },
        "url": {
            "original": "/a/b?c=d?e", "path": "/a/b", "query": "c=d?e", "domain": "example.com",
            "port": 8080,
        },
        "user_agent": {"original": "curl\u{0}"},
    });
    assert_eq!(lines, [expected.clone(), expected]);
}

#[test]
fn host_is_split_into_domain_and_port() {
    for (host, domain, port) in [
        ("example.com", "example.com", Value::Null),
        ("[::1]:81", "::1", json!(81)),
        ("[::1]", "::1", Value::Null),
        ("example.com:many", "example.com", Value::Null),
    ] {
        let bytes = exchange_record(|writer| writer.add_text(Field::Host, host.as_bytes()));
        let (text, _) = log_output(&[("ecs", "yes")], &[description_block(&bytes)]);
        let value: Value = serde_json::from_str(&text).unwrap();
        let url = &value["url"];
        assert_eq!((&url["domain"], &url["port"]), (&json!(domain), &port), "{host}");
    }
}

#[test]
fn non_exchange_blocks_are_counted_with_remedy() {
    let request = description_record(RecordKind::HttpRequest, |_| {});
    let given = exchange_record(|_| {});
    let (text, rows) =
        log_output(&[], &[description_block(&request), crate::testing::frameless_block(b"body")]);
    let row_name = "blocks that are no exchange; write `http |exchange weblog`";
    assert_eq!(
        (text.as_str(), &*rows),
        ("", &[report_row("exchanges", 0), report_row(row_name, 2)][..])
    );
    let (text, rows) = log_output(&[], &[description_block(&request), description_block(&given)]);
    assert_eq!(text.lines().count(), 1);
    assert_eq!(rows, [report_row("exchanges", 1), report_row("blocks that are no exchange", 1)]);
}

#[test]
fn exchange_with_a_text_that_was_cut_is_counted() {
    let long = exchange_record(|writer| writer.add_text(Field::Url, &[b'u'; 9000]));
    let whole = exchange_record(|writer| writer.add_text(Field::Url, b"/"));
    for ecs in ["no", "yes"] {
        let blocks = [description_block(&long), description_block(&whole)];
        let (text, rows) = log_output(&[("ecs", ecs)], &blocks);
        assert!(text.contains(&"u".repeat(8192)) && !text.contains(&"u".repeat(8193)));
        let cut = report_row("exchanges with a text that was cut", 1);
        assert_eq!(rows, [report_row("exchanges", 2), cut], "ecs={ecs}");
    }
}

fn report_row(name: &str, value: u64) -> (String, u64) {
    (name.to_owned(), value)
}

#[test]
fn full_disk_fails_the_sink() {
    let given = checked_arguments(&WEBLOG, &[("file", "/dev/full")]);
    let mut sink =
        open(&OpenArguments { form: Form::Message, ..sink_opening(&given, &[]) }).unwrap();
    let bytes = exchange_record(|_| {});
    sink.consume(&batch_from_blocks(&[description_block(&bytes)]), 0).unwrap();
    let failure = expect_failure(sink.finish()).to_string();
    assert!(failure.starts_with("cannot write /dev/full: no space left"), "{failure}");
    assert_eq!(sink.amount_written(), Some(Amount::default()));
}
