//! Interpreter for eBPF, which runs a program over a packet in user space as the kernel would.
//!
//! Input: code with maps by number (`Program::code`), a hook, a packet. Output: r0 and the changed
//! map values, or a [`Fault`] at the instruction that the verifier would have rejected. The
//! tests that compare a twin with its user implementation ([`crate::exam`]) use the interpreter as
//! one of their ways to run the twin. It never panics, and it always terminates, because it has an
//! instruction budget.
//!
//! The interpreter is stricter than the kernel where that finds bugs: registers and stack bytes
//! cannot be read before they are written. It is weaker than the verifier in one respect: pointers
//! are plain numbers, so any number that equals an address can be used as a pointer. Tail calls
//! enter the continuations of a program. Not supported: BPF-to-BPF calls, maps other than
//! one-element arrays, writes to the context except the verdict of a cgroup program, and packet
//! writes other than those of `emit` (direct at XDP, through helpers at tc).

mod alu;
mod helper;
mod memory;

#[cfg(test)]
mod tests;

use std::fmt;

use crate::insn::{
    Alu, Cond, Insn, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, REGISTER_OPERAND_BIT, Size, atomic,
};
use crate::insn::{class, mode};
use crate::program::{Hook, Program};
use memory::{CONTEXT_BASE, Memory, STACK_TOP};

/// A frame as a program receives it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// All bytes of the frame, including its nonlinear part.
    pub bytes: &'a [u8],
    /// Length in bytes of the linear part, to which direct access is limited at tc. At XDP, length
    /// of the first buffer, which has at least 256 bytes. Ignored at sockets, where a helper reads
    /// all bytes.
    pub linear: usize,
    /// VLAN tag in the metadata of the skb, at tc and in socket filters; `None` if there is none.
    pub tag: Option<Tag>,
    /// True if the transport checksum covers only the pseudo header because the device will fill in
    /// the rest (CHECKSUM_PARTIAL).
    pub is_unfilled: bool,
}

/// A VLAN tag in the metadata of an skb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Tag control information: priority, drop eligibility and VLAN id.
    pub tci: u16,
    /// EtherType of the tag: 0x8100 or 0x88a8.
    pub protocol: u16,
}

impl<'a> Packet<'a> {
    /// Creates a linear frame without a tag in its metadata.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, linear: bytes.len(), tag: None, is_unfilled: false }
    }

    /// Limits the linear part of the frame to its first `linear` bytes.
    pub fn with_linear_length(self, linear: usize) -> Self {
        Self { linear: linear.min(self.bytes.len()), ..self }
    }

    /// Marks the transport checksum as not filled in.
    pub fn with_unfilled_checksum(self) -> Self {
        Self { is_unfilled: true, ..self }
    }

    /// Adds a tag to the metadata of the frame.
    pub fn with_tag(self, tci: u16, protocol: u16) -> Self {
        Self { tag: Some(Tag { tci, protocol }), ..self }
    }
}

/// The environment in which the interpreter runs a program: maps, clock and limits.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Values of the maps, by map number.
    pub maps: Vec<Vec<u8>>,
    /// Time in ns that `ktime_get_ns` returns.
    pub now_ns: u64,
    /// Processor number that `get_smp_processor_id` returns.
    pub cpu: u32,
    /// True to make `skb_pull_data` fail for lack of memory.
    pub lacks_memory: bool,
    /// Maximum number of instructions that a run executes.
    pub budget: u32,
    /// The continuations of the program, which tail calls enter.
    pub parts: Vec<Vec<Insn>>,
    /// Contents of the frame after the last run; `None` if the run did not change the frame.
    pub frame: Option<Vec<u8>>,
    /// VLAN tag in the frame's metadata after the last run; `None` if there is none.
    pub tag: Option<Tag>,
    /// Number of instructions that the last run executed, unless it faulted.
    pub steps: u32,
}

impl Machine {
    /// Default budget of instructions per run: one million, the verifier's limit since Linux 5.2.
    pub const INSTRUCTION_BUDGET: u32 = 1_000_000;

    /// Creates an environment with these map values.
    pub fn new(maps: Vec<Vec<u8>>) -> Self {
        let (budget, parts) = (Self::INSTRUCTION_BUDGET, Vec::new());
        let (frame, tag, lacks_memory) = (None, None, false);
        Self { maps, now_ns: 0, cpu: 0, lacks_memory, budget, parts, frame, tag, steps: 0 }
    }

    /// Creates an environment with the maps of a program, all zeroed.
    pub fn for_program(program: &Program) -> Self {
        let maps = program.maps.iter().map(|map| vec![0; map.value_size as usize]);
        let parts = program.tails.iter().map(|part| part.code.clone());
        Self { parts: parts.collect(), ..Self::new(maps.collect()) }
    }

