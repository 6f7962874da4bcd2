//! Tests of `dns` on external captures: its descriptions agree with the output of other tools.
//!
//! zeek's `dns.log` contains a line for each query with its response. suricata's tests count events
//! with certain fields. Exceptions are listed with their reasons.

mod descriptions;

use descriptions::{DescribedMessage, FilterChain, parse_checks};
use filter::Description;
use filter::catalog::find;
use std::fs;
use std::path::{Path, PathBuf};
use wire::record::Field;

/// Suricata tests that are excluded because their DNS messages are in traffic that the tested chain
/// of filters does not process, each with the reason.
const EXCLUDED_TESTS: &[(&str, &str)] = &[
    ("core.tunnels.gre-over-udp", "in a tunnel"),
    ("dns-over-http2", "in HTTP/2"),
    ("dns-over-http2-post", "in HTTP/2"),
];

fn find_filter(name: &str) -> &'static Description {
    find(name).unwrap_or_else(|| panic!("`{name}` is in the catalog"))
}

/// Returns the descriptions of the DNS messages in the datagrams and connections of a capture.
fn dns_messages(path: &Path) -> Vec<DescribedMessage> {
    let mut messages =
        FilterChain::new(&[find_filter("udp"), find_filter("dns")]).describe(path).to_vec();
    messages.extend_from_slice(
        FilterChain::new(&[find_filter("tcp"), find_filter("dns")]).describe(path),
    );
    messages
}

#[test]
fn messages_over_udp_and_tcp_are_described() {
    let fields =
        [Field::Id, Field::Name, Field::Type, Field::RcodeName, Field::Answer, Field::Data];
    let fields_of_messages = |name: &str| -> Vec<[String; 6]> {
        let messages = dns_messages(&testkit::generated::capture_path(&format!("dns/{name}.pcap")));
        messages
            .iter()
            .map(|message| fields.map(|field| message.all_values(field).join(",")))
            .collect()
    };
    assert_eq!(
        fields_of_messages("datagrams"),
        [
            ["1", "www.example.org", "A", "", "", ""],
            ["1", "www.example.org", "A", "NOERROR", "1", "192.0.2.80"],
            ["2", "no.example.org", "AAAA", "", "", ""],
            ["2", "no.example.org", "AAAA", "NXDOMAIN", "1", ""],
            ["3", "mail.example.org", "MX", "", "", ""],
            ["4", "xn--bcher-kva.example", "TYPE65399", "", "", ""],
        ]
    );
    // Responses may arrive in another order than queries (RFC 7766 §7).
    assert_eq!(
        fields_of_messages("stream"),
        [
            ["5", "www.example.org", "A", "", "", ""],
            ["6", "www.example.org", "A", "", "", ""],
            ["6", "www.example.org", "A", "NOERROR", "1", "192.0.2.80"],
            ["5", "www.example.org", "A", "NOERROR", "1", "192.0.2.80"],
        ]
    );
}

#[test]
fn corpus_zeek_logs_the_same_queries_and_answers() {
    let Some(cases) = testkit::case_directory() else { return };
    let zeek = cases.join("zeek");
    let tests = fs::read_to_string(zeek.join("tests.json")).expect("the list of tests");
    let mut rows = 0;
    for log in log_paths(&zeek.join("Baseline")) {
        let test = log.parent().and_then(Path::file_name).expect("a folder").to_string_lossy();
        if EXCLUDED_TESTS.iter().any(|(name, _)| *name == test) {
            continue;
        }
        let messages = dns_messages(&zeek.join("Traces").join(trace_path(&tests, &test)));
        let text = fs::read_to_string(&log).expect("a log");
        let fields: Vec<&str> = text
            .lines()
            .find_map(|line| line.strip_prefix("#fields\t"))
            .expect("the names of the fields")
            .split('\t')
            .collect();
        for row in text.lines().filter(|line| !line.starts_with('#')) {
            let value = |name: &str| {
                let at = fields.iter().position(|field| *field == name);
                at.and_then(|at| row.split('\t').nth(at)).filter(|value| *value != "-")
            };
            let found = messages.iter().any(|message| matches_zeek_row(message, value));
            assert!(found, "{test}: nobody says {row}");
            rows += 1;
        }
    }
    assert!(rows >= 10, "{rows} rows were compared");
}

