//! Prologue of a program, which computes the end offsets of variable-length headers.

use super::super::condition::{
    Compare, Condition, JumpLabel, PseudoInsn, TAX, TXA, alu_k, alu_x, compare_k, constant_to_a,
    memory_to_a, plain_insn, store_a,
};
use super::{Code, Generator, HEADER_WORD, PAYLOAD_WORD};
use crate::classic::insn::code;
use crate::classic::link::LinkType as L;

/// Returns the instruction that loads the number of this size at offset `at` into A.
const fn load(size: u16, at: u32) -> PseudoInsn {
    plain_insn(code::LD | code::ABS | size, at)
}

impl Generator<'_> {
    /// Prepends the prologue that computes the offsets to the condition.
    pub(super) fn finish(mut self, condition: Condition) -> Condition {
        if condition == Condition::Never {
            return condition;
        }
        let mut lines = Code::new();
        if self.header_used || self.payload_used {
            self.header_to_x(&mut lines);
        }
        if self.payload_used {
            self.wlan_payload(&mut lines);
        }
        let condition =
            if condition == Condition::Always { condition } else { condition.after(lines) };
        if self.outer != L::PPI {
            return condition;
        }
        let is_wlan = compare_k(vec![load(code::W, 4)], code::JEQ, 105u32.swap_bytes());
        is_wlan.and(condition)
    }

    /// Emits code that computes the length of the header before the 802.11 header, and stores it in
    /// X and in a scratch word.
    fn header_to_x(&mut self, lines: &mut Code) {
        match self.outer {
            L::PRISM_HEADER => {
                let (avs, prism, done) = (self.label(), self.label(), self.label());
                let cookie = Compare { op: code::JEQ, with: Some(0x8021_1000) };
                lines.extend([
                    load(code::W, 0),
                    alu_k(code::AND, 0xffff_f000),
                    PseudoInsn::Branch { compare: cookie, yes: avs, no: prism },
                    PseudoInsn::Place(avs),
                    load(code::W, 4),
                    PseudoInsn::Goto(done),
                    PseudoInsn::Place(prism),
                    constant_to_a(144),
                    PseudoInsn::Place(done),
                ]);
            }
            L::IEEE802_11_RADIO_AVS => lines.push(load(code::W, 4)),
            L::IEEE802_11_RADIO | L::PPI => lines.extend([
                load(code::B, 3),
                alu_k(code::LSH, 8),
                TAX,
                load(code::B, 2),
                alu_x(code::OR),
            ]),
            _ => return,
        }
        lines.extend([store_a(HEADER_WORD), TAX]);
    }

    /// Emits code that computes the offset after the 802.11 header at X, and stores it in a scratch
    /// word.
    ///
    /// QoS data frames have two more bytes, and a radiotap header may declare that the header is
    /// padded to a multiple of four bytes.
    fn wlan_payload(&mut self, lines: &mut Code) {
        if lines.is_empty() {
            lines.push(plain_insn(code::LDX | code::IMM, 0));
        }
        let end = self.label();
        lines.extend([
            TXA,
            alu_k(code::ADD, 24),
            store_a(PAYLOAD_WORD),
            plain_insn(code::LD | code::IND | code::B, 0),
        ]);
        self.jump_unless_any(lines, 0x08, end);
        self.jump_if(lines, code::JSET, 0x04, end);
        let plain = self.label();
        self.jump_unless_any(lines, 0x80, plain);
        lines.extend([
            memory_to_a(PAYLOAD_WORD),
            alu_k(code::ADD, 2),
            store_a(PAYLOAD_WORD),
            PseudoInsn::Place(plain),
        ]);
        if self.outer == L::IEEE802_11_RADIO {
            self.padding(lines, end);
        }
        lines.push(PseudoInsn::Place(end));
    }

    /// Emits code that rounds the payload offset up if the radiotap header declares padding.
    fn padding(&mut self, lines: &mut Code, end: JumpLabel) {
        /// Presence bit of the flags field, in big-endian order.
        const FLAGS: u32 = 0x0200_0000;
        /// Presence bit of a further word of presence bits, in big-endian order.
        const EXTENDED: u32 = 0x0000_0080;
        /// Presence bit of the timestamp, in big-endian order.
        const TIME: u32 = 0x0100_0000;
        /// Bit of the flags field of a frame with a padded header.
        const PADDED: u32 = 0x20;
        let (early, padded) = (self.label(), self.label());
        lines.push(load(code::W, 4));
        self.jump_unless_any(lines, FLAGS, end);
        self.jump_if(lines, code::JSET, EXTENDED, end);
        self.jump_unless_any(lines, TIME, early);
        lines.push(load(code::B, 16));
        self.jump_if(lines, code::JSET, PADDED, padded);
        lines.extend([PseudoInsn::Goto(end), PseudoInsn::Place(early), load(code::B, 8)]);
        self.jump_unless_any(lines, PADDED, end);
        lines.extend([
            PseudoInsn::Place(padded),
            memory_to_a(PAYLOAD_WORD),
            alu_k(code::ADD, 3),
            alu_k(code::AND, !3),
            store_a(PAYLOAD_WORD),
        ]);
    }

    /// Emits a jump to `target` that is taken if the comparison of A with `k` holds.
    pub(super) fn jump_if(&mut self, lines: &mut Code, op: u16, k: u32, target: JumpLabel) {
        let next = self.label();
        let compare = Compare { op, with: Some(k) };
        lines.push(PseudoInsn::Branch { compare, yes: target, no: next });
        lines.push(PseudoInsn::Place(next));
    }

    /// Emits a jump to `target` that is taken if A has none of `bits`.
    fn jump_unless_any(&mut self, lines: &mut Code, bits: u32, target: JumpLabel) {
        let next = self.label();
        let compare = Compare { op: code::JSET, with: Some(bits) };
        lines.push(PseudoInsn::Branch { compare, yes: next, no: target });
        lines.push(PseudoInsn::Place(next));
    }
}
