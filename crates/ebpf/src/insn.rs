//! eBPF instructions as data, in the little-endian encoding of 8 bytes that bpf(2) accepts.
//!
//! Input: constructors with typed registers, or 8 untrusted bytes. Output: [`Insn`], which every
//! other module uses. Opcodes follow RFC 9669 (BPF ISA), and helper numbers follow the kernel's
//! `bpf.h`. This module does not validate programs, so an `Insn` may have an opcode that does not
//! exist.

/// One instruction slot. A `load64` occupies two slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Insn {
    /// Opcode: class (low three bits), source or size, and operation.
    pub code: u8,
    /// Destination register: 0 to 15 as encoded, at most 10 if valid.
    pub dst: u8,
    /// Source register, or a pseudo-source in a `load64` or a call.
    pub src: u8,
    /// Jump distance in slots, or memory offset in bytes.
    pub off: i16,
    /// Immediate operand of the instruction.
    pub imm: i32,
}

/// A valid eBPF register: r0 to r10.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reg(u8);

/// r0: return value, and scratch register.
pub const R0: Reg = Reg(0);
/// r1: first argument, and scratch register.
pub const R1: Reg = Reg(1);
/// r2: second argument, and scratch register.
pub const R2: Reg = Reg(2);
/// r3: third argument, and scratch register.
pub const R3: Reg = Reg(3);
/// r4: fourth argument, and scratch register.
pub const R4: Reg = Reg(4);
/// r5: fifth argument, and scratch register.
pub const R5: Reg = Reg(5);
/// r6: callee-saved register.
pub const R6: Reg = Reg(6);
/// r7: callee-saved register.
pub const R7: Reg = Reg(7);
/// r8: callee-saved register.
pub const R8: Reg = Reg(8);
/// r9: callee-saved register.
pub const R9: Reg = Reg(9);
/// r10: read-only frame pointer, which is the upper end of the stack.
pub const R10: Reg = Reg(10);

impl Reg {
    /// Returns the register with this number, or `None` for a number above 10.
    pub const fn new(number: u8) -> Option<Self> {
        if number <= 10 { Some(Self(number)) } else { None }
    }

    /// Returns the number of the register, 0 to 10.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The second operand of an arithmetic operation or comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// The value of a register.
    Reg(Reg),
    /// A constant, sign-extended to 64 bits by 64-bit operations.
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(imm: i32) -> Self {
        Self::Imm(imm)
    }
}

/// Instruction classes, encoded in the low three bits of the opcode.
pub mod class {
    /// Class of wide immediates and of the packet loads of classic BPF.
    pub const LD: u8 = 0x00;
    /// Class of loads from memory into a register.
    pub const LDX: u8 = 0x01;
    /// Class of stores of a constant to memory.
    pub const ST: u8 = 0x02;
    /// Class of stores of a register to memory, and of atomic operations.
    pub const STX: u8 = 0x03;
    /// Class of 32-bit arithmetic.
    pub const ALU: u8 = 0x04;
    /// Class of 64-bit comparisons, calls and exit.
    pub const JMP: u8 = 0x05;
    /// Class of 32-bit comparisons.
    pub const JMP32: u8 = 0x06;
    /// Class of 64-bit arithmetic.
    pub const ALU64: u8 = 0x07;
}

/// Addressing modes of load and store instructions, in the high three bits of the opcode.
pub mod mode {
    /// Addressing mode of a wide immediate.
    pub const IMM: u8 = 0x00;
    /// Addressing mode of a packet load at a constant offset (classic BPF).
    pub const ABS: u8 = 0x20;
    /// Addressing mode of a packet load at a register plus a constant (classic BPF).
    pub const IND: u8 = 0x40;
    /// Addressing mode of an ordinary memory access.
    pub const MEM: u8 = 0x60;
    /// Memory load with sign extension.
    pub const MEMSX: u8 = 0x80;
    /// Mode of an atomic operation. The `imm` field selects the operation.
    pub const ATOMIC: u8 = 0xc0;
}

/// Bit of the opcode of arithmetic and jumps, which is set if the second operand is a register.
pub const REGISTER_OPERAND_BIT: u8 = 0x08;
/// Pseudo-source of a `load64` whose `imm` identifies a map (a file descriptor in the kernel's
/// encoding).
pub const PSEUDO_MAP_FD: u8 = 1;
/// Pseudo-source of a `load64` whose `imm` is a map and whose second `imm` is an offset in the
/// first value of this map.
pub const PSEUDO_MAP_VALUE: u8 = 2;
/// Pseudo-source of a call to a kfunc, whose `imm` is the BTF id of the function.
pub const PSEUDO_KFUNC_CALL: u8 = 2;

