//! Prologue of a program, which computes the end offsets of variable-length headers.

use super::super::condition::{
    Comparison, Condition, JumpLabel, PseudoInsn, TAX, TXA, alu_k, alu_x, compare_k,
    load_a_constant, load_a_from_word, non_branching, store_a,
};
use super::{Code, Generator, HEADER_OFFSET_WORD, PAYLOAD_OFFSET_WORD};
use crate::classic::insn::code;
use crate::classic::link::LinkType as L;

/// Returns the instruction that loads a number of this size, at offset `at`, into A.
const fn load_absolute(size: u16, at: u32) -> PseudoInsn {
    non_branching(code::LD | code::ABS | size, at)
}

impl Generator<'_> {
    /// Prepends code to the condition that computes the varying offsets of the frame. For PPI
    /// frames, also prepends a test that the frame is an 802.11 frame.
    pub(super) fn prepend_prologue(mut self, condition: Condition) -> Condition {
        if condition == Condition::Never {
            return condition;
        }
        let mut lines = Code::new();
        if self.header_used || self.payload_used {
            self.emit_header_length(&mut lines);
        }
        if self.payload_used {
            self.emit_wlan_payload(&mut lines);
        }
        let condition =
            if condition == Condition::Always { condition } else { condition.prepend_code(lines) };
        if self.frame_link != L::PPI {
            return condition;
        }
        let is_wlan = compare_k(vec![load_absolute(code::W, 4)], code::JEQ, 105u32.swap_bytes());
        is_wlan.and(condition)
    }

    /// Emits code that computes the length of the header before the 802.11 header, such as
    /// radiotap, and stores it in X and in a scratch word.
    fn emit_header_length(&mut self, lines: &mut Code) {
        match self.frame_link {
            L::PRISM_HEADER => {
                let (avs, prism, done) = (self.new_label(), self.new_label(), self.new_label());
                let cookie = Comparison { op: code::JEQ, with: Some(0x8021_1000) };
                lines.extend([
                    load_absolute(code::W, 0),
                    alu_k(code::AND, 0xffff_f000),
                    PseudoInsn::Branch { compare: cookie, yes: avs, no: prism },
                    PseudoInsn::Bind(avs),
                    load_absolute(code::W, 4),
                    PseudoInsn::Jump(done),
                    PseudoInsn::Bind(prism),
                    load_a_constant(144),
                    PseudoInsn::Bind(done),
                ]);
            }
            L::IEEE802_11_RADIO_AVS => lines.push(load_absolute(code::W, 4)),
            L::IEEE802_11_RADIO | L::PPI => lines.extend([
                load_absolute(code::B, 3),
                alu_k(code::LSH, 8),
                TAX,
                load_absolute(code::B, 2),
                alu_x(code::OR),
            ]),
            _ => return,
        }
        lines.extend([store_a(HEADER_OFFSET_WORD), TAX]);
    }

    /// Emits code that computes the offset at which the 802.11 header at offset X ends, and stores
    /// it in a scratch word.
    ///
    /// QoS data frames have two more bytes, and a radiotap header may declare that the header is
    /// padded to a multiple of four bytes.
    fn emit_wlan_payload(&mut self, lines: &mut Code) {
        if lines.is_empty() {
            lines.push(non_branching(code::LDX | code::IMM, 0));
        }
        let end = self.new_label();
        lines.extend([
            TXA,
            alu_k(code::ADD, 24),
            store_a(PAYLOAD_OFFSET_WORD),
            non_branching(code::LD | code::IND | code::B, 0),
        ]);
        self.jump_unless_any_bit(lines, 0x08, end);
        self.jump_if(lines, code::JSET, 0x04, end);
        let plain = self.new_label();
        self.jump_unless_any_bit(lines, 0x80, plain);
        lines.extend([
            load_a_from_word(PAYLOAD_OFFSET_WORD),
            alu_k(code::ADD, 2),
            store_a(PAYLOAD_OFFSET_WORD),
            PseudoInsn::Bind(plain),
        ]);
        if self.frame_link == L::IEEE802_11_RADIO {
            self.emit_wlan_padding(lines, end);
        }
        lines.push(PseudoInsn::Bind(end));
    }

    /// Emits code that rounds the payload offset up if the radiotap header declares padding.
    fn emit_wlan_padding(&mut self, lines: &mut Code, end: JumpLabel) {
        /// Radiotap presence bit of the flags field, in big-endian order.
        const FLAGS_PRESENT_BIT: u32 = 0x0200_0000;
        /// Radiotap presence bit that announces another word of presence bits, in big-endian order.
        const PRESENCE_CONTINUES_BIT: u32 = 0x0000_0080;
        /// Radiotap presence bit of the timestamp, in big-endian order.
        const TIMESTAMP_PRESENT_BIT: u32 = 0x0100_0000;
        /// Bit of the radiotap flags field that marks a padded 802.11 header.
        const PADDED_HEADER_FLAG: u32 = 0x20;
        let (early, padded) = (self.new_label(), self.new_label());
        lines.push(load_absolute(code::W, 4));
        self.jump_unless_any_bit(lines, FLAGS_PRESENT_BIT, end);
        self.jump_if(lines, code::JSET, PRESENCE_CONTINUES_BIT, end);
        self.jump_unless_any_bit(lines, TIMESTAMP_PRESENT_BIT, early);
        lines.push(load_absolute(code::B, 16));
        self.jump_if(lines, code::JSET, PADDED_HEADER_FLAG, padded);
        lines.extend([PseudoInsn::Jump(end), PseudoInsn::Bind(early), load_absolute(code::B, 8)]);
        self.jump_unless_any_bit(lines, PADDED_HEADER_FLAG, end);
        lines.extend([
            PseudoInsn::Bind(padded),
            load_a_from_word(PAYLOAD_OFFSET_WORD),
            alu_k(code::ADD, 3),
            alu_k(code::AND, !3),
            store_a(PAYLOAD_OFFSET_WORD),
        ]);
    }

    /// Emits a jump to `target` that is taken if the comparison `op` of A with `k` holds.
    pub(super) fn jump_if(&mut self, lines: &mut Code, op: u16, k: u32, target: JumpLabel) {
        let next = self.new_label();
        let compare = Comparison { op, with: Some(k) };
        lines.push(PseudoInsn::Branch { compare, yes: target, no: next });
        lines.push(PseudoInsn::Bind(next));
    }

    /// Emits a jump to `target` that is taken if A has none of `bits`.
    fn jump_unless_any_bit(&mut self, lines: &mut Code, bits: u32, target: JumpLabel) {
        let next = self.new_label();
        let compare = Comparison { op: code::JSET, with: Some(bits) };
        lines.push(PseudoInsn::Branch { compare, yes: next, no: target });
        lines.push(PseudoInsn::Bind(next));
    }
}
