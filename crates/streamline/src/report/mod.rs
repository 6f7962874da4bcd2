//! Reports on a run: the ledger as a sentence, table or JSON; losses; and the reports of filters at
//! the end of the request, which are its output.
//!
//! Formats the plan and the outcome of a run as text. Filters have the names that `explain` prints,
//! which distinguish nodes with the same filter.

mod empty_output;
mod json;
mod table;

use crate::notice::CrashCapture;
use crate::workers::run::WorkerRun;
use engine::run::RunOutcome;
use pipeline::explain;
use pipeline::plan::Plan;
use runtime::ledger::{Edge, LedgerImbalance, NodeEntry, SourceCounters};
use runtime::report::NodeReport;
use std::borrow::Cow;
use std::fmt::Write as _;

pub use json::{JsonObject, refusals_json, to_json_line as json_line, to_object};

/// The output format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportForm {
    /// Text for users.
    Text,
    /// One JSON object per line.
    Json,
}

/// A report on a run: the outcome of the run, with the names of filters from its plan.
#[derive(Debug)]
pub struct Report<'o> {
    plan: &'o Plan,
    outcome: &'o RunOutcome,
    crashes: &'o [Option<CrashCapture>],
    names: Vec<String>,
    imbalances: Vec<LedgerImbalance>,
    /// Each worker's run and report; empty if a single process ran the request.
    workers: Vec<(&'o WorkerRun, Self)>,
}

impl<'o> Report<'o> {
    pub(crate) fn new(
        plan: &'o Plan,
        outcome: &'o RunOutcome,
        crashes: &'o [Option<CrashCapture>],
    ) -> Self {
        let names = explain::unique_names(&plan.graph);
        let imbalances = outcome.ledger.imbalances();
        Self { plan, outcome, crashes, names, imbalances, workers: Vec::new() }
    }

    /// Adds a separate report for each worker.
    pub(crate) fn with_workers(mut self, workers: &'o [WorkerRun]) -> Self {
        let own = |worker: &'o WorkerRun| (worker, Report::new(self.plan, &worker.outcome, &[]));
        self.workers = workers.iter().map(own).collect();
        self
    }

    /// Returns the equations that the ledger violates; empty if it balances.
    #[must_use]
    pub fn imbalances(&self) -> &[LedgerImbalance] {
        &self.imbalances
    }

    /// Returns the number of lost blocks.
    #[must_use]
    pub fn lost_blocks(&self) -> u64 {
        self.outcome.ledger.lost_blocks()
    }

    /// Formats the full report: tables of the ledger, or one JSON object.
    #[must_use]
    pub fn format_full_report(&self, form: ReportForm) -> String {
        match form {
            ReportForm::Text => table::format_ledger(self),
            ReportForm::Json => json::to_json_line(&json::run_json(self)),
        }
    }

    /// Summarizes the run in one sentence: output, input, time and losses.
    #[must_use]
    pub fn summary_sentence(&self) -> String {
        let sources = self.outcome.ledger.sources.iter().map(|(_, source)| source.given);
        let (blocks, bytes) =
            sources.fold((0, 0), |(blocks, n), given| (blocks + given.blocks, n + given.bytes));
        let lost = match self.lost_blocks() {
            0 if self.has_unknown_losses() => "losses not all known".to_owned(),
            0 => "none lost".to_owned(),
            lost => format!("{lost} lost"),
        };
        let time = format_duration(self.outcome.elapsed_ns);
        let read = format_count(blocks, "block");
        let read = match self.describe_outputs() {
            None => read,
            Some(outputs) => format!("{outputs} of {read} read"),
        };
        let unwanted = match self.outcome.ledger.blocks_dropped_by_request() {
            0 => String::new(),
            blocks => format!("{blocks} dropped by request, "),
        };
        format!("{read}, {bytes} bytes in {time}, {unwanted}{lost}")
    }

    /// Describes the output of all sinks. Returns `None` if no sink reports any.
    fn describe_outputs(&self) -> Option<String> {
        let each = self.outcome.reports.iter().flat_map(|reported| &reported.report.outputs);
        let each = each.map(|one| format!("{} {}", format_count(one.count, &one.unit), one.done));
        let mut each: Vec<String> = each.collect();
        let last = each.pop()?;
        Some(if each.is_empty() { last } else { format!("{} and {last}", each.join(", ")) })
    }

    /// Returns the warnings of sources and the remarks of filters and sinks, for users. None of
    /// them reports a failure.
    pub fn remarks(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let sources = self.outcome.ledger.sources.iter().filter(|(_, source)| source.warns);
        let warning = |(name, source): &(String, SourceCounters)| {
            Some(Cow::Owned(format!("{name}: {}", source.remark.as_ref()?)))
        };
        let reports = self.outcome.reports.iter();
        let remarks = reports.flat_map(|reported| &reported.report.remarks);
        sources.filter_map(warning).chain(remarks.map(|text| Cow::Borrowed(text.as_str())))
    }

