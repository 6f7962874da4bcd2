//! Tests that compare captures with TCP with tshark's "follow TCP stream": the same bytes and gaps
//! in both directions of every connection.
//!
//! Connections that exceed tshark's limits are only counted:
//!
//! - frames that were truncated when captured: tshark joins what is left, so only bytes are
//!   compared;
//!
//! - after a gap that the peer never acknowledged, tshark emits nothing more: our output must begin
//!   with tshark's, and continue with a gap.
//!
//! Other differences are listed in [`EXPECTED_DIFFERENCES`], by frame, with the reason. The cases
//! of http-evader are excluded: 251 connections of eight in-order packets each.

use crate::captures;
use crate::streams::{Stream, reassemble_streams};
use crate::tshark::{self, FollowedConnection, StreamSpan};
use std::path::Path;

/// Captures in which connections differ from tshark's, each with the number of differing
/// connections and the reason.
const EXPECTED_DIFFERENCES: &[(&str, usize, &str)] = &[
    ("suricata/bug-6244-tcp-rst-with-data-02/tcp-rst-with-data.pcap", 1, RESET_TEXT_REASON),
    ("suricata/bug-6244-tcp-rst-with-data/tcp-rst-with-data.pcap", 1, RESET_TEXT_REASON),
    ("suricata/tcp-rst-unacked-stream-01-raw/input.pcap", 1, RESET_TEXT_REASON),
    ("suricata/tcp-rst-unacked-stream-02-raw-ips/input.pcap", 1, RESET_TEXT_REASON),
    ("suricata/tcp-rst-unacked-stream-04-gap-ips/input.pcap", 1, RESET_TEXT_REASON),
    (
        "suricata/tcp-fastopen-10-syn-data-ignore/input.pcap",
        1,
        "frame 22: another server's SYN/ACK, which the client does not acknowledge",
    ),
    (
        "tcpdump/of10_s4810.pcap",
        1,
        "77 segments of 14,902 bytes without a gap between their numbers; tshark loses 137",
    ),
    ("zeek/Traces/ipv4/fragmented-4.pcap", 1, CONFLICTING_OVERLAP_REASON),
    ("zeek/Traces/tcp/reassembly.pcap", 1, CONFLICTING_OVERLAP_REASON),
];

const RESET_TEXT_REASON: &str =
    "the text in a RST gives the reason and is not in the stream: RFC 9293 §3.5.3";
const CONFLICTING_OVERLAP_REASON: &str =
    "segments overlap with different data: the first is used (`policy=first`)";

/// Captures with connections inside a protocol that no filter decapsulates. Each has the number of
/// these connections, and the protocol.
const ENCAPSULATED_CAPTURES: &[(&str, usize, &str)] = &[
    ("libpcap-filter/pcap/filter/AH-IPcomp-IPv4.pcap", 1, "AH"),
    ("libpcap-filter/pcap/filter/arcnet-rfc1051-arp-icmp-http.pcap", 1, "ARCNET"),
    ("pcapplusplus/Packet++Test/PacketExamples/gtp.pcap", 1, "GTP"),
    ("suricata/bug-2576-02-ips/temp1.pcap", 1, "NFLOG"),
    ("suricata/bug-5633-gre-02/gre-sample.pcap", 1, "GRE"),
    ("tcpdump/bgp-aigp.pcap", 1, "a Juniper link"),
    ("tcpdump/gso-ipv4-geneve-ipv4.pcap", 1, "Geneve"),
    ("tcpdump/gso-ipv4-vxlan-ipv4.pcap", 1, "VXLAN"),
    ("tcpdump/gso-ipv6-geneve-ipv4.pcap", 1, "Geneve"),
    ("tcpdump/gso-ipv6-geneve-ipv6.pcap", 1, "Geneve"),
    ("tcpdump/lspping-fec-ldp.pcap", 2, "MPLS in PPP"),
    ("zeek/Traces/mpls-in-vlan.pcap", 2, "MPLS"),
    ("zeek/Traces/nflog-http.pcap", 1, "NFLOG"),
    ("zeek/Traces/pppoe-over-qinq.pcap", 1, "PPPoE"),
    ("zeek/Traces/tunnels/ayiya3.pcap", 1, "AYIYA"),
    ("zeek/Traces/tunnels/gre-aruba-amsdu.pcap", 1, "GRE"),
    ("zeek/Traces/tunnels/gre-aruba.pcap", 21, "GRE"),
    ("zeek/Traces/tunnels/gre-over-udp-4754.pcap", 1, "GRE in UDP"),
    ("zeek/Traces/tunnels/gtp/gtp1_gn_normal_incl_fragmentation.pcap", 1, "GTP"),
    ("zeek/Traces/tunnels/gtp/gtp6_gtp_0x32.pcap", 1, "GTP"),
    ("zeek/Traces/tunnels/gtp/gtp_ext_header.pcap", 1, "GTP"),
];

