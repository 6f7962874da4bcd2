//! The candidates of `bench splice`: a stream of pointers for which the file's dbuf is registered,
//! a stream for which it is not, and the Linux pipe.

use abi::access::{AccessList, Credentials};
use abi::{DbufId, RichPointer};
use buffer::pool;
use iolite::aggregate::owner::PoolOwner;
use iolite::aggregate::server::GrantServer;
use iolite::aggregate::{Aggregate, AllocationPool, FrozenData};
use iolite::indirect::{Backing, Config, Input, Output, indirect_stream};
use iolite::interface::StreamWriter as _;
use iolite::interface::{AggregateBlockReader, StreamReader};
use iolite::splice::splice;
use iolite::view::Space;
use std::fs::File;
use std::hint::black_box;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use sys::process::effective_ids;

/// The method by which a block of the file is written to the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SpliceMethod {
    Peek,
    PeekSpliced,
    Splice,
    /// Splices [`BLOCKS_PER_SPLICE`] blocks with one call.
    SpliceMany,
    Read,
    ReadSpliced,
    PeekCopy,
    ReadWrite,
}

/// Number of blocks in one call of [`SpliceMethod::SpliceMany`].
pub(super) const BLOCKS_PER_SPLICE: usize = 64;
/// Minimum duration of a measurement in ns.
const MEASUREMENT_NS_MIN: u64 = 12_000_000;
/// Size of a stream's backing memory in bytes: half of a second-level cache of 1 MB.
const BACKING_SIZE: usize = 512 << 10;

/// A stream with both ends in this process.
struct StreamEnds {
    output: Output,
    input: Input,
}

/// A file in memory, and the streams to which it is written.
pub(super) struct SpliceSetup {
    file: Aggregate,
    /// A stream for which the file's dbuf is registered, so that it passes pointers.
    by_pointer: StreamEnds,
    /// A stream for which the file's dbuf is not registered, so that it copies.
    by_copy: StreamEnds,
    _grants: GrantServer,
}

/// Returns the dbuf id with this number, or the default id if the number is invalid.
pub(super) fn dbuf_id(number: u32) -> DbufId {
    DbufId::new(number).unwrap_or_default()
}

/// Formats an error as the text with which a bench fails.
pub(super) fn error_text(why: impl std::fmt::Display) -> String {
    why.to_string()
}

impl SpliceSetup {
    pub(super) fn new(dbuf: usize) -> Result<Self, String> {
        let grants = GrantServer::start(PoolOwner::new(8)).map_err(error_text)?;
        let bytes: Vec<u8> = (0..dbuf).map(|at| at as u8).collect();
        let frozen = FrozenData::from_reader(dbuf_id(1), &bytes[..], dbuf).map_err(error_text)?;
        let all = AccessList::private(effective_ids());
        grants.with_owner(|owner| owner.share_frozen(&frozen, all)).map_err(error_text)?;
        let mut by_pointer = StreamEnds::new(&grants, 2)?;
        by_pointer.output.register_frozen(&frozen, 32);
        let by_copy = StreamEnds::new(&grants, 4)?;
        let file = frozen.aggregate().map_err(error_text)?;
        Ok(Self { file, by_pointer, by_copy, _grants: grants })
    }

