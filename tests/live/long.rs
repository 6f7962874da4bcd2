//! Lines of many filters: the kernel takes them whole. Each filter may be unsure of a frame, which
//! then comes up to that filter, whichever of them it is; and all of it is as where the same line
//! runs in a thread. [FEATURES V5; CONTRACT 18, 19]

use crate::frames::tagged;
use crate::observer::{Observer, Ran};
use crate::segment::{filter, refused, silent};
use crate::send::send_all;
use crate::shared::datagrams;
use serde_json::Value;
use std::io::{BufReader, Read as _};
use testkit::Frame;
use testkit::net::{Pair, SERVER_DEVICE};

/// Frames sent; one in four goes to port 53.
const FRAMES: usize = 80;
const WANTED: u64 = FRAMES as u64 / 4;

const FROM: &str = "198.18.0.1";
const TO: &str = "198.19.0.1";

/// Copies of each frame on which some filter is unsure.
const TIMES: usize = 3;

/// A line of so many filters and some others. Behind each third of them stands one that is unsure
/// of some frames: `eth`, and the first of `network`.
pub(crate) fn line(rx: &str, network: &str, filters: usize) -> String {
    let third = filters / 3;
    let any = "bpf \"not arp\" | ".repeat(third);
    let udp = "bpf \"udp or ip6\" | ".repeat(third);
    let pairs = "bpf \"udp and not port 54\" | sport |1:65535 ".repeat((filters - 2 * third) / 2);
    let counts = "count | ".repeat(4);
    format!(
        "{rx} | {any}{counts}eth | {udp}{network} | {counts}udp | {pairs}dport |53 \
         match x at=0 |all count"
    )
}

/// A datagram behind more extension headers than a twin walks.
fn headers() -> Frame {
    let start = Frame::ethernet().ipv6("2001:2::1", "2001:2::2");
    (0..5).fold(start, |frame, _| frame.extension(60, &[0; 7]))
}

/// Frames that `eth` cannot tell in the kernel, and of each of those three that what stands behind
/// it cannot: more headers than a twin walks, and both parts of a datagram.
pub(crate) fn unsure() -> Vec<Vec<u8>> {
    let stack = || Frame::ethernet().tag(1).tag(2).tag(3).ipv4(FROM, TO);
    let piece = |offset, more| {
        let frame = Frame::ethernet().ipv4(FROM, TO).fragment(offset, more);
        frame.protocol(17, &[0; 64])
    };
    let mut frames = Vec::new();
    for _ in 0..TIMES {
        frames.push(stack().udp(4000, 53, b"a stack of tags"));
        frames.push(headers().udp(4000, 53, b"behind many headers"));
        frames.push(piece(0, true));
        frames.push(piece(8, false));
    }
    frames
}

/// All frames of a test: what is sure stands between what is not.
pub(crate) fn mixed() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut unsure = unsure().into_iter();
    for some in datagrams(FRAMES).chunks(4) {
        frames.extend(some.iter().cloned());
        frames.extend(unsure.next());
    }
    frames.extend(unsure);
    frames.extend(tagged());
    frames
}

/// Asserts the counts of frames that left for unsure filters, beside those of the last filter in
/// the kernel.
pub(crate) fn assert_ways(ran: &Ran, network: &str) {
    let edges = ran.ledger["edges"].as_array().expect("edges");
    for (name, blocks) in [("eth", TIMES as u64), (network, 3 * TIMES as u64)] {
        let ours = edges.iter().filter(|edge| edge["kind"] == "ring" && edge["to"] == name);
        let taken: u64 = ours.filter_map(|edge| edge["taken"]["blocks"].as_u64()).sum();
        assert!(taken >= blocks, "{name}: {taken} of {blocks}: {}", ran.ledger);
    }
}

/// Returns what each filter of the line took, passed, did not answer and dropped, in order; of the
/// source and the first filter, which also count frames that a host sends by itself, nothing.
pub(crate) fn flows(ran: &Ran) -> Vec<Value> {
    let what = ["name", "taken", "passed", "unselected", "unanswered", "dropped"];
    let filters = ran.ledger["filters"].as_array().expect("filters").iter();
    filters.skip(2).flat_map(|filter| what.map(|what| filter[what].clone())).collect()
}

fn observed(pair: &Pair, line: &str, frames: &[Vec<u8>]) -> Ran {
    let observer = Observer::given(&pair.server, &["--policy=deepest"], line);
    send_all(pair, frames);
    let ran = observer.stop();
    ran.assert_whole();
    ran
}

/// Runs lines of so many filters in the kernel and in a thread.
fn assert_whole_in_kernel(network: &str, filters: usize) {
    let Some(pair) = silent() else { return };
    let frames = mixed();
    let [inside, outside] = ["rx", "rx@thread0"].map(|rx| {
        let line = line(&format!("{rx} {SERVER_DEVICE}"), network, filters);
        observed(&pair, &line, &frames)
    });
    assert_eq!(refused(&inside), [], "{}", inside.err);
    let spaces = inside.ledger["filters"].as_array().expect("filters").iter();
    let elsewhere = spaces.filter(|filter| filter["space"] != "kernel");
    let elsewhere = elsewhere.filter(|filter| filter["name"] != "discard");
    assert_eq!(elsewhere.collect::<Vec<_>>(), [] as [&Value; 0], "{}", inside.err);
    assert_eq!(filter(&outside, "dport")["space"], "thread0", "{}", outside.err);
    assert_ways(&inside, network.split(' ').next().unwrap_or(network));
    assert_eq!(flows(&inside), flows(&outside));
}

