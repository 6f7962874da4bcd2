//! Search for a frame that reveals a mutation, starting from the test frames that execute the
//! mutated instruction.
//!
//! Input: an unmodified program, its mutant, and the cases of the test. Output: a case for which
//! the two programs have different results or states. Such a case should be added to the corpus of
//! boundary cases, so that all judges are tested with it. No code here depends on a protocol.

use super::explore::OwnedPacket;
use ebpf::Program;
use ebpf::exam::{InterpreterJudge, Mutant, TwinJudge as _, TwinVerdict};
use ebpf::insn::Insn;
use std::fmt;

/// Maximum number of test packets from which the search starts.
const SEEDS_MAX: usize = 12;
/// Number of runs in which the search changes random bytes of a seed packet.
const RANDOM_RUNS: usize = 4_000;

/// The result of the search for a packet that reveals one mutation.
#[derive(Default)]
pub(super) struct MutantSearchResult {
    /// Number of test packets that execute the mutated instruction.
    pub(super) executing_packets: usize,
    /// Number of packets on which both the twin and its mutant ran.
    pub(super) runs: usize,
    /// A packet that reveals the mutation, if one was found.
    pub(super) found: Option<OwnedPacket>,
}

impl fmt::Display for MutantSearchResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Some(case) => write!(f, "revealed by {case}"),
            None => write!(
                f,
                "executed by {} packets, not revealed in {} runs",
                self.executing_packets, self.runs
            ),
        }
    }
}

/// Searches for a packet for which the mutant and the unmodified program differ in result or state.
pub(super) fn find_revealing_packet(
    sound: &Program,
    mutant: &Mutant,
    cases: &[OwnedPacket],
) -> MutantSearchResult {
    let probe = with_fault_at(sound, mutant.at);
    let comes = |case: &&OwnedPacket| {
        matches!(InterpreterJudge::new(&probe).judge(&case.packet()), TwinVerdict::Broken(_))
    };
    let all: Vec<&OwnedPacket> = cases.iter().filter(comes).collect();
    let step = all.len().div_ceil(SEEDS_MAX).max(1);
    let seeds: Vec<&OwnedPacket> = all.iter().step_by(step).copied().collect();
    let (executing_packets, mut runs) = (all.len(), 0);
    let was = sound.code.get(mutant.at).copied().unwrap_or(mutant.replacement);
    let numbers = boundary_constants(was, mutant.replacement);
    let reach = sound.read_end as usize;
    let near = seeds.iter().flat_map(|seed| seed.variants(sound.hook, reach, &numbers));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let random = (0..if seeds.is_empty() { 0 } else { RANDOM_RUNS }).map(|round| {
        let mut case = seeds[round % seeds.len()].clone();
        case.change_randomly(reach, &numbers, &mut state);
        case
    });
    let found = near.chain(random).find(|case| {
        runs += 1;
        programs_differ(sound, &mutant.program, case)
    });
    MutantSearchResult { executing_packets, runs, found }
}

/// Returns true if the two programs, both run from their initial states, differ in result or state
/// for this packet.
pub(super) fn programs_differ(sound: &Program, other: &Program, case: &OwnedPacket) -> bool {
    let (mut one, mut two) = (InterpreterJudge::new(sound), InterpreterJudge::new(other));
    let packet = case.packet();
    one.judge(&packet) != two.judge(&packet) || one.filter_states() != two.filter_states()
}

/// Returns the program with a faulting instruction in place of the instruction at `at`.
fn with_fault_at(sound: &Program, at: usize) -> Program {
    let mut probe = sound.clone();
    let broken = Insn { code: 0xff, dst: 0, src: 0, off: 0, imm: 0 };
    probe.code.splice(at..=at, [broken]);
    probe
}

/// Returns the numbers that the search writes into frames: the constants of the original and of the
/// mutated instruction, their neighbors, and boundary values.
fn boundary_constants(was: Insn, is: Insn) -> Vec<u32> {
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
