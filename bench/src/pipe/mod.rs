//! `bench pipe`: bytes from one process to another, copied in and out. Our stream is compared with
//! the Linux pipe, third-party rings and the machine's memory copy. [SL fig. 11], goals G1 to G4
//!
//! The reader is a process that shares only the descriptors that were sent to it, and checks each
//! index in the ring. On one core, both run on processor 0, as in the paper. On two cores, the
//! writer runs on processor 0 and the reader on processor 1.

mod pipe_reader;
mod rings;

pub(crate) use pipe_reader::serve;
pub(crate) use rings::{RunningRing, compile_plain_ring};

use crate::child::BenchChild;
use crate::harness::{Candidate, Goal, is_row_selected, measure_interleaved_rows};
use crate::options::Options;
use crate::peers::CompiledPeer;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use buffer::dbuf::fixed_size;
use buffer::stream::{Config, stream};
use pipe_reader::InputKind;
use rings::{Endpoints, PeerRing, available_rings};
use std::io::{PipeWriter, Write};
use std::os::fd::AsFd;
use std::path::Path;

/// Sizes in bytes of the blocks that are transferred.
const BLOCK_SIZES: [usize; 6] = [64, 256, 1024, 4096, 16_384, 65_536];
/// Ring size in bytes. On one processor, a self-scaling stream reaches this size (`bench scale`).
/// On two processors, this size is the best (BASELINES, working set).
const RING_SIZE: usize = 4 << 20;
/// Size in bytes of a second ring, which exceeds the caches. A term buffer of Aeron has the same
/// size. This ring is measured because, between processors without a shared cache, a cache line
/// arrives sooner from memory than from the other processor's cache.
const LARGE_RING_SIZE: usize = 64 << 20;
/// Round-trip time of a cache line in ns below which two processors count as sharing a cache
/// (BASELINES).
const SAME_CACHE_ROUND_TRIP_NS_MAX: f64 = 250.0;
/// Maximum total size in bytes of the slots that are published together. As in a stream, at most 32
/// blocks are published together.
const PUBLISHED_BYTES_MAX: usize = 64 << 10;
/// Name of our stream of fixed-size slots ([`StreamTransport::start_slot_stream`]) in the result
/// rows.
const SLOTS_NAME: &str = "slots";
/// Minimum duration of a measurement in ns.
const MEASUREMENT_NS_MIN: u64 = 60_000_000;

/// The processors on which the writer and the reader run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndpointCores {
    One,
    Two,
}

impl EndpointCores {
    const fn name(self) -> &'static str {
        match self {
            Self::One => "one core",
            Self::Two => "two cores",
        }
    }

    const fn count(self) -> usize {
        self.reader_processor() + 1
    }

    const fn reader_processor(self) -> usize {
        match self {
            Self::One => 0,
            Self::Two => 1,
        }
    }
}

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let processors = sys::machine::Machine::detect().processor_count;
    sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
    let plain = compile_plain_ring();
    if let Err(why) = &plain {
        eprintln!("left out: the plain ring in C: {why}");
    }
    let others = (plain.as_ref().map(CompiledPeer::program).ok(), available_rings());
    let mut rows = Vec::new();
    for cores in [EndpointCores::One, EndpointCores::Two] {
        if cores == EndpointCores::Two && processors < 2 {
            eprintln!("left out: two cores, this machine has one");
            continue;
        }
        for block in BLOCK_SIZES {
            rows.extend(measure_block_size(cores, block, options.rounds, &others)?);
        }
    }
    Ok(rows)
}

