//! A validated classic BPF program.
//!
//! Input: instructions from the compiler, a listing or another program. Output: a
//! [`ClassicProgram`]. A value of this type proves that every opcode is known, every jump target is
//! in the program, every scratch word exists, no constant divides by zero or shifts by more than
//! 31, and the last instruction returns, so running needs no further check.
//!
//! Three of the kernel's checks are omitted. A backward `ja` is allowed, because `protochain` needs
//! a loop; the kernel rejects a program that [loops](ClassicProgram::has_loop), and the interpreter
//! limits the number of rounds. A scratch word may be read before it is written, and is then zero.
//! A load at an unknown ancillary offset is an ordinary load beyond the end of every frame.

use std::fmt;

use super::insn::{Instruction, code};
use super::run::DecodedInsn;

/// Maximum number of instructions in a program, as in the kernel (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = 4096;
/// Number of words of scratch memory (`BPF_MEMWORDS`).
pub const MEMORY_WORDS: u32 = 16;

/// A validated classic BPF program.
#[derive(Clone, PartialEq, Eq)]
pub struct ClassicProgram {
    instructions: Vec<Instruction>,
    pub(super) ops: Vec<DecodedInsn>,
    has_loop: bool,
}

/// A rule of classic BPF that a sequence of instructions violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidProgram {
    /// The program has no instructions.
    Empty,
    /// The program has more than [`INSTRUCTIONS_MAX`] instructions.
    TooLong {
        /// Number of instructions in the rejected program.
        length: usize,
    },
    /// An opcode is unknown.
    UnknownOpcode {
        /// Index of the instruction with the unknown opcode.
        at: usize,
        /// The unknown opcode.
        code: u16,
    },
    /// A jump target is outside the program.
    JumpTarget {
        /// Index of the jump whose target is outside the program.
        at: usize,
    },
    /// An instruction uses a scratch word that does not exist.
    ScratchWord {
        /// Index of the instruction that uses a nonexistent scratch word.
        at: usize,
        /// Number of the scratch word that does not exist.
        word: u32,
    },
    /// A constant divisor is zero.
    ZeroDivisor {
        /// Index of the instruction that divides by the constant zero.
        at: usize,
    },
    /// A constant shift exceeds 31 bits.
    ShiftTooLarge {
        /// Index of the instruction that shifts by too many bits.
        at: usize,
    },
    /// The last instruction does not return.
    NoReturn,
}

impl ClassicProgram {
    /// Validates `instructions`. Returns the program, or the first violated rule.
    pub fn new(instructions: Vec<Instruction>) -> Result<Self, InvalidProgram> {
        let length = instructions.len();
        let Some(last) = instructions.last() else { return Err(InvalidProgram::Empty) };
        if length > INSTRUCTIONS_MAX {
            return Err(InvalidProgram::TooLong { length });
        }
        if last.class() != code::RET {
            return Err(InvalidProgram::NoReturn);
        }
        let mut has_loop = false;
        let mut ops = Vec::with_capacity(length);
        for (at, &instruction) in instructions.iter().enumerate() {
            has_loop |= validate_instruction(instruction, at, length)?;
            let op = DecodedInsn::decode(instruction, at)
                .ok_or(InvalidProgram::UnknownOpcode { at, code: instruction.code })?;
            ops.push(op);
        }
        Ok(Self { instructions, ops, has_loop })
    }

    /// Returns the instructions in the kernel's encoding.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Returns true if the program contains a backward jump, which the kernel rejects.
    pub fn has_loop(&self) -> bool {
        self.has_loop
    }
}

/// Validates one instruction. Returns true if the instruction jumps backward.
fn validate_instruction(
    instruction: Instruction,
    at: usize,
    length: usize,
) -> Result<bool, InvalidProgram> {
    use code::*;
    let k = instruction.k;
    match instruction.class() {
        ST | STX if k >= MEMORY_WORDS => Err(InvalidProgram::ScratchWord { at, word: k }),
        LD | LDX if instruction.code & 0xe0 == MEM && k >= MEMORY_WORDS => {
            Err(InvalidProgram::ScratchWord { at, word: k })
        }
        ALU if instruction.code & X == 0 => match instruction.code & 0xf0 {
            DIV | MOD if k == 0 => Err(InvalidProgram::ZeroDivisor { at }),
            LSH | RSH if k > 31 => Err(InvalidProgram::ShiftTooLarge { at }),
            _ => Ok(false),
        },
        JMP if instruction.is_comparison() => {
            let far = usize::from(instruction.jt.max(instruction.jf));
            if at + 1 + far < length { Ok(false) } else { Err(InvalidProgram::JumpTarget { at }) }
        }
        JMP => {
            let target = at as i64 + 1 + i64::from(k as i32);
            if (0..length as i64).contains(&target) {
                Ok(target <= at as i64)
            } else {
                Err(InvalidProgram::JumpTarget { at })
            }
        }
        _ => Ok(false),
    }
}

