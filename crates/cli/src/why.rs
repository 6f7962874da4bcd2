//! `streamline why`: traces a flow through a request, node by node.
//!
//! Replays a record, or runs a request over a capture, without writing any output. Prints a row for
//! each node that received blocks of the flow, in the order of the request.

use crate::arguments::{RunArguments, WhyArguments};
use crate::failure::{self, report_open_error, report_system_error};
use crate::progress::format_consecutive_ranges;
use crate::run::{self, silence_space_panics};
use crate::status::Status;
use crate::terminal;
use engine::build::PathOptions;
use engine::record::RecordMode;
use engine::registry::MachineRegistry;
use engine::signal;
use engine::why::{FlowQuery, NodeFate};
use pipeline::explain;
use pipeline::explain::table::Table;
use pipeline::graph::NodeId;
use pipeline::plan::Plan;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use streamline::record::ReplayableRecord;
use streamline::report::{JsonObject, json_line, to_object};
use streamline::{Options, PreparedRequest, RunResults};

/// Version of the output format of `why --json`.
const JSON_VERSION: u32 = 1;

/// Traces a flow and prints the table.
pub(crate) fn trace_flow(arguments: &WhyArguments) -> Status {
    print_trace(arguments, &flow_expression(&arguments.flow)).unwrap_or_else(|status| status)
}

/// The input of a trace: a prepared request, and facts about the record that it replays.
#[derive(Debug)]
struct TraceInput {
    prepared: PreparedRequest,
    record_mode: RecordMode,
    /// The block limit of the recorded run; `None` if the run had no limit or if the input is a
    /// capture.
    count: Option<u64>,
    /// Sentence that reports the packets missing from the record. `None` if no packets are missing
    /// or if the input is a capture.
    gap: Option<String>,
    /// True if the record is truncated or was modified.
    is_damaged: bool,
}

fn print_trace(arguments: &WhyArguments, expression: &str) -> Result<Status, Status> {
    let request = prepare_request(arguments)?;
    let why = FlowQuery::new(expression, &request.prepared.plan().graph, &request.record_mode)
        .map_err(|mistake| {
            terminal::print_error(&format!("`{expression}` is not a flow: {mistake}"));
            Status::Usage
        })?;
    let why = Arc::new(why);
    let is_damaged = request.is_damaged;
    let mut incomplete: Vec<String> = request.gap.iter().cloned().collect();
    incomplete.iter().for_each(|gap| terminal::print_warning(gap));
    silence_space_panics();
    let mut results = run_trace(request, &why)?;
    if can_reread(&arguments.file) && why.rewind_if_incomplete() {
        results = run_trace(prepare_request(arguments)?, &why)?;
    }
    let RunResults { plan, outcome, .. } = &results;
    let failures = outcome.failures.iter().filter(|failure| !failure.is_quiet());
    let failures: Vec<String> = failures.map(ToString::to_string).collect();
    failures.iter().for_each(|failure| terminal::print_error(failure));
    let is_whole = failures.is_empty() && !is_damaged;
    let status = if is_whole { Status::Done } else { Status::Failed };
    incomplete.extend(failures);
    let rows = why.node_fates();
    if rows.iter().all(|row| row.packets.is_empty()) {
        let file = arguments.file.display();
        terminal::print_error(&format!("no packet of {file} belongs to this flow"));
        return Err(if status == Status::Done { Status::NotFound } else { status });
    }
    let printed = terminal::print_text(&match arguments.json {
        true => json_line(&to_json(expression, &rows, plan, &incomplete)),
        false => format_table(&rows, plan),
    });
    Ok(if printed == Status::Done { status } else { printed })
}

/// Prepares the request of the record, or the request that reads the capture.
fn prepare_request(arguments: &WhyArguments) -> Result<TraceInput, Status> {
    match arguments.words.as_slice() {
        [] => open_record(&arguments.file),
        words => prepare_capture(&arguments.file, &words.join(" ")),
    }
}

