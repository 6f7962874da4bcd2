//! `bench pipe`: bytes from one process to another, copied in and copied out: our stream against
//! the pipe of Linux, the rings of others and the memory copy of the machine. [SL fig. 11], goals
//! G1 to G4
//!
//! The reader is a process of its own that knows nothing but the descriptors it was sent; it checks
//! every index that it finds in the ring. On one core both are kept on processor 0, where the
//! source measured; on two cores the writer is on processor 0 and the reader on 1.

mod other;
mod rings;

pub(crate) use other::serve;
pub(crate) use rings::{Ring, plain};

use crate::child::BenchChild;
use crate::harness::{Candidate, Goal, interleave, is_wanted};
use crate::options::Options;
use crate::peers::Compiled;
use crate::row::Row;
use crate::sentinel::Sentinel;
use buffer::dbuf::fixed;
use buffer::stream::{Config, stream};
use other::Kind;
use rings::{Joins, Peer, peers};
use std::io::{PipeWriter, Write};
use std::os::fd::AsFd;
use std::path::Path;

/// Bytes of a block.
const BLOCKS: [usize; 6] = [64, 256, 1024, 4096, 16_384, 65_536];
/// Bytes of the ring: what a stream that finds its size by itself comes to on one processor
/// (`bench scale`), and what is best on two (BASELINES, working set).
const RING: usize = 4 << 20;
/// Bytes of the ring beside it: where the processors are far from each other a line comes sooner
/// from memory than out of the other's cache, and a term of Aeron's is as long.
const LONG: usize = 64 << 20;
/// A round trip of a cache line below this is the near state of the machine (BASELINES).
const NEAR_NS: f64 = 250.0;
/// So many bytes of slots are shown at once, if they are no more than 32 blocks: as a stream does.
const SHOWN: usize = 64 << 10;
/// The name of our stream of slots.
const SLOTS: &str = "slots";
/// The shortest measurement, in ns.
const LEAST_NS: u64 = 60_000_000;

/// The processors of writer and reader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cores {
    One,
    Two,
}

