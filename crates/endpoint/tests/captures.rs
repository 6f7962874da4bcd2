//! Tests of generated and external captures, read by `replay` and written by `pcap`. The packets
//! must be unchanged, in the same order and with the same times. A fault in a capture must be
//! reported with the message of the capture reader, after all packets that precede it. Common tools
//! must be able to read the output.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use abi::DbufId;
use buffer::pool::{Pool, PoolConfig};
use filter::{Arguments, Batch, Columns, Value};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use streamline_endpoint::{Failure, Intake, OpenArguments, Sink, Source, SourceStatus, catalog};
use testkit::{Captures, Random, need};
use wire::capture::{self, CaptureFault, Packet};

/// A temporary directory, removed on drop with its contents.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        static NEXT_DIRECTORY_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_DIRECTORY_NUMBER.fetch_add(1, Ordering::Relaxed);
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

fn test_pool() -> Pool {
    Pool::new(DbufId::new(1).unwrap(), PoolConfig::default()).unwrap()
}

fn file_arguments(file: &Path, description: &filter::Description) -> Arguments {
    let mut arguments = Arguments::from_parameter_defaults(description.parameters);
    arguments.set("file", Value::Text(file.to_str().unwrap().to_owned()));
    arguments
}

fn open_replay(file: &Path) -> Result<Box<dyn Source>, Failure> {
    let entry = catalog::find_source("replay").unwrap();
    (entry.open)(&OpenArguments::new(&file_arguments(file, entry.description)))
}

fn open_pcap(file: &Path) -> Box<dyn Sink> {
    let entry = catalog::find_sink("pcap").unwrap();
    (entry.open)(&OpenArguments::new(&file_arguments(file, entry.description))).unwrap()
}

