//! Measurement of the processor time that requests use while they receive frames.

use super::calibration::Result;
use crate::build::{RunSettings, build};
use crate::registry::MachineRegistry;
use crate::run::{StopConditions, run};
use pipeline::plan::{Machine, Plan, plan};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::Duration;
use sys::eventfd::EventFd;
use wire::address::Mac;
use wire::build::udp_frame;

/// Processor time per [`IDLE_WINDOW`], in ns, below which all threads count as idle.
///
/// A kernel ring with few blocks notifies its reader within a millisecond, so every thread with
/// work runs during the window.
const IDLE_CPU_NS_MAX: u64 = 50_000;
/// Time window in which one check determines whether all threads are idle.
const IDLE_WINDOW: Duration = Duration::from_millis(4);
/// Maximum number of checks that all threads are idle. After it, the wait ends even if some thread
/// still runs.
const IDLE_CHECKS_MAX: u32 = 250;

/// Length in bytes of each frame that a measurement sends.
pub(super) const FRAME_BYTES: usize = 128;

/// Returns a frame with a datagram to port 53, so that most filters find the headers that they
/// read. `destination` is the last byte of the destination's MAC address.
pub(super) fn datagram_frame(destination: u8) -> Vec<u8> {
    let hardware = (Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, destination]));
    let (source, target) = (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 19, 0, 1));
    let ends = (SocketAddrV4::new(source, 40_000), SocketAddrV4::new(target, 53));
    udp_frame(hardware, ends, &[b'x'; FRAME_BYTES - 42]).unwrap_or_default()
}

/// Runs the command `ip` in the network namespace of this thread; blocks until it exits. Fails with
/// a message if the command is missing or fails.
pub(super) fn run_ip_command(words: &[&str]) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(words).stdin(Stdio::null()).stderr(Stdio::null());
    let done = command.status().map_err(|error| format!("cannot run ip: {error}"))?;
    match done.success() {
        true => Ok(()),
        false => Err(format!("ip cannot: ip {}", words.join(" ")).into()),
    }
}

/// Measures the processor time of this process per sent frame, in ns. `send` sends `count` frames.
/// The measurement ends when all threads are idle, or after [`IDLE_CHECKS_MAX`] checks.
pub(super) fn measure_processor_ns(count: u32, send: impl FnOnce()) -> f64 {
    let begin = sys::clock::process_cpu_ns();
    send();
    let mut now = sys::clock::process_cpu_ns();
    let mut looks = 0;
    loop {
        // Polling no descriptors sleeps for the window.
        sys::poll::wait_until_readable(&[], Some(IDLE_WINDOW));
        let before = std::mem::replace(&mut now, sys::clock::process_cpu_ns());
        looks += 1;
        if now - before < IDLE_CPU_NS_MAX || looks == IDLE_CHECKS_MAX {
            return (before - begin) as f64 / f64::from(count);
        }
    }
}

/// Calls `send` twice while a request runs in its own threads. Returns the result of the second
/// call. The first call is a warm-up.
pub(super) fn measure_while_running(line: &str, send: &dyn Fn() -> f64) -> Result<f64> {
    let plan = plan_request(line, &MachineRegistry::Local, &Machine::example_with_kernel())?;
    let paths = build(&plan, RunSettings::default())?;
    let stop = EventFd::new()?;
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let until =
                StopConditions { stop_descriptor: Some(stop.as_fd()), ..StopConditions::default() };
            run(paths, until)
        });
        send();
        let spent = send();
        stop.notify();
        match running.join().map_err(|_| "the request failed")??.failures.pop() {
            Some(failure) => Err(failure.into()),
            None => Ok(spent),
        }
    })
}

/// Parses and plans a request. Returns the mistakes in the request as the error.
pub(super) fn plan_request(
    line: &str,
    registry: &MachineRegistry,
    machine: &Machine,
) -> Result<Plan> {
    let (graph, mistakes) = pipeline::read_request(line, registry);
    if mistakes.iter().any(pipeline::Diagnostic::is_error) {
        return Err(pipeline::render(line, &mistakes, false).trim_end().replace('\n', "; ").into());
    }
    Ok(plan(graph, registry, machine)?)
}

/// Brings the interface `lo` up. Returns a socket that sends datagrams over `lo`, and the socket
/// that receives them.
pub(super) fn open_datagram_sockets() -> Result<(UdpSocket, UdpSocket)> {
    run_ip_command(&["link", "set", "lo", "up"])?;
    let target = UdpSocket::bind("127.0.0.1:0")?;
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    sender.connect(target.local_addr()?)?;
    Ok((sender, target))
}
