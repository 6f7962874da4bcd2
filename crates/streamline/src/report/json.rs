//! Reports as JSON: one object per line, whose form these types are.
//!
//! `version` changes when a field goes or changes its meaning; new fields may come without. Amounts
//! are in blocks and bytes, times in ns. What cannot be known is `null`.

use super::Report;
use crate::workers::WorkerRun;
use abi::text::Escaped;
use pipeline::plan::Plan;
use runtime::report::Reported;
use serde::Serialize;
use std::collections::BTreeMap;

/// The version of all forms here.
const VERSION: u32 = 1;

/// Blocks and their bytes.
#[derive(Serialize, Debug)]
pub(super) struct Amount {
    blocks: u64,
    bytes: u64,
}

macro_rules! amount {
    ($amount:expr) => {{
        let amount = $amount;
        Amount { blocks: amount.blocks, bytes: amount.bytes }
    }};
}

/// The outcome of a run.
#[derive(Serialize, Debug)]
pub(super) struct Run<'r> {
    version: u32,
    /// True if every edge, filter and source balances.
    balanced: bool,
    /// Blocks that were dropped anywhere.
    lost: u64,
    /// True if a signal or `--for` ended it.
    stopped: bool,
    elapsed_ns: u64,
    sources: Vec<Source<'r>>,
    filters: Vec<Filter<'r>>,
    edges: Vec<Edge<'r>>,
    /// Programs in the kernel.
    programs: Vec<Program<'r>>,
    /// Filters planned for the kernel that it refused.
    refused: Vec<Refused<'r>>,
    /// Changes the path made by itself, with reasons.
    adapted: &'r [String],
    /// Latency, for a line with `--latency`.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<Latency<'r>>,
    failures: Vec<Failure<'r>>,
    imbalances: Vec<Imbalance<'r>>,
    /// Each worker process, for a line with `--engines`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    engines: Vec<Engine<'r>>,
}

/// A process that ran the line for its share of the sessions.
#[derive(Serialize, Debug)]
struct Engine<'r> {
    number: u32,
    process: u32,
    processor: usize,
    run: Run<'r>,
}

/// seen = given + dropped.
#[derive(Serialize, Debug)]
struct Source<'r> {
    name: &'r str,
    seen: Option<Amount>,
    given: Amount,
    /// Losses by place.
    dropped: BTreeMap<&'r str, Option<u64>>,
    /// Positions of the lost blocks by place, where known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    missing: BTreeMap<&'r str, Missing>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remark: Option<&'r str>,
}

/// taken + made = passed + unselected + consumed + held + dropped.
#[derive(Serialize, Debug)]
struct Filter<'r> {
    name: &'r str,
    space: Option<&'r str>,
    taken: Amount,
    made: Amount,
    passed: Amount,
    unselected: Amount,
    consumed: Amount,
    held: Amount,
    /// Drops by reason.
    dropped: BTreeMap<&'r str, Amount>,
    /// Blocks without an answer, by reason; they are among those above.
    unanswered: BTreeMap<&'r str, u64>,
    counters: BTreeMap<&'r str, u64>,
    calls: u64,
    busy_ns: u64,
    /// Its final report, if it makes one, in its order.
    report: Option<Vec<Row<'r>>>,
    /// Outputs of a sink.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<Output<'r>>,
    /// Sentences that a person should read besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remarks: Vec<&'r str>,
}

/// Things of one kind that a sink has put somewhere.
#[derive(Serialize, Debug)]
struct Output<'r> {
    count: u64,
    /// One of them: `packet`.
    unit: &'r str,
    /// The action: `written to x.pcap`.
    done: &'r str,
}

/// put = taken + dropped + resident.
#[derive(Serialize, Debug)]
struct Edge<'r> {
    from: &'r str,
    to: &'r str,
    /// `call`, `ring`, `back edge` or `pipe`.
    kind: &'static str,
    put: Amount,
    taken: Amount,
    resident: Amount,
    /// Drops by reason.
    dropped: BTreeMap<&'r str, Amount>,
    /// Positions of the dropped blocks by reason, where known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    missing: BTreeMap<&'r str, Missing>,
    /// For a ring: the number of wakeups of its reader.
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<Events>,
}

/// Positions of missing blocks: the first and the last ranges, and how many are between.
#[derive(Serialize, Debug)]
struct Missing {
    ranges: Vec<Range>,
    /// Number of ranges that are not listed, behind the first `listed_first`.
    more: u64,
    listed_first: usize,
}

/// Missing blocks one behind the other, both ends included.
#[derive(Serialize, Debug)]
struct Range {
    from: u64,
    to: u64,
    /// The processor by whose blocks it is counted, where each counts its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    processor: Option<u32>,
}

