//! Tests of IP fragments in complete requests: fragments that `ip` holds outlive laps of their
//! pool, and tshark finds the same payloads in the output of `ip` as in the capture.
//!
//! `crates/filter/tests/fragments.rs` tests the datagrams themselves. In these tests, `ip` runs in
//! a space with pools, before other filters and sinks.
#![forbid(unsafe_code)]

#[path = "../common/request.rs"]
#[expect(dead_code, reason = "the tests of the ledger use the rest")]
mod request;
#[path = "../common/scratch.rs"]
mod scratch;

use engine::run::RunOutcome;
use filter::prelude::*;
use request::PlannedRequest;
use scratch::Scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::{Frame, Random, need};
use wire::LinkType;

/// A filter that checks reassembled datagrams. The destination port of a datagram determines its
/// expected payload.
const VERIFY_PAYLOAD: Description = Description {
    name: "verify",
    summary: "compares datagrams with their pattern",
    input_forms: Forms::ANY,
    has_report: true,
    constructor: Some(|_| Ok(Filter::lanes(VerifyPayload::default()))),
    ..Description::FILTER_DEFAULTS
};

#[derive(Default)]
struct VerifyPayload {
    right: u64,
    wrong: u64,
}

impl LaneFilter for VerifyPayload {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        for (_, block) in batch.blocks() {
            let is_right = block.bytes() == payload(block.pointer.class.0, block.bytes().len());
            self.right += u64::from(is_right);
            self.wrong += u64::from(!is_right);
        }
    }

    fn report(&self) -> Report {
        let rows = [("right".to_owned(), self.right), ("wrong".to_owned(), self.wrong)];
        Report::from_rows(rows)
    }
}

fn payload(port: u32, length: usize) -> Vec<u8> {
    let start = port.wrapping_mul(2_654_435_761);
    (0..length as u32).map(|i| (start.wrapping_add(i).wrapping_mul(40_503) >> 8) as u8).collect()
}

/// Returns the frames of a datagram to port `number + 1`. If the datagram is longer than
/// `fragment_length_max`, the frames are its fragments, with at most this number of bytes of data.
fn datagram_frames(
    number: u16,
    length: usize,
    fragment_length_max: usize,
    is_ipv6: bool,
) -> Vec<Vec<u8>> {
    let (source, target) = if is_ipv6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
    let packet = || match is_ipv6 {
        true => Frame::ethernet().ipv6(source, target),
        false => Frame::ethernet().ipv4(source, target),
    };
    let port = 1 + number;
    let whole = packet().udp(5000, port, &payload(port.into(), length));
    let header = if is_ipv6 { 14 + 40 } else { 14 + 20 };
    let data = &whole[header..];
    if data.len() <= fragment_length_max {
        return vec![whole];
    }
    let last = data.len().div_ceil(fragment_length_max) - 1;
    let pieces = data.chunks(fragment_length_max).enumerate().map(|(at, piece)| {
        let mut frame = match is_ipv6 {
            true => {
                let field = (at * fragment_length_max) as u16 | u16::from(at < last);
                let [high, low] = field.to_be_bytes();
                let [id_high, id_low] = number.to_be_bytes();
                let fragment = [17, 0, high, low, 0, 0, id_high, id_low];
                packet().ip_payload(44, &[&fragment, piece].concat())
            }
            false => packet()
                .fragment((at * fragment_length_max) as u16, at < last)
                .ip_payload(17, piece),
        };
        if !is_ipv6 {
            frame[18..20].copy_from_slice(&number.to_be_bytes());
        }
        frame
    });
    pieces.collect()
}

fn write_capture(path: &Path, frames: &[Vec<u8>]) {
    let mut capture = wire::capture::write::encode_file_header(LinkType::ETHERNET).to_vec();
    for (number, frame) in frames.iter().enumerate() {
        let length = u32::try_from(frame.len()).expect("a frame");
        capture.extend(wire::capture::write::encode_record_header(
            number as u64 * 1000,
            length,
            length,
        ));
        capture.extend(frame);
    }
    fs::write(path, capture).expect("a capture");
}

fn ip_verify_counter(outcome: &RunOutcome, name: &str) -> u64 {
    let reports = outcome.reports.iter().filter(|report| report.name == "verify");
    let rows = reports.flat_map(|report| &report.report.rows);
    rows.filter(|(row, _)| row == name).map(|(_, n)| n).sum()
}

