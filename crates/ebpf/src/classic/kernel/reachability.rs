//! Reachability analysis, which finds the instructions of a program that a tagged frame can reach.
//!
//! Input: a program without loops. Output: the reachability of each instruction in the copy of the
//! program for tagged frames. In such frames, the type at byte 12 has one of two values. Most
//! programs first test for a different type, so most of their instructions are dropped from the
//! copy.

use super::super::insn::{Instruction, code, condition};

/// EtherTypes of the tags that the kernel removes: 802.1Q and 802.1ad.
pub(super) const TPIDS: [u32; 2] = [0x8100, 0x88a8];
/// Byte offset in a frame at which its VLAN tag would begin if it were inline.
pub(super) const TAG_START_OFFSET: u32 = 12;

/// The reachability of an instruction in the copy of the program for tagged frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsnReachability {
    /// The instruction is never executed for tagged frames.
    Unreachable,
    /// The instruction may be executed for tagged frames, and is copied without a change.
    Unchanged,
    /// The instruction is a comparison with the same result for all tagged frames. Contains the
    /// result.
    Decided(bool),
}

/// Returns, for each instruction, its reachability for tagged frames. One pass suffices, because
/// jumps are forward only.
pub(super) fn instruction_reachability(instructions: &[Instruction]) -> Vec<InsnReachability> {
    // For each instruction, true if A holds the type of the tag before the instruction; `None`
    // until a predecessor of the instruction has been processed.
    let mut types: Vec<Option<bool>> = vec![None; instructions.len()];
    if let Some(first) = types.first_mut() {
        *first = Some(false);
    }
    let mut fates = Vec::with_capacity(instructions.len());
    for (at, instruction) in instructions.iter().enumerate() {
        let Some(is_type) = types.get(at).copied().flatten() else {
            fates.push(InsnReachability::Unreachable);
            continue;
        };
        let fate = match instruction.is_comparison() && is_type {
            true => decide_comparison(*instruction)
                .map_or(InsnReachability::Unchanged, InsnReachability::Decided),
            false => InsnReachability::Unchanged,
        };
        let is_type = leaves_tag_type_in_a(*instruction, is_type);
        let (yes, no) = (usize::from(instruction.jt), usize::from(instruction.jf));
        let next: &[usize] = match (instruction.class(), fate) {
            (code::RET, _) => &[],
            (code::JMP, InsnReachability::Decided(holds)) => &[if holds { yes } else { no }],
            (code::JMP, _) if instruction.is_comparison() => &[yes, no],
            (code::JMP, _) => &[instruction.k as usize],
            _ => &[0],
        };
        for distance in next {
            if let Some(there) = types.get_mut(at + 1 + distance) {
                *there = Some(there.unwrap_or(true) && is_type);
            }
        }
        fates.push(fate);
    }
    fates
}

/// Returns true if A contains the type of the VLAN tag after the instruction. `before` is true if A
/// already contained the type before the instruction.
fn leaves_tag_type_in_a(instruction: Instruction, before: bool) -> bool {
    match instruction.class() {
        code::LD => {
            instruction.code == code::LD | code::ABS | code::H && instruction.k == TAG_START_OFFSET
        }
        code::ALU => false,
        code::MISC => before && instruction.code == code::MISC | code::TAX,
        _ => before,
    }
}

/// Returns the result of a comparison of A with a constant, if A contains the type of a VLAN tag.
/// Returns `None` if the result differs between the types of tags, or if the comparison is with X.
fn decide_comparison(instruction: Instruction) -> Option<bool> {
    let test = condition(instruction.code).filter(|_| instruction.code & code::X == 0)?;
    let [first, second] = TPIDS.map(|tpid| test.holds(tpid.into(), instruction.k.into()));
    (first == second).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classic::{ClassicProgram, LinkType, Options, compile};

    fn reachable_indices(program: &ClassicProgram) -> Vec<usize> {
        let fates = instruction_reachability(program.instructions());
        (0..fates.len()).filter(|at| fates[*at] != InsnReachability::Unreachable).collect()
    }

    #[test]
    fn comparison_with_another_tag_type_is_decided() {
        let program = compile("tcp port 80", LinkType::EN10MB, &Options::default()).unwrap();
        let last = program.instructions().len() - 1;
        assert_eq!(reachable_indices(&program), [0, 1, 8, last], "{program}");
        let program = compile("vlan", LinkType::EN10MB, &Options::default()).unwrap();
        assert!(reachable_indices(&program).len() >= 4, "either type may be there: {program}");
    }

    #[test]
    fn comparison_after_overwritten_tag_type_is_undecided() {
        for between in ["add #1", "txa", "ldh [14]", "ld M[0]"] {
            let text = format!(
                "(000) ldh [12]\n(001) {between}\n(002) jeq #0x800 jt 3 jf 4\n\
                 (003) ret #1\n(004) ret #0"
            );
            assert_eq!(reachable_indices(&text.parse().unwrap()), [0, 1, 2, 3, 4], "{between}");
        }
        for between in ["tax", "st M[0]", "ldx #4"] {
            let text = format!(
                "(000) ldh [12]\n(001) {between}\n(002) jge #0x8000 jt 3 jf 4\n\
                 (003) ret #1\n(004) ret #0"
            );
            assert_eq!(reachable_indices(&text.parse().unwrap()), [0, 1, 2, 3], "{between}");
        }
        let joined = "(000) ldb [0]\n(001) jeq #7 jt 2 jf 3\n(002) ldh [12]\n\
                      (003) jeq #0x800 jt 4 jf 5\n(004) ret #1\n(005) ret #0";
        assert_eq!(
            reachable_indices(&joined.parse().unwrap()).len(),
            6,
            "one path leads past the load"
        );
    }
}
