//! Writes lines of a socket filter, and copies of programs among them.
//!
//! In: programs; out: lines with labels, of which [`super::super::lines`] makes a program. A copy
//! ends nowhere by itself: its returns become jumps to the two returns of the whole, because the
//! kernel's check of scratch words takes what follows a return for what runs after it.

use super::super::insn::{Instruction, code};
use super::super::lines::{
    Compare, Label, Line, TXA, alu_x, assembled, constant_to_a, line, memory_to_a, store_a,
};
use super::super::program::{MEMORY_WORDS, Program};
use super::reach::{Way, ways};
use super::{Refusal, WHOLE};

/// Whose offsets a copy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offsets {
    /// Those of the program.
    Plain,
    /// Those of a frame whose outermost tag is in the skb.
    Tagged,
}

/// Lines under way.
#[derive(Debug)]
pub(super) struct Lines {
    lines: Vec<Line>,
    labels: u32,
    /// Where frames are let through.
    pub(super) pass: Label,
    /// Where they are refused.
    pub(super) refuse: Label,
}

impl Default for Lines {
    fn default() -> Self {
        Self { lines: Vec::new(), labels: 2, pass: Label(0), refuse: Label(1) }
    }
}

impl Lines {
    /// A label of its own.
    pub(super) const fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    /// Names this place.
    pub(super) fn place(&mut self, label: Label) {
        self.lines.push(Line::Place(label));
    }

    /// Appends instructions that fall through.
    pub(super) fn put(&mut self, lines: impl IntoIterator<Item = Line>) {
        self.lines.extend(lines);
    }

    /// Loads a word at a fixed place into A.
    pub(super) fn load(&mut self, k: u32) {
        self.lines.push(line(code::LD | code::ABS | code::W, k));
    }

    /// Goes on at `label`.
    pub(super) fn go(&mut self, label: Label) {
        self.lines.push(Line::Goto(label));
    }

    /// Compares A with a constant.
    pub(super) fn compare(&mut self, op: u16, k: u32, yes: Label, no: Label) {
        self.lines.push(Line::Branch { compare: Compare { op, with: Some(k) }, yes, no });
    }

    /// Asks whether A is this constant.
    pub(super) fn equal(&mut self, k: u32, yes: Label, no: Label) {
        self.compare(code::JEQ, k, yes, no);
    }

    /// Appends a copy of a program without loops. X is zero before, A is anything.
    pub(super) fn copy(&mut self, program: &Program, offsets: Offsets) -> Result<(), Refusal> {
        let instructions = program.instructions();
        let places: Vec<Label> = instructions.iter().map(|_| self.label()).collect();
        let free = free_word(instructions);
        let ways = match offsets {
            Offsets::Plain => vec![Way::Open; instructions.len()],
            Offsets::Tagged => ways(instructions),
        };
        // A program finds A zero, unless it loads A first.
        if instructions.first().is_none_or(|first| first.class() != code::LD) {
            self.put([constant_to_a(0)]);
        }
        let reached = instructions.iter().zip(ways).enumerate();
        for (at, (instruction, way)) in reached.filter(|(_, (_, way))| *way != Way::Never) {
            self.place(places[at]);
            let target = |distance: usize| match instructions.get(at + 1 + distance) {
                Some(end) if end.code == code::RET | code::K && end.k == 0 => self.refuse,
                Some(end) if end.code == code::RET | code::K => self.pass,
                // The targets of a checked program lie inside it.
                _ => places.get(at + 1 + distance).copied().unwrap_or(self.refuse),
            };
            match instruction.class() {
                code::JMP if instruction.is_comparison() => {
                    let by_x = instruction.code & code::X != 0;
                    let with = (!by_x).then_some(instruction.k);
                    let compare = Compare { op: instruction.code & 0xf0, with };
                    let yes = target(instruction.jt.into());
                    let no = target(instruction.jf.into());
                    match way {
                        Way::Decided(holds) => self.go(if holds { yes } else { no }),
                        _ => self.lines.push(Line::Branch { compare, yes, no }),
                    }
                }
                code::JMP => self.go(target(instruction.k as usize)),
                code::RET if instruction.code == code::RET | code::A => {
                    self.equal(0, self.refuse, self.pass);
                }
                code::RET => self.go(if instruction.k == 0 { self.refuse } else { self.pass }),
                _ => self.step(*instruction, offsets, free)?,
            }
        }
        Ok(())
    }

    /// Appends what an instruction that falls through becomes.
    fn step(
        &mut self,
        instruction: Instruction,
        offsets: Offsets,
        free: Option<u32>,
    ) -> Result<(), Refusal> {
        if beyond_every_frame(instruction) {
            self.go(self.refuse);
            return Ok(());
        }
        match instruction.code & 0xf7 {
            shift if [code::LSH, code::RSH].map(|op| code::ALU | op).contains(&shift) => {
                match instruction.code & code::X {
                    0 => self.put([Line::Plain(instruction)]),
                    _ => self.shift(instruction.code & 0xf0, free.ok_or(Refusal::Scratch)?),
                }
                Ok(())
            }
            _ if offsets == Offsets::Tagged => self.tagged(instruction, free),
            _ => {
                self.put([Line::Plain(instruction)]);
                Ok(())
            }
        }
    }

    /// Shifts A by X. By 32 and more nothing is left, of which the kernel keeps X mod 32.
    fn shift(&mut self, op: u16, free: u32) {
        let (far, near, done) = (self.label(), self.label(), self.label());
        self.put([store_a(free), TXA]);
        self.compare(code::JGE, 32, far, near);
        self.place(far);
        self.put([constant_to_a(0)]);
        self.go(done);
        self.place(near);
        self.put([memory_to_a(free), alu_x(op)]);
        self.place(done);
    }

    /// The instructions, or how many there are if they are too many.
    pub(super) fn done(mut self) -> Result<Vec<Instruction>, usize> {
        for (label, answer) in [(self.pass, WHOLE), (self.refuse, 0)] {
            self.place(label);
            self.put([line(code::RET | code::K, answer)]);
        }
        assembled(self.lines)
    }
}

/// Whether an instruction loads where no frame has a byte; the kernel would look elsewhere.
fn beyond_every_frame(instruction: Instruction) -> bool {
    let loads = matches!(instruction.class(), code::LD | code::LDX);
    let mode = instruction.code & 0xe0;
    loads && matches!(mode, code::ABS | code::IND | code::MSH) && instruction.k > i32::MAX as u32
}

/// A scratch word that the program leaves alone.
fn free_word(instructions: &[Instruction]) -> Option<u32> {
    let uses = |instruction: &&Instruction| match instruction.class() {
        code::ST | code::STX => true,
        code::LD | code::LDX => instruction.code & 0xe0 == code::MEM,
        _ => false,
    };
    let used = instructions.iter().filter(uses).fold(0u32, |used, i| used | 1 << (i.k & 15));
    (0..MEMORY_WORDS).rev().find(|word| used & (1 << word) == 0)
}
