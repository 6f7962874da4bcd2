//! Classic BPF instructions in the kernel's encoding, and their lines in a listing.
//!
//! Input: the four fields of `struct sock_filter`. Output: the line that `tcpdump -d` prints. This
//! module does not validate instructions; [`super::ClassicProgram::new`] does. [SL §5.2, filters as
//! data]

use std::fmt;

use crate::insn::{Alu, Cond};

/// Components of opcodes, as in the kernel's `bpf_common.h`.
pub mod code {
    /// Instruction class of loads into A.
    pub const LD: u16 = 0x00;
    /// Instruction class of loads into X.
    pub const LDX: u16 = 0x01;
    /// Instruction class of stores from A.
    pub const ST: u16 = 0x02;
    /// Instruction class of stores from X.
    pub const STX: u16 = 0x03;
    /// Instruction class of arithmetic on A.
    pub const ALU: u16 = 0x04;
    /// Instruction class of jumps.
    pub const JMP: u16 = 0x05;
    /// Instruction class of returns.
    pub const RET: u16 = 0x06;
    /// Instruction class of moves between A and X.
    pub const MISC: u16 = 0x07;

    /// Access size of 32 bits.
    pub const W: u16 = 0x00;
    /// Access size of 16 bits.
    pub const H: u16 = 0x08;
    /// Access size of 8 bits.
    pub const B: u16 = 0x10;

    /// Addressing mode that yields the constant in the instruction.
    pub const IMM: u16 = 0x00;
    /// Addressing mode that yields packet bytes at a constant offset.
    pub const ABS: u16 = 0x20;
    /// Addressing mode that yields packet bytes at X plus a constant offset.
    pub const IND: u16 = 0x40;
    /// Addressing mode that yields a scratch word.
    pub const MEM: u16 = 0x60;
    /// Addressing mode that yields the length of the packet on the wire.
    pub const LEN: u16 = 0x80;
    /// Addressing mode that yields four times the low nibble of a packet byte.
    pub const MSH: u16 = 0xa0;

    /// Operation code of addition.
    pub const ADD: u16 = 0x00;
    /// Operation code of subtraction.
    pub const SUB: u16 = 0x10;
    /// Operation code of multiplication.
    pub const MUL: u16 = 0x20;
    /// Operation code of unsigned division.
    pub const DIV: u16 = 0x30;
    /// Operation code of bitwise or.
    pub const OR: u16 = 0x40;
    /// Operation code of bitwise and.
    pub const AND: u16 = 0x50;
    /// Operation code of a left shift.
    pub const LSH: u16 = 0x60;
    /// Operation code of a right shift.
    pub const RSH: u16 = 0x70;
    /// Operation code of negation.
    pub const NEG: u16 = 0x80;
    /// Operation code of the unsigned remainder.
    pub const MOD: u16 = 0x90;
    /// Operation code of bitwise exclusive or.
    pub const XOR: u16 = 0xa0;

    /// Operation code of an unconditional jump over `k` instructions.
    pub const JA: u16 = 0x00;
    /// Operation code of a jump if A equals the source.
    pub const JEQ: u16 = 0x10;
    /// Operation code of a jump if A is greater than the source, unsigned.
    pub const JGT: u16 = 0x20;
    /// Operation code of a jump if A is at least the source, unsigned.
    pub const JGE: u16 = 0x30;
    /// Operation code of a jump if A and the source have a set bit in common.
    pub const JSET: u16 = 0x40;

    /// Flag that selects the constant as the source operand.
    pub const K: u16 = 0x00;
    /// Flag that selects X as the source operand.
    pub const X: u16 = 0x08;
    /// Flag that selects A as the return value.
    pub const A: u16 = 0x10;
    /// Operation code that copies A to X.
    pub const TAX: u16 = 0x00;
    /// Operation code that copies X to A.
    pub const TXA: u16 = 0x80;
}

/// First offset of ancillary loads (`SKF_AD_OFF`), which read kernel metadata instead of the
/// packet.
pub const ANCILLARY_OFFSET: u32 = 0xffff_f000;

/// Offsets of ancillary loads, relative to [`ANCILLARY_OFFSET`], with the names of the loads in
/// listings.
pub(super) const ANCILLARY_NAMES: &[(u32, &str)] = &[
    (0, "proto"),
    (4, "type"),
    (8, "ifidx"),
    (12, "nla"),
    (16, "nlan"),
    (20, "mark"),
    (24, "queue"),
    (28, "hatype"),
    (32, "rxhash"),
    (36, "cpu"),
    (40, "xor_x"),
    (44, "vlan_tci"),
    (48, "vlanp"),
    (52, "poff"),
    (56, "random"),
    (60, "vlan_tpid"),
];

/// Names of arithmetic operations in listings. The operations have the same codes in eBPF.
pub(super) const OPERATION_NAMES: [(&str, Alu); 11] = [
    ("add", Alu::Add),
    ("sub", Alu::Sub),
    ("mul", Alu::Mul),
    ("div", Alu::Div),
    ("mod", Alu::Mod),
    ("lsh", Alu::Shl),
    ("rsh", Alu::Shr),
    ("and", Alu::And),
    ("or", Alu::Or),
    ("xor", Alu::Xor),
    ("neg", Alu::Neg),
];

