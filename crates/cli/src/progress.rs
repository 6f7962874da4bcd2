//! Progress: how far a run is, on standard error, while it goes on.
//!
//! In: what sources answered ([`engine::run::Progress`]). Out: on a terminal one line that takes
//! its own place each second; elsewhere, and only if `--progress` asks, one line after the other.
//!
//! Without `--progress` it is shown when a person watches standard error, nothing of the line is
//! printed on the same terminal, and we are not in the background of a shell.

use crate::terminal;
use engine::run::Progress;
use pipeline::plan::Plan;
use runtime::ledger::{DropReason, Position};
use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use streamline::report::counted;

/// The default interval, in ns.
const EVERY_NS: u64 = 1_000_000_000;
/// The shortest time between two tellings, in ns.
const LEAST_NS: u64 = 100_000_000;

/// The value of `--progress`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// Once a second.
    Yes,
    /// Never.
    No,
    /// After each such time, in ns.
    Every(u64),
}

/// Reads `yes`, `no` or a time, which without a unit is in seconds.
pub(crate) fn wish(text: &str) -> Result<Wish, String> {
    match text {
        "yes" => Ok(Wish::Yes),
        "no" => Ok(Wish::No),
        _ => match pipeline::explain::time(text) {
            Ok(every) if every >= LEAST_NS => Ok(Wish::Every(every)),
            Ok(_) => Err("not more often than each 100ms".to_owned()),
            Err(_) => Err("write `yes`, `no`, seconds, or a time such as 500ms".to_owned()),
        },
    }
}

/// Tells how far a run is.
#[derive(Debug)]
pub(crate) struct Teller {
    every_ns: u64,
    /// True if a line replaces the previous one.
    rewrites: bool,
    /// True if the user asked for it.
    asked: bool,
    before: Cell<Sum>,
}

/// The sum over all sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Sum {
    elapsed_ns: u64,
    blocks: u64,
    bytes: u64,
    lost: u64,
}

impl Teller {
    /// A teller, if progress is to be shown.
    pub(crate) fn new(wish: Option<Wish>, quiet: bool, plan: &Plan) -> Option<Self> {
        let rewrites = terminal::can_rewrite();
        let every_ns = match wish {
            Some(Wish::No) => return None,
            Some(Wish::Yes) => EVERY_NS,
            Some(Wish::Every(ns)) => ns,
            None if quiet || !rewrites => return None,
            None if io::stdout().is_terminal() && prints(plan) => return None,
            None => EVERY_NS,
        };
        let asked = wish.is_some();
        Some(Self { every_ns, rewrites, asked, before: Cell::default() })
    }

    /// The time between two tellings, in ns.
    pub(crate) const fn every_ns(&self) -> u64 {
        self.every_ns
    }

    /// Tells how far it is.
    pub(crate) fn tell(&self, progress: &Progress) {
        let now = Sum::of(progress);
        // Whole seconds say nothing where it is told more often.
        let time = clock(now.elapsed_ns, !self.every_ns.is_multiple_of(EVERY_NS));
        let line = told(&time, progress, now, self.before.replace(now));
        match self.rewrites {
            true if !self.asked && terminal::is_background() => {}
            true => terminal::status(&line),
            false => terminal::tell(&format!("{line}\n")),
        }
    }
}

/// Returns true if the line writes to standard output while it runs.
fn prints(plan: &Plan) -> bool {
    let graph = &plan.graph;
    graph.ids().any(|(id, node)| {
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
            _ => used.endpoint.process && is_end,
        }
    })
}

impl Sum {
    fn of(progress: &Progress) -> Self {
        let mut sum = Self { elapsed_ns: progress.elapsed_ns, ..Self::default() };
        for (_, seen) in &progress.sources {
            sum.blocks += seen.given.blocks;
            sum.bytes += seen.given.bytes;
            sum.lost += seen.dropped.iter().filter_map(|(_, n)| *n).sum::<u64>();
        }
        sum
    }
}

/// ` 12 s  48213 blocks  31.2 MB  4012 blocks/s  2.60 MB/s  +120  lost: 4009 ring, 3 nic`
fn told(time: &str, progress: &Progress, now: Sum, before: Sum) -> String {
    let ns = now.elapsed_ns.saturating_sub(before.elapsed_ns).max(1);
    let rate = |now: u64, before: u64| {
        let each = u128::from(now.saturating_sub(before)) * u128::from(EVERY_NS) / u128::from(ns);
        u64::try_from(each).unwrap_or(u64::MAX)
    };
    let mut line = format!(
        " {}  {}  {}  {} blocks/s  {}/s",
        time,
        counted(now.blocks, "block"),
        short(now.bytes),
        rate(now.blocks, before.blocks),
        short(rate(now.bytes, before.bytes)),
    );
    if let Some(part) = part(progress) {
        let _ = write!(line, "  {part}");
    }
    let fresh = now.lost.saturating_sub(before.lost);
    if fresh > 0 {
        let _ = write!(line, "  +{fresh}");
    }
    if now.lost > 0 {
        let _ = write!(line, "  lost: {}", places(progress));
    }
    if !progress.held_up.is_empty() {
        let _ = write!(line, "  held up: {}", progress.held_up.join(", "));
    }
    if progress.stopped {
        line.push_str("  draining");
    }
    line
}

