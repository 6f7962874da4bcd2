//! Tests of requests with many filters. All filters run in the kernel unless frames could leave it
//! at too many places (exits). A filter may return unsure for a frame, which then continues at that
//! filter in the process. The results equal the results of the same request in a thread. [FEATURES
//! V5; CONTRACT 18, 19]

use crate::frame_sending::send_all;
use crate::frames::tagged_frames;
use crate::observer::{Observer, ObserverResult};
use crate::program_limits::{filter_entry, kernel_refusals, quiet_pair};
use crate::shared_program::datagrams;
use serde_json::Value;
use std::io::{BufReader, Read as _};
use testkit::Frame;
use testkit::net::{NamespacePair, SERVER_DEVICE};

/// Number of frames sent; one in four goes to port 53.
const FRAMES_SENT: usize = 80;
const MATCHING_FRAME_COUNT: u64 = FRAMES_SENT as u64 / 4;

const SOURCE_ADDRESS: &str = "198.18.0.1";
const DESTINATION_ADDRESS: &str = "198.19.0.1";

/// Number of copies of each frame for which some filter returns unsure.
const UNSURE_COPIES: usize = 3;

/// Returns a request with `filters` filters in addition to a few fixed filters. Two of the fixed
/// filters return unsure for some frames: `eth`, which follows the first third of the filters, and
/// `network`, which follows the second third.
pub(crate) fn request_with_filters(rx: &str, network: &str, filters: usize) -> String {
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

/// Returns a datagram with more IPv6 extension headers than a twin walks.
fn datagram_with_many_headers() -> Frame {
    let start = Frame::ethernet().ipv6("2001:2::1", "2001:2::2");
    (0..5).fold(start, |frame, _| frame.ipv6_extension(60, &[0; 7]))
}

/// Returns frames for which filters in the kernel return unsure. For each frame that concerns
/// `eth`, there are three that concern `network` ([`request_with_filters`]): a frame with too many
/// extension headers, and both fragments of a datagram.
pub(crate) fn unsure_frames() -> Vec<Vec<u8>> {
    let stack = || {
        Frame::ethernet()
            .append_vlan_tag(1)
            .append_vlan_tag(2)
            .append_vlan_tag(3)
            .ipv4(SOURCE_ADDRESS, DESTINATION_ADDRESS)
    };
    let piece = |offset, more| {
        let frame =
            Frame::ethernet().ipv4(SOURCE_ADDRESS, DESTINATION_ADDRESS).fragment(offset, more);
        frame.ip_payload(17, &[0; 64])
    };
    let mut frames = Vec::new();
    for _ in 0..UNSURE_COPIES {
        frames.push(stack().udp(4000, 53, b"a stack of tags"));
        frames.push(datagram_with_many_headers().udp(4000, 53, b"behind many headers"));
        frames.push(piece(0, true));
        frames.push(piece(8, false));
    }
    frames
}

/// Returns all frames of a test: ordinary frames, with unsure frames among them.
pub(crate) fn mixed_frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut unsure_frames = unsure_frames().into_iter();
    for some in datagrams(FRAMES_SENT).chunks(4) {
        frames.extend(some.iter().cloned());
        frames.extend(unsure_frames.next());
    }
    frames.extend(unsure_frames);
    frames.extend(tagged_frames());
    frames
}

/// Asserts that the unsure frames have left the kernel: at least [`UNSURE_COPIES`] at the filter
/// `eth`, and at least three times as many at the filter `network`.
pub(crate) fn assert_unsure_exits(ran: &ObserverResult, network: &str) {
    let edges = ran.ledger["edges"].as_array().expect("edges");
    for (name, blocks) in [("eth", UNSURE_COPIES as u64), (network, 3 * UNSURE_COPIES as u64)] {
        let ours = edges.iter().filter(|edge| edge["kind"] == "ring" && edge["to"] == name);
        let taken: u64 = ours.filter_map(|edge| edge["taken"]["blocks"].as_u64()).sum();
        assert!(taken >= blocks, "{name}: {taken} of {blocks}: {}", ran.ledger);
    }
}

