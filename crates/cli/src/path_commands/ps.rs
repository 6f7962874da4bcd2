//! `streamline ps`: lists the visible paths, with rates for the user's own paths, and the kernel
//! programs.

use super::connect::{connect_daemon, print_silent_paths, wait_readable, watch_signals};
use super::path_rows::{PathReachability, PathRow, PathsSampler, RIGHT_ALIGNED_CELLS, ROW_TITLES};
use super::rates;
use super::shared_programs;
use super::table::{format_table, truncate};
use crate::arguments::paths::PsArguments;
use crate::failure::report_client_error;
use crate::status::Status;
use crate::terminal;
use member::client::{Client, ClientError, QUERY_TIMEOUT, mask_hidden_characters};
use member::protocol::RegisteredPath;
use std::time::{Duration, Instant};
use streamline::report::{json_line, to_object};

/// Version of the output format of `ps --json`.
const JSON_VERSION: u32 = 1;
/// Interval between the two samples from which rates are computed.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Time limit of the first sample, for all paths together.
const FIRST_SAMPLE_TIMEOUT: Duration = Duration::from_millis(1250);

/// Lists the visible paths and the kernel programs.
pub(super) fn run(arguments: &PsArguments) -> Result<Status, Status> {
    let client = connect_daemon()?;
    let failed = |error: ClientError| report_client_error(&error);
    let daemon = client.describe_daemon().map_err(failed)?;
    let paths = client.list_paths().map_err(failed)?;
    let rows = sample_rows(&client, paths)?;
    print_silent_paths(
        rows.iter().filter(|row| row.state == PathReachability::Silent).map(|row| &row.path),
    );
    let kernel = shared_programs::fetch_programs(&client);
    Ok(terminal::print_text(&match arguments.json {
        true => json_line(&to_object(&[
            ("version", &JSON_VERSION),
            ("daemon", &daemon),
            ("paths", &rows),
            ("kernel", &kernel),
        ])),
        false => {
            format_processes(&rows)
                + &shared_programs::format_tables(&kernel, terminal::terminal_columns())
        }
    }))
}

/// Samples the counters of the user's paths twice, and returns the rows of the paths.
fn sample_rows(client: &Client, paths: Vec<RegisteredPath>) -> Result<Vec<PathRow>, Status> {
    let began = Instant::now();
    let mut sampler = PathsSampler::default();
    let rows = sampler.sample(client, paths, (FIRST_SAMPLE_TIMEOUT, false));
    if sampler.has_counters() {
        // A signal ends the pause early; the rates then cover a shorter time.
        let _ = wait_readable(&[], watch_signals()?, Some(SAMPLE_INTERVAL));
    }
    let left = QUERY_TIMEOUT.saturating_sub(began.elapsed());
    let paths = rows.into_iter().map(|row| row.path).collect();
    Ok(sampler.sample(client, paths, (left, false)))
}

/// Truncates a line to the width of the terminal.
fn truncate_line(text: &str) -> String {
    truncate(text, terminal::terminal_columns()) + "\n"
}

fn format_processes(rows: &[PathRow]) -> String {
    if rows.is_empty() {
        return "no paths run\n".to_owned();
    }
    let cells: Vec<_> = rows.iter().map(PathRow::cells).collect();
    let by_itself = rows.iter().filter_map(|row| {
        let last = row.counters.as_ref()?.adapted.last()?;
        Some(truncate_line(&format!(
            "{} adapted: {}",
            row.path.number,
            mask_hidden_characters(last)
        )))
    });
    let by_itself: String = by_itself.collect();
    let late = rows.iter().filter_map(|row| {
        let late = rates::describe_latency(row.counters.as_ref()?)?;
        Some(truncate_line(&format!("{} {}", row.path.number, mask_hidden_characters(&late))))
    });
    let late: String = late.collect();
    format_table(ROW_TITLES, &cells, &RIGHT_ALIGNED_CELLS, terminal::terminal_columns())
        + &by_itself
        + &late
}
