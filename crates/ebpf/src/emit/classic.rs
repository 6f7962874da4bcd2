//! Translation of classic BPF to eBPF, so that a compiled pcap-filter(7) expression can be part of
//! a twin.
//!
//! Input: a program without loops. Output: code that makes the same decision about the frame as it
//! arrived, independent of the current view. Bytes that are not directly readable are loaded by a
//! helper, which handles fragments, so the decision is unsure only about frames with a tag of an
//! unknown type that is stored outside the frame. The translation differs from the kernel's in two
//! ways. A load beyond the frame leaves through the twin's exit, which counts the frame. Value
//! ranges of A, X and the scratch words are tracked during emission, so that bytes after a
//! variable-length header are also read directly. [SL §5.2, §5.3]
//!
//! A is kept in r9, X and the scratch words in stack slots.

use super::builder::{Builder, PULLED_BYTES_MAX, skb};
use super::handle::{Exit, SlotDepth};
use super::scope::{Cmp, MetadataField, Scope};
use super::unfit::UnfitReason;
use crate::asm::Label;
use crate::classic::insn::{ANCILLARY_OFFSET, Instruction, code};
use crate::classic::kernel::rewrite_for_kernel;
use crate::classic::{ClassicProgram, MEMORY_WORDS};
use crate::insn::{
    Alu, Cond, Helper, Insn, Operand, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Reg, Size,
};
use crate::program::Hook;

/// EtherTypes of the tags that the kernel stores outside frames: 802.1Q and 802.1ad.
const TAG_TYPES: [u32; 2] = [0x8100, 0x88a8];
const SCRATCH_WORD_COUNT: usize = MEMORY_WORDS as usize;

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// Emits code that runs a classic BPF program over the frame. Execution continues after this
    /// code if the program accepts the frame, and at the exit `miss` if it rejects the frame. The
    /// program expects Ethernet frames with inline tags. At hooks where the kernel may store the
    /// tag outside the frame, a second copy of the code handles such frames.
    pub fn only_accepted_by_classic(
        &mut self,
        program: &ClassicProgram,
        miss: Exit<'s>,
    ) -> Result<(), UnfitReason> {
        let copy = |tagged| {
            rewrite_for_kernel(program, tagged).map_err(|why| UnfitReason::new(why.to_string()))
        };
        let plain = copy(false)?;
        if !self.may_have_stored_tag() {
            self.translate_program(&plain, miss);
            return Ok(());
        }
        let tagged = copy(true)?;
        let unsure = self.unsure();
        self.arm(|s, done| {
            s.arm(|t, untagged| {
                let present = t.load_metadata(MetadataField::TagPresent);
                t.only(present, Cmp::Ne, 0, untagged);
                let kind = t.load_metadata(MetadataField::TagProtocol);
                t.only_one_of(kind, TAG_TYPES, unsure);
                t.translate_program(&tagged, miss);
                t.leave(done);
            });
            s.translate_program(&plain, miss);
        });
        Ok(())
    }

    fn translate_program(&mut self, program: &ClassicProgram, miss: Exit<'s>) {
        self.arm(|s, holds| {
            let (yes, no) = (holds.label, miss.label);
            Translation::new(s.builder(), program, yes, no).translate(program.instructions());
        });
    }
}

/// Facts about registers and frame that hold before an instruction, on every path to it.
#[derive(Clone, Copy)]
struct KnownFacts {
    /// Number of bytes from the start of the frame that are known to be present.
    proven: u32,
    /// Upper bound of the value of A.
    a: u32,
    /// Upper bound of the value of X.
    x: u32,
    /// Upper bounds of the values of the scratch words.
    words: [u32; SCRATCH_WORD_COUNT],
}

impl KnownFacts {
    const START: Self = Self { proven: 0, a: 0, x: 0, words: [0; SCRATCH_WORD_COUNT] };

    fn merge(self, other: Self) -> Self {
        let mut words = self.words;
        words.iter_mut().zip(other.words).for_each(|(word, other)| *word = other.max(*word));
        Self {
            proven: self.proven.min(other.proven),
            a: self.a.max(other.a),
            x: self.x.max(other.x),
            words,
        }
    }
}