/// The width of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Size {
    /// One byte.
    B = 0x10,
    /// Two bytes.
    H = 0x08,
    /// Four bytes.
    W = 0x00,
    /// Eight bytes.
    DW = 0x18,
}

impl Size {
    /// Decodes the access size from the opcode of a load or store.
    pub const fn from_opcode(code: u8) -> Self {
        match code & 0x18 {
            0x10 => Self::B,
            0x08 => Self::H,
            0x00 => Self::W,
            _ => Self::DW,
        }
    }

    /// Returns the number of bytes that the access covers.
    pub const fn bytes(self) -> usize {
        match self {
            Self::B => 1,
            Self::H => 2,
            Self::W => 4,
            Self::DW => 8,
        }
    }
}

/// Arithmetic operations, encoded in the high four bits of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alu {
    /// Addition: `dst += src`.
    Add = 0x00,
    /// Subtraction: `dst -= src`.
    Sub = 0x10,
    /// Multiplication: `dst *= src`.
    Mul = 0x20,
    /// Unsigned division: `dst /= src`, where division by zero yields 0.
    Div = 0x30,
    /// Bitwise or: `dst |= src`.
    Or = 0x40,
    /// Bitwise and: `dst &= src`.
    And = 0x50,
    /// Left shift: `dst <<= src`.
    Shl = 0x60,
    /// Logical right shift: `dst >>= src`.
    Shr = 0x70,
    /// Negation: `dst = -dst`.
    Neg = 0x80,
    /// Unsigned remainder: `dst %= src`, where a zero divisor leaves `dst` unchanged.
    Mod = 0x90,
    /// Bitwise exclusive or: `dst ^= src`.
    Xor = 0xa0,
    /// Move: `dst = src`.
    Mov = 0xb0,
    /// Arithmetic right shift: `dst >>= src`, which extends the sign.
    Arsh = 0xc0,
}

impl Alu {
    /// Returns the operation of an eBPF or classic BPF opcode, or `None` if it does not exist.
    pub fn from_opcode(code: u8) -> Option<Self> {
        use Alu::{Add, And, Arsh, Div, Mod, Mov, Mul, Neg, Or, Shl, Shr, Sub, Xor};
        let all = [Add, Sub, Mul, Div, Or, And, Shl, Shr, Neg, Mod, Xor, Mov, Arsh];
        all.into_iter().find(|operation| *operation as u8 == code & 0xf0)
    }
}

/// Comparison operators, encoded in the high four bits of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cond {
    /// Equal: `==`.
    Eq = 0x10,
    /// Greater, unsigned: `>`.
    Gt = 0x20,
    /// Greater or equal, unsigned: `>=`.
    Ge = 0x30,
    /// Any common bit: `(dst & src) != 0`.
    Set = 0x40,
    /// Not equal: `!=`.
    Ne = 0x50,
    /// Greater, signed: `>`.
    Sgt = 0x60,
    /// Greater or equal, signed: `>=`.
    Sge = 0x70,
    /// Less, unsigned: `<`.
    Lt = 0xa0,
    /// Less or equal, unsigned: `<=`.
    Le = 0xb0,
    /// Less, signed: `<`.
    Slt = 0xc0,
    /// Less or equal, signed: `<=`.
    Sle = 0xd0,
}

impl Cond {
    const ALL: [(Self, &str); 11] = [
        (Self::Eq, "=="),
        (Self::Gt, ">"),
        (Self::Ge, ">="),
        (Self::Set, "&"),
        (Self::Ne, "!="),
        (Self::Sgt, "s>"),
        (Self::Sge, "s>="),
        (Self::Lt, "<"),
        (Self::Le, "<="),
        (Self::Slt, "s<"),
        (Self::Sle, "s<="),
    ];

    /// Returns the operator of an eBPF or classic BPF conditional jump, or `None` if it does not
    /// exist.
    pub fn from_opcode(code: u8) -> Option<Self> {
        Self::ALL.iter().map(|(cond, _)| *cond).find(|cond| *cond as u8 == code & 0xf0)
    }

    /// Returns true if the comparison holds for two 64-bit numbers, or for two 32-bit numbers that
    /// are both zero-extended or both sign-extended. Signed comparisons of 32-bit numbers require
    /// sign extension.
    #[inline(always)]
    pub fn holds(self, left: u64, right: u64) -> bool {
        match self {
            Self::Eq => left == right,
            Self::Ne => left != right,
            Self::Gt => left > right,
            Self::Ge => left >= right,
            Self::Lt => left < right,
            Self::Le => left <= right,
            Self::Set => left & right != 0,
            Self::Sgt => left.cast_signed() > right.cast_signed(),
            Self::Sge => left.cast_signed() >= right.cast_signed(),
            Self::Slt => left.cast_signed() < right.cast_signed(),
            Self::Sle => left.cast_signed() <= right.cast_signed(),
        }
    }

