//! The twin exam on a real interface: twins are attached as taps and takers are (TCX at both
//! sides, XDP), traffic goes by that a test run cannot make, and what they said of every packet is
//! compared with the user implementations and the interpreter, in class, reasons and states.
//!
//! Traffic: frames whose bytes lie in pages (TSO, sendfile, packet sockets), frames of several
//! buffers at XDP, VLAN tags beside the frame (one, and one of two), checksums that nobody has
//! filled in. That it was there is asserted for each, so that the exam cannot pass by its absence.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that reports its counts")]

mod stage;
mod traffic;

use super::corpus::borders::borders;
use ebpf::emit::Target;
use ebpf::exam::{self, Interpreter, Tally};
use filter::content::r#match::MATCH;
use filter::testing::twins::{Chain, Examined, User, chains, changes, program, request};
use stage::{Record, Stage, Stand};
use sys::bpf::Side;
use testkit::need;
use testkit::net::{CLIENT_DEVICE, SERVER_DEVICE, until};
use traffic::Network;
use wire::checksum::Sum;

/// One in so many frames of the corpus goes by each chain, and other ones by the next.
const FRAMES_STEP: usize = 29;
/// One in so many chains of two, and of three.
const CHAINS_STEP: [usize; 2] = [11, 151];

/// Frames sent before the test waits for the last of them.
const AT_ONCE: usize = 64;

/// The packets of one run, and the verdicts on them.
struct Run {
    chain: Chain,
    hardened: bool,
    records: Vec<Record>,
    tally: Tally,
}

/// Attaches a chain, lets everything go by, and asks all judges.
fn run(net: &Network, stand: Stand, hardened: bool, chain: Chain, frames: &[&[u8]]) -> Run {
    let target = Target { hook: stand.place(), hardened, takes: false, single: false };
    let program = program(&chain, target).unwrap_or_else(|unfit| panic!("{unfit}"));
    let (space, device) = match stand {
        Stand::Tcx(Side::Egress) => (&net.pair.client, CLIENT_DEVICE),
        _ => (&net.pair.server, SERVER_DEVICE),
    };
    let stage = space.enter(|| Stage::enter(&program, device, stand));
    net.sockets();
    // What is behind a veth pair may be late, and keeps 256 frames until then.
    let mut sent = Vec::new();
    for some in frames.chunks(AT_ONCE) {
        sent.extend(net.frames(some));
        until("these frames have gone by", || {
            stage.records().iter().any(|record| Some(&record.whole()) == sent.last())
        });
    }
    if let Stand::Tcx(side) = stand {
        let _tagger = space.enter(|| stage::tagger(device, side));
        net.frames(frames);
    }
    sent.push(net.last());
    let mut records = Vec::new();
    until("the last frame has gone by", || {
        records = stage.records();
        records.iter().any(|record| Some(&record.frame) == sent.last())
    });
    // The witness saw what was sent, in its order.
    let mut went = records.iter().map(Record::whole);
    let missing = sent.iter().find(|frame| !went.any(|seen| seen == **frame));
    assert_eq!(missing, None, "a frame went by unseen");
    let (mut user, mut interpreter) = (User::new(&chain, &program), Interpreter::new(&program));
    let mut seen = stage.judge(&records);
    let packets = records.iter().map(Record::packet);
    let tally = exam::compare(&mut [&mut user, &mut interpreter, &mut seen], packets);
    let tally = tally.unwrap_or_else(|differ| {
        panic!("`{}` at {stand:?}, hardened {hardened}: {differ}", request(&chain))
    });
    Run { chain, hardened, records, tally }
}

/// Every twin alone for both targets, and some chains of two and three for one of them each.
fn examined() -> Vec<(Chain, bool)> {
    let mut all: Vec<(Chain, bool)> = Vec::new();
    // The witness writes down what a chain leaves of a frame: it must leave all of it.
    let chains = chains(3).into_iter().filter(|chain| !changes(chain));
    for (number, chain) in chains.enumerate() {
        match chain.len() {
            1 => all.extend([(chain.clone(), false), (chain, true)]),
            length if number % CHAINS_STEP[length - 2] == 0 => all.push((chain, number % 2 == 0)),
            _ => {}
        }
    }
    all
}

