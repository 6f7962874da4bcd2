//! Whole lines that run while frames are sent, and what processor time that takes.

use crate::build::{Settings, build};
use crate::catalogue::House;
use crate::run::{Until, run};
use pipeline::plan::{Machine, plan};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::Duration;
use sys::eventfd::EventFd;

/// Threads that use less than this in so much time have nothing left to do: a kernel ring that has
/// a few blocks rings its bell within a millisecond.
const IDLE_NS: u64 = 50_000;
const WINDOW: Duration = Duration::from_millis(4);
/// Number of checks after which waiting for idle threads ends.
const LOOKS_MAX: u32 = 250;

/// Has `ip` do something in the name space of this thread.
pub(super) fn ip(words: &[&str]) -> Result<(), String> {
    let mut command = Command::new("ip");
    command.args(words).stdin(Stdio::null()).stderr(Stdio::null());
    let done = command.status().map_err(|error| format!("cannot run ip: {error}"))?;
    match done.success() {
        true => Ok(()),
        false => Err(format!("ip cannot: ip {}", words.join(" "))),
    }
}

/// The processor time of this process for each of so many frames, until nobody has anything left to
/// do.
pub(super) fn spent(count: u32, send: impl FnOnce()) -> f64 {
    let begin = sys::clock::process();
    send();
    let mut now = sys::clock::process();
    let mut looks = 0;
    loop {
        // Nothing can be read from no descriptor: this waits, and leaves the processor to others.
        sys::poll::readable(&[], Some(WINDOW));
        let before = std::mem::replace(&mut now, sys::clock::process());
        looks += 1;
        if now - before < IDLE_NS || looks == LOOKS_MAX {
            return (before - begin) as f64 / f64::from(count);
        }
    }
}

/// Measures the processor time spent while a request runs in threads of its own.
pub(super) fn while_runs(line: &str, send: &dyn Fn() -> f64) -> Result<f64, String> {
    let (graph, mistakes) = pipeline::read(line, &House);
    if mistakes.iter().any(pipeline::Diagnostic::is_error) {
        return Err(pipeline::render(line, &mistakes, false).trim_end().replace('\n', "; "));
    }
    let plan = plan(graph, &House, &Machine::with_kernel()).map_err(|why| why.to_string())?;
    let paths = build(&plan, Settings::default()).map_err(|why| why.to_string())?;
    let stop = EventFd::new().map_err(|why| why.to_string())?;
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let until = Until { readable: Some(stop.as_fd()), ..Until::default() };
            run(paths, until)
        });
        send();
        let spent = send();
        stop.notify();
        let ended = running.join().map_err(|_| "the line failed".to_owned())?;
        let outcome = ended.map_err(|why| why.to_string())?;
        match outcome.failures.first() {
            Some(failure) => Err(failure.to_string()),
            None => Ok(spent),
        }
    })
}
