//! Aggregation of the counters of a request's worker processes into one report. [Par §V-B];
//! CONTRACT 19
//!
//! Input: the outcome of each worker process, or the last report of a killed process. Output: one
//! outcome. Each worker reads all blocks of its sources and skips the blocks of other workers'
//! shares, so only each worker's own share of a source is added up ([`worker_share`]). Losses
//! before the division of blocks among workers are reported exactly, as bounds, or as unknown
//! ([`losses`]). Blocks that a killed worker did not report are computed from the counters of the
//! other workers, which skipped these blocks; they count as dropped (`engine ended`).

mod losses;
mod worker_share;

pub use worker_share::has_dividing_filters;

use crate::run::RunOutcome;
use endpoint::{DropReason, SourceCounters};
use filter::Amount;
use losses::{aggregate_losses, set_source_losses};
use pipeline::Graph;
use runtime::ledger::{Ledger, NodeEntry};
use runtime::report::{NodeReport, merge_reports_by_node};
use worker_share::{DividedSource, WorkerCounters, divided_sources};

/// The drop reason for blocks that a killed worker process should have processed.
pub const WORKER_ENDED_REASON: DropReason = DropReason::Named("engine ended");

/// The report of one worker process: its last outcome, and how it started and ended.
#[derive(Debug, Default)]
pub struct WorkerReport {
    /// The final outcome of the worker, or its last report if it was killed.
    pub outcome: RunOutcome,
    /// True if the worker was killed and its last report is therefore incomplete.
    pub killed: bool,
    /// True if this worker's sources had received no block by the time all workers were ready.
    pub started_before_traffic: bool,
}

/// Aggregates the reports of all worker processes that run `graph`.
#[must_use]
pub fn merge_reports(graph: &Graph, mut engines: Vec<WorkerReport>) -> RunOutcome {
    engines
        .iter_mut()
        .filter(|engine| engine.killed)
        .for_each(|engine| balance_killed_ledger(&mut engine.outcome));
    for shared in divided_sources(graph) {
        reduce_to_shares(graph, &shared, &mut engines);
    }
    let mut merged = RunOutcome::default();
    let mut reports: Vec<NodeReport> = Vec::new();
    for engine in engines {
        let RunOutcome {
            ledger, reports: more_reports, failures, programs, adapted, latency, ..
        } = engine.outcome;
        merge_ledgers(&mut merged.ledger, ledger);
        reports.extend(more_reports);
        merged.failures.extend(failures);
        if let Some(latency) = latency {
            merged.latency.get_or_insert_default().add(latency);
        }
        merged.programs.extend(programs);
        merged.adapted.extend(adapted);
        merged.stopped |= engine.outcome.stopped;
        merged.elapsed_ns = merged.elapsed_ns.max(engine.outcome.elapsed_ns);
    }
    merged.reports = merge_reports_by_node(reports.into_iter());
    merged
}

/// Reduces the counters of each worker process to the worker's own share of one source. Stores the
/// losses of the source, computed from all workers, in the first worker that has counters for the
/// source.
fn reduce_to_shares(graph: &Graph, shared: &DividedSource, engines: &mut [WorkerReport]) {
    let leave = |engine: &mut WorkerReport| match engine.killed {
        true => shared.reduce_killed_worker(graph, &mut engine.outcome.ledger),
        false => shared.reduce_to_share(&mut engine.outcome.ledger),
    };
    let views: Vec<WorkerCounters> = engines.iter_mut().map(leave).collect();
    let stopped = engines.iter().any(|engine| engine.outcome.stopped);
    let heir = engines.iter().position(|engine| engine.killed);
    let alive = views.iter().zip(engines.iter()).filter(|(_, engine)| !engine.killed);
    let alive: Vec<&WorkerCounters> = alive.map(|(view, _)| view).collect();
    if let Some(heir) = heir {
        let missing = unreported_share(&views, &alive, stopped);
        shared.add_unreported_share(&mut engines[heir].outcome.ledger, missing);
    }
    let quiet = heir.is_none() && engines.iter().all(|engine| engine.started_before_traffic);
    let mut losses_once = Some(aggregate_losses(&alive, (quiet, engines.len() == 1)));
    for engine in engines {
        let Some(source) = shared.source_entry(&mut engine.outcome.ledger) else { continue };
        set_source_losses(source, losses_once.take().unwrap_or_default());
    }
}

