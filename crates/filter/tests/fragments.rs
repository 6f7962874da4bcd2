//! Tests of reassembly on external captures, against the results of other tools.
//!
//! In every external capture with fragments, tshark is the reference for the bytes of each
//! datagram. The references for other properties are pcapplusplus (whole frames), suricata (the
//! events of its fragment tests), and zeek (the anomalies that it reports). Differences are listed
//! with their reasons.

use abi::Class;
use filter::network::ip::IP;
use filter::testing::{self, Arena, Frame, Node, Space};
use filter::{LANES, lanes};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use wire::LinkType;
use wire::ip::Fragment;

/// The output of `ip` for a capture.
struct ReassemblyOutput {
    /// Reassembled datagrams, each under the number of the frame that completed it.
    joined: BTreeMap<usize, JoinedDatagram>,
    /// Counters by name: drops, blocks without a class, and others.
    counts: BTreeMap<&'static str, u64>,
}

struct JoinedDatagram {
    frame: Vec<u8>,
    class: Class,
    data: Vec<u8>,
}

fn run_ip(frames: &[Frame], words: &[&str]) -> ReassemblyOutput {
    let mut node = Node::new(&IP, words).expect("good arguments");
    let arena = Arena::new(2 * frames.len() + 1);
    let mut space = Space::new(&arena);
    let (mut joined, mut number, mut now) = (BTreeMap::new(), 1, 0);
    for frames in frames.chunks(LANES) {
        let before = space.batch(frames);
        now = frames.iter().map(|frame| frame.time).fold(now, u64::max);
        let after = node.process_batch(before.duplicate(), &mut space, now).remove(0);
        for l in lanes(after.live_lanes()) {
            let block = after.block(l);
            if !std::ptr::eq(block.frame, before.block(l).frame) {
                let (frame, data) = (block.frame.to_vec(), block.bytes().to_vec());
                joined
                    .insert(number + l, JoinedDatagram { frame, class: block.pointer.class, data });
            }
        }
        number += frames.len();
        node.tick(&mut space, now);
    }
    node.finish(&mut space, now);
    let dropped = node.counts.dropped.iter().map(|amount| amount.blocks);
    let reasons = IP.reasons.iter().zip(dropped.zip(&node.counts.unanswered));
    let mut counts: BTreeMap<&str, u64> =
        reasons.map(|(name, (dropped, unanswered))| (*name, dropped + unanswered)).collect();
    counts.extend(IP.counters.iter().copied().zip(node.counts.counters.iter().copied()));
    counts.retain(|_, n| *n > 0);
    ReassemblyOutput { joined, counts }
}

fn read_frames(path: &Path) -> Vec<Frame> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    testing::read_capture(&bytes)
}

fn is_fragment(frame: &Frame) -> bool {
    let layers = wire::layers(LinkType(frame.link), &frame.bytes);
    layers.fragment != Fragment::Whole
}

/// Returns the datagrams that tshark reassembles, by the number of the completing frame. Dissection
/// stops at IP, because tshark would otherwise also reassemble packets quoted in errors and
/// tunnels.
fn tshark_datagrams(capture: &Path) -> BTreeMap<usize, Vec<u8>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(capture).stdin(Stdio::null()).stderr(Stdio::null());
    for above in ["icmp", "icmpv6", "gtp", "gre", "udp", "tcp", "sctp"] {
        command.args(["--disable-protocol", above]);
    }
    command.args(["-o", "ip.defragment:TRUE", "-o", "ipv6.defragment:TRUE"]);
    command.args(["-T", "fields", "-E", "occurrence=f", "-e", "frame.number"]);
    command.args(["-e", "ip.reassembled.data", "-e", "ipv6.reassembled.data"]);
    let output = command.output().expect("tshark");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split('\t');
        let number = words.next()?.parse().ok()?;
        let data = words.find(|word| !word.is_empty())?;
        Some((number, parse_hex(data)))
    });
    lines.collect()
}

fn parse_hex(text: &str) -> Vec<u8> {
    let digit = |at| text.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    (0..text.len()).step_by(2).filter_map(digit).collect()
}

/// Datagrams that `ip` and tshark 4.0 reassemble differently: the capture, the number of the frame
/// that completes the datagram, and the reason.
const TSHARK_EXCEPTIONS: [(&str, usize, &str); 8] = [
    ("ipv6-malformed-fragments-2/frag-2.pcap", 9, "they overlap: RFC 5722"),
    ("ipv6-malformed-fragments-7/frag-7.pcap", 8, "they overlap: RFC 5722"),
    ("ipv6-malformed-fragments-8/frag-8.pcap", 7, "they overlap: RFC 5722"),
    ("ipv6-malformed-fragments-17/frag-17.pcap", 11, "they overlap: RFC 5722"),
    ("Traces/ipv4/fragmented-1.pcap", 3, "18 bytes in the middle: RFC 791; then it overlaps"),
    ("Traces/ipv4/fragmented-4.pcap", 5, "they overlap: tshark takes what came last"),
    ("ipv6-reassembly-state-leak.pcap", 46, "65,536 bytes with the hop-by-hop header: RFC 8200"),
    ("ipv6-reassembly-state-leak.pcap", 92, "65,536 bytes with the hop-by-hop header: RFC 8200"),
];

