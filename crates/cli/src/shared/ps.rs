//! `streamline ps`: lists the visible paths, the rates of the user's own paths, and the kernel
//! programs.

use super::connect::{
    connect_daemon, format_age, print_silent_paths, user_name, wait_readable, watch_signals,
};
use super::rates::{self, Rate};
use super::sharing;
use super::table::{format_table, truncate};
use crate::arguments::paths::PsArguments;
use crate::failure::{is_path_gone, report_client_error};
use crate::progress::short_bytes;
use crate::status::Status;
use crate::terminal;
use member::client::{Client, ClientError, QUERY_TIMEOUT, escape_hidden};
use member::protocol::{Counters, Path};
use serde::Serialize;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use streamline::report::{json_line, to_object};

/// Version of the `--json` format.
const VERSION: u32 = 1;
/// Interval between the two samples from which rates are computed.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Timeout for the first sample, for all paths together.
const FIRST_SAMPLE_TIMEOUT: Duration = Duration::from_millis(1250);

/// The reachability of a path.
#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum PathState {
    /// The process of the path replied in time.
    Running,
    /// The process of the path did not reply in time.
    Silent,
    /// The path belongs to another user and was not queried.
    Hidden,
}

#[derive(Serialize)]
struct PathRow {
    #[serde(flatten)]
    path: Path,
    state: PathState,
    counters: Option<Counters>,
    rate: Option<Rate>,
    lost: Option<u64>,
}

/// Lists the paths.
pub(super) fn run(given: &PsArguments) -> Result<Status, Status> {
    let client = connect_daemon()?;
    let failed = |error: ClientError| report_client_error(&error);
    let daemon = client.describe_daemon().map_err(failed)?;
    let paths = client.list_paths().map_err(failed)?;
    let rows = sample_rows(&client, paths)?;
    print_silent_paths(
        rows.iter().filter(|row| row.state == PathState::Silent).map(|row| &row.path),
    );
    let kernel = sharing::fetch_programs(&client);
    Ok(terminal::print_text(&match given.json {
        true => json_line(&to_object(&[
            ("version", &VERSION),
            ("daemon", &daemon),
            ("paths", &rows),
            ("kernel", &kernel),
        ])),
        false => {
            format_page(&rows) + &sharing::format_tables(&kernel, terminal::terminal_columns())
        }
    }))
}

/// Samples the counters of the user's paths twice, each time in parallel.
fn sample_rows(client: &Client, paths: Vec<Path>) -> Result<Vec<PathRow>, Status> {
    let began = Instant::now();
    let mut samples: Vec<PathSamples> = paths.into_iter().map(PathSamples::new).collect();
    sample_paths(client, &mut samples, FIRST_SAMPLE_TIMEOUT, |samples, answer| {
        samples.before = Some(answer)
    });
    let counted = |samples: &PathSamples| matches!(samples.before, Some(Ok(_)));
    if samples.iter().any(counted) {
        // A signal ends the pause early, so the rates then cover a shorter time.
        let _ = wait_readable(&[], watch_signals()?, Some(SAMPLE_INTERVAL));
    }
    let left = QUERY_TIMEOUT.saturating_sub(began.elapsed());
    sample_paths(client, &mut samples, left, |samples, answer| samples.after = Some(answer));
    Ok(samples.into_iter().filter_map(PathSamples::into_row).collect())
}

/// A path with two samples of its counters.
struct PathSamples {
    path: Path,
    before: Option<Result<Counters, ClientError>>,
    after: Option<Result<Counters, ClientError>>,
}

impl PathSamples {
    const fn new(path: Path) -> Self {
        Self { path, before: None, after: None }
    }

    /// Returns true if the path belongs to the user and has replied to all queries so far.
    const fn is_reachable(&self) -> bool {
        self.path.yours && !matches!(self.before, Some(Err(_)))
    }

