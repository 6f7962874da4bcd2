//! The ledger as text for users: a table of filters, a table of rings, other counters, and the
//! balance.

use super::{Report, format_count};
use crate::workers::run::WorkerRun;
use pipeline::explain;
use pipeline::explain::table::Table;
use runtime::latency::{GaugeLatency, LatencyReport};
use runtime::ledger::{EdgeKind, NodeEntry};
use std::fmt::Write as _;

/// Formats the full ledger with latency and notes, followed by the ledger of each worker process.
pub(super) fn format_ledger(report: &Report<'_>) -> String {
    let mut out = format_filters(report);
    let edges = format_edges(report);
    if !edges.is_empty() {
        let _ = write!(out, "\n{edges}");
    }
    if let Some(latency) = &report.outcome.latency {
        let _ = write!(out, "\n{}", format_latency(latency));
    }
    let notes = format_notes(report);
    if !notes.is_empty() {
        let _ = write!(out, "\n{notes}");
    }
    let balance = match report.imbalances().len() {
        0 => "the ledger balances".to_owned(),
        n => format!("the ledger does not balance in {}", format_count(n as u64, "place")),
    };
    let _ = writeln!(out, "\n {}; {balance}", report.summary_sentence());
    for (worker, own) in &report.workers {
        let WorkerRun { number, process, processor, .. } = worker;
        let _ = writeln!(out, "\n engine {number}: process {process}, processor {processor}\n");
        out.push_str(&format_ledger(own));
    }
    out
}

/// A column of the report's filter table: its title, and a function that returns the number in this
/// column for a filter.
type FigureColumn = (&'static str, fn(&NodeEntry) -> u64);

/// Columns for a filter's input: blocks received and blocks created. Their sum equals the sum of
/// [`OUTCOME_COLUMNS`].
const INPUT_COLUMNS: [FigureColumn; 2] =
    [(">in", |filter| filter.taken.blocks), (">made", |filter| filter.made.blocks)];

/// Columns for the outcome of the blocks that a filter received or created, such as passed or
/// dropped. A column with only zeros is omitted.
const OUTCOME_COLUMNS: [FigureColumn; 5] = [
    (">passed", |filter| filter.passed.blocks),
    (">unselected", |filter| filter.unselected.blocks),
    (">consumed", |filter| filter.consumed.blocks),
    (">held", |filter| filter.held.blocks),
    (">dropped", |filter| filter.dropped.iter().map(|(_, amount)| amount.blocks).sum()),
];

fn format_filters(report: &Report<'_>) -> String {
    let filters = &report.outcome.ledger.filters;
    let figures: Vec<FigureColumn> = INPUT_COLUMNS
        .into_iter()
        .chain(OUTCOME_COLUMNS)
        .filter(|(_, of)| filters.iter().any(|filter| of(filter) > 0))
        .collect();
    let timed = filters.iter().any(|filter| filter.busy_ns > 0);
    let mut columns = vec!["filter", "space"];
    columns.extend(figures.iter().map(|(title, _)| *title));
    columns.push(">bytes");
    if timed {
        columns.push(">ns/block");
    }
    let mut rows: Vec<FilterRow<'_>> = Vec::new();
    for filter in filters {
        let space = report.plan.placements.get(filter.planned).map(|placed| placed.space);
        let space = space.and_then(|space| report.plan.spaces.get(space));
        let row = FilterRow {
            name: report.display_name(filter),
            space: space.map_or("", |space| &space.name),
            blocks: filter.taken.blocks + filter.made.blocks,
            bytes: filter.taken.bytes + filter.made.bytes,
            figures: figures.iter().map(|(_, of)| of(filter)).collect(),
            busy_ns: filter.busy_ns,
        };
        // Replicas that start and stop during a run leave many ring ends with the same name; they
        // share one row.
        let ring = filter.name.is_ring();
        match rows.iter_mut().find(|known| ring && known.is_same_row(&row)) {
            Some(known) => known.add(&row),
            None => rows.push(row),
        }
    }
    let mut table = Table::new(&columns);
    rows.into_iter().for_each(|row| table.add_row(row.cells(timed)));
    table.format_within(explain::TEXT_COLUMNS_MAX)
}

/// A row of the filter table. It shows one filter, or the sum of all ring ends with the same name.
struct FilterRow<'r> {
    name: &'r str,
    space: &'r str,
    blocks: u64,
    bytes: u64,
    figures: Vec<u64>,
    busy_ns: u64,
}

