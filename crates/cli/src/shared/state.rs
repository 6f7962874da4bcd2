//! `streamline state`: what filters know that show it (`state=NAME`), read where they keep it. No
//! daemon is needed, and the path is neither asked nor held up.

use super::table::rows as table;
use super::words::StateArguments;
use super::{refused, signals, user, wait};
use crate::status::Status;
use crate::terminal;
use engine::seen::{Address, Column, Error, Look, Names, Reader};
use member::client::{TOGETHER, plain};
use member::gather::gather;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;
use streamline::report::{counted, json_line};

/// The version of the form of `--json`.
const VERSION: u32 = 1;
/// The interval of `--follow`.
const BETWEEN: Duration = Duration::from_secs(1);

/// Lists all names, or shows what one has.
pub(super) fn run(given: &StateArguments) -> Result<Status, Status> {
    match &given.name {
        None => list(given.json),
        Some(name) => show(name, given),
    }
}

#[derive(Serialize)]
struct Listed {
    version: u32,
    states: Vec<Named>,
}

#[derive(Serialize)]
struct Named {
    name: String,
    uid: u32,
    /// Nothing: it may not be looked at, or was gone by then.
    filter: Option<String>,
    rows: Option<usize>,
    why: Option<String>,
}

fn list(json: bool) -> Result<Status, Status> {
    let names = Names::list().map_err(|error| {
        terminal::complain(&format!("/proc/net/unix cannot be read: {error}"));
        Status::Failed
    })?;
    let states = look(&names);
    if json {
        return Ok(terminal::print(&json_line(&Listed { version: VERSION, states })));
    }
    if states.is_empty() {
        let text = "no filter shows what it knows: `state=NAME` has one show it\n";
        return Ok(terminal::print(text));
    }
    let head = ["NAME", "USER", "FILTER", "ROWS"].map(str::to_owned);
    let row = |state: &Named| {
        let dash = || "-".to_owned();
        let filter = state.filter.as_deref().map_or_else(dash, plain);
        let rows = state.rows.map_or_else(dash, |rows| rows.to_string());
        vec![plain(&state.name), user(state.uid), filter, rows]
    };
    let rows: Vec<Vec<String>> = states.iter().map(row).collect();
    Ok(terminal::print(&table(&head, &rows, &|column| column == 3, terminal::columns())))
}

/// Asks those who have the names, all at once. Names that other users keep are told by user: they
/// may be many.
fn look(names: &Names) -> Vec<Named> {
    let asked: Vec<(u32, Address)> = names.addresses().map(|a| (a.uid(), a.clone())).collect();
    let answers = gather(
        &asked,
        TOGETHER,
        |address| names.visit(address).map_err(|error| Box::new(Err(error))),
        |address, visit| ControlFlow::Break(Box::new(Reader::arrived(visit, address))),
    );
    let mut squatted: BTreeMap<u32, usize> = BTreeMap::new();
    let mut states = Vec::new();
    for ((_, address), answer) in asked.iter().zip(answers) {
        let answer = answer.map_or_else(|| Err(Error::Silent(address.clone())), |answer| *answer);
        if let Err(Error::Squatted { holder, .. }) = answer {
            *squatted.entry(holder).or_default() += 1;
        } else {
            states.extend(named(address, answer));
        }
    }
    for (holder, count) in squatted {
        let names = counted(count as u64, "name");
        terminal::note(&format!(
            "user {} keeps {names} of other users, where nothing is to be seen (`ss -xlp` shows \
             the process to root)",
            user(holder)
        ));
    }
    states
}

/// Reads the state under this name; `None` if it has ended since it was listed.
fn named(address: &Address, answer: Result<Reader, Error>) -> Option<Named> {
    let (name, uid) = (address.to_string(), address.uid());
    match answer {
        Ok(reader) => {
            let (filter, rows) = (reader.shape().filter.clone(), reader.look().rows.len());
            Some(Named { name, uid, filter: Some(filter), rows: Some(rows), why: None })
        }
        Err(Error::Unknown(_) | Error::Ended(_)) => None,
        Err(error) => {
            Some(Named { name, uid, filter: None, rows: None, why: Some(error.to_string()) })
        }
    }
}

