//! `streamline ps`: the paths that run, as far as one may see them, and how fast those are that are
//! one's own; and what of them runs in the kernel.

use super::rates::{self, Rate};
use super::sharing;
use super::table::table;
use super::words::PsArguments;
use super::{client, complain, is_over, signals, since, user, wait};
use crate::progress::short;
use crate::report::json_line;
use crate::status::Status;
use crate::terminal;
use daemon::client::{Client, ClientError, ToPath, plain};
use daemon::protocol::{About, Counters, Path, Program};
use serde::Serialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The version of the form of `--json`.
const VERSION: u32 = 1;
/// The time between two looks, from which rates are taken.
const BETWEEN: Duration = Duration::from_millis(250);
/// How long one path is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How wide the table is.
const COLUMNS: usize = 100;

#[derive(Serialize)]
struct Listed {
    version: u32,
    daemon: About,
    paths: Vec<Row>,
    /// The programs in which parts of them run.
    kernel: Vec<Program>,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    path: Path,
    /// `running`; `silent`: its process takes nothing; `hidden`: it is another user's.
    state: &'static str,
    counters: Option<Counters>,
    rate: Option<Rate>,
    lost: Option<u64>,
}

/// Lists them.
pub(super) fn run(given: &PsArguments) -> Result<Status, Status> {
    let client = client()?;
    let failed = |error: ClientError| complain(&error);
    let daemon = client.about().map_err(failed)?;
    let paths = client.list().map_err(failed)?;
    let rows = look(&client, paths)?;
    let kernel = sharing::look(&client);
    Ok(terminal::print(&match given.json {
        true => json_line(&Listed { version: VERSION, daemon, paths: rows, kernel }),
        false => page(&rows) + &sharing::page(&kernel, COLUMNS),
    }))
}

/// Looks twice at all that are ours.
fn look(client: &Client, paths: Vec<Path>) -> Result<Vec<Row>, Status> {
    let reach = |path: &Path| {
        let to = client.connect(&path.number.to_string())?;
        to.be_patient(PATIENCE)?;
        let before = to.count()?;
        Ok((to, before))
    };
    let mut seen: Vec<(Path, Option<(ToPath, Counters)>)> = Vec::new();
    for path in paths {
        match path.yours.then(|| reach(&path)).transpose() {
            // It has ended since it was listed.
            Err(error) if is_over(&error) => {}
            reached => seen.push((path, reached.ok().flatten())),
        }
    }
    if seen.iter().any(|(_, reached)| reached.is_some()) {
        // A signal ends this early, and is then looked at by nobody: rates are of a shorter time.
        let _ = wait(&[], signals()?, Some(BETWEEN));
    }
    let row = |(path, reached): (Path, Option<(ToPath, Counters)>)| {
        let Some((to, before)) = reached else { return Some(Row::new(path, None, None)) };
        match to.count() {
            Err(error) if is_over(&error) => None,
            after => Some(Row::new(path, Some(&before), after.ok())),
        }
    };
    Ok(seen.into_iter().filter_map(row).collect())
}

impl Row {
    fn new(path: Path, before: Option<&Counters>, after: Option<Counters>) -> Self {
        let state = match (path.yours, &after) {
            (false, _) => "hidden",
            (true, None) => "silent",
            (true, Some(_)) => "running",
        };
        let rate = before.zip(after.as_ref()).map(|(before, after)| {
            let ns = after.elapsed_ns.saturating_sub(before.elapsed_ns);
            rates::rate(rates::given(before), rates::given(after), ns)
        });
        let lost = after.as_ref().map(rates::lost);
        Self { path, state, counters: after, rate, lost }
    }
}

fn page(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no paths run\n".to_owned();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let dash = || "-".to_owned();
    let told = rows.iter().map(|row| {
        let path = &row.path;
        let rate = |of: fn(Rate) -> String| row.rate.map_or_else(dash, of);
        let time = path.started.map_or_else(dash, |started| since(now.saturating_sub(started)));
        let line = path.line.as_ref().map_or_else(dash, |line| plain(&line.replace('\n', " ")));
        [
            path.number.to_string(),
            path.name.as_deref().map_or_else(dash, plain),
            user(path.uid),
            if row.state == "silent" { "silent".to_owned() } else { time },
            rate(|rate| rates::short(rate.blocks)),
            rate(|rate| short(rate.bytes as u64)),
            row.lost.map_or_else(dash, |lost| lost.to_string()),
            line,
        ]
    });
    let head = ["NO", "NAME", "USER", "TIME", "BLOCKS/S", "BYTES/S", "LOST", "LINE"];
    let by_itself = rows.iter().filter_map(|row| {
        let last = row.counters.as_ref()?.adapted.last()?;
        Some(format!("{} by itself: {}\n", row.path.number, plain(last)))
    });
    let by_itself: String = by_itself.collect();
    let late = rows.iter().filter_map(|row| {
        let late = rates::late(row.counters.as_ref()?)?;
        Some(format!("{} {}\n", row.path.number, plain(&late)))
    });
    let late: String = late.collect();
    table(head, &told.collect::<Vec<_>>(), &[0, 3, 4, 5, 6], COLUMNS) + &by_itself + &late
}
