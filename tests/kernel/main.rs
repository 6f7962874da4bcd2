//! The twin exam with the real kernel as the third judge: for every filter of the catalog that has
//! a twin, every chain of them that the forms allow, and every target, three say the same of every
//! packet, in class and in counted reasons: the user implementations, the interpreter, and the
//! program that the verifier took, run by the kernel. One loop over the catalog, no code for any
//! filter.
//!
//! Programs for users are loaded as they will be: without CAP_PERFMON. What a test run cannot make
//! (frames in pieces, tags beside) is examined by the two other judges, in `filter`.
//!
//! A twin may be unsure instead of answering, but not of plain traffic.
//!
//! What `bpf` asks ahead has an exam of its own: `socket_filter`.
#![forbid(unsafe_code)]

#[path = "../../crates/filter/tests/corpus/mod.rs"]
mod corpus;
#[path = "../../crates/sys/tests/judge/mod.rs"]
mod judge;

mod classic;
mod figures;
mod floors;
mod live;
mod loader;
mod mutants;
mod socket_filter;
mod source;

use corpus::borders::{borders, ethernet, looks_unfilled};
use ebpf::Hook;
use ebpf::emit::Target;
use ebpf::exam::{self, Interpreter, Tally};
use ebpf::interpret::Packet;
use filter::testing::Frame;
use filter::testing::twins::{
    Chain, Examined, User, chains, changes, fitting, long_chains, request,
};
use judge::{Kernel, is_refused, without_perfmon};
use testkit::{Random, need};

const PLACES: [Hook; 3] = [Hook::Tc, Hook::Xdp, Hook::Socket];

/// Does it for every target, in a thread that has the capabilities with which programs are loaded
/// there.
fn at_every_target<T: Send>(work: impl Fn(Target) -> T + Sync) -> Vec<T> {
    let mut done: Vec<T> = PLACES.map(|place| work(place.into())).into();
    done.extend(without_perfmon(|| PLACES.map(|place| work(Target::hardened(place)))));
    // Programs there are never trusted.
    done.push(without_perfmon(|| work(Target::hardened(Hook::Cgroup))));
    done
}

/// Asks the three judges about every packet; a chain that changes frames does not fit everywhere.
fn sit<'a>(
    chain: &[Examined],
    target: Target,
    packets: impl IntoIterator<Item = Packet<'a>>,
) -> Option<Tally> {
    let program = fitting(chain, target)?;
    let (mut user, mut interpreter) = (User::new(chain, &program), Interpreter::new(&program));
    let mut kernel = Kernel::load(&program, "chain");
    // Filters that keep something must all see the same packets.
    let keeps = program.maps.iter().any(|map| map.state_of.is_some());
    let packets = packets.into_iter().filter_map(|packet| exam::at_hook(&packet, target.hook));
    let packets = packets.filter(|p| !keeps || !is_refused(target.hook, p.bytes));
    let sat = exam::compare(&mut [&mut user, &mut interpreter, &mut kernel], packets);
    Some(sat.unwrap_or_else(|differ| panic!("`{}` for {target:?}: {differ}", request(chain))))
}

/// Every chain at every target, of those of three one of twenty, at one of them each. Those of one
/// filter are given one frame of `steps[0]`, those of two one of `steps[1]`, and so on: the longer
/// the chain, the more of it others have shown. Each gets other frames.
fn sit_all(frames: &[Vec<u8>], steps: &[usize]) -> Vec<(Chain, Tally)> {
    let sat = at_every_target(|target| {
        let place = PLACES.iter().position(|place| *place == target.hook);
        let place = place.unwrap_or(PLACES.len());
        let target_number = place + if target.hardened { PLACES.len() } else { 0 };
        let chains = chains(steps.len()).into_iter().enumerate().filter(|(number, chain)| {
            chain.len() < 3 || number % (40 * PLACES.len()) == target_number
        });
        let tallies = chains.filter_map(|(number, chain)| {
            let step = steps[chain.len() - 1];
            let sample = frames.iter().skip(number % step).step_by(step);
            let tally = sit(&chain, target, sample.map(|frame| Packet::new(frame)))?;
            Some((chain, tally))
        });
        tallies.collect::<Vec<_>>()
    });
    sat.into_iter().flatten().collect()
}