    /// Runs code over a packet. Returns r0 or, at a cgroup, the word that the code wrote into the
    /// context.
    pub fn run(&mut self, code: &[Insn], hook: Hook, packet: &Packet<'_>) -> Result<u64, Fault> {
        let mut run = Run {
            regs: [0; 11],
            written: 1 << 1 | 1 << 10,
            memory: Memory::new(hook, packet, &mut self.maps),
            now_ns: self.now_ns,
            cpu: self.cpu,
            lacks_memory: self.lacks_memory,
        };
        run.regs[1] = CONTEXT_BASE;
        run.regs[10] = STACK_TOP;
        let ended = run.run_to_exit(code, &self.parts, self.budget);
        let answer = run.memory.answer();
        (self.frame, self.tag) = run.memory.into_changed_frame();
        self.steps = ended.map_or(0, |(_, steps)| steps);
        ended.map(|(value, _)| answer.map_or(value, u64::from))
    }
}

/// A fault: the instruction at which a run failed, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Slot of the instruction at which the run failed.
    pub at: usize,
    /// The verifier's rule that the instruction violated.
    pub kind: FaultKind,
}

/// A rule that the verifier enforces and a run has violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Control continued past the end of the program.
    PastLastInstruction,
    /// The run exceeded its budget of instructions.
    BudgetExceeded,
    /// An instruction has this opcode, which does not exist or is not supported.
    InvalidOpcode(u8),
    /// The register with this number was used although it does not exist, or was written although
    /// it is r10.
    InvalidRegister(u8),
    /// The register with this number was read before it was written.
    UninitializedRegister(u8),
    /// Uninitialized stack bytes were read, at this address.
    UninitializedStack(u64),
    /// An access was outside the context, packet, stack and map values.
    OutsideRegions {
        /// Address of the access.
        address: u64,
        /// Size of the access in bytes.
        size: usize,
    },
    /// Read-only memory (the packet or the context) was written, at this address.
    ReadOnly(u64),
    /// An access to the context does not match any field at this hook.
    InvalidContextAccess {
        /// Byte offset of the access in the context.
        offset: u64,
        /// Size of the access in bytes.
        size: usize,
    },
    /// The helper with this number is not available at this hook.
    UnavailableHelper(i32),
    /// The argument in this register (1 to 5) of a helper call is invalid.
    InvalidArgument(u8),
    /// There is no map with this number.
    MissingMap(i32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}: ", self.at)?;
        match self.kind {
            FaultKind::PastLastInstruction => write!(f, "runs off the end of the program"),
            FaultKind::BudgetExceeded => write!(f, "the instruction budget is exhausted"),
            FaultKind::InvalidOpcode(code) => write!(f, "no such instruction: {code:#04x}"),
            FaultKind::InvalidRegister(reg) => write!(f, "r{reg} cannot be used here"),
            FaultKind::UninitializedRegister(reg) => {
                write!(f, "r{reg} is read before it is written")
            }
            FaultKind::UninitializedStack(at) => {
                write!(f, "stack at {at:#x} is read before it is written")
            }
            FaultKind::OutsideRegions { address, size } => {
                write!(f, "{size} bytes at {address:#x} are outside of every region")
            }
            FaultKind::ReadOnly(address) => write!(f, "{address:#x} cannot be written"),
            FaultKind::InvalidContextAccess { offset, size } => {
                write!(f, "the context has no field of {size} bytes at {offset}")
            }
            FaultKind::UnavailableHelper(number) => {
                write!(f, "helper {number} cannot be called here")
            }
            FaultKind::InvalidArgument(number) => {
                write!(f, "argument {number} of the helper is invalid")
            }
            FaultKind::MissingMap(number) => write!(f, "there is no map {number}"),
        }
    }
}

impl std::error::Error for Fault {}

enum InstructionOutcome {
    Next,
    Skip,
    Jump(i64),
    Exit(u64),
    /// Control continues in the program's continuation with this index.
    Part(u64),
}

struct Run<'m, 'p> {
    regs: [u64; 11],
    /// Bit set of the initialized registers.
    written: u16,
    memory: Memory<'m, 'p>,
    now_ns: u64,
    cpu: u32,
    lacks_memory: bool,
}