    /// Returns the operator as the verifier's log writes it.
    pub fn symbol(self) -> &'static str {
        Self::ALL.iter().find(|(cond, _)| *cond == self).map_or("?", |(_, sign)| sign)
    }
}

/// Atomic operations, encoded in the `imm` of a store with mode `ATOMIC`. Adding `FETCH` returns
/// the old value in `src`.
pub mod atomic {
    /// Atomic operation `*p += src`.
    pub const ADD: i32 = 0x00;
    /// Atomic operation `*p |= src`.
    pub const OR: i32 = 0x40;
    /// Atomic operation `*p &= src`.
    pub const AND: i32 = 0x50;
    /// Atomic operation `*p ^= src`.
    pub const XOR: i32 = 0xa0;
    /// Flag that makes an atomic operation return the old value in `src`.
    pub const FETCH: i32 = 0x01;
    /// Atomic operation that swaps `src` and `*p`.
    pub const XCHG: i32 = 0xe1;
    /// Atomic operation `if *p == r0 { *p = src }`, which returns the old value of `*p` in r0.
    pub const CMPXCHG: i32 = 0xf1;
    /// Atomic load `dst = *src` with acquire ordering (Linux 6.15).
    pub const LOAD_ACQUIRE: i32 = 0x100;
    /// Atomic store `*dst = src` with release ordering (Linux 6.15).
    pub const STORE_RELEASE: i32 = 0x110;
}

/// Kernel helper functions that a program may call. The comment of a helper that may move the
/// packet states that it invalidates packet pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Helper {
    /// Helper `(map, key) → value or null`.
    MapLookup = 1,
    /// Helper `() → nanoseconds since boot`.
    KtimeNs = 5,
    /// Helper `() → number of this CPU`.
    CpuId = 8,
    /// Helper `(ctx, offset, from, length, flags) → 0 or an error`; invalidates packet pointers.
    SkbStoreBytes = 9,
    /// Helper `(ctx, offset, old, new, size) → 0 or an error`; invalidates packet pointers.
    L3ChecksumReplace = 10,
    /// Helper `(ctx, offset, old, new, flags and size) → 0 or an error`; invalidates packet
    /// pointers.
    L4ChecksumReplace = 11,
    /// Helper `(ctx, prog array, index)`, which returns only on failure.
    TailCall = 12,
    /// Helper `(ctx, interface, flags) → 0 or an error`; sends a clone of the frame and invalidates
    /// packet pointers.
    CloneRedirect = 13,
    /// Helper `(ctx) → 0 or an error`; invalidates packet pointers.
    SkbVlanPop = 19,
    /// Helper `(interface, flags) → the verdict that redirects the frame`.
    Redirect = 23,
    /// Helper `(ctx, offset, to, length) → 0 or an error`.
    SkbLoadBytes = 26,
    /// Helper `(ctx, length) → 0 or an error`; invalidates packet pointers.
    SkbPullData = 39,
    /// Helper `(ctx, by) → 0 or an error`; invalidates packet pointers.
    XdpAdjustHead = 44,
    /// Helper `(ctx) → uid of the socket's owner, or the overflow uid if there is no socket`.
    SocketUid = 47,
    /// Helper `(map of sockets or devices, key, flags) → the redirect verdict, or the flags on
    /// failure`.
    RedirectMap = 51,
    /// Helper `(socket) → the full socket, or null for a request or timewait socket`.
    FullSocket = 95,
    /// Helper `(ctx) → cookie of the socket's network namespace`.
    NetnsCookie = 122,
    /// Helper `(ring, data, size, flags) → 0 or an error`.
    RingbufOutput = 130,
    /// Helper `(ring, flags) → a property of the ring`, which the flags select.
    RingbufQuery = 134,
    /// Helper `(ctx) → frame length in bytes, including fragments`.
    XdpBuffLen = 188,
    /// Helper `(ctx, offset, to, length) → 0 or an error`.
    XdpLoadBytes = 189,
    /// Helper `(ctx, offset, from, length) → 0 or an error`.
    XdpStoreBytes = 190,
}

