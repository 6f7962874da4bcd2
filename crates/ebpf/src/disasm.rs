//! Disassembler for eBPF, which annotates instructions with the filters of the request.
//!
//! Input: instructions or a [`Program`]. Output: text in the dialect of the verifier log and of
//! llvm-objdump, one line per instruction. [`list_program`] adds slot numbers and filters. Golden
//! files and `explain` contain such listings. A slot that cannot be decoded is printed as `.insn`,
//! so disassembly never fails.

use std::fmt::Write;

use crate::insn::{
    Alu, Cond, Helper, Insn, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, REGISTER_OPERAND_BIT, Size, atomic,
    class, mode,
};
use crate::program::Program;

/// Lists the program without the continuations that only a tail call enters. A line `; filter
/// @from..to` precedes the code of each filter, and a line `; frame` precedes code that belongs to
/// no filter. Each instruction has a line with its slot and, for jumps, the target slot.
pub fn list_program(program: &Program) -> String {
    let mut out = String::new();
    let mut at = 0;
    let mut lines = program.source_map.iter().peekable();
    while let Some(insn) = program.code.get(at) {
        while let Some(line) = lines.next_if(|line| line.from <= at) {
            match line.filter.and_then(|word| program.filters.get(word)) {
                Some(word) => {
                    let end = word.at + word.length;
                    push_line(&mut out, format_args!("; {} @{}..{end}", word.filter, word.at));
                }
                None => push_line(&mut out, format_args!("; frame")),
            }
        }
        let next = program.code.get(at + 1).copied();
        let text = disassemble_insn(*insn, next);
        match jump_target(*insn, at) {
            Some(target) => push_line(&mut out, format_args!("{at:5}: {text} <{target}>")),
            None => push_line(&mut out, format_args!("{at:5}: {text}")),
        }
        at += if insn.is_load_imm64() { 2 } else { 1 };
    }
    out
}

/// Disassembles one instruction. `next` is the second slot if the instruction is wide.
pub fn disassemble_insn(insn: Insn, next: Option<Insn>) -> String {
    let text = match insn.class() {
        class::LD => wide_or_packet_text(insn, next),
        class::LDX => load_text(insn),
        class::ST | class::STX => store_text(insn),
        class::ALU | class::ALU64 => arithmetic_text(insn),
        _ => jump_text(insn),
    };
    text.unwrap_or_else(|| {
        let Insn { code, dst, src, off, imm } = insn;
        format!(".insn {code:#04x} {dst} {src} {off} {imm}")
    })
}

fn push_line(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{line}");
}

fn jump_target(insn: Insn, at: usize) -> Option<usize> {
    let jumps = match insn.class() {
        class::JMP => !matches!(insn.code, 0x85 | 0x95),
        class::JMP32 => insn.code != class::JMP32,
        _ => false,
    };
    jumps.then(|| (at + 1).checked_add_signed(insn.off.into())).flatten()
}

fn wide_or_packet_text(insn: Insn, next: Option<Insn>) -> Option<String> {
    let Insn { dst, src, imm, .. } = insn;
    if insn.is_load_imm64() {
        let high = next?.imm;
        return match src {
            0 => {
                let value = u64::from(high as u32) << 32 | u64::from(imm as u32);
                Some(format!("r{dst} = {value:#x} ll"))
            }
            PSEUDO_MAP_FD => Some(format!("r{dst} = map[{imm}] ll")),
            PSEUDO_MAP_VALUE => Some(format!("r{dst} = map[{imm}][{high}] ll")),
            _ => None,
        };
    }
    let name = unsigned_type(Size::from_opcode(insn.code));
    match insn.code & 0xe0 {
        mode::ABS => Some(format!("r0 = *({name} *)skb[{imm}]")),
        mode::IND => Some(format!("r0 = *({name} *)skb[r{src} {}]", offset_text(imm))),
        _ => None,
    }
}

fn load_text(insn: Insn) -> Option<String> {
    let Insn { dst, src, off, .. } = insn;
    let size = Size::from_opcode(insn.code);
    let name = match insn.code & 0xe0 {
        mode::MEM => unsigned_type(size),
        mode::MEMSX => signed_type(size)?,
        _ => return None,
    };
    Some(format!("r{dst} = *({name} *)(r{src} {})", offset_text(off.into())))
}

fn store_text(insn: Insn) -> Option<String> {
    let Insn { dst, src, off, imm, .. } = insn;
    let size = Size::from_opcode(insn.code);
    let to = format!("*({} *)(r{dst} {})", unsigned_type(size), offset_text(off.into()));
    match (insn.class(), insn.code & 0xe0) {
        (class::ST, mode::MEM) => Some(format!("{to} = {imm}")),
        (class::STX, mode::MEM) => Some(format!("{to} = r{src}")),
        (class::STX, mode::ATOMIC) if matches!(size, Size::W | Size::DW) => atomic_text(insn, &to),
        _ => None,
    }
}