/// Measures all candidates with blocks of one size.
fn measure_block_size(
    cores: EndpointCores,
    block: usize,
    rounds: usize,
    (plain, peers): &(Option<&Path>, Vec<PeerRing>),
) -> Result<Vec<Row>, String> {
    let name = format!("{} B, {}", block, cores.name());
    if !is_row_selected(&name) {
        return Ok(Vec::new());
    }
    let mut pipe = PipeTransport::new(cores, block)?;
    let mut ours = StreamTransport::start_stream(cores, block, RING_SIZE)?;
    let mut long = StreamTransport::start_stream(cores, block, LARGE_RING_SIZE)?;
    let mut slots = StreamTransport::start_slot_stream(cores, block)?;
    let mut copy = MemoryCopy::new(block);
    let mut candidates = vec![
        Candidate { name: "Linux pipe", measure: Box::new(move || measure_throughput(&mut pipe)) },
        Candidate { name: "stream", measure: Box::new(move || measure_throughput(&mut ours)) },
        Candidate {
            name: "stream, 64 MB",
            measure: Box::new(move || measure_throughput(&mut long)),
        },
        Candidate { name: SLOTS_NAME, measure: Box::new(move || measure_throughput(&mut slots)) },
        Candidate { name: "memcpy", measure: Box::new(move || measure_throughput(&mut copy)) },
    ];
    if let Some(program) = plain {
        let mut ring = RunningRing::start(program, "copy", cores.count(), block)?;
        candidates.push(Candidate { name: "C ring", measure: Box::new(move || ring.measure()) });
    }
    for peer in peers {
        let mut ring = peer.start(cores.count(), block)?;
        candidates.push(Candidate { name: peer.name, measure: Box::new(move || ring.measure()) });
    }
    #[expect(clippy::cast_precision_loss, reason = "a size of a block")]
    let x = block as f64;
    measure_interleaved_rows(
        ("pipe", &name, x),
        "GB/s",
        rounds,
        candidates,
        &goals(cores, block, peers),
    )
}

fn goals(cores: EndpointCores, block: usize, peers: &[PeerRing]) -> Vec<Goal> {
    let at = BLOCK_SIZES.iter().position(|known| *known == block).unwrap_or(0);
    let over_pipe = match cores {
        EndpointCores::One => ("G4", [70.0, 50.0, 20.0, 10.0, 8.0, 6.0]),
        EndpointCores::Two if CacheRoundTrip::measure() < SAME_CACHE_ROUND_TRIP_NS_MAX => {
            ("G2", [55.0, 15.0, 4.5, 4.5, 8.5, 30.0])
        }
        EndpointCores::Two => ("G2", [33.0, 7.0, 4.0, 5.0, 6.0, 20.0]),
    };
    let (candidate, goal) = ("stream", over_pipe.0);
    let mut goals =
        vec![Goal { candidate, reference: "Linux pipe", goal, target: over_pipe.1[at] }];
    let near =
        cores == EndpointCores::Two && CacheRoundTrip::measure() < SAME_CACHE_ROUND_TRIP_NS_MAX;
    if near {
        let threads = [1.3, 1.2, 1.2, 1.2, 0.95, 0.95][at];
        for candidate in [candidate, SLOTS_NAME] {
            goals.extend(peers.iter().map(|peer| {
                let target = if peer.endpoints == Endpoints::Threads { threads } else { 1.4 };
                Goal { candidate, reference: peer.name, goal: "G3", target }
            }));
        }
    }
    let of_copy = [(4096, 0.35), (16_384, 0.40)].into_iter().find(|(size, _)| *size == block);
    if let (EndpointCores::Two, Some((_, target))) = (cores, of_copy) {
        goals.push(Goal { candidate, reference: "memcpy", goal: "G1", target });
    }
    goals
}

/// A transport of bytes between two processes.
trait Transport {
    fn block_size(&self) -> usize;
    /// Sends `blocks` blocks, and returns when all of them have arrived.
    fn transfer(&mut self, blocks: u64) -> Result<(), String>;
    /// Returns a reference to the number of blocks that one measurement transfers. The number is 0
    /// before the first measurement.
    fn blocks_per_measurement(&mut self) -> &mut u64;
}

/// Returns the throughput in GB/s, measured over at least [`MEASUREMENT_NS_MIN`].
fn measure_throughput(transport: &mut dyn Transport) -> Result<f64, String> {
    loop {
        let blocks = (*transport.blocks_per_measurement()).max(1024);
        let begin = sys::clock::monotonic_ns();
        transport.transfer(blocks)?;
        let ns = sys::clock::monotonic_ns() - begin;
        if ns >= MEASUREMENT_NS_MIN {
            *transport.blocks_per_measurement() = blocks;
            #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
            return Ok(blocks as f64 * transport.block_size() as f64 / ns as f64);
        }
        *transport.blocks_per_measurement() = next_block_count(blocks, ns);
    }
}

/// Returns the number of blocks for the next attempt at a measurement. The previous attempt
/// transferred `blocks` blocks in `ns`, which was less than the minimum duration.
fn next_block_count(blocks: u64, ns: u64) -> u64 {
    blocks * (MEASUREMENT_NS_MIN * 5 / 4).div_ceil(ns.max(1)).clamp(2, 64)
}