impl fmt::Display for ClassicProgram {
    /// Lists the program in the format of `tcpdump -d`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, instruction) in self.instructions.iter().enumerate() {
            instruction.write_listing(at, f)?;
            f.write_str("\n")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ClassicProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for InvalidProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a program without instructions"),
            Self::TooLong { length } => {
                write!(f, "{length} instructions, more than the {INSTRUCTIONS_MAX} of a program")
            }
            Self::UnknownOpcode { at, code } => {
                write!(f, "instruction {at} has unknown code {code:#x}")
            }
            Self::JumpTarget { at } => write!(f, "the jump at {at} leaves the program"),
            Self::ScratchWord { at, word } => {
                write!(f, "instruction {at} uses scratch word {word} of {MEMORY_WORDS}")
            }
            Self::ZeroDivisor { at } => write!(f, "instruction {at} divides by zero"),
            Self::ShiftTooLarge { at } => write!(f, "instruction {at} shifts by more than 31 bits"),
            Self::NoReturn => write!(f, "the last instruction does not return"),
        }
    }
}

impl std::error::Error for InvalidProgram {}

#[cfg(test)]
mod tests {
    use super::super::insn::{Instruction, code::*};
    use super::{ClassicProgram, InvalidProgram};

    #[test]
    fn programs_that_the_kernel_rejects_are_rejected() {
        let ret = Instruction::non_branching(RET | K, 0);
        let refused = |first: Instruction| ClassicProgram::new(vec![first, ret]).unwrap_err();
        assert_eq!(ClassicProgram::new(vec![]).unwrap_err(), InvalidProgram::Empty);
        assert_eq!(
            ClassicProgram::new(vec![ret; 4097]).unwrap_err(),
            InvalidProgram::TooLong { length: 4097 }
        );
        let load = Instruction::non_branching(LD | IMM, 0);
        assert_eq!(ClassicProgram::new(vec![ret, load]).unwrap_err(), InvalidProgram::NoReturn);
        assert_eq!(
            refused(Instruction::non_branching(0xfff8, 0)),
            InvalidProgram::UnknownOpcode { at: 0, code: 0xfff8 }
        );
        let memory = InvalidProgram::ScratchWord { at: 0, word: 16 };
        assert_eq!(refused(Instruction::non_branching(ST, 16)), memory);
        assert_eq!(refused(Instruction::non_branching(LD | MEM, 16)), memory);
        assert_eq!(
            refused(Instruction::non_branching(ALU | DIV | K, 0)),
            InvalidProgram::ZeroDivisor { at: 0 }
        );
        assert_eq!(
            refused(Instruction::non_branching(ALU | LSH | K, 32)),
            InvalidProgram::ShiftTooLarge { at: 0 }
        );
        assert_eq!(
            refused(Instruction::non_branching(JMP | JA, 1)),
            InvalidProgram::JumpTarget { at: 0 }
        );
        assert_eq!(
            refused(Instruction::non_branching(JMP | JA, -2i32 as u32)),
            InvalidProgram::JumpTarget { at: 0 }
        );
        let jump = Instruction { code: JMP | JEQ | K, jt: 0, jf: 1, k: 0 };
        assert_eq!(refused(jump), InvalidProgram::JumpTarget { at: 0 });
    }

    #[test]
    fn backward_jump_is_detected_as_loop() {
        let program = |k: i32| {
            let ret = Instruction::non_branching(RET | K, 0);
            ClassicProgram::new(vec![Instruction::non_branching(JMP | JA, k as u32), ret]).unwrap()
        };
        assert!(!program(0).has_loop());
        assert!(program(-1).has_loop());
    }
}
