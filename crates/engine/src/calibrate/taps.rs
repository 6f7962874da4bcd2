//! What a frame costs where it comes in: at a packet socket, at a program, on its way out of the
//! kernel.
//!
//! Frames go over the loopback interface of a name space that is made for it and seen by nobody;
//! what the sender needs more for each frame is what whoever looks on costs. Where no name space
//! can be made, or `ip` is missing, these figures stay as built in.

use super::twins::{empty, run};
use super::{Calibration, least};
use ebpf::insn::{Helper, Insn, R0, R1, R2, R3, R4, R6, R7, R10, Size, encode};
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, Stdio};
use sys::bpf::{Anchor, Kind, Link, Map, Program, RingBuffer, Rings, Shape, Side};
use sys::net::Links;
use sys::packet;

/// Datagrams of a round: a few ms, so that most rounds are not interrupted. A ring has room for all
/// of them.
const SENT: u32 = 2_000;
const ROUNDS: usize = 50;
/// Bytes of a record that is copied out.
const RECORD: usize = 128;

pub(super) fn measure(calibration: &mut Calibration) {
    let told = |error: sys::Error| error.to_string();
    match sys::net::within_new(sent).map_err(told).and_then(|sent| sent) {
        Ok((socket, tap)) => {
            calibration.note("socket", Ok(socket));
            calibration.note("tap", Ok(tap));
        }
        Err(why) => {
            calibration.note("socket", Err(why.clone()));
            calibration.note("tap", Err(why));
        }
    }
    let empty = empty();
    calibration.note("record", empty.clone().and_then(|empty| Ok((record()? - empty).max(0.0))));
    calibration.note("fetch", fetch().map_err(told));
    calibration.note("bell", empty.and_then(|empty| Ok((bell()? - empty).max(0.0))));
}

/// What a packet socket and what a program cost for each frame.
fn sent() -> Result<(f64, f64), String> {
    let why = |error: sys::Error| error.to_string();
    let io = |error: std::io::Error| error.to_string();
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("cannot run ip: {error}"))?;
    if !up.success() {
        return Err("ip cannot bring up a loopback interface".to_owned());
    }
    let index = Links::open().and_then(|links| links.named("lo")).map_err(why)?.index;
    let target = UdpSocket::bind("127.0.0.1:0").map_err(io)?;
    let sender = UdpSocket::bind("127.0.0.1:0").map_err(io)?;
    sender.connect(target.local_addr().map_err(io)?).map_err(io)?;
    let code = encode(&[Insn::mov(R0, -1), Insn::exit()]);
    let program = Program::load(Kind::Tc, "calibrate", &code).map_err(|why| why.to_string())?;
    let payload = [0; RECORD];
    // Refused datagrams cost as much: nobody reads them.
    let round = || {
        least(1, SENT, |calls| {
            (0..calls).for_each(|_| drop(sender.send(&payload)));
        })
    };
    let (mut alone, mut watched, mut tapped) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        alone = alone.min(round());
        let shape = packet::Shape { segment: 1 << 18, segments: 8, retire_ms: 100, reserve: 0 };
        let socket = packet::Socket::open().map_err(why)?;
        socket.ignore_outgoing().map_err(why)?;
        let ring = socket.ring(shape).map_err(why)?;
        ring.bind(index).map_err(why)?;
        watched = watched.min(round());
        drop(ring);
        let link = Link::tcx(&program, index, Side::Ingress, Anchor::Head, None).map_err(why)?;
        tapped = tapped.min(round());
        drop(link);
    }
    Ok(((watched - alone).max(0.0), (tapped - alone).max(0.0)))
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
    let program = Program::load(Kind::Tc, "calibrate", &encode(&code));
    run(&program.map_err(|why| why.to_string())?)
}

/// A record copied out of the ring of a program, and looked at again.
fn fetch() -> sys::Result<f64> {
    const POINTERS: u32 = 4096;
    let shape = Shape { cpus: 1, sinks: 1, pointers: POINTERS, bytes: 1 << 20, record_max: 2048 };
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
    let program = Program::load(Kind::Tc, "calibrate", &encode(&code));
    let program = program.map_err(|why| why.to_string())?;
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let ran = program.test_run(&[0; 64], BELLS).map_err(|why| why.to_string())?;
        best = best.min(f64::from(ran.duration_ns));
        ring.drain(|_| ());
    }
    Ok(best)
}
