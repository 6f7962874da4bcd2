//! A placement while it runs: in threads of this program, on the second processor, in the name
//! space where the flood comes in.

use crate::flood::{BUNCH, Flood};
use engine::adapt::seen;
use engine::build::{Settings, build};
use engine::run::{Outcome, Until, run};
use pipeline::explain::learn;
use pipeline::plan::{Costs, Plan};
use std::os::fd::AsFd as _;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use sys::clock;
use sys::eventfd::EventFd;
use testkit::net::until;

/// Frames of a sample, all of which any ring here holds; and those that are sent before,
/// unmeasured.
const FRAMES: usize = 6 * BUNCH;
const BEFORE: usize = 1_000;
/// Frames with nobody there, in the same sample.
const ALONE: usize = 2 * BUNCH;
/// Threads that use less than this in [`WINDOW`] have nothing left to do. A kernel ring that has a
/// few blocks rings its bell within a millisecond.
const IDLE_NS: u64 = 50_000;
const WINDOW: Duration = Duration::from_millis(6);

/// The processor time of a frame, in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Sending with nobody there.
    pub(super) alone: f64,
    /// Sending while the line runs.
    pub(super) sending: f64,
    /// The threads of the line.
    pub(super) threads: f64,
}

/// Runs a plan under the flood. Answers none if it lost frames.
pub(super) fn sample(flood: &mut Flood, plan: &Plan) -> Result<Option<Sample>, String> {
    let (sample, outcome) = under(flood, plan, Settings::default())?;
    let whole = outcome.ledger.lost() == 0 && outcome.failures.is_empty();
    Ok(whole.then_some(sample))
}

/// Returns the known costs after this plan was analyzed under the flood, as `explain --analyze`
/// does.
pub(super) fn analyzed(flood: &mut Flood, plan: &Plan, known: &Costs) -> Result<Costs, String> {
    let settings = Settings { timed: true, programs_timed: true, ..Settings::default() };
    let (_, outcome) = under(flood, plan, settings)?;
    if let Some(failure) = outcome.failures.first() {
        return Err(failure.to_string());
    }
    let mut costs = known.clone();
    learn(plan, &seen(plan, &outcome.ledger), &mut costs);
    Ok(costs)
}

fn under(flood: &mut Flood, plan: &Plan, settings: Settings) -> Result<(Sample, Outcome), String> {
    let alone = flood.steady(ALONE)?;
    let stop = EventFd::new().map_err(|why| why.to_string())?;
    let pair = Arc::clone(&flood.pair);
    let (ready, begun) = mpsc::channel();
    std::thread::scope(|scope| {
        let line = scope.spawn(|| pair.server.enter(|| live(plan, settings, &stop, ready)));
        // Nobody says so where it cannot be built.
        let sent = begun.recv().map_err(|_| "it does not begin".to_owned()).and_then(|()| {
            flood.send(BEFORE)?;
            let before = when_idle();
            let sending = flood.steady(FRAMES)?;
            // Between the two looks of each this thread may have gone on for longer before.
            let threads = when_idle().saturating_sub(before) as f64 / FRAMES as f64;
            Ok(Sample { alone, sending, threads })
        });
        stop.notify();
        let outcome = line.join().map_err(|_| "the line has failed".to_owned())??;
        Ok((sent?, outcome))
    })
}

/// Builds and runs a plan until it is told to stop.
fn live(
    plan: &Plan,
    settings: Settings,
    stop: &EventFd,
    ready: mpsc::Sender<()>,
) -> Result<Outcome, String> {
    // Where there is only one, it is shared.
    let _ = sys::process::pin_to(1);
    let paths = build(plan, settings).map_err(|why| why.to_string())?;
    // Sources see frames from here on.
    let _ = ready.send(());
    let until = Until { readable: Some(stop.as_fd()), ..Until::default() };
    run(paths, until).map_err(|why| why.to_string())
}

/// The processor time of all other threads when they have nothing left to do.
fn when_idle() -> u64 {
    // This thread's own time goes on between the two looks.
    let others = || {
        let own = clock::thread();
        clock::process().saturating_sub(own)
    };
    let mut now = others();
    until("all frames are looked at", || {
        // Nothing can be read from no descriptor: this waits, and leaves the processor to others.
        sys::poll::readable(&[], Some(WINDOW));
        let before = std::mem::replace(&mut now, others());
        now.saturating_sub(before) < IDLE_NS
    });
    now
}
