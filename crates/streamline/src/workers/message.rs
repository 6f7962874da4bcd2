//! Messages between a worker and the process that started it: one JSON object in a line.
//!
//! Both ends are this very program, so the forms have no version. Words that the ledger knows as
//! constants (why something was dropped) come back as such: there are as many as this program has.

use engine::live::Live;
use engine::run::Outcome;
use runtime::failure::{Cause, PathFailure};
use runtime::latency::{Latency, Measured};
use runtime::ledger::{
    Amount, Delivered, DropReason, Edge, EdgeKind, Edits, Filtered, Gap, Ledger, Missing, NodeName,
    Report, Seen,
};
use runtime::report::Reported;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The task of a worker.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Wanted {
    /// Its request.
    pub(super) text: String,
    /// Its number, from 1 on, and the number of all.
    pub(super) number: u32,
    pub(super) of: u32,
    /// Its processor.
    pub(super) processor: usize,
    pub(super) timed: bool,
    pub(super) embedded: bool,
    pub(super) history: Option<usize>,
}

/// A command to a worker.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) enum Command {
    /// All workers are ready: run.
    Go,
    /// Let the sources end, and drain.
    Stop,
    /// Send your counts.
    Count,
    /// Run this request from now on, and keep what of it runs already.
    Change(String),
}

/// A message of a worker.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Message {
    /// It can run.
    Ready,
    /// It runs, since all workers have been built.
    Began {
        /// True if nothing had come to its sources.
        quiet: bool,
    },
    /// Its counts so far.
    Counted(Box<Counts>),
    /// Its request was changed: a sentence of the ledger about that, and the new request; or why it
    /// was not.
    Changed(Result<(String, String), String>),
    /// It has ended; the request that ran last.
    Ended(Box<Counts>, String),
}

/// An amount: blocks, and bytes.
type Pair = (u64, u64);

/// The report of a filter.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
struct Spoke {
    planned: usize,
    name: String,
    rows: Vec<(String, u64)>,
    /// Number, unit and destination of each output.
    outputs: Vec<(u64, String, String)>,
    remarks: Vec<String>,
}

/// The counts of a worker.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub(super) struct Counts {
    sources: Vec<Source>,
    filters: Vec<Filter>,
    edges: Vec<Crossed>,
    reports: Vec<Spoke>,
    failures: Vec<Failed>,
    adapted: Vec<String>,
    latency: Option<Late>,
    stopped: bool,
    elapsed_ns: u64,
}

/// A failure: the node, the cause, the error number, and true if a reader has gone.
type Failed = (String, String, Option<i32>, bool);

/// Times of blocks on their way.
#[derive(Serialize, Deserialize, Clone, Debug)]
struct Late {
    asked_ns: u64,
    breaches: u64,
    ways: Vec<Spent>,
    waits: Vec<Spent>,
}

/// Name, share in ns, blocks looked at, blocks over it, the longest in ns.
type Spent = (String, u64, u64, u64, u64);