    /// Returns the row for the path, or `None` if the path has ended since it was listed.
    fn into_row(self) -> Option<PathRow> {
        let over = |answer: &Option<Result<_, ClientError>>| {
            answer.as_ref().is_some_and(|answer| answer.as_ref().is_err_and(is_path_gone))
        };
        if over(&self.before) || over(&self.after) {
            return None;
        }
        let before = self.before.and_then(Result::ok);
        // A single sample still yields totals.
        let after = self.after.and_then(Result::ok).or_else(|| before.clone());
        Some(PathRow::new(self.path, before.as_ref(), after))
    }
}

/// Samples the counters of reachable paths.
fn sample_paths(
    client: &Client,
    samples: &mut [PathSamples],
    limit: Duration,
    put: impl Fn(&mut PathSamples, Result<Counters, ClientError>),
) {
    let mut asked: Vec<&mut PathSamples> =
        samples.iter_mut().filter(|samples| samples.is_reachable()).collect();
    let name = |samples: &&mut PathSamples| (samples.path.uid, samples.path.number.to_string());
    let names: Vec<(u32, String)> = asked.iter().map(name).collect();
    let counted = client.count_all(&names, &[], limit, |_, counters, _| Ok(counters));
    asked.iter_mut().zip(counted).for_each(|(samples, counters)| put(samples, counters));
}

impl PathRow {
    fn new(path: Path, before: Option<&Counters>, after: Option<Counters>) -> Self {
        let state = match (path.yours, &after) {
            (false, _) => PathState::Hidden,
            (true, None) => PathState::Silent,
            (true, Some(_)) => PathState::Running,
        };
        let rate = before.zip(after.as_ref()).map(|(before, after)| {
            let ns = after.elapsed_ns.saturating_sub(before.elapsed_ns);
            rates::compute_rate(rates::source_output(before), rates::source_output(after), ns)
        });
        let lost = after.as_ref().map(rates::lost_blocks);
        Self { path, state, counters: after, rate, lost }
    }
}

/// Truncates a line to the width of the terminal.
fn truncate_line(text: &str) -> String {
    truncate(text, terminal::terminal_columns()) + "\n"
}

fn format_page(rows: &[PathRow]) -> String {
    if rows.is_empty() {
        return "no paths run\n".to_owned();
    }
    let now =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |format_age| format_age.as_secs());
    let dash = || "-".to_owned();
    let cells = rows.iter().map(|row| {
        let path = &row.path;
        let rate = |of: fn(Rate) -> String| row.rate.map_or_else(dash, of);
        let time =
            path.started.map_or_else(dash, |started| format_age(now.saturating_sub(started)));
        let line =
            path.line.as_ref().map_or_else(dash, |line| escape_hidden(&line.replace('\n', " ")));
        [
            path.number.to_string(),
            path.name.as_deref().map_or_else(dash, escape_hidden),
            user_name(path.uid),
            if row.state == PathState::Silent { "silent".to_owned() } else { time },
            rate(|rate| rates::short_rate(rate.blocks)),
            rate(|rate| short_bytes(rate.bytes as u64)),
            row.lost.map_or_else(dash, |lost| lost.to_string()),
            line,
        ]
    });
    let head = ["NO", "NAME", "USER", "TIME", "BLOCKS/S", "BYTES/S", "LOST", "REQUEST"];
    let by_itself = rows.iter().filter_map(|row| {
        let last = row.counters.as_ref()?.adapted.last()?;
        Some(truncate_line(&format!("{} adapted: {}", row.path.number, escape_hidden(last))))
    });
    let by_itself: String = by_itself.collect();
    let late = rows.iter().filter_map(|row| {
        let late = rates::describe_latency(row.counters.as_ref()?)?;
        Some(truncate_line(&format!("{} {}", row.path.number, escape_hidden(&late))))
    });
    let late: String = late.collect();
    format_table(head, &cells.collect::<Vec<_>>(), &[0, 3, 4, 5, 6], terminal::terminal_columns())
        + &by_itself
        + &late
}