/// Datagrams in generated captures that `ip` and tshark 4.0 reassemble differently, in the same
/// form as [`TSHARK_EXCEPTIONS`].
const TSHARK_EXCEPTIONS_GENERATED: [(&str, usize, &str); 1] =
    [("fragments/overlap6.pcap", 5, "they overlap: RFC 5722")];

#[test]
fn tshark_reassembles_the_same_datagrams() {
    if let Some(same) =
        compare_with_tshark(testkit::generated_captures(), &TSHARK_EXCEPTIONS_GENERATED)
    {
        assert!(same >= 200, "only {same} datagrams were the same");
    }
}

#[test]
fn corpus_tshark_reassembles_the_same_datagrams() {
    let Some(corpus) = testkit::corpus_captures() else { return };
    if let Some(same) = compare_with_tshark(corpus, &TSHARK_EXCEPTIONS) {
        assert!(same >= 297, "only {same} datagrams were the same");
    }
}

/// Asserts that tshark reassembles the same datagrams, except those listed in `otherwise` (capture,
/// frame, reason). Returns the number of identical datagrams, or `None` if tshark is not installed.
fn compare_with_tshark(
    captures: testkit::Captures,
    otherwise: &[(&str, usize, &str)],
) -> Option<usize> {
    testkit::need::require_command("tshark")?;
    let (mut same, mut differs) = (0, BTreeMap::new());
    for path in captures.paths {
        let frames = read_frames(&path);
        if !frames.iter().any(is_fragment) {
            continue;
        }
        let (ours, theirs) = (run_ip(&frames, &[]), tshark_datagrams(&path));
        let numbers: BTreeSet<usize> = ours.joined.keys().chain(theirs.keys()).copied().collect();
        for number in numbers {
            // For IPv6 tshark counts extension headers after the fragment header as data.
            match (ours.joined.get(&number), theirs.get(&number)) {
                (Some(ours), Some(theirs)) if theirs.ends_with(&ours.data) => same += 1,
                (ours, theirs) => {
                    let lengths = (ours.map(|ours| ours.data.len()), theirs.map(Vec::len));
                    differs.insert((path.clone(), number), lengths);
                }
            }
        }
    }
    for (name, number, why) in otherwise {
        let before = differs.len();
        differs.retain(|(path, n), _| !(path.ends_with(name) && n == number));
        assert_eq!(before - differs.len(), 1, "{name}, frame {number}: {why}: not any more");
    }
    assert!(differs.is_empty(), "ours and tshark's lengths: {differs:#?}");
    Some(same)
}

/// Reassembled frames must equal, byte for byte, the frames that pcapplusplus has written.
#[test]
fn corpus_pcapplusplus_makes_the_same_frames() {
    let Some(cases) = testkit::case_directory() else { return };
    let examples = cases.join("pcapplusplus/ExamplesTest");
    for (fragments, whole) in [
        ("pcap_examples/ip-frag.pcap", "expected_output/no-ip-frag.pcap"),
        ("pcap_examples/frag_http_req.pcap", "expected_output/http_req.pcap"),
        ("expected_output/http_req_frag.pcap", "expected_output/http_req.pcap"),
    ] {
        let made = run_ip(&read_frames(&examples.join(fragments)), &[]);
        let frames: Vec<Vec<u8>> = made.joined.into_values().map(|joined| joined.frame).collect();
        let expected = read_frames(&examples.join(whole)).into_iter().map(|frame| frame.bytes);
        let expected: Vec<Vec<u8>> = expected.collect();
        assert_eq!(frames.len(), expected.len(), "{fragments}: {:?}", made.counts);
        for (number, (frame, expected)) in frames.iter().zip(&expected).enumerate() {
            assert!(frame == expected, "{fragments}: {number}: {frame:02x?}, not {expected:02x?}");
        }
    }
}

