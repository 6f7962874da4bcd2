//! Interpreter for classic BPF programs.
//!
//! Input: a validated program, the frame, its length on the wire and the kernel's metadata. Output:
//! the number of bytes to keep, or 0 to reject the frame. By the rules of the language, a load
//! beyond the frame and a division by zero reject the frame and are not errors. Instructions are
//! decoded once into a 12-byte form, so a step is one `match`. Running neither panics nor
//! allocates. A program without backward jumps runs each instruction at most once; other programs
//! make at most [`BACKWARD_JUMPS_MAX`] backward jumps. [SL §5.2, in-kernel filters]

use super::insn::{ANCILLARY_OFFSET, Instruction, alu_operation, code, condition};
use super::program::{ClassicProgram, MEMORY_WORDS};
use crate::insn::{Alu, Cond};

/// Maximum number of backward jumps in a run: twice the number of 8-byte headers in a 64 KiB frame.
pub const BACKWARD_JUMPS_MAX: u32 = 16_384;

/// Metadata of a frame that the kernel stores outside the frame's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassicMetadata {
    /// VLAN tag that the kernel or the device removed from the frame, or `None` if there was none.
    pub vlan: Option<VlanTag>,
    /// Kernel packet type, from `PACKET_HOST` to `PACKET_OUTGOING`.
    pub packet_type: u8,
    /// Protocol of the frame, as an EtherType.
    pub protocol: u16,
    /// Index of the interface that received or sent the frame.
    pub interface_index: u32,
    /// Device type of the interface (`ARPHRD_…`).
    pub hardware_type: u16,
}

/// A VLAN tag that is stored outside its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlanTag {
    /// Tag control information: priority, drop eligibility and VLAN id.
    pub tci: u16,
    /// EtherType of the tag: 0x8100 or 0x88a8.
    pub tpid: u16,
}

impl ClassicMetadata {
    /// Metadata without a tag and with all numbers 0.
    pub const EMPTY: Self =
        Self { vlan: None, packet_type: 0, protocol: 0, interface_index: 0, hardware_type: 0 };

    /// Returns the value that an ancillary load of the metadata field `field` yields.
    fn load(&self, field: AncillaryField) -> u32 {
        match field {
            AncillaryField::Protocol => u32::from(self.protocol),
            AncillaryField::PacketType => u32::from(self.packet_type),
            AncillaryField::Interface => self.interface_index,
            AncillaryField::HardwareType => u32::from(self.hardware_type),
            AncillaryField::VlanTci => self.vlan.map_or(0, |tag| u32::from(tag.tci)),
            AncillaryField::VlanPresent => u32::from(self.vlan.is_some()),
            AncillaryField::VlanTpid => self.vlan.map_or(0, |tag| u32::from(tag.tpid)),
        }
    }
}

/// A metadata field that an ancillary load can read. The discriminant is the offset from
/// [`ANCILLARY_OFFSET`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AncillaryField {
    Protocol = 0,
    PacketType = 4,
    Interface = 8,
    HardwareType = 28,
    VlanTci = 44,
    VlanPresent = 48,
    VlanTpid = 60,
}

/// A decoded instruction, in which jump targets are instruction indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodedInsn {
    Word(u32),
    Half(u32),
    Byte(u32),
    WordAtX(u32),
    HalfAtX(u32),
    ByteAtX(u32),
    Known(AncillaryField),
    Length,
    Constant(u32),
    Memory(u8),
    LengthToX,
    ConstantToX(u32),
    MemoryToX(u8),
    HeaderToX(u32),
    Store(u8),
    StoreX(u8),
    AluConstant(Alu, u32),
    AluX(Alu),
    Go(u16),
    GoBack(u16),
    If { test: Cond, yes: u16, no: u16, k: u32 },
    IfX { test: Cond, yes: u16, no: u16 },
    Return(u32),
    ReturnA,
    AToX,
    XToA,
}

const _: () = assert!(size_of::<DecodedInsn>() <= 12);

impl ClassicProgram {
    /// Runs the program over a frame. Returns the number of bytes to keep, or 0 to reject the
    /// frame.
    ///
    /// `frame` contains the captured bytes, and `wire_length` is the length on the wire in bytes.
    pub fn run(&self, frame: &[u8], wire_length: u32, metadata: &ClassicMetadata) -> u32 {
        let mut machine = Registers { frame, wire_length, metadata, ..Registers::EMPTY };
        let mut at = 0usize;
        while let Some(op) = self.ops.get(at) {
            match machine.step(*op, at) {
                StepOutcome::Next => at += 1,
                StepOutcome::Go(to) => at = to,
                StepOutcome::Done(answer) => return answer,
            }
        }
        0
    }
}