/// Wakes, by what sent them.
#[derive(Serialize, Debug)]
struct Events {
    /// T_b blocks were there.
    batch: u64,
    /// T_t was over.
    timer: u64,
    /// The writer was about to wait.
    idle: u64,
}

/// The latency of blocks.
#[derive(Serialize, Debug)]
struct Latency<'r> {
    /// The bound of the request.
    asked_ns: u64,
    /// Number of alarms: at most one per second.
    alarms: u64,
    /// The whole way, by sink: every block.
    ways: Vec<Measured<'r>>,
    /// Waits by place: of a ring one at a time is measured.
    waits: Vec<Measured<'r>>,
}

/// The latency of blocks up to a place, or their wait there.
#[derive(Serialize, Debug)]
struct Measured<'r> {
    name: &'r str,
    /// The share of the bound.
    share_ns: u64,
    /// Blocks that were looked at.
    blocks: u64,
    /// Blocks that took longer.
    late: u64,
    worst_ns: u64,
}

/// A program in the kernel as a whole.
#[derive(Serialize, Debug)]
struct Program<'r> {
    /// The source that it stands for.
    source: &'r str,
    frames: u64,
    /// Number of notifications of its reader's thread.
    bells: u64,
    /// Runs that the kernel measured, and how long they took: with `--analyze`.
    runs: Option<u64>,
    run_ns: Option<u64>,
}

/// A filter that runs elsewhere because the kernel refused it.
#[derive(Serialize, Debug)]
pub struct Refused<'r> {
    filter: &'r str,
    /// The space.
    space: &'r str,
    why: &'r str,
}

/// The failure that ended a path early.
#[derive(Serialize, Debug)]
struct Failure<'r> {
    node: &'r str,
    what: String,
    /// The file with the block on which the filter failed.
    block: Option<String>,
    /// The command that repeats the failure.
    replay: Option<&'r str>,
}

/// Two sides that should be equal.
#[derive(Serialize, Debug)]
struct Imbalance<'r> {
    place: &'r str,
    rule: &'r str,
    left: u64,
    right: u64,
}

/// A line of a filter's report.
#[derive(Serialize, Debug)]
struct Row<'r> {
    what: &'r str,
    value: u64,
}

/// The report of a filter at the end of the line, on standard output.
#[derive(Serialize, Debug)]
pub(super) struct End<'r> {
    version: u32,
    filter: &'r str,
    report: Vec<Row<'r>>,
}

/// The object of a run.
pub(super) fn run<'r>(report: &'r Report<'_>) -> Run<'r> {
    let outcome = report.outcome;
    Run {
        version: VERSION,
        balanced: report.imbalances.is_empty(),
        lost: report.lost(),
        stopped: outcome.stopped,
        elapsed_ns: outcome.elapsed_ns,
        sources: sources(report),
        filters: filters(report),
        edges: edges(report),
        programs: programs(report),
        refused: refused(report.plan, &report.names),
        adapted: &outcome.adapted,
        latency: outcome.latency.as_ref().map(latency),
        failures: failures(report),
        imbalances: report
            .imbalances
            .iter()
            .map(|imbalance| Imbalance {
                place: &imbalance.place,
                rule: imbalance.rule,
                left: imbalance.left,
                right: imbalance.right,
            })
            .collect(),
        engines: report.workers.iter().map(engine).collect(),
    }
}

fn engine<'r>((worker, own): &'r (&WorkerRun, Report<'_>)) -> Engine<'r> {
    let WorkerRun { number, process, processor, .. } = **worker;
    Engine { number, process, processor, run: run(own) }
}

/// The object of a filter at the end of the line.
pub(super) fn end<'r>(report: &'r Report<'_>, reported: &'r Reported) -> End<'r> {
    let filter = report.names.get(reported.planned).unwrap_or(&reported.name);
    End { version: VERSION, filter, report: rows(reported) }
}

fn sources<'r>(report: &'r Report<'_>) -> Vec<Source<'r>> {
    let sources = report.outcome.ledger.sources.iter();
    sources
        .map(|(name, seen)| Source {
            name,
            seen: seen.seen.map(|seen| amount!(seen)),
            given: amount!(seen.given),
            dropped: seen.dropped.iter().map(|(place, n)| (place.text(), *n)).collect(),
            missing: missing(&seen.missing),
            remark: seen.remark.as_deref(),
        })
        .collect()
}

