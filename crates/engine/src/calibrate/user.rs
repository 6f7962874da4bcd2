//! Costs of filters in a thread: the request of each filter's own example, up to the filter, on
//! frames that the program brings along.

use super::figures::Calibration;
use super::made::Made;
use crate::build::{Settings, build};
use crate::run::{Outcome, run_alone};
use filter::{Description, Reads};
use pipeline::explain;
use pipeline::plan::{FilterCost, Machine, plan};
use runtime::ledger::Filtered;
use std::path::PathBuf;

/// A capture with connections, names and pages in it.
const CAPTURE: &[u8] = include_bytes!("../../../../examples/web.pcap");
/// Frames that are made, where a filter takes frames: short and long ones.
const MADE: u32 = 8_192;
const SHORT: u32 = 64;
const LONG: u32 = 1400;
/// Number of runs of a request.
const ROUNDS: usize = 5;
/// Least cost of a filter, in ns.
const LEAST: f64 = 0.5;
/// All filters of a line.
const EACH: &str = "";

/// Input of a node, and its cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    /// For a block, on average.
    pub(super) ns: f64,
    /// Bytes of a block, on average.
    pub(super) bytes: f64,
}

pub(super) fn measure(calibration: &mut Calibration) {
    let capture = match Capture::written() {
        Ok(capture) => capture,
        Err(why) => {
            calibration.missing.push(("filters in a thread".to_owned(), why));
            return;
        }
    };
    let look = first().map(|look| look.max(LEAST));
    calibration.note("look", look);
    for description in filter::catalog::FILTERS {
        match cost(description, &capture) {
            Ok((block, byte)) => {
                let filter = description.name.to_owned();
                calibration.costs.put(FilterCost { filter, kernel: false, block, byte });
            }
            Err(why) => {
                calibration.missing.push((format!("{} in a thread", description.name), why));
            }
        }
    }
}

/// Measures the cost of finding the headers, which the first node to need them pays.
fn first() -> Result<f64, String> {
    let source = format!("generate count={MADE} size={SHORT}");
    let first = timed(&format!("{source} | dport |all discard"), EACH, ROUNDS)?;
    let both = timed(&format!("{source} | dport |all dport |all discard"), EACH, ROUNDS)?;
    Ok(2.0 * first.ns - both.ns)
}

/// Measures the cost of a filter per block and per byte.
fn cost(description: &Description, capture: &Capture) -> Result<(f64, f64), String> {
    let (before, own) = words(description).ok_or("its example does not show it")?;
    let line = |source: &str| {
        let way: Vec<&str> = [source].into_iter().chain(before.iter().copied()).collect();
        format!("{} | {own} |all discard", way.join(" | "))
    };
    if !before.is_empty() {
        let seen = timed(&line(&capture.source()), description.name, ROUNDS)?;
        return Ok(split(description, seen));
    }
    // Whoever is first finds out where the headers begin, for all behind: so what a filter costs is
    // by how much more it is with somebody behind it who looks at the head, too.
    let made = |size| {
        let source = format!("generate count={MADE} size={size}");
        let with = timed(&format!("{source} | {own} |all dport |all discard"), EACH, ROUNDS)?;
        let alone = timed(&format!("{source} | dport |all discard"), EACH, ROUNDS)?;
        Ok::<_, String>(Timed { ns: (with.ns - alone.ns).max(LEAST), ..with })
    };
    let (short, long) = (made(SHORT)?, made(LONG)?);
    if description.reads != Reads::All {
        return Ok(((short.ns + long.ns) / 2.0, 0.0));
    }
    let byte = ((long.ns - short.ns) / f64::from(LONG - SHORT)).max(0.0);
    Ok(((short.ns - byte * f64::from(SHORT)).max(0.0), byte))
}

/// Splits a cost into its parts per block and per byte, where only one length of blocks was
/// measured.
fn split(description: &Description, seen: Timed) -> (f64, f64) {
    match description.reads {
        Reads::All if seen.bytes > 1.0 => (0.0, seen.ns / seen.bytes),
        Reads::All | Reads::Head(_) | Reads::Nothing => (seen.ns, 0.0),
    }
}

/// The filters before this one in its own example, and itself with its arguments.
pub(super) fn words(description: &Description) -> Option<(Vec<&'static str>, &'static str)> {
    let all = pipes(description.example);
    let named = |part: &&str| part.split_whitespace().next() == Some(description.name);
    let place = all.iter().position(named)?;
    Some((all.get(1..place)?.to_vec(), all.get(place)?))
}

