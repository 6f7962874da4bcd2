//! Liveness analysis, which finds dead instructions. The result of a dead instruction is
//! overwritten or never read, on every path.
//!
//! The emitter produces such instructions, because it assigns an initial value to every variable
//! and passes on positions that only a later filter would read. An error in a dead instruction
//! changes no answer. One backward pass suffices, because control flow never branches backward. In
//! doubt, an instruction counts as live.

use crate::insn::{Helper, Insn, R0, R6, R10, REGISTER_OPERAND_BIT, Size, atomic, class, mode};

/// Size of an eBPF program's stack in bytes.
const STACK_SIZE: usize = 512;

/// Registers and stack bytes that a later instruction may read.
#[derive(Clone, PartialEq, Eq)]
struct LiveSet {
    /// Bit set of the registers that a later instruction may read.
    registers: u16,
    stack: [bool; STACK_SIZE],
}

impl LiveSet {
    const EMPTY: Self = Self { registers: 0, stack: [false; STACK_SIZE] };

    fn mark_register(&mut self, number: u8) {
        self.registers |= 1 << number;
    }

    fn is_live(&self, number: u8) -> bool {
        self.registers >> number & 1 != 0
    }

    fn merge(&mut self, other: &Self) {
        self.registers |= other.registers;
        self.stack.iter_mut().zip(&other.stack).for_each(|(mine, theirs)| *mine |= theirs);
    }

    /// Returns the flags of the stack bytes that an access covers, each true if the byte is live;
    /// empty if the access is outside the stack.
    fn live_stack_bytes(&mut self, offset: i16, size: Size) -> &mut [bool] {
        let from = usize::try_from(i32::from(offset) + STACK_SIZE as i32).unwrap_or(STACK_SIZE);
        self.stack.get_mut(from..from + size.bytes()).unwrap_or_default()
    }
}

/// Returns, for each instruction, true if it is dead: its result is never used.
pub(super) fn dead_instructions(code: &[Insn]) -> Vec<bool> {
    let mut dead_instructions = vec![false; code.len()];
    let mut before = vec![LiveSet::EMPTY; code.len() + 1];
    for (at, insn) in code.iter().enumerate().rev() {
        let mut live = LiveSet::EMPTY;
        for next in successors(at, *insn) {
            if let Some(next) = before.get(next) {
                live.merge(next);
            }
        }
        let is_live = update_live_set(*insn, &mut live);
        if let (Some(dead_instructions), Some(before)) =
            (dead_instructions.get_mut(at), before.get_mut(at))
        {
            (*dead_instructions, *before) = (!is_live, live);
        }
    }
    dead_instructions
}

/// Returns the indices of the instructions that may be executed directly after the instruction at
/// index `at`.
fn successors(at: usize, insn: Insn) -> Vec<usize> {
    let jump = matches!(insn.class(), class::JMP | class::JMP32);
    let target = usize::try_from(at as i64 + 1 + i64::from(insn.off)).unwrap_or(usize::MAX);
    match insn.code {
        _ if insn == Insn::exit() => Vec::new(),
        _ if insn.is_load_imm64() => vec![at + 2],
        0x85 => vec![at + 1],
        0x05 => vec![target],
        _ if jump => vec![at + 1, target],
        _ => vec![at + 1],
    }
}

