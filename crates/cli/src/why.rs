//! `streamline why`: what became of a flow, node by node.
//!
//! The run of a record is repeated, or a line is run over a capture, with nothing written: a row
//! for each node that saw blocks of the flow, in the order of the line.

use crate::arguments::{RunArguments, WhyArguments};
use crate::failure::{self, refuse, refused};
use crate::run::{self, quiet_panics};
use crate::status::Status;
use crate::terminal;
use engine::build::Extras;
use engine::catalogue::House;
use engine::record::Tape;
use engine::signal;
use engine::why::{Row, Why};
use pipeline::explain;
use pipeline::explain::table::{Column, Table};
use pipeline::graph::NodeId;
use pipeline::plan::Plan;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use streamline::record::Recorded;
use streamline::report::json_line;
use streamline::{Options, Prepared, Results};

/// The version of the form of `--json`.
const VERSION: u32 = 1;

/// Answers a question about a flow.
pub(crate) fn why(given: &WhyArguments) -> Status {
    answer(given, &expression(&given.flow)).unwrap_or_else(|status| status)
}

/// A path to ask: its plan, where its blocks come from, and how many it takes.
type Asked = (Prepared, Tape, Option<u64>);

fn answer(given: &WhyArguments, expression: &str) -> Result<Status, Status> {
    let (prepared, tape, count) = match given.words.as_slice() {
        [] => recorded(&given.file)?,
        words => over(&given.file, &words.join(" "))?,
    };
    let why = Why::new(expression, &prepared.plan().graph, &tape).map_err(|mistake| {
        terminal::complain(&format!("`{expression}` is no flow: {mistake}"));
        Status::Usage
    })?;
    let why = Arc::new(why);
    let extras = Extras { tape, silent: true, why: Some(Arc::clone(&why)), ..Extras::default() };
    let quiet = RunArguments { quiet: true, count, ..RunArguments::default() };
    quiet_panics();
    signal::watch().map_err(|error| refused(&error))?;
    let ready = prepared.build_with(&run::options(&quiet), extras).map_err(refuse)?;
    let Results { plan, outcome, .. } = run::watched(ready, &quiet)?.results;
    for failure in outcome.failures.iter().filter(|failure| !failure.is_quiet()) {
        terminal::complain(&failure.to_string());
    }
    let rows = why.rows();
    if rows.iter().all(|row| row.packets.is_empty()) {
        terminal::complain(&format!("no packet of {} is of this flow", given.file.display()));
        return Err(Status::Nothing);
    }
    Ok(terminal::print(&match given.json {
        true => json_line(&Told::new(expression, &rows, &plan)),
        false => table(&rows, &plan),
    }))
}

/// The run of a record.
fn recorded(file: &Path) -> Result<Asked, Status> {
    let recorded = Recorded::open(file).map_err(refuse)?;
    if recorded.is_changed() {
        let file = file.display();
        terminal::complain(&format!(
            "{file} is of a path that was changed while it ran, and `why` tells of one line: `why \
             FLOW {file} LINE` runs that line over its packets"
        ));
        return Err(Status::Failed);
    }
    Ok(recorded.into_parts())
}

/// A line over the packets of a file.
fn over(file: &Path, words: &str) -> Result<Asked, Status> {
    let name = file.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
    let source = format!("replay \"{name}\"");
    let (graph, _) = pipeline::read(words, &House);
    let begins = |id: &NodeId| {
        let used = graph.node(*id).filter();
        used.is_some_and(|used| used.description.kind.is_source())
    };
    let text = match graph.heads().iter().all(begins) {
        true => streamline::replaced(words, &graph, &source),
        false => format!("{source} | {words}"),
    };
    let notices = failure::notices(false);
    let options = Options { outside_kernel: true, notices, ..Options::default() };
    let prepared = Prepared::read(&text, &options).map_err(refuse)?;
    Ok((prepared.first_worker(), Tape::Off, None))
}

/// The expression that these words mean: two ends of a connection, or what they say.
fn expression(flow: &str) -> String {
    let words: Vec<&str> = flow.split_whitespace().collect();
    let ends = match words.as_slice() {
        [protocol @ ("tcp" | "udp"), one, two] => end(one).zip(end(two)).map(|e| (protocol, e)),
        _ => None,
    };
    let Some((protocol, ((here, from), (there, to)))) = ends else { return flow.to_owned() };
    format!(
        "{protocol} and ((src host {here} and src port {from} and dst host {there} and dst port \
         {to}) or (src host {there} and src port {to} and dst host {here} and dst port {from}))"
    )
}

/// An address and a port: `10.0.0.1:80`, `[fe80::1]:80`.
fn end(text: &str) -> Option<(IpAddr, u16)> {
    let end: SocketAddr = text.parse().ok()?;
    Some((end.ip(), end.port()))
}

