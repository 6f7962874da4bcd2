//! Rich pointers from one process to another, in batches of 32: goal G7.
//!
//! The reader is a process to which descriptors and a socket to the owner of the dbuf were sent. It
//! does not trust the writer: it copies each pointer out of the ring once, and checks that the
//! pointer is within mapped memory. For each pointer, the writer ensures that the segment with the
//! bytes is not reused while the pointer is in flight. The reference is a ring in C that works like
//! DPDK's, compared by the number of bytes transferred.

use super::setup::{dbuf_id, error_text};
use crate::harness::{Candidate, Goal, measure_interleaved_rows};
use crate::options::Options;
use crate::peers::CompiledPeer;
use crate::pipe::RunningRing;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use abi::access::{AccessList, Credentials};
use abi::{Class, RichPointer};
use buffer::pool;
use iolite::aggregate::AllocationPool;
use iolite::aggregate::owner::PoolOwner;
use iolite::aggregate::server::GrantServer;
use iolite::indirect::{Backing, Config, Input, Offer, Output, indirect_stream};
use iolite::interface::{StreamReader as _, StreamWriter as _};
use iolite::view::Space;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use sys::process::effective_ids;

/// Number of pointers that are written and read at once.
const POINTERS_PER_BATCH: usize = 32;
/// Ring sizes in bytes. The first size fits into the second-level cache of each processor. A
/// self-scaling stream reaches the second size on two processors: an eighth of a third-level cache
/// of 32 MB.
const RING_SIZES: [usize; 2] = [256 << 10, 4 << 20];
/// Number of pointers in one measurement.
const POINTER_COUNT: usize = 20_000_000;
/// Round-trip time of a cache line in ns below which two processors count as sharing a cache
/// (BASELINES).
const SAME_CACHE_ROUND_TRIP_NS_MAX: f64 = 250.0;

/// Source of a ring in C without checks and wakeups, whose pointers have half the size of ours. Its
/// rate is an upper bound for the other candidates.
const COPY_LOOP_SOURCE: &str = include_str!("../../peers/burst.c");

pub(super) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let copy_loop = CompiledPeer::new("burst", COPY_LOOP_SOURCE);
    if let Err(why) = &copy_loop {
        eprintln!("left out: the ring of bursts in C: {why}");
    }
    let mut rows = Vec::new();
    for ring in RING_SIZES {
        rows.extend(measure_ring_size(ring, copy_loop.as_ref().ok(), options.rounds)?);
    }
    Ok(rows)
}

/// Measures all candidates with a ring of `ring` bytes.
fn measure_ring_size(
    ring: usize,
    copy_loop: Option<&CompiledPeer>,
    rounds: usize,
) -> Result<Vec<Row>, String> {
    let mut sender = PointerSender::new(ring / size_of::<RichPointer>())?;
    let target =
        if CacheRoundTrip::measure() < SAME_CACHE_ROUND_TRIP_NS_MAX { 400.0 } else { 80.0 };
    let mut candidates = vec![
        Candidate { name: "goal", measure: Box::new(move || Ok(target)) },
        Candidate { name: "pointers", measure: Box::new(move || sender.measure()) },
    ];
    if let Some(copy_loop) = copy_loop {
        let entries = ring / size_of::<u64>();
        let mut ring = RunningRing::start(copy_loop.program(), &entries.to_string(), 2, 8)?;
        // The rate in GB/s is converted to millions of 16-byte pointers per second.
        let measure = move || Ok(ring.measure()? * 1e3 / 16.0);
        candidates.push(Candidate { name: "burst of 32 in C", measure: Box::new(measure) });
    }
    let goal = |reference, target| Goal { candidate: "pointers", reference, goal: "G7", target };
    let goals = [goal("goal", 1.0), goal("burst of 32 in C", 0.8)];
    let name = format!("16 B between processes, batches of 32, ring of {} KB", ring >> 10);
    measure_interleaved_rows(("splice", &name, f64::NAN), "M/s", rounds, candidates, &goals)
}

struct PointerSender {
    output: Output,
    blocks: AllocationPool,
    batch: [RichPointer; POINTERS_PER_BATCH],
    socket: OwnedFd,
    process: Child,
    _grants: GrantServer,
}

