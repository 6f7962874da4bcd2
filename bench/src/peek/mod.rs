//! `bench peek`: reading a block in place instead of copying it. [SL fig. 3], goal G5; FEATURES D10
//!
//! The bench measures the cost of a call of `peek`, including checks; reading and peeking through a
//! full ring in one thread; and two processes that trust each other. Between the two processes,
//! blocks are copied in and out (a stream), or copied in and read in place (a trusting stream, and
//! an indirect stream). The reader reads the first word of each block, or every word. The
//! references are the plain ring in C, with a copy and in place, and with a reader that reads
//! nothing, which is an upper bound ("most"): if copying is nearly as fast as this bound, reading
//! in place cannot reach the gain that the goal requires.
//!
//! "From C" is the same transfer in a C program, by `streamline_write` and `streamline_read` or
//! `streamline_peek`. It must reach the goals of the mechanism, and 0.8 of the mechanism's rate at
//! 4 KB.

mod peek_process;

pub(crate) use peek_process::serve;

use crate::harness::{Candidate, Goal, measure_interleaved_rows};
use crate::options::Options;
use crate::peers::CompiledPeer;
use crate::pipe::{RunningRing, compile_plain_ring};
use crate::row::Row;
use abi::DbufId;
use abi::access::{AccessList, Credentials};
use buffer::dbuf;
use buffer::pool;
use iolite::aggregate::owner::PoolOwner;
use iolite::aggregate::server::GrantServer;
use iolite::aggregate::{AllocationPool, FrozenData};
use iolite::indirect::{Backing, Config, Input, indirect_stream};
use iolite::interface::AggregateBlockReader;
use iolite::interface::{StreamReader as _, StreamWriter as _};
use iolite::view::Space;
use peek_process::{PeekMethod, PeekTransport, ReadExtent};
use std::hint::black_box;
use std::path::Path;
use sys::process::effective_ids;

/// Sizes in bytes of the blocks that are read.
const BLOCK_SIZES: [usize; 6] = [64, 256, 1024, 4096, 16_384, 65_536];
/// Sizes in bytes of the rings that one thread empties.
const RING_SIZES: [usize; 3] = [256 << 10, 16 << 20, 64 << 20];
/// Rate with which calls of `peek` are compared, in millions of calls per second. It corresponds to
/// 1.5 ns per call.
const REFERENCE_RATE: f64 = 1e3 / 1.5;
/// Minimum duration of a measurement in ns.
const MEASUREMENT_NS_MIN: u64 = 12_000_000;
/// Name of the candidate that reads through the C library, as the program of a user does.
const C_READ_NAME: &str = "from C: read";
/// Name of the candidate that peeks through the C library, as the program of a user does.
const C_PEEK_NAME: &str = "from C: peek";

fn dbuf_id(number: u32) -> DbufId {
    DbufId::new(number).unwrap_or_default()
}

fn error_text(why: impl std::fmt::Display) -> String {
    why.to_string()
}

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let processors = sys::machine::Machine::detect().processor_count;
    sys::process::pin_to_processor(0).map_err(error_text)?;
    let mut rows = measure_peek_calls(options.rounds)?;
    for dbuf in RING_SIZES {
        for block in BLOCK_SIZES {
            rows.extend(measure_rings(dbuf, block, options.rounds)?);
        }
    }
    let plain = compile_plain_ring();
    if let Err(why) = &plain {
        eprintln!("left out: the plain ring in C: {why}");
    }
    let from_c = CompiledPeer::compile_with_library("streams", STREAMS_SOURCE);
    if let Err(why) = &from_c {
        eprintln!("left out: streams from C: {why}");
    }
    let programs = CPrograms {
        plain: plain.as_ref().map(CompiledPeer::program).ok(),
        streams: from_c.as_ref().map(CompiledPeer::program).ok(),
    };
    for (cores, reader) in [("one core", 0), ("two cores", 1)] {
        if reader >= processors {
            eprintln!("left out: two cores, this machine has one");
            continue;
        }
        for extent in [ReadExtent::First, ReadExtent::All] {
            for block in BLOCK_SIZES {
                rows.extend(measure_process_transfers(
                    (cores, reader, programs),
                    extent,
                    block,
                    options.rounds,
                )?);
            }
        }
    }
    Ok(rows)
}

/// Source of the C program that uses streams.
pub(crate) const STREAMS_SOURCE: &str = include_str!("../../peers/streams.c");
/// Block size in bytes at which the C program is compared with the same transfer in Rust.
const COMPARED_BLOCK_SIZE: usize = 4096;

