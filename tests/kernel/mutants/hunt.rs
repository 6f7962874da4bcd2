//! Frames at which one slip shows, sought near the frames of the exam that come by it.
//!
//! In: a sound program, the same with a slip, the cases of the exam. Out: a case of which the two
//! say, or keep, different things. What is found belongs to the borders of the corpus, so that
//! every judge is asked about it. No line of it knows a protocol.

use super::explore::Case;
use ebpf::Program;
use ebpf::exam::{Interpreter, Judge as _, Mutant, Ruling};
use ebpf::insn::Insn;
use std::fmt;

/// So many cases are begun with, and so many questions asked about changes at random places.
const SEEDS: usize = 12;
const RANDOM: usize = 4_000;

/// The result of a hunt.
#[derive(Default)]
pub(super) struct Hunted {
    /// Cases of the exam that execute the instruction.
    pub(super) met: usize,
    /// Judges that were asked.
    pub(super) asked: usize,
    /// A case that tells the two apart.
    pub(super) found: Option<Case>,
}

impl fmt::Display for Hunted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Some(case) => write!(f, "shown by {case}"),
            None => write!(f, "met by {}, {} asked in vain", self.met, self.asked),
        }
    }
}

/// Looks for such a case.
pub(super) fn hunt(sound: &Program, mutant: &Mutant, cases: &[Case]) -> Hunted {
    let probe = probe(sound, mutant.at);
    let comes =
        |case: &&Case| matches!(Interpreter::new(&probe).judge(&case.packet()), Ruling::Broken(_));
    let all: Vec<&Case> = cases.iter().filter(comes).collect();
    let step = all.len().div_ceil(SEEDS).max(1);
    let seeds: Vec<&Case> = all.iter().step_by(step).copied().collect();
    let (met, mut asked) = (all.len(), 0);
    let was = sound.code.get(mutant.at).copied().unwrap_or(mutant.slip);
    let numbers = numbers(was, mutant.slip);
    let reach = sound.reach as usize;
    let near = seeds.iter().flat_map(|seed| seed.neighbours(sound.hook, reach, &numbers));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let random = (0..if seeds.is_empty() { 0 } else { RANDOM }).map(|turn| {
        let mut case = seeds[turn % seeds.len()].clone();
        case.scatter(reach, &numbers, &mut state);
        case
    });
    let found = near.chain(random).find(|case| {
        asked += 1;
        differ(sound, &mutant.program, case)
    });
    Hunted { met, asked, found }
}

/// Returns true if the two answer or store differently for this packet, the first that they see.
pub(super) fn differ(sound: &Program, other: &Program, case: &Case) -> bool {
    let (mut one, mut two) = (Interpreter::new(sound), Interpreter::new(other));
    let packet = case.packet();
    one.judge(&packet) != two.judge(&packet) || one.states() != two.states()
}

/// The program that breaks where it comes to this instruction.
fn probe(sound: &Program, at: usize) -> Program {
    let mut probe = sound.clone();
    let broken = Insn { code: 0xff, dst: 0, src: 0, off: 0, imm: 0 };
    probe.code.splice(at..=at, [broken]);
    probe
}

/// Returns numbers to write into frames: the constants of both instructions, their neighbors,
/// limits.
fn numbers(was: Insn, is: Insn) -> Vec<u32> {
    let mut numbers = vec![0, 1, 7, 0x7f, 0x80, 0xff, 0xffff, 0x8000, u32::MAX, 0x1234_5678];
    for constant in [was.imm, is.imm].map(i32::cast_unsigned) {
        for number in [constant, constant.swap_bytes(), constant << 4, constant >> 2] {
            numbers.extend([number.wrapping_sub(1), number, number.wrapping_add(1)]);
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}
