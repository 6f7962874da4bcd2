//! From spaces to an outcome: activation, stopping, the ledger.
//!
//! First there is a thread for each space, which is the last step that may fail; then the log of
//! the allocation is kept. Spaces are activated from the sinks back to the sources, so that a path
//! goes live at once without a global lock [SL §7.1]. The thread that calls [`run`] waits: for the
//! spaces to end, for a signal, for the time that was given. The first signal lets sources end and
//! everything under way drain. Who wants to know how far it is has it ask the sources from time to
//! time: see [`Watch`].

use crate::adapt::Watcher;
use crate::build::Path;
use crate::change::Changer;
use crate::kernel::{Kernel, ProgramRan};
use crate::live::Live;
use crate::path::crew::{Crew, Ended, Thread};
use crate::path::running::Kernels;
use endpoint::Seen;
use runtime::control::Control;
use runtime::failure::PathFailure;
use runtime::latency::{Breach, Latency};
use runtime::ledger::Ledger;
use runtime::process;
use runtime::report::{self, Reported};
use runtime::space::{Remains, Space};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, mpsc};
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::steps::{Resource, Steps};

/// Conditions that stop a run, besides the end of its sources.
#[derive(Clone, Copy, Debug, Default)]
pub struct Until<'f> {
    /// A descriptor whose readiness stops the run: a signal.
    pub readable: Option<BorrowedFd<'f>>,
    /// After this many ns.
    pub elapsed: Option<u64>,
    /// Progress callback.
    pub watch: Option<Watch<'f>>,
    /// Latency callback.
    pub alarm: Option<Alarm<'f>>,
}

/// Callback for blocks older than the request allows, called at most once a second.
#[derive(Clone, Copy)]
pub struct Alarm<'f>(
    /// Is called by the thread that waits: it must not block.
    pub &'f dyn Fn(&Breach),
);

impl fmt::Debug for Alarm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Alarm")
    }
}

/// Callback for the progress of paths, with its interval.
#[derive(Clone, Copy)]
pub struct Watch<'f> {
    /// The time between two tellings, in ns.
    pub every_ns: u64,
    /// Is called by the thread that waits, between two looks at signals: it must not block.
    pub tell: &'f dyn Fn(&Progress),
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("every_ns", &self.every_ns).finish_non_exhaustive()
    }
}

/// Progress of paths.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Elapsed time, in ns.
    pub elapsed_ns: u64,
    /// Totals of their sources, as of their latest answer; empty before the first.
    pub sources: Vec<(String, Seen)>,
    /// True if they were stopped and blocks in flight drain.
    pub stopped: bool,
    /// Sources that did not answer this time: held up by what takes their blocks.
    pub held_up: Vec<String>,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The ledger of all paths.
    pub ledger: Ledger,
    /// Reports of filters and sinks, by node of the plan.
    pub reports: Vec<Reported>,
    /// Failures that ended paths early.
    pub failures: Vec<PathFailure>,
    /// Totals of kernel programs.
    pub programs: Vec<ProgramRan>,
    /// Adaptations that the paths made while they ran, with their reasons.
    pub adapted: Vec<String>,
    /// Latency of blocks, where the request bounds it.
    pub latency: Option<Latency>,
    /// True if a signal or the time limit stopped it.
    pub stopped: bool,
    /// Run time, in ns.
    pub elapsed_ns: u64,
}

/// Runs paths to their end.
pub fn run(paths: Vec<Path>, until: Until<'_>) -> sys::Result<Outcome> {
    let begin = sys::clock::monotonic();
    let steps = paths.first().map_or_else(Steps::default, |path| path.steps.clone());
    let logs: Vec<Steps> = paths.iter().map(|path| path.steps.clone()).collect();
    let manned = Manned::all(&paths, &steps);
    let Manned { crews, threads, done, remains, running } = match manned {
        Ok(manned) => manned,
        Err(error) => {
            paths.iter().for_each(|path| path.live.is_run_by(None));
            drop(paths);
            logs.iter().for_each(Steps::roll_back);
            return Err(error);
        }
    };
    logs.iter().for_each(Steps::commit);
    let mut controls = Vec::new();
    let mut kernels = Vec::new();
    let mut lives = Vec::new();
    for ((path, crew), threads) in paths.into_iter().zip(crews).zip(threads) {
        kernels.push(path.kernels);
        controls.push(Arc::clone(&path.control));
        lives.push(path.live);
        if until.watch.is_some() {
            // The first pass says that there are sources.
            path.control.ask();
        }
        for (space, thread) in path.spaces.into_iter().zip(threads).rev() {
            steps.checkpoint(&space.name);
            thread.go(space);
        }
        if let Some(live) = lives.last() {
            live.is_run_by(Some(crew));
        }
    }
    steps.checkpoint("all runs");
    let watcher = Watcher::of(&lives);
    let changer = Changer::of(&lives);
    let alarms = Alarms::new(until.alarm, lives.first());
    let stopped = wait(&controls, until, (begin, alarms), &done, &remains, &running);
    drop((watcher, changer));
    steps.checkpoint("all has ended");
    lives.iter().for_each(|live| live.is_run_by(None));
    let mut all = stopped.remains;
    all.sort_by_key(|(number, place, _)| (*number, *place));
    let mut outcome = outcome(all, &kernels, stopped.early, begin);
    if let Some(live) = lives.first() {
        place(live, &mut outcome);
        outcome.adapted = live.adapted();
        outcome.latency = live.latency();
    }
    Ok(outcome)
}

