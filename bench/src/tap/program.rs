//! The writer: a program at traffic control that copies each frame into the ring of its CPU, points
//! to it, and rings a bell that is limited by time.

use ebpf::asm::Asm;
use ebpf::insn::{
    self, Alu, Cond, Helper, Insn, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Size, atomic,
};
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::ring::place;
use sys::bpf::{Kind, Program, RingBuffer, Rings};

/// When the bell rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bell {
    /// After so many blocks,
    pub(crate) blocks: i32,
    /// and so many nanoseconds after the last time;
    pub(crate) apart_ns: i32,
    /// or after so many bytes.
    pub(crate) bytes: i32,
}

/// Words of the writer's own.
const COPIES_FAILED: u32 = place::SCRATCH;
const SINCE_BELL: u32 = place::SCRATCH + 8;
const BELL_TIME: u32 = place::SCRATCH + 16;
const BELL_POSITION: u32 = place::SCRATCH + 24;
pub(super) const BELLS: u32 = place::SCRATCH + 32;
const BELLS_FAILED: u32 = place::SCRATCH + 40;

/// Fields of `__sk_buff`.
const LENGTH: i16 = 0;
const TAG_PRESENT: i16 = 20;
const TAG: i16 = 24;
const TAG_PROTOCOL: i16 = 28;
const SEGMENT: i16 = 176;

/// Places on the stack.
const WIRE: i16 = -8;
const NOW: i16 = -16;
const POSITION: i16 = -24;
const END: i16 = -32;

/// Loads the writer.
pub(super) fn load(rings: &Rings, ring: &RingBuffer, bell: Bell) -> Result<Program, String> {
    let mut asm = Asm::new();
    let (pass, failed) = (asm.label(), asm.label());
    begin(&mut asm, rings, pass);
    record(&mut asm, rings, failed);
    publish(&mut asm, rings);
    ring_bell(&mut asm, ring, bell, pass);
    asm.jump(pass);
    asm.bind(failed);
    add_one(&mut asm, COPIES_FAILED);
    asm.bind(pass);
    // TCX_NEXT
    asm.push(Insn::mov(R0, -1));
    asm.push(Insn::exit());
    let code = insn::encode(&asm.finish().map_err(|why| format!("{why:?}"))?);
    Program::load(Kind::Tc, "ring_writer", &code).map_err(|why| format!("{why}\n{}", why.log))
}

/// Region in r7, bytes to keep in r9, length and time on the stack.
fn begin(asm: &mut Asm, rings: &Rings, pass: ebpf::asm::Label) {
    let shape = rings.shape();
    let map = rings.as_fd().as_raw_fd().cast_unsigned();
    let fits = asm.label();
    asm.push(Insn::mov(R6, R1));
    asm.push(Insn::call(Helper::CpuId));
    asm.jump_if(Cond::Ge, R0, shape.cpus.cast_signed(), pass);
    asm.push(Insn::alu(Alu::Mul, R0, shape.stride().cast_signed()));
    asm.push_wide(Insn::load_map_value(R7, map, 0));
    asm.push(Insn::alu(Alu::Add, R7, R0));
    asm.push(Insn::load(Size::W, R9, R6, LENGTH));
    asm.push(Insn::store(Size::DW, R10, WIRE, R9));
    asm.jump_if(Cond::Le, R9, shape.record_max.cast_signed(), fits);
    asm.push(Insn::mov(R9, shape.record_max.cast_signed()));
    asm.bind(fits);
    asm.jump_if(Cond::Lt, R9, 1, pass);
    asm.push(Insn::call(Helper::KtimeNs));
    asm.push(Insn::store(Size::DW, R10, NOW, R0));
}

/// Reserves, writes header and frame; the record's address stays in r8.
fn record(asm: &mut Asm, rings: &Rings, failed: ebpf::asm::Label) {
    let shape = rings.shape();
    let header = place::HEADER.cast_signed();
    asm.push(Insn::load(Size::DW, R1, R7, place::RESERVED as i16));
    asm.push(Insn::store(Size::DW, R10, POSITION, R1));
    asm.push(Insn::mov(R2, R9));
    asm.push(Insn::alu(Alu::Add, R2, header + place::ALIGNED.cast_signed() - 1));
    asm.push(Insn::alu(Alu::And, R2, -place::ALIGNED.cast_signed()));
    asm.push(Insn::alu(Alu::Add, R2, R1));
    asm.push(Insn::store(Size::DW, R10, END, R2));
    // A full barrier: reserved is seen before anything that is written there.
    asm.push(Insn::atomic(Size::DW, atomic::XCHG, R7, place::RESERVED as i16, R2));
    asm.push(Insn::alu(Alu::And, R1, shape.bytes.cast_signed() - 1));
    asm.push(Insn::mov(R8, R7));
    asm.push(Insn::alu(Alu::Add, R8, shape.records().cast_signed()));
    asm.push(Insn::alu(Alu::Add, R8, R1));
    asm.push(Insn::store(Size::DW, R8, 0, -1));
    asm.push(Insn::load(Size::DW, R1, R10, WIRE));
    asm.push(Insn::store(Size::W, R8, 8, R1));
    asm.push(Insn::store(Size::W, R8, 12, R9));
    asm.push(Insn::load(Size::DW, R1, R10, NOW));
    asm.push(Insn::store(Size::DW, R8, 16, R1));
    for (field, at) in [(TAG, 24), (TAG_PROTOCOL, 26), (SEGMENT, 28), (TAG_PRESENT, 30)] {
        asm.push(Insn::load(Size::W, R1, R6, field));
        asm.push(Insn::store(Size::H, R8, at, R1));
    }
    asm.push(Insn::mov(R1, R6));
    asm.push(Insn::mov(R2, 0));
    asm.push(Insn::mov(R3, R8));
    asm.push(Insn::alu(Alu::Add, R3, header));
    asm.push(Insn::mov(R4, R9));
    asm.push(Insn::call(Helper::SkbLoadBytes));
    asm.jump_if(Cond::Ne, R0, 0, failed);
    asm.push(Insn::load(Size::DW, R1, R10, POSITION));
    asm.push(Insn::store(Size::DW, R8, 0, R1));
}