/// Runs a source to its end, and calls `handle_batch` for each batch. Returns the source's failure,
/// if any.
fn run_source(
    source: &mut dyn Source,
    pool: &mut Pool,
    mut handle_batch: impl FnMut(&Batch<'_>),
) -> Result<(), Failure> {
    let mut columns = Box::<Columns>::default();
    loop {
        let status = source.produce(&mut Intake::new(pool, &mut columns, 64, 0))?;
        let batch =
            Batch::new(columns.into(), |columns, l| pool.resolve(columns.frame(l)).unwrap());
        handle_batch(&batch);
        columns = batch.into_memory().columns;
        pool.end_pass();
        match status {
            SourceStatus::Blocks => {}
            SourceStatus::End => return Ok(()),
            SourceStatus::Wait { .. } => panic!("a regular file need not be waited for"),
        }
    }
}

/// A packet of a capture. Packets are compared by their contents, not by their position in memory.
#[derive(PartialEq, Debug)]
struct PacketContents {
    time: u64,
    wire_length: u32,
    link: u16,
    bytes: Vec<u8>,
}

impl PacketContents {
    fn from_packet(packet: &Packet, data: &[u8]) -> Self {
        let Packet { time_ns: time, wire_length, link, .. } = *packet;
        Self { time, wire_length, link: link.0, bytes: data.to_vec() }
    }
}

/// Returns the packets of a capture and its fault, as parsed by the capture reader without a
/// source.
fn parse_capture(bytes: &[u8]) -> (Vec<PacketContents>, Option<CaptureFault>) {
    let mut replayed = Vec::new();
    for packet in capture::packets(bytes) {
        match packet {
            Ok((packet, data)) => replayed.push(PacketContents::from_packet(&packet, data)),
            Err(fault) => return (replayed, Some(fault)),
        }
    }
    (replayed, None)
}

/// Returns the packets of `replay`, and the failure that ended it.
fn replay_capture(file: &Path, pool: &mut Pool) -> (Vec<PacketContents>, Option<String>) {
    let mut replayed = Vec::new();
    let outcome = open_replay(file).and_then(|mut source| {
        run_source(&mut *source, pool, |batch| {
            for (_, block) in batch.blocks() {
                assert_eq!(block.frame.len(), block.marks.captured as usize);
                replayed.push(PacketContents {
                    time: block.context.time,
                    wire_length: block.marks.wire_length,
                    link: block.marks.link,
                    bytes: block.bytes().to_vec(),
                });
            }
        })
    });
    (replayed, outcome.err().map(|failure| failure.to_string()))
}

/// Copies a capture with `replay | pcap`. Returns the number of packets, or `None` if the capture
/// contains several link types.
fn copy_capture(from: &Path, to: &Path, pool: &mut Pool) -> Option<u64> {
    let mut sink = open_pcap(to);
    let mut refused = None;
    if let Ok(mut source) = open_replay(from) {
        // A fault ends the capture; the packets before the fault must arrive.
        let _ = run_source(&mut *source, pool, |batch| {
            refused = refused.take().or_else(|| sink.consume(batch, 0).err());
        });
    }
    match refused {
        None => {
            sink.finish().unwrap();
            Some(sink.amount_written().unwrap().blocks)
        }
        Some(failure) => {
            assert!(failure.to_string().contains("frames of link type"), "{failure}");
            None
        }
    }
}

#[test]
fn captures_replay_exactly_and_copy_losslessly() {
    let (packets, faults, mixed) = assert_replay_and_copy(&testkit::generated_captures());
    assert!(packets > 3_000 && faults > 5 && mixed == 1, "{packets}, {faults}, {mixed}");
}

#[test]
fn corpus_captures_replay_exactly_and_copy_losslessly() {
    let Some(corpus) = testkit::corpus_captures() else { return };
    let (packets, _, mixed) = assert_replay_and_copy(&corpus);
    assert!(packets > 10_000 && mixed < 20, "{packets} packets, {mixed} mixed");
}

/// Asserts that `replay` and `pcap` preserve the packets of all captures. Returns the number of
/// packets, the number of faulty captures, and the number of captures with several link types.
#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn assert_replay_and_copy(captures: &Captures) -> (usize, usize, usize) {
    let captures = &captures.paths;
    let dir = TempDir::new("copies");
    let (copy, mut pool) = (dir.path("copy.pcap"), test_pool());
    let (mut packets, mut faults, mut mixed) = (0, 0, 0);
    for path in captures {
        let (expected, fault) = parse_capture(&fs::read(path).unwrap());
        let (replayed, failure) = replay_capture(path, &mut pool);
        let numbers = (replayed.len(), expected.len());
        assert!(replayed == expected, "{}: other packets: {numbers:?}", path.display());
        match (fault, failure) {
            (None, None) => {}
            (Some(fault), Some(failure)) => {
                let reported = format!("cannot read {}: {fault}", path.display());
                assert!(failure.starts_with(&reported), "{failure} is not {reported}");
                faults += 1;
            }
            (fault, failure) => panic!("{}: {fault:?} is not {failure:?}", path.display()),
        }
        packets += replayed.len();
        // Without blocks, `pcap` creates and replaces no file, so the previous copy would remain.
        let _ = fs::remove_file(&copy);
        let Some(written) = copy_capture(path, &copy, &mut pool) else {
            mixed += 1;
            continue;
        };
        assert_eq!(written, expected.len() as u64);
        let (back, fault) =
            fs::read(&copy).map_or((Vec::new(), None), |bytes| parse_capture(&bytes));
        assert_eq!(fault, None, "{}", path.display());
        let last = u64::from(u32::MAX) * 1_000_000_000 + 999_999_999;
        let same = expected.iter().zip(&back).all(|(before, after)| {
            // A raw IP file holds packets of both versions.
            let link = wire::LinkType(before.link).file_link_type().0;
            (before.time.min(last), before.wire_length, link, &before.bytes)
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
fn captures_with_flipped_bits_replay_or_fail() {
    assert_flipped_bits_replay_or_fail(&testkit::generated_captures());
}

#[test]
fn corpus_captures_with_flipped_bits_replay_or_fail() {
    testkit::corpus_captures().iter().for_each(assert_flipped_bits_replay_or_fail);
}

fn assert_flipped_bits_replay_or_fail(captures: &Captures) {
    let dir = TempDir::new("flips");
    let path = dir.path("flipped");
    let mut random = Random::with_replayable_seed();
    let mut pool = test_pool();
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
        let (expected, fault) = parse_capture(&bytes);
        let (replayed, failure) = replay_capture(&path, &mut pool);
        assert!(replayed == expected);
        assert_eq!(fault.is_some(), failure.is_some(), "{fault:?} {failure:?}");
    }
}

#[test]
fn written_captures_open_in_common_tools() {
    assert_readable_by_tools(&testkit::generated_captures());
}

#[test]
fn corpus_written_captures_open_in_common_tools() {
    testkit::corpus_captures().iter().for_each(assert_readable_by_tools);
}

fn assert_readable_by_tools(captures: &Captures) {
    let captures = &captures.paths;
    let (Some(capinfos), Some(tcpdump)) =
        (need::require_command("capinfos"), need::require_command("tcpdump"))
    else {
        return;
    };
    let dir = TempDir::new("tools");
    let (copy, mut pool) = (dir.path("copy.pcap"), test_pool());
    for path in captures.iter().step_by(captures.len() / 12) {
        let Some(written) = copy_capture(path, &copy, &mut pool) else { continue };
        let reported =
            Command::new(&capinfos).args(["-c", "-M", "-T", "-r", "-m"]).arg(&copy).output();
        let reported = String::from_utf8(reported.unwrap().stdout).unwrap();
        let count = reported
            .trim_end()
            .split(',')
            .next_back()
            .and_then(|n| n.trim_matches('"').parse().ok());
        assert_eq!(count, Some(written), "{}: {reported}", path.display());
        let read = Command::new(&tcpdump).args(["--count", "-r"]).arg(&copy).output().unwrap();
        let reported = String::from_utf8(read.stdout).unwrap();
        let expected = format!("{written} packet");
        assert!(
            read.status.success() && reported.starts_with(&expected),
            "{}: {reported}",
            path.display()
        );
    }
}