struct Translation<'b> {
    b: &'b mut Builder,
    yes: Label,
    no: Label,
    /// Label of each instruction: the label at its start or, for an instruction that returns a
    /// constant, the label of the exit for this constant.
    labels: Vec<Label>,
    /// For each instruction, true if it returns a constant.
    returns_constant: Vec<bool>,
    /// For each instruction, the facts before it, or `None` if no path has reached it so far.
    known: Vec<Option<KnownFacts>>,
    x: SlotDepth,
    scratch: SlotDepth,
    words: SlotDepth,
    now: KnownFacts,
}

impl<'b> Translation<'b> {
    fn new(b: &'b mut Builder, program: &ClassicProgram, yes: Label, no: Label) -> Self {
        let instructions = program.instructions();
        let labels = instructions.iter().map(|_| b.asm.new_label()).collect();
        let mut known = vec![None; instructions.len()];
        if let Some(first) = known.first_mut() {
            *first = Some(KnownFacts::START);
        }
        let (x, scratch) = (b.allocate_slots(1), b.allocate_bytes(4));
        let deepest = instructions.iter().filter(|i| uses_memory(**i)).map(|i| i.k & 15).max();
        let count = deepest.map_or(0, |deepest| deepest as SlotDepth + 1);
        let words = b.allocate_slots(count);
        b.slot_in_register = [None; 6];
        b.is_region_lost = true;
        b.asm.push(Insn::mov(R9, 0));
        b.asm.push(Insn::store(Size::DW, R10, -x, R9));
        for word in 0..count {
            b.asm.push(Insn::store(Size::DW, R10, word * 8 - words, R9));
        }
        let answers = vec![false; instructions.len()];
        Self {
            b,
            yes,
            no,
            labels,
            returns_constant: answers,
            known,
            x,
            scratch,
            words,
            now: KnownFacts::START,
        }
    }

    fn translate(mut self, instructions: &[Instruction]) {
        let answers = self.labels.iter_mut().zip(&mut self.returns_constant).zip(instructions);
        for ((label, answer), i) in answers {
            if i.class() == code::RET && i.code & 0x18 != code::A {
                *label = if i.k == 0 { self.no } else { self.yes };
                *answer = true;
            }
        }
        for (at, instruction) in instructions.iter().enumerate() {
            // Jumps go forward, so all predecessors are done.
            let Some(known) = self.known.get(at).copied().flatten() else { continue };
            self.now = known;
            if let (Some(label), Some(false)) = (self.labels.get(at), self.returns_constant.get(at))
            {
                self.b.bind(*label);
            }
            match instruction.class() {
                code::JMP => self.translate_jump(*instruction, at),
                code::RET => self.emit_return_exit(*instruction),
                code::ST | code::STX => self.translate_store(*instruction),
                code::ALU => self.translate_arithmetic(*instruction),
                code::MISC => self.translate_move(*instruction),
                _ => self.translate_load(*instruction),
            }
            if !matches!(instruction.class(), code::JMP | code::RET) {
                self.fall_through(at + 1);
            }
        }
    }

    /// Merges the facts known here into the facts known before the instruction at index `at`, to
    /// which control may continue. Does nothing for an instruction that returns a constant, because
    /// a jump to it becomes a jump to its exit.
    fn merge_facts(&mut self, at: usize) {
        if self.returns_constant.get(at).copied().unwrap_or(true) {
            return;
        }
        let now = self.now;
        if let Some(known_there) = self.known.get_mut(at) {
            *known_there = Some(known_there.map_or(now, |known| known.merge(now)));
        }
    }

    // ---- loads