/// Formats the part of the files that has been read, in per cent, and the remaining time at the
/// mean rate so far: ` 42 %, 3:07 left`. `None` if a source has no known end.
fn part(progress: &Progress) -> Option<String> {
    let positions = progress.sources.iter().map(|(_, seen)| seen.position);
    let positions = positions.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())?;
    let sum = |of: fn(&Position) -> u64| positions.iter().map(of).fold(0, u64::saturating_add);
    let (read, size) = (sum(|at| at.read), sum(|at| at.size));
    // A file that grows is read as far as it was a moment ago.
    let size = size.max(read);
    let percent = u128::from(read) * 100 / u128::from(size.max(1));
    let left = match read {
        0 => return Some(format!("{percent} %")),
        read => u128::from(progress.elapsed_ns) * u128::from(size - read) / u128::from(read),
    };
    let left = u64::try_from(left).unwrap_or(u64::MAX).div_ceil(EVERY_NS) * EVERY_NS;
    Some(format!("{percent} %, {} left", clock(left, false)))
}

/// Formats losses by place, most first.
fn places(progress: &Progress) -> String {
    let mut places: Vec<(DropReason, u64)> = Vec::new();
    for (place, n) in progress.sources.iter().flat_map(|(_, seen)| &seen.dropped) {
        match places.iter_mut().find(|(known, _)| known == place) {
            Some((_, sum)) => *sum += n.unwrap_or(0),
            None => places.push((*place, n.unwrap_or(0))),
        }
    }
    places.retain(|(_, n)| *n > 0);
    places.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let told: Vec<String> = places.iter().map(|(place, n)| format!("{n} {place}")).collect();
    told.join(", ")
}

/// A time as people read it while it passes: `12 s`, `3:07`, `1:03:07`; with `tenths` `12.5 s`.
fn clock(ns: u64, tenths: bool) -> String {
    let seconds = ns / EVERY_NS;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) if tenths => format!("{seconds}.{} s", ns % EVERY_NS / 100_000_000),
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// An amount of bytes with three figures: `999 B`, `31.2 MB`.
pub(crate) fn short(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    // In thousandths of the unit; 64 bits end within EB.
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

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::ledger::Seen;

    #[test]
    fn wishes_are_words_seconds_and_times() {
        assert_eq!(wish("yes"), Ok(Wish::Yes));
        assert_eq!(wish("no"), Ok(Wish::No));
        assert_eq!(wish("10"), Ok(Wish::Every(10_000_000_000)));
        assert_eq!(wish("0.5"), Ok(Wish::Every(500_000_000)));
        assert_eq!(wish("500ms"), Ok(Wish::Every(500_000_000)));
        for wrong in ["", "often", "0", "1us", "-1"] {
            assert!(wish(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn figures_are_short() {
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
            assert_eq!(short(bytes), text);
        }
        assert_eq!(clock(250_000_000, true), "0.2 s");
        assert_eq!(clock(59_999_999_999, false), "59 s");
        assert_eq!(clock(187_000_000_000, true), "3:07");
        assert_eq!(clock(3_787_000_000_000, false), "1:03:07");
    }

    #[test]
    fn a_line_says_how_far_it_is_and_what_was_lost_where() {
        let mut progress = Progress { elapsed_ns: 12_000_000_000, ..Progress::default() };
        let before = Sum { elapsed_ns: 11_000_000_000, blocks: 44_201, bytes: 28_600_000, lost: 0 };
        let now = Sum { elapsed_ns: 12_000_000_000, blocks: 48_213, bytes: 31_200_000, lost: 0 };
        let quiet = " 12 s  48213 blocks  31.2 MB  4012 blocks/s  2.60 MB/s";
        assert_eq!(told("12 s", &progress, now, before), quiet);
        let files = [(1_000_000, 4_000_000), (500_000, 2_000_000)];
        progress.sources = files
            .map(|(read, size)| {
                let position = Some(Position { read, size });
                ("replay".to_owned(), Seen { position, ..Seen::default() })
            })
            .into();
        let halfway = format!("{quiet}  25 %, 36 s left");
        assert_eq!(told("12 s", &progress, now, before), halfway);
        progress.sources[1].1.position = None;
        assert_eq!(told("12 s", &progress, now, before), quiet, "an interface has no end");
        progress.sources.clear();
        progress.sources.push(("rx".to_owned(), Default::default()));
        progress.sources[0].1.dropped =
            vec![("nic".into(), Some(3)), ("backlog".into(), None), ("ring".into(), Some(4009))];
        progress.held_up = vec!["rx".to_owned()];
        progress.stopped = true;
        let lossy = Sum { lost: 4012, ..now };
        let line = told("12 s", &progress, lossy, Sum { lost: 3892, ..before });
        assert_eq!(line, format!("{quiet}  +120  lost: 4009 ring, 3 nic  held up: rx  draining"));
        assert_eq!(Sum::of(&progress).lost, 4012);
        let line = told("12 s", &progress, lossy, Sum { lost: 4012, ..before });
        let old = format!("{quiet}  lost: 4009 ring, 3 nic  held up: rx  draining");
        assert_eq!(line, old, "nothing anew");
    }
}
