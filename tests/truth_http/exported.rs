//! Tests that compare the bodies of captures that contain HTTP with the objects that tshark
//! exports: the multisets of body digests are equal.
//!
//! Bodies that tshark does not export by design are only counted: truncated bodies (of which tshark
//! may export a part), bodies after a gap in their direction, and bodies with a coding that cannot
//! be decoded. A setting determines whether tshark waits for reordered segments; if bodies differ
//! with one value, the value with fewer differences counts.
//!
//! Other differences are listed in [`EXPECTED_DIFFERENCES`], with the frame and the section of the
//! RFC that decides. The cases of http-evader have their own expected results ([`crate::evader`]),
//! of which tshark finds half. HTTP inside protocols that no filter decapsulates
//! ([`ENCAPSULATED_CAPTURES`]) does not reach `http`.

use crate::captures;
use crate::evader;
use crate::messages::{self, Message};
use crate::scratch::Scratch;
use crate::tshark;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A capture in which our HTTP bodies differ from those of tshark, and by how much: the number of
/// bodies that only we find, the number that only tshark finds, the frame, and the reason.
struct ExpectedDifference {
    capture: &'static str,
    ours: usize,
    theirs: usize,
    frame: u32,
    /// True if tshark labels the frame as a continuation, in which case its export is not a
    /// message.
    continuation: bool,
    why: &'static str,
}

const fn difference_only_ours(
    capture: &'static str,
    frame: u32,
    why: &'static str,
) -> ExpectedDifference {
    ExpectedDifference { capture, ours: 1, theirs: 0, frame, continuation: false, why }
}

const fn difference_only_theirs(
    capture: &'static str,
    frame: u32,
    why: &'static str,
) -> ExpectedDifference {
    ExpectedDifference { capture, ours: 0, theirs: 1, frame, continuation: false, why }
}

const fn continuation_difference(
    capture: &'static str,
    frame: u32,
    why: &'static str,
) -> ExpectedDifference {
    ExpectedDifference { continuation: true, ..difference_only_theirs(capture, frame, why) }
}

const BEYOND_LENGTH_REASON: &str =
    "bytes after the length that the head states are not part of the body: RFC 9112 §6.3";
const TUNNEL_REASON: &str =
    "an empty line after the head of CONNECT is in the tunnel: RFC 9110 §9.3.6";
const LOWERCASE_VERSION_REASON: &str =
    "`http/1.1` in small letters is accepted leniently: RFC 9112 §2.3";
const URGENT_DATA_REASON: &str =
    "urgent data stay in the stream, which makes them part of the request: RFC 9293 §3.8.5";

const EXPECTED_DIFFERENCES: &[ExpectedDifference] = &[
    continuation_difference(
        "suricata/detect-pcre/detect-pcre-02/input.pcap",
        6,
        BEYOND_LENGTH_REASON,
    ),
    continuation_difference(
        "suricata/http-connect/http-connect-simple/input.pcap",
        5,
        TUNNEL_REASON,
    ),
    continuation_difference("suricata/http-connect/http-connect-tls/input.pcap", 5, TUNNEL_REASON),
    continuation_difference("zeek/Traces/http/connect-with-smtp.pcap", 4, TUNNEL_REASON),
    continuation_difference(
        "zeek/Traces/http/http-09-content-length-confusion.pcap",
        14,
        BEYOND_LENGTH_REASON,
    ),
    ExpectedDifference {
        theirs: 3,
        ..continuation_difference(
            "zeek/Traces/http/http-11-request-then-cruft.pcap",
            10,
            "`T / HTTP` is not a request line: RFC 9112 §3",
        )
    },
    continuation_difference("zeek/Traces/http/http-lower-case.pcap", 6, LOWERCASE_VERSION_REASON),
    continuation_difference(
        "zeek/Traces/http/http-lower-case-nonstandard-port.pcap",
        6,
        LOWERCASE_VERSION_REASON,
    ),
    difference_only_theirs("suricata/tcp-urgp-01-oob/tcp-urgent1.pcap", 8, URGENT_DATA_REASON),
    difference_only_theirs("suricata/tcp-urgp-02-drop-ips/tcp-urgent1.pcap", 8, URGENT_DATA_REASON),
    difference_only_theirs("suricata/tcp-urgp-03-inline/tcp-urgent1.pcap", 8, URGENT_DATA_REASON),
    difference_only_theirs(
        "suricata/tcp-urgp-04-2byte-XY/tcp-urgent-2byte-XY.pcap",
        8,
        URGENT_DATA_REASON,
    ),
    difference_only_theirs(
        "suricata/dns-over-http2-post/dns_over_https_POST.pcap",
        4,
        "the preface of HTTP/2 is not an HTTP/1 request: RFC 9113 §3.4",
    ),
    difference_only_theirs(
        "zeek/Traces/http/261/variant-09-te_obs_fold.pcap",
        4,
        "a folded Transfer-Encoding is still a Transfer-Encoding: RFC 9112 §5.2",
    ),
    ExpectedDifference {
        theirs: 1,
        ..difference_only_ours(
            "zeek/Traces/http/query-method-non-standard-port.pcap",
            4,
            "tshark does not know the method, but any token is a method: RFC 9110 §9.1",
        )
    },
    difference_only_theirs(
        "pcapplusplus/Pcap++Test/PcapExamples/650HttpResponses.pcap",
        111,
        "tshark continues with the next frame as if nothing were missing: RFC 9112 §8",
    ),
];

