//! Tests of pcap-filter(7) in the kernel: programs that were translated to eBPF and loaded return
//! the same values as the original programs in the classic interpreter. The programs are libpcap's
//! test set, our compilation of its expressions, the catalog's expressions, and random programs;
//! the frames are captured, or derived from each program. Fragmented frames and tags in metadata
//! are tested in `ebpf`. The variable `SEED` repeats a run, and `ROUNDS` extends it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that reports its counts")]

use super::judge::{KernelJudge, run_without_perfmon};
use cases::{all_frames, case_folder};
use ebpf::classic::insn::{ANCILLARY_OFFSET, code};
use ebpf::classic::{ClassicProgram, LinkType, Options, compile};
use ebpf::emit::Target;
use ebpf::exam::{self, ExamTotals, InterpreterJudge};
use ebpf::interpret::Packet;
use frames::{Frame, Random};
use programs::{EXPRESSIONS, random_program, read_corpus_programs};
use testkit::need;
use translated::{ClassicJudge, TARGETS, captured_and_random_frames, emit_classic};

#[path = "../../crates/ebpf/tests/classic/cases.rs"]
#[expect(dead_code, reason = "the cases use the rest")]
mod cases;
#[path = "../../crates/ebpf/tests/classic/frames.rs"]
#[expect(dead_code, reason = "the cases use the rest")]
mod frames;
#[path = "../../crates/ebpf/tests/classic/programs.rs"]
mod programs;
#[path = "../../crates/ebpf/tests/classic/translated.rs"]
mod translated;

/// Maximum frame length in BPF_PROG_TEST_RUN, in bytes: a page minus the kernel's overhead.
const TEST_RUN_FRAME_MAX: usize = 2000;

fn number_from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Runs one program in three ways: in the classic interpreter and, translated to eBPF for the
/// target, in the eBPF interpreter and in the kernel. Asserts that all three return the same value
/// for every frame.
fn compare_judges(
    name: &str,
    program: &ClassicProgram,
    target: Target,
    frames: &[Vec<u8>],
) -> ExamTotals {
    let made = emit_classic(program, target).unwrap_or_else(|unfit| panic!("{name}: {unfit}"));
    let (mut classic, mut interpreter) =
        (ClassicJudge(program, target.hook), InterpreterJudge::new(&made));
    let load = || KernelJudge::load(&made, "expression");
    let mut kernel = if target.hardened { run_without_perfmon(load) } else { load() };
    let packets = frames.iter().map(|frame| Packet::new(frame));
    exam::compare_judges(&mut [&mut classic, &mut interpreter, &mut kernel], packets)
        .unwrap_or_else(|e| {
            panic!("{name} for {target:?}: {e}\n{program}\n{}", ebpf::disasm::list_program(&made))
        })
}

/// Runs each classic program and its translation on frames generated for it, and requires equal
/// results. The programs are translated for the targets in rotation.
fn compare_programs(
    test: &str,
    all: &[(String, ClassicProgram)],
    captured: &[Frame],
    frames: usize,
) {
    let (seed, rounds) = (
        number_from_environment("SEED", 20_261_121),
        number_from_environment("ROUNDS", 1) as usize,
    );
    let mut sum = ExamTotals::default();
    let mut loaded = 0;
    for (index, (name, program)) in all.iter().enumerate() {
        if program.has_loop() || reads_socket_metadata(program) {
            continue;
        }
        let mut random = Random(seed ^ (index as u64) << 32);
        let mut made = captured_and_random_frames(program, captured, frames * rounds, &mut random);
        made.retain(|frame| frame.len() < TEST_RUN_FRAME_MAX);
        let tally = compare_judges(name, program, TARGETS[index % TARGETS.len()], &made);
        loaded += 1;
        sum.packets += tally.packets;
        sum.answered += tally.answered;
        sum.refused += tally.refused;
        sum.unsure += tally.unsure;
    }
    println!("{test}: SEED={seed}, {loaded} of {} programs loaded, {sum:?}", all.len());
    assert!(loaded * 10 > all.len() * 9, "{loaded} of {} programs", all.len());
    assert!(sum.answered * 20 > sum.packets && sum.refused * 5 < sum.packets, "{sum:?}");
    assert_eq!(sum.unsure, 0);
}

/// Returns true if the program loads metadata of the socket buffer.
fn reads_socket_metadata(program: &ClassicProgram) -> bool {
    let mut loads = program.instructions().iter();
    loads.any(|i| i.code & 0xe7 == code::LD | code::ABS && i.k >= ANCILLARY_OFFSET)
}

#[test]
fn corpus_libpcap_programs_match_the_kernel() {
    let test = "corpus_libpcap_programs_match_the_kernel";
    let Some(()) = need::require_bpf() else { return };
    let Some(folder) = case_folder(test) else { return };
    let captured = all_frames(&folder).into_iter().filter(|(link, _)| *link == LinkType::EN10MB);
    let captured: Vec<Frame> = captured.map(|(_, frame)| frame).collect();
    compare_programs(test, &read_corpus_programs(&folder), &captured, 40);
}

#[test]
fn catalog_expressions_match_the_kernel() {
    let Some(()) = need::require_bpf() else { return };
    let options = [true, false].map(|optimize| Options { optimize, ..Options::default() });
    let of = |expression: &&str, options| {
        let program = compile(expression, LinkType::EN10MB, options);
        ((*expression).to_owned(), program.unwrap_or_else(|e| panic!("{expression}: {e}")))
    };
    let all: Vec<_> = TARGETS
        .iter()
        .flat_map(|_| options.iter().flat_map(|o| EXPRESSIONS.iter().map(move |e| of(e, o))))
        .collect();
    compare_programs("catalog_expressions_match_the_kernel", &all, &[], 100);
}

#[test]
fn random_programs_match_the_kernel() {
    let Some(()) = need::require_bpf() else { return };
    let mut random = Random(number_from_environment("SEED", 20_261_121));
    let all: Vec<_> =
        (0..500).map(|_| ("random_program".to_owned(), random_program(&mut random))).collect();
    compare_programs("random_programs_match_the_kernel", &all, &[], 20);
}
