//! Requests that run while frames are sent, and their processor time.

use super::calibration::Result;
use crate::build::{Settings, build};
use crate::registry::MachineRegistry;
use crate::run::{Until, run};
use pipeline::plan::{Machine, Plan, plan};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::Duration;
use sys::eventfd::EventFd;
use wire::address::Mac;
use wire::emit::udp_frame;

/// Processor time per [`WINDOW`] below which threads are considered idle, in ns. A kernel ring with
/// few blocks notifies within a millisecond.
const IDLE_NS: u64 = 50_000;
const WINDOW: Duration = Duration::from_millis(4);
/// Number of checks after which the wait for idle threads ends.
const LOOKS_MAX: u32 = 250;

/// Bytes of a frame.
pub(super) const LENGTH: usize = 128;

/// Returns a frame with a datagram to port 53, which has the headers that most filters read. The
/// number is the last byte of the destination's hardware address.
pub(super) fn datagram(destination: u8) -> Vec<u8> {
    let hardware = (Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, destination]));
    let (source, target) = (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 19, 0, 1));
    let ends = (SocketAddrV4::new(source, 40_000), SocketAddrV4::new(target, 53));
    udp_frame(hardware, ends, &[b'x'; LENGTH - 42]).unwrap_or_default()
}

/// Runs `ip` in the network namespace of this thread. Fails with a message if it is missing or
/// fails.
pub(super) fn ip(words: &[&str]) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(words).stdin(Stdio::null()).stderr(Stdio::null());
    let done = command.status().map_err(|error| format!("cannot run ip: {error}"))?;
    match done.success() {
        true => Ok(()),
        false => Err(format!("ip cannot: ip {}", words.join(" ")).into()),
    }
}

/// Returns the processor time of this process per frame in ns, measured from before `send` until
/// all threads are idle.
pub(super) fn spent(count: u32, send: impl FnOnce()) -> f64 {
    let begin = sys::clock::process();
    send();
    let mut now = sys::clock::process();
    let mut looks = 0;
    loop {
        // A poll without descriptors: sleeps for the window.
        sys::poll::readable(&[], Some(WINDOW));
        let before = std::mem::replace(&mut now, sys::clock::process());
        looks += 1;
        if now - before < IDLE_NS || looks == LOOKS_MAX {
            return (before - begin) as f64 / f64::from(count);
        }
    }
}

/// Measures the processor time per frame while a request runs in threads of its own. The first call
/// of `send` warms up.
pub(super) fn while_runs(line: &str, send: &dyn Fn() -> f64) -> Result<f64> {
    let plan = planned(line, &MachineRegistry::Local, &Machine::with_kernel())?;
    let paths = build(&plan, Settings::default())?;
    let stop = EventFd::new()?;
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let until = Until { readable: Some(stop.as_fd()), ..Until::default() };
            run(paths, until)
        });
        send();
        let spent = send();
        stop.notify();
        match running.join().map_err(|_| "the line failed")??.failures.pop() {
            Some(failure) => Err(failure.into()),
            None => Ok(spent),
        }
    })
}

/// Plans a request.
pub(super) fn planned(line: &str, registry: &MachineRegistry, machine: &Machine) -> Result<Plan> {
    let (graph, mistakes) = pipeline::read(line, registry);
    if mistakes.iter().any(pipeline::Diagnostic::is_error) {
        return Err(pipeline::render(line, &mistakes, false).trim_end().replace('\n', "; ").into());
    }
    Ok(plan(graph, registry, machine)?)
}

/// Returns a socket that sends datagrams to another one, over `lo`, which this brings up.
pub(super) fn datagrams() -> Result<(UdpSocket, UdpSocket)> {
    ip(&["link", "set", "lo", "up"])?;
    let target = UdpSocket::bind("127.0.0.1:0")?;
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    sender.connect(target.local_addr()?)?;
    Ok((sender, target))
}
