//! A request that runs beside the thread that opened it.

use crate::error::OpenError;
use crate::options::Options;
use crate::ready::{Body, Finished, Ready, Results};
use crate::workers::Panel;
use engine::lateness;
use engine::live::Live;
use engine::run::{Alarm, Outcome, Until};
use pipeline::plan::Plan;
use runtime::latency::Breach;
use runtime::ledger::Ledger;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use sys::eventfd::EventFd;

/// A request that runs. Dropping it stops the run and waits for its end.
#[derive(Debug)]
pub struct Running {
    text: String,
    plan: Plan,
    lives: Vec<Live>,
    panel: Option<Arc<Panel>>,
    number: Option<u32>,
    begin: u64,
    stop: Arc<EventFd>,
    /// Can be read once the run has ended.
    ended: Arc<EventFd>,
    thread: Option<JoinHandle<Result<Finished, OpenError>>>,
}

/// The time that the spaces of a path have to answer what they have counted.
const COUNTED: Duration = Duration::from_millis(200);

impl Ready {
    /// Runs it in a thread of its own.
    pub fn start(self, options: &Options) -> Result<Running, OpenError> {
        let stop = Arc::new(EventFd::new()?);
        let ended = Arc::new(EventFd::new()?);
        let panel = match &self.body {
            Body::Here(_) => None,
            Body::Workers(workers) => workers.0.panel(),
        };
        let (text, plan) = (self.text.clone(), self.plan.clone());
        let (lives, number) = (self.lives(), self.number());
        let elapsed = options.time.map(|t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
        let (stops, ends) = (Arc::clone(&stop), Arc::clone(&ended));
        let body = move || {
            let notices = self.notices.clone();
            let late = |breach: &Breach| notices.warn(&lateness::describe(breach));
            let alarm = Some(Alarm(&late));
            let readable = Some(stops.as_fd());
            let run = self.run(Until { readable, elapsed, alarm, ..Until::default() });
            ends.notify();
            run
        };
        let begin = sys::clock::monotonic();
        let thread = std::thread::Builder::new().name("streamline".to_owned()).spawn(body);
        let thread = Some(thread.map_err(|error| {
            sys::Error::new("clone", "a thread", error.raw_os_error().unwrap_or(0))
        })?);
        Ok(Running { text, plan, lives, panel, number, begin, stop, ended, thread })
    }
}

impl Running {
    /// Lets the sources end: what is under way drains.
    pub fn stop(&self) {
        self.stop.notify();
    }

    /// The number by which the daemon knows it.
    #[must_use]
    pub const fn number(&self) -> Option<u32> {
        self.number
    }

    /// Its connected parts, for taps and orders; none of several workers.
    #[must_use]
    pub fn live(&self) -> &[Live] {
        &self.lives
    }

    /// Becomes readable when the run has ended.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Returns the results so far. Waits up to 0.2 s for the answers of its spaces.
    #[must_use]
    pub fn report(&self) -> Results {
        let mut outcome = match &self.panel {
            Some(panel) => panel.outcome(),
            None => self.counted(),
        };
        outcome.elapsed_ns = sys::clock::monotonic().saturating_sub(self.begin);
        let live = self.lives.first();
        let last = live.and_then(|live| live.text().zip(live.plan()));
        let (text, plan) = last.unwrap_or_else(|| (self.text.clone(), self.plan.clone()));
        let crashes = Vec::new();
        Results { text, plan, outcome, workers: Vec::new(), crashes, recorded: None }
    }

    fn counted(&self) -> Outcome {
        let (mut ledger, mut reports) = (Ledger::default(), Vec::new());
        for live in &self.lives {
            let snapshot = live.counters(COUNTED);
            ledger.add(snapshot.ledger);
            reports.extend(snapshot.reports);
        }
        let latency = self.lives.first().and_then(Live::latency);
        Outcome { ledger, reports, latency, ..Outcome::default() }
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Result<Results, OpenError> {
        let finished = self
            .join()
            .unwrap_or_else(|| Err(OpenError::Unfit("the run was waited for before".to_owned())))?;
        let status = u8::from(finished.results.has_failed());
        let sentence = finished.results.sentence();
        Ok(finished.end(status, sentence))
    }

    fn join(&mut self) -> Option<Result<Finished, OpenError>> {
        let joined = self.thread.take()?.join();
        Some(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.notify();
        if let Some(thread) = self.thread.take() {
            // Nobody asks how it ended.
            let _ = thread.join();
        }
    }
}
