//! Captures, made here and by others, through `replay` and back into a file by `pcap`: the same
//! packets must come out, in the same order, with the same times; what is wrong with a capture must
//! be told as the reader of captures tells it, after the packets before it; and the tools of this
//! field must read what we write.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use abi::DbufId;
use buffer::pool::{Config, Pool};
use filter::{Arguments, Batch, Classes, Columns, Form, Value};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use streamline_endpoint::{Failure, Given, Intake, Opening, Origins, Sink, Source, catalog};
use testkit::{Captures, Random, need};
use wire::capture::{self, CaptureFault, Packet};

/// A directory of its own that is removed with what is in it.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamline-captures-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn pool() -> Pool {
    Pool::new(DbufId::new(1).unwrap(), Config::default()).unwrap()
}

fn arguments(file: &Path, description: &filter::Description) -> Arguments {
    let mut arguments = Arguments::defaults(description);
    arguments.set("file", Value::Text(file.to_str().unwrap().to_owned()));
    arguments
}

fn opening(arguments: &Arguments) -> Opening<'_> {
    let (form, classes) = (Form::Frame, Classes::Same);
    Opening {
        arguments,
        form,
        classes,
        origin: 0,
        origins: Origins::default(),
        ahead: None,
        latency: None,
        force: false,
        lent: &[],
        readers: &streamline_endpoint::readers::EVERYBODY,
        steps: &sys::steps::UNLOGGED,
    }
}

fn replay(file: &Path) -> Result<Box<dyn Source>, Failure> {
    let entry = catalog::source("replay").unwrap();
    (entry.open)(&opening(&arguments(file, entry.description)))
}

fn pcap(file: &Path) -> Box<dyn Sink> {
    let entry = catalog::sink("pcap").unwrap();
    (entry.open)(&opening(&arguments(file, entry.description))).unwrap()
}

/// Runs a source to its end and shows each batch to `look`; answers the failure it ended with.
fn run(
    source: &mut dyn Source,
    pool: &mut Pool,
    mut look: impl FnMut(&Batch<'_>),
) -> Result<(), Failure> {
    let mut columns = Box::<Columns>::default();
    loop {
        let given = source.give(&mut Intake::new(pool, &mut columns, 64, 0))?;
        let batch =
            Batch::new(columns.into(), |columns, l| pool.resolve(columns.frame(l)).unwrap());
        look(&batch);
        columns = batch.into_room().columns;
        pool.turn();
        match given {
            Given::Blocks => {}
            Given::End => return Ok(()),
            Given::Wait { .. } => panic!("a regular file need not be waited for"),
        }
    }
}

/// A packet, without its place.
#[derive(PartialEq, Debug)]
struct Seen {
    time: u64,
    wire_length: u32,
    link: u16,
    bytes: Vec<u8>,
}

impl Seen {
    fn of(packet: &Packet, data: &[u8]) -> Self {
        let Packet { time_ns: time, wire_length, link, .. } = *packet;
        Self { time, wire_length, link: link.0, bytes: data.to_vec() }
    }
}

/// The packets of a capture, and what is wrong with it, by the reader alone.
fn truth(bytes: &[u8]) -> (Vec<Seen>, Option<CaptureFault>) {
    let mut seen = Vec::new();
    for packet in capture::packets(bytes) {
        match packet {
            Ok((packet, data)) => seen.push(Seen::of(&packet, data)),
            Err(fault) => return (seen, Some(fault)),
        }
    }
    (seen, None)
}

/// Returns the packets of `replay`, and the reason why it stopped.
fn replayed(file: &Path, pool: &mut Pool) -> (Vec<Seen>, Option<String>) {
    let mut seen = Vec::new();
    let outcome = replay(file).and_then(|mut source| {
        run(&mut *source, pool, |batch| {
            for (_, block) in batch.blocks() {
                assert_eq!(block.frame.len(), block.marks.captured as usize);
                seen.push(Seen {
                    time: block.context.time,
                    wire_length: block.marks.wire_length,
                    link: block.marks.link,
                    bytes: block.bytes().to_vec(),
                });
            }
        })
    });
    (seen, outcome.err().map(|failure| failure.to_string()))
}

/// Copies a capture by `replay | pcap`; nothing if it holds several link types.
fn copied(from: &Path, to: &Path, pool: &mut Pool) -> Option<u64> {
    let mut sink = pcap(to);
    let mut refused = None;
    if let Ok(mut source) = replay(from) {
        // A fault ends the capture; the packets before it must arrive.
        let _ = run(&mut *source, pool, |batch| {
            refused = refused.take().or_else(|| sink.take(batch, 0).err());
        });
    }
    match refused {
        None => {
            sink.finish().unwrap();
            Some(sink.written().unwrap().blocks)
        }
        Some(failure) => {
            assert!(failure.to_string().contains("frames of link type"), "{failure}");
            None
        }
    }
}

#[test]
fn every_capture_is_given_as_it_is_and_copied_without_loss() {
    let (packets, faults, mixed) = give_and_copy(&testkit::made());
    assert!(packets > 3_000 && faults > 5 && mixed == 1, "{packets}, {faults}, {mixed}");
}

#[test]
fn corpus_every_capture_is_given_as_it_is_and_copied_without_loss() {
    let Some(corpus) = testkit::corpus() else { return };
    let (packets, _, mixed) = give_and_copy(&corpus);
    assert!(packets > 10_000 && mixed < 20, "{packets} packets, {mixed} mixed");
}

/// Counts packets, captures with a fault, and captures of several link types.
#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn give_and_copy(captures: &Captures) -> (usize, usize, usize) {
    let captures = &captures.paths;
    let dir = TempDir::new("copies");
    let (copy, mut pool) = (dir.path("copy.pcap"), pool());
    let (mut packets, mut faults, mut mixed) = (0, 0, 0);
    for path in captures {
        let (expected, fault) = truth(&fs::read(path).unwrap());
        let (seen, failure) = replayed(path, &mut pool);
        let numbers = (seen.len(), expected.len());
        assert!(seen == expected, "{}: other packets: {numbers:?}", path.display());
        match (fault, failure) {
            (None, None) => {}
            (Some(fault), Some(failure)) => {
                let told = format!("cannot read {}: {fault}", path.display());
                assert!(failure.starts_with(&told), "{failure} is not {told}");
                faults += 1;
            }
            (fault, failure) => panic!("{}: {fault:?} is not {failure:?}", path.display()),
        }
        packets += seen.len();
        // Nothing takes the place of a file: what no block reaches is not made.
        let _ = fs::remove_file(&copy);
        let Some(written) = copied(path, &copy, &mut pool) else {
            mixed += 1;
            continue;
        };
        assert_eq!(written, expected.len() as u64);
        let (back, fault) = fs::read(&copy).map_or((Vec::new(), None), |bytes| truth(&bytes));
        assert_eq!(fault, None, "{}", path.display());
        let last = u64::from(u32::MAX) * 1_000_000_000 + 999_999_999;
        let same = expected.iter().zip(&back).all(|(before, after)| {
            (before.time.min(last), before.wire_length, before.link, &before.bytes)
                == (after.time, after.wire_length, after.link, &after.bytes)
        });
        assert!(same && back.len() == expected.len(), "{}: other packets", path.display());
    }
    println!("{} captures, {packets} packets, {faults} faults, {mixed} mixed", captures.len());
    let usage = pool.usage();
    assert!(usage.pinned <= captures.len().min(usage.segments), "{usage:?}");
    (packets, faults, mixed)
}