impl Run<'_, '_> {
    /// Runs the code until its exit. Returns r0 and the number of executed instructions.
    fn run_to_exit(
        &mut self,
        code: &[Insn],
        parts: &[Vec<Insn>],
        budget: u32,
    ) -> Result<(u64, u32), Fault> {
        let (mut code, mut at) = (code, 0);
        for steps in 1..=budget {
            let insn = *code.get(at).ok_or(Fault { at, kind: FaultKind::PastLastInstruction })?;
            let next = code.get(at + 1).copied();
            match self.step(insn, next).map_err(|kind| Fault { at, kind })? {
                InstructionOutcome::Next => at += 1,
                InstructionOutcome::Skip => at += 2,
                InstructionOutcome::Exit(value) => return Ok((value, steps)),
                InstructionOutcome::Part(number) => {
                    let part = usize::try_from(number).ok().and_then(|number| parts.get(number));
                    // A tail call without a target falls through.
                    match part {
                        Some(part) => {
                            (code, at) = (part, 0);
                            self.reset_registers();
                        }
                        None => at += 1,
                    }
                }
                InstructionOutcome::Jump(distance) => {
                    let target = (at as i64).saturating_add(1).saturating_add(distance);
                    at = usize::try_from(target)
                        .map_err(|_| Fault { at, kind: FaultKind::PastLastInstruction })?;
                }
            }
        }
        Err(Fault { at, kind: FaultKind::BudgetExceeded })
    }

    fn step(&mut self, insn: Insn, next: Option<Insn>) -> Result<InstructionOutcome, FaultKind> {
        match insn.class() {
            class::LD if insn.is_load_imm64() => self.execute_load64(insn, next),
            class::LD => self.execute_packet_load(insn),
            class::LDX => self.execute_load(insn),
            class::ST | class::STX => self.execute_store(insn),
            class::ALU | class::ALU64 => self.execute_arithmetic(insn),
            _ => self.execute_jump(insn),
        }
    }

    fn read_register(&self, reg: u8) -> Result<u64, FaultKind> {
        let value = *self.regs.get(usize::from(reg)).ok_or(FaultKind::InvalidRegister(reg))?;
        if self.written & 1 << reg == 0 {
            Err(FaultKind::UninitializedRegister(reg))
        } else {
            Ok(value)
        }
    }

    fn write_register(&mut self, reg: u8, value: u64) -> Result<InstructionOutcome, FaultKind> {
        if reg >= 10 {
            return Err(FaultKind::InvalidRegister(reg));
        }
        *self.regs.get_mut(usize::from(reg)).ok_or(FaultKind::InvalidRegister(reg))? = value;
        self.written |= 1 << reg;
        Ok(InstructionOutcome::Next)
    }

    fn operand_value(&self, insn: Insn) -> Result<u64, FaultKind> {
        if insn.code & REGISTER_OPERAND_BIT == 0 {
            Ok(insn.imm as i64 as u64)
        } else {
            self.read_register(insn.src)
        }
    }

    fn execute_load64(
        &mut self,
        insn: Insn,
        next: Option<Insn>,
    ) -> Result<InstructionOutcome, FaultKind> {
        let high = match next {
            Some(Insn { code: 0, dst: 0, src: 0, off: 0, imm }) => imm,
            _ => return Err(FaultKind::InvalidOpcode(insn.code)),
        };
        let value = match insn.src {
            0 => u64::from(high as u32) << 32 | u64::from(insn.imm as u32),
            PSEUDO_MAP_FD => self.memory.map_handle(insn.imm)?,
            PSEUDO_MAP_VALUE => self.memory.map_value(insn.imm, high)?,
            _ => return Err(FaultKind::InvalidOpcode(insn.code)),
        };
        self.write_register(insn.dst, value)?;
        Ok(InstructionOutcome::Skip)
    }

    /// Executes a packet load of classic BPF, which exits the program with 0 beyond the end of the
    /// packet.
    fn execute_packet_load(&mut self, insn: Insn) -> Result<InstructionOutcome, FaultKind> {
        let size = Size::from_opcode(insn.code);
        let base = match insn.code & 0xe0 {
            mode::ABS => 0,
            mode::IND => self.read_register(insn.src)?,
            _ => return Err(FaultKind::InvalidOpcode(insn.code)),
        };
        if size == Size::DW
            || self.read_register(6)? != CONTEXT_BASE
            || self.memory.hook() == Hook::Xdp
        {
            return Err(FaultKind::InvalidOpcode(insn.code));
        }
        let at = (base as i64 as i32).wrapping_add(insn.imm);
        self.invalidate_scratch_registers();
        let Some(bytes) = self.memory.frame_bytes(i64::from(at), size.bytes()) else {
            return Ok(InstructionOutcome::Exit(0));
        };
        let value = bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        self.write_register(0, value)
    }

    fn execute_load(&mut self, insn: Insn) -> Result<InstructionOutcome, FaultKind> {
        let size = Size::from_opcode(insn.code);
        let address = self.read_register(insn.src)?.wrapping_add_signed(insn.off.into());
        let value = self.memory.read(address, size)?;
        let value = match (insn.code & 0xe0, size) {
            (mode::MEM, _) => value,
            (mode::MEMSX, Size::B) => value as i8 as u64,
            (mode::MEMSX, Size::H) => value as i16 as u64,
            (mode::MEMSX, Size::W) => value as i32 as u64,
            _ => return Err(FaultKind::InvalidOpcode(insn.code)),
        };
        self.write_register(insn.dst, value)
    }

