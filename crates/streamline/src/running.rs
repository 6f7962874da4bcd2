//! A request that runs on its own thread.

use crate::error::OpenError;
use crate::observer::Observer;
use crate::options::Options;
use crate::ready::{FinishedRun, ReadyRequest, RunResults};
use engine::change::{ChangeError, SwitchReport};
use engine::latency_breach;
use engine::live::PathHandle;
use engine::run::{LatencyAlarm, StopConditions};
use pipeline::edit::Edit;
use runtime::latency::LatencyBreach;
use std::cell::LazyCell;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use sys::eventfd::EventFd;

/// A running request. Dropping this value stops the run and blocks until it has ended.
#[derive(Debug)]
pub struct Running {
    observer: Observer,
    number: Option<u32>,
    stop: Arc<EventFd>,
    /// Doorbell that becomes readable when the run has ended.
    ended: Arc<EventFd>,
    thread: Option<JoinHandle<Result<FinishedRun, OpenError>>>,
}

/// Maximum time to wait until the spaces of a path reach a batch boundary.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

impl ReadyRequest {
    /// Runs the request on its own thread, and returns at once.
    pub fn start(self, options: &Options) -> Result<Running, OpenError> {
        let stop = Arc::new(EventFd::new()?);
        let ended = Arc::new(EventFd::new()?);
        let (observer, number) = (self.observer(), self.number());
        let elapsed = options.time.map(|t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
        let (stops, ends) = (Arc::clone(&stop), Arc::clone(&ended));
        let body = move || {
            let notices = self.notices.clone();
            let late = |breach: &LatencyBreach| {
                notices.raise_warning(&latency_breach::describe_breach(breach))
            };
            let alarm = Some(LatencyAlarm(&late));
            let readable = Some(stops.as_fd());
            let run = self.run(StopConditions {
                stop_descriptor: readable,
                time_limit_ns: elapsed,
                alarm,
                ..StopConditions::default()
            });
            ends.notify();
            run
        };
        let thread = std::thread::Builder::new().name("streamline".to_owned()).spawn(body);
        let thread = Some(thread.map_err(|error| {
            sys::Error::new("clone", "a thread", error.raw_os_error().unwrap_or(0))
        })?);
        Ok(Running { observer, number, stop, ended, thread })
    }
}

impl Running {
    /// Ends the sources. Blocks that were already read are still processed. Does not wait.
    pub fn stop(&self) {
        self.stop.notify();
    }

    /// Returns the path's number in the daemon's registry, or `None` if it is not registered.
    #[must_use]
    pub const fn number(&self) -> Option<u32> {
        self.number
    }

    /// Returns handles to the connected components of the request, for taps and commands; empty if
    /// workers run it.
    #[must_use]
    pub fn live_handles(&self) -> &[PathHandle] {
        &self.observer.lives
    }

    /// Applies an edit to the request while it runs, in all connected spaces or in none. Blocks
    /// until the spaces have stopped between two batches, for at most 10 s.
    ///
    /// # Errors
    ///
    /// Fails with the reason if the edit does not match the request, if the new request has
    /// mistakes or cannot be planned or built, or if a space does not stop in time. The request
    /// then continues unchanged. Edits are refused for a request that has several connected
    /// components, or that runs in worker processes.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use streamline::Edit;
    ///
    /// let options = streamline::Options::without_daemon();
    /// let running = streamline::open("generate rate=1000 | count", options)?;
    /// let switched = running.change(&Edit::parse(&["insert", "sample 2", "before", "count"])?)?;
    /// assert_eq!((switched.lost, switched.duplicated, switched.reordered), (0, 0, 0));
    /// assert_eq!(switched.text, "generate rate=1000 | sample 2 | count");
    /// running.stop();
    /// running.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn change(&self, edit: &Edit) -> Result<SwitchReport, ChangeError> {
        let [live] = self.observer.lives.as_slice() else {
            let why = match self.observer.lives.len() {
                0 => "worker processes run it: change it through the daemon",
                _ => "it has several unconnected parts",
            };
            return Err(ChangeError::Refused(why.to_owned()));
        };
        let machine = LazyCell::new(engine::machine::inspect_machine);
        engine::change::change_with_machine(live, edit, &machine, CHANGE_TIMEOUT)
    }

    /// Returns a descriptor that becomes readable when the run has ended.
    #[must_use]
    pub fn run_end_descriptor(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Returns the results so far. Blocks for up to 200 ms per connected component until the spaces
    /// report their counters.
    ///
    /// ```
    /// # fn main() -> Result<(), streamline::OpenError> {
    /// let options = streamline::Options::without_daemon();
    /// let running = streamline::open("generate rate=1000 | count", options)?;
    /// let report = running.results_so_far();
    /// assert_eq!(report.report().lost_blocks(), 0);
    /// running.stop();
    /// assert!(!running.wait()?.has_failed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn results_so_far(&self) -> RunResults {
        self.observer.results_so_far()
    }

    /// Blocks until the run has ended and returns its results.
    pub fn wait(mut self) -> Result<RunResults, OpenError> {
        let finished = self
            .join()
            .unwrap_or_else(|| Err(OpenError::Unfit("the run was waited for before".to_owned())))?;
        let status = u8::from(finished.results.has_failed());
        let sentence = finished.results.sentence();
        Ok(finished.report_and_unregister(status, sentence))
    }

    fn join(&mut self) -> Option<Result<FinishedRun, OpenError>> {
        let joined = self.thread.take()?.join();
        Some(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.notify();
        if let Some(thread) = self.thread.take() {
            // A dropped handle discards the results.
            let _ = thread.join();
        }
    }
}