impl Helper {
    const ALL: [(Self, &str); 22] = [
        (Self::MapLookup, "map_lookup_elem"),
        (Self::KtimeNs, "ktime_get_ns"),
        (Self::CpuId, "get_smp_processor_id"),
        (Self::SkbStoreBytes, "skb_store_bytes"),
        (Self::L3ChecksumReplace, "l3_csum_replace"),
        (Self::L4ChecksumReplace, "l4_csum_replace"),
        (Self::TailCall, "tail_call"),
        (Self::CloneRedirect, "clone_redirect"),
        (Self::SkbVlanPop, "skb_vlan_pop"),
        (Self::Redirect, "redirect"),
        (Self::SkbLoadBytes, "skb_load_bytes"),
        (Self::SkbPullData, "skb_pull_data"),
        (Self::XdpAdjustHead, "xdp_adjust_head"),
        (Self::SocketUid, "get_socket_uid"),
        (Self::RedirectMap, "redirect_map"),
        (Self::FullSocket, "sk_fullsock"),
        (Self::NetnsCookie, "get_netns_cookie"),
        (Self::RingbufOutput, "ringbuf_output"),
        (Self::RingbufQuery, "ringbuf_query"),
        (Self::XdpBuffLen, "xdp_get_buff_len"),
        (Self::XdpLoadBytes, "xdp_load_bytes"),
        (Self::XdpStoreBytes, "xdp_store_bytes"),
    ];

    /// Returns the helper with this number; `None` if this type has no such helper.
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.iter().map(|(helper, _)| *helper).find(|helper| *helper as i32 == number)
    }

    /// Returns the kernel's name of the helper, without the prefix `bpf_`.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(helper, _)| *helper == self).map_or("?", |(_, name)| name)
    }
}

impl Insn {
    /// Encodes the instruction slot as 8 bytes.
    pub const fn encode(self) -> [u8; 8] {
        let off = self.off.to_le_bytes();
        let imm = self.imm.to_le_bytes();
        let regs = (self.src & 15) << 4 | (self.dst & 15);
        [self.code, regs, off[0], off[1], imm[0], imm[1], imm[2], imm[3]]
    }

