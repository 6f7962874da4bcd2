//! The kernel program under test, which writes the ring: a tap that delivers every frame once.

use ebpf::Hook;
use ebpf::emit::Value;
use ebpf::emit::tap::{Delivery, Tap, WakePolicy, WakeupTarget, tap};
use ebpf::insn;
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::{Program, ProgramKind, ProgramRings, RingBuffer};

/// A policy that never rings the doorbell.
pub(crate) const NO_DOORBELL: WakePolicy = WakePolicy {
    blocks: i32::MAX as u32,
    apart_ns: 0,
    wait_ns: i32::MAX as u32,
    bytes: i32::MAX as u32,
    frames: i32::MAX as u32,
    target: WakeupTarget::Everyone,
};

/// Loads the tap program that writes the ring.
pub(crate) fn load_ring_program(
    rings: &ProgramRings,
    ring: &RingBuffer,
    doorbell: WakePolicy,
) -> Program {
    let shape = rings.layout();
    let layout = Tap {
        cpus: shape.cpus,
        stride: shape.region_size(),
        pointers_at: shape.sink_pointers_offset(0),
        pointers: shape.pointers,
        records_at: shape.records_offset(),
        bytes: shape.bytes,
        record_max: shape.record_max,
        wake: doorbell,
        observes_sent: false,
    };
    let hand = Delivery { number: 0, reader: 0, exit: 7, shared: false, failed_tally: None };
    let made = tap(
        Hook::Tc,
        &layout,
        |s, on, _| {
            s.deliver(hand, on, Value::Const(1));
            Ok(())
        },
        |_, _| {},
    );
    let maps = [rings.as_fd(), ring.as_fd()].map(|map| map.as_raw_fd());
    let code = made.unwrap().relocate(&maps).expect("two maps");
    let loaded = Program::load(ProgramKind::Tc, "ring_writer", &insn::encode(&code));
    loaded.unwrap_or_else(|e| panic!("{e}\n{}", e.log))
}