fn filters<'r>(report: &'r Report<'_>) -> Vec<Filter<'r>> {
    let plan = report.plan;
    let space =
        |planned: usize| Some(plan.spaces.get(plan.placed.get(planned)?.space)?.name.as_str());
    let filters = report.outcome.ledger.filters.iter();
    filters
        .map(|filter| {
            let name = report.name(filter);
            let said = report.outcome.reports.iter().find(|told| told.planned == filter.planned);
            let own = name == report.names.get(filter.planned).map_or("", String::as_str);
            let said = said.filter(|_| own);
            Filter {
                name,
                space: space(filter.planned),
                taken: amount!(filter.taken),
                made: amount!(filter.made),
                passed: amount!(filter.passed),
                unselected: amount!(filter.unselected),
                consumed: amount!(filter.consumed),
                held: amount!(filter.held),
                dropped: filter.dropped.iter().map(|(why, n)| (why.text(), amount!(n))).collect(),
                unanswered: filter.unanswered.iter().map(|(why, n)| (why.as_str(), *n)).collect(),
                counters: filter.counted().collect(),
                calls: filter.calls,
                busy_ns: filter.busy_ns,
                report: said.filter(|said| !said.report.rows.is_empty()).map(rows),
                outputs: said.into_iter().flat_map(outputs).collect(),
                remarks: said.into_iter().flat_map(remarks).collect(),
            }
        })
        .collect()
}

fn edges<'r>(report: &'r Report<'_>) -> Vec<Edge<'r>> {
    let edges = report.outcome.ledger.edges.iter();
    edges
        .map(|edge| {
            let (from, to) = report.ends(edge);
            Edge {
                from,
                to,
                kind: edge.kind.name(),
                put: amount!(edge.put),
                taken: amount!(edge.taken),
                resident: amount!(edge.resident),
                dropped: edge.dropped.iter().map(|(why, n)| (why.text(), amount!(n))).collect(),
                missing: missing(&edge.missing),
                events: edge.events.map(|events| Events {
                    batch: events.batch,
                    timer: events.timer,
                    idle: events.idle,
                }),
            }
        })
        .collect()
}

fn missing<'r>(all: &[(&'r str, runtime::ledger::Missing)]) -> BTreeMap<&'r str, Missing> {
    let range =
        |gap: runtime::ledger::Gap| Range { from: gap.from, to: gap.to, processor: gap.processor };
    let told = |missing: &runtime::ledger::Missing| Missing {
        ranges: missing.gaps().map(range).collect(),
        more: missing.more(),
        listed_first: missing.kept_first(),
    };
    all.iter().map(|(place, missing)| (*place, told(missing))).collect()
}

fn latency(told: &runtime::latency::Latency) -> Latency<'_> {
    Latency {
        asked_ns: told.asked_ns,
        alarms: told.breaches,
        ways: told.ways.iter().map(measured).collect(),
        waits: told.waits.iter().map(measured).collect(),
    }
}

fn measured(at: &runtime::latency::Measured) -> Measured<'_> {
    Measured {
        name: &at.name,
        share_ns: at.share_ns,
        blocks: at.looked,
        late: at.over,
        worst_ns: at.worst_ns,
    }
}

fn programs<'r>(report: &'r Report<'_>) -> Vec<Program<'r>> {
    let each = report.outcome.programs.iter().map(|ran| Program {
        source: report.names.get(ran.source).map_or("", String::as_str),
        frames: ran.frames,
        bells: ran.bells,
        runs: ran.measured.map(|(runs, _)| runs),
        run_ns: ran.measured.map(|(_, ns)| ns),
    });
    each.collect()
}

/// Returns the refusals of the kernel for a plan.
pub fn refused<'r>(plan: &'r Plan, names: &'r [String]) -> Vec<Refused<'r>> {
    let each = plan.refused.iter().map(|refused| Refused {
        filter: &names[refused.node.0],
        space: &plan.space_of(refused.node).name,
        why: &refused.why,
    });
    each.collect()
}

fn failures<'r>(report: &'r Report<'_>) -> Vec<Failure<'r>> {
    let failures = report.outcome.failures.iter().zip(report.crashes);
    failures
        .map(|(failure, crash)| Failure {
            node: &failure.node,
            what: failure.to_string(),
            block: crash.as_ref().map(|crash| crash.path.display().to_string()),
            replay: crash.as_ref().map(|crash| crash.command.as_str()),
        })
        .collect()
}

fn rows(reported: &Reported) -> Vec<Row<'_>> {
    reported.report.rows.iter().map(|(what, value)| Row { what, value: *value }).collect()
}

fn outputs(reported: &Reported) -> impl Iterator<Item = Output<'_>> {
    let each = reported.report.outputs.iter();
    each.map(|one| Output { count: one.count, unit: &one.unit, done: &one.done })
}

fn remarks(reported: &Reported) -> impl Iterator<Item = &str> {
    reported.report.remarks.iter().map(String::as_str)
}

/// An object as a line.
pub fn line(object: &impl Serialize) -> String {
    // Numbers, texts, lists and maps with texts as keys: nothing here can fail.
    let text = serde_json::to_string(object).unwrap_or_else(|error| format!("\"{error}\""));
    format!("{}\n", Escaped(&text))
}
