//! The exam of the exam: twins with one slip in them must be caught, because they say anything
//! else about a packet than the sound twin, or because the verifier refuses them.
//!
//! The packets are those of the exam, and frames made from each twin's own comparisons. A slip is
//! tried in the twin alone; slips in what a twin only hands on are tried in chains of two that
//! begin with it. To be unsure of other packets is another answer, too. Who survives must stand in
//! `survivors.txt` with the reason: a slip that changes nothing (`same:`), which does not count, or
//! one that no packet meets. For one who does not stand there a frame is sought that shows the
//! slip: it belongs to `borders`. `cargo xtask mutants` tries all slips; a test run a sample.
#![expect(clippy::print_stdout, reason = "a test that reports its counts")]

mod explore;
mod hunt;

use super::corpus::borders::{borders, edges, shapes_of};
use super::judge::Kernel;
use ebpf::emit::Target;
use ebpf::exam::{self, Interpreter, Judge as _, Mutant, Ruling};
use ebpf::insn::{Insn, class};
use ebpf::interpret::Packet;
use ebpf::{Hook, Program};
use explore::{Case, explore};
use filter::testing::twins::{Chain, User, chains, fitting, request};
use hunt::Hunted;
use std::collections::{BTreeMap, BTreeSet};
use testkit::need;

/// May only rise. Of all slips, those that change nothing included: what an exam that knows the
/// twins' borders catches, and what a sample does.
const CAUGHT_PERCENT: usize = 90;
const SAMPLE_PERCENT: usize = 80;

/// The effort of a run.
#[derive(Clone, Copy)]
struct Effort {
    /// One twin in so many for each target, and of that one slip in so many.
    twins: usize,
    slips: usize,
    /// Packets tried to find those at which a twin's answer changes.
    questions: usize,
    /// True if a frame is sought for each survivor without an excuse.
    hunts: bool,
}

const SAMPLE: Effort = Effort { twins: 7, slips: 5, questions: 10_000, hunts: false };
const ALL: Effort = Effort { twins: 1, slips: 1, questions: 60_000, hunts: true };

/// So many cases are asked about where the kernel has no memory.
const STARVING: usize = 100;

/// A slip wherever its twin is the first: the instruction, and what stands there, but for where it
/// jumps to.
type Known = (usize, [u8; 8]);

fn known(slip: &Mutant) -> Known {
    let jumps = matches!(slip.slip.class(), class::JMP | class::JMP32);
    let off = if jumps { 0 } else { slip.slip.off };
    (slip.at, Insn { off, ..slip.slip }.encode())
}

/// The fate of the mutants of one twin.
#[derive(Default)]
struct Fate {
    all: usize,
    answers: usize,
    longer: usize,
    verifier: usize,
    /// The survivors, with their targets.
    survivors: Vec<(String, Target)>,
    /// The same, to know them again where others stand behind.
    left: BTreeMap<Known, String>,
}

/// A sound twin, what it was asked, and what it said.
struct Sound {
    program: Program,
    cases: Vec<Case>,
    said: Vec<Ruling>,
    kept: Option<Vec<Vec<u8>>>,
    /// Verdicts on some packets if the kernel has no memory.
    starving: Vec<Ruling>,
}

impl Sound {
    /// None: the chain changes frames and does not fit there.
    fn new(chain: &Chain, target: Target, frames: &[Vec<u8>], effort: Effort) -> Option<Self> {
        let program = fitting(chain, target)?;
        let packets = packets(frames, target);
        let mut cases: Vec<Case> = packets.iter().map(Case::of).collect();
        let few: Vec<Vec<u8>> = frames.iter().step_by(11).cloned().collect();
        cases.extend(explore(&program, &few, effort.questions));
        // A frame that the kernel has joined is longer than any that a test run takes.
        let joined = [4_095, 4_096, 65_535, 65_536, 65_549].map(|length| vec![0x45; length]);
        cases.extend(joined.iter().map(|frame| Case::whole(frame)));
        // It is sound: those frames belong to the exam.
        let (mut user, mut twin) = (User::new(chain, &program), Interpreter::new(&program));
        let differ = |differ| panic!("`{}` for {target:?}: {differ}", request(chain));
        let all = cases.iter().map(Case::packet);
        exam::compare(&mut [&mut user, &mut twin], all).unwrap_or_else(differ);
        // Without memory it is right, too, or unsure.
        let (mut user, mut twin) =
            (User::new(chain, &program), Interpreter::new(&program).starving());
        let some = cases.iter().step_by(97).map(Case::packet);
        exam::compare(&mut [&mut user, &mut twin], some).unwrap_or_else(differ);
        let mut twin = Interpreter::new(&program);
        let said = cases.iter().map(|case| twin.judge(&case.packet())).collect();
        let kept = twin.states();
        let mut sound = Self { program, cases, said, kept, starving: Vec::new() };
        sound.starving = sound.starve(&sound.program);
        Some(sound)
    }