#[test]
fn flipped_bits_end_in_packets_or_a_failure() {
    flip_bits(&testkit::made());
}

#[test]
fn corpus_flipped_bits_end_in_packets_or_a_failure() {
    testkit::corpus().iter().for_each(flip_bits);
}

fn flip_bits(captures: &Captures) {
    let dir = TempDir::new("flips");
    let path = dir.path("flipped");
    let mut random = Random::replayable();
    let mut pool = pool();
    let small: Vec<Vec<u8>> = captures
        .paths
        .iter()
        .filter_map(|path| fs::read(path).ok())
        .filter(|bytes| (1..20_000).contains(&bytes.len()))
        .collect();
    for _ in 0..300 {
        let mut bytes = random.pick(&small).clone();
        random.flip_bits(&mut bytes, 3);
        fs::write(&path, &bytes).unwrap();
        let (expected, fault) = truth(&bytes);
        let (seen, failure) = replayed(&path, &mut pool);
        assert!(seen == expected);
        assert_eq!(fault.is_some(), failure.is_some(), "{fault:?} {failure:?}");
    }
}

#[test]
fn what_is_written_opens_in_the_tools_of_this_field() {
    open_in_tools(&testkit::made());
}

#[test]
fn corpus_what_is_written_opens_in_the_tools_of_this_field() {
    testkit::corpus().iter().for_each(open_in_tools);
}

fn open_in_tools(captures: &Captures) {
    let captures = &captures.paths;
    let (Some(capinfos), Some(tcpdump)) = (need::command("capinfos"), need::command("tcpdump"))
    else {
        return;
    };
    let dir = TempDir::new("tools");
    let (copy, mut pool) = (dir.path("copy.pcap"), pool());
    for path in captures.iter().step_by(captures.len() / 12) {
        let Some(written) = copied(path, &copy, &mut pool) else { continue };
        let told = Command::new(&capinfos).args(["-c", "-M", "-T", "-r", "-m"]).arg(&copy).output();
        let told = String::from_utf8(told.unwrap().stdout).unwrap();
        let count =
            told.trim_end().split(',').next_back().and_then(|n| n.trim_matches('"').parse().ok());
        assert_eq!(count, Some(written), "{}: {told}", path.display());
        let read = Command::new(&tcpdump).args(["--count", "-r"]).arg(&copy).output().unwrap();
        let told = String::from_utf8(read.stdout).unwrap();
        let expected = format!("{written} packet");
        assert!(read.status.success() && told.starts_with(&expected), "{}: {told}", path.display());
    }
}
