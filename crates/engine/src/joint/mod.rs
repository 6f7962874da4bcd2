//! From what the engines of a request counted, each by itself, to what the request counted.
//! [Par §V-B]; CONTRACT 19
//!
//! In: the outcome of each engine, or what one that was killed had told last. Out: one outcome.
//! Each engine sees all that its sources give, and leaves to the others what is theirs; so of a
//! source only what was the engine's own share is added up ([`share`]). What was lost before blocks
//! were shared out is stated as far as it is known ([`losses`]). What an engine that was killed had
//! not told is known by the others: they have passed over it. It is dropped (`engine ended`).

mod losses;
mod share;

pub use share::shares_out;

use crate::run::Outcome;
use endpoint::{DropReason, Seen};
use filter::Amount;
use losses::{losses, tell};
use pipeline::Graph;
use runtime::ledger::{Filtered, Ledger};
use runtime::report::{Reported, together};
use share::{Before, Shared, shared};

/// The drop reason for blocks in the share of a worker process that was killed.
pub const ENGINE_ENDED: DropReason = DropReason::Other("engine ended");

/// The report of one worker process.
#[derive(Debug, Default)]
pub struct Engine {
    /// The outcome at its end, or at its last report.
    pub outcome: Outcome,
    /// True if it was killed, so that its last report is incomplete.
    pub killed: bool,
    /// True if none of its sources had received anything when all worker processes had been built.
    pub quiet: bool,
}

/// Aggregates the reports of all worker processes of a request. The graph is that of the line of
/// any of them.
#[must_use]
pub fn joint(graph: &Graph, mut engines: Vec<Engine>) -> Outcome {
    engines
        .iter_mut()
        .filter(|engine| engine.killed)
        .for_each(|engine| settle(&mut engine.outcome));
    for shared in shared(graph) {
        share_out(graph, &shared, &mut engines);
    }
    let mut joint = Outcome::default();
    let mut reports: Vec<Reported> = Vec::new();
    for engine in engines {
        let Outcome { ledger, reports: said, failures, programs, adapted, latency, .. } =
            engine.outcome;
        add(&mut joint.ledger, ledger);
        reports.extend(said);
        joint.failures.extend(failures);
        if let Some(latency) = latency {
            joint.latency.get_or_insert_default().add(latency);
        }
        joint.programs.extend(programs);
        joint.adapted.extend(adapted);
        joint.stopped |= engine.outcome.stopped;
        joint.elapsed_ns = joint.elapsed_ns.max(engine.outcome.elapsed_ns);
    }
    joint.reports = together(reports.into_iter());
    joint
}

/// Reduces each worker process's counters to its own share of a source, and gives the first the
/// aggregated losses.
fn share_out(graph: &Graph, shared: &Shared, engines: &mut [Engine]) {
    let leave = |engine: &mut Engine| match engine.killed {
        true => shared.leave_told(graph, &mut engine.outcome.ledger),
        false => shared.leave_own(&mut engine.outcome.ledger),
    };
    let befores: Vec<Before> = engines.iter_mut().map(leave).collect();
    let stopped = engines.iter().any(|engine| engine.outcome.stopped);
    let heir = engines.iter().position(|engine| engine.killed);
    let alive = befores.iter().zip(engines.iter()).filter(|(_, engine)| !engine.killed);
    let alive: Vec<&Before> = alive.map(|(before, _)| before).collect();
    if let Some(heir) = heir {
        let missing = missing(&befores, &alive, stopped);
        shared.add_ended(&mut engines[heir].outcome.ledger, missing);
    }
    let quiet = heir.is_none() && engines.iter().all(|engine| engine.quiet);
    let mut told = Some(losses(&alive, (quiet, engines.len() == 1)));
    for engine in engines {
        let Some(seen) = shared.seen(&mut engine.outcome.ledger) else { continue };
        tell(seen, told.take().unwrap_or_default());
    }
}

