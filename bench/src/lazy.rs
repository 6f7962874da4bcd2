//! `bench lazy`: the cost of a read that copies only on first access. [SL §5.3.3], FEATURES E3, E4
//!
//! The experiment behind a decision in docs/book/decisions. Instead of copying, `read` revokes
//! access to the pages of the caller's buffer, and remembers the last eight buffers with their
//! sources; `write` of an untouched buffer passes a pointer. The reference is a read and a write
//! that copy.

use crate::harness::{Candidate, measure_interleaved_rows};
use crate::options::Options;
use crate::row::Row;
use std::hint::black_box;
use sys::lazy_copy::{LazyBuffer, LazyCopy};

/// Sizes in bytes of the blocks that are read and written.
const BLOCK_SIZES: [usize; 6] = [4096, 16_384, 65_536, 262_144, 1 << 20, 4 << 20];
/// Minimum duration of a measurement in ns.
const MEASUREMENT_NS_MIN: u64 = 15_000_000;

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    for block in BLOCK_SIZES {
        rows.extend(measure_block_size(block, options.rounds)?);
    }
    Ok(rows)
}

fn measure_block_size(block: usize, rounds: usize) -> Result<Vec<Row>, String> {
    let source = vec![3; block];
    let (mut buffer, mut to) = (vec![0; block], vec![0; block]);
    let copies = || {
        measure_call_rate(|| {
            buffer.copy_from_slice(black_box(&source));
            to.copy_from_slice(black_box(&buffer));
            black_box(&mut to);
            Ok(())
        })
    };
    let lazily = |look: bool| {
        let mut pages = LazyBuffer::new(block).map_err(|why| why.to_string())?;
        let mut last = RecentReads::default();
        let mut to = vec![0; block];
        let source = &source;
        measure_call_rate(move || {
            let lazy = pages.copy_lazily(black_box(source)).map_err(|why| why.to_string())?;
            last.remember(lazy.address(), source);
            if look {
                black_box(lazy.first().copied());
            }
            write_lazily(&lazy, &last, &mut to);
            Ok(())
        })
    };
    let candidates = vec![
        Candidate { name: "two copies", measure: Box::new(copies) },
        Candidate { name: "lazy, passed on", measure: Box::new(move || lazily(false)) },
        Candidate { name: "lazy, looked at", measure: Box::new(move || lazily(true)) },
    ];
    #[expect(clippy::cast_precision_loss, reason = "a size of a block")]
    let x = block as f64;
    measure_interleaved_rows(("lazy", &format!("{block} B"), x), "K/s", rounds, candidates, &[])
}

/// The buffers of the last eight reads, each with the source of its bytes.
#[derive(Default)]
struct RecentReads<'a> {
    line: [(usize, &'a [u8]); 8],
    next: usize,
}

impl<'a> RecentReads<'a> {
    fn remember(&mut self, address: usize, source: &'a [u8]) {
        let known = self.line.iter().position(|(other, _)| *other == address);
        self.line[known.unwrap_or(self.next)] = (address, source);
        if known.is_none() {
            self.next = (self.next + 1) % self.line.len();
        }
    }

    fn source_at(&self, address: usize) -> Option<&'a [u8]> {
        self.line.iter().find(|(other, _)| *other == address).map(|(_, source)| *source)
    }
}

/// Writes the contents of a buffer that was read lazily. Writes a pointer to the source of the
/// bytes if the buffer has not been accessed since the read, and otherwise a copy.
fn write_lazily(lazy: &LazyCopy<'_>, last: &RecentReads<'_>, to: &mut [u8]) {
    match last.source_at(lazy.address()).filter(|_| lazy.is_untouched()) {
        Some(source) => {
            black_box((source.as_ptr(), source.len()));
        }
        None => {
            to.copy_from_slice(lazy);
            black_box(to);
        }
    }
}

/// Calls `one` repeatedly. Returns the rate in thousands of calls per second.
fn measure_call_rate(mut one: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let (mut blocks, begin) = (0_u64, sys::clock::monotonic_ns());
    loop {
        one()?;
        blocks += 1;
        let ns = sys::clock::monotonic_ns() - begin;
        if ns >= MEASUREMENT_NS_MIN {
            #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
            return Ok(blocks as f64 * 1e6 / ns as f64);
        }
    }
}
