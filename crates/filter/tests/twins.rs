//! Comparison of twins with their filters. For every filter with a kernel twin, and for every chain
//! of such filters that the forms allow, the user implementation and the interpreted twin must
//! agree on every packet, in the class and in the counted reasons.
//!
//! The comparison is a loop over the catalog, without code for individual filters. A twin may be
//! unsure about a packet, but not about plain traffic.

mod corpus;

use corpus::boundaries::{
    boundary_frames, ethernet_bytes, packets_in_all_layouts, pending_checksum_frames,
    pending_lookalike_frames, truncated_at_headers,
};
use ebpf::emit::Outcome;
use ebpf::exam::{self, InterpreterJudge, TwinJudge, TwinVerdict};
use ebpf::interpret::Packet;
use ebpf::{Hook, Program};
use filter::testing::twins::{
    ReferenceChain, TwinCase, edits_frames, emit_program, long_twin_chains, request_text,
    try_emit_program, twin_chains,
};

fn compare_packets<'a>(
    chain: &[TwinCase],
    program: &Program,
    packets: impl IntoIterator<Item = Packet<'a>>,
) -> Result<exam::ExamTotals, String> {
    let (mut user, mut interpreter) =
        (ReferenceChain::new(chain, program), InterpreterJudge::new(program));
    let place = program.hook;
    let packets = packets.into_iter().filter_map(|packet| exam::packet_at_hook(&packet, place));
    exam::compare_judges(&mut [&mut user, &mut interpreter], packets)
        .map_err(|differ| format!("`{}` at {:?}: {differ}", request_text(chain), program.hook))
}

const HOOKS: [Hook; 4] = [Hook::Tc, Hook::Xdp, Hook::Socket, Hook::Cgroup];

#[test]
fn v4_every_twin_answers_like_its_filter() {
    let borders = boundary_frames();
    let packets = packets_in_all_layouts(&borders);
    let mut answered = 0;
    for (number, chain) in twin_chains(3).iter().enumerate() {
        // There are thousands of chains of three, and their parts are examined separately.
        if chain.len() == 3 && number % 7 != 0 {
            continue;
        }
        for place in HOOKS {
            // The longer the chain, the more of it is covered by shorter chains.
            let step = match (chain.len(), place) {
                (1, _) => 1,
                (2, Hook::Tc) => 3,
                (2, _) => 11,
                (_, Hook::Tc) => 37,
                _ => continue,
            };
            let Some(program) = try_emit_program(chain, place) else { continue };
            let tally = compare_packets(chain, &program, packets.iter().copied().step_by(step));
            answered += tally.unwrap_or_else(|wrong| panic!("{wrong}")).answered;
        }
    }
    assert!(answered > 10_000, "only {answered} packets were answered");
}

/// An editing twin must leave a frame unchanged if the twin is unsure or gives the frame no class.
/// The tc or the XDP hook accepts such a twin; a socket filter must reject it.
#[test]
fn i6_editing_twins_edit_all_or_nothing() {
    let borders = boundary_frames();
    let packets = packets_in_all_layouts(&borders);
    for chain in twin_chains(1).into_iter().filter(|chain| edits_frames(chain)) {
        assert!(emit_program(&chain, Hook::Socket).is_err(), "{}", request_text(&chain));
        let (mut fits, mut unsure) = (0, 0);
        for place in [Hook::Tc, Hook::Xdp] {
            let Ok(program) = emit_program(&chain, place) else { continue };
            fits += 1;
            let mut interpreter = InterpreterJudge::new(&program);
            for packet in
                packets.iter().copied().chain(exam::truncations(&borders[0]).map(Packet::new))
            {
                let TwinVerdict::Answered { outcome, frame, .. } = interpreter.judge(&packet)
                else {
                    panic!("`{}` at {place:?} is broken", request_text(&chain))
                };
                let before = exam::insert_tag_inline(packet.bytes, packet.tag, place);
                if matches!(outcome, Outcome::Unsure | Outcome::Class(0)) {
                    unsure += 1;
                    assert_eq!(frame.as_deref(), Some(&before[..]), "`{}`", request_text(&chain));
                }
            }
        }
        assert!(fits > 0 && unsure > 0, "`{}` fits at {fits} places", request_text(&chain));
    }
}

/// At XDP, the twin leaves two kinds of checksums to the user implementation, because XDP cannot
/// distinguish them: a pending checksum, which the network device still has to fill in, and a valid
/// checksum of the same value. A tc program can distinguish them, and the twin updates the valid
/// checksum.
#[test]
fn i6_checksums_that_look_pending_are_updated() {
    let frames = pending_lookalike_frames();
    for chain in twin_chains(1) {
        let sat = [Hook::Tc, Hook::Xdp].map(|place| {
            let program = try_emit_program(&chain, place)?;
            let packets = frames.iter().map(|frame| Packet::new(frame));
            Some(
                compare_packets(&chain, &program, packets)
                    .unwrap_or_else(|wrong| panic!("{wrong}")),
            )
        });
        let mends =
            request_text(&chain).starts_with("rewrite") && request_text(&chain).contains("port=");
        if let (true, [Some(tc), Some(xdp)]) = (mends, sat) {
            // Half of the frames are IPv6, whose addresses are not rewritten.
            assert_eq!((tc.answered * 2, tc.unsure), (tc.packets, 0), "{}", request_text(&chain));
            assert_eq!(xdp.unsure * 2, xdp.packets, "{}", request_text(&chain));
        }
    }
}

