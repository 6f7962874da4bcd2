//! Tests against suricata-verify on IP fragments. Suricata's decoder events correspond to drop
//! reasons of `ip`, and our reassembled packets contain the data that Suricata's rules match.

use crate::collect::{COLLECT_FILTERS, CollectedBlock, run_and_collect};
use crate::request::PlannedRequest;
use std::collections::BTreeSet;
use std::path::Path;

/// A requirement on the IP packets in a capture, derived from a test of suricata-verify.
#[derive(Clone, Copy)]
enum Requirement {
    /// `ip` drops a packet, or gives it no class, for this reason.
    Reason(&'static str),
    /// A number of packets of an IP protocol satisfy a predicate. The fields are the number, the
    /// protocol and the predicate.
    Packets(usize, u32, fn(&[u8]) -> bool),
    /// The test of suricata-verify is out of scope, for this reason.
    OutOfScope(&'static str),
}
use Requirement::{OutOfScope, Packets, Reason};

const ICMP6: u32 = 58;
const TCP: u32 = 6;
const UDP: u32 = 17;

fn is_syn(segment: &[u8]) -> bool {
    segment.len() >= 20 && segment[13] & 2 != 0
}

fn is_icmp6_message(kind: u8, code: u8) -> impl Fn(&[u8]) -> bool {
    move |message| message.starts_with(&[kind, code])
}

/// The tests of suricata-verify by directory, each with its requirements.
const SURICATA_CASES: &[(&str, &[Requirement])] = &[
    ("defrag/bug-6887-defrag-eth-vlan-ipv4-tcp-syn", &[Packets(1, TCP, is_syn)]),
    ("defrag/bug-6887-defrag-ppp-ipv4-tcp-syn", &[Packets(1, TCP, is_syn)]),
    (
        "defrag/bug-6942-6887-defrag-eth-ip-gre-ppp-ip-udp-data",
        &[OutOfScope("a packet in GRE and PPP: tunnels are not taken off")],
    ),
    (
        "ipv6-evasion/ipv6-atomic-fragments-toobig",
        &[Packets(1, ICMP6, |message| {
            is_icmp6_message(2, 0)(message) && message[4..8] < [0, 0, 5, 0][..]
        })],
    ),
    (
        "ipv6-evasion/ipv6-kill-router-gateway",
        &[Packets(4, ICMP6, |message| {
            is_icmp6_message(134, 0)(message) && message[6..8] == [0, 0]
        })],
    ),
    (
        "ipv6-evasion/ipv6-malformed-fragments-10",
        &[OutOfScope(
            "a second fragment header inside a fragment is passed as any extension header",
        )],
    ),
    ("ipv6-evasion/ipv6-malformed-fragments-17", &[Reason("overlap")]),
    ("ipv6-evasion/ipv6-malformed-fragments-2", &[Reason("overlap")]),
    ("ipv6-evasion/ipv6-malformed-fragments-22", &[Reason("malformed")]),
    (
        "ipv6-evasion/ipv6-malformed-fragments-25",
        &[OutOfScope("reports of header chains that `ip` passes as they are")],
    ),
    (
        "ipv6-evasion/ipv6-malformed-fragments-30",
        &[Packets(1, ICMP6, |m| is_icmp6_message(3, 1)(m))],
    ),
    ("ipv6-evasion/ipv6-malformed-fragments-31", &[Reason("too big")]),
    ("ipv6-evasion/ipv6-malformed-fragments-32", &[Reason("too big"), Reason("malformed")]),
    (
        "ipv6-evasion/ipv6-malformed-fragments-35",
        &[Packets(1, ICMP6, |m| is_icmp6_message(4, 0)(m))],
    ),
    (
        "ipv6-evasion/ipv6-malformed-fragments-36",
        &[Packets(1, ICMP6, |m| is_icmp6_message(4, 0)(m))],
    ),
    ("ipv6-evasion/ipv6-malformed-fragments-7", &[Reason("overlap")]),
    ("ipv6-evasion/ipv6-malformed-fragments-8", &[Reason("overlap")]),
    ("ipv6-evasion/ipv6-rsmurf", &[Packets(1_000, ICMP6, |m| is_icmp6_message(128, 0)(m))]),
];

/// Generated captures, each with the requirements on its packets.
const GENERATED_CASES: &[(&str, &[Requirement])] = &[
    ("syn-behind-tag", &[Packets(1, TCP, is_syn)]),
    ("many", &[Packets(300, UDP, |_| true)]),
    ("twice", &[Packets(2, UDP, |datagram| datagram.len() == 3_008)]),
    (
        "atomic6",
        &[Packets(1, ICMP6, |message| {
            is_icmp6_message(2, 0)(message) && message[4..8] < [0, 0, 5, 0][..]
        })],
    ),
    ("overlap6", &[Packets(0, UDP, |_| true), Reason("overlap")]),
    ("missing6", &[Packets(0, UDP, |_| true), Reason("fragments missing")]),
    ("uneven6", &[Reason("malformed")]),
    ("too-big4", &[Reason("too big")]),
    ("too-big6", &[Reason("too big")]),
];

#[test]
fn fragments_are_reassembled_or_dropped_with_a_reason() {
    let judged = GENERATED_CASES.iter().flat_map(|(name, wants)| {
        unmet_requirements(
            name,
            &testkit::generated::capture_path(&format!("fragments/{name}.pcap")),
            wants,
        )
    });
    let wrong: Vec<String> = judged.collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn corpus_suricata_agrees_on_fragments() {
    let Some(cases) = testkit::case_directory() else { return };
    let (mut judged, mut out, mut wrong) = (0, 0, Vec::new());
    for (test, wants) in SURICATA_CASES {
        if let [OutOfScope(why)] = wants {
            println!("out of scope: {test}: {why}");
            out += 1;
            continue;
        }
        judged += 1;
        let folder = cases.join("suricata").join(test);
        let files = std::fs::read_dir(&folder).expect("the test").flatten();
        let mut paths = files.map(|file| file.path());
        let capture = paths.find(|path| path.extension().is_some_and(|end| end == "pcap"));
        let capture = capture.unwrap_or_else(|| panic!("{test}: no capture"));
        wrong.extend(unmet_requirements(test, &capture, wants));
    }
    println!("{judged} tests of suricata-verify judged, {out} out of scope");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the requirements that the packets of a capture do not meet.
fn unmet_requirements(test: &str, capture: &Path, wants: &[Requirement]) -> Vec<String> {
    let text = format!("replay '{}' | ip | collect | discard", capture.display());
    let (blocks, outcome) =
        run_and_collect(&PlannedRequest::with_filters(text, COLLECT_FILTERS)).expect("a capture");
    let ip = outcome.ledger.filters.iter().find(|f| f.name.starts_with("ip")).expect("`ip`");
    let dropped = ip.dropped.iter().map(|(reason, amount)| (reason.text(), amount.blocks));
    let unanswered = ip.unanswered.iter().map(|(reason, blocks)| (reason.as_str(), *blocks));
    let reasons: Vec<(&str, u64)> =
        dropped.chain(unanswered).filter(|(_, blocks)| *blocks > 0).collect();
    let wrong = wants.iter().filter_map(|want| match *want {
        Reason(wanted) if reasons.iter().any(|(reason, _)| *reason == wanted) => None,
        Reason(wanted) => Some(format!("no `{wanted}` in {reasons:?}")),
        Packets(number, protocol, so) => {
            let found = |block: &&CollectedBlock| block.class == protocol && so(&block.bytes);
            let found = blocks.iter().filter(found).count();
            (found != number).then(|| format!("{found} packets and not {number}; {reasons:?}"))
        }
        OutOfScope(_) => Some("out of scope beside what is judged".to_owned()),
    });
    wrong.map(|why| format!("{test}: {why}")).collect()
}

/// Every fragment test of suricata-verify is either judged, or excluded with a reason.
#[test]
fn corpus_table_lists_every_fragment_test() {
    let Some(cases) = testkit::case_directory() else { return };
    let mut found = BTreeSet::new();
    for set in ["defrag", "ipv6-evasion"] {
        let folders = std::fs::read_dir(cases.join("suricata").join(set)).expect("the set");
        let names = folders.flatten().filter_map(|folder| folder.file_name().into_string().ok());
        found.extend(names.map(|name| format!("{set}/{name}")));
    }
    let listed: BTreeSet<String> =
        SURICATA_CASES.iter().map(|(test, ..)| (*test).to_owned()).collect();
    assert_eq!(found, listed);
}
