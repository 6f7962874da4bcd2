//! `streamline ps`: the paths that run, as far as one may see them, and how fast those are that are
//! one's own; and what of them runs in the kernel.

use super::rates::{self, Rate};
use super::sharing;
use super::table::{cut, table};
use super::words::PsArguments;
use super::{client, complain, is_over, signals, since, user, wait};
use crate::progress::short;
use crate::status::Status;
use crate::terminal;
use member::client::{COUNT, Client, ClientError, TOGETHER, plain};
use member::protocol::{About, Count, Counters, Path, Program};
use member::varlink::Reply;
use serde::Serialize;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use streamline::report::json_line;

/// The version of the form of `--json`.
const VERSION: u32 = 1;
/// The time between two looks, from which rates are taken.
const BETWEEN: Duration = Duration::from_millis(250);
/// The timeout for the first counts, of all paths together.
const FIRST: Duration = Duration::from_millis(1250);

#[derive(Serialize)]
struct Listed {
    version: u32,
    daemon: About,
    paths: Vec<Row>,
    /// The programs in which parts of them run.
    kernel: Vec<Program>,
}

/// The answer of a path.
#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Answered {
    /// Its process answers.
    Running,
    /// Its process takes nothing.
    Silent,
    /// It is another user's.
    Hidden,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    path: Path,
    state: Answered,
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
    super::name_silent(
        rows.iter().filter(|row| row.state == Answered::Silent).map(|row| &row.path),
    );
    let kernel = sharing::look(&client);
    Ok(terminal::print(&match given.json {
        true => json_line(&Listed { version: VERSION, daemon, paths: rows, kernel }),
        false => page(&rows) + &sharing::page(&kernel, terminal::columns()),
    }))
}

/// Looks twice at all that are ours, all at once each time.
fn look(client: &Client, paths: Vec<Path>) -> Result<Vec<Row>, Status> {
    let began = Instant::now();
    let mut seen: Vec<Seen> = paths.into_iter().map(Seen::unasked).collect();
    count(client, &mut seen, FIRST, |seen, answer| seen.before = Some(answer));
    let counted = |seen: &Seen| matches!(seen.before, Some(Ok(_)));
    if seen.iter().any(counted) {
        // A signal ends this early, and is then looked at by nobody: rates are of a shorter time.
        let _ = wait(&[], signals()?, Some(BETWEEN));
    }
    let left = TOGETHER.saturating_sub(began.elapsed());
    count(client, &mut seen, left, |seen, answer| seen.after = Some(answer));
    Ok(seen.into_iter().filter_map(Seen::row).collect())
}

/// A path with two counts.
struct Seen {
    path: Path,
    before: Option<Result<Counters, ClientError>>,
    after: Option<Result<Counters, ClientError>>,
}

impl Seen {
    const fn unasked(path: Path) -> Self {
        Self { path, before: None, after: None }
    }

    /// Returns true if it is worth asking: it is ours, and has answered until now.
    const fn answers(&self) -> bool {
        self.path.yours && !matches!(self.before, Some(Err(_)))
    }

    /// None: it has ended since it was listed.
    fn row(self) -> Option<Row> {
        let over = |answer: &Option<Result<_, ClientError>>| {
            answer.as_ref().is_some_and(|answer| answer.as_ref().is_err_and(is_over))
        };
        if over(&self.before) || over(&self.after) {
            return None;
        }
        let before = self.before.and_then(Result::ok);
        // What was counted once is better than nothing.
        let after = self.after.and_then(Result::ok).or_else(|| before.clone());
        Some(Row::new(self.path, before.as_ref(), after))
    }
}

/// Asks those that answer what they have counted.
fn count(
    client: &Client,
    seen: &mut [Seen],
    limit: Duration,
    put: impl Fn(&mut Seen, Result<Counters, ClientError>),
) {
    let mut asked: Vec<&mut Seen> = seen.iter_mut().filter(|seen| seen.answers()).collect();
    let name = |seen: &&mut Seen| (seen.path.uid, seen.path.number.to_string());
    let names: Vec<(u32, String)> = asked.iter().map(name).collect();
    let take = |_, replies: Vec<Reply>| {
        let Count { counters } = replies.into_iter().next().unwrap_or_default().take()?;
        Ok(counters)
    };
    let answers = client.ask_all(&names, &[COUNT], limit, take);
    asked.iter_mut().zip(answers).for_each(|(seen, answer)| put(seen, answer));
}

impl Row {
    fn new(path: Path, before: Option<&Counters>, after: Option<Counters>) -> Self {
        let state = match (path.yours, &after) {
            (false, _) => Answered::Hidden,
            (true, None) => Answered::Silent,
            (true, Some(_)) => Answered::Running,
        };
        let rate = before.zip(after.as_ref()).map(|(before, after)| {
            let ns = after.elapsed_ns.saturating_sub(before.elapsed_ns);
            rates::rate(rates::given(before), rates::given(after), ns)
        });
        let lost = after.as_ref().map(rates::lost);
        Self { path, state, counters: after, rate, lost }
    }
}

/// A line that fits the terminal.
fn short_line(text: &str) -> String {
    cut(text, terminal::columns()) + "\n"
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
            if row.state == Answered::Silent { "silent".to_owned() } else { time },
            rate(|rate| rates::short(rate.blocks)),
            rate(|rate| short(rate.bytes as u64)),
            row.lost.map_or_else(dash, |lost| lost.to_string()),
            line,
        ]
    });
    let head = ["NO", "NAME", "USER", "TIME", "BLOCKS/S", "BYTES/S", "LOST", "LINE"];
    let by_itself = rows.iter().filter_map(|row| {
        let last = row.counters.as_ref()?.adapted.last()?;
        Some(short_line(&format!("{} by itself: {}", row.path.number, plain(last))))
    });
    let by_itself: String = by_itself.collect();
    let late = rows.iter().filter_map(|row| {
        let late = rates::late(row.counters.as_ref()?)?;
        Some(short_line(&format!("{} {}", row.path.number, plain(&late))))
    });
    let late: String = late.collect();
    table(head, &told.collect::<Vec<_>>(), &[0, 3, 4, 5, 6], terminal::columns())
        + &by_itself
        + &late
}