/// Sends about 60 MB of datagrams, nearly half of them fragmented, with the frames shuffled in
/// windows of 3,000. The datagrams exceed the size of the pool, so that `ip` holds fragments while
/// the pool is lapped.
#[test]
fn held_fragments_survive_laps_of_their_pool() {
    let mut random = Random::with_replayable_seed();
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let mut cut = 0;
    for number in 0..6000 {
        let length = random.within(1..19_000);
        let fragment_length_max = 8 * random.within(60..180);
        let fragments = match number % 2 {
            0 => datagram_frames(number, length, fragment_length_max, number % 4 == 0),
            _ => datagram_frames(number, length, usize::MAX, false),
        };
        cut += u64::from(fragments.len() > 1);
        frames.extend(fragments);
    }
    for window in frames.chunks_mut(3000) {
        random.shuffle(window);
    }
    let scratch = Scratch::new();
    let file = scratch.path("fragments.pcap");
    write_capture(&file, &frames);
    let text = format!("replay '{}' | ip | udp | verify", file.display());
    let outcome =
        PlannedRequest::with_filters(text, &[&VERIFY_PAYLOAD]).run_sequential().expect("a path");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), []);
    assert_eq!(
        (ip_verify_counter(&outcome, "right"), ip_verify_counter(&outcome, "wrong")),
        (6000, 0)
    );
    let ip = outcome.ledger.filters.iter().find(|node| node.name == "ip").expect("ip");
    assert_eq!((ip.made.blocks, ip.held.blocks), (cut, 0));
}

/// Asserts that tshark finds the same UDP payloads, in the same order, in the output of `ip | pcap`
/// as in the capture itself, which tshark reassembles.
#[test]
fn h3_reassembled_packets_equal_those_of_tshark() {
    let names = ["many", "reversed", "padded", "twice"];
    let files =
        names.map(|name| testkit::generated::capture_path(&format!("fragments/{name}.pcap")));
    assert_tshark_agrees(&files, 303);
}

#[test]
fn corpus_reassembled_packets_equal_those_of_tshark() {
    let Some(cases) = testkit::case_directory() else { return };
    let files = [
        "pcapplusplus/ExamplesTest/pcap_examples/ip-frag.pcap",
        "pcapplusplus/ExamplesTest/pcap_examples/ipv6-frag.pcap",
        "pcapplusplus/Pcap++Test/PcapExamples/ip4_fragments.pcap",
        "pcapplusplus/Pcap++Test/PcapExamples/frag_with_padding.pcap",
        "zeek/Traces/tunnels/gtp/gtp1_gn_normal_incl_fragmentation.pcap",
    ];
    assert_tshark_agrees(&files.map(|name| cases.join(name)), 300);
}

/// Asserts that tshark finds the same UDP datagrams in each capture as in the output of `ip` for
/// this capture. All captures together must contain more than `least` datagrams.
fn assert_tshark_agrees(files: &[PathBuf], least: usize) {
    if need::require_command("tshark").is_none() {
        return;
    }
    let scratch = Scratch::new();
    let (mut all, written) = (0, scratch.path("whole.pcap"));
    for file in files {
        let name = file.display();
        let text = format!("replay '{name}' | ip |all pcap '{}'", written.display());
        let outcome = PlannedRequest::new(text).run_sequential().expect("a path");
        assert!(outcome.failures.is_empty(), "{name}: {:?}", outcome.failures);
        assert_eq!(outcome.ledger.imbalances(), [], "{name}");
        let (ours, theirs) = (tshark_udp_payloads(&written), tshark_udp_payloads(file));
        assert!(ours == theirs, "{name}: {} payloads, tshark {}", ours.len(), theirs.len());
        all += ours.len();
    }
    assert!(all > least, "{all} payloads");
}

/// Returns the ports, checksum status and payload of every UDP datagram, as tshark prints them.
fn tshark_udp_payloads(file: &Path) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(file).stdin(Stdio::null()).stderr(Stdio::null());
    command.args(["-Y", "udp", "-o", "udp.check_checksum:TRUE", "-E", "occurrence=f"]);
    command.args(["-T", "fields", "-e", "udp.srcport", "-e", "udp.dstport"]);
    command.args(["-e", "udp.checksum.status", "-e", "udp.payload"]);
    let output = command.output().expect("tshark");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}
