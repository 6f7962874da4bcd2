//! Tests of requests on generated captures in which a hostile peer tries to evade the analysis.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use serde_json::Value;
use testkit::traffic::ConnectionScript;
use testkit::traffic::Side::{Client, Server};

const GET_REQUEST: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const OK_RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const RESPONSE_WITHOUT_CONTENT_LENGTH: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n to the end";
/// TCP-MD5 option with an invalid digest.
const TCP_MD5_OPTION: [u8; 18] = [19, 18, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// Runs a request on the capture of a connection, and asserts that its ledger balances. Returns the
/// output lines and the report.
fn run_over_connection(
    folder: &Folder,
    script: &ConnectionScript,
    rest: &str,
) -> (Vec<String>, Value) {
    std::fs::write(folder.path().join("c.pcap"), script.clone().into_capture().to_pcap()).unwrap();
    let line = format!("replay c.pcap | tcp {rest}");
    let words = ["run", "--json", "--report=report", &line];
    let ran = CommandResult::from(folder.streamline_command(&words).output().unwrap());
    assert_eq!(ran.status, Some(0), "{line}: {}", ran.err);
    let report: Value = serde_json::from_str(&folder.read("report")).unwrap();
    assert_eq!(report["balanced"], true);
    std::fs::remove_file(folder.path().join("report")).unwrap();
    (ran.out.lines().map(str::to_owned).collect(), report)
}

fn run_and_parse_json_objects(
    folder: &Folder,
    script: &ConnectionScript,
    rest: &str,
) -> Vec<Value> {
    let (lines, _) = run_over_connection(folder, script, rest);
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns a counter of a filter in a report.
fn filter_counter(report: &Value, filter: &str, name: &str) -> u64 {
    let filters = report["filters"].as_array().unwrap();
    let found = filters.iter().find(|found| found["filter"] == filter || found["name"] == filter);
    let found = found.unwrap_or_else(|| panic!("{filter} in {report}"));
    found["counters"][name].as_u64().unwrap_or_else(|| panic!("{name} in {found}"))
}

#[test]
fn folded_header_line_smuggles_no_request() {
    let folder = Folder::new();
    let hidden = "GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n";
    for (fields, body, urls) in [
        (format!("Foo: bar\r\n Content-Length: {}\r\n", hidden.len()), "", ["/post", "/hidden"]),
        ("Foo: bar\r\n\tTransfer-Encoding: chunked\r\n".to_owned(), "", ["/post", "/hidden"]),
        (" Content-Length: 38\r\nFoo: bar\r\n".to_owned(), "", ["/post", "/hidden"]),
        (
            "Foo: bar\r\n Content-Length: 2\r\nContent-Length: 5\r\n".to_owned(),
            "12345",
            ["/post", "/hidden"],
        ),
    ] {
        let text = format!("POST /post HTTP/1.1\r\nHost: h\r\n{fields}\r\n{body}{hidden}");
        let whole = ConnectionScript::with_handshake().send_data(Client, text.as_bytes());
        let (one, other) = text.as_bytes().split_at(text.find("Foo").unwrap() + 6);
        let cut =
            ConnectionScript::with_handshake().send_data(Client, one).send_data(Client, other);
        for script in [whole, cut] {
            let script = script.close_direction(Client).close_direction(Server);
            let requests = run_and_parse_json_objects(&folder, &script, "| http |request json");
            let found: Vec<&str> = requests.iter().map(|r| r["url"].as_str().unwrap()).collect();
            assert_eq!(found, urls, "{fields:?}");
        }
    }
}

#[test]
fn reset_ignored_by_the_receiver_hides_nothing() {
    let folder = Folder::new();
    let begun = || {
        ConnectionScript::with_handshake()
            .send_data(Client, GET_REQUEST)
            .send_data(Server, OK_RESPONSE)
    };
    let goes_on = |script: ConnectionScript| {
        script
            .send_data(Client, GET_REQUEST)
            .send_data(Server, OK_RESPONSE)
            .close_direction(Client)
            .close_direction(Server)
    };
    let log = "| http |exchange weblog";
    for (resets, counter) in [
        (begun().send_reset(Client, &TCP_MD5_OPTION), "resets ignored"),
        (begun().send_reset(Server, &TCP_MD5_OPTION).advance_clock(30_000), "resets ignored"),
        (begun().send_reset(Client, &[]), "resets taken back"),
        (begun().send_reset(Server, &[]).send_reset(Client, &[]), "resets taken back"),
        (begun().send_reset(Client, &[]).advance_clock(5_000), "resets taken back"),
    ] {
        let (lines, report) = run_over_connection(&folder, &goes_on(resets), log);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines.iter().all(|line| line.contains("\"GET /a HTTP/1.1\" 200 ")), "{lines:?}");
        assert_eq!(filter_counter(&report, "tcp", counter), 1, "{counter}");
    }
}

#[test]
fn stray_bytes_after_a_post_do_not_hide_its_response() {
    let folder = Folder::new();
    let post = b"POST /form HTTP/1.1\r\nHost: h\r\n\r\n";
    for stray in [&b"name=value"[..], b"name=value\r\n", b"\x00\n\x01\n", b"a b c\r\n\r\n"] {
        for script in [
            ConnectionScript::with_handshake().send_data(Client, post).send_data(Client, stray),
            ConnectionScript::with_handshake().send_data(Client, &[post, stray].concat()),
        ] {
            let script = script
                .send_data(Server, OK_RESPONSE)
                .close_direction(Server)
                .close_direction(Client);
            let (lines, _) = run_over_connection(&folder, &script, "| http |exchange weblog");
            assert_eq!(lines.len(), 1, "{stray:?}: {lines:?}");
            assert!(lines[0].contains("\"POST /form HTTP/1.1\" 200 "), "{stray:?}: {lines:?}");
        }
    }
}

#[test]
fn only_a_fin_completes_a_body_without_length() {
    let folder = Folder::new();
    let open = || {
        ConnectionScript::with_handshake()
            .send_data(Client, GET_REQUEST)
            .send_data(Server, RESPONSE_WITHOUT_CONTENT_LENGTH)
    };
    for (number, (script, complete)) in [
        (open().close_direction(Server).close_direction(Client), true),
        (open().close_direction(Server), true),
        (open().send_reset(Server, &[]), false),
        (open().send_reset(Client, &[]).advance_clock(3_000), false),
        (open(), false),
    ]
    .into_iter()
    .enumerate()
    {
        for (rest, part) in [("| http emit=body |response files", "b"), ("| files", "s")] {
            let name = format!("{part}{number}");
            run_over_connection(&folder, &script, &format!("{rest} {name}"));
            let index = folder.read(&format!("{name}/index.jsonl"));
            let lines: Vec<Value> =
                index.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let server = lines.iter().filter(|line| line["direction"] != "forward");
            let found: Vec<bool> = server.map(|line| line["complete"] == true).collect();
            assert_eq!(found, [complete], "{name}: {index}");
        }
        let exchanges = run_and_parse_json_objects(&folder, &script, "| http |exchange json");
        assert_eq!(exchanges[0]["incomplete"].is_null(), complete, "{exchanges:?}");
    }
}

#[test]
fn truncated_http_head_is_reported() {
    let folder = Folder::new();
    let script = ConnectionScript::with_handshake()
        .send_data(Client, &GET_REQUEST[..GET_REQUEST.len() - 2])
        .close_direction(Client)
        .close_direction(Server);
    let requests = run_and_parse_json_objects(&folder, &script, "| http |request json");
    assert_eq!(requests.len(), 1);
    assert_eq!((&requests[0]["url"], &requests[0]["host"]), (&"/a".into(), &"h".into()));
    assert_eq!(requests[0]["incomplete"], true);
}
