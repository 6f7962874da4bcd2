//! Mutation tests: a twin with one mutated instruction must be detected, because its result for a
//! packet differs from the unmodified twin's, or because the verifier rejects it.
//!
//! The packets are those of the twin test, and frames derived from each twin's comparisons. Each
//! mutation is tried in the twin alone; a mutation that affects only the output to the next filter
//! is tried in chains of two that begin with the twin. Returning unsure for different packets
//! counts as a difference. Survivors must be listed in `survivors.txt` with a reason: an equivalent
//! mutation (`same:`), which is not counted, or a mutation that no packet reaches. For other
//! survivors the test searches for a revealing frame, which should then be added to the corpus
//! module `borders`. `cargo xtask mutants` tries all mutations, a test run tries a sample.
#![expect(clippy::print_stdout, reason = "a test that reports its counts")]

mod explore;
mod frame_search;

use super::corpus::boundaries::{boundary_frames, packets_in_all_layouts, truncated_at_headers};
use super::judge::KernelJudge;
use ebpf::emit::Target;
use ebpf::exam::{self, InterpreterJudge, Mutant, TwinJudge as _, TwinVerdict};
use ebpf::insn::{Insn, class};
use ebpf::interpret::Packet;
use ebpf::{Hook, Program};
use explore::{OwnedPacket, explore_paths};
use filter::testing::twins::{
    ReferenceChain, TwinChain, request_text, try_emit_program, twin_chains,
};
use frame_search::MutantSearchResult;
use std::collections::{BTreeMap, BTreeSet};
use testkit::need;

/// Minimum percentage of detected mutations among all mutations, including equivalent mutations, in
/// a complete run. It may only rise.
const DETECTED_PERCENT_MIN: usize = 90;
/// Minimum percentage of detected mutations in a sampled run.
const SAMPLE_DETECTED_PERCENT_MIN: usize = 80;

/// Sampling rates and search bounds of a mutation run.
#[derive(Clone, Copy)]
struct MutationEffort {
    /// Sampling step for twins: one twin in this many is mutated, for each target.
    twin_step: usize,
    mutation_step: usize,
    /// Maximum number of runs of a twin in the search for test packets, each of which makes the
    /// twin take a new path of execution.
    exploration_runs: usize,
    /// True if the run searches for a frame that reveals each undetected mutation that is not
    /// listed in `survivors.txt`.
    searches_for_frames: bool,
}

/// Sampling rates and search bounds of a test run, which tries a sample of the mutations.
const SAMPLED_EFFORT: MutationEffort = MutationEffort {
    twin_step: 7,
    mutation_step: 5,
    exploration_runs: 10_000,
    searches_for_frames: false,
};
/// Sampling rates and search bounds of `cargo xtask mutants`, which tries all mutations.
const COMPLETE_EFFORT: MutationEffort = MutationEffort {
    twin_step: 1,
    mutation_step: 1,
    exploration_runs: 60_000,
    searches_for_frames: true,
};

/// Number of test packets on which each program also runs while kernel allocations fail.
const ALLOCATION_FAILURE_PACKETS: usize = 100;

/// The identity of a mutation, which is the same in every chain that begins with the mutated twin:
/// the index of the instruction, and the new instruction without its jump distance. The distance
/// depends on the filters after the twin.
type MutationKey = (usize, [u8; 8]);

fn mutation_key(replacement: &Mutant) -> MutationKey {
    let jumps = matches!(replacement.replacement.class(), class::JMP | class::JMP32);
    let off = if jumps { 0 } else { replacement.replacement.off };
    (replacement.at, Insn { off, ..replacement.replacement }.encode())
}

/// The results of testing the mutants of one twin.
#[derive(Default)]
struct MutantResults {
    all: usize,
    answers: usize,
    longer: usize,
    verifier: usize,
    /// The mutations that were not detected, each with its target.
    survivors: Vec<(String, Target)>,
    /// Names of the mutations that were not detected, by key. The key identifies the same mutation
    /// in longer chains.
    survivors_by_key: BTreeMap<MutationKey, String>,
}

/// An unmodified twin with its test packets and results, with which the mutants are compared.
struct OriginalTwin {
    program: Program,
    cases: Vec<OwnedPacket>,
    ruling: Vec<TwinVerdict>,
    kept: Option<Vec<Vec<u8>>>,
    /// Results of the twin for some of the test packets while kernel allocations fail.
    results_without_memory: Vec<TwinVerdict>,
}

