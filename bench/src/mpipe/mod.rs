//! `bench mpipe`: one producer and several consumers, each of which receives all blocks. Our
//! multiway pipe is compared with one Linux pipe per consumer, written n times or filled by tee(2).
//! [SL §5.1], FEATURES D9
//!
//! Consumers are processes that share only the descriptor that was sent to them. The producer runs
//! on processor 0, the consumers on processor 1. Rows are the throughput of each consumer (all
//! together receive n times as much), and blocks per second of the producer's processor time,
//! including system calls. In another row, one consumer does not read; with an overwriting ring,
//! this does not affect the others.

mod pipes;
mod reader;

pub(crate) use reader::serve;

use crate::harness::{Candidate, measure_interleaved_rows};
use crate::options::Options;
use crate::row::Row;
use buffer::OverflowPolicy;
use buffer::stream::{Config, Output};
use iolite::mpipe;
use pipes::{SeparatePipes, TeePipes};
use reader::{ConsumerProcess, PipeKind, transfer_to_readers};
use std::cell::RefCell;

/// Sizes in bytes of the blocks that the producer sends.
const BLOCK_SIZES: [usize; 3] = [64, 4096, 65_536];
const CONSUMER_COUNTS: [usize; 3] = [1, 2, 4];
/// Size of the multiway pipe's ring in bytes.
const RING_SIZE: usize = 1 << 20;
/// Minimum duration of a measurement in ns.
const MEASUREMENT_NS_MIN: u64 = 60_000_000;

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let processor = usize::from(sys::machine::Machine::detect().processor_count > 1);
    sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
    if processor == 0 {
        eprintln!("all on one processor: this machine has no other one");
    }
    let mut rows = Vec::new();
    for block in BLOCK_SIZES {
        for consumers in CONSUMER_COUNTS {
            rows.extend(measure_block_size(block, consumers, processor, options.rounds)?);
        }
        rows.extend(measure_stalled_consumer(block, processor, options.rounds)?);
    }
    Ok(rows)
}

/// Measures all candidates for one block size and one number of consumers.
fn measure_block_size(
    block: usize,
    consumers: usize,
    processor: usize,
    rounds: usize,
) -> Result<Vec<Row>, String> {
    let plain = Config::new(abi::DbufId::new(1).ok_or("no id")?).capacity(RING_SIZE);
    let written = FanOutMeasurement::new(SeparatePipes::new(block, consumers, processor)?);
    let teed = FanOutMeasurement::new(TeePipes::new(block, consumers, processor)?);
    let ours =
        FanOutMeasurement::new(MpipeFanOut::new(&plain, block, &vec![true; consumers], processor)?);
    let per_second = vec![
        Candidate { name: "n pipes", measure: Box::new(|| written.throughput()) },
        Candidate { name: "tee(2)", measure: Box::new(|| teed.throughput()) },
        Candidate { name: "mpipe", measure: Box::new(|| ours.throughput()) },
    ];
    let name = format!("{block} B, {consumers} consumers, each");
    let x = to_f64(block as u64);
    let mut rows = measure_interleaved_rows(("mpipe", &name, x), "GB/s", rounds, per_second, &[])?;
    // Blocks per second of processor time, so that a larger value is better, as in all rows.
    let cost = vec![
        Candidate { name: "n pipes", measure: Box::new(|| written.blocks_per_cpu_second()) },
        Candidate { name: "tee(2)", measure: Box::new(|| teed.blocks_per_cpu_second()) },
        Candidate { name: "mpipe", measure: Box::new(|| ours.blocks_per_cpu_second()) },
    ];
    let name = format!("{block} B, {consumers} consumers, producer");
    rows.extend(measure_interleaved_rows(("mpipe", &name, x), "Mblock/cpu-s", rounds, cost, &[])?);
    Ok(rows)
}

/// Measures an overwriting ring with two consumers, one of which never reads.
fn measure_stalled_consumer(
    block: usize,
    processor: usize,
    rounds: usize,
) -> Result<Vec<Row>, String> {
    let plain = Config::new(abi::DbufId::new(1).ok_or("no id")?).capacity(RING_SIZE);
    let lossy = plain.policy(OverflowPolicy::Overwrite);
    let both = FanOutMeasurement::new(MpipeFanOut::new(&lossy, block, &[true, true], processor)?);
    let one = FanOutMeasurement::new(MpipeFanOut::new(&lossy, block, &[true, false], processor)?);
    let candidates = vec![
        Candidate { name: "both read", measure: Box::new(|| both.blocks_per_cpu_second()) },
        Candidate { name: "one is stopped", measure: Box::new(|| one.blocks_per_cpu_second()) },
    ];
    let name = format!("{block} B, overwriting, producer");
    measure_interleaved_rows(
        ("mpipe", &name, to_f64(block as u64)),
        "Mblock/cpu-s",
        rounds,
        candidates,
        &[],
    )
}

