//! Which instructions of a program a tagged frame comes to.
//!
//! In: a program without loops; out: what becomes of each instruction in the copy for tagged
//! frames, where the type at byte 12 is one of two. Most programs ask for another type first, so
//! that little of their copy is left.

use super::super::insn::{Instruction, code};
use super::super::run::Test;
use super::tagged::{TAG, TPIDS};

/// What becomes of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// No tagged frame comes to it.
    Never,
    /// It stays what it is.
    Open,
    /// It is a comparison that always holds, or never.
    Decided(bool),
}

/// One for each instruction. Forward jumps only, so that every way into an instruction is known
/// before it is its turn.
pub(super) fn ways(instructions: &[Instruction]) -> Vec<Way> {
    // Whether A is the type of the tag; none: nothing has led here yet.
    let mut types: Vec<Option<bool>> = vec![None; instructions.len()];
    if let Some(first) = types.first_mut() {
        *first = Some(false);
    }
    let mut ways = Vec::with_capacity(instructions.len());
    for (at, instruction) in instructions.iter().enumerate() {
        let Some(is_type) = types.get(at).copied().flatten() else {
            ways.push(Way::Never);
            continue;
        };
        let way = match instruction.is_comparison() && is_type {
            true => decided(*instruction).map_or(Way::Open, Way::Decided),
            false => Way::Open,
        };
        let is_type = after(*instruction, is_type);
        let (yes, no) = (usize::from(instruction.jt), usize::from(instruction.jf));
        let next: &[usize] = match (instruction.class(), way) {
            (code::RET, _) => &[],
            (code::JMP, Way::Decided(holds)) => &[if holds { yes } else { no }],
            (code::JMP, _) if instruction.is_comparison() => &[yes, no],
            (code::JMP, _) => &[instruction.k as usize],
            _ => &[0],
        };
        for distance in next {
            if let Some(there) = types.get_mut(at + 1 + distance) {
                *there = Some(there.unwrap_or(true) && is_type);
            }
        }
        ways.push(way);
    }
    ways
}

/// Whether A is the type of the tag behind an instruction, if it was `before`.
fn after(instruction: Instruction, before: bool) -> bool {
    match instruction.class() {
        code::LD => instruction.code == code::LD | code::ABS | code::H && instruction.k == TAG,
        code::ALU => false,
        code::MISC => before && instruction.code == code::MISC | code::TAX,
        _ => before,
    }
}

/// How a comparison of the type ends, if it ends alike for all types of tags.
fn decided(instruction: Instruction) -> Option<bool> {
    let test = Test::decode(instruction.code).filter(|_| instruction.code & code::X == 0)?;
    let [first, second] = TPIDS.map(|tpid| test.holds(tpid, instruction.k));
    (first == second).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classic::{LinkType, Options, Program, compile};

    fn reached(program: &Program) -> Vec<usize> {
        let ways = ways(program.instructions());
        (0..ways.len()).filter(|at| ways[*at] != Way::Never).collect()
    }

    #[test]
    fn who_asks_for_another_type_has_an_answer() {
        let program = compile("tcp port 80", LinkType::EN10MB, &Options::default()).unwrap();
        let last = program.instructions().len() - 1;
        assert_eq!(reached(&program), [0, 1, 8, last], "{program}");
        let program = compile("vlan", LinkType::EN10MB, &Options::default()).unwrap();
        assert!(reached(&program).len() >= 4, "either type may be there: {program}");
    }

    #[test]
    fn what_is_not_the_type_any_more_is_not_known() {
        for between in ["add #1", "txa", "ldh [14]", "ld M[0]"] {
            let text = format!(
                "(000) ldh [12]\n(001) {between}\n(002) jeq #0x800 jt 3 jf 4\n\
                 (003) ret #1\n(004) ret #0"
            );
            assert_eq!(reached(&text.parse().unwrap()), [0, 1, 2, 3, 4], "{between}");
        }
        for between in ["tax", "st M[0]", "ldx #4"] {
            let text = format!(
                "(000) ldh [12]\n(001) {between}\n(002) jge #0x8000 jt 3 jf 4\n\
                 (003) ret #1\n(004) ret #0"
            );
            assert_eq!(reached(&text.parse().unwrap()), [0, 1, 2, 3], "{between}");
        }
        let joined = "(000) ldb [0]\n(001) jeq #7 jt 2 jf 3\n(002) ldh [12]\n\
                      (003) jeq #0x800 jt 4 jf 5\n(004) ret #1\n(005) ret #0";
        assert_eq!(reached(&joined.parse().unwrap()).len(), 6, "one way leads past the load");
    }
}