#[derive(Serialize)]
struct Shown<'l> {
    version: u32,
    name: String,
    filter: &'l str,
    columns: Vec<ShownColumn<'l>>,
    rows: &'l [Vec<u64>],
    /// All rows are of one moment.
    whole: bool,
    torn: usize,
    left_out: u64,
    written_ns: u64,
    ended: bool,
}

#[derive(Serialize)]
struct ShownColumn<'l> {
    name: &'l str,
    unit: &'l str,
}

fn show(name: &str, given: &StateArguments) -> Result<Status, Status> {
    let reader = Reader::open(name).map_err(|error| complain(&error))?;
    let signals = if given.follow { Some(signals()?) } else { None };
    let mut told: Option<Look> = None;
    loop {
        let look = reader.look();
        let ended = look.ended;
        if told.as_ref() != Some(&look) {
            let text = if given.json { json(&reader, &look) } else { page(&reader, &look) };
            let printed = terminal::print(&text);
            if printed != Status::Done {
                return Ok(printed);
            }
        }
        told = Some(look);
        let Some(signals) = signals else { return Ok(Status::Done) };
        if ended {
            terminal::note(&format!("{} has ended", reader.address()));
            return Ok(Status::Done);
        }
        let host: Vec<_> = reader.host().into_iter().collect();
        if wait(&host, signals, Some(BETWEEN)).is_none() && signalled(signals) {
            return Ok(Status::Done);
        }
    }
}

/// Returns true if a signal asks us to end.
fn signalled(signals: std::os::fd::BorrowedFd<'_>) -> bool {
    sys::poll::readable(&[signals], Some(Duration::ZERO)).contains(&true)
}

fn complain(error: &Error) -> Status {
    match error {
        Error::System(error) => return refused(error),
        error => terminal::complain(&error.to_string()),
    }
    match error {
        Error::Name { .. } => Status::Usage,
        Error::Unknown(_) | Error::Ended(_) => {
            terminal::note("`streamline state` lists what there is here");
            Status::Nothing
        }
        _ => Status::Failed,
    }
}

fn json(reader: &Reader, look: &Look) -> String {
    let columns = reader.shape().columns.iter();
    let columns = columns.map(|Column { name, unit }| ShownColumn { name, unit }).collect();
    json_line(&Shown {
        version: VERSION,
        name: reader.address().to_string(),
        filter: &reader.shape().filter,
        columns,
        rows: &look.rows,
        whole: look.whole,
        torn: look.torn,
        left_out: look.left_out,
        written_ns: look.written_ns,
        ended: look.ended,
    })
}

/// One session stands upright, several are a table.
fn page(reader: &Reader, look: &Look) -> String {
    let shape = reader.shape();
    let mut text = format!("{}: `{}`", reader.address(), plain(&shape.filter));
    if shape.rows > 1 {
        text += &format!(", {}", counted(look.rows.len() as u64, "row"));
    }
    if look.left_out > 0 {
        text += &format!(", {} more that have no room", look.left_out);
    }
    if look.torn > 0 {
        text += &format!(", {} whose writer was stopped while it changed them", look.torn);
    }
    if !look.whole {
        text += ", not all of one moment";
    }
    if look.ended {
        text += ", ended";
    }
    text.push('\n');
    match (shape.rows, look.rows.first()) {
        (1, Some(row)) => {
            let one = |(column, number): (&Column, &u64)| {
                vec![plain(&column.name), number.to_string(), plain(&column.unit)]
            };
            let rows: Vec<Vec<String>> = shape.columns.iter().zip(row).map(one).collect();
            text + &table(&[], &rows, &|column| column == 1, terminal::columns())
        }
        (_, None) => text,
        (_, Some(_)) => {
            let head = |column: &Column| match column.unit.as_str() {
                "" => plain(&column.name),
                unit => format!("{} ({})", plain(&column.name), plain(unit)),
            };
            let head: Vec<String> = shape.columns.iter().map(head).collect();
            let row = |row: &Vec<u64>| row.iter().map(u64::to_string).collect();
            let rows: Vec<Vec<String>> = look.rows.iter().map(row).collect();
            text + &table(&head, &rows, &|_| true, terminal::columns())
        }
    }
}