    fn translate_load(&mut self, i: Instruction) {
        let into_x = i.class() == code::LDX;
        let to = if into_x { R0 } else { R9 };
        let bound = match i.code & 0xe0 {
            code::IMM => {
                self.push(Insn::alu32(Alu::Mov, to, i.k.cast_signed()));
                i.k
            }
            code::MEM => {
                self.push(Insn::load(Size::DW, to, R10, self.scratch_slot(i.k)));
                self.now.words.get(i.k as usize & 15).copied().unwrap_or(u32::MAX)
            }
            code::LEN => self.translate_length(into_x),
            code::MSH => {
                self.load_bytes_at_offset(i.k, Size::B, R0);
                self.push(Insn::alu(Alu::And, R0, 0x0f));
                self.push(Insn::alu(Alu::Shl, R0, 2));
                60
            }
            code::ABS if i.k >= ANCILLARY_OFFSET => self.load_tag_field(i.k - ANCILLARY_OFFSET),
            code::ABS => self.load_bytes_at_offset(i.k, access_size(i.code), R9),
            _ => self.load_bytes_at_x(i.k, access_size(i.code)),
        };
        if into_x {
            self.push(Insn::store(Size::DW, R10, -self.x, R0));
            self.now.x = bound;
        } else {
            self.now.a = bound;
        }
    }

    fn translate_length(&mut self, into_x: bool) -> u32 {
        self.b.emit_frame_length();
        if !into_x {
            self.push(Insn::mov(R9, R0));
        }
        u32::MAX
    }

    /// Emits code that loads a field of the VLAN tag that is stored outside the frame. Such fields
    /// are the only ancillary data that a copied program can load. Returns the maximum value of the
    /// field.
    fn load_tag_field(&mut self, field: u32) -> u32 {
        let (offset, bound) = match field {
            44 => (skb::TAG_TCI, 0xffff),
            48 => (skb::TAG_PRESENT, 1),
            60 => (skb::TAG_PROTOCOL, 0xffff),
            _ => {
                self.b.refuse_program(UnfitReason::new(
                    "its program reads data that only a socket has",
                ));
                return u32::MAX;
            }
        };
        self.push(Insn::load(Size::W, R9, R6, offset));
        if offset == skb::TAG_PROTOCOL {
            self.push(Insn::big_endian(R9, 16));
        }
        bound
    }

    /// Returns the end offset of the directly readable bytes: those pulled by the prologue, or the
    /// first buffer at XDP. Returns 0 if all bytes are read through a helper.
    fn directly_readable_end(&self) -> u32 {
        match self.b.target.hook {
            Hook::Socket | Hook::Cgroup => 0,
            Hook::Tc if self.b.target.hardened => 0,
            Hook::Tc | Hook::Xdp => PULLED_BYTES_MAX,
        }
    }

    /// Emits code that loads a number of `size` bytes at the constant offset `k` into the register
    /// `to`. Returns the maximum value of the number.
    fn load_bytes_at_offset(&mut self, k: u32, size: Size, to: Reg) -> u32 {
        let end = k.saturating_add(access_bytes(size));
        if end > self.directly_readable_end() {
            // `rewrite_for_kernel` rejected offsets beyond the reach of every helper.
            self.push(Insn::mov(R2, k.cast_signed()));
            self.load_by_helper(size, to);
        } else {
            if self.now.proven < end {
                self.b.asm.compute(R2, R7, Alu::Add, end.cast_signed());
                self.b.asm.jump_if(Cond::Gt, R2, R8, self.no);
                self.now.proven = end;
                self.b.reach = self.b.reach.max(end);
            }
            self.push(Insn::load(size, to, R7, instruction_offset(k)));
        }
        self.swap_byte_order(size, to)
    }

    /// Emits code that loads a number of `size` bytes at offset X plus `k` into A. Returns the
    /// maximum value of the number.
    fn load_bytes_at_x(&mut self, k: u32, size: Size) -> u32 {
        let end = u64::from(self.now.x) + u64::from(k) + u64::from(access_bytes(size));
        let end = u32::try_from(end).unwrap_or(u32::MAX);
        let computed = !self.b.target.hardened;
        self.push(Insn::load(Size::DW, R2, R10, -self.x));
        if computed && end <= self.directly_readable_end() {
            // The bound holds already, but the verifier may have lost it at a join.
            self.b.asm.jump_if(Cond::Gt, R2, self.now.x.cast_signed(), self.no);
            self.push(Insn::alu(Alu::Add, R2, R7));
            self.b.asm.compute(
                R3,
                R2,
                Alu::Add,
                k.saturating_add(access_bytes(size)).cast_signed(),
            );
            self.b.asm.jump_if(Cond::Gt, R3, R8, self.no);
            self.b.reach = self.b.reach.max(end);
            self.push(Insn::load(size, R9, R2, instruction_offset(k)));
        } else {
            self.push(Insn::alu(Alu::Add, R2, k.cast_signed()));
            self.b.asm.jump_if(Cond::Gt, R2, i32::MAX, self.no);
            self.load_by_helper(size, R9);
        }
        self.swap_byte_order(size, R9)
    }

