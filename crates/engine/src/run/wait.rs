//! The wait for the end of a run: limits, signals, failures, and periodic checks and reports.

use super::{FailureReporter, LatencyAlarm, Progress, ProgressWatch, StopConditions};
use crate::live::PathHandle;
use crate::path::starter::EndedSpace;
use endpoint::process::Process;
use runtime::control::PathControl;
use runtime::failure::PathFailure;
use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use sys::eventfd::EventFd;

/// Interval between two checks for exited programs, in ns. The checks concern programs whose spaces
/// have all ended.
const PROGRAM_CHECK_INTERVAL_NS: u64 = 100_000_000;
/// Time between the failure of a path and its report, in ns. If the run ends within this time, its
/// outcome contains the failure, so that no report is needed.
const FAILURE_REPORT_DELAY_NS: u64 = 200_000_000;

/// The result of waiting for the end of a run: the ended spaces of all paths.
pub(super) struct WaitResult {
    pub(super) results: Vec<EndedSpace>,
    /// True if a signal or the time limit ended the run.
    pub(super) was_stopped: bool,
}

/// The spaces that have ended, and the failures to report while other paths continue.
#[derive(Default)]
struct EndedSpaces<'f> {
    results: Vec<EndedSpace>,
    /// The callback for failures. `None` if the request has only one path or nobody listens; no
    /// programs and failures are then recorded.
    reporter: Option<FailureReporter<'f>>,
    /// Programs that have not exited yet, each with the index of its path and the name of its node.
    programs: Vec<(usize, String, Arc<Process>)>,
    /// The first failure of each failed path, by the index of the path.
    failures: BTreeMap<usize, PendingFailure>,
}

/// A failure that is reported if the run has not ended soon after it.
struct PendingFailure {
    failure: PathFailure,
    /// Monotonic time at which the failure is reported, in ns; `None` once it has been reported.
    due_ns: Option<u64>,
}

impl EndedSpaces<'_> {
    fn add(&mut self, space: EndedSpace) {
        let (path, _, results) = &space;
        match results {
            _ if self.reporter.is_none() => {}
            None => self.add_failure(*path, PathFailure::from_panicked_space(*path)),
            Some(results) => {
                let programs = results.programs();
                let named =
                    |(name, program): (&str, _)| (*path, name.to_owned(), Arc::clone(program));
                self.programs.extend(programs.map(named));
                let failure = results.failure.clone();
                failure.into_iter().for_each(|failure| self.add_failure(*path, failure));
            }
        }
        self.results.push(space);
    }

    /// Records the failure of a path, unless another failure is its cause or has been recorded.
    fn add_failure(&mut self, path: usize, failure: PathFailure) {
        if !failure.is_consequence() && !failure.is_quiet() {
            let due_ns = Some(sys::clock::monotonic_ns() + FAILURE_REPORT_DELAY_NS);
            self.failures.entry(path).or_insert(PendingFailure { failure, due_ns });
        }
    }

    /// Forgets the programs that have exited, and records their failures.
    fn check_programs(&mut self) {
        for (path, name, program) in std::mem::take(&mut self.programs) {
            match program.try_wait() {
                None => self.programs.push((path, name, program)),
                Some(Ok(())) => {}
                Some(Err(bad)) => self.add_failure(path, PathFailure::from_program(name, bad)),
            }
        }
    }

    /// Reports the failures that are due.
    fn report_failures(&mut self, now: u64) {
        let Some(FailureReporter(report)) = self.reporter else { return };
        for pending in self.failures.values_mut() {
            if pending.due_ns.take_if(|due| now >= *due).is_some() {
                report(&pending.failure);
            }
        }
    }

    /// Returns the monotonic time of the next check or report, in ns; `None` if there is none.
    fn next_due_ns(&self, now: u64) -> Option<u64> {
        let exits = (!self.programs.is_empty()).then_some(now + PROGRAM_CHECK_INTERVAL_NS);
        let reports = self.failures.values().filter_map(|pending| pending.due_ns);
        exits.into_iter().chain(reports).min()
    }
}

