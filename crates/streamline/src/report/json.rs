//! Reports as JSON: one object per line. The functions below define the fields.
//!
//! `version` changes when a field is removed or its meaning changes; fields may be added without
//! changing the version. Amounts are in blocks and bytes, and times in nanoseconds; unknown values
//! are `null`.

use super::Report;
use crate::workers::run::WorkerRun;
use abi::text::EscapedJson;
use pipeline::plan::Plan;
use runtime::ledger::{Edge, LossRanges, NodeEntry, SourceCounters};
use runtime::report::NodeReport;
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Version of the formats in this file.
const JSON_FORMAT_VERSION: u32 = 1;

/// A JSON object as text.
pub type JsonObject = Box<RawValue>;

/// A value that can be a field of a [`JsonObject`].
pub trait JsonField {
    /// Returns this value as JSON text.
    fn json(&self) -> String;
}

impl<T: Serialize + ?Sized> JsonField for T {
    fn json(&self) -> String {
        // Only numbers, texts, lists, and maps with text keys are serialized, so this cannot fail.
        serde_json::to_string(self).unwrap_or_else(|error| format!("\"{error}\""))
    }
}

/// Returns an object with these fields, in this order. A field whose name ends with `?` is omitted
/// if its value is `null` or empty.
pub fn to_object(fields: &[(&str, &dyn JsonField)]) -> JsonObject {
    let mut text = String::new();
    for (name, value) in fields {
        let value = value.json();
        if name.ends_with('?') && ["null", "[]", "{}"].contains(&value.as_str()) {
            continue;
        }
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}\"{}\":{value}", name.trim_end_matches('?'));
    }
    RawValue::from_string(format!("{{{text}}}")).unwrap_or_default()
}

/// Returns the results of a run as an object.
pub(super) fn run_json(report: &Report<'_>) -> JsonObject {
    let outcome = report.outcome;
    let ledger = &outcome.ledger;
    let filters = ledger.filters.iter().map(|entry| filter_json(report, entry));
    let failures = outcome.failures.iter().zip(report.crashes).map(|(failure, crash)| {
        to_object(&[
            ("node", &failure.node),
            ("what", &failure.to_string()),
            // Capture file with the block on which the filter panicked.
            ("block", &crash.as_ref().map(|crash| crash.path.display().to_string())),
            // Shell command that reproduces the failure.
            ("replay", &crash.as_ref().map(|crash| &crash.command)),
        ])
    });
    // Rules of the ledger whose two sides differ.
    let imbalances = report.imbalances.iter().map(|found| {
        to_object(&[
            ("place", &found.place),
            ("rule", &found.rule),
            ("left", &found.left),
            ("right", &found.right),
        ])
    });
    to_object(&[
        ("version", &JSON_FORMAT_VERSION),
        // True if every edge, filter and source balances.
        ("balanced", &report.imbalances.is_empty()),
        // Number of blocks lost at all locations.
        ("lost", &report.lost_blocks()),
        // True if a signal or `--for` ended the run.
        ("stopped", &outcome.stopped),
        ("elapsed_ns", &outcome.elapsed_ns),
        ("sources", &ledger.sources.iter().map(source_json).collect::<Vec<_>>()),
        ("filters", &filters.collect::<Vec<_>>()),
        (
            "edges",
            &ledger.edges.iter().map(|counted| edge_json(report, counted)).collect::<Vec<_>>(),
        ),
        ("programs", &programs_json(report)),
        // Filters that were planned for the kernel and refused by it.
        ("refused", &refusals_json(report.plan, &report.names)),
        // Changes that the path made by itself, as sentences with reasons.
        ("adapted", &outcome.adapted),
        // Latency of blocks; present with `--latency`.
        ("latency?", &outcome.latency),
        ("failures", &failures.collect::<Vec<_>>()),
        ("imbalances", &imbalances.collect::<Vec<_>>()),
        // Worker processes; present with `--engines`.
        ("engines?", &report.workers.iter().map(worker_json).collect::<Vec<_>>()),
    ])
}

