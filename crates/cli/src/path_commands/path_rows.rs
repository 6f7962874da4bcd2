//! Rows of the visible paths with their counters and rates, for `ps` and `top`.

use super::connect::{format_age, user_name};
use super::rates::{self, Rate};
use crate::failure::is_path_gone;
use crate::progress::format_bytes_short;
use member::client::{Client, ClientError, mask_hidden_characters};
use member::protocol::{Counters, RegisteredPath};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Titles of the columns of the table of paths.
pub(super) const ROW_TITLES: [&str; 8] =
    ["NO", "NAME", "USER", "TIME", "BLOCKS/S", "BYTES/S", "LOST", "REQUEST"];
/// Indices of the columns in [`ROW_TITLES`] that are right-aligned.
pub(super) const RIGHT_ALIGNED_CELLS: [usize; 5] = [0, 3, 4, 5, 6];

/// The result of querying a path, which determines if its row has counters.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(super) enum PathReachability {
    /// The process of the path replied in time.
    Running,
    /// The process of the path did not reply in time.
    Silent,
    /// The path belongs to another user and was not queried.
    Hidden,
}

/// A path with its latest counters, as a row of the table of paths.
#[derive(Serialize, Debug)]
pub(super) struct PathRow {
    #[serde(flatten)]
    pub(super) path: RegisteredPath,
    pub(super) state: PathReachability,
    pub(super) counters: Option<Counters>,
    /// Output rate of the sources between the last two samples; `None` after one sample.
    pub(super) rate: Option<Rate>,
    pub(super) lost: Option<u64>,
}

impl PathRow {
    /// Creates the row of a path from the results of its last two queries. `old` is the earlier
    /// result, and `new` the latest. `new` is `None` if the path has never been queried.
    fn new(
        path: RegisteredPath,
        old: Option<Result<Counters, ClientError>>,
        new: Option<&Result<Counters, ClientError>>,
    ) -> Self {
        let state = match new {
            None => PathReachability::Hidden,
            Some(Err(_)) => PathReachability::Silent,
            Some(Ok(_)) => PathReachability::Running,
        };
        let old = old.and_then(Result::ok);
        let new = new.and_then(|reply| reply.as_ref().ok()).cloned();
        let rate = old.as_ref().zip(new.as_ref()).map(|(before, after)| {
            let ns = after.elapsed_ns.saturating_sub(before.elapsed_ns);
            rates::compute_rate(
                rates::total_source_output(before),
                rates::total_source_output(after),
                ns,
            )
        });
        // A path that no longer replies keeps the totals of its last reply.
        let counters = new.or(old);
        let lost = counters.as_ref().map(Counters::lost_blocks);
        Self { path, state, counters, rate, lost }
    }

    /// Formats the cells of a row, in the order of [`ROW_TITLES`].
    pub(super) fn cells(&self) -> [String; ROW_TITLES.len()] {
        let dash = || "-".to_owned();
        let path = &self.path;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let time =
            path.started.map_or_else(dash, |started| format_age(now.saturating_sub(started)));
        let rate = |format: fn(Rate) -> String| self.rate.map_or_else(dash, format);
        let line = path
            .line
            .as_ref()
            .map_or_else(dash, |line| mask_hidden_characters(&line.replace('\n', " ")));
        [
            path.number.to_string(),
            path.name.as_deref().map_or_else(dash, mask_hidden_characters),
            user_name(path.uid),
            if self.state == PathReachability::Silent { "silent".to_owned() } else { time },
            rate(|rate| rates::format_rate_short(rate.blocks)),
            rate(|rate| format_bytes_short(rate.bytes as u64)),
            self.lost.map_or_else(dash, |lost| lost.to_string()),
            line,
        ]
    }
}

/// A sampler of the counters of the user's paths, which computes rates between consecutive samples.
#[derive(Default)]
pub(super) struct PathsSampler {
    previous: BTreeMap<u32, Result<Counters, ClientError>>,
}

impl PathsSampler {
    /// Returns true if at least one path replied to its latest query.
    pub(super) fn has_counters(&self) -> bool {
        self.previous.values().any(Result::is_ok)
    }

    /// Samples the counters of the user's paths in parallel, and returns a row for each path.
    /// Blocks for at most about `limit`. If `asks_silent` is false, does not query the paths that
    /// did not reply to their previous query. Omits paths that have ended since `paths` was listed.
    pub(super) fn sample(
        &mut self,
        client: &Client,
        paths: Vec<RegisteredPath>,
        (limit, asks_silent): (Duration, bool),
    ) -> Vec<PathRow> {
        let is_queried = |path: &RegisteredPath| {
            path.yours && (asks_silent || !matches!(self.previous.get(&path.number), Some(Err(_))))
        };
        let queried = || paths.iter().filter(|path| is_queried(path));
        let names: Vec<(u32, String)> =
            queried().map(|path| (path.uid, path.number.to_string())).collect();
        let replies = client.query_all_counters(&names, &[], limit, |_, counters, _| Ok(counters));
        let mut replies: BTreeMap<u32, _> =
            queried().map(|path| path.number).zip(replies).collect();
        let mut previous = std::mem::take(&mut self.previous);
        let rows = paths.into_iter().filter_map(|path| {
            let old = previous.remove(&path.number);
            // A path that is not queried again keeps the result of its last query.
            let new = replies.remove(&path.number).or_else(|| old.clone());
            if new.as_ref().is_some_and(|reply| reply.as_ref().is_err_and(is_path_gone)) {
                return None;
            }
            let number = path.number;
            let row = PathRow::new(path, old, new.as_ref());
            self.previous.extend(new.map(|reply| (number, reply)));
            Some(row)
        });
        rows.collect()
    }
}
