//! The additional cost of changes through a mount, compared with the same edits over an open
//! connection to the path. Everything runs on one core. Goal G21

use super::extra_cost::ExtraCost;
use super::programs::Programs;
use crate::harness::{Candidate, is_row_selected, measure_interleaved};
use crate::row::Row;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use streamline::paths::{self, PathClient};
use testkit::net::wait_until;

/// Number of changes in a measurement. It is even, so that the filter's argument has its first
/// value again after the last change. The name of the filter's directory contains the value.
const CHANGE_COUNT: u32 = 200;
/// Maximum additional cost of `mkdir` in the mount, compared with the same edit over a connection,
/// in µs.
const MKDIR_MAX_US: f64 = 25.0;
/// Maximum additional cost of a write to an argument in the mount, compared with the same edit over
/// a connection, in µs.
const WRITE_MAX_US: f64 = 9.0;
/// Request of the path to which filters are added and whose argument is changed.
const REQUEST: &str = "generate rate=1 | udp | sample 2 | count";

const MKDIR_NAME: &str = "mkdir";
const WRITE_NAME: &str = "control write";
const EDIT_NAME: &str = "the edit itself";

/// Measures two kinds of changes: `mkdir`, and writes to an argument.
pub(super) fn run_bench(rounds: usize) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    if ![MKDIR_NAME, WRITE_NAME].iter().any(|row| is_row_selected(row)) {
        return Ok(rows);
    }
    sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
    let mut programs = Programs::start()?;
    programs.add_path("edited", REQUEST)?;
    let mount = programs.mount("pipes", Some(0))?;
    let udp = mount.join("edited/generate/udp");
    wait_until("it is shown", || udp.is_dir());
    let to = paths::connect(&programs.client()?, "edited").map_err(|why| why.to_string())?;
    if is_row_selected(MKDIR_NAME) {
        let candidates = vec![
            Candidate { name: EDIT_NAME, measure: Box::new(|| time_filter_additions(&to)) },
            Candidate {
                name: "through the mount",
                measure: Box::new(|| time_directory_creations(&udp)),
            },
        ];
        let (sentinel_ns, samples) = measure_interleaved(rounds, candidates)?;
        let cost = ExtraCost { name: "beyond it", parts: 1, limit: MKDIR_MAX_US, goal: "G21" };
        rows.extend(cost.rows((MKDIR_NAME, "us"), sentinel_ns, &samples));
    }
    if is_row_selected(WRITE_NAME) {
        let file = udp.join("sample:2/config/every");
        let candidates = vec![
            Candidate { name: EDIT_NAME, measure: Box::new(|| time_argument_edits(&to)) },
            Candidate {
                name: "through the mount",
                measure: Box::new(|| time_argument_writes(&file)),
            },
        ];
        let (sentinel_ns, samples) = measure_interleaved(rounds, candidates)?;
        let cost = ExtraCost { name: "beyond it", parts: 1, limit: WRITE_MAX_US, goal: "G21" };
        rows.extend(cost.rows((WRITE_NAME, "us"), sentinel_ns, &samples));
    }
    Ok(rows)
}

/// Returns the mean time of `change` in µs. `undo` restores the path after each change; its time is
/// not measured.
fn time_changes(
    mut change: impl FnMut(u32) -> Result<(), String>,
    mut undo: impl FnMut() -> Result<(), String>,
) -> Result<f64, String> {
    let mut took = 0;
    for number in 0..CHANGE_COUNT {
        let began = sys::clock::monotonic_ns();
        change(number)?;
        took += sys::clock::monotonic_ns() - began;
        undo()?;
    }
    Ok(took as f64 / f64::from(CHANGE_COUNT) / 1e3)
}

fn apply_edit(to: &PathClient, words: &[&str]) -> Result<(), String> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    to.change(&words).map(drop).map_err(|why| why.to_string())
}

fn time_filter_additions(to: &PathClient) -> Result<f64, String> {
    time_changes(
        |_| apply_edit(to, &["add", "inspect", "below", "udp"]),
        || apply_edit(to, &["remove", "inspect", "leaf"]),
    )
}

fn time_directory_creations(udp: &Path) -> Result<f64, String> {
    let directory = udp.join("inspect");
    time_changes(
        |_| fs::create_dir(&directory).map_err(error_text),
        || fs::remove_dir(&directory).map_err(error_text),
    )
}

/// Returns the value to which the change with the index `number` sets the argument. It differs from
/// the value of the previous change.
fn argument_value(number: u32) -> u32 {
    3 - number % 2
}

fn time_argument_edits(to: &PathClient) -> Result<f64, String> {
    time_changes(
        |number| apply_edit(to, &["arg", "sample", &format!("every={}", argument_value(number))]),
        || Ok(()),
    )
}

fn time_argument_writes(file: &Path) -> Result<f64, String> {
    let file = OpenOptions::new().write(true).open(file).map_err(error_text)?;
    time_changes(
        |number| {
            let line = format!("{}\n", argument_value(number));
            file.write_all_at(line.as_bytes(), 0).map_err(error_text)
        },
        || Ok(()),
    )
}

fn error_text(why: std::io::Error) -> String {
    why.to_string()
}