/// The filter `ip` counts the corresponding reason for each fragment event that suricata expects.
#[test]
fn corpus_suricata_reports_the_same_fragment_faults() {
    let Some(cases) = testkit::case_directory() else { return };
    let evasion = "ipv6-evasion/ipv6-malformed-fragments-";
    for (name, expected) in [
        // "FRAG IPv6 Fragmentation overlap"
        (format!("{evasion}2/frag-2.pcap"), &[("overlap", 4)][..]),
        (format!("{evasion}7/frag-7.pcap"), &[("overlap", 3)]),
        (format!("{evasion}8/frag-8.pcap"), &[("overlap", 3)]),
        (format!("{evasion}17/frag-17.pcap"), &[("overlap", 4)]),
        // "FRAG IPv6 Fragment invalid length"
        (format!("{evasion}22/frag-22.pcap"), &[("malformed", 1), ("fragments missing", 2)]),
        // "FRAG IPv6 Packet size too large", and for capture 32 also the invalid length
        (format!("{evasion}31/frag-31.pcap"), &[("too big", 1), ("fragments missing", 47)]),
        (
            format!("{evasion}32/frag-32.pcap"),
            &[("malformed", 1), ("too big", 1), ("fragments missing", 46)],
        ),
    ] {
        let made = run_ip(&read_frames(&cases.join("suricata").join(&name)), &[]);
        assert_eq!(made.counts, expected.iter().copied().collect(), "{name}");
    }
    // A SYN in three fragments, behind a VLAN tag and behind PPP: `tcp.flags:S`.
    for name in [
        "bug-6887-defrag-eth-vlan-ipv4-tcp-syn/frag-eth-vlan-ip-tcp-syn.pcap",
        "bug-6887-defrag-ppp-ipv4-tcp-syn/frag-ppp-ip-tcp-syn.pcap",
    ] {
        let made = run_ip(&read_frames(&cases.join("suricata/defrag").join(name)), &[]);
        let flags = made.joined.values().map(|joined| (joined.class.0, joined.data[13]));
        assert_eq!(flags.collect::<Vec<_>>(), [(6, 2)], "{name}");
    }
    // One of the rule's two packets arrives whole and one is reassembled; the test's memory cap and
    // verdicts do not concern a filter.
    let made = run_ip(
        &read_frames(&cases.join("suricata/exception-policy-defrag-01/ipv4frags.pcap")),
        &[],
    );
    assert_eq!(made.joined.into_values().map(|joined| joined.class.0).collect::<Vec<_>>(), [1]);
}

/// Some suricata tests mention fragments but do not concern reassembly; they are listed with
/// reasons. `ip` must leave their packets unchanged.
#[test]
fn corpus_unrelated_suricata_packets_pass_unchanged() {
    let Some(cases) = testkit::case_directory() else { return };
    for (name, why, unfinished) in [
        ("ipv6-malformed-fragments-10/frag-10.pcap", "headers that are useless, not wrong", 0),
        ("ipv6-malformed-fragments-25/frag-25.pcap", "a header that ends in the packet", 0),
        ("ipv6-malformed-fragments-30/frag-30.pcap", "the ICMP answer of the target", 48),
        ("ipv6-malformed-fragments-35/frag-35.pcap", "the ICMP answer of the target", 2),
        ("ipv6-malformed-fragments-36/frag-36.pcap", "the ICMP answer of the target", 2),
        ("ipv6-atomic-fragments-toobig/toobig.pcap", "an ICMP message about the MTU", 0),
        ("ipv6-kill-router-gateway/kill_router6.pcap", "no fragments", 0),
        ("ipv6-rsmurf/rsmurf6.pcap", "no fragments", 0),
        (
            concat!(
                "../defrag/bug-6942-6887-defrag-eth-ip-gre-ppp-ip-udp-data/",
                "eth-ip-gre-ppp-max-ip-packet.pcap"
            ),
            "the fragments lie in a tunnel, which `ip` does not open",
            0,
        ),
    ] {
        let frames = read_frames(&cases.join("suricata/ipv6-evasion").join(name));
        let mut made = run_ip(&frames, &[]);
        made.counts.remove("joined datagrams");
        let missing = made.counts.remove("fragments missing").unwrap_or(0);
        assert_eq!(missing, unfinished, "{name}: {why}");
        assert!(made.counts.is_empty(), "{name}: {why}: {:?}", made.counts);
    }
}