impl OriginalTwin {
    /// Creates the test packets of a twin, and runs the unmodified twin on them. Returns `None` if
    /// the twin edits frames and the target does not allow edits.
    fn new(
        chain: &TwinChain,
        target: Target,
        frames: &[Vec<u8>],
        effort: MutationEffort,
    ) -> Option<Self> {
        let program = try_emit_program(chain, target)?;
        let packets = packets_for_target(frames, target);
        let mut cases: Vec<OwnedPacket> = packets.iter().map(OwnedPacket::from_packet).collect();
        let few: Vec<Vec<u8>> = frames.iter().step_by(11).cloned().collect();
        cases.extend(explore_paths(&program, &few, effort.exploration_runs));
        // Merged frames are longer than those of a test run.
        let joined = [4_095, 4_096, 65_535, 65_536, 65_549].map(|length| vec![0x45; length]);
        cases.extend(joined.iter().map(|frame| OwnedPacket::from_bytes(frame)));
        // Check of the sound twin: those frames belong to the exam.
        let (mut user, mut twin) =
            (ReferenceChain::new(chain, &program), InterpreterJudge::new(&program));
        let differ = |differ| panic!("`{}` for {target:?}: {differ}", request_text(chain));
        let all = cases.iter().map(OwnedPacket::packet);
        exam::compare_judges(&mut [&mut user, &mut twin], all).unwrap_or_else(differ);
        // With failing allocations it is correct or unsure.
        let (mut user, mut twin) = (
            ReferenceChain::new(chain, &program),
            InterpreterJudge::new(&program).with_failing_pull_data(),
        );
        let some = cases.iter().step_by(97).map(OwnedPacket::packet);
        exam::compare_judges(&mut [&mut user, &mut twin], some).unwrap_or_else(differ);
        let mut twin = InterpreterJudge::new(&program);
        let ruling = cases.iter().map(|case| twin.judge(&case.packet())).collect();
        let kept = twin.filter_states();
        let mut sound = Self { program, cases, ruling, kept, results_without_memory: Vec::new() };
        sound.results_without_memory = sound.results_with_failing_allocations(&sound.program);
        Some(sound)
    }

    /// Returns the results of a program for some packets while the kernel fails to linearize frames
    /// or to make them writable.
    fn results_with_failing_allocations(&self, program: &Program) -> Vec<TwinVerdict> {
        let mut twin = InterpreterJudge::new(program).with_failing_pull_data();
        let some =
            self.cases.iter().step_by(self.cases.len().div_ceil(ALLOCATION_FAILURE_PACKETS).max(1));
        some.map(|case| twin.judge(&case.packet())).collect()
    }

    /// Returns true if the mutant's results or states for the test packets differ from the twin's.
    fn differs_from_mutant(&self, mutant: &Program) -> bool {
        let mut twin = InterpreterJudge::new(mutant);
        let mut both = self.cases.iter().zip(&self.ruling);
        both.any(|(case, ruling)| twin.judge(&case.packet()) != *ruling)
            || twin.filter_states() != self.kept
            || self.results_with_failing_allocations(mutant) != self.results_without_memory
    }
}

/// Tries one in `effort.mutation_step` of a twin's mutations. Returns `None` if the twin edits
/// frames and the target does not allow edits.
fn detect_twin_mutations(
    twin: &TwinChain,
    target: Target,
    frames: &[Vec<u8>],
    effort: MutationEffort,
) -> Option<MutantResults> {
    let sound = OriginalTwin::new(twin, target, frames, effort)?;
    let mut results = MutantResults::default();
    let listed_survivors = read_survivors_file();
    let mut found: Vec<OwnedPacket> = Vec::new();
    for mutant in exam::mutants(&sound.program).into_iter().step_by(effort.mutation_step) {
        results.all += 1;
        if sound.differs_from_mutant(&mutant.program) {
            results.answers += 1;
            continue;
        }
        if KernelJudge::try_load(&mutant.program, "mutant").is_err() {
            results.verifier += 1;
            continue;
        }
        let replacement = mutant.describe(&sound.program);
        if effort.searches_for_frames && !listed_survivors.contains_key(&replacement) {
            let known = found
                .iter()
                .find(|case| frame_search::programs_differ(&sound.program, &mutant.program, case));
            let hunted = match known {
                Some(known) => MutantSearchResult {
                    found: Some(known.clone()),
                    ..MutantSearchResult::default()
                },
                None => frame_search::find_revealing_packet(&sound.program, &mutant, &sound.cases),
            };
            println!("  {replacement}, at {} of `{}`: {hunted}", mutant.at, request_text(twin));
            found.extend(hunted.found);
        }
        results.survivors_by_key.insert(mutation_key(&mutant), replacement);
    }
    Some(results)
}