/// The programs in C, each `None` if it could not be compiled.
#[derive(Clone, Copy)]
struct CPrograms<'p> {
    plain: Option<&'p Path>,
    streams: Option<&'p Path>,
}

/// Measures repeated calls of `peek` on the same block.
fn measure_peek_calls(rounds: usize) -> Result<Vec<Row>, String> {
    let (mut writer, mut readers) = dbuf::ring(&dbuf::BlockConfig::new(dbuf_id(1)));
    writer.write(&[1; 1024]).map_err(error_text)?;
    writer.publish();
    let mut reader = readers.pop().ok_or("no reader")?;
    let grants = GrantServer::start(PoolOwner::new(8)).map_err(error_text)?;
    let frozen = FrozenData::from_reader(dbuf_id(2), &[2; 4096][..], 4096).map_err(error_text)?;
    let share =
        |owner: &mut PoolOwner| owner.share_frozen(&frozen, AccessList::private(effective_ids()));
    grants.with_owner(share).map_err(error_text)?;
    let backing = share_dbuf(&grants, dbuf_id(3), 64 << 10, 4)?;
    let (mut output, mut offers) =
        indirect_stream(&Config::new(dbuf_id(4)), backing).map_err(error_text)?;
    let space = Space::trusting();
    space.add_owner(grants.add_client(Credentials::from(effective_ids())).map_err(error_text)?.1);
    let mut input = Input::open(offers.remove(0), &space).map_err(error_text)?;
    output.write(&[3; 1024]).map_err(error_text)?;
    output.flush();
    let file = frozen.aggregate().map_err(error_text)?;
    let mut held = AggregateBlockReader::new(&file, 1024);
    let candidates = vec![
        Candidate { name: "1.5 ns a call", measure: Box::new(|| Ok(REFERENCE_RATE)) },
        Candidate {
            name: "dbuf",
            measure: Box::new(|| {
                measure_call_rate(|| reader.peek().map(|b| b.map(<[u8]>::as_ptr)))
            }),
        },
        Candidate {
            name: "indirect",
            measure: Box::new(|| measure_call_rate(|| input.peek().map(|b| b.map(<[u8]>::as_ptr)))),
        },
        Candidate {
            name: "file",
            measure: Box::new(|| {
                measure_call_rate(|| {
                    Ok::<_, buffer::Fault>(black_box(&mut held).current_block().as_ptr())
                })
            }),
        },
    ];
    let goal = |candidate| Goal { candidate, reference: "1.5 ns a call", goal: "G5", target: 1.0 };
    let goals = ["dbuf", "indirect", "file"].map(goal);
    measure_interleaved_rows(("peek", "a call", f64::NAN), "M/s", rounds, candidates, &goals)
}

/// Calls `call` repeatedly. Returns the rate in millions of calls per second.
fn measure_call_rate<T, E: std::fmt::Display>(
    mut call: impl FnMut() -> Result<T, E>,
) -> Result<f64, String> {
    let (mut count, begin) = (0_u64, sys::clock::monotonic_ns());
    loop {
        for _ in 0..4096 {
            black_box(call().map_err(error_text)?);
        }
        count += 4096;
        let ns = sys::clock::monotonic_ns() - begin;
        if ns >= MEASUREMENT_NS_MIN {
            #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
            return Ok(count as f64 * 1e3 / ns as f64);
        }
    }
}