/// A transport of the same blocks to several consumers.
trait FanOut {
    fn block_size(&self) -> usize;
    /// Moves `blocks` blocks to each consumer, and returns when all consumers have received them.
    /// Returns the producer's processor time in ns.
    fn transfer(&mut self, blocks: u64) -> Result<u64, String>;
}

/// A transport that a bench measures, with the number of blocks that it moves in one measurement.
struct FanOutMeasurement<M>(RefCell<(M, u64)>);

impl<M: FanOut> FanOutMeasurement<M> {
    fn new(transport: M) -> Self {
        Self(RefCell::new((transport, 256)))
    }

    /// Returns the throughput of each consumer in GB/s.
    fn throughput(&self) -> Result<f64, String> {
        let (blocks, ns, _) = self.measure_once()?;
        Ok(to_f64(blocks * self.0.borrow().0.block_size() as u64) / to_f64(ns))
    }

    /// Returns the rate in millions of blocks per second of the producer's processor time.
    fn blocks_per_cpu_second(&self) -> Result<f64, String> {
        let (blocks, _, own) = self.measure_once()?;
        Ok(to_f64(blocks) * 1e3 / to_f64(own.max(1)))
    }

    fn measure_once(&self) -> Result<(u64, u64, u64), String> {
        let (transport, blocks) = &mut *self.0.borrow_mut();
        loop {
            let begin = sys::clock::monotonic_ns();
            let own = transport.transfer(*blocks)?;
            let ns = sys::clock::monotonic_ns() - begin;
            if ns >= MEASUREMENT_NS_MIN {
                return Ok((*blocks, ns, own));
            }
            *blocks *= (MEASUREMENT_NS_MIN * 5 / 4).div_ceil(ns.max(1)).clamp(2, 64);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure has few digits")]
const fn to_f64(number: u64) -> f64 {
    number as f64
}

/// The candidate that uses our multiway pipe, with its consumer processes.
struct MpipeFanOut {
    output: Output,
    readers: Vec<ConsumerProcess>,
    block: Vec<u8>,
    lossy: bool,
}

impl MpipeFanOut {
    /// Creates the pipe and starts its consumers. `reads` has an element for each consumer, which
    /// is true if the consumer reads.
    fn new(
        config: &Config,
        block: usize,
        reads: &[bool],
        processor: usize,
    ) -> Result<Self, String> {
        let ends = mpipe::mpipe(reads.len() + 1, config).map_err(|why| why.to_string())?;
        let mut ends = ends.into_iter();
        let writing = ends.next().ok_or("no end")?;
        let lossy = config.ring.policy == OverflowPolicy::Overwrite;
        let kind = if lossy { PipeKind::LossyMpipeEnd } else { PipeKind::MpipeEnd };
        let readers: Result<Vec<_>, String> = ends
            .zip(reads)
            .map(|(end, reads)| ConsumerProcess::start(kind, processor, block, &end, *reads))
            .collect();
        let (mut output, _) = mpipe::open_write_end(writing).map_err(|why| why.to_string())?;
        if processor == 0 {
            output.set_spin_limit(0);
        }
        Ok(Self { output, readers: readers?, block: vec![7; block], lossy })
    }
}

impl FanOut for MpipeFanOut {
    fn block_size(&self) -> usize {
        self.block.len()
    }

    fn transfer(&mut self, blocks: u64) -> Result<u64, String> {
        let Self { output, readers, block, lossy } = self;
        transfer_to_readers(readers, blocks * block.len() as u64, || {
            for number in 0..blocks {
                // With an overwriting ring, bytes cannot be counted, so the last block is marked.
                if let (true, Some(first)) = (*lossy, block.first_mut()) {
                    *first = u8::from(number + 1 == blocks);
                }
                output.write(std::hint::black_box(block)).map_err(|why| why.to_string())?;
            }
            output.flush();
            Ok(())
        })
    }
}