    /// Returns the verdicts of a program if the kernel has no memory to make frames linear or
    /// writable.
    fn starve(&self, program: &Program) -> Vec<Ruling> {
        let mut twin = Interpreter::new(program).starving();
        let some = self.cases.iter().step_by(self.cases.len().div_ceil(STARVING).max(1));
        some.map(|case| twin.judge(&case.packet())).collect()
    }

    /// Returns true if the mutant answers or stores anything else.
    fn differs(&self, mutant: &Program) -> bool {
        let mut twin = Interpreter::new(mutant);
        let mut both = self.cases.iter().zip(&self.said);
        both.any(|(case, said)| twin.judge(&case.packet()) != *said)
            || twin.states() != self.kept
            || self.starve(mutant) != self.starving
    }
}

/// Tries one slip in so many of a twin.
fn try_slips(twin: &Chain, target: Target, frames: &[Vec<u8>], effort: Effort) -> Option<Fate> {
    let sound = Sound::new(twin, target, frames, effort)?;
    let mut fate = Fate::default();
    let excused = excused();
    let mut found: Vec<Case> = Vec::new();
    for mutant in exam::mutants(&sound.program).into_iter().step_by(effort.slips) {
        fate.all += 1;
        if sound.differs(&mutant.program) {
            fate.answers += 1;
            continue;
        }
        if Kernel::try_load(&mutant.program, "mutant").is_err() {
            fate.verifier += 1;
            continue;
        }
        let slip = mutant.describe(&sound.program);
        if effort.hunts && !excused.contains_key(&slip) {
            let known =
                found.iter().find(|case| hunt::differ(&sound.program, &mutant.program, case));
            let hunted = match known {
                Some(known) => Hunted { found: Some(known.clone()), ..Hunted::default() },
                None => hunt::hunt(&sound.program, &mutant, &sound.cases),
            };
            println!("  {slip}, at {} of `{}`: {hunted}", mutant.at, request(twin));
            found.extend(hunted.found);
        }
        fate.left.insert(known(&mutant), slip);
    }
    Some(fate)
}

/// Tries slips in what the first of two hands on to the second: those of its instructions on which
/// nothing depends where it stands alone, and those that nothing showed there.
fn try_handed_on(
    twin: &Chain,
    target: Target,
    frames: &[Vec<u8>],
    effort: Effort,
    fate: &mut Fate,
) {
    let Some(alone) = fitting(twin, target) else { return };
    let tried: BTreeSet<usize> = exam::mutants(&alone).iter().map(|slip| slip.at).collect();
    let begin = request(twin);
    let pairs = chains(2).into_iter().filter(|pair| pair.len() == 2);
    let pairs = pairs.filter(|pair| request(&pair[..1]) == begin);
    let mut caught = BTreeSet::new();
    for pair in pairs {
        let few = Effort { questions: effort.questions / 25, ..effort };
        let Some(sound) = Sound::new(&pair, target, frames, few) else { continue };
        let behind = sound.program.source.iter().find(|line| line.filter == Some(1));
        let ends = behind.map_or(0, |line| line.from);
        for slip in exam::mutants(&sound.program) {
            let known = known(&slip);
            let is_new = slip.at < ends && !tried.contains(&slip.at);
            if !(is_new || fate.left.contains_key(&known)) || caught.contains(&known) {
                continue;
            }
            if is_new {
                fate.left.entry(known).or_insert_with(|| slip.describe(&sound.program));
            }
            if sound.differs(&slip.program) {
                caught.insert(known);
            }
        }
    }
    let new = fate.left.keys().filter(|(at, _)| !tried.contains(at)).count();
    fate.all += new;
    fate.longer = caught.len();
    fate.left.retain(|known, _| !caught.contains(known));
}

/// Returns the packets for a target: whole frames, frames cut at the ends of headers and, where
/// they exist, fragmented frames and frames with a tag beside them.
fn packets(frames: &[Vec<u8>], target: Target) -> Vec<Packet<'_>> {
    let mut packets = match target.hook {
        Hook::Tc => shapes_of(frames),
        Hook::Xdp | Hook::Socket | Hook::Cgroup => {
            frames.iter().map(|frame| Packet::new(frame)).collect()
        }
    };
    packets.extend(frames.iter().step_by(5).flat_map(|frame| edges(frame)).map(Packet::new));
    packets
}

