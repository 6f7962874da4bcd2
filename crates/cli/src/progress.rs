//! Progress lines of a run, on standard error.
//!
//! On a terminal, the counters of the sources ([`engine::run::Progress`]) appear in a status line
//! that is rewritten every second, or at the interval of `--progress`. If standard error is not a
//! terminal, progress is printed only with `--progress`, and each update is a new line.
//!
//! Progress is shown by default if standard error is a terminal, the request prints nothing to a
//! terminal, the process is in the foreground, and `--quiet` is not given.

use crate::arguments::progress::{DEFAULT_INTERVAL_NS, ProgressMode};
use crate::terminal;
use engine::run::Progress;
use pipeline::plan::Plan;
use runtime::ledger::{DropReason, FileReadPosition};
use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use streamline::report::format_count;

/// A printer of progress lines.
#[derive(Debug)]
pub(crate) struct ProgressPrinter {
    every_ns: u64,
    /// True if each progress line overwrites the previous one on the terminal.
    rewrites: bool,
    /// True if the user requested progress (`--progress`).
    is_requested: bool,
    previous: Cell<SourceTotals>,
}

/// The running time of a run, and the sums of the counters of its sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct SourceTotals {
    elapsed_ns: u64,
    blocks: u64,
    bytes: u64,
    lost: u64,
}

impl ProgressPrinter {
    /// Creates a printer of progress lines. Returns `None` if this run prints no progress.
    pub(crate) fn new(mode: Option<ProgressMode>, quiet: bool, plan: &Plan) -> Option<Self> {
        let rewrites = terminal::can_rewrite_line();
        let every_ns = match mode {
            Some(ProgressMode::No) => return None,
            Some(ProgressMode::Yes) => DEFAULT_INTERVAL_NS,
            Some(ProgressMode::Every(ns)) => ns,
            None if quiet || !rewrites => return None,
            None if io::stdout().is_terminal() && has_printing_sink(plan) => return None,
            None => DEFAULT_INTERVAL_NS,
        };
        let is_requested = mode.is_some();
        Some(Self { every_ns, rewrites, is_requested, previous: Cell::default() })
    }

    /// Returns the interval between two progress lines, in ns.
    pub(crate) const fn interval_ns(&self) -> u64 {
        self.every_ns
    }

    /// Prints a progress line with the counters in `progress`, and with rates since the previous
    /// call.
    pub(crate) fn print(&self, progress: &Progress) {
        let now = SourceTotals::sum_sources(progress);
        // If the interval is not a whole number of seconds, the time is printed with tenths.
        let time =
            format_duration(now.elapsed_ns, !self.every_ns.is_multiple_of(DEFAULT_INTERVAL_NS));
        let text = format_progress_line(&time, progress, now, self.previous.replace(now));
        match self.rewrites {
            true if !self.is_requested && terminal::is_background_process() => {}
            true => terminal::show_status_line(&text),
            false => terminal::print_error_text(&format!("{text}\n")),
        }
    }
}

/// Returns true if a sink, or a program at the end of the request, writes to standard output.
pub(crate) fn has_printing_sink(plan: &Plan) -> bool {
    let graph = &plan.graph;
    graph.nodes_with_ids().any(|(id, node)| {
        let Some(used) = node.filter() else { return false };
        let known = used.description;
        let is_end = !graph.edges.iter().any(|edge| edge.from == id);
        let names_it = known.parameters.iter().any(|parameter| {
            pipeline::explain::is_path(parameter)
                && used.arguments.text(parameter.name) == Some("-")
        });
        match known.kind {
            kind if kind.is_source() => false,
            _ if used.is_sink() => names_it || ["print", "json"].contains(&known.name),
            _ => used.endpoint.is_program && is_end,
        }
    })
}