/// Argument of `tcp` that disables its timeouts, because tshark has none.
const NO_TIMEOUT_ARGUMENT: &str = "timeout=1000000h";

#[test]
fn h5_streams_equal_those_of_tshark() {
    if testkit::need::require_command("tshark").is_none() {
        return;
    }
    let kinds = ["streams/", "text/", "tls/", "web"];
    let results = captures::examine_captures(
        &testkit::generated_captures().with_name_prefixes(&kinds),
        compare_capture,
    );
    for (name, results) in &results {
        let why = match name.as_str() {
            "streams/data-in-reset.pcap" => Some(RESET_TEXT_REASON),
            "streams/overlap-longer.pcap" => Some(CONFLICTING_OVERLAP_REASON),
            _ => None,
        };
        let expected = usize::from(why.is_some());
        assert_eq!(
            results.differences.len(),
            expected,
            "{name}, {why:?}: {:?}",
            results.differences
        );
    }
    let same: usize = results.iter().map(|(_, results)| results.same).sum();
    assert!(same > 100, "{same} connections are the same");
}

#[test]
fn corpus_streams_equal_those_of_tshark() {
    if testkit::need::require_command("tshark").is_none() {
        return;
    }
    let Some(mut captures) = testkit::corpus_captures() else { return };
    captures.paths.retain(|path| !path.iter().any(|component| component == "http-evader"));
    let results = captures::examine_captures(&captures, compare_capture);
    let mut sum = ConnectionCounts::default();
    let mut unexpected = Vec::new();
    for (name, results) in &results {
        sum.same += results.same;
        sum.equal_up_to_gap += results.equal_up_to_gap;
        sum.differences.extend(results.differences.iter().map(|why| format!("{name}: {why}")));
        let listed = EXPECTED_DIFFERENCES
            .iter()
            .chain(ENCAPSULATED_CAPTURES)
            .find(|(capture, ..)| capture == name);
        if results.differences.len() != listed.map_or(0, |(_, number, _)| *number) {
            unexpected.push((name, &results.differences));
        }
    }
    for (name, number, why) in EXPECTED_DIFFERENCES {
        println!("differs: {number} in {name}: {why}");
    }
    for (name, number, what) in ENCAPSULATED_CAPTURES {
        println!("not taken off: {what}: {number} in {name}");
    }
    println!(
        "{} connections of {} captures are the same ({} up to an unacknowledged gap), \
         {} are not",
        sum.same,
        results.len(),
        sum.equal_up_to_gap,
        sum.differences.len()
    );
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

/// Results of comparing the connections of a capture with tshark's.
#[derive(Default)]
struct ConnectionCounts {
    same: usize,
    /// Number of connections for which tshark's output equals ours but ends at a gap. They are also
    /// counted in `same`.
    equal_up_to_gap: usize,
    differences: Vec<String>,
}

/// Compares the connections of a capture. Returns `None` if we cannot read it, or if neither we nor
/// tshark find a connection with data.
fn compare_capture(path: &Path) -> Option<ConnectionCounts> {
    let bytes = std::fs::read(path).expect("a capture that can be read");
    let ours = reassemble_streams(path, NO_TIMEOUT_ARGUMENT).ok()?;
    let cut = wire::capture::packets(&bytes)
        .map_while(Result::ok)
        .any(|(packet, data)| (data.len() as u64) < u64::from(packet.wire_length));
    let expected = ours.len();
    let mut theirs =
        if may_contain_tcp(&bytes) { tshark::follow_streams(path, expected) } else { Vec::new() };
    let mut results = ConnectionCounts::default();
    for mut stream in ours {
        let ends = |one: &FollowedConnection| {
            let turned = [one.ends[1].clone(), one.ends[0].clone()];
            one.ends == stream.ends || turned == stream.ends
        };
        let at = theirs.iter().position(ends);
        let mut other = at.map(|at| theirs.remove(at)).unwrap_or_default();
        if other.ends[0] != stream.ends[0] {
            other.sides.swap(0, 1);
        }
        if cut {
            stream.sides = stream.sides.map(without_gaps);
            other.sides = other.sides.map(without_gaps);
        }
        results.add(&stream, &other);
    }
    for rest in theirs.iter().filter(|rest| rest.sides.iter().any(|side| !side.is_empty())) {
        results.differences.push(format!(
            "{:?}: only tshark, {}",
            rest.ends,
            format_lengths(&rest.sides)
        ));
    }
    (results.same > 0 || !results.differences.is_empty()).then_some(results)
}

/// Returns true if a frame of the capture may contain TCP. Otherwise tshark need not run.
fn may_contain_tcp(capture: &[u8]) -> bool {
    wire::capture::packets(capture).map_while(Result::ok).any(|(_, data)| data.contains(&6))
}

impl ConnectionCounts {
    fn add(&mut self, ours: &Stream, theirs: &FollowedConnection) {
        let sides = || ours.sides.iter().zip(&theirs.sides);
        if sides().all(|(ours, theirs)| without_trailing_gap(ours) == without_trailing_gap(theirs))
        {
            self.same += 1;
        } else if sides().all(|(ours, theirs)| continues_with_gap(ours, theirs)) {
            (self.same, self.equal_up_to_gap) = (self.same + 1, self.equal_up_to_gap + 1);
        } else {
            let (ends, one, other) =
                (&ours.ends, format_lengths(&ours.sides), format_lengths(&theirs.sides));
            self.differences.push(format!("{ends:?}: ours {one}, tshark {other}"));
        }
    }
}

/// Returns the spans without a trailing gap, which tshark does not report.
fn without_trailing_gap(spans: &[StreamSpan]) -> &[StreamSpan] {
    match spans {
        [begin @ .., StreamSpan::Missing(_)] => begin,
        _ => spans,
    }
}

/// Returns true if `ours` equals `theirs`, or if `ours` consists of `theirs`, a gap and anything
/// after it. Ignores trailing gaps.
fn continues_with_gap(ours: &[StreamSpan], theirs: &[StreamSpan]) -> bool {
    let (ours, theirs) = (without_trailing_gap(ours), without_trailing_gap(theirs));
    let rest = ours.strip_prefix(theirs);
    rest.is_some_and(|rest| matches!(rest, [] | [StreamSpan::Missing(_), ..]))
}

fn without_gaps(spans: Vec<StreamSpan>) -> Vec<StreamSpan> {
    let mut bytes = Vec::new();
    for span in spans.into_iter().filter(|span| matches!(span, StreamSpan::Bytes(_))) {
        tshark::push_span(&mut bytes, span);
    }
    bytes
}

/// Formats the spans of both directions of a connection as their lengths. A gap has a negative
/// length.
fn format_lengths(sides: &[Vec<StreamSpan>; 2]) -> String {
    let one = |span: &StreamSpan| match span {
        StreamSpan::Bytes(bytes) => bytes.len().to_string(),
        StreamSpan::Missing(length) => format!("-{length}"),
    };
    let side = |spans: &Vec<StreamSpan>| spans.iter().map(one).collect::<Vec<_>>().join(" ");
    format!("[{}]", sides.each_ref().map(side).join(" | "))
}