/// A thread for each space of paths that are about to run.
struct Manned {
    /// The crew of each path, in order of the paths.
    crews: Vec<Crew>,
    threads: Vec<Vec<Thread>>,
    done: Arc<EventFd>,
    remains: mpsc::Receiver<Ended>,
    running: Arc<AtomicUsize>,
}

impl Manned {
    fn all(paths: &[Path], steps: &Steps) -> sys::Result<Self> {
        steps.take(Resource::Descriptor, "what tells that spaces have ended")?;
        let done = Arc::new(EventFd::new()?);
        let (ended, remains) = mpsc::channel();
        let running = Arc::new(AtomicUsize::new(0));
        let crew = |(number, path): (usize, &Path)| Crew {
            number,
            next: Arc::new(AtomicUsize::new(path.spaces.len())),
            control: Arc::clone(&path.control),
            ended: ended.clone(),
            done: Arc::clone(&done),
            running: Arc::clone(&running),
        };
        let crews: Vec<Crew> = paths.iter().enumerate().map(crew).collect();
        let of_path = |(crew, path): (&Crew, &Path)| {
            let spaces = path.spaces.iter().enumerate();
            let thread = |(place, space): (usize, &Space)| {
                steps.take(Resource::Thread, &space.name)?;
                crew.start(space.name.clone(), place)
            };
            spaces.map(thread).collect::<sys::Result<Vec<Thread>>>()
        };
        let threads = crews.iter().zip(paths).map(of_path).collect::<sys::Result<_>>()?;
        Ok(Self { crews, threads, done, remains, running })
    }
}

/// Runs paths in this thread, one space after the other, never asleep. For measurements of one
/// core, and for callers that have no thread to give. A filter may not put more at once than a ring
/// holds, and a program may wait for ever: it needs its two sides to run at one time.
pub fn run_alone(paths: Vec<Path>) -> Outcome {
    let begin = sys::clock::monotonic();
    let mut ended: Vec<Ended> = Vec::new();
    let mut kernels = Vec::new();
    let lives: Vec<_> = paths.iter().map(Path::live).collect();
    paths.iter().for_each(|path| path.steps.commit());
    lives.iter().for_each(|live| live.is_run_by(None));
    for (number, path) in paths.into_iter().enumerate() {
        kernels.push(path.kernels);
        let mut spaces: Vec<Option<Space>> = path.spaces.into_iter().map(Some).collect();
        while spaces.iter().any(Option::is_some) {
            for (place, slot) in spaces.iter_mut().enumerate() {
                if let Some(lent) = slot.take_if(|space| space.is_asked_for()) {
                    match lent.lend() {
                        Ok(back) => *slot = Some(back),
                        Err(remains) => ended.push((number, place, Some(*remains))),
                    }
                }
                let goes_on = slot.as_mut().is_some_and(Space::step);
                if let Some(space) = slot.take_if(|_| !goes_on) {
                    ended.push((number, place, Some(space.end())));
                }
            }
        }
    }
    ended.sort_by_key(|(number, place, _)| (*number, *place));
    let mut outcome = outcome(ended, &kernels, false, begin);
    lives.first().into_iter().for_each(|live| place(live, &mut outcome));
    outcome
}

struct Waited {
    remains: Vec<Ended>,
    early: bool,
}