impl SourceTotals {
    fn sum_sources(progress: &Progress) -> Self {
        let mut sum = Self { elapsed_ns: progress.elapsed_ns, ..Self::default() };
        for (_, source) in &progress.sources {
            sum.blocks += source.given.blocks;
            sum.bytes += source.given.bytes;
            sum.lost += source.dropped.iter().filter_map(|(_, n)| *n).sum::<u64>();
        }
        sum
    }
}

/// Formats a progress line, such as ` 12 s 48213 blocks 31.2 MB 4012 blocks/s 2.60 MB/s +120 lost:
/// 4009 ring, 3 nic`.
fn format_progress_line(
    time: &str,
    progress: &Progress,
    now: SourceTotals,
    before: SourceTotals,
) -> String {
    let ns = now.elapsed_ns.saturating_sub(before.elapsed_ns).max(1);
    let rate = |now: u64, before: u64| {
        let each = u128::from(now.saturating_sub(before)) * u128::from(DEFAULT_INTERVAL_NS)
            / u128::from(ns);
        u64::try_from(each).unwrap_or(u64::MAX)
    };
    let mut line = format!(
        " {}  {}  {}  {} blocks/s  {}/s",
        time,
        format_count(now.blocks, "block"),
        format_bytes_short(now.bytes),
        rate(now.blocks, before.blocks),
        format_bytes_short(rate(now.bytes, before.bytes)),
    );
    if let Some(part) = format_position(progress) {
        let _ = write!(line, "  {part}");
    }
    let new_losses = now.lost.saturating_sub(before.lost);
    if new_losses > 0 {
        let _ = write!(line, "  +{new_losses}");
    }
    if now.lost > 0 {
        let _ = write!(line, "  lost: {}", format_losses(progress));
    }
    if !progress.unresponsive.is_empty() {
        let _ = write!(line, "  held up: {}", progress.unresponsive.join(", "));
    }
    if progress.stopped {
        line.push_str("  draining");
    }
    line
}

/// Formats the position in the input files in percent, and the estimated remaining time:
/// `42 %, 3:07 left`. The estimate uses the average rate so far. Returns `None` if the end of a
/// source is unknown.
fn format_position(progress: &Progress) -> Option<String> {
    let positions = progress.sources.iter().map(|(_, source)| source.position);
    let positions = positions.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())?;
    let sum =
        |of: fn(&FileReadPosition) -> u64| positions.iter().map(of).fold(0, u64::saturating_add);
    let (read, size) = (sum(|at| at.read), sum(|at| at.size));
    // In a growing file, the position may be beyond the last known size.
    let size = size.max(read);
    let percent = u128::from(read) * 100 / u128::from(size.max(1));
    let left = match read {
        0 => return Some(format!("{percent} %")),
        read => u128::from(progress.elapsed_ns) * u128::from(size - read) / u128::from(read),
    };
    let left =
        u64::try_from(left).unwrap_or(u64::MAX).div_ceil(DEFAULT_INTERVAL_NS) * DEFAULT_INTERVAL_NS;
    Some(format!("{percent} %, {} left", format_duration(left, false)))
}

/// Formats the numbers of lost blocks by reason, in descending order.
fn format_losses(progress: &Progress) -> String {
    let mut places: Vec<(DropReason, u64)> = Vec::new();
    for (place, n) in progress.sources.iter().flat_map(|(_, source)| &source.dropped) {
        match places.iter_mut().find(|(known, _)| known == place) {
            Some((_, sum)) => *sum += n.unwrap_or(0),
            None => places.push((*place, n.unwrap_or(0))),
        }
    }
    places.retain(|(_, n)| *n > 0);
    places.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let texts: Vec<String> = places.iter().map(|(place, n)| format!("{n} {place}")).collect();
    texts.join(", ")
}

