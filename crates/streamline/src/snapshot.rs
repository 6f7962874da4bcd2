//! Collection of the counters of running paths into an intermediate outcome.

use engine::live::PathHandle;
use engine::run::RunOutcome;
use runtime::ledger::Ledger;
use std::time::Duration;

/// Collects the counters of running paths. Blocks for up to `limit` per path.
pub(crate) fn collect_outcome(lives: &[PathHandle], limit: Duration) -> RunOutcome {
    let (mut ledger, mut reports) = (Ledger::default(), Vec::new());
    for live in lives {
        let snapshot = live.take_snapshot(limit);
        ledger.add(snapshot.ledger);
        reports.extend(snapshot.reports);
    }
    let latency = lives.first().and_then(PathHandle::latency);
    RunOutcome { ledger, reports, latency, ..RunOutcome::default() }
}