/// Measures the rates at which one thread empties a full ring of `dbuf` bytes, by reading and by
/// peeking. The time to fill the ring is not counted.
fn measure_rings(dbuf: usize, block: usize, rounds: usize) -> Result<Vec<Row>, String> {
    let config = dbuf::BlockConfig { capacity: dbuf, ..dbuf::BlockConfig::new(dbuf_id(1)) };
    let (writer, mut readers) = dbuf::ring(&config);
    let reader = readers.pop().ok_or("no reader")?;
    let ring = std::cell::RefCell::new((writer, reader, vec![5; block]));
    let through = |peek: bool| {
        let (writer, reader, out) = &mut *ring.borrow_mut();
        let (mut count, mut ns) = (0_u64, 0);
        while ns < MEASUREMENT_NS_MIN {
            while writer.write(out).map_err(error_text)? {}
            writer.publish();
            let begin = sys::clock::monotonic_ns();
            if peek {
                while let Some(block) = reader.next_block().map_err(error_text)? {
                    black_box(block.as_ptr());
                    count += 1;
                }
            } else {
                while reader.read(out).map_err(error_text)?.is_some() {
                    black_box(&mut *out);
                    count += 1;
                }
            }
            ns += sys::clock::monotonic_ns() - begin;
            reader.release();
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
        Ok(count as f64 * 1e3 / ns as f64)
    };
    let candidates = vec![
        Candidate { name: "read", measure: Box::new(|| through(false)) },
        Candidate { name: "peek", measure: Box::new(|| through(true)) },
    ];
    let name = format!("{} KB dbuf, {block} B", dbuf >> 10);
    #[expect(clippy::cast_precision_loss, reason = "a size of a block")]
    let x = if dbuf == RING_SIZES[0] { block as f64 } else { f64::NAN };
    measure_interleaved_rows(("peek", &name, x), "M/s", rounds, candidates, &[])
}

/// Measures transfers between two processes. The writer copies blocks in; the reader copies them
/// out, or reads them in place.
fn measure_process_transfers(
    (cores, reader, programs): (&'static str, usize, CPrograms<'_>),
    extent: ReadExtent,
    block: usize,
    rounds: usize,
) -> Result<Vec<Row>, String> {
    let mut copied = PeekTransport::start(PeekMethod::Stream, reader, extent, block)?;
    let mut peeked = PeekTransport::start(PeekMethod::InPlace, reader, extent, block)?;
    let mut indirect = PeekTransport::start(PeekMethod::Indirect, reader, extent, block)?;
    let mut candidates = vec![
        Candidate { name: "copy, copy", measure: Box::new(move || copied.measure()) },
        Candidate { name: "copy, peek", measure: Box::new(move || peeked.measure()) },
        Candidate { name: "indirect", measure: Box::new(move || indirect.measure()) },
    ];
    let [copied, looked] = extent.ring_arguments();
    let unread = (extent == ReadExtent::First).then_some(("C ring: unread", "none"));
    let plains = [("C ring: copy, copy", copied), ("C ring: copy, peek", looked)];
    for (name, word) in plains.into_iter().chain(unread) {
        let Some(program) = programs.plain else { continue };
        let mut ring = RunningRing::start(program, word, reader + 1, block)?;
        candidates.push(Candidate { name, measure: Box::new(move || ring.measure()) });
    }
    let [read, peek] = extent.stream_arguments();
    for (name, word) in [(C_READ_NAME, read), (C_PEEK_NAME, peek)] {
        let Some(program) = programs.streams else { continue };
        let mut streams = RunningRing::start(program, word, reader + 1, block)?;
        candidates.push(Candidate { name, measure: Box::new(move || streams.measure()) });
    }
    let target = match (reader, extent, block) {
        (0, ReadExtent::First, 1024..) => Some(1.5),
        (1, ReadExtent::All, 1024..) => Some(1.0),
        (1, ReadExtent::First, 1024..) => Some(1.4),
        _ => None,
    };
    let goal = |of: [&'static str; 2], goal| {
        target.map(|target| Goal { candidate: of[0], reference: of[1], goal, target })
    };
    let ours = goal(["copy, peek", "copy, copy"], "G5");
    let theirs = goal(["C ring: copy, peek", "C ring: copy, copy"], "G5 in C");
    let most = goal(["C ring: unread", "copy, copy"], "G5, most");
    let in_c = goal([C_PEEK_NAME, C_READ_NAME], "G5 from C");
    let as_fast =
        |candidate, reference| Goal { candidate, reference, goal: "G5 from C", target: 0.8 };
    let path = [as_fast(C_READ_NAME, "copy, copy"), as_fast(C_PEEK_NAME, "copy, peek")];
    let path = path.into_iter().filter(|_| block == COMPARED_BLOCK_SIZE);
    let all = ours.into_iter().chain(theirs).chain(most).chain(in_c).chain(path);
    let goals: Vec<Goal> = all.collect();
    let name = format!("{block} B, {cores}, {}", extent.name());
    measure_interleaved_rows(("peek", &name, f64::NAN), "GB/s", rounds, candidates, &goals)
}

/// Creates the shared dbuf of a stream.
fn share_dbuf(
    grants: &GrantServer,
    id: DbufId,
    segment: usize,
    segments: usize,
) -> Result<Backing, String> {
    let shape = pool::PoolConfig { segment, segments };
    let pool =
        AllocationPool::new(id, shape, AccessList::private(effective_ids())).map_err(error_text)?;
    grants.with_owner(|owner| owner.share(&pool)).map_err(error_text)?;
    Ok(Backing::new(pool))
}