/// Tries mutations of a twin in chains of two filters that begin with the twin. There are two kinds
/// of such mutations: those that affect only the output to the second filter, and those that were
/// not detected in the twin alone.
fn detect_paired_twin_mutations(
    twin: &TwinChain,
    target: Target,
    frames: &[Vec<u8>],
    effort: MutationEffort,
    results: &mut MutantResults,
) {
    let Some(alone) = try_emit_program(twin, target) else { return };
    let tried: BTreeSet<usize> =
        exam::mutants(&alone).iter().map(|replacement| replacement.at).collect();
    let begin = request_text(twin);
    let pairs = twin_chains(2).into_iter().filter(|pair| pair.len() == 2);
    let pairs = pairs.filter(|pair| request_text(&pair[..1]) == begin);
    let mut caught = BTreeSet::new();
    for pair in pairs {
        let few = MutationEffort { exploration_runs: effort.exploration_runs / 25, ..effort };
        let Some(sound) = OriginalTwin::new(&pair, target, frames, few) else { continue };
        let behind = sound.program.source_map.iter().find(|line| line.filter == Some(1));
        let ends = behind.map_or(0, |line| line.from);
        for replacement in exam::mutants(&sound.program) {
            let known = mutation_key(&replacement);
            let is_new = replacement.at < ends && !tried.contains(&replacement.at);
            if !(is_new || results.survivors_by_key.contains_key(&known)) || caught.contains(&known)
            {
                continue;
            }
            if is_new {
                results
                    .survivors_by_key
                    .entry(known)
                    .or_insert_with(|| replacement.describe(&sound.program));
            }
            if sound.differs_from_mutant(&replacement.program) {
                caught.insert(known);
            }
        }
    }
    let new = results.survivors_by_key.keys().filter(|(at, _)| !tried.contains(at)).count();
    results.all += new;
    results.longer = caught.len();
    results.survivors_by_key.retain(|known, _| !caught.contains(known));
}

/// Returns the packets for a target: complete frames, frames truncated at the ends of headers and,
/// for tc, frames that are not linear or have a tag in metadata.
fn packets_for_target(frames: &[Vec<u8>], target: Target) -> Vec<Packet<'_>> {
    let mut packets = match target.hook {
        Hook::Tc => packets_in_all_layouts(frames),
        Hook::Xdp | Hook::Socket | Hook::Cgroup => {
            frames.iter().map(|frame| Packet::new(frame)).collect()
        }
    };
    packets.extend(
        frames.iter().step_by(5).flat_map(|frame| truncated_at_headers(frame)).map(Packet::new),
    );
    packets
}

/// The two targets that are tested. Programs for the first access linear data directly, and find
/// tags in metadata. Programs for the second have no CAP_PERFMON, and copy bytes by a helper. All
/// other targets combine properties of these two.
const TARGETS: [Target; 2] = [
    Target { hook: Hook::Tc, hardened: false, redirects: false, single_buffer: false },
    Target::without_perfmon(Hook::Xdp),
];

fn run_mutations(effort: MutationEffort) -> Vec<MutantResults> {
    let only = std::env::var(MUTATED_FILTER_VARIABLE).ok();
    let frames = boundary_frames();
    let mut all_results = Vec::new();
    for (round, target) in TARGETS.into_iter().enumerate() {
        for twin in
            twin_chains(1).iter().skip(round * effort.twin_step / 2).step_by(effort.twin_step)
        {
            if only.as_deref().is_some_and(|name| name != twin[0].description.name) {
                continue;
            }
            let Some(mut results) = detect_twin_mutations(twin, target, &frames, effort) else {
                continue;
            };
            if effort.twin_step == 1 {
                detect_paired_twin_mutations(twin, target, &frames, effort, &mut results);
            }
            let MutantResults { all, answers, longer, verifier, .. } = results;
            let (name, place) = (request_text(twin), target.hook);
            println!(
                "`{name}` at {place:?}: {all} slips, {answers} caught by answers, {longer} behind \
                 others, {verifier} by the verifier"
            );
            for ((at, _), replacement) in std::mem::take(&mut results.survivors_by_key) {
                println!("  survives at {at}: {replacement}");
                results.survivors.push((replacement, target));
            }
            all_results.push(results);
        }
    }
    all_results
}

