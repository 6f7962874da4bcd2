//! `bench replay`: the search for HTTP requests in a capture. `replay FILE | tcp | http | count` is
//! compared with widely used programs, in bytes of the capture per second of processor time (user
//! and system, all threads). Goal G17.
//!
//! The capture is generated in a temporary directory ([`capture`]) and stays in the page cache.
//! While a program is measured, its output goes to /dev/null; the requests that it finds are
//! counted in a separate run. A row for peak memory uses another capture, in which all connections
//! are open at the end.

mod capture;
mod programs;

pub(crate) use capture::count_requests as requests_in;
pub(crate) use programs::{SURICATA_LOG, count_occurrences, find_program};

use crate::harness::{Candidate, Goal, measure_interleaved_rows};
use crate::options::Options;
use crate::row::Row;
use crate::temp_directory::TempDirectory;
use programs::{OUR_NAME, ReplayProgram};
use std::path::Path;
use std::process::Command;

/// Number of open connections in the memory measurement.
const OPEN_CONNECTIONS: u64 = 100_000;
/// Maximum peak memory for [`OPEN_CONNECTIONS`] connections, in bytes.
const PEAK_MEMORY_MAX: f64 = 256e6;
/// Capture size in bytes for which the goals are defined. Smaller runs have no goals for
/// throughput.
const GOAL_CAPTURE_SIZE: u64 = 1_000_000_000;

/// Measures memory, throughput and requests. Memory is measured first, and a child process
/// generates the captures, because a process inherits its parent's peak memory.
pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let folder = TempDirectory::new("replay").map_err(|why| why.to_string())?;
    let programs = programs::installed_programs(&folder.0)?;
    let mut rows = measure_memory(&programs, &folder.0, options.size)?;
    let file = folder.0.join("mixed.pcap");
    let length = write_capture_in_child("mixed", &file, options.size)?;
    rows.extend(measure_throughput(&programs, &file, length, options)?);
    rows.extend(compare_request_counts(&programs, &file, &folder.0, length)?);
    Ok(rows)
}

/// Writes a capture. The kind `mixed` has about `size` bytes; the kind `open` has `size`
/// connections that stay open.
pub(crate) fn write_capture(kind: &str, file: &Path, size: &str) -> Result<(), String> {
    let size: u64 = size.parse().map_err(|_| format!("{size} is not a number"))?;
    let made = match kind {
        "mixed" => capture::write_mixed_capture(file, size),
        "open" => capture::write_open_connections(file, u32::try_from(size).unwrap_or(u32::MAX)),
        _ => return Err(format!("{kind} is neither mixed nor open")),
    };
    made.map(|_| ()).map_err(|why| format!("{}: {why}", file.display()))
}

/// Writes a capture in a child process, and waits for the process. Returns the capture's size in
/// bytes.
pub(crate) fn write_capture_in_child(kind: &str, file: &Path, size: u64) -> Result<u64, String> {
    let own = std::env::current_exe().map_err(|why| why.to_string())?;
    let mut command = Command::new(own);
    command.arg("--capture").arg(kind).arg(file).arg(size.to_string());
    match command.status() {
        Ok(status) if status.success() => {}
        ended => return Err(format!("{kind} capture: {ended:?}")),
    }
    std::fs::metadata(file).map(|file| file.len()).map_err(|why| why.to_string())
}

fn measure_throughput<'p>(
    programs: &'p [ReplayProgram],
    file: &'p Path,
    length: u64,
    options: &Options,
) -> Result<Vec<Row>, String> {
    let folder = file.parent().unwrap_or(file);
    let candidate = |program: &'p ReplayProgram| Candidate {
        name: program.name,
        measure: Box::new(move || {
            let cost = program.measure_usage(file, folder)?;
            Ok(length as f64 * 1e3 / cost.processor_ns.max(1) as f64)
        }),
    };
    let candidates = programs.iter().map(candidate).collect();
    let goal = |reference, target| Goal { candidate: OUR_NAME, reference, goal: "G17", target };
    let goals =
        [goal("tshark", 80.0), goal("tcpflow", 15.0), goal("suricata", 10.0), goal("tcpdump", 1.0)];
    let goals = if length >= GOAL_CAPTURE_SIZE { &goals[..] } else { &[] };
    let row = format!("{} MB of HTTP", length / 1_000_000);
    measure_interleaved_rows(
        ("replay", &row, f64::NAN),
        "MB/CPU s",
        options.rounds,
        candidates,
        goals,
    )
}

/// Compares the numbers of requests that the programs find. Our program must find at least as many
/// as any other. The first row is the number of frames that begin a request.
fn compare_request_counts(
    programs: &[ReplayProgram],
    file: &Path,
    folder: &Path,
    length: u64,
) -> Result<Vec<Row>, String> {
    let mut found =
        vec![("capture", capture::count_requests(file).map_err(|why| why.to_string())? as f64)];
    for program in programs {
        if let Some(requests) = program.count_requests(file, folder)? {
            found.push((program.name, requests as f64));
        }
    }
    let ours = found.iter().find(|(name, _)| *name == OUR_NAME).map_or(0.0, |(_, found)| *found);
    let row = |(candidate, value): &(&'static str, f64)| {
        let row = format!("{} MB of HTTP", length / 1_000_000);
        let mut row = single_sample_row(row, OUR_NAME, *value, "requests");
        (row.reference, row.ratio) = (candidate, ours / value.max(1.0));
        (row.goal, row.target) = (Some("G17"), Some(1.0));
        row.candidate = candidate;
        row
    };
    Ok(found.iter().map(row).collect())
}

/// Measures the peak memory of each program for connections that are all open.
fn measure_memory(
    programs: &[ReplayProgram],
    folder: &Path,
    size: u64,
) -> Result<Vec<Row>, String> {
    // Scales the number of connections with the size of the run.
    let connections = (OPEN_CONNECTIONS * size.min(GOAL_CAPTURE_SIZE) / GOAL_CAPTURE_SIZE).max(1);
    let file = folder.join("open.pcap");
    write_capture_in_child("open", &file, connections)?;
    let mut rows = Vec::new();
    for program in programs {
        let peak = program.measure_usage(&file, folder)?.resident_bytes as f64;
        let row = format!("{connections} open connections");
        let mut row = single_sample_row(row, program.name, peak / 1e6, "MB");
        if program.name == OUR_NAME {
            (row.reference, row.ratio) = ("256 MB", PEAK_MEMORY_MAX / peak.max(1.0));
            (row.goal, row.target) = (Some("G17"), Some(1.0));
        }
        rows.push(row);
    }
    std::fs::remove_file(file).map_err(|why| why.to_string())?;
    Ok(rows)
}

/// Returns a row with a single sample.
pub(crate) fn single_sample_row(
    row: String,
    candidate: &'static str,
    value: f64,
    unit: &'static str,
) -> Row {
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