struct Registers<'a> {
    frame: &'a [u8],
    wire_length: u32,
    metadata: &'a ClassicMetadata,
    a: u32,
    x: u32,
    memory: [u32; MEMORY_WORDS as usize],
    rounds: u32,
}

enum StepOutcome {
    Next,
    Go(usize),
    Done(u32),
}

impl Registers<'static> {
    const EMPTY: Self = Self {
        frame: &[],
        wire_length: 0,
        metadata: &ClassicMetadata::EMPTY,
        a: 0,
        x: 0,
        memory: [0; MEMORY_WORDS as usize],
        rounds: 0,
    };
}

impl Registers<'_> {
    #[inline(always)]
    fn step(&mut self, op: DecodedInsn, at: usize) -> StepOutcome {
        let loaded = match op {
            DecodedInsn::Word(k) => self.load_word(k, 0),
            DecodedInsn::Half(k) => self.load_half(k, 0),
            DecodedInsn::Byte(k) => self.load_byte(k, 0),
            DecodedInsn::WordAtX(k) => self.load_word(k, self.x),
            DecodedInsn::HalfAtX(k) => self.load_half(k, self.x),
            DecodedInsn::ByteAtX(k) => self.load_byte(k, self.x),
            DecodedInsn::Known(field) => Some(self.metadata.load(field)),
            DecodedInsn::Length => Some(self.wire_length),
            DecodedInsn::Constant(k) => Some(k),
            DecodedInsn::Memory(word) => Some(self.memory[usize::from(word & 15)]),
            DecodedInsn::AluConstant(alu, k) => alu.apply(self.a, k),
            DecodedInsn::AluX(alu) => alu.apply(self.a, self.x),
            DecodedInsn::XToA => Some(self.x),
            other => return self.step_without_load(other, at),
        };
        match loaded {
            Some(value) => {
                self.a = value;
                StepOutcome::Next
            }
            None => StepOutcome::Done(0),
        }
    }

    #[inline(always)]
    fn step_without_load(&mut self, op: DecodedInsn, at: usize) -> StepOutcome {
        match op {
            DecodedInsn::If { test, yes, no, k } => {
                let holds = test.holds(self.a.into(), k.into());
                return StepOutcome::Go(usize::from(if holds { yes } else { no }));
            }
            DecodedInsn::IfX { test, yes, no } => {
                let holds = test.holds(self.a.into(), self.x.into());
                return StepOutcome::Go(usize::from(if holds { yes } else { no }));
            }
            DecodedInsn::Go(to) => return StepOutcome::Go(usize::from(to)),
            DecodedInsn::GoBack(to) => {
                self.rounds += 1;
                let spent = self.rounds > BACKWARD_JUMPS_MAX;
                return if spent { StepOutcome::Done(0) } else { StepOutcome::Go(usize::from(to)) };
            }
            DecodedInsn::Return(k) => return StepOutcome::Done(k),
            DecodedInsn::ReturnA => return StepOutcome::Done(self.a),
            DecodedInsn::HeaderToX(k) => match self.load_byte(k, 0) {
                Some(byte) => self.x = (byte & 0xf) << 2,
                None => return StepOutcome::Done(0),
            },
            DecodedInsn::LengthToX => self.x = self.wire_length,
            DecodedInsn::ConstantToX(k) => self.x = k,
            DecodedInsn::MemoryToX(word) => self.x = self.memory[usize::from(word & 15)],
            DecodedInsn::Store(word) => self.memory[usize::from(word & 15)] = self.a,
            DecodedInsn::StoreX(word) => self.memory[usize::from(word & 15)] = self.x,
            DecodedInsn::AToX => self.x = self.a,
            _ => debug_assert!(false, "{op:?} at {at} is a load"),
        }
        StepOutcome::Next
    }

    /// Returns `k` plus `x` as an offset, without wrapping, or `None` if the sum does not fit in a
    /// `usize`.
    #[inline(always)]
    fn load_offset(k: u32, x: u32) -> Option<usize> {
        usize::try_from(u64::from(k) + u64::from(x)).ok()
    }

    #[inline(always)]
    fn load_word(&self, k: u32, x: u32) -> Option<u32> {
        let bytes = self.frame.get(Self::load_offset(k, x)?..)?.first_chunk::<4>()?;
        Some(u32::from_be_bytes(*bytes))
    }

    #[inline(always)]
    fn load_half(&self, k: u32, x: u32) -> Option<u32> {
        let bytes = self.frame.get(Self::load_offset(k, x)?..)?.first_chunk::<2>()?;
        Some(u32::from(u16::from_be_bytes(*bytes)))
    }

    #[inline(always)]
    fn load_byte(&self, k: u32, x: u32) -> Option<u32> {
        self.frame.get(Self::load_offset(k, x)?).map(|byte| u32::from(*byte))
    }
}