/// Computes the unreported share of killed worker processes from the others' counters: all blocks
/// that a survivor received, less all reported shares and possible losses. After a stop the
/// survivors may have received different numbers, then the least counts.
fn missing(all: &[Before], alive: &[&Before], stopped: bool) -> Amount {
    let own = all.iter().fold(Amount::default(), |sum, before| plus(sum, before.own));
    let saw = |before: &&&Before| before.saw().unwrap_or(before.came.blocks);
    let saw = match stopped {
        true => alive.iter().min_by_key(saw),
        false => alive.iter().max_by_key(saw),
    };
    let Some(saw) = saw else { return Amount::default() };
    let lost: u64 = alive.iter().filter_map(|before| before.lost()).sum();
    let all = Amount { blocks: saw.came.blocks + saw.lost().unwrap_or(0), ..saw.came };
    minus(all, Amount { blocks: own.blocks + lost, ..own })
}

/// Settles the ledger of a killed worker process: blocks under way at its last report are dropped.
/// Counters of spaces that were read at different moments are reconciled: the process cannot be
/// asked again.
pub fn settle(outcome: &mut Outcome) {
    for edge in &mut outcome.ledger.edges {
        let under_way = std::mem::take(&mut edge.resident);
        if under_way.blocks > 0 {
            edge.dropped.push((ENGINE_ENDED, under_way));
        }
        edge.put = edge.dropped.iter().fold(edge.taken, |sum, (_, amount)| plus(sum, *amount));
    }
    for row in &mut outcome.ledger.filters {
        let held = std::mem::take(&mut row.held);
        let (came, became) = row.balance();
        let rest = Amount { blocks: came.saturating_sub(became), bytes: held.bytes };
        if rest.blocks > 0 {
            row.dropped.push((ENGINE_ENDED, rest));
        }
        row.taken.blocks += became.saturating_sub(came);
    }
}

/// Adds what an engine counted to what others did.
fn add(joint: &mut Ledger, other: Ledger) {
    let mut before: Vec<&str> = Vec::new();
    let mut places = Vec::new();
    for (name, _) in &other.sources {
        places.push(before.iter().filter(|known| *known == name).count());
        before.push(name);
    }
    for ((name, seen), nth) in other.sources.iter().zip(places) {
        let mut known = joint.sources.iter_mut().filter(|(known, _)| known == name);
        match known.nth(nth) {
            Some((_, known)) => add_seen(known, seen),
            None => joint.sources.push((name.clone(), seen.clone())),
        }
    }
    for row in other.filters {
        let same = |known: &&mut Filtered| known.planned == row.planned && known.name == row.name;
        match joint.filters.iter_mut().find(same) {
            Some(known) => known.join(row),
            None => joint.filters.push(row),
        }
    }
    for edge in other.edges {
        joint.add_edge(edge);
    }
    for row in &mut joint.filters {
        row.dropped = by_name(&row.dropped);
    }
    for edge in &mut joint.edges {
        edge.dropped = by_name(&edge.dropped);
    }
}

fn add_seen(to: &mut Seen, more: &Seen) {
    to.given = plus(to.given, more.given);
    to.seen = to.seen.zip(more.seen).map(|(one, other)| plus(one, other));
    for (place, blocks) in &more.dropped {
        match to.dropped.iter_mut().find(|(known, _)| known == place) {
            Some((_, known)) => *known = known.zip(*blocks).map(|(one, other)| one + other),
            None => to.dropped.push((*place, *blocks)),
        }
    }
    if to.remark.is_none() {
        to.remark.clone_from(&more.remark);
    }
}

/// Amounts of one name, added.
fn by_name<N: Clone + PartialEq>(all: &[(N, Amount)]) -> Vec<(N, Amount)> {
    let mut sums: Vec<(N, Amount)> = Vec::new();
    for (name, amount) in all {
        match sums.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = plus(*known, *amount),
            None => sums.push((name.clone(), *amount)),
        }
    }
    sums
}

const fn plus(one: Amount, other: Amount) -> Amount {
    Amount { blocks: one.blocks + other.blocks, bytes: one.bytes + other.bytes }
}

const fn minus(one: Amount, other: Amount) -> Amount {
    let blocks = one.blocks.saturating_sub(other.blocks);
    Amount { blocks, bytes: one.bytes.saturating_sub(other.bytes) }
}

#[cfg(test)]
mod tests;