/// Computes the number of blocks in the shares of killed worker processes that these processes did
/// not report: the blocks that one surviving worker received or lost, minus the reported shares of
/// all workers and the losses of all survivors. Survivors may have received or lost different
/// numbers of blocks; the smallest number is used if the run was `stopped`, otherwise the largest.
/// Returns 0 if no worker survived.
fn unreported_share(all: &[WorkerCounters], alive: &[&WorkerCounters], stopped: bool) -> Amount {
    let own: Amount = all.iter().map(|view| view.own).sum();
    let saw = |view: &&&WorkerCounters| view.total_arrived().unwrap_or(view.received.blocks);
    let saw = match stopped {
        true => alive.iter().min_by_key(saw),
        false => alive.iter().max_by_key(saw),
    };
    let Some(saw) = saw else { return Amount::default() };
    let lost: u64 = alive.iter().filter_map(|view| view.total_lost()).sum();
    let all =
        Amount { blocks: saw.received.blocks + saw.total_lost().unwrap_or(0), ..saw.received };
    all.saturating_sub(Amount { blocks: own.blocks + lost, ..own })
}

/// Balances the ledger of a killed worker process. Blocks that were in flight or held at its last
/// report count as dropped, and counters that its spaces read at different moments are reconciled.
pub fn balance_killed_ledger(outcome: &mut RunOutcome) {
    for edge in &mut outcome.ledger.edges {
        let under_way = std::mem::take(&mut edge.resident);
        if under_way.blocks > 0 {
            edge.dropped.push((WORKER_ENDED_REASON, under_way));
        }
        edge.put = edge.dropped.iter().fold(edge.taken, |sum, (_, amount)| sum + *amount);
    }
    for row in &mut outcome.ledger.filters {
        let held = std::mem::take(&mut row.held);
        let (came, became) = row.balance_sides();
        let rest = Amount { blocks: came.saturating_sub(became), bytes: held.bytes };
        if rest.blocks > 0 {
            row.dropped.push((WORKER_ENDED_REASON, rest));
        }
        row.taken.blocks += became.saturating_sub(came);
    }
}

/// Adds the ledger of one worker process to the merged ledger of the request.
fn merge_ledgers(merged: &mut Ledger, other: Ledger) {
    let mut view: Vec<&str> = Vec::new();
    let mut places = Vec::new();
    for (name, _) in &other.sources {
        places.push(view.iter().filter(|known| *known == name).count());
        view.push(name);
    }
    for ((name, source), nth) in other.sources.iter().zip(places) {
        let mut known = merged.sources.iter_mut().filter(|(known, _)| known == name);
        match known.nth(nth) {
            Some((_, known)) => add_source_counters(known, source),
            None => merged.sources.push((name.clone(), source.clone())),
        }
    }
    for row in other.filters {
        let same = |known: &&mut NodeEntry| known.planned == row.planned && known.name == row.name;
        match merged.filters.iter_mut().find(same) {
            Some(known) => known.merge(row),
            None => merged.filters.push(row),
        }
    }
    for edge in other.edges {
        merged.add_edge(edge);
    }
    for row in &mut merged.filters {
        row.dropped = sum_by_name(&row.dropped);
    }
    for edge in &mut merged.edges {
        edge.dropped = sum_by_name(&edge.dropped);
    }
}

fn add_source_counters(to: &mut SourceCounters, more: &SourceCounters) {
    to.given += more.given;
    to.observed = to.observed.zip(more.observed).map(|(one, other)| one + other);
    for (place, blocks) in &more.dropped {
        match to.dropped.iter_mut().find(|(known, _)| known == place) {
            Some((_, known)) => *known = known.zip(*blocks).map(|(one, other)| one + other),
            None => to.dropped.push((*place, *blocks)),
        }
    }
    to.warns |= more.warns;
    if to.remark.is_none() {
        to.remark.clone_from(&more.remark);
    }
}

/// Sums amounts that have the same name. Returns one sum for each name, in the order of first
/// occurrence.
fn sum_by_name<N: Clone + PartialEq>(all: &[(N, Amount)]) -> Vec<(N, Amount)> {
    let mut sums: Vec<(N, Amount)> = Vec::new();
    for (name, amount) in all {
        match sums.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known += *amount,
            None => sums.push((name.clone(), *amount)),
        }
    }
    sums
}

#[cfg(test)]
mod tests;