impl Alu {
    /// Applies a classic BPF arithmetic operation. Returns `None` for a division by zero, and for
    /// an operation that classic BPF lacks.
    #[inline(always)]
    pub(super) fn apply(self, a: u32, b: u32) -> Option<u32> {
        Some(match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Div => return a.checked_div(b),
            Self::Mod => return a.checked_rem(b),
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
            Self::Shl => a.checked_shl(b).unwrap_or(0),
            Self::Shr => a.checked_shr(b).unwrap_or(0),
            Self::Neg => a.wrapping_neg(),
            Self::Mov | Self::Arsh => return None,
        })
    }
}

impl DecodedInsn {
    /// Decodes the validated instruction at index `at`. Returns `None` for an unknown opcode.
    pub(super) fn decode(instruction: Instruction, at: usize) -> Option<Self> {
        use code::*;
        let Instruction { code, jt, jf, k } = instruction;
        let word = (k & 15) as u8;
        let by_x = code & X != 0;
        Some(match code & 0x07 {
            LD | LDX => return Self::decode_load(code, k),
            ST if code == ST => Self::Store(word),
            STX if code == STX => Self::StoreX(word),
            ALU if code & !0xff != 0 => return None,
            ALU if by_x && code & 0xf0 != NEG => Self::AluX(alu_operation(code)?),
            ALU => Self::AluConstant(alu_operation(code)?, k),
            JMP if code & !0xff != 0 => return None,
            JMP if code & 0xf0 == JA => {
                let target = at as i64 + 1 + i64::from(k as i32);
                let to = u16::try_from(target).ok()?;
                if target <= at as i64 { Self::GoBack(to) } else { Self::Go(to) }
            }
            JMP => {
                let test = condition(code)?;
                let yes = u16::try_from(at + 1 + usize::from(jt)).ok()?;
                let no = u16::try_from(at + 1 + usize::from(jf)).ok()?;
                if by_x { Self::IfX { test, yes, no } } else { Self::If { test, yes, no, k } }
            }
            RET if code == RET | K => Self::Return(k),
            RET if code == RET | A => Self::ReturnA,
            MISC if code == MISC | TAX => Self::AToX,
            MISC if code == MISC | TXA => Self::XToA,
            _ => return None,
        })
    }

    fn decode_load(code: u16, k: u32) -> Option<Self> {
        use code::*;
        let word = (k & 15) as u8;
        const fn ld(mode: u16, size: u16) -> u16 {
            LD | mode | size
        }
        if k >= ANCILLARY_OFFSET
            && code & 0xe7 == LD | ABS
            && let Some(field) = AncillaryField::decode(k - ANCILLARY_OFFSET)
        {
            return Some(Self::Known(field));
        }
        Some(match code {
            c if c == ld(ABS, W) => Self::Word(k),
            c if c == ld(ABS, H) => Self::Half(k),
            c if c == ld(ABS, B) => Self::Byte(k),
            c if c == ld(IND, W) => Self::WordAtX(k),
            c if c == ld(IND, H) => Self::HalfAtX(k),
            c if c == ld(IND, B) => Self::ByteAtX(k),
            c if c == ld(LEN, W) => Self::Length,
            c if c == ld(IMM, W) => Self::Constant(k),
            c if c == ld(MEM, W) => Self::Memory(word),
            c if c == LDX | LEN => Self::LengthToX,
            c if c == LDX | IMM => Self::ConstantToX(k),
            c if c == LDX | MEM => Self::MemoryToX(word),
            c if c == LDX | MSH | B => Self::HeaderToX(k),
            _ => return None,
        })
    }
}

impl AncillaryField {
    fn decode(offset: u32) -> Option<Self> {
        use AncillaryField::*;
        [Protocol, PacketType, Interface, HardwareType, VlanTci, VlanPresent, VlanTpid]
            .into_iter()
            .find(|field| *field as u32 == offset)
    }
}
