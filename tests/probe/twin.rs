//! Probe 1: `dport` returns the same results as eBPF in the interpreter, as eBPF in the kernel, and
//! in user space.
//!
//! Inputs are captured and generated frames, complete and truncated at every length. The programs
//! are built as by the planner, for both hooks, with packet pointers and hardened. User space is
//! tested packet by packet and as a complete request.
//!
//! A twin may return unsure only in the cases that `filter::twin` documents, each of which is
//! tested.

use crate::catalog_fixture::run_request;
use crate::judge::{KernelJudge, run_without_perfmon};
use ebpf::emit::{Outcome, Target};
use ebpf::exam::{self, ExamTotals, InterpreterJudge, TwinJudge, TwinVerdict};
use ebpf::interpret::Packet;
use ebpf::{Hook, Program};
use filter::prelude::*;
use filter::testing::twins::{ReferenceChain, TwinCase, TwinChain, emit_program};
use std::collections::BTreeMap;
use testkit::{Random, need};

fn dport_chain() -> TwinChain {
    vec![TwinCase::without_arguments(&filter::transport::dport::DPORT)]
}

const TARGETS: [Target; 4] = [
    Target { hook: Hook::Tc, hardened: false, redirects: false, single_buffer: false },
    Target { hook: Hook::Xdp, hardened: false, redirects: false, single_buffer: false },
    Target::without_perfmon(Hook::Tc),
    Target::without_perfmon(Hook::Xdp),
];

/// Permission of the test process to load programs: `Some` if [`need::require_bpf`] succeeded, or
/// `None` after it has printed the reason.
type LoadPermission = Option<()>;

/// Loads the program in the same way as the product does. Returns `None` without the permission.
fn load_if_permitted(allowed: LoadPermission, program: &Program) -> Option<KernelJudge> {
    allowed.map(|()| match program.hardened {
        true => run_without_perfmon(|| KernelJudge::load(program, "dport")),
        false => KernelJudge::load(program, "dport"),
    })
}

/// Compares the answers of all available implementations of `dport` (the judges) on every frame.
fn compare_judges<'a>(
    allowed: LoadPermission,
    target: Target,
    frames: impl IntoIterator<Item = &'a [u8]>,
) -> ExamTotals {
    let program = emit_program(&dport_chain(), target).expect("`dport` has a twin");
    let (mut user, mut interpreter) =
        (ReferenceChain::new(&dport_chain(), &program), InterpreterJudge::new(&program));
    let mut kernel = load_if_permitted(allowed, &program);
    let mut judges: Vec<&mut dyn TwinJudge> = vec![&mut user, &mut interpreter];
    judges.extend(kernel.iter_mut().map(|kernel| -> &mut dyn TwinJudge { kernel }));
    let tally = exam::compare_judges(&mut judges, frames.into_iter().map(Packet::new));
    let tally = tally.unwrap_or_else(|differ| panic!("{target:?}: {differ}"));
    println!("{target:?}, {} judges: {tally:?}", judges.len());
    tally
}

fn captured_frames() -> Vec<Vec<u8>> {
    let path = testkit::cases::workspace_root().join("examples/web.pcap");
    let frames = filter::testing::read_capture(&std::fs::read(path).expect("the bundled capture"));
    frames.into_iter().map(|frame| frame.bytes).collect()
}

fn generated_frames() -> Vec<Vec<u8>> {
    let seed = Random::with_replayable_seed().next_u64();
    testkit::mixed_traffic(seed, 40).frames.into_iter().map(|(_, bytes)| bytes).collect()
}

fn frame_slices(frames: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
    frames.iter().map(Vec::as_slice)
}