/// Runs a request to its end without output, while `why` records the fate of the traced flow at
/// each node.
fn run_trace(request: TraceInput, why: &Arc<FlowQuery>) -> Result<RunResults, Status> {
    let TraceInput { prepared, record_mode, count, .. } = request;
    let extras = PathOptions {
        record_mode,
        discards_output: true,
        flow_query: Some(Arc::clone(why)),
        ..PathOptions::default()
    };
    let quiet = RunArguments { quiet: true, count, ..RunArguments::default() };
    signal::watch_stop_signals().map_err(|error| report_system_error(&error))?;
    // A trace is not registered with the daemon, so other users and programs cannot observe or
    // change it.
    let options = Options { embedded: true, ..run::options_from_arguments(&quiet) };
    let ready = prepared.build_with(&options, extras).map_err(report_open_error)?;
    Ok(run::run_built_request(ready, &quiet)?.0.results)
}

/// Returns true if a file can be read twice: it is a regular file, and not a pipe.
fn can_reread(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file())
}

/// Opens a record. Fails for a record whose request was changed during the run, because such a run
/// cannot be traced.
fn open_record(file: &Path) -> Result<TraceInput, Status> {
    let recorded = ReplayableRecord::open(file).map_err(report_open_error)?;
    if recorded.has_request_changes() {
        let file = file.display();
        terminal::print_error(&format!(
            "{file} records a path that was changed at run time, and `why` traces one request: \
             `why FLOW {file} REQUEST` runs that request over its packets"
        ));
        return Err(Status::Failed);
    }
    let (gap, is_damaged) = (recorded.missing_frames_reason(), recorded.is_damaged());
    let (prepared, record_mode, count) = recorded.into_parts();
    Ok(TraceInput { prepared, record_mode, count, gap, is_damaged })
}

/// Prepares a request that reads the packets of a capture.
fn prepare_capture(file: &Path, words: &str) -> Result<TraceInput, Status> {
    let name = file.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
    let source = format!("replay \"{name}\"");
    let (graph, _) = pipeline::read_request(words, &MachineRegistry::Local);
    let begins = |id: &NodeId| {
        let used = graph.node(*id).filter();
        used.is_some_and(|used| used.description.kind.is_source())
    };
    let text = match graph.heads().iter().all(begins) {
        true => streamline::replace_sources(words, &graph, &source),
        false => format!("{source} | {words}"),
    };
    let notices = failure::notice_handler(false);
    let options = Options { outside_kernel: true, notices, ..Options::default() };
    let prepared = PreparedRequest::read(&text, &options).map_err(report_open_error)?;
    let prepared = prepared.reduce_to_first_worker();
    let record_mode = RecordMode::Off;
    Ok(TraceInput { prepared, record_mode, count: None, gap: None, is_damaged: false })
}

/// Converts a flow of the form `tcp ADDRESS:PORT ADDRESS:PORT` (or `udp …`) to a filter expression.
/// Returns a flow of any other form unchanged.
fn flow_expression(flow: &str) -> String {
    let words: Vec<&str> = flow.split_whitespace().collect();
    let ends = match words.as_slice() {
        [protocol @ ("tcp" | "udp"), one, two] => {
            parse_endpoint(one).zip(parse_endpoint(two)).map(|e| (protocol, e))
        }
        _ => None,
    };
    let Some((protocol, ((here, from), (there, to)))) = ends else { return flow.to_owned() };
    format!(
        "{protocol} and ((src host {here} and src port {from} and dst host {there} and dst port \
         {to}) or (src host {there} and src port {to} and dst host {here} and dst port {from}))"
    )
}

/// Parses an address and a port, such as `10.0.0.1:80` or `[fe80::1]:80`. Returns `None` if the
/// text is not in this form.
fn parse_endpoint(text: &str) -> Option<(IpAddr, u16)> {
    let parse_endpoint: SocketAddr = text.parse().ok()?;
    Some((parse_endpoint.ip(), parse_endpoint.port()))
}

/// Returns the rows of the nodes in the order in which the nodes appear in the request.
fn sort_rows(rows: &[NodeFate], plan: &Plan) -> Vec<NodeFate> {
    let ids = plan.graph.nodes_with_ids();
    ids.filter_map(|(id, _)| rows.iter().find(|row| row.plan_index == id.0).cloned()).collect()
}

/// Width of the table in characters, which suffices for most rows. Longer cells are wrapped.
const TABLE_WIDTH: usize = 110;