/// Returns, for each filter in order, its name and its block counts: received, passed, of a class
/// that no arc selected, without a class, and dropped. Omits the source and the first filter,
/// because they also count frames that the host sends by itself.
pub(crate) fn block_counts(ran: &ObserverResult) -> Vec<Value> {
    let what = ["name", "taken", "passed", "unselected", "unanswered", "dropped"];
    let filters = ran.ledger["filters"].as_array().expect("filters").iter();
    filters.skip(2).flat_map(|filter| what.map(|what| filter[what].clone())).collect()
}

fn run_over_frames(pair: &NamespacePair, line: &str, frames: &[Vec<u8>]) -> ObserverResult {
    let observer = Observer::start_with_options(&pair.server, &["--policy=deepest"], line);
    send_all(pair, frames);
    let ran = observer.stop();
    ran.assert_lossless();
    ran
}

/// Runs a request with `filters` filters in the kernel and in a thread. Asserts that the results
/// are equal.
fn assert_runs_in_kernel(network: &str, filters: usize) {
    let Some(pair) = quiet_pair() else { return };
    let frames = mixed_frames();
    let [inside, outside] = ["rx", "rx@thread0"].map(|rx| {
        let line = request_with_filters(&format!("{rx} {SERVER_DEVICE}"), network, filters);
        run_over_frames(&pair, &line, &frames)
    });
    assert_eq!(kernel_refusals(&inside), [], "{}", inside.err);
    let spaces = inside.ledger["filters"].as_array().expect("filters").iter();
    let elsewhere = spaces.filter(|filter| filter["space"] != "kernel");
    let elsewhere = elsewhere.filter(|filter| filter["name"] != "discard");
    assert_eq!(elsewhere.collect::<Vec<_>>(), [] as [&Value; 0], "{}", inside.err);
    assert_eq!(filter_entry(&outside, "dport")["space"], "thread0", "{}", outside.err);
    assert_unsure_exits(&inside, network.split(' ').next().unwrap_or(network));
    assert_eq!(block_counts(&inside), block_counts(&outside));
}

#[test]
fn v5_request_of_64_filters_runs_in_the_kernel() {
    assert_runs_in_kernel("ipproto |17 ip", 64);
}

#[test]
fn v5_request_of_200_filters_runs_in_the_kernel() {
    assert_runs_in_kernel("ip", 200);
}

/// Runs a request whose kernel program would need more exits than it can count. An exit is a place
/// where frames leave the kernel. Asserts that the filters whose exits fit stay in the kernel.
#[test]
fn v5_too_many_exits_leave_a_prefix_in_the_kernel() {
    let Some(pair) = quiet_pair() else { return };
    let line = request_with_filters(&format!("rx {SERVER_DEVICE}"), "ip", 330);
    let ran = run_over_frames(&pair, &line, &datagrams(FRAMES_SENT));
    assert_eq!(filter_entry(&ran, "eth")["space"], "kernel", "{}", ran.err);
    assert_eq!(filter_entry(&ran, "dport")["space"], "thread0", "{}", ran.err);
    let last = ran.ledger["filters"].as_array().and_then(|all| all.last()).expect("filters");
    assert_eq!(last["taken"]["blocks"], MATCHING_FRAME_COUNT, "{}", ran.ledger);
    let [(_, why)] = kernel_refusals(&ran)[..] else { panic!("{}", ran.ledger) };
    assert!(why.contains("exits from the kernel, and the maximum is 320"), "{why}");
}