    /// Returns true if a source may have lost blocks that are not counted, because the place where
    /// it loses them has no counter.
    fn has_unknown_losses(&self) -> bool {
        let mut places = self.outcome.ledger.sources.iter().flat_map(|(_, source)| &source.dropped);
        places.any(|(place, blocks)| blocks.is_none() && place.is_loss())
    }

    /// Describes in one sentence where and why blocks were lost, with the largest losses first.
    #[must_use]
    pub fn describe_losses(&self) -> String {
        let mut places: Vec<(u64, String)> = Vec::new();
        let ledger = &self.outcome.ledger;
        for (name, source) in &ledger.sources {
            let lost = source.dropped.iter().filter(|(place, _)| place.is_loss());
            let lost = lost.filter_map(|(place, n)| Some((place, (*n)?)));
            places.extend(lost.map(|(place, n)| (n, format!("before {name} ({place})"))));
        }
        for edge in &ledger.edges {
            let (from, to) = self.end_names(edge);
            let lost = edge.dropped.iter().filter(|(why, _)| why.is_loss());
            let between = |why| format!("between {from} and {to} ({why})");
            places.extend(lost.map(|(why, n)| (n.blocks, between(why))));
        }
        for filter in &ledger.filters {
            let name = self.display_name(filter);
            places.extend(filter.losses().map(|(why, n)| (n.blocks, format!("in {name} ({why})"))));
        }
        places.retain(|(n, _)| *n > 0);
        places.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
        let phrases: Vec<String> = places.iter().map(|(n, place)| format!("{n} {place}")).collect();
        let were = if self.lost_blocks() == 1 { "was" } else { "were" };
        format!("{} {were} lost: {}", format_count(self.lost_blocks(), "block"), phrases.join(", "))
    }

    /// Formats the reports of the filters at the ends of pipelines, such as the output of `… |
    /// count`.
    #[must_use]
    pub fn pipeline_end_reports(&self, form: ReportForm) -> String {
        self.format_pipeline_ends(form, None)
    }

    /// Formats the reports as text, as [`pipeline_end_reports`](Self::pipeline_end_reports) does,
    /// for a terminal with this number of columns. The buckets of a histogram are drawn with bars.
    #[must_use]
    pub fn drawn_pipeline_end_reports(&self, columns: usize) -> String {
        self.format_pipeline_ends(ReportForm::Text, Some(columns))
    }

    fn format_pipeline_ends(&self, form: ReportForm, columns: Option<usize>) -> String {
        let reports: Vec<&NodeReport> = self
            .plan
            .reports
            .iter()
            .filter_map(|end| self.outcome.reports.iter().find(|report| report.planned == end.0))
            .collect();
        let mut out = String::new();
        for reported in &reports {
            match form {
                ReportForm::Json => {
                    out.push_str(&json::to_json_line(&json::filter_report_json(self, reported)))
                }
                ReportForm::Text if reports.len() > 1 => {
                    let name = self.names.get(reported.planned).unwrap_or(&reported.name);
                    let _ = writeln!(out, "{name}:");
                    out.push_str(&self.format_rows(reported, "  ", columns));
                }
                ReportForm::Text => out.push_str(&self.format_rows(reported, "", columns)),
            }
        }
        out
    }

    /// Formats the rows of a report, with bars if it is a histogram and the terminal width is
    /// known.
    fn format_rows(&self, reported: &NodeReport, indent: &str, columns: Option<usize>) -> String {
        let rows = &reported.report.rows;
        let node = self.plan.graph.nodes.get(reported.planned);
        let filter = node.and_then(|node| node.filter());
        let totals = filter.and_then(|used| used.description.histogram_totals);
        match totals.zip(columns) {
            Some(drawing) => table::format_histogram(rows, indent, drawing),
            None => table::format_rows(rows, indent),
        }
    }

    /// Returns true if a filter report comes from the end of a pipeline, so that the report appears
    /// on standard output.
    fn is_pipeline_end(&self, reported: &NodeReport) -> bool {
        self.plan.reports.iter().any(|end| end.0 == reported.planned)
    }

    /// Returns the name of a ledger entry for display: the name of its node in the plan or, for an
    /// end of a ring, its name in the ledger.
    fn display_name<'n>(&'n self, filter: &'n NodeEntry) -> &'n str {
        let planned = self.names.get(filter.planned).filter(|_| !filter.name.is_ring());
        planned.map_or(&filter.name, |name| name)
    }

    /// Returns the display names of the nodes at both ends of an edge.
    fn end_names<'n>(&'n self, edge: &'n Edge) -> (&'n str, &'n str) {
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

/// Formats a number with its unit, such as `1 block` or `2 blocks`.
#[must_use]
pub fn format_count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Formats a duration, given in ns, in `us`, `ms` or `s`.
#[must_use]
pub fn format_duration(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{}.{:03} s", ns / 1_000_000_000, ns / 1_000_000 % 1_000),
    }
}

/// Quotes a text as a single shell word.
#[must_use]
pub fn quote_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
