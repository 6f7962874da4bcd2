//! The twin test on a real interface. Twins are attached like taps and redirecting programs (TCX in
//! both directions, XDP) and receive traffic that BPF_PROG_TEST_RUN cannot produce. They must agree
//! with the user implementations and the interpreter on every packet, in class, reasons and states.
//!
//! Traffic: frames with page fragments (TSO, sendfile, packet sockets), multi-buffer XDP frames,
//! VLAN tags in metadata (a single tag, and the outer of two), and partial checksums. The presence
//! of each kind is asserted.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that reports its counts")]

mod recording;
mod traffic;

use super::corpus::boundaries::boundary_frames;
use ebpf::emit::Target;
use ebpf::exam::{self, ExamTotals, InterpreterJudge};
use filter::content::r#match::MATCH;
use filter::testing::twins::{
    ReferenceChain, TwinCase, TwinChain, edits_frames, emit_program, request_text, twin_chains,
};
use recording::{AttachPoint, PacketRecord, RecordedProgram};
use sys::bpf::TrafficDirection;
use testkit::need;
use testkit::net::{CLIENT_DEVICE, SERVER_DEVICE, wait_until};
use traffic::TestNetwork;
use wire::checksum::OnesComplementSum;

/// Sampling step for the corpus frames: each chain receives one frame in this many. Different
/// chains receive different frames.
const FRAME_SAMPLING_STEP: usize = 29;
/// Sampling steps for chains of two and of three filters: one chain in this many is tested.
const CHAIN_SAMPLING_STEPS: [usize; 2] = [11, 151];

/// Number of frames sent before the test waits for the last of them.
const FRAMES_IN_FLIGHT: usize = 64;

/// The packets that a chain received while it was attached. All implementations that the test
/// compares (the judges) have given their verdict on each packet.
struct TwinRun {
    chain: TwinChain,
    hardened: bool,
    records: Vec<PacketRecord>,
    tally: ExamTotals,
}

/// Attaches a chain, and sends the test traffic to it. For each packet, collects the verdicts of
/// the program, the user implementation and the interpreter.
fn run_chain(
    net: &TestNetwork,
    point: AttachPoint,
    hardened: bool,
    chain: TwinChain,
    frames: &[&[u8]],
) -> TwinRun {
    let target = Target { hook: point.hook(), hardened, redirects: false, single_buffer: false };
    let program = emit_program(&chain, target).unwrap_or_else(|unfit| panic!("{unfit}"));
    let (space, device) = match point {
        AttachPoint::Tcx(TrafficDirection::Egress) => (&net.pair.client, CLIENT_DEVICE),
        _ => (&net.pair.server, SERVER_DEVICE),
    };
    let stage = space.run_in_network_namespace(|| RecordedProgram::attach(&program, device, point));
    net.send_from_sockets();
    // The far end of a veth pair may lag, and stores 256 frames.
    let mut sent = Vec::new();
    for some in frames.chunks(FRAMES_IN_FLIGHT) {
        sent.extend(net.send_frames(some));
        wait_until("these frames have gone by", || {
            stage.records().iter().any(|record| Some(&record.frame_with_tag()) == sent.last())
        });
    }
    if let AttachPoint::Tcx(side) = point {
        let _tagger = space.run_in_network_namespace(|| recording::attach_tagger(device, side));
        net.send_frames(frames);
    }
    sent.push(net.send_end_marker());
    let mut records = Vec::new();
    wait_until("the last frame has gone by", || {
        records = stage.records();
        records.iter().any(|record| Some(&record.frame) == sent.last())
    });
    // The witness recorded the sent frames in order.
    let mut went = records.iter().map(PacketRecord::frame_with_tag);
    let missing = sent.iter().find(|frame| !went.any(|recorded| recorded == **frame));
    assert_eq!(missing, None, "a frame went by unseen");
    let (mut user, mut interpreter) =
        (ReferenceChain::new(&chain, &program), InterpreterJudge::new(&program));
    let mut recorded = stage.recorded_verdicts(&records);
    let packets = records.iter().map(PacketRecord::packet);
    let tally = exam::compare_judges(&mut [&mut user, &mut interpreter, &mut recorded], packets);
    let tally = tally.unwrap_or_else(|differ| {
        panic!("`{}` at {point:?}, hardened {hardened}: {differ}", request_text(&chain))
    });
    TwinRun { chain, hardened, records, tally }
}

/// Returns the chains under test, each with a flag: true if its target is hardened, that is,
/// without CAP_PERFMON. None of the chains changes frames. Each twin by itself is tested for both
/// targets. Some chains of two and three filters are tested for one target each.
fn chains_under_test() -> Vec<(TwinChain, bool)> {
    let mut all: Vec<(TwinChain, bool)> = Vec::new();
    // The witness records the frame after the chain, which must leave it whole.
    let chains = twin_chains(3).into_iter().filter(|chain| !edits_frames(chain));
    for (number, chain) in chains.enumerate() {
        match chain.len() {
            1 => all.extend([(chain.clone(), false), (chain, true)]),
            length if number % CHAIN_SAMPLING_STEPS[length - 2] == 0 => {
                all.push((chain, number % 2 == 0))
            }
            _ => {}
        }
    }
    all
}

