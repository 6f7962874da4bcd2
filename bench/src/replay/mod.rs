//! Requests off a capture: `replay FILE | tcp | http | count` against the programs that people use
//! for that, in bytes of the capture per second of processor time (user and system, all threads),
//! goal G17.
//!
//! The capture is made here, in a temporary folder ([`capture`]), and lies in the page cache. What
//! the programs print goes nowhere while they are measured; how many requests each finds is counted
//! in a run of its own. A row of peak memory is taken over another capture whose connections are
//! all open at its end.

mod capture;
mod programs;

pub(crate) use capture::requests as requests_in;
pub(crate) use programs::{EVE, find, occurrences};

use crate::folder::Folder;
use crate::harness::{Candidate, Goal, interleave};
use crate::options::Options;
use crate::row::Row;
use programs::{OURS, Program};
use std::path::Path;
use std::process::Command;

/// Connections that are open when memory is measured.
const OPEN: u64 = 100_000;
/// Bytes of memory that they may take.
const OPEN_BYTES: f64 = 256e6;
/// Bytes of the capture whose size the goals are about; smaller runs state no goals.
const WHOLE: u64 = 1_000_000_000;

/// Memory, throughput and requests. Memory is first, and captures are made by a process of its own:
/// what a process has when it starts another counts as the other's.
pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    let folder = Folder::new("replay").map_err(|why| why.to_string())?;
    let programs = programs::all(&folder.0)?;
    let mut rows = memory(&programs, &folder.0, options.size)?;
    let file = folder.0.join("mixed.pcap");
    let length = made("mixed", &file, options.size)?;
    rows.extend(throughput(&programs, &file, length, options)?);
    rows.extend(requests(&programs, &file, &folder.0, length)?);
    Ok(rows)
}

/// Makes a capture: `mixed` of so many bytes, or so many connections that stay `open`.
pub(crate) fn make(kind: &str, file: &Path, size: &str) -> Result<(), String> {
    let size: u64 = size.parse().map_err(|_| format!("{size} is not a number"))?;
    let made = match kind {
        "mixed" => capture::mixed(file, size),
        "open" => capture::open(file, u32::try_from(size).unwrap_or(u32::MAX)),
        _ => return Err(format!("{kind} is neither mixed nor open")),
    };
    made.map(|_| ()).map_err(|why| format!("{}: {why}", file.display()))
}

/// Lets another process make a capture; answers how long it is.
pub(crate) fn made(kind: &str, file: &Path, size: u64) -> Result<u64, String> {
    let own = std::env::current_exe().map_err(|why| why.to_string())?;
    let mut command = Command::new(own);
    command.arg("--capture").arg(kind).arg(file).arg(size.to_string());
    match command.status() {
        Ok(status) if status.success() => {}
        ended => return Err(format!("{kind} capture: {ended:?}")),
    }
    std::fs::metadata(file).map(|file| file.len()).map_err(|why| why.to_string())
}

fn throughput<'p>(
    programs: &'p [Program],
    file: &'p Path,
    length: u64,
    options: &Options,
) -> Result<Vec<Row>, String> {
    let folder = file.parent().unwrap_or(file);
    let candidate = |program: &'p Program| Candidate {
        name: program.name,
        measure: Box::new(move || {
            let cost = program.cost(file, folder)?;
            Ok(length as f64 * 1e3 / cost.processor_ns.max(1) as f64)
        }),
    };
    let candidates = programs.iter().map(candidate).collect();
    let goal = |reference, target| Goal { candidate: OURS, reference, goal: "G17", target };
    let goals =
        [goal("tshark", 80.0), goal("tcpflow", 15.0), goal("suricata", 10.0), goal("tcpdump", 1.0)];
    let goals = if length >= WHOLE { &goals[..] } else { &[] };
    let row = format!("{} MB of HTTP", length / 1_000_000);
    interleave(("replay", &row, f64::NAN), "MB/CPU s", options.rounds, candidates, goals)
}

/// Every request that any of them finds, we find; and how many there are, by the frames that begin
/// with one.
fn requests(
    programs: &[Program],
    file: &Path,
    folder: &Path,
    length: u64,
) -> Result<Vec<Row>, String> {
    let mut found =
        vec![("capture", capture::requests(file).map_err(|why| why.to_string())? as f64)];
    for program in programs {
        if let Some(requests) = program.requests(file, folder)? {
            found.push((program.name, requests as f64));
        }
    }
    let ours = found.iter().find(|(name, _)| *name == OURS).map_or(0.0, |(_, found)| *found);
    let row = |(candidate, value): &(&'static str, f64)| {
        let row = format!("{} MB of HTTP", length / 1_000_000);
        let mut row = single(row, OURS, *value, "requests");
        (row.reference, row.ratio) = (candidate, ours / value.max(1.0));
        (row.goal, row.target) = (Some("G17"), Some(1.0));
        row.candidate = candidate;
        row
    };
    Ok(found.iter().map(row).collect())
}

/// The most memory that each takes for connections that are all open.
fn memory(programs: &[Program], folder: &Path, size: u64) -> Result<Vec<Row>, String> {
    // A small run takes as many connections as its capture is smaller.
    let connections = (OPEN * size.min(WHOLE) / WHOLE).max(1);
    let file = folder.join("open.pcap");
    made("open", &file, connections)?;
    let mut rows = Vec::new();
    for program in programs {
        let peak = program.cost(&file, folder)?.resident_bytes as f64;
        let row = format!("{connections} open connections");
        let mut row = single(row, program.name, peak / 1e6, "MB");
        if program.name == OURS {
            (row.reference, row.ratio) = ("256 MB", OPEN_BYTES / peak.max(1.0));
            (row.goal, row.target) = (Some("G17"), Some(1.0));
        }
        rows.push(row);
    }
    std::fs::remove_file(file).map_err(|why| why.to_string())?;
    Ok(rows)
}

/// A row that was taken once.
pub(crate) fn single(row: String, candidate: &'static str, value: f64, unit: &'static str) -> Row {
    Row {
        bench: "replay",
        row,
        candidate,
        reference: candidate,
        value,
        unit,
        ratio: 1.0,
        n: 1,
        spread: [value, value],
        sentinel_ns: f64::NAN,
        goal: None,
        target: None,
        x: f64::NAN,
    }
}