/// Returns the mutations listed in `survivors.txt` with their reasons.
fn read_survivors_file() -> BTreeMap<String, String> {
    let mut listed_survivors = BTreeMap::new();
    let mut reason = String::new();
    for line in include_str!("../survivors.txt").lines() {
        match line.strip_prefix("  ") {
            Some(replacement) => {
                drop(listed_survivors.insert(replacement.to_owned(), reason.clone()))
            }
            None => line.clone_into(&mut reason),
        }
    }
    listed_survivors
}

/// Asserts that at least `least` percent of the mutations were detected. In a complete run, also
/// asserts that the undetected mutations are exactly those listed in `survivors.txt`. A sample may
/// miss mutations, because it has fewer runs.
fn assert_detection_rate(all_results: &[MutantResults], least: usize, complete: bool) {
    let sum = |of: fn(&MutantResults) -> usize| all_results.iter().map(of).sum::<usize>();
    let (all, verifier) = (sum(|results| results.all), sum(|results| results.verifier));
    let (answers, longer) = (sum(|results| results.answers), sum(|results| results.longer));
    let caught = answers + longer + verifier;
    let listed_survivors = read_survivors_file();
    let gone = all_results.iter().flat_map(|results| &results.survivors);
    let is_same = |replacement: &str| {
        listed_survivors.get(replacement).is_some_and(|why| why.starts_with("same:"))
    };
    let same = gone.filter(|(replacement, _)| is_same(replacement)).count();
    println!(
        "{all} slips: {answers} caught by answers, {longer} by those of chains, {verifier} by the \
         verifier: {:.1} %; {same} change nothing: {:.1} % of the others",
        caught as f64 * 100.0 / all as f64,
        caught as f64 * 100.0 / (all - same) as f64
    );
    let mut survivors: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (replacement, target) in all_results.iter().flat_map(|results| &results.survivors) {
        let place = format!("{:?}{}", target.hook, if target.hardened { "+" } else { "" });
        survivors.entry(replacement).or_default().insert(place);
    }
    let unexcused =
        survivors.iter().filter(|(replacement, _)| !listed_survivors.contains_key(**replacement));
    let unexcused: Vec<String> =
        unexcused.map(|(replacement, at)| format!("  {replacement} {at:?}")).collect();
    assert!(
        !complete || unexcused.is_empty(),
        "survive without a reason:\n{}",
        unexcused.join("\n")
    );
    let stale: Vec<_> = listed_survivors
        .keys()
        .filter(|replacement| !survivors.contains_key(replacement.as_str()))
        .collect();
    assert!(!complete || stale.is_empty(), "excused, and caught: {stale:#?}");
    assert!(all > 100 && caught * 100 >= all * least, "{caught} of {all}, {same} the same");
}

#[test]
fn sampled_twin_mutants_are_detected() {
    let Some(()) = need::require_bpf() else { return };
    assert_detection_rate(&run_mutations(SAMPLED_EFFORT), SAMPLE_DETECTED_PERCENT_MIN, false);
}

/// Environment variable that names the only filter to mutate (`cargo xtask mutants FILTER`).
const MUTATED_FILTER_VARIABLE: &str = "STREAMLINE_MUTANTS_OF";

#[test]
#[ignore = "all of them: `cargo xtask mutants`"]
fn all_twin_mutants_are_detected() {
    let Some(()) = need::require_bpf() else { return };
    let complete = std::env::var_os(MUTATED_FILTER_VARIABLE).is_none();
    assert_detection_rate(
        &run_mutations(COMPLETE_EFFORT),
        if complete { DETECTED_PERCENT_MIN } else { 0 },
        complete,
    );
}