impl FilterRow<'_> {
    fn is_same_row(&self, other: &Self) -> bool {
        (self.name, self.space) == (other.name, other.space)
    }

    fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.busy_ns += other.busy_ns;
        self.figures.iter_mut().zip(&other.figures).for_each(|(sum, more)| *sum += more);
    }

    fn cells(self, timed: bool) -> Vec<String> {
        let mut cells = vec![self.name.to_owned(), self.space.to_owned()];
        let numbers = self.figures.into_iter().chain([self.bytes]);
        cells.extend(numbers.map(|number| number.to_string()));
        if timed {
            let each = self.busy_ns.checked_div(self.blocks).filter(|_| self.busy_ns > 0);
            cells.push(each.map_or_else(|| "–".to_owned(), |ns| ns.to_string()));
        }
        cells
    }
}

/// Formats the rings, the back edges, and all other edges that dropped blocks.
fn format_edges(report: &Report<'_>) -> String {
    let mut table =
        Table::new(&["edge", "kind", ">put", ">taken", ">resident", ">events", ">size", "dropped"]);
    for edge in &report.outcome.ledger.edges {
        if edge.kind == EdgeKind::Call && edge.dropped.is_empty() {
            continue;
        }
        let (from, to) = report.end_names(edge);
        let dropped: Vec<String> =
            edge.dropped.iter().map(|(why, n)| format!("{} {why}", n.blocks)).collect();
        table.add_row([
            format!("{from} → {to}"),
            edge.kind.name().to_owned(),
            edge.put.blocks.to_string(),
            edge.taken.blocks.to_string(),
            edge.resident.blocks.to_string(),
            edge.events.map_or_else(|| "–".to_owned(), |events| events.total().to_string()),
            edge.size.as_ref().map_or_else(|| "–".to_owned(), |size| size.entries.to_string()),
            if dropped.is_empty() { "–".to_owned() } else { dropped.join(", ") },
        ]);
    }
    if table.is_empty() { String::new() } else { table.format_within(explain::TEXT_COLUMNS_MAX) }
}

/// Formats the latency of blocks by sink, and the waits by location.
fn format_latency(latency: &LatencyReport) -> String {
    let mut table = Table::new(&["latency", ">may take", ">blocks", ">late", ">longest"]);
    let sinks = latency.sinks.iter().map(|sink| (format!("all the way to {}", sink.name), sink));
    let waits = latency.waits.iter().map(|wait| (wait.name.clone(), wait));
    for (name, GaugeLatency { share_ns, measured, exceeded, worst_ns, .. }) in sinks.chain(waits) {
        let (share, worst) =
            (explain::format_nanoseconds(*share_ns), explain::format_rounded_duration(*worst_ns));
        table.add_row([name, share, measured.to_string(), exceeded.to_string(), worst]);
    }
    table.format_within(explain::TEXT_COLUMNS_MAX)
}

