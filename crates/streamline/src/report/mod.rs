//! Reports on a run: the ledger in a sentence, as a table, as JSON; losses; the rows of the filters
//! at the end of the request.
//!
//! In: the plan and the outcome. Out: text. Names are those of `explain`, so that the two of
//! several equal filters are told apart.

mod json;
mod nothing;
mod table;

use crate::crash::CrashCapture;
use crate::workers::WorkerRun;
use engine::run::Outcome;
use pipeline::explain;
use pipeline::plan::Plan;
use runtime::ledger::{Edge, Filtered, Imbalance};
use runtime::report::Reported;
use std::fmt::Write as _;

pub use json::{Refused, line as json_line, refused};

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// An outcome with the names of its plan.
#[derive(Debug)]
pub struct Report<'o> {
    plan: &'o Plan,
    outcome: &'o Outcome,
    crashes: &'o [Option<CrashCapture>],
    names: Vec<String>,
    imbalances: Vec<Imbalance>,
    /// The report of each worker, if there are several.
    workers: Vec<(&'o WorkerRun, Self)>,
}

impl<'o> Report<'o> {
    pub(crate) fn new(
        plan: &'o Plan,
        outcome: &'o Outcome,
        crashes: &'o [Option<CrashCapture>],
    ) -> Self {
        let names = explain::names(&plan.graph);
        let imbalances = outcome.ledger.imbalances();
        Self { plan, outcome, crashes, names, imbalances, workers: Vec::new() }
    }

    /// The same report, with several workers each by itself.
    pub(crate) fn of_workers(mut self, workers: &'o [WorkerRun]) -> Self {
        let own = |worker: &'o WorkerRun| (worker, Report::new(self.plan, &worker.outcome, &[]));
        self.workers = workers.iter().map(own).collect();
        self
    }

    /// The places where the ledger does not balance.
    #[must_use]
    pub fn imbalances(&self) -> &[Imbalance] {
        &self.imbalances
    }