fn format_table(rows: &[NodeFate], plan: &Plan) -> String {
    let names = explain::unique_names(&plan.graph);
    let mut table = Table::new(&["filter", ">received", ">bytes", "class", "other", "packets"]);
    for row in sort_rows(rows, plan) {
        let sink = plan.graph.outputs(NodeId(row.plan_index)).next().is_none();
        table.add_row([
            names[row.plan_index].clone(),
            row.arrived.blocks.to_string(),
            row.arrived.bytes.to_string(),
            if sink {
                "the path ends here".to_owned()
            } else {
                format_counts_by_name(&row.answered)
            },
            format_other_counts(&row),
            format_ranges(&row.packets),
        ]);
    }
    table.format_within(TABLE_WIDTH)
}

/// Formats counts by name, such as `fin 2, syn 3`.
fn format_counts_by_name(counts: &BTreeMap<String, u64>) -> String {
    let each = counts.iter().map(|(what, count)| format!("{what} {count}"));
    each.collect::<Vec<_>>().join(", ")
}

/// Formats the counts in the column `other` of a node's row: blocks that were held, dropped,
/// unanswered, consumed, created, or not selected.
fn format_other_counts(row: &NodeFate) -> String {
    let mut parts = Vec::new();
    if row.held > 0 {
        let longest = explain::format_nanoseconds(row.held_max);
        parts.push(format!("held {} (longest {longest}), released {}", row.held, row.released));
    }
    parts.extend(row.dropped.iter().map(|(why, count)| format!("dropped {count} ({why})")));
    let unanswered = row.unanswered.iter();
    parts.extend(unanswered.map(|(why, count)| format!("not answered {count} ({why})")));
    let counts =
        [("used up", row.consumed), ("made", row.made), ("selected by no arc", row.unselected)];
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    parts.extend(counts.map(|(what, count)| format!("{what} {count}")));
    parts.join(", ")
}

/// Formats numbers as ranges, such as `3-5, 9`. If there are more than 12 ranges, the rest is
/// replaced by `…`.
fn format_ranges(numbers: &[u64]) -> String {
    const RANGES_MAX: usize = 12;
    let mut texts = format_consecutive_ranges(numbers.iter().copied());
    if texts.len() > RANGES_MAX {
        texts.truncate(RANGES_MAX);
        texts.push("…".to_owned());
    }
    texts.join(", ")
}

/// Returns the trace as JSON. `incomplete` contains the reasons why packets of the flow may be
/// missing.
fn to_json(flow: &str, rows: &[NodeFate], plan: &Plan, incomplete: &[String]) -> JsonObject {
    let names = explain::unique_names(&plan.graph);
    let node = |row: NodeFate| {
        to_object(&[
            ("filter", &names[row.plan_index]),
            ("space", &plan.space_of(NodeId(row.plan_index)).name),
            ("blocks", &row.arrived.blocks),
            ("bytes", &row.arrived.bytes),
            ("answered", &row.answered),
            ("unselected", &row.unselected),
            ("made", &row.made),
            ("consumed", &row.consumed),
            ("held", &row.held),
            ("held_max_ns", &row.held_max),
            ("released", &row.released),
            ("dropped", &row.dropped),
            ("unanswered", &row.unanswered),
            // Packet numbers start at 1.
            ("packets", &row.packets),
        ])
    };
    let nodes: Vec<JsonObject> = sort_rows(rows, plan).into_iter().map(node).collect();
    to_object(&[
        ("version", &JSON_VERSION),
        ("flow", &flow),
        ("nodes", &nodes),
        ("incomplete", &incomplete),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_is_two_endpoints_or_an_expression() {
        let tcp = flow_expression("tcp 10.0.0.1:1234 10.0.0.2:80");
        assert!(tcp.starts_with("tcp and ((src host 10.0.0.1 and src port 1234 and dst host"));
        assert!(
            flow_expression("udp [fe80::1]:53 [fe80::2]:1")
                .contains("host fe80::1 and src port 53")
        );
        for other in ["tcp port 80", "host 10.0.0.1", "tcp 10.0.0.1 10.0.0.2:80"] {
            assert_eq!(flow_expression(other), other);
        }
    }

    #[test]
    fn numbers_are_formatted_as_ranges() {
        assert_eq!(format_ranges(&[1, 2, 3, 7, 9, 10]), "1-3, 7, 9-10");
        assert_eq!(format_ranges(&[]), "");
    }
}
