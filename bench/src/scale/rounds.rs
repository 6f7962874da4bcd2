//! `bench rounds`: the behavior of a ring that starts too large. [SL fig. 7]
//!
//! One thread writes and reads each block. A round ends when the writer wraps around. One ring has
//! a fixed size. Two rings halve their size while they are nearly empty, one by reallocation, the
//! other in place. Rows are the rate in each round; the ring sizes are printed on standard error.

use crate::harness::{Candidate, measure_interleaved_rows};
use crate::options::Options;
use crate::row::Row;
use buffer::scale::ScalingParameters;
use buffer::stream::{Config, stream};
use std::cell::RefCell;

/// Initial size of every ring in bytes.
const INITIAL_SIZE: usize = 16 << 20;
/// Number of passes round the ring that are measured.
const ROUND_COUNT: usize = 14;
/// Size in bytes of the blocks that are written.
const BLOCK_SIZE: usize = 1024;

#[derive(Clone, Copy)]
enum RingKind {
    Fixed,
    Reallocated,
    Cut,
}

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let caches = sys::machine::Machine::detect().cache_sizes;
    sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    for round in 0..ROUND_COUNT {
        // Each sample runs a new ring up to this round.
        let sizes = RefCell::new([0; 3]);
        let candidate = |name, kind: RingKind| {
            let (caches, sizes) = (&caches, &sizes);
            Candidate {
                name,
                measure: Box::new(move || {
                    let (rate, size) = measure_round(kind, caches, round)?;
                    sizes.borrow_mut()[kind as usize] = size;
                    Ok(rate)
                }),
            }
        };
        let candidates = vec![
            candidate("fixed 16 MB", RingKind::Fixed),
            candidate("reallocation", RingKind::Reallocated),
            candidate("deck-cut", RingKind::Cut),
        ];
        let name = format!("round {round}");
        #[expect(clippy::cast_precision_loss, reason = "a few rounds")]
        let x = round as f64;
        rows.extend(measure_interleaved_rows(
            ("rounds", &name, x),
            "GB/s",
            options.rounds,
            candidates,
            &[],
        )?);
        let [_, moved, cut] = *sizes.borrow();
        eprintln!("round {round}: reallocation {} KB, deck-cut {} KB", moved >> 10, cut >> 10);
    }
    Ok(rows)
}

/// Returns the throughput of a ring in one round in GB/s, and the size of the ring in that round in
/// bytes.
fn measure_round(kind: RingKind, caches: &[usize], round: usize) -> Result<(f64, usize), String> {
    let id = abi::DbufId::new(1).ok_or("no id")?;
    let config = Config::new(id).capacity(INITIAL_SIZE);
    let config = match kind {
        RingKind::Fixed => {
            let stays = ScalingParameters {
                same_processor: (INITIAL_SIZE, INITIAL_SIZE),
                ..ScalingParameters::for_reallocation(caches)
            };
            config.scaling(stays)
        }
        RingKind::Reallocated => {
            config.scaling(shrinking_bounds(ScalingParameters::for_reallocation(caches)))
        }
        RingKind::Cut => config
            .in_place_capacity_max(INITIAL_SIZE)
            .scaling(shrinking_bounds(ScalingParameters::for_in_place_resizing(caches))),
    };
    let (mut output, mut offers) = stream(&config).map_err(|why| why.to_string())?;
    let offer = offers.pop().ok_or("no reader")?;
    let opened = offer.open_trusting();
    let mut input = opened.map_err(|why| why.to_string())?;
    output.set_spin_limit(0);
    let (block, mut out) = (vec![7; BLOCK_SIZE], vec![0; BLOCK_SIZE]);
    let (mut begin, mut blocks) = (0, 0u64);
    loop {
        let ended = output.sizing_state().map_or(0, |scale| scale.rounds);
        // The first wrap ends round 0, in which memory is first touched.
        if ended > round as u64 + 1 {
            let ns = sys::clock::monotonic_ns() - begin;
            #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
            return Ok((blocks as f64 * BLOCK_SIZE as f64 / ns as f64, output.capacity()));
        }
        if ended == round as u64 + 1 {
            if blocks == 0 {
                begin = sys::clock::monotonic_ns();
            }
            blocks += 1;
        }
        output.write(std::hint::black_box(&block)).map_err(|why| why.to_string())?;
        output.flush();
        input.read(std::hint::black_box(&mut out)).map_err(|why| why.to_string())?;
    }
}

/// Returns the scaling parameters with the size limits of the paper, where rings shrink to as
/// little as 16 KB.
fn shrinking_bounds(scaling: ScalingParameters) -> ScalingParameters {
    ScalingParameters { same_processor: (16 << 10, INITIAL_SIZE), ..scaling }
}