fn atomic_text(insn: Insn, to: &str) -> Option<String> {
    let Insn { dst, src, off, imm, .. } = insn;
    let bits = Size::from_opcode(insn.code).bytes() * 8;
    let place = format!("r{dst} {}", offset_text(off.into()));
    let sign = |operation| match operation {
        atomic::ADD => Some(("add", "+=")),
        atomic::OR => Some(("or", "|=")),
        atomic::AND => Some(("and", "&=")),
        atomic::XOR => Some(("xor", "^=")),
        _ => None,
    };
    match imm {
        atomic::XCHG => Some(format!("r{src} = xchg_{bits}({place}, r{src})")),
        atomic::CMPXCHG => Some(format!("r0 = cmpxchg_{bits}({place}, r0, r{src})")),
        atomic::LOAD_ACQUIRE => {
            Some(format!("r{dst} = load_acquire((u{bits} *)(r{src} {}))", offset_text(off.into())))
        }
        atomic::STORE_RELEASE => Some(format!("store_release((u{bits} *)({place}), r{src})")),
        _ if imm & atomic::FETCH != 0 => {
            let (name, _) = sign(imm & !atomic::FETCH)?;
            Some(format!("r{src} = atomic_fetch_{name}((u{bits} *)({place}), r{src})"))
        }
        _ => sign(imm).map(|(_, sign)| format!("lock {to} {sign} r{src}")),
    }
}

fn arithmetic_text(insn: Insn) -> Option<String> {
    let Insn { code, dst, src, off, imm } = insn;
    let wide = insn.class() == class::ALU64;
    let r = if wide { 'r' } else { 'w' };
    let op = code & 0xf0;
    if op == 0xd0 {
        let name = match (wide, code & REGISTER_OPERAND_BIT != 0) {
            (false, false) => "le",
            (false, true) => "be",
            (true, false) => "bswap",
            (true, true) => return None,
        };
        return matches!(imm, 16 | 32 | 64).then(|| format!("r{dst} = {name}{imm} r{dst}"));
    }
    if op == Alu::Neg as u8 {
        return (code & REGISTER_OPERAND_BIT == 0).then(|| format!("{r}{dst} = -{r}{dst}"));
    }
    let operand =
        if code & REGISTER_OPERAND_BIT == 0 { imm.to_string() } else { format!("{r}{src}") };
    if op == Alu::Mov as u8 && off != 0 {
        let valid =
            code & REGISTER_OPERAND_BIT != 0 && matches!((off, wide), (8 | 16, _) | (32, true));
        return valid.then(|| format!("{r}{dst} = (s{off}){operand}"));
    }
    let sign = match (op, off) {
        (0x30, 1) => "s/=",
        (0x90, 1) => "s%=",
        (_, 0) => ["+=", "-=", "*=", "/=", "|=", "&=", "<<=", ">>=", "", "%=", "^=", "=", "s>>="]
            .get(usize::from(op >> 4))?,
        _ => return None,
    };
    Some(format!("{r}{dst} {sign} {operand}"))
}

fn jump_text(insn: Insn) -> Option<String> {
    let Insn { code, dst, src, off, imm } = insn;
    match code {
        0x05 => return Some(format!("goto {off:+}")),
        0x85 if src == 0 => {
            let name = Helper::from_number(imm).map_or("helper", Helper::name);
            return Some(format!("call {name}#{imm}"));
        }
        0x95 => return Some("exit".to_owned()),
        _ => {}
    }
    let r = if insn.class() == class::JMP { 'r' } else { 'w' };
    let sign = Cond::from_opcode(code)?.symbol();
    let operand =
        if code & REGISTER_OPERAND_BIT == 0 { imm.to_string() } else { format!("{r}{src}") };
    Some(format!("if {r}{dst} {sign} {operand} goto {off:+}"))
}

fn unsigned_type(size: Size) -> &'static str {
    match size {
        Size::B => "u8",
        Size::H => "u16",
        Size::W => "u32",
        Size::DW => "u64",
    }
}

fn signed_type(size: Size) -> Option<&'static str> {
    match size {
        Size::B => Some("s8"),
        Size::H => Some("s16"),
        Size::W => Some("s32"),
        Size::DW => None,
    }
}

fn offset_text(off: i32) -> String {
    if off < 0 { format!("- {}", off.unsigned_abs()) } else { format!("+ {off}") }
}
