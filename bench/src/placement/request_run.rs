//! Runs of a placed request in threads of this program, on the second processor, in the namespace
//! that receives the flood.

use crate::flood::{FRAMES_PER_GROUP, Flood};
use engine::adapt::extract_measurements;
use engine::build::{BuiltPath, PathOptions, RunSettings, build, build_with_options};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::path::AdaptationSettings;
use engine::run::{RunOutcome, StopConditions, run};
use pipeline::explain::learn_costs;
use pipeline::plan::{Costs, Machine, Plan};
use std::os::fd::AsFd as _;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use sys::clock;
use sys::eventfd::EventFd;
use testkit::net::wait_until;

/// Number of frames per sample, all of which fit into each ring of the requests.
const FRAMES_PER_SAMPLE: usize = 6 * FRAMES_PER_GROUP;
/// Number of frames sent for warm-up before a sample.
const WARM_UP_FRAMES: usize = 1_000;
/// Number of frames per sample that are sent while no request runs.
const UNOBSERVED_FRAMES: usize = 2 * FRAMES_PER_GROUP;
/// Processor time per [`IDLE_CHECK_INTERVAL`], in ns, below which the threads of a request are
/// idle. The interval is long enough, because even a kernel ring with a few blocks sends its
/// doorbell within a millisecond.
const IDLE_NS: u64 = 50_000;
/// Time under traffic, in ns, after which a request no longer changes its placement. The time
/// suffices for two seconds of observation and one move of filters.
const SETTLING_TIME_NS: u64 = 2_500_000_000;
/// Interval at which the threads are checked for idleness.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(6);

/// Processor times of a run of a placed request, in ns per frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PlacementSample {
    /// Processor time of sending while no request runs.
    pub(super) unobserved: f64,
    /// Processor time of sending while the request runs, including its filters in the kernel.
    pub(super) sending: f64,
    /// Processor time of the request's threads.
    pub(super) threads: f64,
}

/// Runs a plan while the flood is sent, and measures its costs. Returns `None` if the run lost
/// frames or failed.
pub(super) fn measure_sample(
    flood: &mut Flood,
    plan: &Plan,
) -> Result<Option<PlacementSample>, String> {
    let (sample, outcome) = run_under_flood(flood, plan, RunSettings::default())?;
    let whole = outcome.ledger.lost_blocks() == 0 && outcome.failures.is_empty();
    Ok(whole.then_some(sample))
}

/// Runs the plan under the flood, and measures its costs. Returns the cost table `known`, to which
/// the measured costs are added as by `explain --analyze`.
pub(super) fn analyze_costs(
    flood: &mut Flood,
    plan: &Plan,
    known: &Costs,
) -> Result<Costs, String> {
    let settings = RunSettings { timed: true, programs_timed: true, ..RunSettings::default() };
    let (_, outcome) = run_under_flood(flood, plan, settings)?;
    if let Some(failure) = outcome.failures.first() {
        return Err(failure.to_string());
    }
    let mut costs = known.clone();
    learn_costs(plan, &extract_measurements(plan, &outcome.ledger), &mut costs);
    Ok(costs)
}

/// Runs a plan under the flood for its first seconds, as `streamline run` does. Returns the plan of
/// the path after this time.
pub(super) fn plan_after_first_seconds(
    flood: &mut Flood,
    plan: &Plan,
    machine: &Machine,
) -> Result<Plan, String> {
    let Some(adapt) = AdaptationSettings::permitted_by(plan, machine) else {
        return Ok(plan.clone());
    };
    let extras = PathOptions { adaptation: Some(adapt), ..PathOptions::default() };
    let pair = Arc::clone(&flood.pair);
    let paths = pair.server.run_in_network_namespace(|| {
        build_with_options(plan, RunSettings::default(), &AttachPoints::default(), &extras)
            .map_err(|why| why.to_string())
    })?;
    let live = paths.first().map(BuiltPath::live).ok_or("it has no part")?;
    std::thread::scope(|scope| {
        let line = scope.spawn(|| run(paths, StopConditions::default()));
        let end = clock::monotonic_ns().saturating_add(SETTLING_TIME_NS);
        let mut sent = Ok(0);
        while sent.is_ok() && clock::monotonic_ns() < end {
            sent = flood.send(FRAMES_PER_GROUP);
        }
        let plan = live.plan();
        live.stop();
        let outcome = line.join().map_err(|_| "the line has failed")?;
        let outcome = outcome.map_err(|why| why.to_string())?;
        outcome.adapted.iter().for_each(|what| eprintln!("adapted: {what}"));
        sent?;
        plan.ok_or_else(|| "its plan is not known".to_owned())
    })
}

fn run_under_flood(
    flood: &mut Flood,
    plan: &Plan,
    settings: RunSettings,
) -> Result<(PlacementSample, RunOutcome), String> {
    let unobserved = flood.measure_median_group_ns(UNOBSERVED_FRAMES)?;
    let stop = EventFd::new().map_err(|why| why.to_string())?;
    let pair = Arc::clone(&flood.pair);
    let (ready, begun) = mpsc::channel();
    std::thread::scope(|scope| {
        let line = scope.spawn(|| {
            pair.server.run_in_network_namespace(|| run_until_stopped(plan, settings, &stop, ready))
        });
        // The channel closes if the plan cannot be built.
        let sent = begun.recv().map_err(|_| "it does not begin".to_owned()).and_then(|()| {
            flood.send(WARM_UP_FRAMES)?;
            let before = wait_until_idle();
            let sending = flood.measure_median_group_ns(FRAMES_PER_SAMPLE)?;
            // Both readings include the time of this thread, which may have grown in between.
            let threads =
                wait_until_idle().saturating_sub(before) as f64 / FRAMES_PER_SAMPLE as f64;
            Ok(PlacementSample { unobserved, sending, threads })
        });
        stop.notify();
        let outcome = line.join().map_err(|_| "the line has failed".to_owned())??;
        Ok((sent?, outcome))
    })
}

/// Builds a plan, signals `ready`, and runs the plan until `stop` is readable.
fn run_until_stopped(
    plan: &Plan,
    settings: RunSettings,
    stop: &EventFd,
    ready: mpsc::Sender<()>,
) -> Result<RunOutcome, String> {
    // On a machine with one processor, the threads share it with the sender.
    let _ = sys::process::pin_to_processor(1);
    let paths = build(plan, settings).map_err(|why| why.to_string())?;
    // From now on, the sources receive frames.
    let _ = ready.send(());
    let until = StopConditions { stop_descriptor: Some(stop.as_fd()), ..StopConditions::default() };
    run(paths, until).map_err(|why| why.to_string())
}

/// Waits until all other threads of this process are idle. Returns their processor time in ns.
fn wait_until_idle() -> u64 {
    // The time of this thread advances between the two readings.
    let others = || {
        let own = clock::thread_cpu_ns();
        clock::process_cpu_ns().saturating_sub(own)
    };
    let mut now = others();
    wait_until("all frames are looked at", || {
        // Without descriptors, this call only waits.
        sys::poll::wait_until_readable(&[], Some(IDLE_CHECK_INTERVAL));
        let before = std::mem::replace(&mut now, others());
        now.saturating_sub(before) < IDLE_NS
    });
    now
}