fn sum(tallies: &[(Chain, Tally)]) -> Tally {
    let add = |sum: Tally, (_, tally): &(Chain, Tally)| Tally {
        packets: sum.packets + tally.packets,
        answered: sum.answered + tally.answered,
        unsure: sum.unsure + tally.unsure,
        refused: sum.refused + tally.refused,
    };
    tallies.iter().fold(Tally::default(), add)
}

#[test]
fn v4_every_chain_answers_as_its_filters_do() {
    let Some(()) = need::bpf() else { return };
    let total = sum(&sit_all(&borders(), &[1, 7, 37]));
    println!("{} chains: {total:?}", chains(3).len());
    assert!(total.answered > 10_000 && total.refused * 20 < total.packets, "{total:?}");
}

#[test]
fn every_twin_answers_frames_cut_at_every_length() {
    let Some(()) = need::bpf() else { return };
    let (borders, chains) = (borders(), chains(1));
    let tallies = at_every_target(|target| {
        let each = chains.iter().enumerate().filter_map(|(number, chain)| {
            let frames = borders.iter().skip(number).step_by(17);
            let cuts = frames.flat_map(|frame| exam::cuts(frame)).map(Packet::new);
            Some((chain.clone(), sit(chain, target, cuts)?))
        });
        each.collect::<Vec<_>>()
    });
    let total = sum(&tallies.concat());
    println!("{total:?}");
    assert!(total.answered > 10_000, "{total:?}");
}

#[test]
fn twins_are_sure_of_plain_captures() {
    are_sure(corpus::plain);
}

#[test]
fn corpus_twins_are_sure_of_what_others_captured() {
    if testkit::corpus().is_some() {
        are_sure(corpus::outside);
    }
}

#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn are_sure(captured: corpus::Captured) {
    let Some(()) = need::bpf() else { return };
    let mut captured = ethernet(captured(2));
    captured.retain(|frame| frame.len() < 2000);
    let tallies = sit_all(&captured, &[2, 7]);
    println!("{} frames: {:?}", captured.len(), sum(&tallies));
    for (chain, tally) in &tallies {
        // Among others' captures are some of senders whose card filled checksums in.
        let most = if changes(chain) { 5 } else { 10 };
        let sure = tally.unsure * most <= tally.packets;
        assert!(sure, "`{}` is unsure: {tally:?}", request(chain));
    }
}

#[test]
fn every_twin_answers_what_is_made_here_and_noise() {
    let Some(()) = need::bpf() else { return };
    let mut random = Random::replayable();
    let traffic = testkit::traffic(random.next(), 20).frames;
    let frames: Vec<Frame> = traffic.iter().map(|(_, bytes)| ethernet_frame(bytes)).collect();
    let made = frames.iter().map(|frame| frame.bytes.clone());
    // Of a right checksum that looks empty XDP must be unsure.
    let made: Vec<Vec<u8>> = made.filter(|frame| !looks_unfilled(frame)).collect();
    let tallies = sit_all(&made, &[2, 13]);
    let plain = sum(&tallies);
    let unsure = tallies.iter().filter(|(_, tally)| tally.unsure > 0);
    let unsure: Vec<_> = unsure.map(|(chain, tally)| (request(chain), tally)).collect();
    let mut noise = ethernet(corpus::noise(&corpus::shapes(), 2_000));
    noise.extend(ethernet(corpus::noise(&frames, 1_000)));
    let noisy = sum(&sit_all(&noise, &[2, 13]));
    println!("{} frames made: {plain:?}; {} of noise: {noisy:?}", made.len(), noise.len());
    assert!(plain.answered > 1_000 && unsure.is_empty(), "{plain:?}: {unsure:?}");
    assert!(noisy.answered > 1_000 && noisy.unsure < noisy.packets, "{noisy:?}");
}

fn ethernet_frame(bytes: &[u8]) -> Frame {
    Frame::of(filter::testing::ETHERNET, bytes)
}

/// Lines of more than forty filters: several programs, of which one calls the next.
#[test]
fn i6_long_lines_answer_as_their_filters_do() {
    let Some(()) = need::bpf() else { return };
    let borders = borders();
    let mut total = 0;
    for place in PLACES {
        for chain in long_chains() {
            let Some(program) = fitting(&chain, place) else { continue };
            let parts = program.tails.len();
            assert!(chain.len() >= 40 && parts > 0, "{parts} parts at {place:?}");
            let packets = borders.iter().map(|frame| Packet::new(frame));
            total += sit(&chain, place.into(), packets).map_or(0, |tally| tally.answered);
        }
    }
    assert!(total > 1_000, "{total} answered");
}