/// The filter `ip` counts the corresponding reason for each anomaly in zeek's `weird.log`.
#[test]
fn corpus_zeek_reports_the_same_anomalies() {
    let Some(cases) = testkit::case_directory() else { return };
    let traces = cases.join("zeek/Traces");
    let counts =
        |name: &str, words: &[&str]| run_ip(&read_frames(&traces.join(name)), words).counts;
    // `excessively_small_fragment`, `fragment_size_inconsistency`, `fragment_inconsistency`: 18
    // bytes with more fragments after them; then a fragment after the last one.
    let found = counts("ipv4/fragmented-1.pcap", &[]);
    let expected = [("malformed", 1), ("joined datagrams", 1), ("overlapping datagrams", 1)];
    assert_eq!(found, expected.into_iter().collect());
    // `excessively_small_fragment` twice; the first fragment is never valid.
    let found = counts("ipv4/fragmented-2.pcap", &[]);
    assert_eq!(found, [("malformed", 2), ("fragments missing", 1)].into_iter().collect());
    // `fragment_with_DF`: five fragments, no last one.
    assert_eq!(counts("ipv4/fragmented-3.pcap", &[]), [("fragments missing", 5)].into());
    // `excessively_large_fragment`, and at most one datagram held at once.
    let found = counts("ipv6-reassembly-state-leak.pcap", &[]);
    assert_eq!(found, [("too big", 2), ("fragments missing", 90)].into());

    // `fragment_inconsistency`: an attack whose middle is overwritten; the policy decides the
    // result.
    let attack = |policy: &str| {
        let made = run_ip(&read_frames(&traces.join("ipv4/fragmented-4.pcap")), &[policy]);
        let data = made.joined.into_values().map(|joined| joined.data).next();
        String::from_utf8_lossy(&data.unwrap_or_default()).into_owned()
    };
    for policy in ["policy=first", "policy=windows"] {
        assert!(attack(policy).ends_with("/winnt/system32/cmd.exe?/c+dir+c:\\\n"), "{policy}");
    }
    for policy in ["policy=last", "policy=bsd", "policy=linux", "policy=solaris"] {
        assert!(attack(policy).ends_with("I\0d.exe?/c+dir+c:\\\n"), "{policy}");
    }
    assert_eq!(attack("policy=drop"), "");
}

/// Checks which datagrams `ip` reassembles from each generated capture. Each datagram is identified
/// by the number of the frame that completes it. Faulty fragments must be counted under a reason.
#[test]
fn fragments_are_joined_or_counted_by_reason() {
    let joined = ("joined datagrams", 1);
    for (name, completing, counts) in [
        ("reversed", &[6][..], &[joined][..]),
        ("twice", &[4, 8], &[("joined datagrams", 2)]),
        ("padded", &[2], &[joined]),
        ("overlap4", &[5], &[joined, ("overlapping datagrams", 1)]),
        // RFC 5722
        ("overlap6", &[], &[("overlap", 5)]),
        ("missing4", &[], &[("fragments missing", 3)]),
        ("missing6", &[], &[("fragments missing", 3)]),
        ("uneven6", &[], &[("malformed", 1), ("fragments missing", 1)]),
        // RFC 6946: an atomic fragment is whole.
        ("atomic6", &[], &[]),
        ("too-big4", &[], &[("too big", 1)]),
        ("too-big6", &[], &[("too big", 1)]),
    ] {
        let made = run_ip(
            &read_frames(&testkit::generated::capture_path(&format!("fragments/{name}.pcap"))),
            &[],
        );
        assert_eq!(made.joined.keys().copied().collect::<Vec<_>>(), completing, "{name}");
        assert_eq!(made.counts, counts.iter().copied().collect(), "{name}");
    }
    let many = run_ip(&read_frames(&testkit::generated::capture_path("fragments/many.pcap")), &[]);
    assert_eq!(many.counts, [("joined datagrams", 200)].into());
    // Each datagram contains a UDP header, then bytes that increase by seven.
    for JoinedDatagram { data, class, .. } in many.joined.values() {
        assert_eq!((data.len(), class.0), (3_008, 17));
        assert!(data[8..].iter().enumerate().all(|(at, byte)| usize::from(*byte) == at * 7 % 251));
    }
    let syn = run_ip(
        &read_frames(&testkit::generated::capture_path("fragments/syn-behind-tag.pcap")),
        &[],
    );
    let flags = syn.joined.values().map(|joined| (joined.class.0, joined.data[13]));
    assert_eq!(flags.collect::<Vec<_>>(), [(6, 2)]);
}

/// A fragment of 64 bytes overlaps the end of the first fragment and the start of the second, which
/// arrives later. The policy determines which fragment supplies the bytes of each overlap.
#[test]
fn overlapping_fragments_follow_the_policy() {
    let frames = read_frames(&testkit::generated::capture_path("fragments/overlap4.pcap"));
    for (policy, supplied) in [
        ("first", 56),
        ("windows", 56),
        ("bsd", 56),
        ("solaris", 56),
        ("last", 8),
        // The fragment that begins earlier supplies the first overlap, the one that arrives later
        // the second.
        ("linux", 0),
    ] {
        let made = run_ip(&frames, &[&format!("policy={policy}")]);
        let data = made.joined.into_values().next().expect("a datagram").data;
        let marked = data[992..1056].iter().filter(|byte| **byte == b'!').count();
        let coincidental = (992..1056).filter(|at| (at - 8) * 7 % 251 == usize::from(b'!')).count();
        assert!((supplied..=supplied + coincidental).contains(&marked), "{policy}: {marked}");
    }
    assert!(run_ip(&frames, &["policy=drop"]).joined.is_empty());
}
