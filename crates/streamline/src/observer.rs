//! A handle that reads the results of a request while it runs, from any thread.

use crate::ready::{Executor, ReadyRequest, RunResults};
use crate::snapshot::collect_outcome;
use crate::workers::GroupControl;
use engine::live::PathHandle;
use pipeline::plan::Plan;
use std::sync::Arc;
use std::time::Duration;

/// A handle that reads the results of a request while it runs. It stays valid after the run ends,
/// and then returns the last counters.
#[derive(Clone, Debug)]
pub struct Observer {
    text: String,
    plan: Plan,
    pub(crate) lives: Vec<PathHandle>,
    control: Option<Arc<GroupControl>>,
    /// Monotonic time, in ns, at which the handle was created.
    created_ns: u64,
}

/// Maximum time to wait for the counters of a path.
const COUNTERS_TIMEOUT: Duration = Duration::from_millis(200);

impl ReadyRequest {
    /// Returns a handle that reads the results while the request runs. In these results, the
    /// elapsed time is measured from this call.
    #[must_use]
    pub fn observer(&self) -> Observer {
        let control = match &self.executor {
            Executor::Local(_) => None,
            Executor::Workers(workers) => workers.0.control(),
        };
        let (text, plan) = (self.text.clone(), self.plan.clone());
        let created_ns = sys::clock::monotonic_ns();
        Observer { text, plan, lives: self.live_handles(), control, created_ns }
    }
}

impl Observer {
    /// Returns the results so far. Blocks for up to 200 ms per connected component until the spaces
    /// report their counters.
    #[must_use]
    pub fn results_so_far(&self) -> RunResults {
        let mut outcome = match &self.control {
            Some(control) => control.outcome(),
            None => collect_outcome(&self.lives, COUNTERS_TIMEOUT),
        };
        outcome.elapsed_ns = sys::clock::monotonic_ns().saturating_sub(self.created_ns);
        let live = self.lives.first();
        let last = live.and_then(|live| live.request_text().zip(live.plan()));
        let (text, plan) = last.unwrap_or_else(|| (self.text.clone(), self.plan.clone()));
        let crashes = Vec::new();
        RunResults { text, plan, outcome, workers: Vec::new(), crashes, recorded: None }
    }
}