    /// Emits code that loads `size` bytes through a helper, from the offset in r2, into the
    /// register `to`.
    fn load_by_helper(&mut self, size: Size, to: Reg) {
        let xdp = self.b.target.hook == Hook::Xdp;
        self.push(Insn::mov(R1, R6));
        self.b.asm.compute(R3, R10, Alu::Add, i32::from(-self.scratch));
        self.push(Insn::mov(R4, access_bytes(size).cast_signed()));
        self.b.call_helper(if xdp { Helper::XdpLoadBytes } else { Helper::SkbLoadBytes });
        self.b.asm.jump_if(Cond::Ne, R0, 0, self.no);
        self.push(Insn::load(size, to, R10, -self.scratch));
    }

    /// Emits code that converts the number of `size` bytes in `reg` from network byte order.
    /// Returns the maximum value of a number of this size.
    fn swap_byte_order(&mut self, size: Size, reg: Reg) -> u32 {
        self.b.convert_byte_order(size, reg);
        match size {
            Size::B => 0xff,
            Size::H => 0xffff,
            Size::W | Size::DW => u32::MAX,
        }
    }

    // ---- other instructions

    fn translate_store(&mut self, i: Instruction) {
        let (from, bound) = match i.class() {
            code::ST => (R9, self.now.a),
            _ => {
                self.push(Insn::load(Size::DW, R0, R10, -self.x));
                (R0, self.now.x)
            }
        };
        self.push(Insn::store(Size::DW, R10, self.scratch_slot(i.k), from));
        if let Some(word) = self.now.words.get_mut(i.k as usize & 15) {
            *word = bound;
        }
    }

    fn translate_move(&mut self, i: Instruction) {
        if i.code == code::MISC | code::TAX {
            self.push(Insn::store(Size::DW, R10, -self.x, R9));
            self.now.x = self.now.a;
        } else {
            self.push(Insn::load(Size::DW, R9, R10, -self.x));
            self.now.a = self.now.x;
        }
    }

    fn translate_arithmetic(&mut self, i: Instruction) {
        let by_x = i.code & code::X != 0 && i.code & 0xf0 != code::NEG;
        let operation = Alu::from_opcode(i.code as u8).unwrap_or(Alu::Xor);
        let operand = if by_x {
            self.push(Insn::load(Size::DW, R1, R10, -self.x));
            if matches!(operation, Alu::Div | Alu::Mod) {
                self.b.asm.jump_if(Cond::Eq, R1, 0, self.no);
            }
            Operand::Reg(R1)
        } else {
            Operand::Imm(i.k.cast_signed())
        };
        let shifts = matches!(operation, Alu::Shl | Alu::Shr);
        let other = if by_x { self.now.x } else { i.k };
        match (shifts && !by_x && i.k >= 32, operation) {
            (true, _) => self.push(Insn::mov(R9, 0)),
            (_, Alu::Neg) => self.push(Insn::alu32(Alu::Neg, R9, 0)),
            _ => self.push(Insn::alu32(operation, R9, operand)),
        }
        self.now.a = maximum_result(operation, self.now.a, other, by_x);
    }

