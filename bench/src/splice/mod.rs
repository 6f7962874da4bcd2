//! `bench splice`: blocks of a dbuf written to an ibuf as pointers, with and without a reader of
//! their bytes. [SL fig. 4], goals G6, G7; FEATURES E1, E2
//!
//! A file in memory (frozen, 256 KB to 64 MB) is read block by block and written to an indirect
//! stream, in one thread, as in a file server. The stream is drained between measured sections. The
//! references are the Linux pipe, and splice(2) from file to pipe to /dev/null. The bench also
//! measures rich pointers from one process to another, in batches of 32, with each index and
//! pointer checked.
//!
//! "From C" is the same transfer of the smallest file by a program in C: `streamline_splice` from
//! `streamline_open_file` to a pipe of pointers, with one call for each block, or for 64 blocks. It
//! must reach 0.8 of the mechanism at 4 KB, and the goals of the mechanism compared with reading
//! and writing.

mod pointers;
mod setup;

pub(crate) use pointers::serve;

use crate::harness::{Candidate, Goal, measure_interleaved_rows};
use crate::options::Options;
use crate::peers::CompiledPeer;
use crate::pipe::RunningRing;
use crate::row::Row;
use setup::{KernelPipe, SpliceMethod, SpliceSetup};
use std::cell::RefCell;
use std::path::Path;

/// Sizes in bytes of the blocks in which the file is read and written.
const BLOCK_SIZES: [usize; 6] = [64, 512, 2048, 4096, 16_384, 65_536];
/// Sizes in bytes of the file in memory, and thus of its dbuf.
const DBUF_SIZES: [usize; 3] = [256 << 10, 16 << 20, 64 << 20];

/// Goal: minimum rate in millions of blocks per second. It corresponds to 4 ns per block.
const SPLICE_RATE_MIN: f64 = 250.0;

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let processors = sys::machine::Machine::detect().processor_count;
    sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    if processors < 2 {
        eprintln!("left out: pointers between processes, this machine has one processor");
    } else {
        rows.extend(pointers::run_bench(options)?);
    }
    let from_c = CompiledPeer::compile_with_library("splice", include_str!("../../peers/splice.c"));
    if let Err(why) = &from_c {
        eprintln!("left out: splices from C: {why}");
    }
    for dbuf in DBUF_SIZES {
        let program = from_c.as_ref().map(CompiledPeer::program).ok();
        let setup = RefCell::new(SpliceSetup::new(dbuf)?);
        for block in BLOCK_SIZES {
            rows.extend(measure_block_size(&setup, dbuf, block, (program, options.rounds))?);
        }
    }
    Ok(rows)
}

/// Measures all candidates with blocks of one size.
fn measure_block_size(
    setup: &RefCell<SpliceSetup>,
    dbuf: usize,
    block: usize,
    (from_c, rounds): (Option<&Path>, usize),
) -> Result<Vec<Row>, String> {
    let kernel = RefCell::new(KernelPipe::new(block)?);
    let ours = |name: &'static str, way: SpliceMethod, block: usize| Candidate {
        name,
        measure: Box::new(move || setup.borrow_mut().measure(way, block)),
    };
    let mut candidates = vec![
        ours("read + write", SpliceMethod::ReadWrite, block),
        ours("peek + write, copied", SpliceMethod::PeekCopy, block),
        ours("read + write, spliced", SpliceMethod::ReadSpliced, block),
        ours("read only", SpliceMethod::Read, block),
        ours("peek + write, spliced", SpliceMethod::PeekSpliced, block),
        ours("splice", SpliceMethod::Splice, block),
        ours(MANY_BLOCKS_NAME, SpliceMethod::SpliceMany, block),
        ours("peek only", SpliceMethod::Peek, block),
        ours("spliced, 64 B", SpliceMethod::PeekSpliced, 64),
        Candidate { name: "4 ns a block", measure: Box::new(|| Ok(SPLICE_RATE_MIN)) },
        Candidate { name: "Linux pipe", measure: Box::new(|| kernel.borrow_mut().measure_pipe()) },
        Candidate {
            name: "Linux splice",
            measure: Box::new(|| kernel.borrow_mut().measure_splice()),
        },
    ];
    let compared = dbuf == DBUF_SIZES[0];
    for (name, word) in C_CANDIDATES.into_iter().filter(|_| compared) {
        let Some(program) = from_c else { continue };
        let mut ring = RunningRing::start(program, word, 1, block)?;
        // The program moves blocks; converted from GB/s.
        let measure = move || Ok(ring.measure()? * 1e3 / block as f64);
        candidates.push(Candidate { name, measure: Box::new(measure) });
    }
    let name = format!("{} KB dbuf, {block} B", dbuf >> 10);
    #[expect(clippy::cast_precision_loss, reason = "a size of a block")]
    let x = if dbuf == DBUF_SIZES[0] { block as f64 } else { f64::NAN };
    measure_interleaved_rows(("splice", &name, x), "M/s", rounds, candidates, &goals(dbuf, block))
}

/// Name of the candidate that splices 64 blocks in one call.
const MANY_BLOCKS_NAME: &str = "splice, 64 blocks";
/// The candidates that a C program measures: the name of each candidate, and the argument of the
/// program.
const C_CANDIDATES: [(&str, &str); 3] = [
    ("from C: read + write", "copy"),
    ("from C: splice", "splice"),
    ("from C: splice, 64 blocks", "splice-64"),
];
/// Block size in bytes at which the C program is compared with the same transfer in Rust.
const COMPARED_BLOCK_SIZE: usize = 4096;

fn goals(dbuf: usize, block: usize) -> Vec<Goal> {
    let candidate = "peek + write, spliced";
    let goal = |reference, target| Goal { candidate, reference, goal: "G6", target };
    let mut goals = vec![goal("4 ns a block", 1.0), goal("spliced, 64 B", 0.9)];
    let over_copies = match block {
        2048 => Some(9.0),
        4096 => Some(20.0),
        65_536 => Some(250.0),
        _ => None,
    };
    if let (Some(target), true) = (over_copies, dbuf == DBUF_SIZES[0]) {
        goals.push(goal("read + write", target));
        let [copies, one, many] = C_CANDIDATES.map(|(name, _)| name);
        let in_c =
            |candidate, reference, target| Goal { candidate, reference, goal: "G6 from C", target };
        goals.push(in_c(many, copies, target));
        if block == COMPARED_BLOCK_SIZE {
            goals.extend([in_c(one, "splice", 0.8), in_c(many, MANY_BLOCKS_NAME, 0.8)]);
        }
    }
    goals
}
