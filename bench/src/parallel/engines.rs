//! A request in several worker processes (`--engines`) compared with replicas of its filters and
//! with one process. FEATURES N7
//!
//! The command runs over a capture. A row is the number of blocks per second from the time when all
//! processes are running. The bench fails unless all candidates deliver the same number of blocks
//! to the sink.

use crate::harness::{BetterDirection, Samples, median, rows_of_samples};
use crate::processes::streamline_path;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use crate::temp_directory::TempDirectory;
use std::path::Path;
use std::process::{Command, Stdio};

/// The candidates, each with the option that it adds to the request and its name in the result
/// rows.
const CANDIDATES: [(&str, &str); 4] = [
    ("", "1 process"),
    ("--parallel=2 ", "2 copies"),
    ("--engines=1 ", "1 engine"),
    ("--engines=2 ", "2 engines"),
];

/// Prefix of the names of the result rows that this module measures.
pub(super) const ROW_PREFIX: &str = "engines";
/// The requests to measure: the name of each in the result rows, and its filters after the source.
const REQUESTS: [(&str, &str); 1] = [("engines, tcp and http", "tcp |http http | discard")];

pub(super) fn measure_request(
    capture: &impl std::fmt::Display,
    folder: &TempDirectory,
    rounds: usize,
) -> Result<Vec<Row>, String> {
    let Some(program) = streamline_path() else { return Ok(Vec::new()) };
    let report = folder.0.join("report");
    let mut all = Vec::new();
    for (name, behind) in REQUESTS {
        let mut taken: Vec<Vec<f64>> = vec![Vec::new(); CANDIDATES.len()];
        let (mut sentinels, mut out) = (Vec::new(), None);
        for round in 0..=rounds {
            sentinels.push(CacheRoundTrip::measure());
            for ((option, _), samples) in CANDIDATES.iter().zip(&mut taken) {
                let line = format!("{option}replay '{capture}' | {behind}");
                let (rate, came) = run_once(&program, &line, &report)?;
                if *out.get_or_insert(came) != came || came == 0 {
                    return Err(format!("`{line}` took {came} blocks, not {out:?}"));
                }
                // The first round is a warm-up.
                if round > 0 {
                    samples.push(rate / 1e6);
                }
            }
        }
        let each = CANDIDATES.iter().zip(taken);
        let samples: Vec<Samples> =
            each.map(|((_, name), values)| Samples { name, values }).collect();
        let subject = ("parallel", name, f64::NAN);
        let unit = ("Mblocks/s", BetterDirection::More);
        all.extend(rows_of_samples(subject, unit, median(&sentinels), &samples, &[]));
    }
    Ok(all)
}

/// Runs a request. Returns the source's blocks per second, and the number of blocks that reached
/// the sink.
pub(super) fn run_once(program: &Path, line: &str, report: &Path) -> Result<(f64, u64), String> {
    let mut command = Command::new(program);
    command.args(["run", "--json", "--quiet", "--embedded", "--report"]).arg(report).arg(line);
    let status = command.stdout(Stdio::null()).status().map_err(|why| why.to_string())?;
    if !status.success() {
        return Err(format!("`{line}`: {status}"));
    }
    let text = std::fs::read_to_string(report).map_err(|why| why.to_string())?;
    let report: serde_json::Value = serde_json::from_str(&text).map_err(|why| why.to_string())?;
    let given_blocks = report["sources"][0]["given"]["blocks"].as_f64().unwrap_or(0.0);
    let elapsed = report["elapsed_ns"].as_f64().unwrap_or(1.0).max(1.0);
    let rows = report["filters"].as_array().map_or(&[][..], Vec::as_slice);
    let last = rows.iter().find(|row| row["name"] == "discard");
    let received = last.and_then(|row| row["passed"]["blocks"].as_u64()).unwrap_or(0);
    Ok((given_blocks * 1e9 / elapsed, received))
}