    fn execute_store(&mut self, insn: Insn) -> Result<InstructionOutcome, FaultKind> {
        let size = Size::from_opcode(insn.code);
        match (insn.class(), insn.code & 0xe0) {
            (class::STX, mode::ATOMIC) => return self.execute_atomic(insn, size),
            (_, mode::MEM) => {}
            _ => return Err(FaultKind::InvalidOpcode(insn.code)),
        }
        let address = self.read_register(insn.dst)?.wrapping_add_signed(insn.off.into());
        let value = match insn.class() {
            class::ST => insn.imm as i64 as u64,
            _ => self.read_register(insn.src)?,
        };
        self.memory.write(address, size, value)?;
        Ok(InstructionOutcome::Next)
    }

    fn execute_atomic(&mut self, insn: Insn, size: Size) -> Result<InstructionOutcome, FaultKind> {
        if matches!(size, Size::B | Size::H) {
            return Err(FaultKind::InvalidOpcode(insn.code));
        }
        if insn.imm == atomic::LOAD_ACQUIRE {
            let address = self.read_register(insn.src)?.wrapping_add_signed(insn.off.into());
            let value = self.memory.read(address, size)?;
            return self.write_register(insn.dst, value);
        }
        let address = self.read_register(insn.dst)?.wrapping_add_signed(insn.off.into());
        let operand = self.read_register(insn.src)?;
        if insn.imm == atomic::STORE_RELEASE {
            self.memory.write(address, size, operand)?;
            return Ok(InstructionOutcome::Next);
        }
        let old = self.memory.read(address, size)?;
        let new = match insn.imm & !atomic::FETCH {
            atomic::ADD => old.wrapping_add(operand),
            atomic::OR => old | operand,
            atomic::AND => old & operand,
            atomic::XOR => old ^ operand,
            _ if insn.imm == atomic::XCHG => operand,
            _ if insn.imm == atomic::CMPXCHG => {
                let expected = self.read_register(0)?;
                let expected = if size == Size::W { u64::from(expected as u32) } else { expected };
                if old == expected { operand } else { old }
            }
            _ => return Err(FaultKind::InvalidOpcode(insn.code)),
        };
        self.memory.write(address, size, new)?;
        match insn.imm {
            atomic::CMPXCHG => self.write_register(0, old),
            imm if imm & atomic::FETCH != 0 => self.write_register(insn.src, old),
            _ => Ok(InstructionOutcome::Next),
        }
    }

    fn execute_arithmetic(&mut self, insn: Insn) -> Result<InstructionOutcome, FaultKind> {
        let fault = FaultKind::InvalidOpcode(insn.code);
        let op = insn.code & 0xf0;
        let value = if op == 0xd0 {
            alu::swap_bytes(insn, self.read_register(insn.dst)?)
        } else {
            let is_mov = op == Alu::Mov as u8;
            let left = if is_mov { 0 } else { self.read_register(insn.dst)? };
            let right = if op == Alu::Neg as u8 { 0 } else { self.operand_value(insn)? };
            alu::evaluate_alu(insn, left, right)
        };
        self.write_register(insn.dst, value.ok_or(fault)?)
    }

    fn execute_jump(&mut self, insn: Insn) -> Result<InstructionOutcome, FaultKind> {
        match insn.code {
            0x05 => return Ok(InstructionOutcome::Jump(insn.off.into())),
            0x06 => return Ok(InstructionOutcome::Jump(insn.imm.into())),
            0x85 => return self.execute_call(insn),
            0x95 => return Ok(InstructionOutcome::Exit(self.read_register(0)?)),
            _ => {}
        }
        let (left, right) = (self.read_register(insn.dst)?, self.operand_value(insn)?);
        let narrow = insn.class() == class::JMP32;
        let wide = |value: u64| if narrow { value as i32 as u64 } else { value };
        let cond = Cond::from_opcode(insn.code).ok_or(FaultKind::InvalidOpcode(insn.code))?;
        let holds = cond.holds(wide(left), wide(right));
        Ok(if holds { InstructionOutcome::Jump(insn.off.into()) } else { InstructionOutcome::Next })
    }

    /// Resets the registers to their state at the entry of a program.
    fn reset_registers(&mut self) {
        self.written = 1 << 1 | 1 << 10;
        self.regs[1] = CONTEXT_BASE;
        self.memory.invalidate_stack();
    }

    fn invalidate_scratch_registers(&mut self) {
        self.written &= !0b11_1110;
    }
}