#[test]
fn all_judges_are_sure_of_complete_frames() {
    let allowed = need::require_bpf();
    let (web, generated) = (captured_frames(), generated_frames());
    for target in TARGETS {
        for frames in [&web, &generated] {
            let tally = compare_judges(allowed, target, frame_slices(frames));
            assert_eq!(tally.packets, frames.len() as u64);
            assert!(tally.answered * 2 > tally.packets, "{tally:?}");
            assert_eq!((tally.unsure, tally.refused), (0, 0), "of plain traffic");
        }
    }
}

#[test]
fn all_judges_agree_on_frames_truncated_anywhere() {
    let allowed = need::require_bpf();
    let (mut frames, mut generated) = (captured_frames(), generated_frames());
    // Beyond the headers length does not matter: the bundled capture has enough long ones.
    generated.retain(|frame| frame.len() < 100);
    frames.extend(generated);
    let frames_cut = || frame_slices(&frames).flat_map(exam::truncations);
    for target in TARGETS {
        let tally = compare_judges(allowed, target, frames_cut());
        assert!(tally.answered > 20_000, "{tally:?}");
        assert_eq!(tally.unsure, 0, "a cut in plain headers is no matter of doubt");
    }
}

#[test]
fn all_judges_are_mostly_sure_of_captures() {
    assert_mostly_sure(testkit::generated_captures().paths);
}

#[test]
fn corpus_all_judges_are_mostly_sure_of_captures() {
    let Some(corpus) = testkit::corpus_captures() else { return };
    assert_mostly_sure(corpus.paths.into_iter().step_by(3).collect());
}

fn assert_mostly_sure(captures: Vec<std::path::PathBuf>) {
    let allowed = need::require_bpf();
    let small = captures.iter().filter_map(|path| std::fs::read(path).ok());
    let packets = small.flat_map(|bytes| filter::testing::read_capture(&bytes).into_iter().take(4));
    let frames = packets.filter(|packet| packet.link == filter::testing::ETHERNET);
    let frames: Vec<Vec<u8>> = frames.map(|frame| frame.bytes).collect();
    for target in TARGETS {
        let tally = compare_judges(
            allowed,
            target,
            frame_slices(&frames).filter(|frame| frame.len() < 2_000),
        );
        assert!(tally.answered > 100, "{tally:?}");
        assert!(tally.unsure * 10 <= tally.packets, "{tally:?}");
    }
}

/// A 16-byte IPv6 extension header without its first byte. The minimum length of such a header is 8
/// bytes.
const LONG_EXTENSION_HEADER: [u8; 15] = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Returns frames, each with a name, for which the twin returns unsure according to `filter::twin`.
fn unsure_frames() -> Vec<(&'static str, Vec<u8>)> {
    let frame = || testkit::Frame::ethernet();
    let four = || frame().ipv4("10.0.0.1", "10.0.0.2");
    let six = || frame().ipv6("::1", "::2");
    let unstated = |mut frame: Vec<u8>, at: usize| {
        frame[at..at + 2].fill(0);
        frame
    };
    let options = four().ipv4_options(&[1; 8]).udp(1, 53, b"");
    vec![
        ("a first fragment", four().fragment(0, true).udp(1, 53, b"12345678")),
        ("a later fragment", four().fragment(64, false).ip_payload(17, b"12345678")),
        (
            "three tags",
            frame()
                .append_vlan_tag(1)
                .append_vlan_tag(2)
                .append_vlan_tag(3)
                .ipv4("10.0.0.1", "10.0.0.2")
                .udp(1, 53, b""),
        ),
        (
            "a length instead of a type",
            frame().append_snap_header().ipv4("10.0.0.1", "10.0.0.2").udp(1, 53, b""),
        ),
        ("IPv4 without a length", unstated(four().udp(1, 53, b""), 16)),
        ("IPv6 without a length", unstated(six().udp(1, 53, b""), 18)),
        ("options that were cut", options[..14 + 20 + 4].to_vec()),
        ("a fragment header", six().fragment(0, true).udp(1, 53, b"12345678")),
        (
            "an authentication header",
            six().ipv6_extension(51, &LONG_EXTENSION_HEADER).udp(1, 53, b""),
        ),
        (
            "a long extension header",
            six().ipv6_extension(60, &LONG_EXTENSION_HEADER).udp(1, 53, b""),
        ),
        (
            "a third extension header",
            six()
                .ipv6_extension(0, &[0; 7])
                .ipv6_extension(60, &[0; 7])
                .ipv6_extension(60, &[0; 7])
                .udp(1, 53, b""),
        ),
    ]
}