    /// Returns the rate in millions of blocks per second, measured over enough blocks for the
    /// minimum duration.
    pub(super) fn measure(&mut self, method: SpliceMethod, block: usize) -> Result<f64, String> {
        let Self { file, by_pointer, by_copy, .. } = self;
        let copies = matches!(method, SpliceMethod::PeekCopy | SpliceMethod::ReadWrite);
        let to = if copies { by_copy } else { by_pointer };
        let file: &Aggregate = file;
        let mut held = AggregateBlockReader::new(file, block);
        let mut out = vec![0; block];
        // Number of blocks that fit into the ring and its backing memory before they are drained.
        let piece = if copies { (BACKING_SIZE / 2 / block).clamp(4, 1024) } else { 1024 };
        let (mut blocks, mut ns) = (0_u64, 0);
        while ns < MEASUREMENT_NS_MIN {
            let begin = sys::clock::monotonic_ns();
            let at_once = if method == SpliceMethod::SpliceMany { BLOCKS_PER_SPLICE } else { 1 };
            for _ in 0..piece / at_once {
                if held.current_block().len() < block {
                    held.rewind();
                }
                move_block(method, &mut held, &mut to.output, &mut out)?;
            }
            ns += sys::clock::monotonic_ns() - begin;
            blocks += piece as u64;
            to.drain()?;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
        Ok(blocks as f64 * 1e3 / ns as f64)
    }
}

/// Writes one block of the file to a stream with the given method, or [`BLOCKS_PER_SPLICE`] blocks
/// if the method is [`SpliceMethod::SpliceMany`].
#[inline(always)]
fn move_block(
    method: SpliceMethod,
    from: &mut AggregateBlockReader<'_>,
    to: &mut Output,
    out: &mut [u8],
) -> Result<(), String> {
    let block = out.len();
    match method {
        SpliceMethod::Peek => {
            black_box(from.current_block());
            from.consume(block);
        }
        SpliceMethod::PeekSpliced | SpliceMethod::PeekCopy => {
            to.write(from.current_block()).map_err(error_text)?;
            from.consume(block);
        }
        SpliceMethod::Splice => {
            splice(from, to, block).map_err(error_text)?;
        }
        SpliceMethod::SpliceMany => {
            let mut left = BLOCKS_PER_SPLICE * block;
            while left > 0 {
                if from.current_block().is_empty() {
                    from.rewind();
                }
                left = left.saturating_sub(splice(from, to, left).map_err(error_text)?.bytes);
            }
        }
        SpliceMethod::Read => {
            from.try_read(out).map_err(error_text)?;
            black_box(out);
        }
        SpliceMethod::ReadSpliced => {
            let lent = from.current_block();
            from.try_read(out).map_err(error_text)?;
            to.write(lent).map_err(error_text)?;
            black_box(out);
        }
        SpliceMethod::ReadWrite => {
            from.try_read(out).map_err(error_text)?;
            to.write(black_box(out)).map_err(error_text)?;
        }
    }
    Ok(())
}

impl StreamEnds {
    fn new(grants: &GrantServer, number: u32) -> Result<Self, String> {
        let shape = pool::PoolConfig { segment: 64 << 10, segments: BACKING_SIZE >> 16 };
        let pool =
            AllocationPool::new(dbuf_id(number), shape, AccessList::private(effective_ids()))
                .map_err(error_text)?;
        grants.with_owner(|owner| owner.share(&pool)).map_err(error_text)?;
        // The ring fits into the first-level cache.
        let config = Config { entries: 1024, ..Config::new(dbuf_id(number + 1)) };
        let (output, mut offers) =
            indirect_stream(&config, Backing::new(pool)).map_err(error_text)?;
        let space = Space::new();
        let (_, socket) =
            grants.add_client(Credentials::from(effective_ids())).map_err(error_text)?;
        space.add_owner(socket);
        let input = Input::open(offers.remove(0), &space).map_err(error_text)?;
        Ok(Self { output, input })
    }

    /// Reads and releases all blocks that were written to the stream.
    fn drain(&mut self) -> Result<(), String> {
        self.output.flush();
        let mut pointers = [RichPointer::default(); 64];
        while self.input.take_pointers(&mut pointers).map_err(error_text)? > 0 {}
        self.input.release_consumed();
        Ok(())
    }
}

/// A Linux pipe with both ends in this process, for the references that use the pipe and splice(2).
pub(super) struct KernelPipe {
    file: File,
    sink: File,
    reading: PipeReader,
    writing: PipeWriter,
    out: Vec<u8>,
}

impl KernelPipe {
    pub(super) fn new(block: usize) -> Result<Self, String> {
        let (reading, writing) = std::io::pipe().map_err(error_text)?;
        let file = sys::memory::Memfd::create("streamline-bench", 1 << 20).map_err(error_text)?;
        file.allocate(0, file.len()).map_err(error_text)?;
        let file = File::from(OwnedFd::from(file));
        let sink = File::options().write(true).open("/dev/null").map_err(error_text)?;
        Ok(Self { file, sink, reading, writing, out: vec![1; block] })
    }

    /// Writes a block into the pipe and reads it, in one thread.
    pub(super) fn measure_pipe(&mut self) -> Result<f64, String> {
        self.measure(|kernel| {
            kernel.writing.write_all(&kernel.out).map_err(error_text)?;
            kernel.reading.read_exact(&mut kernel.out).map_err(error_text)
        })
    }

    /// Measures the splicing of blocks of a cached file into the pipe, and from the pipe to
    /// /dev/null.
    pub(super) fn measure_splice(&mut self) -> Result<f64, String> {
        let mut at = 0;
        self.measure(|kernel| {
            let length = kernel.out.len();
            at = (at + length as u64) % (1 << 20);
            let mut left = sys::pipe::splice_in(&kernel.file, at, &kernel.writing, length)
                .map_err(error_text)?;
            while left > 0 {
                let out = sys::pipe::splice_out(&kernel.reading, &kernel.sink, left);
                left = left.saturating_sub(out.map_err(error_text)?);
            }
            Ok(())
        })
    }

    fn measure(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<f64, String> {
        let (mut blocks, begin) = (0_u64, sys::clock::monotonic_ns());
        loop {
            for _ in 0..64 {
                one(self)?;
            }
            blocks += 64;
            let ns = sys::clock::monotonic_ns() - begin;
            if ns >= MEASUREMENT_NS_MIN {
                #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
                return Ok(blocks as f64 * 1e3 / ns as f64);
            }
        }
    }
}
