//! `bench splice`: from a dbuf into an ibuf, the bytes touched and not. [SL fig. 4], goals G6, G7;
//! FEATURES E1, E2
//!
//! A file in memory (frozen, 256 KB to 64 MB) is read block by block and written to an indirect
//! stream, in one thread, as a file server does; the stream is drained between two measured pieces,
//! not in them. Beside it the pipe of Linux and its splice(2), file to pipe to /dev/null. Then rich
//! pointers from one process to another, in batches of 32, every index and pointer checked.

mod pointers;
mod setup;

pub(crate) use pointers::serve;

use crate::harness::{Candidate, Goal, interleave};
use crate::options::Options;
use crate::row::Row;
use setup::{Kernel, Setup, Way};
use std::cell::RefCell;

/// Bytes of a block.
const BLOCKS: [usize; 6] = [64, 512, 2048, 4096, 16_384, 65_536];
/// Bytes of the dbuf that is read.
const DBUFS: [usize; 3] = [256 << 10, 16 << 20, 64 << 20];

/// Blocks per second that a spliced block of 4 ns makes, in millions: "at most 4 ns" is "at least
/// as many".
const BUDGET: f64 = 250.0;

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    let processors = sys::machine::Machine::detect().processors;
    sys::process::pin_to(0).map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    if processors < 2 {
        eprintln!("left out: pointers between processes, this machine has one processor");
    } else {
        rows.extend(pointers::run(options)?);
    }
    for dbuf in DBUFS {
        let setup = RefCell::new(Setup::new(dbuf)?);
        for block in BLOCKS {
            rows.extend(sized(&setup, dbuf, block, options.rounds)?);
        }
    }
    Ok(rows)
}

/// All rows of one size.
fn sized(
    setup: &RefCell<Setup>,
    dbuf: usize,
    block: usize,
    rounds: usize,
) -> Result<Vec<Row>, String> {
    let kernel = RefCell::new(Kernel::new(block)?);
    let ours = |name: &'static str, way: Way, block: usize| Candidate {
        name,
        measure: Box::new(move || setup.borrow_mut().measure(way, block)),
    };
    let candidates = vec![
        ours("read + write", Way::ReadWrite, block),
        ours("peek + write, copied", Way::PeekCopy, block),
        ours("read + write, spliced", Way::ReadSpliced, block),
        ours("read only", Way::Read, block),
        ours("peek + write, spliced", Way::PeekSpliced, block),
        ours("splice", Way::Splice, block),
        ours("peek only", Way::Peek, block),
        ours("spliced, 64 B", Way::PeekSpliced, 64),
        Candidate { name: "4 ns a block", measure: Box::new(|| Ok(BUDGET)) },
        Candidate { name: "Linux pipe", measure: Box::new(|| kernel.borrow_mut().pipe()) },
        Candidate { name: "Linux splice", measure: Box::new(|| kernel.borrow_mut().splice()) },
    ];
    let name = format!("{} KB dbuf, {block} B", dbuf >> 10);
    #[expect(clippy::cast_precision_loss, reason = "a size of a block")]
    let x = if dbuf == DBUFS[0] { block as f64 } else { f64::NAN };
    interleave(("splice", &name, x), "M/s", rounds, candidates, &goals(dbuf, block))
}

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
    if let (Some(target), true) = (over_copies, dbuf == DBUFS[0]) {
        goals.push(goal("read + write", target));
    }
    goals
}
