//! Generator of frames that exercise every branch of a program: random, truncated, and steered
//! frames.
//!
//! To steer a frame, the generator runs a program over it. Wherever the program compares a value
//! loaded from the frame, the generator picks a branch, preferring acceptance, and changes the
//! bytes so that this branch is taken.

use ebpf::classic::insn::code::*;
use ebpf::classic::{ClassicMetadata, ClassicProgram, VlanTag};

/// A captured frame and its length on the wire.
#[derive(Clone)]
pub(crate) struct Frame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) wire_length: u32,
}

/// A deterministic random number generator (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn number_below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.number_below(n) == 0
    }

    pub(crate) fn word(&mut self) -> u32 {
        self.next() as u32
    }
}

/// Returns a frame of up to 300 random bytes, which in some frames are mostly small or zero.
pub(crate) fn random_frame(random: &mut Random) -> Frame {
    let length = random.number_below(300);
    let sparse = random.one_in(2);
    let bytes: Vec<u8> = (0..length)
        .map(|_| if sparse && !random.one_in(4) { 0 } else { random.next() as u8 })
        .collect();
    let wire_length = bytes.len() as u32;
    Frame { bytes, wire_length }
}

/// Truncates a frame to a random length.
pub(crate) fn truncate_randomly(frame: &mut Frame, random: &mut Random) {
    let length = random.number_below(frame.bytes.len() + 1);
    frame.bytes.truncate(length);
}

/// Returns random kernel metadata of a frame.
pub(crate) fn random_metadata(random: &mut Random) -> ClassicMetadata {
    let tag = VlanTag { tci: random.next() as u16 & 0xff, tpid: 0x8100 };
    ClassicMetadata {
        vlan: random.one_in(2).then_some(tag),
        packet_type: random.number_below(6) as u8,
        protocol: 0x0800,
        interface_index: random.number_below(12) as u32,
        hardware_type: 1,
    }
}

/// The offset in the frame from which a value was loaded, and the bits of the loaded bytes on which
/// the value still depends.
#[derive(Clone, Copy)]
struct Origin {
    at: usize,
    size: usize,
    mask: u32,
}

#[derive(Clone, Copy, Default)]
struct SymbolicValue {
    is: u32,
    origin: Option<Origin>,
}

impl SymbolicValue {
    fn constant(is: u32) -> Self {
        Self { is, origin: None }
    }
}

/// Runs `program` over a frame, and changes the frame so that random branches are taken.
pub(crate) fn steer_frame(
    program: &ClassicProgram,
    frame: &mut Frame,
    metadata: &mut ClassicMetadata,
    random: &mut Random,
) {
    let accepting = find_accepting_instructions(program);
    let mut a = SymbolicValue::default();
    let mut x = 0u32;
    let mut memory = [SymbolicValue::default(); 16];
    let mut at = 0usize;
    for _ in 0..2000 {
        let Some(i) = program.instructions().get(at) else { return };
        at += 1;
        let word = (i.k & 15) as usize;
        match i.code & 7 {
            LD if i.code & 0xe0 == IMM => a = SymbolicValue::constant(i.k),
            LD if i.code & 0xe0 == LEN => a = SymbolicValue::constant(frame.wire_length),
            LD if i.code & 0xe0 == MEM => a = memory[word],
            LD if i.k >= 0xffff_f000 && i.code & 0xe0 == ABS => {
                a = SymbolicValue::constant(metadata_value(metadata, i.k - 0xffff_f000));
            }
            LD => {
                let base = if i.code & 0xe0 == IND { x as usize } else { 0 };
                let size = match i.code & 0x18 {
                    W => 4,
                    H => 2,
                    _ => 1,
                };
                match load_from_frame(frame, base + i.k as usize, size, random) {
                    Some(value) => a = value,
                    None => return,
                }
            }
            LDX => match i.code & 0xe0 {
                IMM => x = i.k,
                MEM => x = memory[word].is,
                MSH => match load_from_frame(frame, i.k as usize, 1, random) {
                    Some(value) => x = (value.is & 15) << 2,
                    None => return,
                },
                _ => x = frame.wire_length,
            },
            ST => memory[word] = a,
            STX => memory[word] = SymbolicValue::constant(x),
            ALU => a = compute_symbolic(i.code, a, if i.code & X != 0 { x } else { i.k }),
            JMP if i.code & 0xf0 == JA => at = at.wrapping_add(i.k as i32 as usize),
            JMP => {
                let k = if i.code & X != 0 { x } else { i.k };
                let sides = [i.jt, i.jf].map(|skip| accepting[at + usize::from(skip)]);
                let wanted = match sides {
                    [true, false] => !random.one_in(6),
                    [false, true] => random.one_in(6),
                    _ => random.one_in(2),
                };
                change_loaded_bytes(frame, &mut a, i.code & 0xf0, k, wanted, random);
                let holds = match i.code & 0xf0 {
                    JEQ => a.is == k,
                    JGT => a.is > k,
                    JGE => a.is >= k,
                    _ => a.is & k != 0,
                };
                at += usize::from(if holds { i.jt } else { i.jf });
            }
            MISC if i.code & 0xf8 == TXA => a = SymbolicValue::constant(x),
            MISC => x = a.is,
            _ => return,
        }
    }
}

