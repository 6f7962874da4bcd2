//! `streamline state`: prints the published state of filters (`state=NAME`). The state is read
//! directly from shared memory, which needs no daemon and does not delay the path.

use super::connect::{user_name, wait_readable, watch_signals};
use super::table::format_rows as table;
use crate::arguments::paths::StateArguments;
use crate::failure::report_system_error;
use crate::status::Status;
use crate::terminal;
use engine::published::{Address, Column, Error, Snapshot, TableNames, TableReader};
use member::client::{QUERY_TIMEOUT, mask_hidden_characters};
use member::gather::gather_answers;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;
use streamline::report::{format_count, json_line, to_object};

/// Version of the output format of `state --json`.
const JSON_VERSION: u32 = 1;
/// Interval between two reads with `--follow`.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// Lists all published states, or prints one.
pub(super) fn run(arguments: &StateArguments) -> Result<Status, Status> {
    match &arguments.name {
        None => list_states(arguments.json),
        Some(name) => print_state(name, arguments),
    }
}

#[derive(Serialize)]
struct StateSummary {
    name: String,
    uid: u32,
    /// Name of the filter, or `None` if its state is not accessible.
    filter: Option<String>,
    rows: Option<usize>,
    why: Option<String>,
}

fn list_states(json: bool) -> Result<Status, Status> {
    let names = TableNames::list().map_err(|error| {
        terminal::print_error(&format!("/proc/net/unix cannot be read: {error}"));
        Status::Failed
    })?;
    let states = read_summaries(&names);
    if json {
        return Ok(terminal::print_text(&json_line(&to_object(&[
            ("version", &JSON_VERSION),
            ("states", &states),
        ]))));
    }
    if states.is_empty() {
        let text = "no filter publishes its state; add `state=NAME` to one\n";
        return Ok(terminal::print_text(text));
    }
    let head = ["NAME", "USER", "FILTER", "ROWS"].map(str::to_owned);
    let row = |state: &StateSummary| {
        let dash = || "-".to_owned();
        let filter = state.filter.as_deref().map_or_else(dash, mask_hidden_characters);
        let rows = state.rows.map_or_else(dash, |rows| rows.to_string());
        vec![mask_hidden_characters(&state.name), user_name(state.uid), filter, rows]
    };
    let rows: Vec<Vec<String>> = states.iter().map(row).collect();
    Ok(terminal::print_text(&table(
        &head,
        &rows,
        &|column| column == 3,
        terminal::terminal_columns(),
    )))
}

/// Opens the published states of all names in parallel, and returns their summaries. If processes
/// of a user occupy names that belong to other users, prints only the number of these names,
/// because there may be many.
fn read_summaries(names: &TableNames) -> Vec<StateSummary> {
    let asked: Vec<(u32, Address)> = names.addresses().map(|a| (a.uid(), a.clone())).collect();
    let answers = gather_answers(
        &asked,
        QUERY_TIMEOUT,
        |address| names.begin_request(address).map_err(|error| Box::new(Err(error))),
        |address, visit| ControlFlow::Break(Box::new(TableReader::from_request(visit, address))),
    );
    let mut squatted: BTreeMap<u32, usize> = BTreeMap::new();
    let mut states = Vec::new();
    for ((_, address), answer) in asked.iter().zip(answers) {
        let answer = answer.map_or_else(|| Err(Error::Silent(address.clone())), |answer| *answer);
        if let Err(Error::Squatted { holder, .. }) = answer {
            *squatted.entry(holder).or_default() += 1;
        } else {
            states.extend(read_summary(address, answer));
        }
    }
    for (holder, count) in squatted {
        let names = format_count(count as u64, "name");
        terminal::print_note(&format!(
            "processes of user {} hold {names} of other users' states, which are therefore not \
             shown (root finds the process with `ss -xlp`)",
            user_name(holder)
        ));
    }
    states
}

/// Summarizes the state at `address`, given the result of opening it. Returns `None` if the filter
/// has ended since its name was listed.
fn read_summary(address: &Address, answer: Result<TableReader, Error>) -> Option<StateSummary> {
    let (name, uid) = (address.to_string(), address.uid());
    match answer {
        Ok(reader) => {
            let (filter, rows) = (reader.shape().filter.clone(), reader.snapshot().rows.len());
            Some(StateSummary { name, uid, filter: Some(filter), rows: Some(rows), why: None })
        }
        Err(Error::Unknown(_) | Error::Ended(_)) => None,
        Err(error) => {
            Some(StateSummary { name, uid, filter: None, rows: None, why: Some(error.to_string()) })
        }
    }
}

