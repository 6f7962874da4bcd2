//! Costs of filters in a thread. A filter that has predecessors in its example is measured with the
//! same predecessors and the frames of a bundled capture. Any other filter is measured with
//! generated frames of two lengths.

use super::calibration::{Calibration, Result, min_of_rounds};
use super::test_traffic::plan_request;
use crate::build::{RunSettings, build};
use crate::registry::MachineRegistry;
use crate::run::{RunOutcome, run_in_calling_thread};
use filter::{Description, ReadDepth};
use pipeline::explain;
use pipeline::plan::Machine;
use runtime::ledger::NodeEntry;
use std::path::PathBuf;

/// A capture with TCP connections, DNS lookups and web pages.
const EXAMPLE_CAPTURE: &[u8] = include_bytes!("../../../../examples/web.pcap");
/// Number of generated frames, for filters that accept frames.
const GENERATED_FRAMES: u32 = 8_192;
/// Length of short generated frames, in bytes.
const SHORT_FRAME_BYTES: u32 = 64;
/// Length of long generated frames, in bytes.
const LONG_FRAME_BYTES: u32 = 1400;
/// Number of times that a measured request is run.
const ROUNDS: usize = 5;
/// Minimum cost that the calibration reports for a filter, in ns.
const FILTER_COST_MIN_NS: f64 = 0.5;
/// The empty node name, which stands for all filters of a request together (see
/// [`measure_node_cost`]).
const ALL_FILTERS: &str = "";

/// Average cost and length of the blocks that arrive at a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockCost {
    /// Average time per block, in ns.
    pub(super) ns: f64,
    /// Average bytes per block.
    pub(super) bytes: f64,
}

pub(super) fn measure(calibration: &mut Calibration) {
    let capture = match CaptureFile::create() {
        Ok(capture) => capture,
        Err(why) => {
            return calibration.record_missing_figures(&["filters in a thread"], &*why);
        }
    };
    let look = measure_header_cost().map(|look| look.max(FILTER_COST_MIN_NS));
    calibration.record_cost("look", look);
    for description in filter::catalog::FILTERS {
        calibration.record_filter_cost(
            description.name,
            false,
            measure_cost(description, &capture),
        );
    }
}

/// Measures the time, in ns, that the first filter to read the headers of a frame spends on finding
/// them. Later filters use the offsets that the first one found.
fn measure_header_cost() -> Result<f64> {
    let source = format!("generate count={GENERATED_FRAMES} size={SHORT_FRAME_BYTES}");
    let first = measure_node_cost(&format!("{source} | dport |all discard"), ALL_FILTERS, ROUNDS)?;
    let both = measure_node_cost(
        &format!("{source} | dport |all dport |all discard"),
        ALL_FILTERS,
        ROUNDS,
    )?;
    Ok(2.0 * first.ns - both.ns)
}

/// Measures the time, in ns, that a filter needs per block and per byte.
fn measure_cost(description: &Description, capture: &CaptureFile) -> Result<(f64, f64)> {
    let (before, own) = split_example(description).ok_or("its example does not use it")?;
    let line = |source: &str| {
        let way: Vec<&str> = [source].into_iter().chain(before.iter().copied()).collect();
        format!("{} | {own} |all discard", way.join(" | "))
    };
    if !before.is_empty() {
        let cost = measure_node_cost(&line(&capture.replay_source()), description.name, ROUNDS)?;
        return Ok(split_cost(description, cost));
    }
    // The first filter that reads headers pays for finding them. Both variants include a header
    // filter at the end, so this cost cancels.
    let made = |size| {
        let source = format!("generate count={GENERATED_FRAMES} size={size}");
        let with = measure_node_cost(
            &format!("{source} | {own} |all dport |all discard"),
            ALL_FILTERS,
            ROUNDS,
        )?;
        let alone =
            measure_node_cost(&format!("{source} | dport |all discard"), ALL_FILTERS, ROUNDS)?;
        Result::Ok(BlockCost { ns: (with.ns - alone.ns).max(FILTER_COST_MIN_NS), ..with })
    };
    let (short, long) = (made(SHORT_FRAME_BYTES)?, made(LONG_FRAME_BYTES)?);
    if description.reads != ReadDepth::All {
        return Ok(((short.ns + long.ns) / 2.0, 0.0));
    }
    let byte = ((long.ns - short.ns) / f64::from(LONG_FRAME_BYTES - SHORT_FRAME_BYTES)).max(0.0);
    Ok(((short.ns - byte * f64::from(SHORT_FRAME_BYTES)).max(FILTER_COST_MIN_NS), byte))
}

