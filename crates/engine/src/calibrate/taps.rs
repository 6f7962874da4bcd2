//! Costs of a frame where it comes in: at a packet socket, at a program, on its way out of the
//! kernel.
//!
//! Frames go over the loopback interface of a name space that is made for it and seen by nobody;
//! the processor time that is needed more for each frame is what whoever looks on costs. Whole
//! lines are run there, so that what moves between processors is in the figures: a packet socket
//! and a kernel ring that only their own program has looked at cost less than half of that. So do
//! twins in a loop of test runs, where nothing else is in the caches: how much dearer each is
//! between frames that come one by one is measured once, by a line of several, and by another what
//! it costs there that somebody must find the headers. Both hand over what they look at, as does
//! the line beside which they are set, since that is when it matters which of them run in the
//! kernel: the copy then touches the same bytes of a frame that finding its headers does, and what
//! every program does once is in all three. They run in turn, and half of the rounds say more: what
//! disturbs the machine for a while disturbs all three. Where no name space can be made, or `ip` is
//! missing, these figures stay as built in, or as test runs say.

use super::figures::{Calibration, least};
use super::live::{ip, spent, while_runs};
use super::twins::{self, empty};
use ebpf::insn::{Helper, Insn, R0, R1, R2, R3, R4, R6, R7, R10, Size, encode};
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::{Anchor, Link, Map, Program, ProgramKind, RingBuffer, Rings, RingsLayout, Side};
use sys::net::RouteSocket;

/// Datagrams of a round: some ms, so that bells ring and many rounds are not interrupted. A ring
/// has room for all of them.
const SENT: u32 = 4_000;
const ROUNDS: usize = 20;
/// Bytes of a record that is copied out.
const RECORD: usize = 128;

/// The filters of lines whose twins are measured among frames that come one by one: some that do
/// not look at headers, and some of which the first must find them. And the most by which each of
/// them is believed to be dearer there, in ns, or finding headers to cost.
const PLAIN: [&str; 5] = ["count", "hist", "count", "hist", "count"];
const TWINS: [&str; 5] = ["eth", "ip", "udp", "count", "hist"];
const MORE_MAX: f64 = 100.0;

pub(super) fn measure(calibration: &mut Calibration) {
    let told = |error: sys::Error| error.to_string();
    let empty = empty();
    calibration.note("record", empty.clone().and_then(|empty| Ok((record()? - empty).max(0.0))));
    calibration.note("fetch", fetch().map_err(told));
    calibration.note("bell", empty.and_then(|empty| Ok((bell()? - empty).max(0.0))));
    match sys::net::run_in_new(Live::measure).map_err(told).and_then(|live| live) {
        Ok(live) => live.note(calibration),
        Err(why) => {
            for name in ["socket", "tap", "fetch, by a line", "twins, by a line"] {
                calibration.missing.push((name.to_owned(), why.clone()));
            }
        }
    }
}

/// Costs of a frame, in ns beyond sending it.
struct Live {
    /// With a program that does nothing.
    tap: f64,
    /// With a line in a thread, behind a packet socket.
    socket: f64,
    /// With a line in a thread, behind a program that hands everything over.
    handed: f64,
    /// Extra cost with twins of which none reads headers; then with some that do.
    plain: f64,
    twins: f64,
}

impl Live {
    /// In a name space of its own.
    fn measure() -> Result<Self, String> {
        let why = |error: sys::Error| error.to_string();
        let io = |error: std::io::Error| error.to_string();
        ip(&["link", "set", "lo", "up"])?;
        let index = RouteSocket::open().and_then(|links| links.named("lo")).map_err(why)?.index;
        let target = UdpSocket::bind("127.0.0.1:0").map_err(io)?;
        let sender = UdpSocket::bind("127.0.0.1:0").map_err(io)?;
        sender.connect(target.local_addr().map_err(io)?).map_err(io)?;
        let code = encode(&[Insn::mov(R0, -1), Insn::exit()]);
        let program =
            Program::load(ProgramKind::Tc, "calibrate", &code).map_err(|why| why.to_string())?;
        let payload = [0; RECORD];
        let send = || spent(SENT, || (0..SENT).for_each(|_| drop(sender.send(&payload))));
        let inside = |filters: [&str; 5]| {
            let filters = filters.join(" @kernel | ");
            format!("rx lo ring=8MB @kernel | {filters} @kernel | discard @thread0")
        };
        let lines = [
            "rx lo ring=8MB @thread0 | discard @thread0",
            "rx lo ring=8MB @kernel | discard @thread0",
            &inside(PLAIN),
            &inside(TWINS),
        ];
        let (mut alone, mut tapped) = (f64::INFINITY, f64::INFINITY);
        let mut rounds: [Vec<f64>; 4] = Default::default();
        for _ in 0..ROUNDS {
            alone = alone.min(send());
            let link = Link::tcx(&program, index, Side::Ingress, Anchor::Head, None);
            let link = link.map_err(why)?;
            tapped = tapped.min(send());
            drop(link);
            for (line, costs) in lines.iter().zip(&mut rounds) {
                costs.push(while_runs(line, &send)?);
            }
        }
        let [socket, handed, plain, twins] = rounds;
        let (plain, twins) = (more(&plain, &handed), more(&twins, &handed));
        let least = |costs: Vec<f64>| costs.into_iter().fold(f64::INFINITY, f64::min);
        let [tap, socket, handed] =
            [tapped, least(socket), least(handed)].map(|cost| (cost - alone).max(0.0));
        Ok(Self { tap, socket, handed, plain, twins })
    }