/// Returns true if a message matches a row of zeek's log. `value` returns the fields of the row.
/// Zeek merges a query with its response, so a row with a response code must match the response.
fn matches_zeek_row<'r>(
    message: &DescribedMessage,
    value: impl Fn(&str) -> Option<&'r str>,
) -> bool {
    let same = |name: &str, field: Field| {
        value(name).is_none_or(|value| message.first_value(field).eq_ignore_ascii_case(value))
    };
    let number = value("qtype").is_none_or(|kind| match message.first_value(Field::Type) {
        "" => false,
        name => name == value("qtype_name").unwrap_or_default() || name == format!("TYPE{kind}"),
    });
    let answered = value("rcode").is_some();
    // Zeek takes the flags of a response from its answers.
    let flag = |name: &str, word: &str| {
        value("answers").is_none()
            || value(name).is_none_or(|v| (v == "T") == has_flag(message, word))
    };
    let addresses: Vec<&str> = value("answers")
        .into_iter()
        .flat_map(|answers| answers.split(','))
        .filter(|answer| answer.parse::<std::net::IpAddr>().is_ok())
        .collect();
    let data = message.all_values(Field::Data);
    same("trans_id", Field::Id)
        && same("query", Field::Name)
        && same("rcode_name", Field::RcodeName)
        && same("opcode", Field::Opcode)
        && number
        && answered == (message.first_value(Field::Answer) == "1")
        && [("AA", "aa"), ("TC", "tc"), ("RA", "ra")].iter().all(|(name, word)| flag(name, word))
        && addresses.iter().all(|address| data.contains(address))
}

fn has_flag(message: &DescribedMessage, word: &str) -> bool {
    message.first_value(Field::Flags).split(' ').any(|flag| flag == word)
}

/// Returns the path of the capture that a zeek test reads. `tests` is the text of the list of all
/// tests.
fn trace_path(tests: &str, test: &str) -> String {
    let behind = tests.split(&format!("\"{test}\"")).nth(1).expect("the test is in the list");
    let list = behind.split("\"traces\"").nth(1).expect("it has traces");
    list.split('"').nth(1).expect("a name").to_owned()
}

fn log_paths(folder: &Path) -> Vec<PathBuf> {
    let tests = fs::read_dir(folder).expect("baselines").flatten();
    let mut logs: Vec<_> = tests.map(|test| test.path().join("dns.log")).collect();
    logs.retain(|log| log.is_file());
    logs.sort();
    logs
}

#[test]
fn corpus_suricata_counts_the_same_messages() {
    let Some(cases) = testkit::case_directory() else { return };
    let (mut counted, mut wrong) = (0, Vec::new());
    for check in parse_checks(&cases.join("suricata"), "dns") {
        if EXCLUDED_TESTS.iter().any(|(name, _)| *name == check.test) {
            continue;
        }
        let messages = dns_messages(&check.capture);
        let Some(predicates) = check.fields.iter().map(field_predicate).collect::<Option<Vec<_>>>()
        else {
            continue;
        };
        let found =
            messages.iter().filter(|message| predicates.iter().all(|is| is(message))).count();
        if found != check.count {
            wrong.push(format!(
                "{}: {found}, not {} of {:?}",
                check.test, check.count, check.fields
            ));
        }
        counted += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(counted >= 15, "{counted} checks were understood");
}

type MessagePredicate = Box<dyn Fn(&DescribedMessage) -> bool>;

/// Converts an event field of a suricata test to a predicate on messages. Returns `None` if the
/// descriptions of messages lack the field.
fn field_predicate((name, value): &(String, String)) -> Option<MessagePredicate> {
    let value = value.clone();
    let field = |field: Field| -> Option<MessagePredicate> {
        let value = value.clone();
        Some(Box::new(move |message: &DescribedMessage| message.first_value(field) == value))
    };
    let flag = |word: &'static str| -> Option<MessagePredicate> {
        let value = value == "true";
        Some(Box::new(move |message: &DescribedMessage| has_flag(message, word) == value))
    };
    match name.strip_prefix("dns.")? {
        "type" => {
            let response = matches!(value.as_str(), "response" | "answer");
            Some(Box::new(move |message| (message.first_value(Field::Answer) == "1") == response))
        }
        "id" | "tx_id" if name == "dns.id" => field(Field::Id),
        "queries[0].rrname" => field(Field::Name),
        "queries[0].rrtype" => field(Field::Type),
        "rcode" => field(Field::RcodeName),
        "aa" => flag("aa"),
        "rd" => flag("rd"),
        "ra" => flag("ra"),
        // Non-text data have no common format.
        "answers[0].rdata" if !value.contains('\\') => field(Field::Data),
        _ => None,
    }
}
