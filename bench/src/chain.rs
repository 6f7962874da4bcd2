//! A chain of filters over blocks of 1 KB, run from the text of a request with the ledger on,
//! compared with a loop of indirect calls and with Unix processes connected by pipes.
//! [Th §5.2.1, fig. 5.1]
//!
//! - `fast`: the blocks are in the dbuf and are not copied; `loop` does the same in a hand-written
//!   loop.
//!
//! - `ring`: every block is copied into the dbuf, crosses a ring and is copied out, as in `pipes`.
//!
//! - `cycle`: like `fast`, but every block passes through a cycle of two filters for the maximum
//!   number of rounds; `written out` runs the same number of filters in a chain. [FEATURES A13]
//!
//! - `whole`: like `fast`, but reads every byte; `whole ring`: like `ring`, but reads every byte.

use crate::harness::{Candidate, Goal, measure_interleaved_rows};
use crate::piped_matcher::{FilterExtent, PipedMatcher};
use crate::request_run::run_request;
use crate::row::Row;
use streamline_bench_loops::{Matcher, count_by_indirect_calls, first_byte_is_two, no_byte_is_ff};

/// Number of blocks in a measurement in which blocks are not copied out of the dbuf.
const UNCOPIED_BLOCK_COUNT: u64 = 4_000_000;
/// Number of blocks in a measurement with a ring.
const RING_MEASUREMENT_BLOCKS: u64 = 8_000_000;
/// Number of blocks in a measurement that reads every byte.
const FULLY_READ_BLOCKS: u64 = 2_000_000;
/// Number of blocks in a measurement of a cycle.
const CYCLE_BLOCKS: u64 = 300_000;
/// Number of filters that a block in the cycle passes: two in the first pass, and two in each of 16
/// further rounds.
const CYCLE_FILTER_PASSES: usize = 34;
/// Number of blocks in a measurement with pipes.
const PIPED_BLOCKS: u64 = 100_000;
/// Number of blocks in the reference loop's ring (1 MB).
const REFERENCE_RING_BLOCKS: usize = 1024;

/// Runs `bench chain`: measures chains of different numbers of filters, and the cycle.
pub(crate) fn run_bench(rounds: usize) -> Result<Vec<Row>, String> {
    // As in the paper, everything runs on one processor.
    sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
    let pipes = PipedMatcher::compile();
    if let Err(why) = &pipes {
        eprintln!("left out: pipes: {why}");
    }
    let mut rows = Vec::new();
    for filters in [0, 1, 2, 4, 8] {
        rows.extend(measure_first_byte_filters(filters, rounds, pipes.as_ref().ok())?);
    }
    rows.extend(measure_every_byte_filters(8, rounds, pipes.as_ref().ok())?);
    rows.extend(measure_cycle(rounds)?);
    Ok(rows)
}

/// Compares a cycle of two filters with a chain of [`CYCLE_FILTER_PASSES`] filters. A block in the
/// cycle passes as many filters as a block in the chain.
fn measure_cycle(rounds: usize) -> Result<Vec<Row>, String> {
    const MATCH_FILTER: &str = "match hex=02 at=0";
    let source = format!("generate count={CYCLE_BLOCKS} size=1024");
    let first = "match --name=X hex=02 at=0";
    let cycle = format!("{source} | {first} | {MATCH_FILTER} | {first}");
    let chain =
        format!("{source} {} | discard", format!("| {MATCH_FILTER} ").repeat(CYCLE_FILTER_PASSES));
    let around = move || {
        let outcome = run_request(&cycle)?;
        let passed = outcome.ledger.filters.iter().map(|node| node.passed.blocks).sum::<u64>();
        if passed < CYCLE_BLOCKS * CYCLE_FILTER_PASSES as u64 {
            return Err(format!("{passed} blocks passed the filters of `{cycle}`"));
        }
        Ok(CYCLE_BLOCKS as f64 * 1e3 / outcome.elapsed_ns as f64)
    };
    let candidates = vec![
        Candidate {
            name: "written out",
            measure: Box::new(move || measure_rate(&chain, CYCLE_BLOCKS)),
        },
        Candidate { name: "cycle", measure: Box::new(around) },
    ];
    let row = format!("{CYCLE_FILTER_PASSES} filters in a cycle of two");
    measure_interleaved_rows(("chain", &row, f64::NAN), "Mblocks/s", rounds, candidates, &[])
}

