//! Costs of receiving a frame through a packet socket or a kernel program, and of copying it to
//! user space.
//!
//! Frames cross the loopback interface of a network namespace created for the measurement. A cost
//! is the additional processor time per frame.
//!
//! The measurement runs whole requests, so that the figures include transfers between processors:
//! with writer and reader of a packet socket or kernel ring in one thread, the measured cost would
//! be less than half.
//!
//! Twins are cheaper in a loop of test runs, with all caches warm, than for single frames. A
//! request with several twins measures this difference, and another one measures the cost of
//! finding the headers. Both requests copy their frames to user space, and so does the request to
//! which they are compared. The copy touches the same bytes of a frame as the header search, so
//! costs common to all programs cancel. The requests alternate, and the result is the median over
//! the rounds, because a disturbance affects all requests.
//!
//! If no namespace can be created, or `ip` is missing, these figures keep their built-in values, or
//! the values from the test runs.

use super::calibration::{Calibration, Result, min_call_ns, min_of_rounds};
use super::test_traffic::{measure_processor_ns, measure_while_running, open_datagram_sockets};
use super::twins::{self, load_program, measure_empty_program_ns};
use ebpf::insn::{Helper, Insn, R0, R1, R2, R3, R4, R6, R7, R10, Size};
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::{
    ChainPosition, Link, Map, ProgramKind, ProgramRings, RingBuffer, RingsLayout, TrafficDirection,
};
use sys::net::RouteSocket;

/// Number of datagrams sent per measurement, few enough to fit in a ring.
///
/// A measurement takes a few ms: long enough to include doorbells, and so short that many
/// measurements are undisturbed.
const DATAGRAMS_PER_MEASUREMENT: u32 = 4_000;
/// Number of rounds over which the median is taken.
const ROUNDS: usize = 20;
/// Length of a record that a program copies to user space, in bytes.
const RECORD_BYTES: usize = 128;

/// Filters of a measured request whose twins read no headers.
const HEADERLESS_TWINS: [&str; 5] = ["count", "hist", "count", "hist", "count"];
/// Filters of a measured request. The twins of some of these filters read headers.
const HEADER_TWINS: [&str; 5] = ["eth", "ip", "udp", "count", "hist"];
/// Maximum plausible additional cost of a twin for single frames, in ns. A higher measured value is
/// noise.
const TWIN_EXTRA_NS_MAX: f64 = 100.0;

pub(super) fn measure(calibration: &mut Calibration) {
    let mut beyond_nothing = |name, measure: fn() -> Result<f64>| {
        calibration.record_cost(
            name,
            measure_empty_program_ns().and_then(|empty| Ok((measure()? - empty).max(0.0))),
        );
    };
    beyond_nothing("record", measure_record_copy);
    beyond_nothing("bell", measure_doorbell_notification);
    calibration.record_cost("fetch", measure_record_fetch().map_err(Into::into));
    match sys::net::run_in_new_namespace(TapCosts::measure)
        .map_err(Into::into)
        .and_then(|live| live)
    {
        Ok(live) => live.record_in(calibration),
        Err(why) => {
            let names = ["socket", "tap", "fetch, by a line", "twins, by a line"];
            calibration.record_missing_figures(&names, &*why);
        }
    }
}

/// Processor time per frame in ns, excluding the time to send the frame, for several receivers.
struct TapCosts {
    /// Processor time per frame when a program that does nothing is attached.
    tap: f64,
    /// Processor time per frame when a thread reads the frames from a packet socket.
    socket: f64,
    /// Processor time per frame when a program copies every frame to user space, and a thread reads
    /// the copies.
    exported: f64,
    /// Processor time per frame that the twins of [`HEADERLESS_TWINS`] add to a program that copies
    /// every frame to user space.
    plain: f64,
    /// Processor time per frame that the twins of [`HEADER_TWINS`] add to a program that copies
    /// every frame to user space.
    twins: f64,
}

impl TapCosts {
    /// Measures the costs in the network namespace of the calling thread.
    fn measure() -> Result<Self> {
        let index = RouteSocket::open().and_then(|links| links.interface_by_name("lo"))?.index;
        let (sender, _target) = open_datagram_sockets()?;
        let program = load_program(ProgramKind::Tc, &[Insn::mov(R0, -1), Insn::exit()])?;
        let payload = [0; RECORD_BYTES];
        let send = || {
            measure_processor_ns(DATAGRAMS_PER_MEASUREMENT, || {
                (0..DATAGRAMS_PER_MEASUREMENT).for_each(|_| drop(sender.send(&payload)))
            })
        };
        let inside = |filters: [&str; 5]| {
            let filters = filters.join(" @kernel | ");
            format!("rx lo ring=8MB @kernel | {filters} @kernel | discard @thread0")
        };
        let lines = [
            "rx lo ring=8MB @thread0 | discard @thread0",
            "rx lo ring=8MB @kernel | discard @thread0",
            &inside(HEADERLESS_TWINS),
            &inside(HEADER_TWINS),
        ];
        let (mut alone, mut with_tap) = (f64::INFINITY, f64::INFINITY);
        let mut rounds: [Vec<f64>; 4] = Default::default();
        for _ in 0..ROUNDS {
            alone = alone.min(send());
            let link = Link::attach_tcx(
                &program,
                index,
                TrafficDirection::Ingress,
                ChainPosition::Head,
                None,
            )?;
            with_tap = with_tap.min(send());
            drop(link);
            for (line, costs) in lines.iter().zip(&mut rounds) {
                costs.push(measure_while_running(line, &send)?);
            }
        }
        let [socket, exported, plain, twins] = rounds;
        let (plain, twins) =
            (median_difference(&plain, &exported), median_difference(&twins, &exported));
        let least = |costs: Vec<f64>| costs.into_iter().fold(f64::INFINITY, f64::min);
        let [tap, socket, exported] =
            [with_tap, least(socket), least(exported)].map(|cost| (cost - alone).max(0.0));
        Ok(Self { tap, socket, exported, plain, twins })
    }