/// A pointer for the one sink, then the head (release), then what is whole.
fn publish(asm: &mut Asm, rings: &Rings) {
    let shape = rings.shape();
    asm.push(Insn::load(Size::DW, R2, R7, place::HEADS as i16));
    asm.push(Insn::mov(R3, R2));
    asm.push(Insn::alu(Alu::And, R3, shape.pointers.cast_signed() - 1));
    asm.push(Insn::alu(Alu::Mul, R3, place::POINTER.cast_signed()));
    asm.push(Insn::mov(R4, R7));
    asm.push(Insn::alu(Alu::Add, R4, shape.pointers_of(0).cast_signed()));
    asm.push(Insn::alu(Alu::Add, R4, R3));
    asm.push(Insn::store(Size::DW, R4, 0, R1));
    asm.push(Insn::store(Size::W, R4, 8, R9));
    // Class 1 in the upper half, dbuf 0.
    asm.push(Insn::store(Size::W, R4, 12, 1 << 16));
    asm.push(Insn::alu(Alu::Add, R2, 1));
    // An exchange is a release everywhere; a store with release needs Linux 6.15.
    asm.push(Insn::atomic(Size::DW, atomic::XCHG, R7, place::HEADS as i16, R2));
    asm.push(Insn::load(Size::DW, R1, R10, END));
    asm.push(Insn::store(Size::DW, R7, place::COMMITTED as i16, R1));
}

fn ring_bell(asm: &mut Asm, ring: &RingBuffer, bell: Bell, pass: ebpf::asm::Label) {
    let (now, missed) = (asm.label(), asm.label());
    asm.push(Insn::load(Size::DW, R2, R7, SINCE_BELL as i16));
    asm.push(Insn::alu(Alu::Add, R2, 1));
    asm.push(Insn::store(Size::DW, R7, SINCE_BELL as i16, R2));
    asm.push(Insn::load(Size::DW, R3, R7, BELL_POSITION as i16));
    asm.push(Insn::alu(Alu::Sub, R1, R3));
    asm.jump_if(Cond::Ge, R1, bell.bytes, now);
    asm.jump_if(Cond::Lt, R2, bell.blocks, pass);
    asm.push(Insn::load(Size::DW, R1, R10, NOW));
    asm.push(Insn::load(Size::DW, R3, R7, BELL_TIME as i16));
    asm.push(Insn::alu(Alu::Sub, R1, R3));
    asm.jump_if(Cond::Lt, R1, bell.apart_ns, pass);
    asm.bind(now);
    for (from, to) in [(NOW, BELL_TIME), (END, BELL_POSITION)] {
        asm.push(Insn::load(Size::DW, R1, R10, from));
        asm.push(Insn::store(Size::DW, R7, to as i16, R1));
    }
    asm.push(Insn::store(Size::DW, R7, SINCE_BELL as i16, 0));
    asm.push_wide(Insn::load_map(R1, ring.map().as_fd().as_raw_fd().cast_unsigned()));
    asm.push(Insn::mov(R2, R10));
    asm.push(Insn::alu(Alu::Add, R2, i32::from(POSITION)));
    asm.push(Insn::mov(R3, 8));
    // BPF_RB_FORCE_WAKEUP
    asm.push(Insn::mov(R4, 2));
    asm.push(Insn::call(Helper::RingbufOutput));
    asm.jump_if(Cond::Ne, R0, 0, missed);
    add_one(asm, BELLS);
    asm.jump(pass);
    asm.bind(missed);
    add_one(asm, BELLS_FAILED);
}

fn add_one(asm: &mut Asm, at: u32) {
    asm.push(Insn::load(Size::DW, R1, R7, at as i16));
    asm.push(Insn::alu(Alu::Add, R1, 1));
    asm.push(Insn::store(Size::DW, R7, at as i16, R1));
}