/// The rows in the order of the line.
fn in_order(rows: &[Row], plan: &Plan) -> Vec<Row> {
    let ids = plan.graph.ids();
    ids.filter_map(|(id, _)| rows.iter().find(|row| row.planned == id.0).cloned()).collect()
}

/// Wide enough for most rows, and narrow enough for most terminals; cells break.
const COLUMNS: usize = 110;

fn table(rows: &[Row], plan: &Plan) -> String {
    let names = explain::names(&plan.graph);
    let mut table = Table::new(&[
        Column::left("filter"),
        Column::right("came"),
        Column::right("bytes"),
        Column::left("left as"),
        Column::left("what else"),
        Column::left("packets"),
    ]);
    for row in in_order(rows, plan) {
        let sink = plan.graph.outputs(NodeId(row.planned)).next().is_none();
        table.row([
            names[row.planned].clone(),
            row.came.blocks.to_string(),
            row.came.bytes.to_string(),
            if sink { "the path ends here".to_owned() } else { list(&row.answered) },
            rest(&row),
            ranges(&row.packets),
        ]);
    }
    table.text(COLUMNS)
}

fn list(counts: &BTreeMap<String, u64>) -> String {
    let each = counts.iter().map(|(what, count)| format!("{what} {count}"));
    each.collect::<Vec<_>>().join(", ")
}

/// Formats blocks held, dropped, consumed, made, and selected by no arc.
fn rest(row: &Row) -> String {
    let mut said = Vec::new();
    if row.held > 0 {
        let longest = explain::nanoseconds(row.held_max);
        said.push(format!("held {} (longest {longest}), let go {}", row.held, row.released));
    }
    said.extend(row.dropped.iter().map(|(why, count)| format!("dropped {count} ({why})")));
    let unanswered = row.unanswered.iter();
    said.extend(unanswered.map(|(why, count)| format!("not answered {count} ({why})")));
    let counts =
        [("used up", row.consumed), ("made", row.made), ("wanted by no arc", row.unselected)];
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    said.extend(counts.map(|(what, count)| format!("{what} {count}")));
    said.join(", ")
}

/// Numbers as ranges: `3-5, 9`.
fn ranges(numbers: &[u64]) -> String {
    const SHOWN: usize = 12;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): &(u64, u64)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let mut shown: Vec<String> = ranges.iter().take(SHOWN).map(text).collect();
    if ranges.len() > SHOWN {
        shown.push("…".to_owned());
    }
    shown.join(", ")
}

#[derive(Serialize, Debug)]
struct Told<'r> {
    version: u32,
    flow: &'r str,
    nodes: Vec<ToldRow>,
}

#[derive(Serialize, Debug)]
struct ToldRow {
    filter: String,
    space: String,
    blocks: u64,
    bytes: u64,
    /// Blocks by the class with which they left.
    answered: BTreeMap<String, u64>,
    unselected: u64,
    made: u64,
    consumed: u64,
    held: u64,
    held_max_ns: u64,
    released: u64,
    dropped: BTreeMap<String, u64>,
    unanswered: BTreeMap<String, u64>,
    /// The numbers of the packets, from 1.
    packets: Vec<u64>,
}

impl<'r> Told<'r> {
    fn new(flow: &'r str, rows: &[Row], plan: &Plan) -> Self {
        let names = explain::names(&plan.graph);
        let told = |row: Row| ToldRow {
            filter: names[row.planned].clone(),
            space: plan.space_of(NodeId(row.planned)).name.clone(),
            blocks: row.came.blocks,
            bytes: row.came.bytes,
            answered: row.answered,
            unselected: row.unselected,
            made: row.made,
            consumed: row.consumed,
            held: row.held,
            held_max_ns: row.held_max,
            released: row.released,
            dropped: row.dropped,
            unanswered: row.unanswered,
            packets: row.packets,
        };
        let nodes = in_order(rows, plan).into_iter().map(told).collect();
        Self { version: VERSION, flow, nodes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_two_ends_or_an_expression() {
        let tcp = expression("tcp 10.0.0.1:1234 10.0.0.2:80");
        assert!(tcp.starts_with("tcp and ((src host 10.0.0.1 and src port 1234 and dst host"));
        assert!(
            expression("udp [fe80::1]:53 [fe80::2]:1").contains("host fe80::1 and src port 53")
        );
        for other in ["tcp port 80", "host 10.0.0.1", "tcp 10.0.0.1 10.0.0.2:80"] {
            assert_eq!(expression(other), other);
        }
    }

    #[test]
    fn numbers_become_ranges() {
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), "1-3, 7, 9-10");
        assert_eq!(ranges(&[]), "");
    }
}
