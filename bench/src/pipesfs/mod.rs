//! `bench pipesfs`: reading the output of a path from a file of a mount, compared with reading it
//! from a kernel pipe; the costs of requests to a mount, of edits through it, and of a mount
//! without readers; and live traffic that capture programs read. [SL §4.1], goal G21
//!
//! All programs run as users run them: a daemon, a path that copies its standard input, and servers
//! of mounts. On one core, all of them run on processor 0. On two cores, the path runs on processor
//! 1 and the reader on processor 0.

mod captures;
mod edits;
mod extra_cost;
mod idle;
mod kernel;
mod kernel_return;
pub(crate) mod programs;
mod requests;
mod streams;

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
    rows.extend(kernel_return::run_bench(options.rounds)?);
    Ok(rows)
}