fn wait(
    controls: &[Arc<Control>],
    until: Until<'_>,
    (begin, mut alarms): (u64, Option<Alarms<'_>>),
    done: &EventFd,
    ended: &mpsc::Receiver<Ended>,
    running: &AtomicUsize,
) -> Waited {
    let mut waited = Waited { remains: Vec::new(), early: false };
    let mut rounds = until.watch.map(|watch| Rounds::new(watch, begin));
    loop {
        done.clear();
        waited.remains.extend(ended.try_iter());
        if waited.remains.len() >= running.load(Ordering::Relaxed) {
            alarms.iter_mut().for_each(|alarms| alarms.look(sys::clock::monotonic()));
            return waited;
        }
        let end = until.elapsed.filter(|_| !waited.early).map(|ns| begin.saturating_add(ns));
        let due = rounds.as_ref().map(Rounds::due);
        let mut descriptors = vec![done.as_fd()];
        if !waited.early {
            descriptors.extend(until.readable);
        }
        let now = sys::clock::monotonic();
        let look = alarms.as_ref().map(|alarms| alarms.next);
        let next = end.into_iter().chain(due).chain(look).min();
        let limit = next.map(|time| Duration::from_nanos(time.saturating_sub(now)));
        let ready = sys::poll::readable(&descriptors, limit);
        let now = sys::clock::monotonic();
        let signalled = ready.get(1) == Some(&true);
        if !waited.early && (signalled || end.is_some_and(|end| now >= end)) {
            waited.early = true;
            controls.iter().for_each(|control| control.stop());
        }
        if let Some(rounds) = rounds.as_mut().filter(|rounds| now >= rounds.due()) {
            rounds.go_on(controls, now, waited.early);
        }
        if let Some(alarms) = alarms.as_mut().filter(|alarms| now >= alarms.next) {
            alarms.look(now);
        }
    }
}

/// The time between two looks whether blocks are late, in ns.
const ALARM_NS: u64 = 1_000_000_000;

/// Looking whether blocks are late.
struct Alarms<'f> {
    alarm: Alarm<'f>,
    live: &'f Live,
    /// Time of the next check.
    next: u64,
    /// Before then it tells nothing.
    quiet: u64,
}

impl<'f> Alarms<'f> {
    fn new(alarm: Option<Alarm<'f>>, live: Option<&'f Live>) -> Option<Self> {
        let (alarm, live) = alarm.zip(live)?;
        live.latency()?;
        let next = sys::clock::monotonic().saturating_add(ALARM_NS);
        Some(Self { alarm, live, next, quiet: 0 })
    }

    fn look(&mut self, now: u64) {
        self.next = now.saturating_add(ALARM_NS);
        if now < self.quiet {
            return;
        }
        if let Some(breach) = self.live.breach() {
            self.quiet = self.next;
            (self.alarm.0)(&breach);
        }
    }
}

/// Time that sources have to answer before their latest known totals are reported, in ns. A space
/// polls after every batch, and wakes within 50 us where a processor is free.
const ANSWERED_NS: u64 = 50_000_000;

/// Asking the sources and telling what they answered, in turn.
struct Rounds<'f> {
    watch: Watch<'f>,
    begin: u64,
    /// Time of the next report.
    next: u64,
    /// True if the sources were asked for that report.
    asked: bool,
}

impl<'f> Rounds<'f> {
    const fn new(watch: Watch<'f>, begin: u64) -> Self {
        Self { watch, begin, next: begin.saturating_add(watch.every_ns), asked: false }
    }

    /// Returns the time of the next action.
    const fn due(&self) -> u64 {
        if self.asked { self.next } else { self.next.saturating_sub(ANSWERED_NS) }
    }

    /// Asks, or tells what was answered.
    fn go_on(&mut self, controls: &[Arc<Control>], now: u64, stopped: bool) {
        self.asked = !self.asked;
        if self.asked {
            controls.iter().for_each(|control| control.ask());
            return;
        }
        let mut progress = Progress { stopped, ..Progress::default() };
        progress.elapsed_ns = now.saturating_sub(self.begin);
        for answer in controls.iter().flat_map(|control| control.answers()) {
            if !answer.fresh {
                progress.held_up.push(answer.name.clone());
            }
            progress.sources.push((answer.name, answer.seen));
        }
        (self.watch.tell)(&progress);
        // Who comes late does not catch up, and never tells twice at once.
        let soonest = now.saturating_add(self.watch.every_ns / 2);
        self.next = self.next.saturating_add(self.watch.every_ns).max(soonest);
    }
}

/// Gives what is told the places that it has in the plan.
fn place(live: &Live, outcome: &mut Outcome) {
    live.place(&mut outcome.ledger, &mut outcome.reports);
    live.place_programs(&mut outcome.programs);
}

fn outcome(ended: Vec<Ended>, kernels: &[Kernels], stopped: bool, begin: u64) -> Outcome {
    let mut outcome = Outcome { stopped, ..Outcome::default() };
    let paths = ended.iter().map(|(number, _, _)| number + 1).max().unwrap_or(0);
    let mut by_path: Vec<Vec<Remains>> = (0..paths).map(|_| Vec::new()).collect();
    for (number, _, remains) in ended {
        match remains {
            Some(remains) => by_path[number].push(remains),
            None => outcome.failures.push(PathFailure::space(number)),
        }
    }
    let kernels = kernels.iter().map(Some).chain(std::iter::repeat(None));
    for (mut remains, kernels) in by_path.into_iter().zip(kernels) {
        let kernels = kernels.map(|all| all.lock().unwrap_or_else(PoisonError::into_inner));
        let kernels = kernels.as_ref().map_or(&[][..], |kernels| kernels.as_slice());
        outcome.programs.extend(kernels.iter().map(Kernel::ran));
        let inside = kernels.iter().flat_map(|kernel| kernel.remains(&remains));
        let inside: Vec<Remains> = inside.collect();
        remains.splice(0..0, inside);
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