/// The parts of a line between its pipes, without labels.
fn pipes(line: &'static str) -> Vec<&'static str> {
    let mut quoted = false;
    let parts = line.split(|c: char| {
        quoted ^= c == '"';
        c == '|' && !quoted
    });
    let unlabelled = |part: &'static str| match part.starts_with(' ') {
        true => part.trim(),
        false => part.split_once(' ').map_or(part, |(_, rest)| rest.trim()),
    };
    let mut parts = parts.collect::<Vec<_>>().into_iter();
    let head = parts.next().map(str::trim);
    head.into_iter().chain(parts.map(unlabelled)).collect()
}

/// Measures the cost of a node of a request, or of all its filters ([`EACH`]): the fastest of some
/// runs.
pub(super) fn timed(line: &str, node: &str, rounds: usize) -> Result<Timed, String> {
    let mut best: Option<Timed> = None;
    for _ in 0..rounds {
        let (names, outcome) = ran(line, true)?;
        let is_it = |filtered: &&Filtered| {
            let known = names.get(filtered.planned).map(String::as_str);
            let name = known.and_then(|known| known.split('#').next());
            if node == EACH { name != Some("discard") } else { name == Some(node) }
        };
        let mut found = outcome.ledger.filters.iter().rev().filter(is_it).peekable();
        let last = found.peek().filter(|found| found.taken.blocks > 0);
        let taken = last.ok_or("no block came to it")?.taken;
        let nodes = if node == EACH { usize::MAX } else { 1 };
        let busy: u64 = found.take(nodes).map(|found| found.busy_ns).sum();
        let ns = busy as f64 / taken.blocks as f64;
        if best.is_none_or(|best| ns < best.ns) {
            best = Some(Timed { ns, bytes: taken.bytes as f64 / taken.blocks as f64 });
        }
    }
    best.ok_or_else(|| "it was not run".to_owned())
}

/// Measures the cost of a block on its way through a whole request: the fastest of some runs.
pub(super) fn whole(line: &str, rounds: usize) -> Result<f64, String> {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let (_, outcome) = ran(line, false)?;
        let given: u64 = outcome.ledger.sources.iter().map(|(_, seen)| seen.given.blocks).sum();
        best = best.min(outcome.elapsed_ns as f64 / given.max(1) as f64);
    }
    Ok(best)
}

/// Runs a line in this thread, without the kernel; answers the names of its nodes too.
fn ran(line: &str, timed: bool) -> Result<(Vec<String>, Outcome), String> {
    let (graph, mistakes) = pipeline::read(line, &Made);
    if mistakes.iter().any(pipeline::Diagnostic::is_error) {
        return Err(pipeline::render(line, &mistakes, false).trim_end().replace('\n', "; "));
    }
    let plan = plan(graph, &Made, &Machine::example()).map_err(|why| why.to_string())?;
    let settings = Settings { timed, ..Settings::default() };
    let paths = build(&plan, settings).map_err(|why| why.to_string())?;
    let outcome = run_alone(paths);
    match outcome.failures.first() {
        Some(failure) => Err(failure.to_string()),
        None => Ok((explain::names(&plan.graph), outcome)),
    }
}

/// The bundled capture as a file, gone when it is dropped.
struct Capture(PathBuf);

impl Capture {
    fn written() -> Result<Self, String> {
        let name = format!("streamline-calibrate-{}.pcap", std::process::id());
        let path = std::env::temp_dir().join(name);
        let why = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
        // Nobody else's file is written to, whatever lies there.
        let mut file = std::fs::File::create_new(&path).map_err(why)?;
        let written = std::io::Write::write_all(&mut file, CAPTURE).map_err(why);
        let capture = Self(path);
        written.map(|()| capture)
    }

    fn source(&self) -> String {
        format!("replay {:?}", self.0.display().to_string())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_a_filter_tells_what_stands_before_it() {
        let of = |name: &str| words(filter::catalog::find(name).unwrap()).unwrap();
        assert_eq!(of("bpf"), (vec![], "bpf \"tcp port 80\""));
        assert_eq!(of("http"), (vec!["tcp"], "http"));
        assert_eq!(of("match"), (vec![], "match \"GET \" \"POST \""));
        for description in filter::catalog::FILTERS {
            assert!(words(description).is_some(), "{}", description.name);
        }
    }
}
