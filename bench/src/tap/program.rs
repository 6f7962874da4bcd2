//! The kernel program that writes the ring of a tap, for benches with a single reader. It passes
//! every frame to this reader.

use ebpf::Hook;
use ebpf::emit::Value;
use ebpf::emit::tap::{Delivery, Tap, WakePolicy, tap};
use ebpf::insn;
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::{Program, ProgramKind, ProgramRings, RingBuffer};

/// Delivery parameters for a tap with a single reader. Frames that cannot be copied are not
/// counted.
const ONE_READER_DELIVERY: Delivery =
    Delivery { number: 0, reader: 0, exit: 0, shared: false, failed_tally: None };

/// Loads the program that writes the tap's ring.
pub(super) fn load_program(
    rings: &ProgramRings,
    ring: &RingBuffer,
    wake: WakePolicy,
) -> Result<Program, String> {
    let shape = rings.layout();
    let layout = Tap {
        cpus: shape.cpus,
        stride: shape.region_size(),
        pointers_at: shape.sink_pointers_offset(0),
        pointers: shape.pointers,
        records_at: shape.records_offset(),
        bytes: shape.bytes,
        record_max: shape.record_max,
        wake,
        observes_sent: false,
    };
    let made = tap(
        Hook::Tc,
        &layout,
        |s, on, _| {
            s.deliver(ONE_READER_DELIVERY, on, Value::Const(1));
            Ok(())
        },
        |_, _| {},
    );
    let maps = [rings.as_fd(), ring.as_fd()].map(|map| map.as_raw_fd());
    let code = made.map_err(|unfit| unfit.why.into_owned())?.relocate(&maps);
    let code = code.ok_or("the writer has other maps than two")?;
    let loaded = Program::load(ProgramKind::Tc, "ring_writer", &insn::encode(&code));
    loaded.map_err(|why| format!("{why}\n{}", why.log))
}