fn print_state(name: &str, arguments: &StateArguments) -> Result<Status, Status> {
    let reader = TableReader::open(name).map_err(|error| report_state_error(&error))?;
    let signals = if arguments.follow { Some(watch_signals()?) } else { None };
    let mut printed_snapshot: Option<Snapshot> = None;
    loop {
        let snapshot = reader.snapshot();
        let ended = snapshot.ended;
        if printed_snapshot.as_ref() != Some(&snapshot) {
            let text = if arguments.json {
                to_json(&reader, &snapshot)
            } else {
                format_state(&reader, &snapshot)
            };
            let printed = terminal::print_text(&text);
            if printed != Status::Done {
                return Ok(printed);
            }
        }
        printed_snapshot = Some(snapshot);
        let Some(signals) = signals else { return Ok(Status::Done) };
        if ended {
            terminal::print_note(&format!("{} has ended", reader.address()));
            return Ok(Status::Done);
        }
        let host: Vec<_> = reader.host_descriptor().into_iter().collect();
        if wait_readable(&host, signals, Some(FOLLOW_INTERVAL)).is_none()
            && has_signal_arrived(signals)
        {
            return Ok(Status::Done);
        }
    }
}

/// Returns true if a terminating signal has arrived.
fn has_signal_arrived(signals: std::os::fd::BorrowedFd<'_>) -> bool {
    sys::poll::wait_until_readable(&[signals], Some(Duration::ZERO)).contains(&true)
}

fn report_state_error(error: &Error) -> Status {
    match error {
        Error::System(error) => return report_system_error(error),
        error => terminal::print_error(&error.to_string()),
    }
    match error {
        Error::Name { .. } => Status::Usage,
        Error::Unknown(_) | Error::Ended(_) => {
            terminal::print_note("`streamline state` lists all published states");
            Status::NotFound
        }
        _ => Status::Failed,
    }
}

fn to_json(reader: &TableReader, snapshot: &Snapshot) -> String {
    let column = |Column { name, unit }: &Column| to_object(&[("name", name), ("unit", unit)]);
    json_line(&to_object(&[
        ("version", &JSON_VERSION),
        ("name", &reader.address().to_string()),
        ("filter", &reader.shape().filter),
        ("columns", &reader.shape().columns.iter().map(column).collect::<Vec<_>>()),
        ("rows", &snapshot.rows),
        // True if all rows were read at the same moment.
        ("whole", &snapshot.is_consistent),
        ("torn", &snapshot.torn_rows),
        ("left_out", &snapshot.left_out_sessions),
        ("written_ns", &snapshot.written_ns),
        ("ended", &snapshot.ended),
    ]))
}

/// Formats a state. A single row is printed vertically, several rows as a table.
fn format_state(reader: &TableReader, snapshot: &Snapshot) -> String {
    let shape = reader.shape();
    let mut text = format!("{}: `{}`", reader.address(), mask_hidden_characters(&shape.filter));
    if shape.rows > 1 {
        text += &format!(", {}", format_count(snapshot.rows.len() as u64, "row"));
    }
    if snapshot.left_out_sessions > 0 {
        text += &format!(
            ", {} without a free row",
            format_count(snapshot.left_out_sessions, "more session")
        );
    }
    if snapshot.torn_rows > 0 {
        text +=
            &format!(", {} incompletely written", format_count(snapshot.torn_rows as u64, "row"));
    }
    if !snapshot.is_consistent {
        text += ", not from a single point in time";
    }
    if snapshot.ended {
        text += ", ended";
    }
    text.push('\n');
    match (shape.rows, snapshot.rows.first()) {
        (1, Some(row)) => {
            let one = |(column, number): (&Column, &u64)| {
                vec![
                    mask_hidden_characters(&column.name),
                    number.to_string(),
                    mask_hidden_characters(&column.unit),
                ]
            };
            let rows: Vec<Vec<String>> = shape.columns.iter().zip(row).map(one).collect();
            text + &table(&[], &rows, &|column| column == 1, terminal::terminal_columns())
        }
        (_, None) => text,
        (_, Some(_)) => {
            let head = |column: &Column| match column.unit.as_str() {
                "" => mask_hidden_characters(&column.name),
                unit => format!(
                    "{} ({})",
                    mask_hidden_characters(&column.name),
                    mask_hidden_characters(unit)
                ),
            };
            let head: Vec<String> = shape.columns.iter().map(head).collect();
            let row = |row: &Vec<u64>| row.iter().map(u64::to_string).collect();
            let rows: Vec<Vec<String>> = snapshot.rows.iter().map(row).collect();
            text + &table(&head, &rows, &|_| true, terminal::terminal_columns())
        }
    }
}
