//! Arithmetic of the interpreter. The functions return `None` for an operation that does not exist.
//!
//! Division by zero yields 0, and remainder by zero leaves the dividend unchanged (RFC 9669 §4.1).

use crate::insn::{Insn, REGISTER_OPERAND_BIT, class};

/// Computes `left op right` for every operation except byte swaps. In the 32-bit class, operands
/// and result are truncated to 32 bits.
pub(super) fn evaluate_alu(insn: Insn, left: u64, right: u64) -> Option<u64> {
    let wide = insn.class() == class::ALU64;
    let cut = |value: u64| if wide { value } else { u64::from(value as u32) };
    let signed = |value: u64| if wide { value as i64 } else { i64::from(value as i32) };
    let (left, right) = (cut(left), cut(right));
    let shift = right as u32 & if wide { 63 } else { 31 };
    let value = match (insn.code & 0xf0, insn.off) {
        (0x00, 0) => left.wrapping_add(right),
        (0x10, 0) => left.wrapping_sub(right),
        (0x20, 0) => left.wrapping_mul(right),
        (0x30, 0) => left.checked_div(right).unwrap_or(0),
        (0x30, 1) if right == 0 => 0,
        (0x30, 1) => signed(left).wrapping_div(signed(right)) as u64,
        (0x40, 0) => left | right,
        (0x50, 0) => left & right,
        (0x60, 0) => left << shift,
        (0x70, 0) => left >> shift,
        (0x80, 0) if insn.code & REGISTER_OPERAND_BIT == 0 => left.wrapping_neg(),
        (0x90, 0) => left.checked_rem(right).unwrap_or(left),
        (0x90, 1) if right == 0 => left,
        (0x90, 1) => signed(left).wrapping_rem(signed(right)) as u64,
        (0xa0, 0) => left ^ right,
        (0xb0, off) => sign_extend(insn, off, right, wide)?,
        (0xc0, 0) => (signed(left) >> shift) as u64,
        _ => return None,
    };
    Some(cut(value))
}

/// Swaps the bytes of a value as the opcode requires. The 32-bit class converts to little or big
/// endian; the 64-bit class always swaps.
pub(super) fn swap_bytes(insn: Insn, value: u64) -> Option<u64> {
    let keep = insn.class() == class::ALU && insn.code & REGISTER_OPERAND_BIT == 0;
    if insn.class() == class::ALU64 && insn.code & REGISTER_OPERAND_BIT != 0 {
        return None;
    }
    match (insn.imm, keep) {
        (16, true) => Some(u64::from((value as u16).to_le())),
        (32, true) => Some(u64::from((value as u32).to_le())),
        (64, true) => Some(value.to_le()),
        (16, false) => Some(u64::from((value as u16).swap_bytes())),
        (32, false) => Some(u64::from((value as u32).swap_bytes())),
        (64, false) => Some(value.swap_bytes()),
        _ => None,
    }
}

/// Sign-extends the low `off` bits of a value to 64 bits. If `off` is 0, returns the value
/// unchanged.
fn sign_extend(insn: Insn, off: i16, value: u64, wide: bool) -> Option<u64> {
    let from_register = insn.code & REGISTER_OPERAND_BIT != 0;
    match off {
        0 => Some(value),
        8 if from_register => Some(value as i8 as u64),
        16 if from_register => Some(value as i16 as u64),
        32 if from_register && wide => Some(value as i32 as u64),
        _ => None,
    }
}