/// All of them at one place; nothing where the machine cannot.
fn sit(stand: Stand) -> Option<Vec<Run>> {
    need::bpf()?;
    if matches!(stand, Stand::Tcx(_)) && sys::probe::tcx().is_err() {
        return need::skip("needs TCX (Linux 6.6)");
    }
    sys::process::pin_to(stage::PROCESSOR).unwrap();
    let net = Network::new()?;
    let mut frames = borders();
    // The kernel itself drops a frame that ends with its tag, before anybody sees it.
    let ends = |frame: &[u8]| frame.len() < 20 && matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]);
    frames.retain(|frame| frame.len() >= 14 && !ends(frame));
    let all = examined().into_iter().enumerate().map(|(number, (chain, hardened))| {
        let frames = frames.iter().skip(number % FRAMES_STEP).step_by(FRAMES_STEP);
        let frames: Vec<&[u8]> = frames.map(Vec::as_slice).collect();
        run(&net, stand, hardened, chain, &frames)
    });
    let all: Vec<Run> = all.collect();
    for run in &all {
        let (chain, tally) = (request(&run.chain), run.tally);
        println!("`{chain}`, hardened {}: {tally:?}", run.hardened);
        // Of what plain sockets send, twins are sure.
        let plain = |record: &&Record| record.frame.starts_with(&[0; 12]) || record.tag.is_some();
        let odd = run.records.iter().filter(plain).count() as u64;
        assert!(tally.unsure <= odd, "`{chain}` is unsure of plain traffic: {tally:?}");
    }
    Some(all)
}

/// Counts the packets of these runs that satisfy `such`.
fn count(runs: &[Run], such: impl Fn(&Record) -> bool) -> usize {
    runs.iter().flat_map(|run| &run.records).filter(|record| such(record)).count()
}

/// In a frame that goes to the stack, and is longer than any that goes over a wire.
fn is_joined(record: &Record) -> bool {
    record.frame.len() > 9_014
}

fn is_in_pieces(record: &Record) -> bool {
    record.linear < record.frame.len()
}

/// Most of it are pages of a file.
fn is_of_a_file(record: &Record) -> bool {
    is_in_pieces(record) && record.frame.iter().filter(|byte| **byte == b'f').count() > 1_000
}

/// A datagram of a socket of ours whose checksum is not that of its bytes.
fn is_unfilled(record: &Record) -> bool {
    let frame = &record.frame;
    let part = |from: usize, to: usize| frame.get(from..to).unwrap_or_default();
    let (sum, datagram) = match part(12, 14) {
        [0x08, 0x00] => (Sum::new().with(part(26, 34)), 34),
        [0x86, 0xdd] => (Sum::new().with(part(22, 54)), 54),
        _ => return false,
    };
    let datagram = part(datagram, frame.len());
    let sum = sum.with(&[0, 17]).with(&(datagram.len() as u32).to_be_bytes()).with(datagram);
    datagram.starts_with(&[0x0f, 0xa0, 0, 53])
        && datagram.get(6..8) != Some(&[0, 0])
        && sum.checksum() != 0
}

fn is_tagged(record: &Record) -> bool {
    record.tag.is_some()
}

/// A tag beside the frame, and another one in it.
fn is_stacked(record: &Record) -> bool {
    is_tagged(record) && matches!(record.frame.get(12..14), Some([0x81, 0] | [0x88, 0xa8]))
}

fn tcx(side: Side) {
    let Some(runs) = sit(Stand::Tcx(side)) else { return };
    let found = [
        ("joined", count(&runs, is_joined)),
        ("in pieces", count(&runs, is_in_pieces)),
        ("of a file", count(&runs, is_of_a_file)),
        ("unfilled", count(&runs, is_unfilled)),
        ("tagged", count(&runs, is_tagged)),
        ("stacked", count(&runs, is_stacked)),
    ];
    println!("{} runs: {found:?}", runs.len());
    assert!(found.iter().all(|(_, found)| *found >= runs.len()), "hardly any: {found:?}");
}

#[test]
fn v4_twins_at_tcx_ingress_answer_as_their_filters() {
    tcx(Side::Ingress);
}

#[test]
fn v4_twins_at_tcx_egress_answer_as_their_filters() {
    tcx(Side::Egress);
}

#[test]
fn v4_twins_at_xdp_answer_as_their_filters() {
    let Some(runs) = sit(Stand::Xdp) else { return };
    let several = count(&runs, is_in_pieces);
    println!("of several buffers: {several}, of a file: {}", count(&runs, is_of_a_file));
    assert!(several >= runs.len(), "hardly any frame has several buffers: {several}");
}

/// Direct access at XDP ends with the first buffer: what lies behind it is not there for a twin,
/// which must not take that for the end of the frame.
#[test]
fn twins_do_not_guess_about_the_second_buffer_of_a_frame() {
    let Some(()) = need::bpf() else { return };
    sys::process::pin_to(stage::PROCESSOR).unwrap();
    let Some(net) = Network::new() else { return };
    for hardened in [false, true] {
        let chain = vec![Examined::new(&MATCH, &["at=5000", "hex=66"])];
        let run = run(&net, Stand::Xdp, hardened, chain, &[]);
        println!("hardened {hardened}: {:?}", run.tally);
        assert!(count(&[run], is_of_a_file) > 10);
    }
}
