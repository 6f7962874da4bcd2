//! Every capture with HTTP against the objects that tshark exports: the same bodies, as multisets
//! of digests, both ways.
//!
//! What tshark does not export by its design is a rule here, and counted: bodies of ours that were
//! cut (a part of one may be there), that lie behind a gap on their side, or whose coding cannot
//! be undone. Whether tshark waits for segments out of order is a setting; where bodies differ the
//! one way, it is asked the other way.
//!
//! What differs beyond that stands in [`DIFFERENT`], with the frame and the section that says who
//! is right. The cases of http-evader have a truth of their own, which tshark finds in half of
//! them: see [`crate::evader`]. Where HTTP lies in what no filter takes off ([`WRAPPED`]), no
//! stream comes to `http`.

use crate::captures;
use crate::evader;
use crate::messages::{self, Message};
use crate::scratch::Scratch;
use crate::tshark;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A capture in which bodies differ: how many are only ours and only tshark's, in which frame, and
/// why.
struct Different {
    capture: &'static str,
    ours: usize,
    theirs: usize,
    frame: u32,
    /// tshark itself calls the frame a continuation: what it exports is no message to it either.
    continuation: bool,
    why: &'static str,
}

const fn only_ours(capture: &'static str, frame: u32, why: &'static str) -> Different {
    Different { capture, ours: 1, theirs: 0, frame, continuation: false, why }
}

const fn only_theirs(capture: &'static str, frame: u32, why: &'static str) -> Different {
    Different { capture, ours: 0, theirs: 1, frame, continuation: false, why }
}

const fn continuation(capture: &'static str, frame: u32, why: &'static str) -> Different {
    Different { continuation: true, ..only_theirs(capture, frame, why) }
}

const BEHIND: &str = "bytes behind the length that the head states are no body: RFC 9112 §6.3";
const TUNNEL: &str = "an empty line behind the head of CONNECT is in the tunnel: RFC 9110 §9.3.6";
const LOWER: &str = "`http/1.1` in small letters is taken leniently: RFC 9112 §2.3";
const URGENT: &str = "urgent data stay in line, so that the request is one: RFC 9293 §3.8.5";

const DIFFERENT: &[Different] = &[
    continuation("suricata/detect-pcre/detect-pcre-02/input.pcap", 6, BEHIND),
    continuation("suricata/http-connect/http-connect-simple/input.pcap", 5, TUNNEL),
    continuation("suricata/http-connect/http-connect-tls/input.pcap", 5, TUNNEL),
    continuation("zeek/Traces/http/connect-with-smtp.pcap", 4, TUNNEL),
    continuation("zeek/Traces/http/http-09-content-length-confusion.pcap", 14, BEHIND),
    Different {
        theirs: 3,
        ..continuation(
            "zeek/Traces/http/http-11-request-then-cruft.pcap",
            10,
            "`T / HTTP` is no request line: RFC 9112 §3",
        )
    },
    continuation("zeek/Traces/http/http-lower-case.pcap", 6, LOWER),
    continuation("zeek/Traces/http/http-lower-case-nonstandard-port.pcap", 6, LOWER),
    only_theirs("suricata/tcp-urgp-01-oob/tcp-urgent1.pcap", 8, URGENT),
    only_theirs("suricata/tcp-urgp-02-drop-ips/tcp-urgent1.pcap", 8, URGENT),
    only_theirs("suricata/tcp-urgp-03-inline/tcp-urgent1.pcap", 8, URGENT),
    only_theirs("suricata/tcp-urgp-04-2byte-XY/tcp-urgent-2byte-XY.pcap", 8, URGENT),
    only_theirs(
        "suricata/dns-over-http2-post/dns_over_https_POST.pcap",
        4,
        "the preface of HTTP/2 is no request of HTTP/1: RFC 9113 §3.4",
    ),
    only_theirs(
        "zeek/Traces/http/261/variant-09-te_obs_fold.pcap",
        4,
        "a folded Transfer-Encoding is one all the same: RFC 9112 §5.2",
    ),
    Different {
        theirs: 1,
        ..only_ours(
            "zeek/Traces/http/query-method-non-standard-port.pcap",
            4,
            "tshark does not know the method; any token is one: RFC 9110 §9.1",
        )
    },
    only_theirs(
        "pcapplusplus/Pcap++Test/PcapExamples/650HttpResponses.pcap",
        111,
        "tshark goes on with the next frame as if nothing were missing: RFC 9112 §8",
    ),
];

/// Captures whose HTTP lies in something that no filter takes off, and in what.
const WRAPPED: &[(&str, &str)] = &[
    ("suricata/bug-2576-02-ips/temp1.pcap", "NFLOG"),
    ("suricata/decode-chdlc-01/hdlc-http_1tx.pcap", "Cisco HDLC"),
    ("zeek/Traces/mpls-in-vlan.pcap", "MPLS"),
    ("zeek/Traces/nflog-http.pcap", "NFLOG"),
    ("zeek/Traces/socks.pcap", "SOCKS"),
    ("zeek/Traces/tunnels/ayiya3.pcap", "AYIYA"),
    ("zeek/Traces/tunnels/gre-over-udp-4754.pcap", "GRE in UDP"),
];

/// The most captures in 100 that may differ, of those with HTTP; http-evader's are judged by their
/// own truth.
const PERCENT: usize = 3;