#[test]
fn twin_is_unsure_in_the_documented_cases_only() {
    let allowed = need::require_bpf();
    for target in TARGETS {
        let program = emit_program(&dport_chain(), target).expect("`dport` has a twin");
        let mut interpreter = InterpreterJudge::new(&program);
        let mut kernel = load_if_permitted(allowed, &program);
        for (what, frame) in unsure_frames() {
            let packet = Packet::new(&frame);
            let answer = interpreter.judge(&packet);
            let unsure = TwinVerdict::Answered {
                outcome: Outcome::Unsure,
                counter_increases: vec![0; program.counters.len()],
                frame: None,
            };
            assert_eq!(answer, unsure, "the interpreter, {target:?}: {what}");
            if let Some(kernel) = &mut kernel {
                assert_eq!(kernel.judge(&packet), answer, "the kernel, {target:?}: {what}");
            }
        }
        let frames = unsure_frames();
        compare_judges(allowed, target, frames.iter().map(|(_, frame)| frame.as_slice()));
    }
}

/// A filter that counts the blocks of each class.
const COUNT_CLASSES: Description = Description {
    name: "classes",
    summary: "counts blocks by class",
    kind: FilterKind::Inspection,
    has_report: true,
    constructor: Some(|_| Ok(Filter::lanes(CountClassesFilter::default()))),
    ..Description::FILTER_DEFAULTS
};

#[derive(Default)]
struct CountClassesFilter(BTreeMap<u32, u64>);

impl LaneFilter for CountClassesFilter {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        for (_, block) in batch.blocks() {
            *self.0.entry(block.pointer.class.0).or_default() += 1;
        }
    }

    fn report(&self) -> Report {
        Report::from_rows(self.0.iter().map(|(class, n)| (class.to_string(), *n)))
    }
}

/// Lets a judge, an implementation of a twin, answer for each frame, and counts its answers by
/// class. Returns the counts in the form of a filter's report.
fn count_answers(judge: &mut dyn TwinJudge, frames: &[Vec<u8>]) -> Vec<(String, u64)> {
    let mut classes = CountClassesFilter::default();
    for frame in frames {
        match judge.judge(&Packet::new(frame)) {
            TwinVerdict::Answered { outcome: Outcome::Class(class), .. } => {
                *classes.0.entry(class).or_default() += 1;
            }
            other => panic!("{}: {other:?}", judge.name()),
        }
    }
    classes.report().rows
}

#[test]
fn complete_request_matches_its_twin() {
    let allowed = need::require_bpf();
    let path = testkit::cases::workspace_root().join("examples/web.pcap");
    let text = format!("replay '{}' | dport |all classes", path.display());
    let outcome = run_request(&text, &[&COUNT_CLASSES]);
    let reports = outcome.reports.iter().find(|report| report.name == "classes");
    let rows = &reports.expect("a report").report.rows;
    assert!(rows.iter().any(|(class, n)| class == "80" && *n > 10), "{rows:?}");
    for target in TARGETS {
        let program = emit_program(&dport_chain(), target).expect("`dport` has a twin");
        assert_eq!(
            &count_answers(&mut InterpreterJudge::new(&program), &captured_frames()),
            rows,
            "{target:?}"
        );
        if let Some(mut kernel) = load_if_permitted(allowed, &program) {
            assert_eq!(&count_answers(&mut kernel, &captured_frames()), rows, "{target:?}");
        }
    }
}
