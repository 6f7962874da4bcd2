//! Tests that compare the test twins, run by the interpreter, with plain Rust. They use every hook
//! except cgroups, and frames truncated to every length, nonlinear frames, and frames with a VLAN
//! tag in the metadata. Mutation tests check that the comparison itself finds faults.

mod test_twins;

use ebpf::emit::{ReturnConversion, Target, Verdict};
use ebpf::exam::{
    self, Disagreement, ExamTotals, InterpreterJudge, TwinJudge, TwinVerdict, mutants, truncations,
};
use ebpf::interpret::{Machine, Packet};
use ebpf::{Hook, Program};
use test_twins::rust_judge::RustJudge;
use test_twins::{CHAINS, TARGETS, TestFilter, compile_chain, format_request, frames};

/// Yields every frame truncated to every length. If packets at the hook can have a VLAN tag in
/// their metadata, yields each truncated frame twice more, with two different tags.
fn truncated_frames<'f>(frames: &'f [Vec<u8>], hook: Hook) -> impl Iterator<Item = Packet<'f>> {
    frames.iter().flat_map(|frame| truncations(frame)).flat_map(move |bytes| {
        let whole = Packet::new(bytes);
        let tagged = [whole.with_tag(0x2007, 0x8100), whole.with_tag(0, 0x88a8)];
        let tag_count = if hook == Hook::Xdp { 0 } else { 2 };
        std::iter::once(whole).chain(tagged.into_iter().take(tag_count))
    })
}

/// Yields every frame truncated to every length, as nonlinear packets. Each packet appears with
/// several lengths of its linear part; the rest of the frame is in a second buffer.
fn nonlinear_frames(frames: &[Vec<u8>]) -> impl Iterator<Item = Packet<'_>> {
    frames.iter().flat_map(|frame| truncations(frame)).flat_map(|bytes| {
        let linear = [0, 14, 33, bytes.len().saturating_sub(1)];
        linear.map(|linear| Packet::new(bytes).with_linear_length(linear))
    })
}

fn compare_interpreter_with_rust<'a>(
    chain: &[TestFilter],
    program: &Program,
    packets: impl Iterator<Item = Packet<'a>>,
) -> Result<ExamTotals, Box<Disagreement>> {
    let mut plain = RustJudge::new(chain, program);
    let mut interpreter = InterpreterJudge::new(program);
    let mut judges: [&mut dyn TwinJudge; 2] = [&mut plain, &mut interpreter];
    exam::compare_judges(&mut judges, packets)
}

#[test]
fn twins_answer_like_plain_rust() {
    let frames = frames::all_frames();
    for chain in CHAINS {
        for target in TARGETS {
            let what = format!("{} for {target:?}", format_request(chain));
            let program = compile_chain(chain, target, ReturnConversion::Answer).unwrap();
            let tally = compare_interpreter_with_rust(
                chain,
                &program,
                truncated_frames(&frames, target.hook),
            )
            .unwrap_or_else(|differ| panic!("{what}: {differ}"));
            assert!(tally.packets > 6_000 && tally.answered > 50, "{what}: {tally:?}");
            assert_eq!(tally.refused, 0);
            // With direct access a twin cannot tell bytes beyond the pulled ones, or in the next
            // buffer, from missing bytes.
            let direct = !target.hardened && target.hook != Hook::Socket;
            let deep = direct && chain.contains(&TestFilter::Ip);
            assert!(tally.unsure <= if deep { 1_000 } else { 0 }, "{what}: {tally:?}");
        }
    }
}

#[test]
fn twins_answer_correctly_or_unsure_for_nonlinear_frames() {
    let frames = frames::all_frames();
    for chain in CHAINS {
        for target in [Hook::Tc.into(), Target::without_perfmon(Hook::Tc)] {
            let program = compile_chain(chain, target, ReturnConversion::Answer).unwrap();
            let tally = compare_interpreter_with_rust(chain, &program, nonlinear_frames(&frames))
                .unwrap_or_else(|differ| {
                    panic!("{} for {target:?}: {differ}", format_request(chain))
                });
            // A trusted program pulls bytes, so its twins are sure about nearly all packets.
            let bound = if target.hardened { tally.packets } else { tally.packets / 20 };
            assert!(tally.unsure <= bound, "{} for {target:?}: {tally:?}", format_request(chain));
        }
    }
}

/// A twin gives a nonlinear frame the same answer as a linear one if the twin reads only bytes that
/// the program pulls into the linear part.
#[test]
fn nonlinear_frames_are_answered_like_linear_ones() {
    let chain = [TestFilter::Eth, TestFilter::Vlan];
    let program = compile_chain(&chain, Hook::Tc, ReturnConversion::Answer).unwrap();
    let mut interpreter = InterpreterJudge::new(&program);
    for frame in frames::all_frames() {
        let whole = interpreter.judge(&Packet::new(&frame));
        for linear in 0..frame.len() {
            assert_eq!(interpreter.judge(&Packet::new(&frame).with_linear_length(linear)), whole);
        }
    }
}

