//! `bench pipesfs`: reading the output of a path from a file of a mount, compared with reading it
//! from a kernel pipe; the cost of requests to a mount, of edits through it, and of a mount that
//! nobody reads; and a live line that capture programs read. [SL §4.1], goal G21
//!
//! All programs are the ones that users run: a daemon, a path that copies its standard input, and
//! servers of mounts. On one core all run on processor 0; on two cores the path runs on processor 1
//! and the reader on processor 0.

mod back;
mod captures;
mod edits;
mod idle;
mod kernel;
pub(crate) mod programs;
mod requests;
mod streams;

use crate::harness::{Better, Samples, rows_of_samples};
use crate::options::Options;
use crate::row::Row;

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::require_root().ok_or("needs root: it mounts")?;
    testkit::need::require_file("/dev/fuse").ok_or("needs /dev/fuse: it mounts")?;
    let mut rows = Vec::new();
    rows.extend(streams::run_bench(options.rounds)?);
    rows.extend(requests::run_bench(options.rounds)?);
    rows.extend(edits::run_bench(options.rounds)?);
    rows.extend(idle::run_bench(options.rounds)?);
    rows.extend(kernel::run_bench(options.rounds)?);
    rows.extend(captures::run_bench(options.rounds)?);
    rows.extend(back::run_bench(options.rounds)?);
    Ok(rows)
}

/// The cost of the second of two candidates beyond the first.
struct ExtraCost {
    /// Name of the row.
    name: &'static str,
    /// Number of equal parts into which the difference is divided.
    parts: u32,
    /// Maximum cost of a part.
    limit: f64,
    /// The goal with this limit.
    goal: &'static str,
}

impl ExtraCost {
    /// Returns the rows of two candidates, and of the difference of their samples in each round.
    fn rows(
        &self,
        (row, unit): (&str, &'static str),
        sentinel_ns: f64,
        samples: &[Samples],
    ) -> Vec<Row> {
        let (subject, unit) = (("pipesfs", row, f64::NAN), (unit, Better::Less));
        let mut rows = rows_of_samples(subject, unit, sentinel_ns, samples, &[]);
        let [without, with] = samples else { return rows };
        let values = with.values.iter().zip(&without.values);
        let values = values.map(|(with, without)| (with - without) / f64::from(self.parts));
        let values = values.map(|cost| cost.max(0.001)).collect();
        let cost = Samples { name: self.name, values };
        let mut row = rows_of_samples(subject, unit, sentinel_ns, &[cost], &[]).pop();
        if let Some(row) = &mut row {
            (row.reference, row.ratio) = ("limit", self.limit / row.value);
            (row.goal, row.target) = (Some(self.goal), Some(1.0));
        }
        rows.extend(row);
        rows
    }
}