/// Captures with HTTP inside a protocol that no filter decapsulates, each with that protocol.
const ENCAPSULATED_CAPTURES: &[(&str, &str)] = &[
    ("suricata/bug-2576-02-ips/temp1.pcap", "NFLOG"),
    ("suricata/decode-chdlc-01/hdlc-http_1tx.pcap", "Cisco HDLC"),
    ("zeek/Traces/mpls-in-vlan.pcap", "MPLS"),
    ("zeek/Traces/nflog-http.pcap", "NFLOG"),
    ("zeek/Traces/socks.pcap", "SOCKS"),
    ("zeek/Traces/tunnels/ayiya3.pcap", "AYIYA"),
    ("zeek/Traces/tunnels/gre-over-udp-4754.pcap", "GRE in UDP"),
];

/// Maximum percentage of captures that may differ, among the captures with HTTP and all cases of
/// http-evader.
const DIFFERENT_PERCENT_MAX: usize = 3;

#[test]
fn h7_bodies_equal_tshark_exports() {
    if testkit::need::require_command("tshark").is_none() {
        return;
    }
    let scratch = Scratch::new();
    // Only some of the captures, because tshark runs for each.
    let mut made =
        testkit::generated_captures().with_name_prefixes(&["http/", "web", "mixed/01", "mixed/02"]);
    made.paths.retain(|path| is_complete(path));
    let results = captures::examine_captures(&made, |path| compare_capture(path, &scratch));
    for (name, results) in &results {
        let expected = match name.as_str() {
            // tshark does not know which of several pipelined requests were HEAD.
            "http/pipelined.pcap" => (0, 2),
            _ => (0, 0),
        };
        assert_eq!((results.ours.len(), results.theirs.len()), expected, "{name}: {results:?}");
    }
    let same: usize = results.iter().map(|(_, results)| results.same).sum();
    assert!(same > 30, "{same} bodies are the same");
}

#[test]
fn corpus_bodies_equal_tshark_exports() {
    if testkit::need::require_command("tshark").is_none() {
        return;
    }
    let Some(mut captures) = testkit::corpus_captures() else { return };
    let cases = captures.root.clone();
    let evades = |path: &mut PathBuf| path.iter().any(|part| part == "http-evader");
    let evader: Vec<PathBuf> = captures.paths.extract_if(.., evades).collect();
    let scratch = Scratch::new();
    let results = captures::examine_captures(&captures, |path| compare_capture(path, &scratch));
    let (mut same, mut unjudged, mut differ, mut unexpected) = (0, 0, 0, Vec::new());
    for (name, results) in &results {
        (same, unjudged) = (same + results.same, unjudged + results.unjudged);
        if let Some((_, what)) = ENCAPSULATED_CAPTURES.iter().find(|(capture, _)| capture == name) {
            println!("not taken off: {what} in {name}: {} bodies", results.theirs.len());
            continue;
        }
        let listed = EXPECTED_DIFFERENCES.iter().find(|different| different.capture == name);
        let expected = listed.map_or((0, 0), |different| (different.ours, different.theirs));
        if let Some(ExpectedDifference { frame, why, continuation, .. }) = listed {
            println!("differs: {name}, frame {frame}: {why}");
            differ += usize::from(!continuation);
            if *continuation {
                let results = tshark::frame_summary(&cases.join(name), *frame);
                assert!(results.contains("Continuation"), "{name}, frame {frame}: {results}");
            }
        }
        if expected != (results.ours.len(), results.theirs.len()) {
            unexpected.push(format!("{name}: {results:?}"));
        }
    }
    println!(
        "{same} bodies of {} captures are the same, {unjudged} more are not exported by design, \
         {differ} captures differ",
        results.len()
    );
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    let part = std::env::var_os("CASES").is_some();
    let all = results.len() + evader.len();
    assert!(
        part || (differ + evader::CASES_WITHOUT_BODY.len()) * 100 <= all * DIFFERENT_PERCENT_MAX,
        "{differ} of {all}"
    );
}

