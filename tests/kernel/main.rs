//! The twin test with the real kernel as the third judge: for every filter with a twin, every chain
//! that the forms permit, and every target, the three judges must agree on every packet, in class
//! and counted reasons. The judges are the user implementations, the interpreter, and the verified
//! program in the kernel. The tests iterate over the catalog, and contain no code for specific
//! filters.
//!
//! Programs for users are loaded as in production, without CAP_PERFMON. Packets that
//! BPF_PROG_TEST_RUN cannot produce (fragments, tags in metadata) are tested with the two other
//! judges, in `filter`.
//!
//! A twin may return unsure instead of a class, but not for plain traffic.
//!
//! The socket filters derived from `bpf` have their own test: `socket_filter`.
#![forbid(unsafe_code)]

#[path = "../../crates/filter/tests/corpus/mod.rs"]
mod corpus;
#[path = "../../crates/sys/tests/judge/mod.rs"]
mod judge;

mod classic;
mod live;
mod loader;
mod measurements;
mod mutants;
mod older_kernels;
mod socket_filter;
mod verifier_log;

use corpus::boundaries::{boundary_frames, ethernet_bytes, looks_like_pending_checksum};
use ebpf::Hook;
use ebpf::emit::Target;
use ebpf::exam::{self, ExamTotals, InterpreterJudge};
use ebpf::interpret::Packet;
use filter::testing::Frame;
use filter::testing::twins::{
    ReferenceChain, TwinCase, TwinChain, edits_frames, long_twin_chains, request_text,
    try_emit_program, twin_chains,
};
use judge::{KernelJudge, is_refused, run_without_perfmon};
use testkit::{Random, need};

const HOOKS: [Hook; 3] = [Hook::Tc, Hook::Xdp, Hook::Socket];

/// Runs `work` for every target, in a thread with the capabilities used to load programs for that
/// target.
fn for_every_target<T: Send>(work: impl Fn(Target) -> T + Sync) -> Vec<T> {
    let mut done: Vec<T> = HOOKS.map(|place| work(place.into())).into();
    done.extend(run_without_perfmon(|| HOOKS.map(|place| work(Target::without_perfmon(place)))));
    // Programs at this hook are never trusted.
    done.push(run_without_perfmon(|| work(Target::without_perfmon(Hook::Cgroup))));
    done
}

/// Compares the results of the user implementations, the interpreter and the kernel on every
/// packet. Returns `None` if the chain edits frames and the target does not allow it.
fn compare_judges<'a>(
    chain: &[TwinCase],
    target: Target,
    packets: impl IntoIterator<Item = Packet<'a>>,
) -> Option<ExamTotals> {
    let program = try_emit_program(chain, target)?;
    let (mut user, mut interpreter) =
        (ReferenceChain::new(chain, &program), InterpreterJudge::new(&program));
    let mut kernel = KernelJudge::load(&program, "chain");
    // Stateful filters must all receive the same packets.
    let keeps = program.maps.iter().any(|map| map.state_of.is_some());
    let packets =
        packets.into_iter().filter_map(|packet| exam::packet_at_hook(&packet, target.hook));
    let packets = packets.filter(|p| !keeps || !is_refused(target.hook, p.bytes));
    let sat = exam::compare_judges(&mut [&mut user, &mut interpreter, &mut kernel], packets);
    Some(sat.unwrap_or_else(|differ| panic!("`{}` for {target:?}: {differ}", request_text(chain))))
}

/// Compares the judges on chains of filters. Chains of one or two filters are tested for every
/// target. Of every 120 chains of three filters, one is tested for each of the seven targets. A
/// chain of `n` filters receives one frame in `steps[n - 1]`; different chains receive different
/// frames.
fn compare_all_chains(frames: &[Vec<u8>], steps: &[usize]) -> Vec<(TwinChain, ExamTotals)> {
    let sat = for_every_target(|target| {
        let place = HOOKS.iter().position(|place| *place == target.hook);
        let place = place.unwrap_or(HOOKS.len());
        let target_number = place + if target.hardened { HOOKS.len() } else { 0 };
        let chains = twin_chains(steps.len()).into_iter().enumerate().filter(|(number, chain)| {
            chain.len() < 3 || number % (40 * HOOKS.len()) == target_number
        });
        let tallies = chains.filter_map(|(number, chain)| {
            let step = steps[chain.len() - 1];
            let sample = frames.iter().skip(number % step).step_by(step);
            let tally = compare_judges(&chain, target, sample.map(|frame| Packet::new(frame)))?;
            Some((chain, tally))
        });
        tallies.collect::<Vec<_>>()
    });
    sat.into_iter().flatten().collect()
}

