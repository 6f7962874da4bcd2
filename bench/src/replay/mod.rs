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

use crate::Options;
use crate::harness::{Candidate, Goal, interleave};
use crate::row::Row;
use programs::{OURS, Program};
use std::path::{Path, PathBuf};

/// Connections that are open when memory is measured.
const OPEN: u32 = 100_000;
/// Bytes of memory that they may take.
const OPEN_BYTES: f64 = 256e6;
/// Bytes of the capture whose size the goals are about; smaller runs state no goals.
const WHOLE: u64 = 1_000_000_000;

/// Throughput, requests and memory.
pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    let folder = Folder::new().map_err(|why| why.to_string())?;
    let file = folder.0.join("mixed.pcap");
    let length = capture::mixed(&file, options.size).map_err(|why| why.to_string())?;
    let programs = programs::all(&folder.0)?;
    let mut rows = throughput(&programs, &file, length, options)?;
    rows.extend(requests(&programs, &file, &folder.0, length)?);
    std::fs::remove_file(file).map_err(|why| why.to_string())?;
    rows.extend(memory(&programs, &folder.0, length)?);
    Ok(rows)
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

/// Every request that any of them finds, we find.
fn requests(
    programs: &[Program],
    file: &Path,
    folder: &Path,
    length: u64,
) -> Result<Vec<Row>, String> {
    let mut found = Vec::new();
    for program in programs {
        if let Some(requests) = program.requests(file, folder)? {
            found.push((program.name, requests as f64));
        }
    }
    let ours = found.first().map_or(0.0, |(_, requests)| *requests);
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
fn memory(programs: &[Program], folder: &Path, length: u64) -> Result<Vec<Row>, String> {
    // A small run takes as many connections as its capture is smaller.
    let share = (length as f64 / WHOLE as f64).min(1.0);
    let connections = (f64::from(OPEN) * share) as u32;
    let file = folder.join("open.pcap");
    capture::open(&file, connections).map_err(|why| why.to_string())?;
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
    Ok(rows)
}

/// A row that was taken once.
fn single(row: String, candidate: &'static str, value: f64, unit: &'static str) -> Row {
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

/// A temporary folder that goes away with the bench.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        let name = format!("streamline-bench-replay-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays in /tmp until it is emptied.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