/// Formats a duration, such as `12 s`, `3:07` or `1:03:07`. If `tenths` is true, a duration of less
/// than a minute has one decimal place, such as `12.5 s`.
fn format_duration(ns: u64, tenths: bool) -> String {
    let seconds = ns / DEFAULT_INTERVAL_NS;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) if tenths => {
            format!("{seconds}.{} s", ns % DEFAULT_INTERVAL_NS / 100_000_000)
        }
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// Formats a number of bytes with three significant digits, such as `999 B` or `31.2 MB`.
pub(crate) fn format_bytes_short(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    // The value is in thousandths of the unit; EB suffices for `u64::MAX`.
    let mut thousandths = bytes;
    let mut unit = 0;
    while thousandths >= 1_000_000 && unit + 1 < UNITS.len() {
        thousandths /= 1000;
        unit += 1;
    }
    let (whole, rest) = (thousandths / 1000, thousandths % 1000);
    match whole {
        0..10 => format!("{whole}.{:02} {}", rest / 10, UNITS[unit]),
        10..100 => format!("{whole}.{} {}", rest / 100, UNITS[unit]),
        _ => format!("{whole} {}", UNITS[unit]),
    }
}

/// Formats consecutive numbers as ranges, such as `7` or `1-3`.
pub(crate) fn format_consecutive_ranges(numbers: impl Iterator<Item = u64>) -> Vec<String> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last): &(u64, u64)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::ledger::SourceCounters;

    #[test]
    fn byte_counts_have_three_digits() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (31_249, "31.2 kB"),
            (999_999, "999 kB"),
            (1_000_000, "1.00 MB"),
            (2_605_000_000, "2.60 GB"),
            (u64::MAX, "18.4 EB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(format_bytes_short(bytes), text);
        }
        assert_eq!(format_duration(250_000_000, true), "0.2 s");
        assert_eq!(format_duration(59_999_999_999, false), "59 s");
        assert_eq!(format_duration(187_000_000_000, true), "3:07");
        assert_eq!(format_duration(3_787_000_000_000, false), "1:03:07");
    }

    #[test]
    fn progress_line_has_rates_position_and_losses() {
        let mut progress = Progress { elapsed_ns: 12_000_000_000, ..Progress::default() };
        let before =
            SourceTotals { elapsed_ns: 11_000_000_000, blocks: 44_201, bytes: 28_600_000, lost: 0 };
        let now =
            SourceTotals { elapsed_ns: 12_000_000_000, blocks: 48_213, bytes: 31_200_000, lost: 0 };
        let quiet = " 12 s  48213 blocks  31.2 MB  4012 blocks/s  2.60 MB/s";
        assert_eq!(format_progress_line("12 s", &progress, now, before), quiet);
        let files = [(1_000_000, 4_000_000), (500_000, 2_000_000)];
        progress.sources = files
            .map(|(read, size)| {
                let position = Some(FileReadPosition { read, size });
                ("replay".to_owned(), SourceCounters { position, ..SourceCounters::default() })
            })
            .into();
        let halfway = format!("{quiet}  25 %, 36 s left");
        assert_eq!(format_progress_line("12 s", &progress, now, before), halfway);
        progress.sources[1].1.position = None;
        assert_eq!(
            format_progress_line("12 s", &progress, now, before),
            quiet,
            "an interface has no end"
        );
        progress.sources.clear();
        progress.sources.push(("rx".to_owned(), Default::default()));
        progress.sources[0].1.dropped =
            vec![("nic".into(), Some(3)), ("backlog".into(), None), ("ring".into(), Some(4009))];
        progress.unresponsive = vec!["rx".to_owned()];
        progress.stopped = true;
        let lossy = SourceTotals { lost: 4012, ..now };
        let line =
            format_progress_line("12 s", &progress, lossy, SourceTotals { lost: 3892, ..before });
        assert_eq!(line, format!("{quiet}  +120  lost: 4009 ring, 3 nic  held up: rx  draining"));
        assert_eq!(SourceTotals::sum_sources(&progress).lost, 4012);
        let line =
            format_progress_line("12 s", &progress, lossy, SourceTotals { lost: 4012, ..before });
        let old = format!("{quiet}  lost: 4009 ring, 3 nic  held up: rx  draining");
        assert_eq!(line, old, "nothing anew");
    }
}