impl PointerSender {
    /// Creates a ring of `entries` pointers, and starts its reader.
    fn new(entries: usize) -> Result<Self, String> {
        let grants = GrantServer::start(PoolOwner::new(8)).map_err(error_text)?;
        let shape = pool::PoolConfig { segment: 64 << 10, segments: 4 };
        let backing = AllocationPool::new(dbuf_id(1), shape, AccessList::private(effective_ids()))
            .map_err(error_text)?;
        grants.with_owner(|owner| owner.share(&backing)).map_err(error_text)?;
        // Pool of the blocks. The reader requests it at the first pointer.
        let blocks = AllocationPool::new(dbuf_id(3), shape, AccessList::private(effective_ids()))
            .map_err(error_text)?;
        grants.with_owner(|owner| owner.share(&blocks)).map_err(error_text)?;
        let place = blocks
            .pool()
            .draft(POINTERS_PER_BATCH * 64, POINTERS_PER_BATCH * 64)
            .map(|d| d.commit(POINTERS_PER_BATCH * 64));
        let place = place.ok_or("no room for the blocks")?;
        let block = |at: usize| {
            let at = u32::try_from(at * 64).unwrap_or(0);
            RichPointer::new(dbuf_id(3), place, Class::YES).subrange(at, 64)
        };
        let config = Config { entries, ..Config::new(dbuf_id(2)) };
        let (output, offers) =
            indirect_stream(&config, Backing::new(backing)).map_err(error_text)?;
        let offer = offers.first().ok_or("no reader")?;
        let (_, grants_socket) =
            grants.add_client(Credentials::from(effective_ids())).map_err(error_text)?;
        let (socket, theirs) = sys::descriptor::socket_pair().map_err(error_text)?;
        let itself = std::env::current_exe().map_err(error_text)?;
        let process = Command::new(itself)
            .args(["--reader", "pointers", "1", "64"])
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(error_text)?;
        let mut all = offer.descriptors().to_vec();
        all.push(grants_socket.as_fd());
        sys::descriptor::send(&socket, b"these", &all).map_err(error_text)?;
        let batch = std::array::from_fn(block);
        Ok(Self { output, blocks, batch, socket, process, _grants: grants })
    }

    /// Returns the rate in millions of pointers per second.
    fn measure(&mut self) -> Result<f64, String> {
        sys::descriptor::send(&self.socket, &POINTER_COUNT.to_le_bytes(), &[])
            .map_err(error_text)?;
        let begin = sys::clock::monotonic_ns();
        for _ in 0..POINTER_COUNT / POINTERS_PER_BATCH {
            let batch = std::hint::black_box(&self.batch);
            self.output.write_all_pointers(batch, self.blocks.pool()).map_err(error_text)?;
        }
        self.output.flush();
        let answer = sys::descriptor::receive(&self.socket, &mut [0; 8]).map_err(error_text)?;
        if answer.0 == 0 {
            return Err("the reading process has ended".to_owned());
        }
        let ns = sys::clock::monotonic_ns() - begin;
        #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
        Ok(POINTER_COUNT as f64 * 1e3 / ns as f64)
    }
}

impl Drop for PointerSender {
    fn drop(&mut self) {
        // The process may be waiting, so it is killed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the reading process on a processor. The bench starts it with the argument
/// `--reader pointers`.
pub(crate) fn serve(processor: usize) -> Result<(), String> {
    sys::process::pin_to_processor(processor).map_err(error_text)?;
    let socket = std::io::stdin();
    let (_, mut fds) = sys::descriptor::receive(&socket, &mut [0; 8]).map_err(error_text)?;
    let space = Space::new();
    space.add_owner(fds.pop().ok_or("no socket")?);
    let mut input =
        Offer::from_descriptors(fds).and_then(|o| Input::open(o, &space)).map_err(error_text)?;
    let mut request = [0; 8];
    let mut pointers = [RichPointer::default(); POINTERS_PER_BATCH];
    loop {
        if sys::descriptor::receive(&socket, &mut request).map_err(error_text)?.0 == 0 {
            return Ok(());
        }
        let mut left = usize::from_le_bytes(request);
        while left > 0 {
            match input.take_pointers(&mut pointers).map_err(error_text)? {
                0 => _ = input.wait(None).map_err(error_text)?,
                count => left = left.saturating_sub(count),
            }
            std::hint::black_box(&mut pointers);
        }
        input.release_consumed();
        sys::descriptor::send(&socket, b"done", &[]).map_err(error_text)?;
    }
}