#[test]
fn v5_a_line_of_64_filters_is_decided_in_the_kernel() {
    assert_whole_in_kernel("ipproto |17 ip", 64);
}

#[test]
fn v5_a_line_of_200_filters_is_decided_in_the_kernel() {
    assert_whole_in_kernel("ip", 200);
}

/// A program can tally so much and no more.
#[test]
fn v5_the_beginning_of_a_line_with_too_many_exits_stays() {
    let Some(pair) = silent() else { return };
    let line = line(&format!("rx {SERVER_DEVICE}"), "ip", 330);
    let ran = observed(&pair, &line, &datagrams(FRAMES));
    assert_eq!(filter(&ran, "eth")["space"], "kernel", "{}", ran.err);
    assert_eq!(filter(&ran, "dport")["space"], "thread0", "{}", ran.err);
    let last = ran.ledger["filters"].as_array().and_then(|all| all.last()).expect("filters");
    assert_eq!(last["taken"]["blocks"], WANTED, "{}", ran.ledger);
    let [(_, why)] = refused(&ran)[..] else { panic!("{}", ran.ledger) };
    assert!(why.contains("ways, and a line has 320"), "{why}");
}

/// A frame that goes to many at once takes as many ways.
#[test]
fn v5_the_beginning_stays_where_a_frame_has_too_many_exits() {
    let Some(pair) = silent() else { return };
    let branches = vec!["|all count"; 40].join(" + ");
    let line = format!("rx {SERVER_DEVICE} | ip | udp | ( {branches} )");
    let ran = observed(&pair, &line, &datagrams(FRAMES));
    assert_eq!(filter(&ran, "rx")["space"], "kernel", "{}", ran.err);
    let why = refused(&ran);
    assert!(why.iter().any(|(_, why)| why.contains("40 ways at once")), "{why:?}");
    let counts = ran.ledger["filters"].as_array().expect("filters").iter();
    let counts: Vec<_> = counts
        .filter(|filter| filter["name"].as_str().is_some_and(|name| name.starts_with("count")))
        .collect();
    assert_eq!(counts.len(), 40);
    assert!(counts.iter().all(|count| count["taken"]["blocks"] == FRAMES), "{}", ran.ledger);
}

/// Sure and unsure frames share one ring. Losses of a slow reader are counted for the edge they
/// took, and what arrives is in order.
#[test]
fn v5_lapped_frames_are_counted_for_their_exit() {
    const LAPPED: u64 = 20_000;
    const SIZE: usize = 400;
    let Some(pair) = silent() else { return };
    let sure = |payload: &[u8]| Frame::ethernet().ipv4(FROM, TO).udp(4000, 9, payload);
    let unsure = |payload: &[u8]| headers().udp(4000, 9, payload);
    // Where the number stands, which is where the payload begins.
    let at = [sure(&[]).len(), unsure(&[]).len()];
    let frames = (0..LAPPED).map(|number: u64| {
        let way = usize::from(number.is_multiple_of(3));
        let mut payload = vec![0; SIZE - at[way]];
        payload[..8].copy_from_slice(&number.to_be_bytes());
        if way == 0 { sure(&payload) } else { unsure(&payload) }
    });
    let line = format!("rx {SERVER_DEVICE} ring=512KB | ipproto |17 pcap -");
    let (observer, out) = Observer::piped(&pair.server, &line);
    send_all(&pair, &frames.collect::<Vec<_>>());
    observer.signal("INT");
    let mut capture = BufReader::new(out);
    capture.read_exact(&mut [0; 24]).expect("a capture begins");
    let (mut record, mut seen) = (vec![0; 16 + SIZE], Vec::new());
    while capture.read_exact(&mut record).is_ok() {
        let frame = &record[16..];
        let at = at[usize::from(frame[12..14] == [0x86, 0xdd])];
        let number = frame[at..at + 8].try_into().expect("eight bytes");
        seen.push(u64::from_be_bytes(number));
    }
    let ran = observer.wait();
    ran.assert_well();
    assert!(seen.is_sorted_by(|one, next| one < next), "each once, in order");
    let lost = ran.ledger["lost"].as_u64().expect("a number");
    assert_eq!(seen.len() as u64 + lost, LAPPED, "{}", ran.ledger);
    let edges = ran.ledger["edges"].as_array().expect("edges").iter();
    let rings: Vec<&Value> = edges.filter(|edge| edge["kind"] == "ring").collect();
    let unsure = seen.iter().filter(|number| number.is_multiple_of(3)).count() as u64;
    for (to, put, taken) in [
        ("ipproto", LAPPED.div_ceil(3), unsure),
        ("pcap", LAPPED - LAPPED.div_ceil(3), seen.len() as u64 - unsure),
    ] {
        let edge = rings.iter().find(|edge| edge["to"] == to).expect("an edge");
        assert_eq!(edge["put"]["blocks"], put, "{to}: {}", ran.ledger);
        assert_eq!(edge["taken"]["blocks"], taken, "{to}: {}", ran.ledger);
        assert_eq!(edge["dropped"]["lapped"]["blocks"], put - taken, "{to}: {}", ran.ledger);
    }
    assert!(lost > 0, "{}", ran.ledger);
}