    fn translate_jump(&mut self, i: Instruction, at: usize) {
        if !i.is_comparison() {
            return self.emit_jump_to_instruction(at + 1 + i.k as usize);
        }
        let cond = Cond::from_opcode(i.code as u8).unwrap_or(Cond::Set);
        let (yes, no) = (at + 1 + usize::from(i.jt), at + 1 + usize::from(i.jf));
        // A branch to the next instruction needs no jump if the condition has an inverse.
        let opposite = match cond {
            Cond::Eq => Cond::Ne,
            Cond::Gt => Cond::Le,
            Cond::Ge => Cond::Lt,
            _ => cond,
        };
        let inverted = opposite != cond && yes == at + 1;
        let (cond, to, otherwise) = if inverted { (opposite, no, yes) } else { (cond, yes, no) };
        self.merge_facts(to);
        let label = self.labels.get(to).copied().unwrap_or(self.no);
        if i.code & code::X != 0 {
            self.push(Insn::load(Size::DW, R1, R10, -self.x));
            self.b.asm.jump_if(cond, R9, R1, label);
        } else {
            match i32::try_from(i.k) {
                Ok(k) => self.b.asm.jump_if(cond, R9, k, label),
                Err(_) => self.b.asm.jump32_if(cond, R9, i.k.cast_signed(), label),
            }
        }
        if otherwise == at + 1 {
            self.fall_through(otherwise);
        } else {
            self.emit_jump_to_instruction(otherwise);
        }
    }

    /// Lets control continue at instruction `next`, which directly follows the current one. Emits a
    /// jump only if `next` returns a constant, because the exit for this constant is elsewhere.
    fn fall_through(&mut self, next: usize) {
        match self.returns_constant.get(next) {
            Some(true) => self.emit_jump_to_instruction(next),
            _ => self.merge_facts(next),
        }
    }

    fn emit_jump_to_instruction(&mut self, to: usize) {
        self.merge_facts(to);
        let label = self.labels.get(to).copied().unwrap_or(self.no);
        self.b.asm.jump(label);
    }

    /// Emits the exit of a return instruction, whose value is constant or in A.
    fn emit_return_exit(&mut self, i: Instruction) {
        if i.code & 0x18 == code::A {
            self.b.asm.jump_if(Cond::Eq, R9, 0, self.no);
            self.b.asm.jump(self.yes);
        } else {
            self.b.asm.jump(if i.k == 0 { self.no } else { self.yes });
        }
    }

    fn scratch_slot(&self, k: u32) -> i16 {
        (k & 15) as i16 * 8 - self.words
    }

    fn push(&mut self, insn: Insn) {
        self.b.asm.push(insn);
    }
}

/// Returns the maximum result of an operation whose operands are at most `a` and `b`. If `by_x` is
/// false, the second operand is exactly `b`.
fn maximum_result(operation: Alu, a: u32, b: u32, by_x: bool) -> u32 {
    let filled = |n: u32| n.checked_ilog2().map_or(0, |bits| u32::MAX >> (31 - bits));
    match operation {
        Alu::Add => a.saturating_add(b),
        Alu::Mul => a.saturating_mul(b),
        Alu::Div if !by_x => a / b.max(1),
        Alu::Div => a,
        Alu::Mod if !by_x => a.min(b.max(1) - 1),
        Alu::Mod => a,
        Alu::And => a.min(b),
        Alu::Or | Alu::Xor => filled(a) | filled(b),
        Alu::Shr if !by_x => a.checked_shr(b).unwrap_or(0),
        Alu::Shr => a,
        Alu::Shl if !by_x && b < 32 => u32::try_from(u64::from(a) << b).unwrap_or(u32::MAX),
        Alu::Shl if !by_x => 0,
        _ => u32::MAX,
    }
}

fn uses_memory(i: Instruction) -> bool {
    match i.class() {
        code::ST | code::STX => true,
        code::LD | code::LDX => i.code & 0xe0 == code::MEM,
        _ => false,
    }
}

fn access_size(code: u16) -> Size {
    match code & 0x18 {
        code::B => Size::B,
        code::H => Size::H,
        _ => Size::W,
    }
}

/// Converts an offset to the type of an instruction's offset field. The caller has checked that the
/// offset fits; loads at greater offsets call helpers.
fn instruction_offset(k: u32) -> i16 {
    i16::try_from(k).unwrap_or(i16::MAX)
}

fn access_bytes(size: Size) -> u32 {
    size.bytes() as u32
}
