//! From spaces to an outcome: activation, stopping, the ledger.
//!
//! Spaces are activated from the sinks back to the sources, so that a path goes live at once
//! without a global lock [SL §7.1]. The thread that calls [`run`] waits: for the spaces to end, for
//! a signal, for the time that was given. The first signal lets sources end and everything under
//! way drain.

use crate::build::Path;
use crate::control::Control;
use crate::failure::PathFailure;
use crate::ledger::Ledger;
use crate::process;
use crate::report::{self, Reported};
use crate::space::{Remains, Space};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use sys::eventfd::EventFd;

/// When to stop, besides when the sources end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Until<'f> {
    /// When this becomes readable: a signal.
    pub readable: Option<BorrowedFd<'f>>,
    /// After this many ns.
    pub elapsed: Option<u64>,
}

/// What became of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The ledger of all paths.
    pub ledger: Ledger,
    /// What filters and sinks had to say, by node of the plan.
    pub reports: Vec<Reported>,
    /// Why paths ended early.
    pub failures: Vec<PathFailure>,
    /// Whether a signal or the time limit stopped it.
    pub stopped: bool,
    /// How long it ran, in ns.
    pub elapsed_ns: u64,
}

/// Runs paths to their end.
pub fn run(paths: Vec<Path>, until: Until<'_>) -> sys::Result<Outcome> {
    let begin = sys::clock::monotonic();
    let done = Arc::new(EventFd::new()?);
    let (ended, remains) = mpsc::channel();
    let mut controls = Vec::new();
    let mut running = 0;
    for (number, path) in paths.into_iter().enumerate() {
        controls.push(Arc::clone(&path.control));
        for (place, space) in path.spaces.into_iter().enumerate().rev() {
            let (ended, done) = (ended.clone(), Arc::clone(&done));
            let control = Arc::clone(&path.control);
            let thread = std::thread::Builder::new().name(space.name.clone());
            let body = move || {
                let remains =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| space.run()));
                if remains.is_err() {
                    control.stop();
                }
                // Nobody listens any more only when the process is ending.
                let _ = ended.send((number, place, remains.ok()));
                done.notify();
            };
            if let Err(error) = thread.spawn(body) {
                controls.iter().for_each(|control| control.stop());
                return Err(sys::Error::new(
                    "clone",
                    "a thread",
                    error.raw_os_error().unwrap_or(0),
                ));
            }
            running += 1;
        }
    }
    drop(ended);
    let stopped = wait(&controls, until, begin, &done, &remains, running);
    let mut all = stopped.remains;
    all.sort_by_key(|(number, place, _)| (*number, *place));
    Ok(outcome(all, stopped.early, begin))
}

/// Runs paths in this thread, one space after the other, never asleep. For measurements of one
/// core, and for callers that have no thread to give. A filter may not put more at once than a ring
/// holds, and a program may wait for ever: it needs its two sides to run at one time.
pub fn run_alone(paths: Vec<Path>) -> Outcome {
    let begin = sys::clock::monotonic();
    let mut ended: Vec<Ended> = Vec::new();
    for (number, path) in paths.into_iter().enumerate() {
        let mut spaces: Vec<Option<Space>> = path.spaces.into_iter().map(Some).collect();
        while spaces.iter().any(Option::is_some) {
            for (place, slot) in spaces.iter_mut().enumerate() {
                let goes_on = slot.as_mut().is_some_and(Space::step);
                if let Some(space) = slot.take_if(|_| !goes_on) {
                    ended.push((number, place, Some(space.end())));
                }
            }
        }
    }
    ended.sort_by_key(|(number, place, _)| (*number, *place));
    outcome(ended, false, begin)
}

type Ended = (usize, usize, Option<Remains>);

struct Waited {
    remains: Vec<Ended>,
    early: bool,
}

fn wait(
    controls: &[Arc<Control>],
    until: Until<'_>,
    begin: u64,
    done: &EventFd,
    ended: &mpsc::Receiver<Ended>,
    running: usize,
) -> Waited {
    let mut waited = Waited { remains: Vec::new(), early: false };
    loop {
        done.clear();
        waited.remains.extend(ended.try_iter());
        if waited.remains.len() >= running {
            return waited;
        }
        let mut descriptors = vec![done.as_fd()];
        let mut limit = None;
        if !waited.early {
            descriptors.extend(until.readable);
            limit = until.elapsed.map(|ns| {
                Duration::from_nanos((begin + ns).saturating_sub(sys::clock::monotonic()))
            });
        }
        let ready = sys::poll::readable(&descriptors, limit);
        let signalled = ready.get(1) == Some(&true);
        let late = until.elapsed.is_some_and(|ns| sys::clock::monotonic() >= begin + ns);
        if !waited.early && (signalled || late) {
            waited.early = true;
            controls.iter().for_each(|control| control.stop());
        }
    }
}

fn outcome(ended: Vec<Ended>, stopped: bool, begin: u64) -> Outcome {
    let mut outcome = Outcome { stopped, ..Outcome::default() };
    let paths = ended.iter().map(|(number, _, _)| number + 1).max().unwrap_or(0);
    let mut by_path: Vec<Vec<Remains>> = (0..paths).map(|_| Vec::new()).collect();
    for (number, _, remains) in ended {
        match remains {
            Some(remains) => by_path[number].push(remains),
            None => outcome.failures.push(PathFailure::space(number)),
        }
    }
    for mut remains in by_path {
        let programs = process::finish(&remains);
        outcome.ledger.add(report::ledger_of(&remains));
        outcome.reports.extend(report::reports_of(&remains));
        let mut failures: Vec<PathFailure> =
            remains.iter_mut().filter_map(|space| space.failure.take()).collect();
        for program in programs {
            // Its space may have seen it end.
            if !failures.iter().any(|failure| failure.is_same_end(&program)) {
                failures.push(program);
            }
        }
        // A ring that nobody reads any more is what a failure on its other side looks like.
        if failures.iter().any(|failure| !failure.is_echo()) {
            failures.retain(|failure| !failure.is_echo());
        }
        outcome.failures.extend(failures);
    }
    outcome.elapsed_ns = sys::clock::monotonic().saturating_sub(begin);
    outcome
}