    fn note(&self, calibration: &mut Calibration) {
        let Self { tap, socket, handed, plain, twins } = *self;
        let costs = &mut calibration.costs;
        // A source and a sink are called as well.
        (costs.socket, costs.tap) = ((socket - 2.0 * costs.call).max(0.0), tap);
        let known = costs.tap + costs.leaving() - costs.fetch + costs.call;
        costs.fetch = costs.fetch.max(handed - known);
        // Those that did not load alone do not run in lines.
        let alone = |name: &&str| {
            let known = costs.filters.iter().find(|f| f.kernel && f.filter == **name);
            known.map_or(costs.twin, |known| known.block)
        };
        let dearer = |line: f64, of: [&str; 5]| line - of.iter().map(alone).sum::<f64>();
        let (plain, twins) = (dearer(plain, PLAIN), dearer(twins, TWINS));
        let more = (plain / PLAIN.len() as f64).clamp(0.0, MORE_MAX);
        // May well be nothing: each of them alone has found the headers, too, and behind the first
        // nobody does.
        costs.twin_look = (twins - more * TWINS.len() as f64).clamp(0.0, MORE_MAX);
        costs.filters.iter_mut().filter(|f| f.kernel).for_each(|f| f.block += more);
        costs.twin += more;
    }
}

/// Returns the median over the rounds by which one request costs more than another.
fn more(line: &[f64], other: &[f64]) -> f64 {
    let mut more: Vec<f64> = line.iter().zip(other).map(|(line, other)| line - other).collect();
    more.sort_by(f64::total_cmp);
    more.get(more.len() / 2).copied().unwrap_or_default()
}

/// A program that copies a frame into a map, with the time.
fn record() -> Result<f64, String> {
    const FRAME: i16 = 32;
    let map = Map::array("calibrate", 4096, 1, true).map_err(|why| why.to_string())?;
    let descriptor = map.as_fd().as_raw_fd().cast_unsigned();
    let mut code = vec![Insn::mov(R6, R1), Insn::call(Helper::KtimeNs)];
    code.extend(Insn::load_map_value(R7, descriptor, 0));
    code.extend([
        Insn::store(Size::DW, R7, 16, R0),
        Insn::store(Size::DW, R7, 0, -1),
        Insn::mov(R1, R6),
        Insn::mov(R2, 0),
        Insn::mov(R3, R7),
        Insn::alu(ebpf::insn::Alu::Add, R3, i32::from(FRAME)),
        Insn::mov(R4, RECORD as i32),
        Insn::call(Helper::SkbLoadBytes),
        Insn::store(Size::DW, R7, 0, 1),
        Insn::store(Size::DW, R7, 2048, 1),
        Insn::store(Size::DW, R7, 2056, 1),
        Insn::store(Size::DW, R7, 8, 1),
        Insn::mov(R0, -1),
        Insn::exit(),
    ]);
    let program = Program::load(ProgramKind::Tc, "calibrate", &encode(&code));
    twins::run(&program.map_err(|why| why.to_string())?)
}

/// A record copied out of the ring of a program, and looked at again.
fn fetch() -> sys::Result<f64> {
    const POINTERS: u32 = 4096;
    let shape =
        RingsLayout { cpus: 1, sinks: 1, pointers: POINTERS, bytes: 1 << 20, record_max: 2048 };
    let rings = Rings::create("calibrate", shape)?;
    let Some(region) = rings.region(0) else { return Ok(0.0) };
    let mut to = [0; RECORD];
    Ok(least(20, POINTERS, |calls| {
        for number in 0..calls {
            let pointer = region.pointer(0, u64::from(number));
            let position = u64::from(number) * 256;
            let copied = region.copy(position, 0, &mut to);
            std::hint::black_box((pointer, copied, region.reserved(), region.head(0), &mut to));
        }
    }))
}

/// A program that rings each time.
fn bell() -> Result<f64, String> {
    const FORCE_WAKEUP: i32 = 2;
    /// Bells of 16 bytes that fit the ring.
    const BELLS: u32 = 8_192;
    let mut ring = RingBuffer::create("calibrate", 256 << 10).map_err(|why| why.to_string())?;
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
    let program = Program::load(ProgramKind::Tc, "calibrate", &encode(&code));
    let program = program.map_err(|why| why.to_string())?;
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let ran = program.test_run(&[0; 64], BELLS).map_err(|why| why.to_string())?;
        best = best.min(f64::from(ran.duration_ns));
        ring.drain(|_| ());
    }
    Ok(best)
}
