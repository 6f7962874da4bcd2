//! `bench mpipe`: one producer and several consumers, each of which gets everything: our multiway
//! pipe against one pipe of Linux for each consumer, written n times, or filled by tee(2).
//! [SL §5.1], FEATURES D9
//!
//! Consumers are processes of their own, which know nothing but the descriptor they were sent. The
//! producer is on processor 0, the consumers on 1. Two figures for each: what every consumer gets
//! (all of them together get n times that), and what a block costs the producer in processor time,
//! system calls included. And one row about a consumer that does not read: in a ring that
//! overwrites it costs the others nothing.

mod pipes;
mod reader;

pub(crate) use reader::serve;

use crate::harness::{Candidate, interleave};
use crate::options::Options;
use crate::row::Row;
use buffer::Policy;
use buffer::stream::{Config, Output};
use iolite::mpipe;
use pipes::{Teed, Written};
use reader::{Kind, Reader, move_to};
use std::cell::RefCell;

/// Bytes of a block.
const BLOCKS: [usize; 3] = [64, 4096, 65_536];
const CONSUMERS: [usize; 3] = [1, 2, 4];
/// Bytes of the ring.
const RING: usize = 1 << 20;
/// The shortest measurement, in ns.
const LEAST_NS: u64 = 60_000_000;

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    let processor = usize::from(sys::machine::Machine::detect().processors > 1);
    sys::process::pin_to(0).map_err(|why| why.to_string())?;
    if processor == 0 {
        eprintln!("all on one processor: this machine has no other one");
    }
    let mut rows = Vec::new();
    for block in BLOCKS {
        for consumers in CONSUMERS {
            rows.extend(sized(block, consumers, processor, options.rounds)?);
        }
        rows.extend(stalled(block, processor, options.rounds)?);
    }
    Ok(rows)
}

/// All rows of one size and so many consumers.
fn sized(
    block: usize,
    consumers: usize,
    processor: usize,
    rounds: usize,
) -> Result<Vec<Row>, String> {
    let plain = Config::new(abi::DbufId::new(1).ok_or("no id")?).capacity(RING);
    let written = Runs::new(Written::new(block, consumers, processor)?);
    let teed = Runs::new(Teed::new(block, consumers, processor)?);
    let ours = Runs::new(Ours::new(&plain, block, &vec![true; consumers], processor)?);
    let per_second = vec![
        Candidate { name: "n pipes", measure: Box::new(|| written.speed()) },
        Candidate { name: "tee(2)", measure: Box::new(|| teed.speed()) },
        Candidate { name: "mpipe", measure: Box::new(|| ours.speed()) },
    ];
    let name = format!("{block} B, {consumers} consumers, each");
    let x = figure(block as u64);
    let mut rows = interleave(("mpipe", &name, x), "GB/s", rounds, per_second, &[])?;
    // More is better, as everywhere: blocks for which one second of its processor is enough.
    let cost = vec![
        Candidate { name: "n pipes", measure: Box::new(|| written.economy()) },
        Candidate { name: "tee(2)", measure: Box::new(|| teed.economy()) },
        Candidate { name: "mpipe", measure: Box::new(|| ours.economy()) },
    ];
    let name = format!("{block} B, {consumers} consumers, producer");
    rows.extend(interleave(("mpipe", &name, x), "Mblock/cpu-s", rounds, cost, &[])?);
    Ok(rows)
}

/// Two consumers, of which one never reads: the ring overwrites.
fn stalled(block: usize, processor: usize, rounds: usize) -> Result<Vec<Row>, String> {
    let plain = Config::new(abi::DbufId::new(1).ok_or("no id")?).capacity(RING);
    let lossy = plain.policy(Policy::Overwrite);
    let both = Runs::new(Ours::new(&lossy, block, &[true, true], processor)?);
    let one = Runs::new(Ours::new(&lossy, block, &[true, false], processor)?);
    let candidates = vec![
        Candidate { name: "both read", measure: Box::new(|| both.economy()) },
        Candidate { name: "one is stopped", measure: Box::new(|| one.economy()) },
    ];
    let name = format!("{block} B, overwriting, producer");
    interleave(("mpipe", &name, figure(block as u64)), "Mblock/cpu-s", rounds, candidates, &[])
}

/// Something that gives the same blocks to several consumers.
trait Mover {
    fn block(&self) -> usize;
    /// Moves so many blocks to every consumer, and comes back when all have them. Answers the
    /// processor time of the producer, in ns.
    fn go(&mut self, blocks: u64) -> Result<u64, String>;
}

/// A mover, and how many blocks take long enough.
struct Runs<M>(RefCell<(M, u64)>);

impl<M: Mover> Runs<M> {
    fn new(mover: M) -> Self {
        Self(RefCell::new((mover, 256)))
    }

    /// GB/s for each consumer.
    fn speed(&self) -> Result<f64, String> {
        let (blocks, ns, _) = self.once()?;
        Ok(figure(blocks * self.0.borrow().0.block() as u64) / figure(ns))
    }

    /// Million blocks for each second of the producer's processor.
    fn economy(&self) -> Result<f64, String> {
        let (blocks, _, own) = self.once()?;
        Ok(figure(blocks) * 1e3 / figure(own.max(1)))
    }

    fn once(&self) -> Result<(u64, u64, u64), String> {
        let (mover, blocks) = &mut *self.0.borrow_mut();
        loop {
            let begin = sys::clock::monotonic();
            let own = mover.go(*blocks)?;
            let ns = sys::clock::monotonic() - begin;
            if ns >= LEAST_NS {
                return Ok((*blocks, ns, own));
            }
            *blocks *= (LEAST_NS * 5 / 4).div_ceil(ns.max(1)).clamp(2, 64);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure has few digits")]
const fn figure(number: u64) -> f64 {
    number as f64
}

/// Our multiway pipe.
struct Ours {
    output: Output,
    readers: Vec<Reader>,
    block: Vec<u8>,
    lossy: bool,
}

impl Ours {
    /// `reads`: for each consumer, whether it does.
    fn new(
        config: &Config,
        block: usize,
        reads: &[bool],
        processor: usize,
    ) -> Result<Self, String> {
        let ends = mpipe::mpipe(reads.len() + 1, config).map_err(|why| why.to_string())?;
        let mut ends = ends.into_iter();
        let writing = ends.next().ok_or("no end")?;
        let lossy = config.ring.policy == Policy::Overwrite;
        let kind = if lossy { Kind::LossyEnd } else { Kind::End };
        let readers: Result<Vec<_>, String> = ends
            .zip(reads)
            .map(|(end, reads)| Reader::start(kind, processor, block, &end, *reads))
            .collect();
        let (mut output, _) = mpipe::open_write(writing).map_err(|why| why.to_string())?;
        if processor == 0 {
            output.spin(0);
        }
        Ok(Self { output, readers: readers?, block: vec![7; block], lossy })
    }
}

impl Mover for Ours {
    fn block(&self) -> usize {
        self.block.len()
    }

    fn go(&mut self, blocks: u64) -> Result<u64, String> {
        let Self { output, readers, block, lossy } = self;
        move_to(readers, blocks * block.len() as u64, || {
            for number in 0..blocks {
                // Bytes of a ring that overwrites are not counted: its last block is marked.
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