fn metadata_value(metadata: &ClassicMetadata, offset: u32) -> u32 {
    match offset {
        4 => u32::from(metadata.packet_type),
        8 => metadata.interface_index,
        44 => metadata.vlan.map_or(0, |tag| u32::from(tag.tci)),
        48 => u32::from(metadata.vlan.is_some()),
        _ => 0,
    }
}

/// Loads a value from a frame. If the frame is too short for an offset below 400, extends the frame
/// with probability 7/8. Returns `None` if the value is outside the frame.
fn load_from_frame(
    frame: &mut Frame,
    at: usize,
    size: usize,
    random: &mut Random,
) -> Option<SymbolicValue> {
    if at + size > frame.bytes.len() && at < 400 && !random.one_in(8) {
        frame.bytes.resize(at + size + random.number_below(40), 0);
        frame.wire_length = frame.wire_length.max(frame.bytes.len() as u32);
    }
    let bytes = frame.bytes.get(at..at + size)?;
    let is = bytes.iter().fold(0u32, |value, byte| value << 8 | u32::from(*byte));
    let mask = u32::MAX >> (32 - 8 * size);
    Some(SymbolicValue { is, origin: Some(Origin { at, size, mask }) })
}

fn compute_symbolic(code: u16, a: SymbolicValue, b: u32) -> SymbolicValue {
    let is = match code & 0xf0 {
        ADD => a.is.wrapping_add(b),
        SUB => a.is.wrapping_sub(b),
        MUL => a.is.wrapping_mul(b),
        DIV => a.is.checked_div(b).unwrap_or(0),
        MOD => a.is.checked_rem(b).unwrap_or(0),
        OR => a.is | b,
        XOR => a.is ^ b,
        LSH => a.is.checked_shl(b).unwrap_or(0),
        RSH => a.is.checked_shr(b).unwrap_or(0),
        NEG => a.is.wrapping_neg(),
        _ => {
            let from = a.origin.map(|origin| Origin { mask: origin.mask & b, ..origin });
            return SymbolicValue { is: a.is & b, origin: from };
        }
    };
    SymbolicValue::constant(is)
}

/// Returns, for each instruction, true if a frame that reaches it can still be accepted.
fn find_accepting_instructions(program: &ClassicProgram) -> Vec<bool> {
    let instructions = program.instructions();
    let mut accepting = vec![false; instructions.len()];
    for _ in 0..3 {
        for (at, i) in instructions.iter().enumerate().rev() {
            let next = |skip: usize| accepting.get(at.wrapping_add(1 + skip)) == Some(&true);
            accepting[at] = match i.code & 7 {
                RET => i.code & 0x18 == A || i.k != 0,
                JMP if i.code & 0xf0 == JA => next(i.k as i32 as usize),
                JMP => next(usize::from(i.jt)) || next(usize::from(i.jf)),
                _ => next(0),
            };
        }
    }
    accepting
}

/// Changes the bytes of the frame from which `a` was loaded so that the comparison of `a` with `k`
/// mostly yields `wanted`. Does nothing in one of eight cases, and if `a` was not loaded from the
/// frame.
fn change_loaded_bytes(
    frame: &mut Frame,
    a: &mut SymbolicValue,
    op: u16,
    k: u32,
    wanted: bool,
    random: &mut Random,
) {
    let Some(Origin { at, size, mask }) = a.origin else { return };
    if random.one_in(8) {
        return;
    }
    let target = match (op, wanted) {
        (JSET, true) => a.is | k & random.word() | k & k.wrapping_neg(),
        (JSET, false) => a.is & !k,
        (JEQ, true) => k,
        (JEQ, false) => k ^ 1 << random.number_below(8 * size),
        (_, true) => k.wrapping_add(random.number_below(2) as u32),
        (_, false) => k.wrapping_sub(random.number_below(2) as u32),
    } & mask;
    let Some(bytes) = frame.bytes.get_mut(at..at + size) else { return };
    let old = bytes.iter().fold(0u32, |value, byte| value << 8 | u32::from(*byte));
    let new = old & !mask | target;
    bytes.copy_from_slice(&new.to_be_bytes()[4 - size..]);
    a.is = target;
}