/// Updates the live set backward over an instruction. Returns true if the instruction is live.
fn update_live_set(insn: Insn, live: &mut LiveSet) -> bool {
    let from_register = insn.code & REGISTER_OPERAND_BIT != 0;
    match insn.class() {
        class::ALU | class::ALU64 => {
            let is_live = live.is_live(insn.dst);
            let is_move = insn.code & 0xf0 == 0xb0;
            if is_live && is_move {
                live.registers &= !(1 << insn.dst);
            }
            if is_live && from_register && insn.code & 0xf0 != 0xd0 {
                live.mark_register(insn.src);
            }
            is_live
        }
        class::LDX => {
            let is_live = live.is_live(insn.dst);
            if is_live {
                live.registers &= !(1 << insn.dst);
                live.mark_register(insn.src);
                if insn.src == R10.number() {
                    live.live_stack_bytes(insn.off, Size::from_opcode(insn.code)).fill(true);
                }
            }
            is_live
        }
        class::ST | class::STX if insn.dst == R10.number() && insn.code & 0xe0 == mode::MEM => {
            let slot = live.live_stack_bytes(insn.off, Size::from_opcode(insn.code));
            let is_live = slot.iter().any(|byte| *byte);
            slot.fill(false);
            if is_live && insn.class() == class::STX {
                live.mark_register(insn.src);
            }
            is_live
        }
        class::LD if insn.is_load_imm64() => {
            let is_live = live.is_live(insn.dst);
            live.registers &= !(1 << insn.dst);
            is_live
        }
        class::JMP if insn.code == 0x85 => {
            update_live_set_for_call(insn, live);
            true
        }
        _ if insn == Insn::exit() => {
            live.mark_register(R0.number());
            true
        }
        class::JMP | class::JMP32 => {
            if insn.code != 0x05 {
                live.mark_register(insn.dst);
            }
            if from_register {
                live.mark_register(insn.src);
            }
            true
        }
        _ => {
            update_live_set_for_access(insn, live);
            true
        }
    }
}

/// Updates the live set for a store to shared memory, a packet load or an atomic operation, all of
/// which are always live.
fn update_live_set_for_access(insn: Insn, live: &mut LiveSet) {
    live.mark_register(insn.dst);
    match insn.class() {
        class::LD => {
            live.mark_register(insn.src);
            live.mark_register(R6.number());
        }
        class::STX => live.mark_register(insn.src),
        _ => {}
    }
    // Compare-and-swap reads r0.
    if insn.code & 0xe0 == mode::ATOMIC && insn.imm == atomic::CMPXCHG {
        live.mark_register(R0.number());
    }
    if insn.code & 0xe0 == mode::ATOMIC && insn.dst == R10.number() {
        live.stack = [true; STACK_SIZE];
    }
}

/// Updates the set of live registers and stack bytes for a call. A helper reads its arguments. It
/// is also assumed to read the entire stack, except for the helpers below that read no memory.
fn update_live_set_for_call(insn: Insn, live: &mut LiveSet) {
    use Helper::{CpuId, KtimeNs, L3ChecksumReplace, L4ChecksumReplace, SkbLoadBytes};
    use Helper::{SkbPullData, SkbVlanPop, XdpAdjustHead, XdpBuffLen, XdpLoadBytes};
    let (arguments, reads_memory) = match Helper::from_number(insn.imm) {
        Some(CpuId | KtimeNs) => (0, false),
        Some(SkbVlanPop | XdpBuffLen) => (1, false),
        Some(SkbPullData | XdpAdjustHead) => (2, false),
        Some(SkbLoadBytes | XdpLoadBytes) => (4, false),
        Some(L3ChecksumReplace | L4ChecksumReplace) => (5, false),
        _ => (5, true),
    };
    live.registers &= !0b11_1111;
    (1..=arguments).for_each(|number| live.mark_register(number));
    if reads_memory {
        live.stack = [true; STACK_SIZE];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::{Alu, Cond, R1, R2};

    #[test]
    fn overwritten_and_unread_results_are_dead() {
        let code = [
            Insn::mov(R1, 7),
            // Dead: overwritten on both paths.
            Insn::store(Size::DW, R10, -8, R1),
            Insn::mov(R2, 3),
            Insn::jump_if(Cond::Eq, R2, 3, 2),
            Insn::store(Size::DW, R10, -8, R2),
            Insn::jump(1),
            Insn::store(Size::DW, R10, -8, 5),
            // Dead: r1 is not read again.
            Insn::alu(Alu::Add, R1, 1),
            Insn::load(Size::W, R0, R10, -8),
            Insn::exit(),
        ];
        let live = [true, true, false, false, false, false, false, true, false, false];
        assert_eq!(dead_instructions(&code), live);
    }

    #[test]
    fn arguments_of_helpers_are_live() {
        let code = |helper| {
            [Insn::mov(R1, 7), Insn::store(Size::DW, R10, -8, R1), Insn::call(helper), Insn::exit()]
        };
        assert_eq!(dead_instructions(&code(Helper::RingbufOutput))[..2], [false, false]);
        assert_eq!(dead_instructions(&code(Helper::CpuId))[..2], [true, true]);
    }
}