/// A twin is unsure about a nonlinear frame if the twin reads beyond the bytes that the program
/// pulls into the linear part. A linear frame with the same bytes gets an answer.
#[test]
fn deep_headers_of_nonlinear_frames_are_unsure() {
    let chain = [TestFilter::Eth, TestFilter::Ip, TestFilter::Dport];
    let program = compile_chain(&chain, Hook::Tc, ReturnConversion::Answer).unwrap();
    let mut interpreter = InterpreterJudge::new(&program);
    let untagged = frames::all_frames().into_iter().filter(|frame| frame[12..14] == [0x86, 0xdd]);
    let deep = untagged.max_by_key(Vec::len).unwrap();
    assert!(deep.len() > 300, "the longest frame has {} bytes", deep.len());
    let answer = |ruling| match ruling {
        TwinVerdict::Answered { outcome, .. } => outcome,
        other => panic!("{other:?}"),
    };
    use ebpf::emit::Outcome::{Class, Unsure};
    assert_eq!(answer(interpreter.judge(&Packet::new(&deep))), Class(22));
    assert_eq!(answer(interpreter.judge(&Packet::new(&deep).with_linear_length(100))), Unsure);
}

#[test]
fn verdict_values_follow_the_hook() {
    let chain = [TestFilter::Eth, TestFilter::Ip, TestFilter::Dport];
    let finish = ReturnConversion::Verdict {
        found: Verdict::Drop,
        none: Verdict::Pass,
        unsure: Verdict::Pass,
    };
    let found = frames::ethernet_frame(
        0x0800,
        &frames::ipv4_packet(5, 17, None, &frames::udp_datagram(53)),
    );
    let none = frames::ethernet_frame(0x0806, &[0; 46]);
    let mut fragment = found.clone();
    fragment[20] = 0x20;
    for (place, drop, pass) in [(Hook::Tc, 2, -1_i32), (Hook::Xdp, 1, 2), (Hook::Socket, 0, -1)] {
        let program = compile_chain(&chain, place, finish).unwrap();
        let mut machine = Machine::for_program(&program);
        let mut verdict =
            |frame: &[u8]| machine.run(&program.code, place, &Packet::new(frame)).unwrap() as i32;
        assert_eq!([verdict(&found), verdict(&none), verdict(&fragment)], [drop, pass, pass]);
    }
}

#[test]
fn chain_without_link_layer_is_unfit() {
    let unfit = compile_chain(&[TestFilter::Udp], Hook::Tc, ReturnConversion::Answer).unwrap_err();
    assert!(unfit.to_string().ends_with("put `ip` there"), "{unfit}");
}

/// Yields frames truncated around byte 256, where direct packet access ends. Each appears twice: as
/// a linear frame, and with the bytes after byte 256 in a second buffer.
fn frames_around_byte_256(frames: &[Vec<u8>]) -> impl Iterator<Item = Packet<'_>> {
    let ends = frames.iter().flat_map(|frame| (254..=260).map(|end| &frame[..end]));
    ends.map(Packet::new).flat_map(|packet| [packet, packet.with_linear_length(256)])
}

/// Mutates generated programs, and checks that the comparison of twins with plain Rust detects most
/// mutants. A mutant may survive if it is equivalent to the program (for example, if it pulls one
/// byte more than necessary), or if only the kernel would detect the change.
#[test]
fn exam_detects_mutated_twins() {
    let (mut caught, mut all) = (0, 0);
    let deep = frames::frames_with_deep_headers();
    let mut survivors = Vec::new();
    for (chain, place) in [(CHAINS[1], Hook::Tc), (CHAINS[2], Hook::Xdp), (CHAINS[5], Hook::Xdp)] {
        let twin = compile_chain(chain, place, ReturnConversion::Answer).unwrap();
        let tags = chain.contains(&TestFilter::Vlan);
        let mut frames = frames::all_frames();
        frames.retain(|frame| frame.len() < 120 && (tags || !matches!(frame[12], 0x81 | 0x88)));
        let packets = || truncated_frames(&frames, place).chain(frames_around_byte_256(&deep));
        let sound = compare_interpreter_with_rust(chain, &twin, packets()).unwrap();
        for mutant in mutants(&twin) {
            all += 1;
            // A mutant that is unsure about more packets than the twin counts as noticed.
            let found = compare_interpreter_with_rust(chain, &mutant.program, packets());
            if found.map_or(true, |tally| tally.unsure > sound.unsure) {
                caught += 1;
            } else {
                survivors.push(format!("{}, {}", format_request(chain), mutant.describe(&twin)));
            }
        }
    }
    println!("caught {caught} of {all}; survivors: {survivors:#?}");
    assert!(caught * 100 >= all * MUTANTS_CAUGHT_PERCENT, "caught only {caught} of {all}");
}

/// Minimum percentage of mutants that the comparison must detect. It may be raised, never lowered.
const MUTANTS_CAUGHT_PERCENT: u64 = 80;