#[test]
fn h7_bodies_are_those_that_tshark_exports() {
    if testkit::need::command("tshark").is_none() {
        return;
    }
    let scratch = Scratch::new();
    // tshark begins anew for each.
    let mut made = testkit::made().of(&["http/", "web", "mixed/01", "mixed/02"]);
    made.paths.retain(|path| is_whole(path));
    let told = captures::each(&made, |path| compare(path, &scratch));
    for (name, told) in &told {
        let expected = match name.as_str() {
            // tshark does not know which of several requests asked for a head alone.
            "http/pipelined.pcap" => (0, 2),
            _ => (0, 0),
        };
        assert_eq!((told.ours.len(), told.theirs.len()), expected, "{name}: {told:?}");
    }
    let same: usize = told.iter().map(|(_, told)| told.same).sum();
    assert!(same > 30, "{same} bodies are the same");
}

#[test]
fn corpus_bodies_are_those_that_tshark_exports() {
    if testkit::need::command("tshark").is_none() {
        return;
    }
    let Some(mut captures) = testkit::corpus() else { return };
    let cases = captures.root.clone();
    let evades = |path: &mut PathBuf| path.iter().any(|part| part == "http-evader");
    let evader: Vec<PathBuf> = captures.paths.extract_if(.., evades).collect();
    let scratch = Scratch::new();
    let told = captures::each(&captures, |path| compare(path, &scratch));
    let (mut same, mut unjudged, mut differ, mut unexpected) = (0, 0, 0, Vec::new());
    for (name, told) in &told {
        (same, unjudged) = (same + told.same, unjudged + told.unjudged);
        if let Some((_, what)) = WRAPPED.iter().find(|(capture, _)| capture == name) {
            println!("not taken off: {what} in {name}: {} bodies", told.theirs.len());
            continue;
        }
        let listed = DIFFERENT.iter().find(|different| different.capture == name);
        let expected = listed.map_or((0, 0), |different| (different.ours, different.theirs));
        if let Some(Different { frame, why, continuation, .. }) = listed {
            println!("differs: {name}, frame {frame}: {why}");
            differ += usize::from(!continuation);
            if *continuation {
                let told = tshark::line(&cases.join(name), *frame);
                assert!(told.contains("Continuation"), "{name}, frame {frame}: {told}");
            }
        }
        if expected != (told.ours.len(), told.theirs.len()) {
            unexpected.push(format!("{name}: {told:?}"));
        }
    }
    println!(
        "{same} bodies of {} captures are the same, {unjudged} more are not exported by design, \
         {differ} captures differ",
        told.len()
    );
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    let part = std::env::var_os("CASES").is_some();
    let all = told.len() + evader.len();
    assert!(part || (differ + evader::MISSED.len()) * 100 <= all * PERCENT, "{differ} of {all}");
}

/// Returns true if all bytes of all frames were captured: tshark exports the parts that it sees.
fn is_whole(path: &Path) -> bool {
    let bytes = std::fs::read(path).expect("a capture that can be read");
    let mut packets = wire::capture::packets(&bytes).map_while(Result::ok);
    packets.all(|(packet, frame)| packet.wire_length as usize == frame.len())
}

/// Counts of the bodies of a capture.
#[derive(Debug, Default)]
struct Told {
    same: usize,
    /// Ours that tshark does not export by design.
    unjudged: usize,
    ours: Vec<String>,
    theirs: Vec<String>,
}

/// Nothing: there is no HTTP in it.
fn compare(path: &Path, scratch: &Scratch) -> Option<Told> {
    let bytes = std::fs::read(path).expect("a capture that can be read");
    let speaks =
        |word: &[u8]| bytes.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word));
    if !speaks(b"HTTP/") {
        return None;
    }
    let messages = messages::bodies(path).unwrap_or_default();
    let folder = scratch.path(&format!("{:?}", std::thread::current().id()));
    let ask = |waits: bool| Told::of(&messages, tshark::bodies(path, &folder, waits));
    let mut told = ask(true);
    if told.different() > 0 {
        let other = ask(false);
        told = if other.different() < told.different() { other } else { told };
    }
    (!messages.is_empty() || !told.theirs.is_empty()).then_some(told)
}

impl Told {
    fn of(messages: &[(Message, Vec<u8>)], exported: Vec<Vec<u8>>) -> Self {
        let mut theirs: BTreeMap<[u8; 32], Vec<Vec<u8>>> = BTreeMap::new();
        for body in exported {
            theirs.entry(digest(&body)).or_default().push(body);
        }
        let mut told = Self::default();
        // Whole ones first: a body that was cut must not take the place of one that was not.
        let mut cut = Vec::new();
        for whole in [true, false] {
            let bodies = messages
                .iter()
                .filter(|(message, body)| message.is_whole() == whole && !body.is_empty());
            for (message, body) in bodies {
                let coded = message.is_coded() && message.bytes == *body;
                match theirs.get_mut(&digest(body)).and_then(Vec::pop) {
                    Some(_) => told.same += 1,
                    None if whole && !message.behind_gap && !coded => told.ours.push(show(body)),
                    None => {
                        told.unjudged += 1;
                        cut.push(body);
                    }
                }
            }
        }
        let is_part = |body: &Vec<u8>| cut.iter().any(|cut| cut.starts_with(body));
        let theirs = theirs.into_values().flatten().filter(|body| !is_part(body));
        told.theirs = theirs.map(|body| show(&body)).collect();
        told
    }

    const fn different(&self) -> usize {
        self.ours.len() + self.theirs.len()
    }
}

fn digest(body: &[u8]) -> [u8; 32] {
    Sha256::digest(body).into()
}

fn show(body: &[u8]) -> String {
    format!("{} bytes: {}", body.len(), body[..body.len().min(60)].escape_ascii())
}