/// Runs a request that delivers a frame to many branches, and needs an exit from the kernel for
/// each branch. Asserts that only the filters before the branches stay in the kernel.
#[test]
fn v5_too_many_exits_per_frame_leave_a_kernel_prefix() {
    let Some(pair) = quiet_pair() else { return };
    let branches = vec!["|all count"; 40].join(" + ");
    let line = format!("rx {SERVER_DEVICE} | ip | udp | ( {branches} )");
    let ran = run_over_frames(&pair, &line, &datagrams(FRAMES_SENT));
    assert_eq!(filter_entry(&ran, "rx")["space"], "kernel", "{}", ran.err);
    let why = kernel_refusals(&ran);
    assert!(why.iter().any(|(_, why)| why.contains("40 exits from the kernel at once")), "{why:?}");
    let counts = ran.ledger["filters"].as_array().expect("filters").iter();
    let counts: Vec<_> = counts
        .filter(|filter| filter["name"].as_str().is_some_and(|name| name.starts_with("count")))
        .collect();
    assert_eq!(counts.len(), 40);
    assert!(counts.iter().all(|count| count["taken"]["blocks"] == FRAMES_SENT), "{}", ran.ledger);
}

/// Lets a slow reader lose ordinary and unsure frames, which share one ring. Asserts that each loss
/// is counted for the edge of the lost frame, and that the other frames arrive in order.
#[test]
fn v5_lapped_frames_are_counted_for_their_exit() {
    const LAPPED_FRAMES: u64 = 20_000;
    const FRAME_SIZE: usize = 400;
    let Some(pair) = quiet_pair() else { return };
    let sure = |payload: &[u8]| {
        Frame::ethernet().ipv4(SOURCE_ADDRESS, DESTINATION_ADDRESS).udp(4000, 9, payload)
    };
    let unsure_frames = |payload: &[u8]| datagram_with_many_headers().udp(4000, 9, payload);
    // Offsets of the number, at the start of the payload.
    let at = [sure(&[]).len(), unsure_frames(&[]).len()];
    let frames = (0..LAPPED_FRAMES).map(|number: u64| {
        let way = usize::from(number.is_multiple_of(3));
        let mut payload = vec![0; FRAME_SIZE - at[way]];
        payload[..8].copy_from_slice(&number.to_be_bytes());
        if way == 0 { sure(&payload) } else { unsure_frames(&payload) }
    });
    let line = format!("rx {SERVER_DEVICE} ring=512KB | ipproto |17 pcap -");
    let (observer, out) = Observer::start_piped(&pair.server, &line);
    send_all(&pair, &frames.collect::<Vec<_>>());
    observer.signal("INT");
    let mut capture = BufReader::new(out);
    capture.read_exact(&mut [0; 24]).expect("a capture begins");
    let (mut record, mut received) = (vec![0; 16 + FRAME_SIZE], Vec::new());
    while capture.read_exact(&mut record).is_ok() {
        let frame = &record[16..];
        let at = at[usize::from(frame[12..14] == [0x86, 0xdd])];
        let number = frame[at..at + 8].try_into().expect("eight bytes");
        received.push(u64::from_be_bytes(number));
    }
    let ran = observer.wait();
    ran.assert_balanced();
    assert!(received.is_sorted_by(|one, next| one < next), "each once, in order");
    let lost = ran.ledger["lost"].as_u64().expect("a number");
    assert_eq!(received.len() as u64 + lost, LAPPED_FRAMES, "{}", ran.ledger);
    let edges = ran.ledger["edges"].as_array().expect("edges").iter();
    let rings: Vec<&Value> = edges.filter(|edge| edge["kind"] == "ring").collect();
    let unsure_frames = received.iter().filter(|number| number.is_multiple_of(3)).count() as u64;
    for (to, put, taken) in [
        ("ipproto", LAPPED_FRAMES.div_ceil(3), unsure_frames),
        ("pcap", LAPPED_FRAMES - LAPPED_FRAMES.div_ceil(3), received.len() as u64 - unsure_frames),
    ] {
        let edge = rings.iter().find(|edge| edge["to"] == to).expect("an edge");
        assert_eq!(edge["put"]["blocks"], put, "{to}: {}", ran.ledger);
        assert_eq!(edge["taken"]["blocks"], taken, "{to}: {}", ran.ledger);
        assert_eq!(edge["dropped"]["lapped"]["blocks"], put - taken, "{to}: {}", ran.ledger);
    }
    assert!(lost > 0, "{}", ran.ledger);
}
