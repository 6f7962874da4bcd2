//! Tests of `tls` on external captures. The tests of suricata count connections by server name and
//! protocols. For some captures, the hellos that `tshark` finds are listed here.
//!
//! A manual comparison with `tshark` over all captures found the same hellos over TCP, with four
//! exceptions: a hello in SSL 2.0 format, a hello after a MySQL greeting, an inconsistent hello,
//! and a hello of a server with several initial sequence numbers. JA4 fingerprints were compared
//! with the values that the authors of JA4 publish for their captures, and agree for all first
//! hellos.

mod descriptions;

use descriptions::{DescribedMessage, FilterChain, parse_checks};
use filter::Description;
use filter::catalog::find;
use std::path::Path;
use wire::record::Field;

fn find_filter(name: &str) -> &'static Description {
    find(name).unwrap_or_else(|| panic!("`{name}` is in the catalog"))
}

fn described_hellos(path: &Path) -> Vec<DescribedMessage> {
    FilterChain::new(&[find_filter("tcp"), find_filter("tls")]).describe(path).to_vec()
}

fn is_from_server(message: &DescribedMessage) -> bool {
    !message.first_value(Field::Cipher).is_empty()
}

#[test]
fn corpus_suricata_counts_the_same_connections() {
    let Some(cases) = testkit::case_directory() else { return };
    let (mut counted, mut wrong) = (0, Vec::new());
    // Checks without events belong to rules that drop packets.
    for check in parse_checks(&cases.join("suricata"), "tls").into_iter().filter(|c| c.count > 0) {
        let messages = described_hellos(&check.capture);
        let Some(predicates) = check.fields.iter().map(field_predicate).collect::<Option<Vec<_>>>()
        else {
            continue;
        };
        // A suricata event is a connection: both hellos together.
        let mut connections: Vec<Vec<&DescribedMessage>> = Vec::new();
        for message in &messages {
            let ends = |message: &DescribedMessage| {
                message.first_value(Field::Client).to_owned()
                    + message.first_value(Field::ClientPort)
            };
            match connections.iter_mut().find(|c| c.iter().any(|t| ends(t) == ends(message))) {
                Some(connection) => connection.push(message),
                None => connections.push(vec![message]),
            }
        }
        let found = connections.iter().filter(|c| predicates.iter().all(|is| is(c))).count();
        if found != check.count {
            wrong.push(format!(
                "{}: {found}, not {} of {:?}",
                check.test, check.count, check.fields
            ));
        }
        counted += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(counted >= 7, "{counted} checks were understood");
}

type ConnectionPredicate = Box<dyn Fn(&[&DescribedMessage]) -> bool>;

/// Converts an event field of a suricata test to a predicate on connections. Returns `None` if the
/// descriptions of messages lack the field.
fn field_predicate((name, value): &(String, String)) -> Option<ConnectionPredicate> {
    let value = value.clone();
    let is = |server: bool, field: Field, place: usize| -> Option<ConnectionPredicate> {
        let value = value.clone();
        Some(Box::new(move |hellos: &[&DescribedMessage]| {
            let hellos = hellos.iter().filter(|message| is_from_server(message) == server);
            hellos
                .into_iter()
                .any(|message| message.all_values(field).get(place) == Some(&value.as_str()))
        }))
    };
    match name.as_str() {
        "tls.sni" => is(false, Field::ServerName, 0),
        "tls.client_alpns[0]" => is(false, Field::Alpn, 0),
        "tls.client_alpns[1]" => is(false, Field::Alpn, 1),
        "tls.server_alpns[0]" => is(true, Field::Alpn, 0),
        "tls.version" => {
            let version = value.strip_prefix("TLS ")?.to_owned();
            Some(Box::new(move |hellos| {
                hellos.iter().any(|message| {
                    is_from_server(message) && message.first_value(Field::TlsVersion) == version
                })
            }))
        }
        _ => None,
    }
}

#[test]
fn v21_hellos_of_each_generated_capture_are_described() {
    let client = ["1.3", "secret.example.org", "http/1.1", ""];
    let server = ["1.3", "secret.example.org", "", "TLS_AES_128_GCM_SHA256"];
    for (name, wanted) in [
        ("whole", &[client, server][..]),
        ("pieces", &[client, server]),
        ("two-records", &[client, server]),
        ("refused", &[client]),
        ("unanswered", &[["1.3", "other.example.org", "http/1.1", ""]]),
        ("malformed", &[]),
    ] {
        let messages =
            described_hellos(&testkit::generated::capture_path(&format!("tls/{name}.pcap")));
        assert_eq!(hello_rows(&messages), wanted, "{name}");
    }
}

#[test]
fn corpus_tshark_finds_the_same_hellos() {
    let Some(cases) = testkit::case_directory() else { return };
    for (path, wanted) in EXPECTED_HELLOS {
        let messages = described_hellos(&cases.join("pcapplusplus").join(path));
        assert_eq!(hello_rows(&messages), *wanted, "{path}");
    }
}

/// Returns the version, server name, protocols and cipher suite of each TLS hello.
fn hello_rows(messages: &[DescribedMessage]) -> Vec<[String; 4]> {
    let fields = [Field::TlsVersion, Field::ServerName, Field::Alpn, Field::Cipher];
    messages.iter().map(|message| fields.map(|field| message.all_values(field).join(","))).collect()
}

type HelloRows<'h> = &'h [[&'h str; 4]];

/// Version, server name, protocols and cipher suite of each TLS hello, for each capture. A
/// ServerHello is listed with the client's server name.
const EXPECTED_HELLOS: &[(&str, HelloRows<'_>)] = &[
    (
        "ExamplesTest/pcap_examples/tls.pcap",
        &[
            ["1.0", "bawmashbij", "", ""],
            ["1.0", "bawmashbij", "", "TLS_RSA_WITH_RC4_128_SHA"],
            ["1.2", "ssl.gstatic.com", "spdy/3.1,spdy/3,http/1.1", ""],
            ["1.2", "ssl.gstatic.com", "spdy/3.1", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"],
            ["1.3", "www.gstatic.com", "h2,http/1.1", ""],
            ["1.3", "www.gstatic.com", "", "TLS_AES_128_GCM_SHA256"],
        ],
    ),
    (
        "Packet++Test/PacketExamples/tls1_3.pcap",
        &[
            ["1.3", "dogfish", "", ""],
            ["1.3", "dogfish", "", "TLS_AES_256_GCM_SHA384"],
            ["1.3", "www.google.com", "h2,http/1.1", ""],
            ["1.3", "www.google.com", "", "TLS_AES_128_GCM_SHA256"],
        ],
    ),
    (
        "Packet++Test/PacketExamples/tls_server_hello.pcap",
        &[["1.2", "", "h2", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]],
    ),
    ("Packet++Test/PacketExamples/ssl-malformed1.pcap", &[]),
];