    /// Decodes an instruction slot from 8 bytes. Never fails, because any 8 bytes form a slot.
    pub const fn decode(bytes: [u8; 8]) -> Self {
        Self {
            code: bytes[0],
            dst: bytes[1] & 15,
            src: bytes[1] >> 4,
            off: i16::from_le_bytes([bytes[2], bytes[3]]),
            imm: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }

    /// Returns the instruction class, which is the low three bits of the opcode.
    pub const fn class(self) -> u8 {
        self.code & 7
    }

    /// Returns true if this slot is the first of a `load64`.
    pub const fn is_load_imm64(self) -> bool {
        self.code == class::LD | mode::IMM | Size::DW as u8
    }

    /// Creates the 64-bit operation `dst = dst op operand`.
    pub fn alu(op: Alu, dst: Reg, operand: impl Into<Operand>) -> Self {
        Self::binary(class::ALU64 | op as u8, dst, operand.into(), 0)
    }

    /// Creates the 32-bit operation `dst = dst op operand`, which zeroes the upper half of `dst`.
    pub fn alu32(op: Alu, dst: Reg, operand: impl Into<Operand>) -> Self {
        Self::binary(class::ALU | op as u8, dst, operand.into(), 0)
    }

    /// Creates the 64-bit move `dst = operand`.
    pub fn mov(dst: Reg, operand: impl Into<Operand>) -> Self {
        Self::alu(Alu::Mov, dst, operand)
    }

    /// Creates a conversion of the low 16, 32 or 64 bits of `dst` from or to network byte order,
    /// which zeroes the higher bits.
    pub fn big_endian(dst: Reg, bits: u8) -> Self {
        Self {
            code: 0xd0 | REGISTER_OPERAND_BIT | class::ALU,
            dst: dst.0,
            imm: bits.into(),
            ..Self::default()
        }
    }

    /// Creates the load `dst = *(size *)(src + off)`, zero-extended.
    pub fn load(size: Size, dst: Reg, src: Reg, off: i16) -> Self {
        let code = class::LDX | mode::MEM | size as u8;
        Self { code, dst: dst.0, src: src.0, off, imm: 0 }
    }

    /// Creates the store `*(size *)(dst + off) = operand`.
    pub fn store(size: Size, dst: Reg, off: i16, operand: impl Into<Operand>) -> Self {
        match operand.into() {
            Operand::Reg(src) => {
                let code = class::STX | mode::MEM | size as u8;
                Self { code, dst: dst.0, src: src.0, off, imm: 0 }
            }
            Operand::Imm(imm) => {
                Self { code: class::ST | mode::MEM | size as u8, dst: dst.0, src: 0, off, imm }
            }
        }
    }

    /// Creates an operation of module [`atomic`] on `*(size *)(dst + off)`. `size` must be `W` or
    /// `DW`.
    pub fn atomic(size: Size, operation: i32, dst: Reg, off: i16, src: Reg) -> Self {
        let code = class::STX | mode::ATOMIC | size as u8;
        Self { code, dst: dst.0, src: src.0, off, imm: operation }
    }

    /// Creates the load `r0 = packet[at]` in host byte order. At run time the context must be in
    /// r6; the load clobbers r1 to r5, and exits the program with 0 if the offset is beyond the end
    /// of the packet.
    pub fn packet_load(size: Size, at: i32) -> Self {
        Self { code: class::LD | mode::ABS | size as u8, imm: at, ..Self::default() }
    }

    /// Creates a load like [`Insn::packet_load`], but at offset `src + at`.
    pub fn packet_load_at(size: Size, src: Reg, at: i32) -> Self {
        Self { code: class::LD | mode::IND | size as u8, src: src.0, imm: at, ..Self::default() }
    }

    /// Creates a jump by `off` slots from the next instruction.
    pub fn jump(off: i16) -> Self {
        Self { code: class::JMP, off, ..Self::default() }
    }

    /// Creates a jump by `off` slots, taken if `dst cond operand` holds in a 64-bit comparison.
    pub fn jump_if(cond: Cond, dst: Reg, operand: impl Into<Operand>, off: i16) -> Self {
        Self::binary(class::JMP | cond as u8, dst, operand.into(), off)
    }

    /// Creates a jump by `off` slots, taken if `dst cond operand` holds in a 32-bit comparison.
    pub fn jump32_if(cond: Cond, dst: Reg, operand: impl Into<Operand>, off: i16) -> Self {
        Self::binary(class::JMP32 | cond as u8, dst, operand.into(), off)
    }

    /// Creates a call of a helper with the arguments in r1 to r5. The call returns its result in r0
    /// and clobbers r1 to r5.
    pub fn call(helper: Helper) -> Self {
        Self { code: class::JMP | 0x80, imm: helper as i32, ..Self::default() }
    }

    /// Creates a call of a kfunc, given its BTF id.
    pub fn call_kfunc(function: i32) -> Self {
        Self { src: PSEUDO_KFUNC_CALL, ..Self { imm: function, ..Self::call(Helper::MapLookup) } }
    }

    /// Creates the exit from the program with the return value in r0.
    pub fn exit() -> Self {
        Self { code: class::JMP | 0x90, ..Self::default() }
    }

    /// Creates the wide load `dst = value`.
    pub fn load64(dst: Reg, value: u64) -> [Self; 2] {
        Self::load_imm64(dst, 0, value as u32 as i32, (value >> 32) as u32 as i32)
    }

    /// Creates a wide load of a map, given by its number, into `dst`. Relocation replaces the
    /// number with a file descriptor.
    pub fn load_map(dst: Reg, map: u32) -> [Self; 2] {
        Self::load_imm64(dst, PSEUDO_MAP_FD, map as i32, 0)
    }

    /// Creates a wide load into `dst` of the address of the byte at `offset` in the only element of
    /// a map.
    pub fn load_map_value(dst: Reg, map: u32, offset: u32) -> [Self; 2] {
        Self::load_imm64(dst, PSEUDO_MAP_VALUE, map as i32, offset as i32)
    }

    fn load_imm64(dst: Reg, src: u8, low: i32, high: i32) -> [Self; 2] {
        let code = class::LD | mode::IMM | Size::DW as u8;
        let first = Self { code, dst: dst.0, src, off: 0, imm: low };
        [first, Self { imm: high, ..Self::default() }]
    }

    fn binary(code: u8, dst: Reg, operand: Operand, off: i16) -> Self {
        match operand {
            Operand::Reg(src) => {
                Self { code: code | REGISTER_OPERAND_BIT, dst: dst.0, src: src.0, off, imm: 0 }
            }
            Operand::Imm(imm) => Self { code, dst: dst.0, src: 0, off, imm },
        }
    }
}

/// Encodes the instructions of a program as bytes.
pub fn encode(code: &[Insn]) -> Vec<u8> {
    code.iter().flat_map(|insn| insn.encode()).collect()
}

/// Decodes the instructions of a program from bytes; `None` if the length is not a multiple of
/// eight.
pub fn decode(bytes: &[u8]) -> Option<Vec<Insn>> {
    let (slots, rest) = bytes.as_chunks::<8>();
    rest.is_empty().then(|| slots.iter().map(|slot| Insn::decode(*slot)).collect())
}