/// Waits until all spaces of a run have ended. Stops all paths at the first signal or at the time
/// limit. Reports the failure of a path at once if other paths continue.
pub(super) fn wait_for_end(
    controls: &[Arc<PathControl>],
    until: StopConditions<'_>,
    (begin, mut alarms): (u64, Option<LatencyChecks<'_>>),
    done: &EventFd,
    ended: &mpsc::Receiver<EndedSpace>,
    running: &AtomicUsize,
) -> WaitResult {
    let reporter = until.failure.filter(|_| controls.len() > 1);
    let mut spaces = EndedSpaces { reporter, ..EndedSpaces::default() };
    let mut was_stopped = false;
    let mut rounds = until.watch.map(|watch| ProgressReports::new(watch, begin));
    loop {
        done.clear();
        ended.try_iter().for_each(|space| spaces.add(space));
        if spaces.results.len() >= running.load(Ordering::Relaxed) {
            alarms.iter_mut().for_each(|alarms| alarms.check(sys::clock::monotonic_ns()));
            return WaitResult { results: spaces.results, was_stopped };
        }
        spaces.check_programs();
        let end = until.time_limit_ns.filter(|_| !was_stopped).map(|ns| begin.saturating_add(ns));
        let due = rounds.as_ref().map(ProgressReports::next_due_ns);
        let mut descriptors = vec![done.as_fd()];
        if !was_stopped {
            descriptors.extend(until.stop_descriptor);
        }
        let now = sys::clock::monotonic_ns();
        let look = alarms.as_ref().map(|alarms| alarms.next);
        let failures = spaces.next_due_ns(now);
        let next = end.into_iter().chain(due).chain(look).chain(failures).min();
        let limit = next.map(|time| Duration::from_nanos(time.saturating_sub(now)));
        let ready = sys::poll::wait_until_readable(&descriptors, limit);
        let now = sys::clock::monotonic_ns();
        spaces.report_failures(now);
        let signalled = ready.get(1) == Some(&true);
        if !was_stopped && (signalled || end.is_some_and(|end| now >= end)) {
            was_stopped = true;
            controls.iter().for_each(|control| control.stop());
        }
        if let Some(rounds) = rounds.as_mut().filter(|rounds| now >= rounds.next_due_ns()) {
            rounds.advance(controls, now, was_stopped);
        }
        if let Some(alarms) = alarms.as_mut().filter(|alarms| now >= alarms.next) {
            alarms.check(now);
        }
    }
}

/// Interval between two checks for blocks that exceed the latency bound, in ns.
const LATENCY_CHECK_INTERVAL_NS: u64 = 1_000_000_000;

/// Periodic checks for late blocks, and the alarm that reports them.
pub(super) struct LatencyChecks<'f> {
    alarm: LatencyAlarm<'f>,
    live: &'f PathHandle,
    /// Monotonic time of the next check for late blocks, in ns.
    next: u64,
    /// Monotonic time in ns of the next report of a breach. Breaches before this time are not
    /// reported.
    quiet_until_ns: u64,
}

impl<'f> LatencyChecks<'f> {
    pub(super) fn new(
        alarm: Option<LatencyAlarm<'f>>,
        live: Option<&'f PathHandle>,
    ) -> Option<Self> {
        let (alarm, live) = alarm.zip(live)?;
        live.latency()?;
        let next = sys::clock::monotonic_ns().saturating_add(LATENCY_CHECK_INTERVAL_NS);
        Some(Self { alarm, live, next, quiet_until_ns: 0 })
    }

    fn check(&mut self, now: u64) {
        self.next = now.saturating_add(LATENCY_CHECK_INTERVAL_NS);
        if now < self.quiet_until_ns {
            return;
        }
        if let Some(breach) = self.live.take_worst_breach() {
            self.quiet_until_ns = self.next;
            (self.alarm.0)(&breach);
        }
    }
}

/// Time that sources have to respond to a query for progress, in ns. For sources that have not
/// responded by then, the report contains their previous totals. A space checks for queries after
/// every batch; a sleeping space wakes up within 50 µs if a processor is free.
const ANSWER_TIMEOUT_NS: u64 = 50_000_000;

/// Periodic progress reports. Each round first queries the sources, and later reports their
/// responses.
struct ProgressReports<'f> {
    watch: ProgressWatch<'f>,
    begin: u64,
    /// Monotonic time of the next progress report, in ns.
    next: u64,
    /// True once the sources have been queried for the next report.
    has_queried: bool,
}

impl<'f> ProgressReports<'f> {
    const fn new(watch: ProgressWatch<'f>, begin: u64) -> Self {
        Self { watch, begin, next: begin.saturating_add(watch.interval_ns), has_queried: false }
    }

    /// Returns the monotonic time of the next query or report, in ns.
    const fn next_due_ns(&self) -> u64 {
        if self.has_queried { self.next } else { self.next.saturating_sub(ANSWER_TIMEOUT_NS) }
    }

    /// Performs the step that is due: queries the sources for the next report or, if they have been
    /// queried, calls the callback with their responses. `stopped` is true if the paths were
    /// stopped.
    fn advance(&mut self, controls: &[Arc<PathControl>], now: u64, stopped: bool) {
        self.has_queried = !self.has_queried;
        if self.has_queried {
            controls.iter().for_each(|control| control.request_positions());
            return;
        }
        let mut progress = Progress { stopped, ..Progress::default() };
        progress.elapsed_ns = now.saturating_sub(self.begin);
        for answer in controls.iter().flat_map(|control| control.positions()) {
            if !answer.is_fresh {
                progress.unresponsive.push(answer.name.clone());
            }
            progress.sources.push((answer.name, answer.counters));
        }
        (self.watch.report)(&progress);
        // A late report must not cause further reports in quick succession.
        let soonest = now.saturating_add(self.watch.interval_ns / 2);
        self.next = self.next.saturating_add(self.watch.interval_ns).max(soonest);
    }
}