/// Returns the results of one of several worker processes, each of which processes a part of the
/// sessions.
fn worker_json((worker, own): &(&WorkerRun, Report<'_>)) -> JsonObject {
    to_object(&[
        ("number", &worker.number),
        ("process", &worker.process),
        ("processor", &worker.processor),
        ("run", &run_json(own)),
    ])
}

/// Returns the report of a filter at the end of the request as one object, for standard output.
pub(super) fn filter_report_json(report: &Report<'_>, reported: &NodeReport) -> JsonObject {
    let filter = report.names.get(reported.planned).unwrap_or(&reported.name);
    to_object(&[
        ("version", &JSON_FORMAT_VERSION),
        ("filter", &filter),
        ("report", &rows_json(reported)),
    ])
}

/// Returns the counts of a source. They satisfy seen = given + dropped.
fn source_json((name, source): &(String, SourceCounters)) -> JsonObject {
    let dropped = source.dropped.iter().map(|(place, n)| (place.text(), *n));
    to_object(&[
        ("name", name),
        ("seen", &source.observed),
        ("given", &source.given),
        // Lost blocks by location; `null` if the location has no counter.
        ("dropped", &dropped.collect::<BTreeMap<_, _>>()),
        // Positions of the lost blocks by location, if they are known.
        ("missing?", &missing_ranges_json(&source.missing)),
        ("remark?", &source.remark),
    ])
}

/// Returns the counts of a filter. They satisfy taken + made = passed + unselected + consumed +
/// held + dropped.
fn filter_json(report: &Report<'_>, entry: &NodeEntry) -> JsonObject {
    let plan = report.plan;
    let space = |planned: usize| Some(&plan.spaces.get(plan.placements.get(planned)?.space)?.name);
    let name = report.display_name(entry);
    let own = name == report.names.get(entry.planned).map_or("", String::as_str);
    let mut reports = report.outcome.reports.iter();
    let own_report = reports.find(|reported| reported.planned == entry.planned).filter(|_| own);
    let outputs = own_report.into_iter().flat_map(|reported| &reported.report.outputs);
    // Items of one kind that a sink has written or sent: `packet`, `written to x.pcap`.
    let outputs = outputs
        .map(|one| to_object(&[("count", &one.count), ("unit", &one.unit), ("done", &one.done)]));
    to_object(&[
        ("name", &name),
        ("space", &space(entry.planned)),
        ("taken", &entry.taken),
        ("made", &entry.made),
        ("passed", &entry.passed),
        ("unselected", &entry.unselected),
        ("consumed", &entry.consumed),
        ("held", &entry.held),
        // Drops by reason.
        (
            "dropped",
            &entry.dropped.iter().map(|(why, n)| (why.text(), n)).collect::<JsonMap<'_, _>>(),
        ),
        // Blocks without a class, by reason; the counts above include them.
        (
            "unanswered",
            &entry.unanswered.iter().map(|(why, n)| (&**why, n)).collect::<JsonMap<'_, _>>(),
        ),
        ("counters", &entry.printed_counters().collect::<JsonMap<'_, _>>()),
        ("calls", &entry.calls),
        ("busy_ns", &entry.busy_ns),
        // Size in bytes of the ring from which other programs read, and the reason for its last
        // change.
        ("ring?", &entry.ring),
        // Past frames that the node retains, and the memory that they occupy.
        ("kept?", &entry.kept),
        // Rows of the filter's final report, in order.
        ("report", &own_report.map(rows_json).filter(|rows| !rows.is_empty())),
        ("outputs?", &outputs.collect::<Vec<_>>()),
        // Further observations as sentences, none of which is a failure.
        ("remarks?", &own_report.map(|reported| &reported.report.remarks)),
    ])
}

type JsonMap<'r, V> = BTreeMap<&'r str, V>;

/// Returns the counts of an edge. They satisfy put = taken + dropped + resident.
fn edge_json(report: &Report<'_>, counted: &Edge) -> JsonObject {
    let (from, to) = report.end_names(counted);
    // Wakeups of the reader by cause: a full batch, the expired interval T_t, or a writer about to
    // sleep.
    let events = counted.events.map(|events| {
        to_object(&[("batch", &events.batch), ("timer", &events.timer), ("idle", &events.idle)])
    });
    // The current size of a ring, and the reason for its last change.
    let size = counted.size.as_ref().map(|size| {
        to_object(&[
            ("entries", &size.entries),
            ("signal_blocks", &size.signal_blocks),
            ("grown", &size.grown),
            ("shrunk", &size.shrunk),
            ("because", &size.last_resize_reason),
        ])
    });
    to_object(&[
        ("from", &from),
        ("to", &to),
        ("kind", &counted.kind.name()),
        ("put", &counted.put),
        ("taken", &counted.taken),
        ("resident", &counted.resident),
        // Drops by reason.
        (
            "dropped",
            &counted.dropped.iter().map(|(why, n)| (why.text(), n)).collect::<JsonMap<'_, _>>(),
        ),
        // Positions of the dropped blocks by reason, if they are known.
        ("missing?", &missing_ranges_json(&counted.missing)),
        ("events?", &events),
        ("size?", &size),
    ])
}

/// Returns the sequence numbers of missing blocks, as an object for each location at which blocks
/// are missing. If there are too many ranges, the object contains the first and the last ranges,
/// and the number of ranges between them.
fn missing_ranges_json<'r>(all: &[(&'r str, LossRanges)]) -> JsonMap<'r, JsonObject> {
    let ranges = |missing: &LossRanges| {
        to_object(&[
            ("ranges", &missing.gaps().collect::<Vec<_>>()),
            // Number of omitted ranges, which follow the first `listed_first` ranges.
            ("more", &missing.discarded_range_count()),
            ("listed_first", &missing.leading_range_count()),
        ])
    };
    all.iter().map(|(place, missing)| (*place, ranges(missing))).collect()
}

/// Returns one object for each kernel program, with its source, counts and run time.
fn programs_json(report: &Report<'_>) -> Vec<JsonObject> {
    let programs = report.outcome.programs.iter().map(|ran| {
        to_object(&[
            // Name of the source that the program replaces.
            ("source", &report.names.get(ran.source).map_or("", String::as_str)),
            ("frames", &ran.frames),
            // Number of notifications sent to the thread that reads its rings.
            ("bells", &ran.notifications),
            // Runs that the kernel timed, and their total duration; present with `--analyze`.
            ("runs", &ran.measured.map(|(runs, _)| runs)),
            ("run_ns", &ran.measured.map(|(_, ns)| ns)),
        ])
    });
    programs.collect()
}

/// Returns the filters that the kernel refused, each with the reason and the space in which it runs
/// instead.
pub fn refusals_json(plan: &Plan, names: &[String]) -> Vec<JsonObject> {
    let refused = plan.refusals.iter().map(|refused| {
        to_object(&[
            ("filter", &names[refused.node.0]),
            ("space", &plan.space_of(refused.node).name),
            ("why", &refused.why),
        ])
    });
    refused.collect()
}

fn rows_json(reported: &NodeReport) -> Vec<JsonObject> {
    let rows = reported.report.rows.iter();
    rows.map(|(what, value)| to_object(&[("what", what), ("value", value)])).collect()
}

/// Serializes an object as one line of JSON.
pub fn to_json_line(object: &impl Serialize) -> String {
    format!("{}\n", EscapedJson(&object.json()))
}