fn sum_exam_totals(tallies: &[(TwinChain, ExamTotals)]) -> ExamTotals {
    let add = |sum: ExamTotals, (_, tally): &(TwinChain, ExamTotals)| ExamTotals {
        packets: sum.packets + tally.packets,
        answered: sum.answered + tally.answered,
        unsure: sum.unsure + tally.unsure,
        refused: sum.refused + tally.refused,
    };
    tallies.iter().fold(ExamTotals::default(), add)
}

#[test]
fn v4_every_chain_matches_its_filters() {
    let Some(()) = need::require_bpf() else { return };
    let total = sum_exam_totals(&compare_all_chains(&boundary_frames(), &[1, 7, 37]));
    println!("{} chains: {total:?}", twin_chains(3).len());
    assert!(total.answered > 10_000 && total.refused * 20 < total.packets, "{total:?}");
}

#[test]
fn every_twin_matches_on_frames_truncated_anywhere() {
    let Some(()) = need::require_bpf() else { return };
    let (borders, chains) = (boundary_frames(), twin_chains(1));
    let tallies = for_every_target(|target| {
        let each = chains.iter().enumerate().filter_map(|(number, chain)| {
            let frames = borders.iter().skip(number).step_by(17);
            let cuts = frames.flat_map(|frame| exam::truncations(frame)).map(Packet::new);
            Some((chain.clone(), compare_judges(chain, target, cuts)?))
        });
        each.collect::<Vec<_>>()
    });
    let total = sum_exam_totals(&tallies.concat());
    println!("{total:?}");
    assert!(total.answered > 10_000, "{total:?}");
}

#[test]
fn twins_are_sure_of_plain_captures() {
    assert_twins_are_sure(corpus::application_traffic);
}

#[test]
fn corpus_twins_are_sure_of_external_captures() {
    if testkit::corpus_captures().is_some() {
        assert_twins_are_sure(corpus::external_frames);
    }
}

#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn assert_twins_are_sure(captured: corpus::CaptureReader) {
    let Some(()) = need::require_bpf() else { return };
    let mut captured = ethernet_bytes(captured(2));
    captured.retain(|frame| frame.len() < 2000);
    let tallies = compare_all_chains(&captured, &[2, 7]);
    println!("{} frames: {:?}", captured.len(), sum_exam_totals(&tallies));
    for (chain, tally) in &tallies {
        // Some external captures contain frames whose checksums the sender's card filled in.
        let most = if edits_frames(chain) { 5 } else { 10 };
        let sure = tally.unsure * most <= tally.packets;
        assert!(sure, "`{}` is unsure: {tally:?}", request_text(chain));
    }
}

#[test]
fn every_twin_matches_on_generated_frames_and_noise() {
    let Some(()) = need::require_bpf() else { return };
    let mut random = Random::with_replayable_seed();
    let traffic = testkit::mixed_traffic(random.next_u64(), 20).frames;
    let frames: Vec<Frame> = traffic.iter().map(|(_, bytes)| ethernet_frame(bytes)).collect();
    let made = frames.iter().map(|frame| frame.bytes.clone());
    // At XDP a valid checksum may look pending, so the twin must be unsure.
    let made: Vec<Vec<u8>> = made.filter(|frame| !looks_like_pending_checksum(frame)).collect();
    let tallies = compare_all_chains(&made, &[2, 13]);
    let plain = sum_exam_totals(&tallies);
    let unsure = tallies.iter().filter(|(_, tally)| tally.unsure > 0);
    let unsure: Vec<_> = unsure.map(|(chain, tally)| (request_text(chain), tally)).collect();
    let mut noise = ethernet_bytes(corpus::noise_frames(&corpus::header_case_frames(), 2_000));
    noise.extend(ethernet_bytes(corpus::noise_frames(&frames, 1_000)));
    let noisy = sum_exam_totals(&compare_all_chains(&noise, &[2, 13]));
    println!("{} frames made: {plain:?}; {} of noise: {noisy:?}", made.len(), noise.len());
    assert!(plain.answered > 1_000 && unsure.is_empty(), "{plain:?}: {unsure:?}");
    assert!(noisy.answered > 1_000 && noisy.unsure < noisy.packets, "{noisy:?}");
}

fn ethernet_frame(bytes: &[u8]) -> Frame {
    Frame::new(filter::testing::ETHERNET, bytes)
}

/// Chains of forty or more filters are compiled to several programs connected by tail calls.
#[test]
fn i6_long_chains_match_their_filters() {
    let Some(()) = need::require_bpf() else { return };
    let borders = boundary_frames();
    let mut total = 0;
    for place in HOOKS {
        for chain in long_twin_chains() {
            let Some(program) = try_emit_program(&chain, place) else { continue };
            let parts = program.tails.len();
            assert!(chain.len() >= 40 && parts > 0, "{parts} parts at {place:?}");
            let packets = borders.iter().map(|frame| Packet::new(frame));
            total +=
                compare_judges(&chain, place.into(), packets).map_or(0, |tally| tally.answered);
        }
    }
    assert!(total > 1_000, "{total} answered");
}