fn measure_first_byte_filters(
    filters: usize,
    rounds: usize,
    pipes: Option<&PipedMatcher>,
) -> Result<Vec<Row>, String> {
    let matches = "| match hex=02 at=0 ".repeat(filters);
    let fast = format!("generate count={UNCOPIED_BLOCK_COUNT} size=1024 {matches}| discard");
    let ring =
        format!("bench_write@thread0 {RING_MEASUREMENT_BLOCKS} {matches}| bench_read@thread1");
    let mut candidates = vec![
        Candidate {
            name: "loop",
            measure: Box::new(move || {
                Ok(measure_reference_loop(filters, UNCOPIED_BLOCK_COUNT, first_byte_is_two))
            }),
        },
        Candidate {
            name: "fast",
            measure: Box::new(move || measure_rate(&fast, UNCOPIED_BLOCK_COUNT)),
        },
        Candidate {
            name: "ring",
            measure: Box::new(move || measure_rate(&ring, RING_MEASUREMENT_BLOCKS)),
        },
    ];
    if let Some(pipes) = pipes {
        let measure = Box::new(move || {
            pipes.measure(filters, FilterExtent::First, PIPED_BLOCKS).map(|rate| rate / 1e6)
        });
        candidates.push(Candidate { name: "pipes", measure });
    }
    let goal = |candidate, reference, target| Goal { candidate, reference, goal: "G11", target };
    let goals = match filters {
        8 => vec![
            goal("fast", "loop", 0.8),
            goal("fast", "pipes", 400.0),
            goal("ring", "pipes", 180.0),
        ],
        0 => vec![goal("ring", "pipes", 25.0)],
        _ => Vec::new(),
    };
    let row = format!("{filters} filters");
    measure_interleaved_rows(
        ("chain", &row, filters as f64),
        "Mblocks/s",
        rounds,
        candidates,
        &goals,
    )
}

fn measure_every_byte_filters(
    filters: usize,
    rounds: usize,
    pipes: Option<&PipedMatcher>,
) -> Result<Vec<Row>, String> {
    let matches = "match hex=ff |all ".repeat(filters);
    let fast = format!("generate count={FULLY_READ_BLOCKS} size=1024 | {matches} discard");
    let ring = format!("bench_write@thread0 {FULLY_READ_BLOCKS} | {matches} bench_read@thread1");
    let mut candidates = vec![
        Candidate {
            name: "loop",
            measure: Box::new(move || {
                Ok(measure_reference_loop(filters, FULLY_READ_BLOCKS, no_byte_is_ff))
            }),
        },
        Candidate {
            name: "whole",
            measure: Box::new(move || measure_rate(&fast, FULLY_READ_BLOCKS)),
        },
        Candidate {
            name: "whole ring",
            measure: Box::new(move || measure_rate(&ring, FULLY_READ_BLOCKS)),
        },
    ];
    let mut goals = Vec::new();
    if let Some(pipes) = pipes {
        let measure = move || {
            pipes.measure(filters, FilterExtent::Whole, PIPED_BLOCKS).map(|rate| rate / 1e6)
        };
        candidates.push(Candidate { name: "pipes", measure: Box::new(measure) });
        goals = ["whole", "whole ring"]
            .map(|candidate| Goal { candidate, reference: "pipes", goal: "G11", target: 70.0 })
            .into();
    }
    let row = format!("{filters} filters, every byte");
    // Without an x value the row is not in the chart, because it measures a different job.
    measure_interleaved_rows(("chain", &row, f64::NAN), "Mblocks/s", rounds, candidates, &goals)
}

/// Measures a request over `blocks` blocks. Returns the rate in millions of blocks per second.
fn measure_rate(text: &str, blocks: u64) -> Result<f64, String> {
    let outcome = run_request(text)?;
    let sunk = outcome.ledger.filters.iter().map(|node| node.passed.blocks).min().unwrap_or(0);
    if sunk != blocks {
        return Err(format!("{blocks} blocks went in, {sunk} came out of `{text}`"));
    }
    Ok(blocks as f64 * 1e3 / outcome.elapsed_ns as f64)
}

fn measure_reference_loop(filters: usize, blocks: u64, matcher: Matcher) -> f64 {
    let memory = vec![2u8; REFERENCE_RING_BLOCKS * 1024];
    let slots: Vec<&[u8]> = memory.chunks_exact(1024).collect();
    let filters = std::hint::black_box(vec![matcher; filters]);
    let begin = sys::clock::monotonic_ns();
    let passed = count_by_indirect_calls(&slots, &filters, blocks / REFERENCE_RING_BLOCKS as u64);
    let elapsed = sys::clock::monotonic_ns() - begin;
    passed as f64 * 1e3 / elapsed as f64
}
