//! Runs the spaces of paths, from activation to shutdown, and computes the final ledger.
//!
//! Each space gets a thread. Starting the threads is the last step that may fail; then the
//! allocation log is committed. Spaces are activated from the sinks back to the sources, so that
//! the whole path becomes active at once without a global lock [SL §7.1]. The thread that calls
//! [`run`] waits until the spaces end. The first signal, or the time limit, ends the sources;
//! blocks in flight drain. [`ProgressWatch`] requests periodic progress reports.

mod wait;

use crate::adapt::AdaptationThread;
use crate::build::BuiltPath;
use crate::change::ChangeRepeater;
use crate::kernel::{KernelSpace, ProgramTotals};
use crate::live::PathHandle;
use crate::path::processors;
use crate::path::running_path::SharedKernelSpaces;
use crate::path::starter::{EndedSpace, SpaceThread, ThreadStarter};
use endpoint::SourceCounters;
use runtime::counters::SpaceCounters;
use runtime::failure::PathFailure;
use runtime::latency::{LatencyBreach, LatencyReport};
use runtime::ledger::Ledger;
use runtime::report::{self, NodeReport};
use runtime::space::{Space, SpaceResults, results};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, mpsc};
use sys::eventfd::EventFd;
use sys::rollback::{RollbackLog, StepResource};

/// Conditions that stop a run before its sources end, and callbacks during the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct StopConditions<'f> {
    /// A descriptor that stops the run when it becomes readable, usually the descriptor from
    /// [`crate::signal::watch_stop_signals`]; `None` to watch no descriptor.
    pub stop_descriptor: Option<BorrowedFd<'f>>,
    /// A time limit for the run in ns; `None` for no limit.
    pub time_limit_ns: Option<u64>,
    /// The progress callback, if any.
    pub watch: Option<ProgressWatch<'f>>,
    /// The callback for latency breaches, if any.
    pub alarm: Option<LatencyAlarm<'f>>,
    /// The callback for failures of pipelines while others continue, if any.
    pub failure: Option<FailureReporter<'f>>,
}

/// A callback for a failure that has ended one pipeline of a request while others continue. Called
/// at most once for each pipeline.
#[derive(Clone, Copy)]
pub struct FailureReporter<'f>(
    /// The function to call. The thread that waits for the end of the run calls it, so it must not
    /// block.
    pub &'f dyn Fn(&PathFailure),
);

impl fmt::Debug for FailureReporter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FailureReporter")
    }
}

/// A callback for blocks that exceed the latency bound of the request, called at most once a
/// second.
#[derive(Clone, Copy)]
pub struct LatencyAlarm<'f>(
    /// The function to call. The thread that waits for the end of the run calls it, so it must not
    /// block.
    pub &'f dyn Fn(&LatencyBreach),
);

impl fmt::Debug for LatencyAlarm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Alarm")
    }
}

/// A callback for the progress of paths, with its interval.
#[derive(Clone, Copy)]
pub struct ProgressWatch<'f> {
    /// The interval between two progress reports, in ns.
    pub interval_ns: u64,
    /// The function to call. The thread that waits for the end of the run calls it between two
    /// checks for signals, so it must not block.
    pub report: &'f dyn Fn(&Progress),
}

impl fmt::Debug for ProgressWatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("every_ns", &self.interval_ns).finish_non_exhaustive()
    }
}

/// Progress of paths since their start, as passed to a [`ProgressWatch`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Time since the paths started, in ns.
    pub elapsed_ns: u64,
    /// Counters of each source at its latest response, with the name of the source; empty before
    /// the first response.
    pub sources: Vec<(String, SourceCounters)>,
    /// True if the paths were stopped and only process the blocks in flight.
    pub stopped: bool,
    /// Names of sources that did not respond in time, usually because a downstream node blocks
    /// their space.
    pub unresponsive: Vec<String>,
}

/// The result of a run: its ledger, reports, failures and duration.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunOutcome {
    /// The final ledger, merged from all paths of the run.
    pub ledger: Ledger,
    /// Reports of filters and sinks, each with the plan index of its node.
    pub reports: Vec<NodeReport>,
    /// Failures that ended paths early.
    pub failures: Vec<PathFailure>,
    /// Totals of the kernel programs of the paths. Worker processes do not send them to their
    /// parent.
    #[serde(skip)]
    pub programs: Vec<ProgramTotals>,
    /// Automatic changes that the paths made, with their reasons.
    pub adapted: Vec<String>,
    /// Latency of blocks; `None` if the request does not bound it.
    pub latency: Option<LatencyReport>,
    /// True if a signal or the time limit ended the run.
    pub stopped: bool,
    /// Duration of the run, in ns.
    pub elapsed_ns: u64,
}