/// Converts the average cost of a block into a cost per block and a cost per byte. A filter that
/// reads whole blocks gets only a cost per byte, any other filter only a cost per block. A second
/// measurement at another length is therefore not needed.
fn split_cost(description: &Description, cost: BlockCost) -> (f64, f64) {
    match description.reads {
        ReadDepth::All if cost.bytes > 1.0 => (0.0, cost.ns / cost.bytes),
        ReadDepth::All | ReadDepth::Head(_) | ReadDepth::Nothing => (cost.ns, 0.0),
    }
}

/// Returns the filters that precede this filter in its example, and the filter itself with its
/// arguments. Returns `None` if the example does not contain the filter.
pub(super) fn split_example(
    description: &Description,
) -> Option<(Vec<&'static str>, &'static str)> {
    let all = split_at_pipes(description.example);
    let named = |part: &&str| part.split_whitespace().next() == Some(description.name);
    let place = all.iter().position(named)?;
    Some((all.get(1..place)?.to_vec(), all.get(place)?))
}

/// Splits a request at its pipe symbols, except those in double quotes, and removes the labels.
fn split_at_pipes(line: &'static str) -> Vec<&'static str> {
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

/// Runs a request `rounds` times. Returns the cost in the fastest run: of the last node named
/// `node`, or of all filters together if `node` is [`ALL_FILTERS`].
pub(super) fn measure_node_cost(line: &str, node: &str, rounds: usize) -> Result<BlockCost> {
    let mut best: Option<BlockCost> = None;
    for _ in 0..rounds {
        let (names, outcome) = run_request(line, true)?;
        let is_it = |filtered: &&NodeEntry| {
            let known = names.get(filtered.planned).map(String::as_str);
            let name = known.and_then(|known| known.split('#').next());
            if node == ALL_FILTERS { name != Some("discard") } else { name == Some(node) }
        };
        let mut found = outcome.ledger.filters.iter().rev().filter(is_it).peekable();
        let last = found.peek().filter(|found| found.taken.blocks > 0);
        let taken = last.ok_or("no block reached it")?.taken;
        let nodes = if node == ALL_FILTERS { usize::MAX } else { 1 };
        let busy: u64 = found.take(nodes).map(|found| found.busy_ns).sum();
        let ns = busy as f64 / taken.blocks as f64;
        if best.is_none_or(|best| ns < best.ns) {
            best = Some(BlockCost { ns, bytes: taken.bytes as f64 / taken.blocks as f64 });
        }
    }
    best.ok_or_else(|| "it was not run".into())
}

/// Returns the average time per block, in ns, that a request takes in the fastest of `rounds` runs.
pub(super) fn measure_request(line: &str, rounds: usize) -> Result<f64> {
    min_of_rounds(rounds, || {
        let (_, outcome) = run_request(line, false)?;
        let given: u64 = outcome.ledger.sources.iter().map(|(_, source)| source.given.blocks).sum();
        Ok(outcome.elapsed_ns as f64 / given.max(1) as f64)
    })
}

/// Runs a request on the current thread, with all nodes in user space. Measures the time spent in
/// each filter if `timed` is true. Returns the names of the request's nodes and the outcome.
fn run_request(line: &str, timed: bool) -> Result<(Vec<String>, RunOutcome)> {
    let plan = plan_request(line, &MachineRegistry::Calibration, &Machine::example())?;
    let settings = RunSettings { timed, ..RunSettings::default() };
    let mut outcome = run_in_calling_thread(build(&plan, settings)?);
    match outcome.failures.pop() {
        Some(failure) => Err(failure.into()),
        None => Ok((explain::unique_names(&plan.graph), outcome)),
    }
}

/// The bundled capture as a temporary file, removed on drop.
struct CaptureFile(PathBuf);

impl CaptureFile {
    fn create() -> Result<Self> {
        let name = format!("streamline-calibrate-{}.pcap", std::process::id());
        let path = std::env::temp_dir().join(name);
        let why = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
        // An existing file, perhaps of another user, is never overwritten.
        let mut file = std::fs::File::create_new(&path).map_err(why)?;
        let written = std::io::Write::write_all(&mut file, EXAMPLE_CAPTURE).map_err(why);
        let capture = Self(path);
        Ok(written.map(|()| capture)?)
    }

    fn replay_source(&self) -> String {
        format!("replay {:?}", self.0.display().to_string())
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_of_a_filter_splits_into_predecessors_and_filter() {
        let of = |name: &str| split_example(filter::catalog::find(name).unwrap()).unwrap();
        assert_eq!(of("bpf"), (vec![], "bpf \"tcp port 80\""));
        assert_eq!(of("http"), (vec!["tcp"], "http"));
        assert_eq!(of("match"), (vec![], "match \"GET \" \"POST \""));
        for description in filter::catalog::FILTERS {
            assert!(split_example(description).is_some(), "{}", description.name);
        }
    }
}
