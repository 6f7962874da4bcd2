//! SipHash-2-4 in straight-line eBPF, without helpers or loops.
//!
//! Input: a key known while emitting, and 64-bit numbers as read from the packet. Output: the tag,
//! as it is stored in a packet. The state is kept in four stack slots that arms may update, so the
//! number of input words may depend on the packet. (Aumasson, Bernstein, 2012: "SipHash: a fast
//! short-input PRF".)
//!
//! The numbers are in network byte order, while SipHash reads its input in the reverse order. Each
//! input word and the tag are therefore byte-swapped once.

use super::handle::{Brand, Num, SlotDepth};
use super::scope::Scope;
use super::state::WideNum;
use crate::insn::{Alu, Insn, R0, R1, R2, R3, R4, R5, Reg};

/// A SipHash computation in progress.
#[derive(Clone, Copy, Debug)]
pub struct SiphashState<'s> {
    /// The deepest of the four stack slots that hold the state words of SipHash. It holds the last
    /// word.
    slot: SlotDepth,
    brand: Brand<'s>,
}

/// Registers that contain the state during a round.
const STATE_REGISTERS: [Reg; 4] = [R1, R2, R3, R4];
/// Initial state before the key is mixed in: the bytes of "somepseudorandomlygeneratedbytes".
const INITIAL_STATE: [u64; 4] =
    [0x736f_6d65_7073_6575, 0x646f_7261_6e64_6f6d, 0x6c79_6765_6e65_7261, 0x7465_6462_7974_6573];
/// Number of SipHash rounds per input word.
const ROUNDS_PER_WORD: usize = 2;
/// Number of SipHash rounds after the last input word.
const FINAL_ROUNDS: usize = 4;

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// Begins the computation of a SipHash tag under this key, given as two little-endian words.
    pub fn begin_siphash(&mut self, key: [u64; 2]) -> SiphashState<'s> {
        let b = self.builder();
        let slot = b.allocate_slots(4);
        for ((at, begin), key) in
            state_slots(slot).into_iter().zip(INITIAL_STATE).zip([key, key].concat())
        {
            b.asm.push_wide(Insn::load64(R0, begin ^ key));
            b.store_in_slot(at, R0);
        }
        SiphashState { slot, brand: Brand::default() }
    }

    /// Emits code that adds eight bytes of input, given as a number in network byte order, to the
    /// hash.
    pub fn absorb_siphash_word(&mut self, sip: SiphashState<'s>, word: WideNum<'s>) {
        self.fetch_wide(word, R5);
        self.swap_bytes(R5);
        self.fetch_siphash_state(sip);
        self.xor(R4, R5);
        (0..ROUNDS_PER_WORD).for_each(|_| self.sip_round());
        self.xor(R1, R5);
        for (at, from) in state_slots(sip.slot).into_iter().zip(STATE_REGISTERS) {
            self.builder().store_in_slot(at, from);
        }
        self.builder().invalidate_registers();
    }

    /// Emits code that adds the last word of input, whose last byte is the input length modulo 256.
    /// Returns the SipHash tag as a number in network byte order.
    pub fn finish_siphash(&mut self, sip: SiphashState<'s>, last: WideNum<'s>) -> WideNum<'s> {
        self.absorb_siphash_word(sip, last);
        self.fetch_siphash_state(sip);
        self.builder().asm.push(Insn::alu(Alu::Xor, R3, 0xff));
        (0..FINAL_ROUNDS).for_each(|_| self.sip_round());
        for other in [R2, R3, R4] {
            self.xor(R1, other);
        }
        self.builder().asm.push(Insn::mov(R0, R1));
        self.swap_bytes(R0);
        self.store_wide()
    }

    fn fetch_siphash_state(&mut self, sip: SiphashState<'s>) {
        for (at, to) in state_slots(sip.slot).into_iter().zip(STATE_REGISTERS) {
            self.fetch_wide(WideNum(Num { slot: at, brand: sip.brand }), to);
        }
    }

    /// Emits one SipHash round, with the operations in the paper's order.
    fn sip_round(&mut self) {
        let [v0, v1, v2, v3] = STATE_REGISTERS;
        self.add_rotate_xor(v0, v1, 13);
        self.rotate(v0, 32);
        self.add_rotate_xor(v2, v3, 16);
        self.add_rotate_xor(v0, v3, 21);
        self.add_rotate_xor(v2, v1, 17);
        self.rotate(v2, 32);
    }

    /// Emits the part of a SipHash round that computes `a += b; b = (b <<< bits) ^ a`.
    fn add_rotate_xor(&mut self, a: Reg, b: Reg, bits: i32) {
        self.builder().asm.push(Insn::alu(Alu::Add, a, b));
        self.rotate(b, bits);
        self.xor(b, a);
    }

    fn rotate(&mut self, reg: Reg, bits: i32) {
        let asm = &mut self.builder().asm;
        asm.compute(R0, reg, Alu::Shl, bits);
        asm.push(Insn::alu(Alu::Shr, reg, 64 - bits));
        asm.push(Insn::alu(Alu::Or, reg, R0));
    }

    fn xor(&mut self, to: Reg, with: Reg) {
        self.builder().asm.push(Insn::alu(Alu::Xor, to, with));
    }

    fn swap_bytes(&mut self, reg: Reg) {
        self.builder().asm.push(Insn::big_endian(reg, 64));
    }
}

/// Returns the stack slots of the four state words, given the deepest of them.
fn state_slots(deepest: SlotDepth) -> [SlotDepth; 4] {
    [deepest - 24, deepest - 16, deepest - 8, deepest]
}