/// A function that writes a block the given number of times, and publishes all copies.
type WriteBlocks = Box<dyn FnMut(&[u8], u64) -> Result<(), buffer::Fault>>;

/// Our stream, and the process that reads it.
struct StreamTransport {
    write: WriteBlocks,
    other: BenchChild,
    block: Vec<u8>,
    blocks: u64,
}

impl StreamTransport {
    fn start_stream(cores: EndpointCores, block: usize, ring: usize) -> Result<Self, String> {
        let id = abi::DbufId::new(1).ok_or("no id")?;
        let made = stream(&Config::new(id).capacity(ring));
        let (mut output, offers) = made.map_err(|why| why.to_string())?;
        let offer = offers.first().ok_or("no reader")?;
        let other = pipe_reader::start(
            InputKind::Stream,
            cores.reader_processor(),
            block,
            &offer.descriptors(),
        )?;
        if cores == EndpointCores::One {
            output.set_spin_limit(0);
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

    /// Creates a stream of slots: blocks of one size without headers, each at a multiple of that
    /// size, as in third-party rings of fixed-size elements.
    fn start_slot_stream(cores: EndpointCores, block: usize) -> Result<Self, String> {
        let id = abi::DbufId::new(1).ok_or("no id")?;
        let config = fixed_size::SlotConfig {
            slot: block,
            slots: RING_SIZE / block,
            ..fixed_size::SlotConfig::new(id)
        };
        let made = fixed_size::stream::stream(&config, (PUBLISHED_BYTES_MAX / block).clamp(1, 32));
        let (mut output, offers) = made.map_err(|why| why.to_string())?;
        let offer = offers.first().ok_or("no reader")?;
        let other = pipe_reader::start(
            InputKind::Slots,
            cores.reader_processor(),
            block,
            &offer.descriptors(),
        )?;
        if cores == EndpointCores::One {
            output.set_spin_limit(0);
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

impl Transport for StreamTransport {
    fn block_size(&self) -> usize {
        self.block.len()
    }

    fn transfer(&mut self, blocks: u64) -> Result<(), String> {
        self.other.announce_bytes(blocks * self.block.len() as u64)?;
        (self.write)(&self.block, blocks).map_err(|why| why.to_string())?;
        self.other.wait_until_received()
    }

    fn blocks_per_measurement(&mut self) -> &mut u64 {
        &mut self.blocks
    }
}

/// A transport over the Linux pipe, with its default size of 64 KB.
struct PipeTransport {
    pipe: PipeWriter,
    other: BenchChild,
    block: Vec<u8>,
    blocks: u64,
}

impl PipeTransport {
    fn new(cores: EndpointCores, block: usize) -> Result<Self, String> {
        let (reading, pipe) = std::io::pipe().map_err(|why| why.to_string())?;
        let other = pipe_reader::start(
            InputKind::Pipe,
            cores.reader_processor(),
            block,
            &[reading.as_fd()],
        )?;
        Ok(Self { pipe, other, block: vec![7; block], blocks: 0 })
    }
}

impl Transport for PipeTransport {
    fn block_size(&self) -> usize {
        self.block.len()
    }

    fn transfer(&mut self, blocks: u64) -> Result<(), String> {
        self.other.announce_bytes(blocks * self.block.len() as u64)?;
        for _ in 0..blocks {
            self.pipe
                .write_all(std::hint::black_box(&self.block))
                .map_err(|why| why.to_string())?;
        }
        self.other.wait_until_received()
    }

    fn blocks_per_measurement(&mut self) -> &mut u64 {
        &mut self.blocks
    }
}

/// A memory copy within the second-level cache, as a reference for the transports.
struct MemoryCopy {
    from: Vec<u8>,
    to: Vec<u8>,
    block: usize,
    blocks: u64,
}

impl MemoryCopy {
    fn new(block: usize) -> Self {
        // Both together take half of a second-level cache of 1 MB.
        const BUFFER_SIZE: usize = 256 << 10;
        Self { from: vec![1; BUFFER_SIZE], to: vec![2; BUFFER_SIZE], block, blocks: 0 }
    }
}

impl Transport for MemoryCopy {
    fn block_size(&self) -> usize {
        self.block
    }

    fn transfer(&mut self, blocks: u64) -> Result<(), String> {
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

    fn blocks_per_measurement(&mut self) -> &mut u64 {
        &mut self.blocks
    }
}
