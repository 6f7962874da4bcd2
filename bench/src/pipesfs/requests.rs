//! The cost of a file system request to a server on the reader's core, on the other core, and on
//! any core; and the cost of listing a thousand filters of one path or of a hundred paths.

use super::programs::Programs;
use crate::harness::{
    BetterDirection, Candidate, Goal, Samples, is_row_selected, measure_interleaved,
    rows_of_samples,
};
use crate::row::Row;
use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use testkit::net::wait_until;

/// Number of file system requests in a measurement.
const REQUEST_COUNT: u32 = 2_000;
/// Flag of open(2): reads do not block.
const O_NONBLOCK: i32 = 0o4000;
/// Number of arcs of the path that is listed. Each arc leads to four filters, and a request has at
/// most 1,000 filters.
const LISTED_ARC_COUNT: usize = 249;

/// Number of paths whose filters are listed together.
const PATH_COUNT: usize = 100;
/// The request of each of the [`PATH_COUNT`] paths, with ten filters.
const TEN_FILTER_REQUEST: &str = "generate rate=1 | dport | \
                           ((|1 sample 2 | sample 3 | sample 4 | count) + \
                           (|2 sample 3 | sample 4 | sample 5 | count))";
/// Goal: maximum time for listing a thousand filters, in µs.
const LISTING_MAX_US: f64 = 250_000.0;

/// The filters to which each of the [`LISTED_ARC_COUNT`] arcs of the listed path leads.
const ARC_FILTERS: &str = "sample 2 | sample 3 | sample 4 | count";

const SAME_CORE_NAME: &str = "same core";
const OTHER_CORE_NAME: &str = "other core";
const ANY_CORE_NAME: &str = "any core";
const LIMIT_NAME: &str = "limit";

/// Measures file system requests on each core, and listings of directories.
pub(super) fn run_bench(rounds: usize) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    let names = ["a request", "a control read", "ls -R", "du", "ls -R of 100 paths"];
    if !names.iter().any(|name| is_row_selected(name)) {
        return Ok(rows);
    }
    let mut programs = Programs::start()?;
    programs.add_path("bytes", "read - block=64k | discard")?;
    let two = sys::machine::Machine::detect().processor_count > 1;
    let mut mounts = vec![(SAME_CORE_NAME, programs.mount("same", Some(0))?)];
    if two {
        mounts.push((OTHER_CORE_NAME, programs.mount("other", Some(1))?));
        mounts.push((ANY_CORE_NAME, programs.mount("free", None)?));
    }
    sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
    let empty = |mount: &Path| {
        let mut stream = OpenOptions::new();
        let stream = stream.read(true).custom_flags(O_NONBLOCK);
        let mut stream = stream.open(mount.join("bytes/read:-/all")).map_err(error_text)?;
        mean_call_us(|| match stream.read(&mut [0; 16]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            read => Err(format!("a read of an empty stream returned {read:?}")),
        })
    };
    let control = |mount: &Path| {
        let value = File::open(mount.join("bytes/read:-/place")).map_err(error_text)?;
        mean_call_us(|| value.read_at(&mut [0; 64], 0).map(drop).map_err(error_text))
    };
    rows.extend(measure_row("a request", rounds, &mounts, empty, None)?);
    rows.extend(measure_row("a control read", rounds, &mounts, control, Some(9.0))?);
    let mounts: Vec<_> = mounts.into_iter().take(1).collect();
    if is_row_selected("ls -R") || is_row_selected("du") {
        let arcs: Vec<String> =
            (1..=LISTED_ARC_COUNT).map(|class| format!("(|{class} {ARC_FILTERS})")).collect();
        let many = programs
            .add_path("many", &format!("generate rate=1 | dport | ({})", arcs.join(" + ")))?;
        wait_until("it is shown", || mounts[0].1.join("many/generate/dport/249/sample:2").is_dir());
        let ls = |mount: &Path| time_listing(&mount.join("many"), false);
        rows.extend(measure_row("ls -R", rounds, &mounts, ls, Some(LISTING_MAX_US))?);
        let du = |mount: &Path| time_listing(&mount.join("many"), true);
        rows.extend(measure_row("du", rounds, &mounts, du, None)?);
        let _ = programs.path_process(many).kill();
    }
    if is_row_selected("ls -R of 100 paths") {
        for number in 1..=PATH_COUNT {
            programs.add_path(&format!("few{number}"), TEN_FILTER_REQUEST)?;
        }
        let last = format!("few{PATH_COUNT}/generate/dport/2/sample:3");
        wait_until("they are shown", || mounts[0].1.join(&last).is_dir());
        let ls = |mount: &Path| time_listing(mount, false);
        rows.extend(measure_row("ls -R of 100 paths", rounds, &mounts, ls, Some(LISTING_MAX_US))?);
    }
    Ok(rows)
}

/// Measures a cost in µs on each of several mounts. `limit` is the maximum that the goal sets for
/// the first mount.
fn measure_row(
    row: &str,
    rounds: usize,
    mounts: &[(&'static str, std::path::PathBuf)],
    measure: impl Fn(&Path) -> Result<f64, String>,
    limit: Option<f64>,
) -> Result<Vec<Row>, String> {
    if !is_row_selected(row) {
        return Ok(Vec::new());
    }
    let candidates = mounts.iter().map(|(name, mount)| {
        let measure = &measure;
        Candidate { name, measure: Box::new(move || measure(mount)) }
    });
    let (sentinel_ns, mut samples) = measure_interleaved(rounds, candidates.collect())?;
    let goals: Vec<Goal> = limit
        .map(|_| Goal {
            candidate: SAME_CORE_NAME,
            reference: LIMIT_NAME,
            goal: "G21",
            target: 1.0,
        })
        .into_iter()
        .collect();
    if let Some(limit) = limit {
        samples.push(Samples { name: LIMIT_NAME, values: vec![limit; rounds] });
    }
    let subject = ("pipesfs", row, f64::NAN);
    Ok(rows_of_samples(subject, ("us", BetterDirection::Less), sentinel_ns, &samples, &goals))
}

/// Returns the mean time of a call in µs.
fn mean_call_us(mut call: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let began = sys::clock::monotonic_ns();
    for _ in 0..REQUEST_COUNT {
        call()?;
    }
    Ok((sys::clock::monotonic_ns() - began) as f64 / f64::from(REQUEST_COUNT) / 1e3)
}

/// Lists a directory with all its files and directories, and reads their attributes if `attributes`
/// is true. Returns the time in µs.
fn time_listing(directory: &Path, attributes: bool) -> Result<f64, String> {
    let began = sys::clock::monotonic_ns();
    let directories = list_directory(directory, attributes)?;
    let took = (sys::clock::monotonic_ns() - began) as f64 / 1e3;
    if directories < 4 * LISTED_ARC_COUNT {
        Err(format!("{directories} directories"))
    } else {
        Ok(took)
    }
}

fn list_directory(directory: &Path, attributes: bool) -> Result<usize, String> {
    let mut count = 1;
    for entry in fs::read_dir(directory).map_err(error_text)? {
        let entry = entry.map_err(error_text)?;
        if attributes {
            entry.metadata().map_err(error_text)?;
        }
        if entry.file_type().map_err(error_text)?.is_dir() {
            count += list_directory(&entry.path(), attributes)?;
        }
    }
    Ok(count)
}

fn error_text(why: std::io::Error) -> String {
    why.to_string()
}