#[derive(Serialize, Deserialize, Clone, Debug)]
struct Source {
    name: String,
    seen: Option<Pair>,
    given: Pair,
    dropped: Vec<(String, Option<u64>)>,
    missing: Vec<Lacks>,
    remark: Option<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
struct Filter {
    name: String,
    planned: usize,
    taken: Pair,
    made: Pair,
    passed: Pair,
    unselected: Pair,
    consumed: Pair,
    held: Pair,
    dropped: Vec<(String, Pair)>,
    unanswered: Vec<(String, u64)>,
    counters: Vec<(String, u64)>,
    /// In place, in copies, as new blocks, as fragments.
    edits: [u64; 4],
    busy_ns: u64,
    calls: u64,
    program: bool,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
struct Crossed {
    from: String,
    to: String,
    kind: String,
    planned: usize,
    put: Pair,
    taken: Pair,
    dropped: Vec<(String, Pair)>,
    missing: Vec<Lacks>,
    resident: Pair,
}

/// Missing blocks: the place, the ranges with their processors, how many more there were.
type Lacks = (String, Vec<(u64, u64, Option<u32>)>, u64);

fn lacks(all: &[(&'static str, Missing)]) -> Vec<Lacks> {
    let told = |(place, missing): &(&'static str, Missing)| {
        let ranges = missing.gaps().map(|gap| (gap.from, gap.to, gap.processor));
        ((*place).to_owned(), ranges.collect(), missing.more())
    };
    all.iter().map(told).collect()
}

fn missing(all: &[Lacks]) -> Vec<(&'static str, Missing)> {
    let heard = |(place, ranges, more): &Lacks| {
        let mut missing = Missing::default();
        for (from, to, processor) in ranges {
            missing.push(Gap { from: *from, to: *to, processor: *processor });
        }
        missing.leave_out(*more);
        (word(place), missing)
    };
    all.iter().map(heard).collect()
}

const fn pair(amount: Amount) -> Pair {
    (amount.blocks, amount.bytes)
}

const fn amount((blocks, bytes): Pair) -> Amount {
    Amount { blocks, bytes }
}

/// A word of this program that was one before it was written down.
fn word(text: &str) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(word) = known.get(text) {
        return word;
    }
    let word: &'static str = Box::leak(text.to_owned().into_boxed_str());
    known.insert(word);
    word
}

impl Counts {
    /// The counts of an outcome.
    pub(super) fn of(outcome: &Outcome) -> Self {
        let mut told = Self::counted(&outcome.ledger, &outcome.reports);
        let failed = |failure: &PathFailure| {
            let (errno, quiet) = (failure.errno(), failure.is_quiet());
            (failure.node.clone(), failure.to_string(), errno, quiet)
        };
        told.failures = outcome.failures.iter().map(failed).collect();
        told.adapted.clone_from(&outcome.adapted);
        told.latency = outcome.latency.as_ref().map(Late::of);
        told.stopped = outcome.stopped;
        told.elapsed_ns = outcome.elapsed_ns;
        told
    }

    /// The counts of paths that run.
    pub(super) fn so_far(lives: &[Live], limit: Duration) -> Self {
        let (mut ledger, mut reports) = (Ledger::default(), Vec::new());
        for live in lives {
            let snapshot = live.counters(limit);
            ledger.add(snapshot.ledger);
            reports.extend(snapshot.reports);
        }
        let latency = lives.first().and_then(Live::latency);
        let latency = latency.as_ref().map(Late::of);
        Self { latency, ..Self::counted(&ledger, &reports) }
    }

    fn counted(ledger: &Ledger, reports: &[Reported]) -> Self {
        let named = |all: &[(DropReason, Amount)]| {
            all.iter().map(|(why, n)| (why.to_string(), pair(*n))).collect()
        };
        let source = |(name, seen): &(String, Seen)| Source {
            name: name.clone(),
            seen: seen.seen.map(pair),
            given: pair(seen.given),
            dropped: seen.dropped.iter().map(|(place, n)| (place.to_string(), *n)).collect(),
            missing: lacks(&seen.missing),
            remark: seen.remark.clone(),
        };
        let filter = |row: &Filtered| Filter {
            name: row.name.to_string(),
            planned: row.planned,
            taken: pair(row.taken),
            made: pair(row.made),
            passed: pair(row.passed),
            unselected: pair(row.unselected),
            consumed: pair(row.consumed),
            held: pair(row.held),
            dropped: named(&row.dropped),
            unanswered: row.unanswered.clone(),
            counters: row.counters.clone(),
            edits: {
                let Edits { direct, copied, appended, fragmented } = row.edits;
                [direct, copied, appended, fragmented]
            },
            busy_ns: row.busy_ns,
            calls: row.calls,
            program: row.program,
        };
        let edge = |edge: &Edge| Crossed {
            from: edge.from.to_string(),
            to: edge.to.to_string(),
            kind: edge.kind.name().to_owned(),
            planned: edge.planned,
            put: pair(edge.put),
            taken: pair(edge.taken),
            dropped: named(&edge.dropped),
            missing: lacks(&edge.missing),
            resident: pair(edge.resident),
        };
        let output = |one: &Delivered| (one.count, one.unit.clone(), one.done.clone());
        let report = |said: &Reported| Spoke {
            planned: said.planned,
            name: said.name.clone(),
            rows: said.report.rows.clone(),
            outputs: said.report.outputs.iter().map(output).collect(),
            remarks: said.report.remarks.clone(),
        };
        Self {
            sources: ledger.sources.iter().map(source).collect(),
            filters: ledger.filters.iter().map(filter).collect(),
            edges: ledger.edges.iter().map(edge).collect(),
            reports: reports.iter().map(report).collect(),
            ..Self::default()
        }
    }

    /// The outcome that they stand for.
    pub(super) fn outcome(&self) -> Outcome {
        let source = |told: &Source| {
            let dropped = told.dropped.iter().map(|(place, n)| (word(place).into(), *n)).collect();
            let (seen, given) = (told.seen.map(amount), amount(told.given));
            let (missing, remark) = (missing(&told.missing), told.remark.clone());
            (told.name.clone(), Seen { seen, given, dropped, missing, remark, ..Seen::default() })
        };
        let filter = |told: &Filter| Filtered {
            name: NodeName::read(&told.name),
            planned: told.planned,
            taken: amount(told.taken),
            made: amount(told.made),
            passed: amount(told.passed),
            unselected: amount(told.unselected),
            consumed: amount(told.consumed),
            held: amount(told.held),
            dropped: told.dropped.iter().map(|(why, n)| (word(why).into(), amount(*n))).collect(),
            unanswered: told.unanswered.clone(),
            counters: told.counters.clone(),
            edits: {
                let [direct, copied, appended, fragmented] = told.edits;
                Edits { direct, copied, appended, fragmented }
            },
            busy_ns: told.busy_ns,
            calls: told.calls,
            program: told.program,
        };
        let edge = |told: &Crossed| Edge {
            from: NodeName::read(&told.from),
            to: NodeName::read(&told.to),
            kind: EdgeKind::named(&told.kind).unwrap_or(EdgeKind::Call),
            planned: told.planned,
            put: amount(told.put),
            taken: amount(told.taken),
            dropped: told.dropped.iter().map(|(why, n)| (word(why).into(), amount(*n))).collect(),
            missing: missing(&told.missing),
            resident: amount(told.resident),
            events: None,
        };
        let output = |(count, unit, done): &(u64, String, String)| Delivered {
            count: *count,
            unit: unit.clone(),
            done: done.clone(),
        };
        let report = |told: &Spoke| Reported {
            planned: told.planned,
            name: told.name.clone(),
            report: Report {
                rows: told.rows.clone(),
                outputs: told.outputs.iter().map(output).collect(),
                remarks: told.remarks.clone(),
            },
        };
        let failure = |(node, what, errno, quiet): &Failed| PathFailure {
            node: node.clone(),
            cause: Cause::Elsewhere { what: what.clone(), errno: *errno, quiet: *quiet },
        };
        let ledger = Ledger {
            sources: self.sources.iter().map(source).collect(),
            filters: self.filters.iter().map(filter).collect(),
            edges: self.edges.iter().map(edge).collect(),
        };
        Outcome {
            ledger,
            reports: self.reports.iter().map(report).collect(),
            failures: self.failures.iter().map(failure).collect(),
            adapted: self.adapted.clone(),
            latency: self.latency.as_ref().map(Late::latency),
            stopped: self.stopped,
            elapsed_ns: self.elapsed_ns,
            ..Outcome::default()
        }
    }
}

impl Late {
    fn of(told: &Latency) -> Self {
        let spent = |at: &Measured| (at.name.clone(), at.share_ns, at.looked, at.over, at.worst_ns);
        Self {
            asked_ns: told.asked_ns,
            breaches: told.breaches,
            ways: told.ways.iter().map(spent).collect(),
            waits: told.waits.iter().map(spent).collect(),
        }
    }

    fn latency(&self) -> Latency {
        let measured = |(name, share_ns, looked, over, worst_ns): &Spent| Measured {
            name: name.clone(),
            share_ns: *share_ns,
            looked: *looked,
            over: *over,
            worst_ns: *worst_ns,
        };
        Latency {
            asked_ns: self.asked_ns,
            breaches: self.breaches,
            ways: self.ways.iter().map(measured).collect(),
            waits: self.waits.iter().map(measured).collect(),
        }
    }
}
