//! Tests that classic programs make the same decisions after translation to eBPF. The programs are
//! those of libpcap's test suite, our programs for the same expressions and for this project's
//! expressions, and random programs, at every hook except cgroups. The interpreter judges them on
//! captured, steered, truncated and nonlinear frames, and on frames with a tag in their metadata.
//! `tests/kernel` has the same tests with the kernel as the judge. `SEED=` repeats a run, and
//! `ROUNDS=` extends it.

#![expect(clippy::print_stdout, reason = "the test prints its counts")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "classic/cases.rs"]
#[expect(dead_code, reason = "other test binaries use the rest")]
mod cases;
#[path = "classic/frames.rs"]
#[expect(dead_code, reason = "other test binaries use the rest")]
mod frames;
#[path = "classic/programs.rs"]
mod programs;
#[path = "classic/translated.rs"]
mod translated;

use cases::{all_frames, case_folder};
use ebpf::classic::{ClassicProgram, LinkType, Options, compile};
use ebpf::exam::{self, ExamTotals, InterpreterJudge};
use frames::{Frame, Random};
use programs::{EXPRESSIONS, random_program, read_corpus_programs};
use translated::{ClassicJudge, TARGETS, captured_and_random_frames, emit_classic, frame_forms};

fn env_number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Compares a classic program with its eBPF translation at every target. Panics if the program is
/// unfit for a target, or if the judges disagree.
fn compare_program_at_every_target(
    name: &str,
    program: &ClassicProgram,
    frames: &[Vec<u8>],
    random: &mut Random,
) -> ExamTotals {
    let mut sum = ExamTotals::default();
    for target in TARGETS {
        let made = emit_classic(program, target).unwrap_or_else(|unfit| panic!("{name}: {unfit}"));
        let packets = frames.iter().flat_map(|frame| frame_forms(frame, random));
        let (mut classic, mut extended) =
            (ClassicJudge(program, target.hook), InterpreterJudge::new(&made));
        let tally = exam::compare_judges(&mut [&mut classic, &mut extended], packets)
            .unwrap_or_else(|e| {
                panic!(
                    "{name} for {target:?}: {e}\n{program}\n{}",
                    ebpf::disasm::list_program(&made)
                )
            });
        sum.packets += tally.packets;
        sum.answered += tally.answered;
        sum.unsure += tally.unsure;
    }
    sum
}

fn report_exam_totals(test: &str, programs: usize, sums: &[ExamTotals]) -> ExamTotals {
    let sum = sums.iter().fold(ExamTotals::default(), |sum, tally| ExamTotals {
        packets: sum.packets + tally.packets,
        answered: sum.answered + tally.answered,
        unsure: sum.unsure + tally.unsure,
        refused: 0,
    });
    println!("{test}: {programs} programs, {sum:?}");
    assert_eq!(sum.unsure, 0, "expressions are always sure");
    assert!((sum.packets / 20..sum.packets).contains(&sum.answered), "{sum:?}");
    sum
}

#[test]
fn corpus_libpcap_programs_give_the_same_verdict_as_ebpf() {
    let test = "corpus_libpcap_programs_give_the_same_verdict_as_ebpf";
    let Some(folder) = case_folder(test) else { return };
    let (seed, rounds) = (env_number("SEED", 20_261_121), env_number("ROUNDS", 1) as usize);
    println!("{test}: SEED={seed}");
    let captured = all_frames(&folder).into_iter().filter(|(link, _)| *link == LinkType::EN10MB);
    let captured: Vec<Frame> = captured.map(|(_, frame)| frame).collect();
    let (mut sums, mut loops) = (Vec::new(), 0);
    for (index, (name, program)) in read_corpus_programs(&folder).iter().enumerate() {
        if program.has_loop() || needs_socket_metadata(program) {
            loops += 1;
            continue;
        }
        let mut random = Random(seed ^ (index as u64) << 32);
        let frames = captured_and_random_frames(program, &captured, 6 * rounds, &mut random);
        sums.push(compare_program_at_every_target(name, program, &frames, &mut random));
    }
    report_exam_totals(test, sums.len(), &sums);
    assert!(loops * 10 < sums.len(), "{loops} of {} cannot be translated", sums.len());
}

fn needs_socket_metadata(program: &ClassicProgram) -> bool {
    use ebpf::classic::insn::{ANCILLARY_OFFSET, code};
    let mut loads = program.instructions().iter();
    loads.any(|i| i.code & 0xe7 == code::LD | code::ABS && i.k >= ANCILLARY_OFFSET)
}

#[test]
fn project_expressions_give_the_same_verdict_as_ebpf() {
    let test = "project_expressions_give_the_same_verdict_as_ebpf";
    let (seed, rounds) = (env_number("SEED", 20_261_121), env_number("ROUNDS", 1) as usize);
    println!("{test}: SEED={seed}");
    let mut sums = Vec::new();
    for (index, expression) in EXPRESSIONS.iter().enumerate() {
        let options = Options { optimize: index % 2 == 0, ..Options::default() };
        let program = compile(expression, LinkType::EN10MB, &options);
        let program = program.unwrap_or_else(|error| panic!("{expression}: {error}"));
        let mut random = Random(seed ^ (index as u64) << 32);
        let frames = captured_and_random_frames(&program, &[], 100 * rounds, &mut random);
        sums.push(compare_program_at_every_target(expression, &program, &frames, &mut random));
    }
    report_exam_totals(test, sums.len(), &sums);
}

#[test]
fn random_programs_give_the_same_verdict_as_ebpf() {
    let test = "random_programs_give_the_same_verdict_as_ebpf";
    let (seed, rounds) = (env_number("SEED", 20_261_121), env_number("ROUNDS", 1) as usize);
    println!("{test}: SEED={seed}");
    let mut random = Random(seed);
    let mut sums = Vec::new();
    for _ in 0..400 * rounds {
        let program = random_program(&mut random);
        let frames = captured_and_random_frames(&program, &[], 4, &mut random);
        sums.push(compare_program_at_every_target(
            "random_program",
            &program,
            &frames,
            &mut random,
        ));
    }
    report_exam_totals(test, sums.len(), &sums);
}