/// Returns true if all frames of a capture were captured completely. Otherwise, tshark may export
/// partial bodies.
fn is_complete(path: &Path) -> bool {
    let bytes = std::fs::read(path).expect("a capture that can be read");
    let mut packets = wire::capture::packets(&bytes).map_while(Result::ok);
    packets.all(|(packet, frame)| packet.wire_length as usize == frame.len())
}

/// Numbers of HTTP bodies in a capture that agree with tshark's, that cannot be compared, and that
/// differ.
#[derive(Debug, Default)]
struct BodyCounts {
    same: usize,
    /// Number of HTTP bodies in our output that tshark does not export by design, so that they
    /// cannot be compared.
    unjudged: usize,
    ours: Vec<String>,
    theirs: Vec<String>,
}

/// Compares the bodies of a capture; returns `None` if neither we nor tshark find HTTP in it.
fn compare_capture(path: &Path, scratch: &Scratch) -> Option<BodyCounts> {
    let bytes = std::fs::read(path).expect("a capture that can be read");
    let speaks =
        |word: &[u8]| bytes.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word));
    if !speaks(b"HTTP/") {
        return None;
    }
    let messages = messages::messages_with_bodies(path).unwrap_or_default();
    let folder = scratch.path(&format!("{:?}", std::thread::current().id()));
    let ask = |waits: bool| {
        BodyCounts::compare_bodies(&messages, tshark::export_http_bodies(path, &folder, waits))
    };
    let mut results = ask(true);
    if results.difference_count() > 0 {
        let other = ask(false);
        results =
            if other.difference_count() < results.difference_count() { other } else { results };
    }
    (!messages.is_empty() || !results.theirs.is_empty()).then_some(results)
}

impl BodyCounts {
    fn compare_bodies(messages: &[(Message, Vec<u8>)], exported: Vec<Vec<u8>>) -> Self {
        let mut theirs: BTreeMap<[u8; 32], Vec<Vec<u8>>> = BTreeMap::new();
        for body in exported {
            theirs.entry(digest(&body)).or_default().push(body);
        }
        let mut results = Self::default();
        // Complete bodies first: a truncated one must not match in place of a complete one.
        let mut cut = Vec::new();
        for whole in [true, false] {
            let bodies = messages
                .iter()
                .filter(|(message, body)| message.is_complete() == whole && !body.is_empty());
            for (message, body) in bodies {
                let coded = message.is_encoded() && message.bytes == *body;
                match theirs.get_mut(&digest(body)).and_then(Vec::pop) {
                    Some(_) => results.same += 1,
                    None if whole && !message.after_gap && !coded => {
                        results.ours.push(summarize_body(body))
                    }
                    None => {
                        results.unjudged += 1;
                        cut.push(body);
                    }
                }
            }
        }
        let is_part = |body: &Vec<u8>| cut.iter().any(|cut| cut.starts_with(body));
        let theirs = theirs.into_values().flatten().filter(|body| !is_part(body));
        results.theirs = theirs.map(|body| summarize_body(&body)).collect();
        results
    }

    const fn difference_count(&self) -> usize {
        self.ours.len() + self.theirs.len()
    }
}

fn digest(body: &[u8]) -> [u8; 32] {
    Sha256::digest(body).into()
}

fn summarize_body(body: &[u8]) -> String {
    format!("{} bytes: {}", body.len(), body[..body.len().min(60)].escape_ascii())
}
