//! Fixtures for the tests of this crate: a temporary directory, blocks, batches, and arguments for
//! opening.

use abi::{BlockMetadata, Class, DbufId, Entry, Extent, Marks, RichPointer};
use buffer::pool::{Pool, PoolConfig};
use filter::{Arguments, Batch, Block, Columns, Description, Time};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use sys::rollback::NO_ROLLBACK_LOG;
use wire::record::{RecordKind, Writer};

use crate::permitted_readers::{ALL_USERS, FileCreationContext};
use crate::{Failure, Intake, OpenArguments, Origins, Source, SourceStatus};

/// Context for creating files in tests, without a rollback log, as if all users could read the
/// input files.
pub(crate) static UNLOGGED_CREATION: FileCreationContext<'static> = (&NO_ROLLBACK_LOG, &ALL_USERS);

/// A temporary directory, removed on drop with its contents.
#[derive(Debug)]
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        static NEXT_DIRECTORY_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_DIRECTORY_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamline-endpoint-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Returns the path of `name` in the directory.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A timestamp for tests: 2009-02-13 23:31:30.123456789 UTC, in ns.
pub(crate) const TEST_TIME: u64 = 1_234_567_890_123_456_789;

/// Returns a block with these marks. Its frame consists of the given bytes, all of which are in
/// view.
pub(crate) fn block_with_marks(marks: Marks, bytes: &[u8]) -> Block<'_> {
    let place = Extent::new(4096, u32::try_from(bytes.len()).unwrap());
    Block {
        pointer: RichPointer::new(DbufId::new(1).unwrap(), place, Class::YES),
        frame: bytes,
        marks,
        context: BlockMetadata { time: TEST_TIME, ..BlockMetadata::default() },
    }
}

/// Returns a block that is an entire Ethernet frame.
pub(crate) fn frame_block(bytes: &[u8]) -> Block<'_> {
    let length = u32::try_from(bytes.len()).unwrap();
    block_with_marks(Marks::frame(1, length, length), bytes)
}

/// Returns a block without a frame.
pub(crate) fn frameless_block(bytes: &[u8]) -> Block<'_> {
    block_with_marks(Marks::for_plain_block(u32::try_from(bytes.len()).unwrap()), bytes)
}

/// Returns the bytes of a description record.
pub(crate) fn description_record(kind: RecordKind, fill: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut room = vec![0; 16384];
    let mut writer = Writer::new(&mut room, kind);
    fill(&mut writer);
    let used = writer.finish();
    room.truncate(used);
    room
}

/// Returns a description block over these bytes.
pub(crate) fn description_block(bytes: &[u8]) -> Block<'_> {
    let marks = Marks::for_description(u32::try_from(bytes.len()).unwrap());
    let block = block_with_marks(marks, bytes);
    Block { pointer: block.pointer.subrange(0, 0), ..block }
}

/// Returns a hole of this many bytes.
pub(crate) fn hole_block(length: u32) -> Block<'static> {
    Block {
        pointer: RichPointer::hole(length),
        ..block_with_marks(Marks::for_plain_block(length), &[])
    }
}

/// Returns a batch of these blocks.
pub(crate) fn batch_from_blocks<'a>(blocks: &[Block<'a>]) -> Batch<'a> {
    let mut batch = Batch::empty();
    for block in blocks {
        batch.push(*block, 0).unwrap();
    }
    batch
}

/// Returns these arguments, checked like those of a parsed request. An argument is a pair such as
/// `("file", "x")`.
pub(crate) fn checked_arguments(description: &Description, given: &[(&str, &str)]) -> Arguments {
    let mut arguments = Arguments::from_parameter_defaults(description.parameters);
    for (name, text) in given {
        let parameter = description.parameter(name).unwrap();
        arguments.set(parameter.name, parameter.parse(text).unwrap());
    }
    arguments
}

/// Returns the arguments for opening a sink whose input is unclassified frames.
pub(crate) fn sink_opening<'o>(
    arguments: &'o Arguments,
    origins: &'o [String],
) -> OpenArguments<'o> {
    OpenArguments { origins: Origins::new(origins), ..OpenArguments::new(arguments) }
}

/// Returns a pool with small segments, so that short inputs cross segment boundaries.
pub(crate) fn small_segment_pool(segment: usize) -> Pool {
    Pool::new(DbufId::new(7).unwrap(), PoolConfig { segment, segments: 4 }).unwrap()
}

/// A block emitted by a source, with a copy of its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EmittedBlock {
    pub(crate) entry: Entry,
    pub(crate) bytes: Vec<u8>,
}

/// Calls `produce` once with room for `room` blocks and ends the pass. Returns copies of the
/// emitted blocks, and the result.
pub(crate) fn produce_once(
    source: &mut dyn Source,
    pool: &mut Pool,
    room: usize,
    now: Time,
) -> Result<(SourceStatus, Vec<EmittedBlock>), Failure> {
    let mut columns = Columns::default();
    let status = source.produce(&mut Intake::new(pool, &mut columns, room, now))?;
    let block = |l| {
        let entry = columns.entry(l);
        let bytes = match entry.pointer.is_hole() {
            true => Vec::new(),
            false => pool.resolve(entry.pointer).unwrap().to_vec(),
        };
        EmittedBlock { entry, bytes }
    };
    let emitted: Vec<EmittedBlock> = (0..columns.len()).map(block).collect();
    assert!(status != SourceStatus::Blocks || !emitted.is_empty(), "blocks were promised");
    pool.end_pass();
    Ok((status, emitted))
}

/// Runs a source, which must never wait, until it ends or fails. Returns all blocks and the
/// outcome.
pub(crate) fn produce_all(
    source: &mut dyn Source,
    pool: &mut Pool,
) -> (Vec<EmittedBlock>, Result<(), Failure>) {
    let mut emitted = Vec::new();
    loop {
        match produce_once(source, pool, 64, 1000) {
            Ok((status, more)) => {
                emitted.extend(more);
                match status {
                    SourceStatus::Blocks => {}
                    SourceStatus::End => return (emitted, Ok(())),
                    SourceStatus::Wait { .. } => {
                        panic!("nothing to wait for after {}", emitted.len())
                    }
                }
            }
            Err(failure) => return (emitted, Err(failure)),
        }
    }
}

/// Returns the failure in an outcome, which must not be `Ok`.
pub(crate) fn expect_failure<T>(outcome: Result<T, Failure>) -> Failure {
    outcome.err().unwrap()
}

/// Decodes hexadecimal digits; other characters are ignored.
pub(crate) fn decode_hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}
