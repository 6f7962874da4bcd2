//! A chain of filters over blocks of 1 KB: the request text through parser, planner and catalogue,
//! the ledger on, against an indirect-call loop and against Unix processes and pipes. [Th §5.2.1,
//! fig. 5.1]
//!
//! - `fast`: the blocks lie in the dbuf and are not copied; `loop` does the same by hand.
//! - `ring`: every block is copied into the dbuf, crosses a ring and is copied out: what the pipes
//!   do.
//! - `whole`: as `fast`, every byte looked at; `whole ring`: as `ring`, every byte looked at.

use crate::harness::{Candidate, Goal, interleave};
use crate::line::outcome;
use crate::pipes::{Look, Pipes};
use crate::row::Row;
use streamline_bench_loops::{Matcher, first_byte_is_two, indirect_calls, no_byte_is_ff};

const FAST: u64 = 4_000_000;
const RING: u64 = 8_000_000;
const WHOLE: u64 = 2_000_000;
const PIPED: u64 = 100_000;
/// Blocks in the reference loop's ring: 1 MB.
const SLOTS: usize = 1024;

/// The rows of all chain lengths.
pub(crate) fn run(rounds: usize) -> Result<Vec<Row>, String> {
    // Everything on one processor, as in the paper.
    sys::process::pin_to(0).map_err(|why| why.to_string())?;
    let pipes = Pipes::compile();
    if let Err(why) = &pipes {
        eprintln!("left out: pipes: {why}");
    }
    let mut rows = Vec::new();
    for filters in [0, 1, 2, 4, 8] {
        rows.extend(first_byte(filters, rounds, pipes.as_ref().ok())?);
    }
    rows.extend(whole_block(8, rounds, pipes.as_ref().ok())?);
    Ok(rows)
}

fn first_byte(filters: usize, rounds: usize, pipes: Option<&Pipes>) -> Result<Vec<Row>, String> {
    let matches = "| match hex=02 at=0 ".repeat(filters);
    let fast = format!("generate count={FAST} size=1024 {matches}| discard");
    let ring = format!("bench_write@thread0 {RING} {matches}| bench_read@thread1");
    let mut candidates = vec![
        Candidate {
            name: "loop",
            measure: Box::new(move || Ok(by_hand(filters, FAST, first_byte_is_two))),
        },
        Candidate { name: "fast", measure: Box::new(move || rate(&fast, FAST)) },
        Candidate { name: "ring", measure: Box::new(move || rate(&ring, RING)) },
    ];
    if let Some(pipes) = pipes {
        let measure =
            Box::new(move || pipes.measure(filters, Look::First, PIPED).map(|rate| rate / 1e6));
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
    interleave(("chain", &row, filters as f64), "Mblocks/s", rounds, candidates, &goals)
}

fn whole_block(filters: usize, rounds: usize, pipes: Option<&Pipes>) -> Result<Vec<Row>, String> {
    let matches = "match hex=ff |all ".repeat(filters);
    let fast = format!("generate count={WHOLE} size=1024 | {matches} discard");
    let ring = format!("bench_write@thread0 {WHOLE} | {matches} bench_read@thread1");
    let mut candidates = vec![
        Candidate {
            name: "loop",
            measure: Box::new(move || Ok(by_hand(filters, WHOLE, no_byte_is_ff))),
        },
        Candidate { name: "whole", measure: Box::new(move || rate(&fast, WHOLE)) },
        Candidate { name: "whole ring", measure: Box::new(move || rate(&ring, WHOLE)) },
    ];
    let mut goals = Vec::new();
    if let Some(pipes) = pipes {
        let measure = move || pipes.measure(filters, Look::Whole, PIPED).map(|rate| rate / 1e6);
        candidates.push(Candidate { name: "pipes", measure: Box::new(measure) });
        goals = ["whole", "whole ring"]
            .map(|candidate| Goal { candidate, reference: "pipes", goal: "G11", target: 70.0 })
            .into();
    }
    let row = format!("{filters} filters, every byte");
    // Another job than the rows above: not a point of their picture.
    interleave(("chain", &row, f64::NAN), "Mblocks/s", rounds, candidates, &goals)
}

/// Millions of blocks per second of a line that takes `blocks`.
fn rate(text: &str, blocks: u64) -> Result<f64, String> {
    let outcome = outcome(text)?;
    let sunk = outcome.ledger.filters.iter().map(|node| node.passed.blocks).min().unwrap_or(0);
    if sunk != blocks {
        return Err(format!("{blocks} blocks went in, {sunk} came out of `{text}`"));
    }
    Ok(blocks as f64 * 1e3 / outcome.elapsed_ns as f64)
}

fn by_hand(filters: usize, blocks: u64, matcher: Matcher) -> f64 {
    let memory = vec![2u8; SLOTS * 1024];
    let slots: Vec<&[u8]> = memory.chunks_exact(1024).collect();
    let filters = std::hint::black_box(vec![matcher; filters]);
    let begin = sys::clock::monotonic();
    let passed = indirect_calls(&slots, &filters, blocks / SLOTS as u64);
    let elapsed = sys::clock::monotonic() - begin;
    passed as f64 * 1e3 / elapsed as f64
}