/// Runs paths until their spaces end. Blocks the calling thread.
///
/// # Errors
///
/// Fails if the kernel refuses a thread or a descriptor; the allocation is then rolled back.
pub fn run(paths: Vec<BuiltPath>, until: StopConditions<'_>) -> sys::Result<RunOutcome> {
    let begin = sys::clock::monotonic_ns();
    let steps = paths.first().map_or_else(RollbackLog::default, |path| path.steps.clone());
    let logs: Vec<RollbackLog> = paths.iter().map(|path| path.steps.clone()).collect();
    let started = SpaceThreads::start_all(&paths, &steps);
    let SpaceThreads { starters, threads, done, results, running } = match started {
        Ok(started) => started,
        Err(error) => {
            paths.iter().for_each(|path| path.live.set_thread_starter(None));
            drop(paths);
            logs.iter().for_each(RollbackLog::roll_back);
            return Err(error);
        }
    };
    logs.iter().for_each(RollbackLog::commit);
    let mut controls = Vec::new();
    let mut kernels = Vec::new();
    let mut lives = Vec::new();
    for ((path, starter), threads) in paths.into_iter().zip(starters).zip(threads) {
        kernels.push(path.kernels);
        controls.push(Arc::clone(&path.control));
        lives.push(path.live);
        if until.watch.is_some() {
            // The first query covers the sources that exist at the start.
            path.control.request_positions();
        }
        for (space, thread) in path.spaces.into_iter().zip(threads).rev() {
            steps.announce_step(&space.name);
            thread.run_space(space);
        }
        if let Some(live) = lives.last() {
            live.set_thread_starter(Some(starter));
        }
    }
    steps.announce_step("all runs");
    let watcher = AdaptationThread::start_for(&lives);
    let changer = ChangeRepeater::start_for(&lives);
    let alarms = wait::LatencyChecks::new(until.alarm, lives.first());
    let stopped = wait::wait_for_end(&controls, until, (begin, alarms), &done, &results, &running);
    drop((watcher, changer));
    steps.announce_step("all has ended");
    lives.iter().for_each(|live| live.set_thread_starter(None));
    let mut all = stopped.results;
    all.sort_by_key(|(number, place, _)| (*number, *place));
    let mut outcome = build_outcome(all, (&kernels, &lives), stopped.was_stopped, begin);
    if let Some(live) = lives.first() {
        convert_to_plan_indices(live, &mut outcome);
        outcome.adapted = live.adaptations();
        outcome.latency = live.latency();
    }
    Ok(outcome)
}

/// Started threads, one for each space of paths that are about to run.
struct SpaceThreads {
    /// The thread starter of each path, in the order of the paths.
    starters: Vec<ThreadStarter>,
    threads: Vec<Vec<SpaceThread>>,
    done: Arc<EventFd>,
    results: mpsc::Receiver<EndedSpace>,
    running: Arc<AtomicUsize>,
}

impl SpaceThreads {
    fn start_all(paths: &[BuiltPath], steps: &RollbackLog) -> sys::Result<Self> {
        steps.announce_creation(StepResource::Descriptor, "what tells that spaces have ended")?;
        let done = Arc::new(EventFd::new()?);
        let (ended, results) = mpsc::channel();
        let running = Arc::new(AtomicUsize::new(0));
        let starter = |(number, path): (usize, &BuiltPath)| ThreadStarter {
            number,
            next: Arc::new(AtomicUsize::new(path.spaces.len())),
            control: Arc::clone(&path.control),
            ended: ended.clone(),
            done: Arc::clone(&done),
            running: Arc::clone(&running),
            near: processors::processors_for_threads(path.spaces.len()).into(),
        };
        let starters: Vec<ThreadStarter> = paths.iter().enumerate().map(starter).collect();
        let of_path = |(starter, path): (&ThreadStarter, &BuiltPath)| {
            let spaces = path.spaces.iter().enumerate();
            let thread = |(place, space): (usize, &Space)| {
                steps.announce_creation(StepResource::Thread, &space.name)?;
                starter.start(space.name.clone(), place)
            };
            spaces.map(thread).collect::<sys::Result<Vec<SpaceThread>>>()
        };
        let threads = starters.iter().zip(paths).map(of_path).collect::<sys::Result<_>>()?;
        Ok(Self { starters, threads, done, results, running })
    }
}