/// A tc program detects pending checksums, which the network device still has to fill in. At XDP,
/// the twin leaves blocks with such checksums to the user implementation.
#[test]
fn i6_pending_checksums_stay_pending() {
    let frames = pending_checksum_frames();
    let packets = || frames.iter().map(|frame| Packet::new(frame).with_unfilled_checksum());
    for chain in twin_chains(1) {
        let sat = [Hook::Tc, Hook::Xdp].map(|place| {
            let program = try_emit_program(&chain, place)?;
            Some(
                compare_packets(&chain, &program, packets())
                    .unwrap_or_else(|wrong| panic!("{wrong}")),
            )
        });
        let mends =
            request_text(&chain).starts_with("rewrite") && request_text(&chain).contains("port=");
        if let (true, [Some(tc), Some(xdp)]) = (mends, sat) {
            // Half of the frames are IPv6, whose addresses are not rewritten.
            assert_eq!((tc.answered * 2, tc.unsure), (tc.packets, 0), "{}", request_text(&chain));
            assert_eq!(xdp.unsure * 2, xdp.packets, "{}", request_text(&chain));
        }
    }
}

#[test]
fn twins_answer_frames_truncated_to_every_length() {
    assert_truncated_frames_answered(corpus::generated_frames);
}

#[test]
fn corpus_twins_answer_truncated_external_frames() {
    if testkit::corpus_captures().is_some() {
        assert_truncated_frames_answered(corpus::external_frames);
    }
}

fn assert_truncated_frames_answered(captured: corpus::CaptureReader) {
    let mut borders = boundary_frames();
    let captured = ethernet_bytes(captured(1)).into_iter().filter(|frame| frame.len() < 120);
    borders.extend(captured.step_by(20));
    for chain in twin_chains(1) {
        for place in [Hook::Xdp, Hook::Tc, Hook::Cgroup] {
            let Some(program) = try_emit_program(&chain, place) else { continue };
            let step = if place == Hook::Tc { 29 } else { 11 };
            let cut = borders.iter().step_by(step).flat_map(|frame| exam::truncations(frame));
            let tally = compare_packets(&chain, &program, cut.map(Packet::new));
            tally.unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }
}

#[test]
fn twins_answer_most_frames_of_plain_captures() {
    assert_plain_frames_answered(corpus::application_traffic);
}

#[test]
fn corpus_twins_answer_most_external_frames() {
    if testkit::corpus_captures().is_some() {
        assert_plain_frames_answered(corpus::external_frames);
    }
}

fn assert_plain_frames_answered(captured: corpus::CaptureReader) {
    let mut captured = ethernet_bytes(captured(3));
    captured.retain(|frame| frame.len() < 2000);
    for (number, chain) in twin_chains(2).iter().enumerate() {
        for place in [Hook::Tc, Hook::Cgroup] {
            let Some(program) = try_emit_program(chain, place) else { continue };
            let step = if place == Hook::Tc { 1 } else { 11 };
            let packets = captured.iter().skip(number % step).step_by(step);
            let tally = compare_packets(chain, &program, packets.map(|frame| Packet::new(frame)));
            let tally = tally.unwrap_or_else(|wrong| panic!("{wrong}"));
            let most = tally.unsure * 10 <= tally.packets;
            assert!(most, "`{}` is unsure at {place:?}: {tally:?}", request_text(chain));
        }
    }
}

/// Chains that are too long for one program must agree with their filters too (CONTRACT 18). Such a
/// chain becomes several programs, whose tail calls the interpreter follows.
#[test]
fn i6_long_chains_in_several_programs_agree_with_filters() {
    let borders = boundary_frames();
    let packets = packets_in_all_layouts(&borders);
    for (number, chain) in long_twin_chains().iter().enumerate() {
        let place = HOOKS[number % 2];
        let program = emit_program(chain, place).unwrap_or_else(|unfit| panic!("{unfit}"));
        assert!(chain.len() >= 40 && !program.tails.is_empty(), "{} parts", program.tails.len());
        let tally = compare_packets(chain, &program, packets.iter().copied());
        let tally = tally.unwrap_or_else(|wrong| panic!("{wrong}"));
        assert!(tally.answered > 20, "`{}`: {tally:?}", request_text(chain));
    }
}

/// The comparison must detect mutations of the generated code. Undetected mutations are equivalent
/// programs (initial values of variables that are always set, repeated bounds checks, positions for
/// later filters only), or are visible only to the kernel.
#[test]
fn comparison_detects_mutated_twins() {
    let (borders, unfilled) = (boundary_frames(), pending_checksum_frames());
    let (mut caught, mut all) = (0_u64, 0_u64);
    for chain in twin_chains(1) {
        let twin = emit_program(&chain, Hook::Xdp).unwrap();
        let whole = || {
            let unfilled = unfilled.iter().map(|frame| Packet::new(frame).with_unfilled_checksum());
            borders.iter().map(|frame| Packet::new(frame)).chain(unfilled)
        };
        let cut = || {
            borders.iter().step_by(5).flat_map(|frame| truncated_at_headers(frame)).map(Packet::new)
        };
        let sound = compare_packets(&chain, &twin, whole().chain(cut())).unwrap();
        for mutant in exam::mutants(&twin).iter().step_by(17) {
            all += 1;
            let found = compare_packets(&chain, &mutant.program, whole().chain(cut()));
            if found.map_or(true, |tally| tally.unsure > sound.unsure) {
                caught += 1;
            } else {
                println!("survives: `{}`: {}", request_text(&chain), mutant.describe(&twin));
            }
        }
    }
    assert!(
        all > 50 && caught * 100 >= all * DETECTED_PERCENT_MIN,
        "caught only {caught} of {all}"
    );
}

/// Minimum percentage of mutations of generated twins that the comparison must detect. It must
/// never be lowered.
const DETECTED_PERCENT_MIN: u64 = 65;