/// Formats automatic changes, remarks and losses of sources, positions of lost blocks, reasons for
/// drops and for missing classes, counters, and filter reports.
fn format_notes(report: &Report<'_>) -> String {
    let mut out = String::new();
    let ledger = &report.outcome.ledger;
    for change in &report.outcome.adapted {
        let _ = writeln!(out, " adapted: {change}");
    }
    for (name, source) in &ledger.sources {
        if let Some(remark) = &source.remark {
            let _ = writeln!(out, " {name}: {remark}");
        }
        for (place, n) in &source.dropped {
            let n = n.map_or_else(|| "unknown".to_owned(), |n| format_count(n, "block"));
            let _ = writeln!(out, " {name}: dropped before it in {place}: {n}");
        }
    }
    for (name, source) in &ledger.sources {
        for (place, missing) in &source.missing {
            let _ = writeln!(out, " {name}: lost at {place}: {missing}");
        }
    }
    for edge in &ledger.edges {
        let (from, to) = report.end_names(edge);
        for (why, missing) in &edge.missing {
            let _ = writeln!(out, " {from} → {to}: lost, {why}: {missing}");
        }
    }
    for filter in &ledger.filters {
        let name = report.display_name(filter);
        let text = |(what, n): (&str, u64)| format!("{n} {what}");
        let dropped = filter.dropped.iter().map(|(why, amount)| (why.text(), amount.blocks));
        let unanswered = filter.unanswered.iter().map(|(why, n)| (why.as_str(), *n));
        for (what, list) in [
            ("dropped", dropped.map(text).collect::<Vec<_>>()),
            ("not answered", unanswered.map(text).collect()),
            ("counted", filter.printed_counters().map(text).collect()),
        ] {
            if !list.is_empty() {
                let _ = writeln!(out, " {name}: {what}: {}", list.join(", "));
            }
        }
    }
    for reported in &report.outcome.reports {
        // Omits reports that are on standard output, and reports of filters that the planner
        // inserted, which have empty spans.
        let node = report.plan.graph.nodes.get(reported.planned);
        let is_inserted = node.is_some_and(|node| node.span.start == node.span.end);
        if is_inserted || report.is_pipeline_end(reported) || reported.report.rows.is_empty() {
            continue;
        }
        let name = report.names.get(reported.planned).unwrap_or(&reported.name);
        let _ = writeln!(out, " {name} reports");
        out.push_str(&format_rows(&reported.report.rows, "   "));
    }
    out
}

/// Maximum width of a bar, in columns.
const BAR_WIDTH_MAX: usize = 50;
/// Minimum width of a bar, in columns; a narrower terminal shows no bars.
const BAR_WIDTH_MIN: usize = 8;

/// Formats the rows of a histogram with a bar for each bucket, or without bars if the terminal is
/// too narrow or all buckets are empty. `totals` names the rows without a bar; `columns` is the
/// width of the terminal.
pub(super) fn format_histogram(
    rows: &[(String, u64)],
    indent: &str,
    (totals, columns): (&[&str], usize),
) -> String {
    let is_bucket = |name: &String| !totals.contains(&name.as_str());
    let buckets = || rows.iter().filter(|(name, _)| is_bucket(name));
    let number = rows.iter().map(|(_, n)| n.to_string().len()).max().unwrap_or(0);
    let label = buckets().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let most = buckets().map(|(_, n)| *n).max().unwrap_or(0);
    let width = columns.saturating_sub(indent.len() + number + label + 4).min(BAR_WIDTH_MAX);
    if width < BAR_WIDTH_MIN || most == 0 {
        return format_rows(rows, indent);
    }
    let mut out = String::new();
    for (name, n) in rows {
        let _ = match is_bucket(name) {
            true => {
                let bar = format_bar(*n, most, width);
                writeln!(
                    out,
                    "{}",
                    format!("{indent}{n:>number$}  {name:label$}  {bar}").trim_end()
                )
            }
            false => writeln!(out, "{indent}{n:>number$}  {name}"),
        };
    }
    out
}

/// Returns a bar for the number `n`, of length `width` × `n` / `most` columns, with a resolution of
/// 1/8 column. Every number `n` except 0 gets a visible bar.
fn format_bar(n: u64, most: u64, width: usize) -> String {
    const PARTIAL_BLOCKS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (n as f64 / most as f64 * (width * 8) as f64).round() as usize;
    let eighths = eighths.max(usize::from(n > 0));
    format!(
        "{}{}",
        "█".repeat(eighths / 8),
        PARTIAL_BLOCKS.get(eighths % 8).copied().unwrap_or_default()
    )
}

/// Formats the rows of a filter's report. Up to three rows whose names consist of letters only are
/// put on one line; otherwise, each row gets its own line.
pub(super) fn format_rows(rows: &[(String, u64)], indent: &str) -> String {
    const SINGLE_LINE_ROWS_MAX: usize = 3;
    let word = |(name, _): &(String, u64)| name.chars().all(|c| c.is_ascii_alphabetic());
    if rows.len() <= SINGLE_LINE_ROWS_MAX && rows.iter().all(word) {
        let rows: Vec<String> = rows.iter().map(|(name, n)| format!("{n} {name}")).collect();
        return format!("{indent}{}\n", rows.join(", "));
    }
    let width = rows.iter().map(|(_, n)| n.to_string().len()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, n) in rows {
        let _ = writeln!(out, "{indent}{n:>width$}  {name}");
    }
    out
}