/// Names of comparisons in listings. The comparisons have the same codes in eBPF.
pub(super) const COMPARISON_NAMES: [(&str, Cond); 4] =
    [("jeq", Cond::Eq), ("jgt", Cond::Gt), ("jge", Cond::Ge), ("jset", Cond::Set)];

/// Returns the arithmetic operation of an opcode, or `None` if the opcode has none.
pub(super) fn alu_operation(code: u16) -> Option<Alu> {
    OPERATION_NAMES.iter().map(|(_, op)| *op).find(|op| *op as u16 == code & 0xf0)
}

/// Returns the comparison of an opcode, or `None` if the opcode has none.
pub(super) fn condition(code: u16) -> Option<Cond> {
    COMPARISON_NAMES.iter().map(|(_, op)| *op).find(|op| *op as u16 == code & 0xf0)
}

/// A classic BPF instruction, with the fields of `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Instruction {
    /// The opcode, see [`code`].
    pub code: u16,
    /// Number of following instructions to skip if the comparison holds.
    pub jt: u8,
    /// Number of following instructions to skip if the comparison does not hold.
    pub jf: u8,
    /// Constant operand: a number, an offset or a jump distance, depending on the opcode.
    pub k: u32,
}

impl Instruction {
    /// Creates an instruction that does not branch.
    pub const fn non_branching(code: u16, k: u32) -> Self {
        Self { code, jt: 0, jf: 0, k }
    }

    /// Returns the class of the instruction, from its opcode.
    pub const fn class(self) -> u16 {
        self.code & 0x07
    }

    /// Returns true if the instruction is a comparison (`jeq`, `jgt`, `jge` or `jset`).
    pub const fn is_comparison(self) -> bool {
        self.class() == code::JMP && self.code & 0xf0 != code::JA
    }

    /// Writes the line that `tcpdump -d` prints for the instruction at index `at`.
    pub fn write_listing(self, at: usize, out: &mut impl fmt::Write) -> fmt::Result {
        let (name, operand) = self.format_mnemonic(at);
        if self.is_comparison() {
            let yes = at + 1 + usize::from(self.jt);
            let no = at + 1 + usize::from(self.jf);
            write!(out, "({at:03}) {name:<8} {operand:<16} jt {yes}\tjf {no}")
        } else if operand.is_empty() {
            write!(out, "({at:03}) {name}")
        } else {
            write!(out, "({at:03}) {name:<8} {operand}")
        }
    }

    fn format_mnemonic(self, at: usize) -> (&'static str, String) {
        use code::*;
        let k = self.k;
        match self.class() {
            LD | LDX => self.format_load(),
            ST => ("st", format!("M[{k}]")),
            STX => ("stx", format!("M[{k}]")),
            ALU => self.format_alu(),
            JMP if self.code & 0xf0 == JA => {
                ("ja", format!("{}", at as i64 + 1 + i64::from(k as i32)))
            }
            JMP => {
                let known = COMPARISON_NAMES.iter().find(|(_, op)| *op as u16 == self.code & 0xf0);
                let Some((name, _)) = known else { return self.format_unknown() };
                (name, if self.code & X != 0 { "x".into() } else { format!("#{k:#x}") })
            }
            RET if self.code & 0x18 == A => ("ret", String::new()),
            RET => ("ret", format!("#{k}")),
            _ if self.code == MISC | TAX => ("tax", String::new()),
            _ if self.code == MISC | TXA => ("txa", String::new()),
            _ => self.format_unknown(),
        }
    }

    fn format_load(self) -> (&'static str, String) {
        use code::*;
        let k = self.k;
        let into_x = self.class() == LDX;
        if into_x && self.code == LDX | MSH | B {
            return ("ldxb", format!("4*([{k}]&0xf)"));
        }
        let name = match (into_x, self.code & 0x18) {
            (true, W) => "ldx",
            (false, W) => "ld",
            (false, H) => "ldh",
            (false, B) => "ldb",
            _ => return self.format_unknown(),
        };
        let operand = match self.code & 0xe0 {
            IMM => format!("#{k:#x}"),
            ABS if !into_x => match ancillary_name(k) {
                Some(word) => format!("[{word}]"),
                None => format!("[{k}]"),
            },
            IND if !into_x => format!("[x + {k}]"),
            MEM => format!("M[{k}]"),
            LEN => "#pktlen".into(),
            _ => return self.format_unknown(),
        };
        (name, operand)
    }

    fn format_alu(self) -> (&'static str, String) {
        use code::*;
        let k = self.k;
        let known = OPERATION_NAMES.iter().find(|(_, op)| *op as u16 == self.code & 0xf0);
        let operand = match known {
            None => return self.format_unknown(),
            Some((_, Alu::Neg)) => String::new(),
            Some(_) if self.code & X != 0 => "x".into(),
            Some((_, Alu::And | Alu::Or | Alu::Xor)) => format!("#{k:#x}"),
            Some(_) => format!("#{k}"),
        };
        (known.map_or("", |(name, _)| name), operand)
    }

    fn format_unknown(self) -> (&'static str, String) {
        ("unimp", format!("{:#x}", self.code))
    }
}

fn ancillary_name(k: u32) -> Option<&'static str> {
    let offset = k.checked_sub(ANCILLARY_OFFSET)?;
    ANCILLARY_NAMES.iter().find(|(o, _)| *o == offset).map(|(_, name)| *name)
}