/// Runs all chains at one attach point (TCX or XDP). Returns `None` if the machine does not support
/// it.
fn run_all_chains(point: AttachPoint) -> Option<Vec<TwinRun>> {
    need::require_bpf()?;
    if matches!(point, AttachPoint::Tcx(_)) && sys::probe::probe_tcx().is_err() {
        return need::report_skip("needs TCX (Linux 6.6)");
    }
    sys::process::pin_to_processor(recording::TEST_PROCESSOR).unwrap();
    let net = TestNetwork::new()?;
    let mut frames = boundary_frames();
    // The kernel drops a frame that ends with its tag before any program runs.
    let ends = |frame: &[u8]| frame.len() < 20 && matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]);
    frames.retain(|frame| frame.len() >= 14 && !ends(frame));
    let all = chains_under_test().into_iter().enumerate().map(|(number, (chain, hardened))| {
        let frames = frames.iter().skip(number % FRAME_SAMPLING_STEP).step_by(FRAME_SAMPLING_STEP);
        let frames: Vec<&[u8]> = frames.map(Vec::as_slice).collect();
        run_chain(&net, point, hardened, chain, &frames)
    });
    let all: Vec<TwinRun> = all.collect();
    for run in &all {
        let (chain, tally) = (request_text(&run.chain), run.tally);
        println!("`{chain}`, hardened {}: {tally:?}", run.hardened);
        // Twins are sure of the traffic of plain sockets.
        let plain =
            |record: &&PacketRecord| record.frame.starts_with(&[0; 12]) || record.tag.is_some();
        let odd = run.records.iter().filter(plain).count() as u64;
        assert!(tally.unsure <= odd, "`{chain}` is unsure of plain traffic: {tally:?}");
    }
    Some(all)
}

/// Returns the number of packets in the runs for which `such` returns true.
fn count_packets(runs: &[TwinRun], such: impl Fn(&PacketRecord) -> bool) -> usize {
    runs.iter().flat_map(|run| &run.records).filter(|record| such(record)).count()
}

/// Returns true for a GRO or TSO frame, which is longer than the MTU allows.
fn is_merged(record: &PacketRecord) -> bool {
    record.frame.len() > 9_014
}

fn is_fragmented(record: &PacketRecord) -> bool {
    record.linear_length < record.frame.len()
}

/// Returns true if most of the frame is in page fragments of a file.
fn is_in_file_pages(record: &PacketRecord) -> bool {
    is_fragmented(record) && record.frame.iter().filter(|byte| **byte == b'f').count() > 1_000
}

/// Returns true for a datagram whose checksum is not filled in (CHECKSUM_PARTIAL).
fn has_partial_checksum(record: &PacketRecord) -> bool {
    let frame = &record.frame;
    let part = |from: usize, to: usize| frame.get(from..to).unwrap_or_default();
    let (sum, datagram) = match part(12, 14) {
        [0x08, 0x00] => (OnesComplementSum::new().with_bytes(part(26, 34)), 34),
        [0x86, 0xdd] => (OnesComplementSum::new().with_bytes(part(22, 54)), 54),
        _ => return false,
    };
    let datagram = part(datagram, frame.len());
    let sum = sum
        .with_bytes(&[0, 17])
        .with_bytes(&(datagram.len() as u32).to_be_bytes())
        .with_bytes(datagram);
    datagram.starts_with(&[0x0f, 0xa0, 0, 53])
        && datagram.get(6..8) != Some(&[0, 0])
        && sum.checksum() != 0
}

fn is_tagged(record: &PacketRecord) -> bool {
    record.tag.is_some()
}

/// Returns true for a frame with one VLAN tag in metadata and another inline.
fn has_two_tags(record: &PacketRecord) -> bool {
    is_tagged(record) && matches!(record.frame.get(12..14), Some([0x81, 0] | [0x88, 0xa8]))
}

fn assert_twins_match_at_tcx(side: TrafficDirection) {
    let Some(runs) = run_all_chains(AttachPoint::Tcx(side)) else { return };
    let found = [
        ("merged", count_packets(&runs, is_merged)),
        ("fragmented", count_packets(&runs, is_fragmented)),
        ("in file pages", count_packets(&runs, is_in_file_pages)),
        ("with partial checksum", count_packets(&runs, has_partial_checksum)),
        ("tagged", count_packets(&runs, is_tagged)),
        ("with two tags", count_packets(&runs, has_two_tags)),
    ];
    println!("{} runs: {found:?}", runs.len());
    assert!(found.iter().all(|(_, found)| *found >= runs.len()), "too few of a kind: {found:?}");
}

#[test]
fn v4_twins_at_tcx_ingress_match_their_filters() {
    assert_twins_match_at_tcx(TrafficDirection::Ingress);
}

#[test]
fn v4_twins_at_tcx_egress_match_their_filters() {
    assert_twins_match_at_tcx(TrafficDirection::Egress);
}

#[test]
fn v4_twins_at_xdp_match_their_filters() {
    let Some(runs) = run_all_chains(AttachPoint::Xdp) else { return };
    let several = count_packets(&runs, is_fragmented);
    println!(
        "of several buffers: {several}, of a file: {}",
        count_packets(&runs, is_in_file_pages)
    );
    assert!(several >= runs.len(), "hardly any frame has several buffers: {several}");
}

/// Direct access at XDP ends with the first buffer. A twin that needs later bytes must return
/// unsure, and must not treat the end of the buffer as the end of the frame.
#[test]
fn twins_are_unsure_of_bytes_in_a_second_buffer() {
    let Some(()) = need::require_bpf() else { return };
    sys::process::pin_to_processor(recording::TEST_PROCESSOR).unwrap();
    let Some(net) = TestNetwork::new() else { return };
    for hardened in [false, true] {
        let chain = vec![TwinCase::new(&MATCH, &["at=5000", "hex=66"])];
        let run = run_chain(&net, AttachPoint::Xdp, hardened, chain, &[]);
        println!("hardened {hardened}: {:?}", run.tally);
        assert!(count_packets(&[run], is_in_file_pages) > 10);
    }
}
