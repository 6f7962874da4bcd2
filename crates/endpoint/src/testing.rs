//! Fixtures of this crate's tests: a directory that is removed, blocks, batches, openings.

use abi::{BlockMetadata, Class, DbufId, Entry, Extent, Marks, RichPointer};
use buffer::pool::{Config, Pool};
use filter::{Arguments, Batch, Block, Classes, Columns, Description, Form, Time};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use sys::steps::UNLOGGED;
use wire::record::{RecordKind, Writer};

use crate::readers::{EVERYBODY, Making};
use crate::{Failure, Given, Intake, Opening, Origins, Source};

/// Makes files that everybody may read, and keeps them.
pub(crate) static MAKING: Making<'static> = (&UNLOGGED, &EVERYBODY);

/// A directory of its own that is removed with what is in it.
#[derive(Debug)]
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamline-endpoint-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// The path of `name` in it.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// 2009-02-13 23:31:30.123456789 UTC.
pub(crate) const TIME: u64 = 1_234_567_890_123_456_789;

/// A block over these bytes, whole in view.
pub(crate) fn block(marks: Marks, bytes: &[u8]) -> Block<'_> {
    let place = Extent::new(4096, u32::try_from(bytes.len()).unwrap());
    Block {
        pointer: RichPointer::new(DbufId::new(1).unwrap(), place, Class::YES),
        frame: bytes,
        marks,
        context: BlockMetadata { time: TIME, ..BlockMetadata::default() },
    }
}

/// A block that is a whole Ethernet frame.
pub(crate) fn frame(bytes: &[u8]) -> Block<'_> {
    let length = u32::try_from(bytes.len()).unwrap();
    block(Marks::frame(1, length, length), bytes)
}

/// A block that is no frame.
pub(crate) fn bare(bytes: &[u8]) -> Block<'_> {
    block(Marks::bare(u32::try_from(bytes.len()).unwrap()), bytes)
}

/// The bytes of a description.
pub(crate) fn described(kind: RecordKind, fill: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut room = vec![0; 4096];
    let mut writer = Writer::new(&mut room, kind);
    fill(&mut writer);
    let used = writer.finish();
    room.truncate(used);
    room
}

/// A block that is a description.
pub(crate) fn description(bytes: &[u8]) -> Block<'_> {
    let marks = Marks::described(u32::try_from(bytes.len()).unwrap());
    let block = block(marks, bytes);
    Block { pointer: block.pointer.within(0, 0), ..block }
}

/// A block of bytes that were never seen.
pub(crate) fn hole(length: u32) -> Block<'static> {
    Block { pointer: RichPointer::hole(length), ..block(Marks::bare(length), &[]) }
}

/// A batch of these blocks.
pub(crate) fn batch<'a>(blocks: &[Block<'a>]) -> Batch<'a> {
    let mut batch = Batch::empty();
    for block in blocks {
        batch.push(*block, 0).unwrap();
    }
    batch
}

/// The arguments of a request, checked as the language does: `("file", "x")`.
pub(crate) fn arguments(description: &Description, given: &[(&str, &str)]) -> Arguments {
    let mut arguments = Arguments::defaults(description);
    for (name, text) in given {
        let parameter = description.parameter(name).unwrap();
        arguments.set(parameter.name, parameter.parse(text).unwrap());
    }
    arguments
}

/// An opening with these arguments, of frames without a classifier, from one source.
pub(crate) fn opening<'o>(arguments: &'o Arguments, origins: &'o [String]) -> Opening<'o> {
    let (form, classes) = (Form::Frame, Classes::Same);
    Opening {
        arguments,
        form,
        classes,
        origin: 0,
        origins: Origins::new(origins),
        ahead: None,
        latency: None,
        force: false,
        lent: &[],
        readers: &EVERYBODY,
        steps: &UNLOGGED,
    }
}

/// A pool with small segments, so that few bytes show what many would.
pub(crate) fn pool(segment: usize) -> Pool {
    Pool::new(DbufId::new(7).unwrap(), Config { segment, segments: 4 }).unwrap()
}

/// A block that a source gave, with its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gift {
    pub(crate) entry: Entry,
    pub(crate) bytes: Vec<u8>,
}

/// Asks a source once, looks at what it gave, and ends the turn.
pub(crate) fn ask(
    source: &mut dyn Source,
    pool: &mut Pool,
    room: usize,
    now: Time,
) -> Result<(Given, Vec<Gift>), Failure> {
    let mut columns = Columns::default();
    let given = source.give(&mut Intake::new(pool, &mut columns, room, now))?;
    let gift = |l| {
        let entry = columns.entry(l);
        Gift { entry, bytes: pool.resolve(entry.pointer).unwrap().to_vec() }
    };
    let gifts: Vec<Gift> = (0..columns.len()).map(gift).collect();
    assert!(given != Given::Blocks || !gifts.is_empty(), "blocks were promised");
    pool.turn();
    Ok((given, gifts))
}

/// All that a source gives that need not wait, and how it ended.
pub(crate) fn all(source: &mut dyn Source, pool: &mut Pool) -> (Vec<Gift>, Result<(), Failure>) {
    let mut gifts = Vec::new();
    loop {
        match ask(source, pool, 64, 1000) {
            Ok((given, more)) => {
                gifts.extend(more);
                match given {
                    Given::Blocks => {}
                    Given::End => return (gifts, Ok(())),
                    Given::Wait { .. } => panic!("nothing to wait for after {}", gifts.len()),
                }
            }
            Err(failure) => return (gifts, Err(failure)),
        }
    }
}

/// The failure that must have come.
pub(crate) fn refused<T>(outcome: Result<T, Failure>) -> Failure {
    outcome.err().unwrap()
}

/// The bytes that these hexadecimal digits stand for.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}