    /// The number of lost blocks.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.outcome.ledger.lost()
    }

    /// The whole report.
    #[must_use]
    pub fn whole(&self, form: Form) -> String {
        match form {
            Form::Text => table::text(self),
            Form::Json => json::line(&json::run(self)),
        }
    }

    /// The report in one line.
    #[must_use]
    pub fn sentence(&self) -> String {
        let sources = self.outcome.ledger.sources.iter().map(|(_, seen)| seen.given);
        let (blocks, bytes) =
            sources.fold((0, 0), |(blocks, n), given| (blocks + given.blocks, n + given.bytes));
        let lost = match self.lost() {
            0 if self.is_unknown() => "losses not all known".to_owned(),
            0 => "none lost".to_owned(),
            lost => format!("{lost} lost"),
        };
        let time = milliseconds(self.outcome.elapsed_ns);
        let read = counted(blocks, "block");
        let read = match self.outputs() {
            None => read,
            Some(outputs) => format!("{outputs} of {read} read"),
        };
        let unwanted = match self.outcome.ledger.by_request() {
            0 => String::new(),
            blocks => format!("{blocks} dropped by request, "),
        };
        format!("{read}, {bytes} bytes in {time}, {unwanted}{lost}")
    }

    /// The output of all sinks, in words; none where no sink has put anything anywhere.
    fn outputs(&self) -> Option<String> {
        let each = self.outcome.reports.iter().flat_map(|reported| &reported.report.outputs);
        let each = each.map(|one| format!("{} {}", counted(one.count, &one.unit), one.done));
        let mut each: Vec<String> = each.collect();
        let last = each.pop()?;
        Some(if each.is_empty() { last } else { format!("{} and {last}", each.join(", ")) })
    }

    /// Remarks of filters and sinks for people, though nothing has failed.
    pub fn remarks(&self) -> impl Iterator<Item = &str> {
        let reports = self.outcome.reports.iter();
        reports.flat_map(|reported| &reported.report.remarks).map(String::as_str)
    }

    /// Returns true if a source has a place where blocks may be lost that nobody can count.
    fn is_unknown(&self) -> bool {
        let mut places = self.outcome.ledger.sources.iter().flat_map(|(_, seen)| &seen.dropped);
        places.any(|(place, blocks)| blocks.is_none() && place.is_lost())
    }

    /// The number of lost blocks, by place and reason, in a sentence.
    #[must_use]
    pub fn losses(&self) -> String {
        let mut places: Vec<(u64, String)> = Vec::new();
        let ledger = &self.outcome.ledger;
        for (name, seen) in &ledger.sources {
            let lost = seen.dropped.iter().filter(|(place, _)| place.is_lost());
            let lost = lost.filter_map(|(place, n)| Some((place, (*n)?)));
            places.extend(lost.map(|(place, n)| (n, format!("before {name} ({place})"))));
        }
        for edge in &ledger.edges {
            let (from, to) = self.ends(edge);
            let lost = edge.dropped.iter().map(|(why, amount)| (why, amount.blocks));
            places.extend(lost.map(|(why, n)| (n, format!("between {from} and {to} ({why})"))));
        }
        for filter in &ledger.filters {
            let name = self.name(filter);
            let lost = filter.dropped.iter().filter(|(why, _)| why.is_lost());
            places.extend(lost.map(|(why, n)| (n.blocks, format!("in {name} ({why})"))));
        }
        places.retain(|(n, _)| *n > 0);
        places.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
        let told: Vec<String> = places.iter().map(|(n, place)| format!("{n} {place}")).collect();
        let were = if self.lost() == 1 { "was" } else { "were" };
        format!("{} {were} lost: {}", counted(self.lost(), "block"), told.join(", "))
    }

    /// The reports of filters at the ends of the request: the output of `… | count`.
    #[must_use]
    pub fn line_ends(&self, form: Form) -> String {
        let told: Vec<&Reported> = self
            .plan
            .reports
            .iter()
            .filter_map(|end| self.outcome.reports.iter().find(|told| told.planned == end.0))
            .collect();
        let mut out = String::new();
        for reported in &told {
            match form {
                Form::Json => out.push_str(&json::line(&json::end(self, reported))),
                Form::Text if told.len() > 1 => {
                    let name = self.names.get(reported.planned).unwrap_or(&reported.name);
                    let _ = writeln!(out, "{name}:");
                    out.push_str(&table::rows(&reported.report.rows, "  "));
                }
                Form::Text => out.push_str(&table::rows(&reported.report.rows, "")),
            }
        }
        out
    }

    /// Returns true if the output of the request is the report of this filter.
    fn is_end(&self, reported: &Reported) -> bool {
        self.plan.reports.iter().any(|end| end.0 == reported.planned)
    }

    /// The name of a node of the ledger: that of the plan, except where it is one end of a ring.
    fn name<'n>(&'n self, filter: &'n Filtered) -> &'n str {
        let planned = self.names.get(filter.planned).filter(|_| !filter.name.is_ring());
        planned.map_or(&filter.name, |name| name)
    }

    /// The names of the two ends of an edge.
    fn ends<'n>(&'n self, edge: &'n Edge) -> (&'n str, &'n str) {
        let planned = self.plan.graph.edges.get(edge.planned);
        match planned {
            Some(planned) => (
                if edge.from.is_ring() { &edge.from } else { &self.names[planned.from.0] },
                if edge.to.is_ring() { &edge.to } else { &self.names[planned.to.0] },
            ),
            None => (&edge.from, &edge.to),
        }
    }
}

/// `1 block`, `2 blocks`.
#[must_use]
pub fn counted(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// A measured time, with three figures.
#[must_use]
pub fn milliseconds(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{}.{:03} s", ns / 1_000_000_000, ns / 1_000_000 % 1_000),
    }
}

/// A text as one word of a shell.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