impl Cores {
    const fn name(self) -> &'static str {
        match self {
            Self::One => "one core",
            Self::Two => "two cores",
        }
    }

    const fn count(self) -> usize {
        self.reader() + 1
    }

    const fn reader(self) -> usize {
        match self {
            Self::One => 0,
            Self::Two => 1,
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    let processors = sys::machine::Machine::detect().processors;
    sys::process::pin_to(0).map_err(|why| why.to_string())?;
    let plain = plain();
    if let Err(why) = &plain {
        eprintln!("left out: the plain ring in C: {why}");
    }
    let others = (plain.as_ref().map(Compiled::program).ok(), peers());
    let mut rows = Vec::new();
    for cores in [Cores::One, Cores::Two] {
        if cores == Cores::Two && processors < 2 {
            eprintln!("left out: two cores, this machine has one");
            continue;
        }
        for block in BLOCKS {
            rows.extend(sized(cores, block, options.rounds, &others)?);
        }
    }
    Ok(rows)
}

/// All rows of one size.
fn sized(
    cores: Cores,
    block: usize,
    rounds: usize,
    (plain, peers): &(Option<&Path>, Vec<Peer>),
) -> Result<Vec<Row>, String> {
    let name = format!("{} B, {}", block, cores.name());
    if !is_wanted(&name) {
        return Ok(Vec::new());
    }
    let mut pipe = Pipe::new(cores, block)?;
    let mut ours = Ours::stream(cores, block, RING)?;
    let mut long = Ours::stream(cores, block, LONG)?;
    let mut slots = Ours::slots(cores, block)?;
    let mut copy = Copy::new(block);
    let mut candidates = vec![
        Candidate { name: "Linux pipe", measure: Box::new(move || measure(&mut pipe)) },
        Candidate { name: "stream", measure: Box::new(move || measure(&mut ours)) },
        Candidate { name: "stream, 64 MB", measure: Box::new(move || measure(&mut long)) },
        Candidate { name: SLOTS, measure: Box::new(move || measure(&mut slots)) },
        Candidate { name: "memcpy", measure: Box::new(move || measure(&mut copy)) },
    ];
    if let Some(program) = plain {
        let mut ring = Ring::start(program, "copy", cores.count(), block)?;
        candidates.push(Candidate { name: "C ring", measure: Box::new(move || ring.measure()) });
    }
    for peer in peers {
        let mut ring = peer.start(cores.count(), block)?;
        candidates.push(Candidate { name: peer.name, measure: Box::new(move || ring.measure()) });
    }
    #[expect(clippy::cast_precision_loss, reason = "a size of a block")]
    let x = block as f64;
    interleave(("pipe", &name, x), "GB/s", rounds, candidates, &goals(cores, block, peers))
}

fn goals(cores: Cores, block: usize, peers: &[Peer]) -> Vec<Goal> {
    let at = BLOCKS.iter().position(|known| *known == block).unwrap_or(0);
    let over_pipe = match cores {
        Cores::One => ("G4", [70.0, 50.0, 20.0, 10.0, 8.0, 6.0]),
        Cores::Two if Sentinel::take() < NEAR_NS => ("G2", [55.0, 15.0, 4.5, 4.5, 8.5, 30.0]),
        Cores::Two => ("G2", [33.0, 7.0, 4.0, 5.0, 6.0, 20.0]),
    };
    let (candidate, goal) = ("stream", over_pipe.0);
    let mut goals =
        vec![Goal { candidate, reference: "Linux pipe", goal, target: over_pipe.1[at] }];
    let near = cores == Cores::Two && Sentinel::take() < NEAR_NS;
    if near {
        let threads = [1.3, 1.2, 1.2, 1.2, 0.95, 0.95][at];
        for candidate in [candidate, SLOTS] {
            goals.extend(peers.iter().map(|peer| {
                let target = if peer.joins == Joins::Threads { threads } else { 1.4 };
                Goal { candidate, reference: peer.name, goal: "G3", target }
            }));
        }
    }
    let of_copy = [(4096, 0.35), (16_384, 0.40)].into_iter().find(|(size, _)| *size == block);
    if let (Cores::Two, Some((_, target))) = (cores, of_copy) {
        goals.push(Goal { candidate, reference: "memcpy", goal: "G1", target });
    }
    goals
}

/// Something that moves bytes.
trait Mover {
    fn block(&self) -> usize;
    /// Moves so many blocks, and comes back when they have arrived.
    fn go(&mut self, blocks: u64) -> Result<(), String>;
    /// The number of blocks of one measurement; 0 until it is known.
    fn blocks(&mut self) -> &mut u64;
}

/// GB/s, over as many blocks as take long enough.
fn measure(mover: &mut dyn Mover) -> Result<f64, String> {
    loop {
        let blocks = (*mover.blocks()).max(1024);
        let begin = sys::clock::monotonic();
        mover.go(blocks)?;
        let ns = sys::clock::monotonic() - begin;
        if ns >= LEAST_NS {
            *mover.blocks() = blocks;
            #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
            return Ok(blocks as f64 * mover.block() as f64 / ns as f64);
        }
        *mover.blocks() = more(blocks, ns);
    }
}

/// Returns the number of blocks to try next after `blocks` took `ns`, which was too short.
fn more(blocks: u64, ns: u64) -> u64 {
    blocks * (LEAST_NS * 5 / 4).div_ceil(ns.max(1)).clamp(2, 64)
}

/// Writes a block so many times, and shows it.
type Writes = Box<dyn FnMut(&[u8], u64) -> Result<(), buffer::Fault>>;

/// A stream of ours, and the process that reads it.
struct Ours {
    write: Writes,
    other: BenchChild,
    block: Vec<u8>,
    blocks: u64,
}

impl Ours {
    fn stream(cores: Cores, block: usize, ring: usize) -> Result<Self, String> {
        let id = abi::DbufId::new(1).ok_or("no id")?;
        let made = stream(&Config::new(id).capacity(ring));
        let (mut output, offers) = made.map_err(|why| why.to_string())?;
        let offer = offers.first().ok_or("no reader")?;
        let other = other::start(Kind::Stream, cores.reader(), block, &offer.descriptors())?;
        if cores == Cores::One {
            output.spin(0);
        }
        let write = move |block: &[u8], blocks| {
            for _ in 0..blocks {
                output.write(std::hint::black_box(block))?;
            }
            output.flush();
            Ok(())
        };
        Ok(Self { write: Box::new(write), other, block: vec![7; block], blocks: 0 })
    }

    /// One of slots: one size, no headers, each block at a multiple of it. That is what the rings
    /// of others are whose elements have one size.
    fn slots(cores: Cores, block: usize) -> Result<Self, String> {
        let id = abi::DbufId::new(1).ok_or("no id")?;
        let config = fixed::Config { slot: block, slots: RING / block, ..fixed::Config::new(id) };
        let made = fixed::stream::stream(&config, (SHOWN / block).clamp(1, 32));
        let (mut output, offers) = made.map_err(|why| why.to_string())?;
        let offer = offers.first().ok_or("no reader")?;
        let other = other::start(Kind::Slots, cores.reader(), block, &offer.descriptors())?;
        if cores == Cores::One {
            output.spin(0);
        }
        let write = move |block: &[u8], blocks| {
            for _ in 0..blocks {
                output.write(std::hint::black_box(block))?;
            }
            output.flush();
            Ok(())
        };
        Ok(Self { write: Box::new(write), other, block: vec![7; block], blocks: 0 })
    }
}

impl Mover for Ours {
    fn block(&self) -> usize {
        self.block.len()
    }

    fn go(&mut self, blocks: u64) -> Result<(), String> {
        self.other.expect(blocks * self.block.len() as u64)?;
        (self.write)(&self.block, blocks).map_err(|why| why.to_string())?;
        self.other.done()
    }

    fn blocks(&mut self) -> &mut u64 {
        &mut self.blocks
    }
}

/// The pipe of Linux, with the 64 KB that it has by default.
struct Pipe {
    pipe: PipeWriter,
    other: BenchChild,
    block: Vec<u8>,
    blocks: u64,
}

impl Pipe {
    fn new(cores: Cores, block: usize) -> Result<Self, String> {
        let (reading, pipe) = std::io::pipe().map_err(|why| why.to_string())?;
        let other = other::start(Kind::Pipe, cores.reader(), block, &[reading.as_fd()])?;
        Ok(Self { pipe, other, block: vec![7; block], blocks: 0 })
    }
}

impl Mover for Pipe {
    fn block(&self) -> usize {
        self.block.len()
    }

    fn go(&mut self, blocks: u64) -> Result<(), String> {
        self.other.expect(blocks * self.block.len() as u64)?;
        for _ in 0..blocks {
            self.pipe
                .write_all(std::hint::black_box(&self.block))
                .map_err(|why| why.to_string())?;
        }
        self.other.done()
    }

    fn blocks(&mut self) -> &mut u64 {
        &mut self.blocks
    }
}

/// The memory copy, within the second-level cache.
struct Copy {
    from: Vec<u8>,
    to: Vec<u8>,
    block: usize,
    blocks: u64,
}

impl Copy {
    fn new(block: usize) -> Self {
        // Both together take half of a second-level cache of 1 MB.
        const HALF: usize = 256 << 10;
        Self { from: vec![1; HALF], to: vec![2; HALF], block, blocks: 0 }
    }
}

impl Mover for Copy {
    fn block(&self) -> usize {
        self.block
    }

    fn go(&mut self, blocks: u64) -> Result<(), String> {
        let mut left = blocks;
        while left > 0 {
            let pieces = self.to.chunks_exact_mut(self.block);
            for (to, from) in pieces.zip(self.from.chunks_exact(self.block)) {
                to.copy_from_slice(from);
                left = left.saturating_sub(1);
            }
            std::hint::black_box(&mut self.to);
        }
        Ok(())
    }

    fn blocks(&mut self) -> &mut u64 {
        &mut self.blocks
    }
}