/// The two forms that code has: direct access to what was made linear, with tags beside the frame;
/// and, without CAP_PERFMON, copies through a helper. The other targets mix them.
const TARGETS: [Target; 2] = [
    Target { hook: Hook::Tc, hardened: false, takes: false, single: false },
    Target::hardened(Hook::Xdp),
];

fn run(effort: Effort) -> Vec<Fate> {
    let only = std::env::var(ONLY).ok();
    let frames = borders();
    let mut fates = Vec::new();
    for (turn, target) in TARGETS.into_iter().enumerate() {
        for twin in chains(1).iter().skip(turn * effort.twins / 2).step_by(effort.twins) {
            if only.as_deref().is_some_and(|name| name != twin[0].description.name) {
                continue;
            }
            let Some(mut fate) = try_slips(twin, target, &frames, effort) else { continue };
            if effort.twins == 1 {
                try_handed_on(twin, target, &frames, effort, &mut fate);
            }
            let Fate { all, answers, longer, verifier, .. } = fate;
            let (name, place) = (request(twin), target.hook);
            println!(
                "`{name}` at {place:?}: {all} slips, {answers} caught by answers, {longer} behind \
                 others, {verifier} by the verifier"
            );
            for ((at, _), slip) in std::mem::take(&mut fate.left) {
                println!("  survives at {at}: {slip}");
                fate.survivors.push((slip, target));
            }
            fates.push(fate);
        }
    }
    fates
}

/// The slips in `survivors.txt`, each with its reason.
fn excused() -> BTreeMap<String, String> {
    let mut excused = BTreeMap::new();
    let mut reason = String::new();
    for line in include_str!("../survivors.txt").lines() {
        match line.strip_prefix("  ") {
            Some(slip) => drop(excused.insert(slip.to_owned(), reason.clone())),
            None => line.clone_into(&mut reason),
        }
    }
    excused
}

/// The shares; in a complete run also nobody without a reason, and no reason without somebody. What
/// a sample misses for want of questions, all of them may find.
fn judge(fates: &[Fate], least: usize, complete: bool) {
    let sum = |of: fn(&Fate) -> usize| fates.iter().map(of).sum::<usize>();
    let (all, verifier) = (sum(|fate| fate.all), sum(|fate| fate.verifier));
    let (answers, longer) = (sum(|fate| fate.answers), sum(|fate| fate.longer));
    let caught = answers + longer + verifier;
    let excused = excused();
    let gone = fates.iter().flat_map(|fate| &fate.survivors);
    let is_same = |slip: &str| excused.get(slip).is_some_and(|why| why.starts_with("same:"));
    let same = gone.filter(|(slip, _)| is_same(slip)).count();
    println!(
        "{all} slips: {answers} caught by answers, {longer} by those of chains, {verifier} by the \
         verifier: {:.1} %; {same} change nothing: {:.1} % of the others",
        caught as f64 * 100.0 / all as f64,
        caught as f64 * 100.0 / (all - same) as f64
    );
    let mut survivors: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (slip, target) in fates.iter().flat_map(|fate| &fate.survivors) {
        let place = format!("{:?}{}", target.hook, if target.hardened { "+" } else { "" });
        survivors.entry(slip).or_default().insert(place);
    }
    let strangers = survivors.iter().filter(|(slip, _)| !excused.contains_key(**slip));
    let strangers: Vec<String> = strangers.map(|(slip, at)| format!("  {slip} {at:?}")).collect();
    assert!(
        !complete || strangers.is_empty(),
        "survive without a reason:\n{}",
        strangers.join("\n")
    );
    let stale: Vec<_> =
        excused.keys().filter(|slip| !survivors.contains_key(slip.as_str())).collect();
    assert!(!complete || stale.is_empty(), "excused, and caught: {stale:#?}");
    assert!(all > 100 && caught * 100 >= all * least, "{caught} of {all}, {same} the same");
}

#[test]
fn a_sample_of_broken_twins_is_caught() {
    let Some(()) = need::bpf() else { return };
    judge(&run(SAMPLE), SAMPLE_PERCENT, false);
}

/// Names the filter whose twins alone are tried (`cargo xtask mutants FILTER`).
const ONLY: &str = "STREAMLINE_MUTANTS_OF";

#[test]
#[ignore = "all of them: `cargo xtask mutants`"]
fn all_broken_twins_are_caught() {
    let Some(()) = need::bpf() else { return };
    let complete = std::env::var_os(ONLY).is_none();
    judge(&run(ALL), if complete { CAUGHT_PERCENT } else { 0 }, complete);
}