/// Runs paths in the calling thread, one path after the other, without ever sleeping. The spaces of
/// a path run one pass each, in turn. Intended for measurements on one core and for callers with a
/// single thread.
///
/// A filter must not emit more blocks in one call than fit in a ring. A path with a program may
/// hang, because the two halves of the program must run concurrently.
pub fn run_in_calling_thread(paths: Vec<BuiltPath>) -> RunOutcome {
    let begin = sys::clock::monotonic_ns();
    let mut ended: Vec<EndedSpace> = Vec::new();
    let mut kernels = Vec::new();
    let lives: Vec<_> = paths.iter().map(BuiltPath::live).collect();
    paths.iter().for_each(|path| path.steps.commit());
    lives.iter().for_each(|live| live.set_thread_starter(None));
    for (number, path) in paths.into_iter().enumerate() {
        kernels.push(path.kernels);
        let mut spaces: Vec<Option<Space>> = path.spaces.into_iter().map(Some).collect();
        while spaces.iter().any(Option::is_some) {
            for (place, slot) in spaces.iter_mut().enumerate() {
                if let Some(lent) = slot.take_if(|space| space.has_borrow_request()) {
                    match lent.lend() {
                        Ok(back) => *slot = Some(back),
                        Err(results) => ended.push((number, place, Some(*results))),
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
    let mut outcome = build_outcome(ended, (&kernels, &lives), false, begin);
    lives.first().into_iter().for_each(|live| convert_to_plan_indices(live, &mut outcome));
    outcome
}

/// Replaces node and edge numbers in an outcome with plan indices.
fn convert_to_plan_indices(live: &PathHandle, outcome: &mut RunOutcome) {
    live.convert_to_plan_indices(&mut outcome.ledger, &mut outcome.reports);
    live.convert_programs_to_plan_indices(&mut outcome.programs);
}

fn build_outcome(
    ended: Vec<EndedSpace>,
    (kernels, lives): (&[SharedKernelSpaces], &[PathHandle]),
    stopped: bool,
    begin: u64,
) -> RunOutcome {
    let mut outcome = RunOutcome { stopped, ..RunOutcome::default() };
    let paths = ended.iter().map(|(number, _, _)| number + 1).max().unwrap_or(0);
    let mut by_path: Vec<Vec<SpaceResults>> = (0..paths).map(|_| Vec::new()).collect();
    for (number, _, results) in ended {
        match results {
            Some(results) => by_path[number].push(results),
            None => outcome.failures.push(PathFailure::from_panicked_space(number)),
        }
    }
    let kernels = kernels.iter().map(Some).chain(std::iter::repeat(None));
    for (number, (mut results, kernels)) in by_path.into_iter().zip(kernels).enumerate() {
        let kernels = kernels.map(|all| all.lock().unwrap_or_else(PoisonError::into_inner));
        let kernels = kernels.as_ref().map_or(&[][..], |kernels| kernels.as_slice());
        outcome.programs.extend(kernels.iter().map(KernelSpace::totals));
        let inside = kernels.iter().flat_map(|kernel| kernel.final_results(&results));
        let inside: Vec<SpaceResults> = inside.collect();
        let counted = inside.iter().map(SpaceCounters::from).collect();
        if let Some(live) = lives.get(number) {
            live.store_kernel_counters(counted);
        }
        results.splice(0..0, inside);
        let programs = results::finish_programs(&results);
        outcome.ledger.add(report::final_ledger(&results));
        outcome.reports.extend(report::node_reports(&results));
        let mut failures: Vec<PathFailure> =
            results.iter_mut().filter_map(|space| space.failure.take()).collect();
        for program in programs {
            // The space of the program may have reported the same end.
            if !failures.iter().any(|failure| failure.is_same_program_exit(&program)) {
                failures.push(program);
            }
        }
        // A failure on one side of a ring appears on the other side as a ring without a reader.
        // Such a consequence is omitted if a cause is known.
        if failures.iter().any(|failure| !failure.is_consequence()) {
            failures.retain(|failure| !failure.is_consequence());
        }
        outcome.failures.extend(failures);
    }
    outcome.elapsed_ns = sys::clock::monotonic_ns().saturating_sub(begin);
    outcome
}
