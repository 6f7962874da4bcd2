//! Collection of the counters of running paths into an intermediate outcome.

use engine::live::Live;
use engine::run::Outcome;
use runtime::ledger::Ledger;
use std::time::Duration;

/// Collects the counters of running paths. Blocks for up to `limit` per path.
pub(crate) fn snapshot(lives: &[Live], limit: Duration) -> Outcome {
    let (mut ledger, mut reports) = (Ledger::default(), Vec::new());
    for live in lives {
        let snapshot = live.counters(limit);
        ledger.add(snapshot.ledger);
        reports.extend(snapshot.reports);
    }
    let latency = lives.first().and_then(Live::latency);
    Outcome { ledger, reports, latency, ..Outcome::default() }
}