    fn record_in(&self, calibration: &mut Calibration) {
        let Self { tap, socket, exported, plain, twins } = *self;
        let costs = &mut calibration.costs;
        // The request also calls a source and a sink.
        (costs.socket, costs.tap) = ((socket - 2.0 * costs.call).max(0.0), tap);
        let known = costs.tap + costs.kernel_exit_cost() - costs.fetch + costs.call;
        costs.fetch = costs.fetch.max(exported - known);
        // A twin without a measured cost of its own counts with the default cost.
        let alone = |name: &&str| {
            let known = costs.filters.iter().find(|f| f.kernel && f.filter == **name);
            known.map_or(costs.twin, |known| known.block)
        };
        let dearer = |line: f64, of: [&str; 5]| line - of.iter().map(alone).sum::<f64>();
        let (plain, twins) = (dearer(plain, HEADERLESS_TWINS), dearer(twins, HEADER_TWINS));
        let more = (plain / HEADERLESS_TWINS.len() as f64).clamp(0.0, TWIN_EXTRA_NS_MAX);
        // The result may be 0: each separate measurement of a twin includes the header search,
        // whereas in a chain only the first twin pays for the search.
        costs.twin_header_search =
            (twins - more * HEADER_TWINS.len() as f64).clamp(0.0, TWIN_EXTRA_NS_MAX);
        costs.filters.iter_mut().filter(|f| f.kernel).for_each(|f| f.block += more);
        costs.twin += more;
    }
}

/// Returns the median difference between the costs of two requests. Both lists contain one cost for
/// each round; the costs of the second request are subtracted.
fn median_difference(line: &[f64], other: &[f64]) -> f64 {
    let mut more: Vec<f64> = line.iter().zip(other).map(|(line, other)| line - other).collect();
    more.sort_by(f64::total_cmp);
    more.get(more.len() / 2).copied().unwrap_or_default()
}

/// Measures the time, in ns, of one run of a program that copies a frame and its timestamp into a
/// map.
fn measure_record_copy() -> Result<f64> {
    const FRAME_OFFSET: i16 = 32;
    let map = Map::array("calibrate", 4096, 1, true)?;
    let descriptor = map.as_fd().as_raw_fd().cast_unsigned();
    let mut code = vec![Insn::mov(R6, R1), Insn::call(Helper::KtimeNs)];
    code.extend(Insn::load_map_value(R7, descriptor, 0));
    code.extend([
        Insn::store(Size::DW, R7, 16, R0),
        Insn::store(Size::DW, R7, 0, -1),
        Insn::mov(R1, R6),
        Insn::mov(R2, 0),
        Insn::mov(R3, R7),
        Insn::alu(ebpf::insn::Alu::Add, R3, i32::from(FRAME_OFFSET)),
        Insn::mov(R4, RECORD_BYTES as i32),
        Insn::call(Helper::SkbLoadBytes),
        Insn::store(Size::DW, R7, 0, 1),
        Insn::store(Size::DW, R7, 2048, 1),
        Insn::store(Size::DW, R7, 2056, 1),
        Insn::store(Size::DW, R7, 8, 1),
        Insn::mov(R0, -1),
        Insn::exit(),
    ]);
    twins::min_run_ns(&load_program(ProgramKind::Tc, &code)?)
}

/// Measures the time, in ns, to copy a record from a program's ring and to validate it.
fn measure_record_fetch() -> sys::Result<f64> {
    const POINTERS: u32 = 4096;
    let shape =
        RingsLayout { cpus: 1, sinks: 1, pointers: POINTERS, bytes: 1 << 20, record_max: 2048 };
    let rings = ProgramRings::create("calibrate", shape)?;
    let Some(region) = rings.cpu_ring(0) else { return Ok(0.0) };
    let mut to = [0; RECORD_BYTES];
    Ok(min_call_ns(20, POINTERS, |calls| {
        for number in 0..calls {
            let pointer = region.frame_pointer(0, u64::from(number));
            let position = u64::from(number) * 256;
            let copied = region.copy_record_bytes(position, 0, &mut to);
            std::hint::black_box((
                pointer,
                copied,
                region.reserved_position(),
                region.sink_pointer_count(0),
                &mut to,
            ));
        }
    }))
}

/// Measures the time, in ns, of one run of a program that notifies a doorbell in every run.
fn measure_doorbell_notification() -> Result<f64> {
    const FORCE_WAKEUP: i32 = 2;
    /// Number of notifications of 16 bytes that fit in the doorbell's ring.
    const NOTIFICATION_COUNT: u32 = 8_192;
    let mut ring = RingBuffer::create("calibrate", 256 << 10)?;
    let descriptor = ring.map().as_fd().as_raw_fd().cast_unsigned();
    let mut code = vec![Insn::store(Size::DW, R10, -8, 0)];
    code.extend(Insn::load_map(R1, descriptor));
    code.extend([
        Insn::mov(R2, R10),
        Insn::alu(ebpf::insn::Alu::Add, R2, -8),
        Insn::mov(R3, 8),
        Insn::mov(R4, FORCE_WAKEUP),
        Insn::call(Helper::RingbufOutput),
        Insn::mov(R0, -1),
        Insn::exit(),
    ]);
    let program = load_program(ProgramKind::Tc, &code)?;
    min_of_rounds(ROUNDS, || {
        let ran = program.test_run(&[0; 64], NOTIFICATION_COUNT)?;
        ring.drain(|_| ());
        Ok(ran.duration_ns.into())
    })
}
