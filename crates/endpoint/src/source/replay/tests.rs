//! Tests of `replay` on generated captures from files and pipes. `tests/captures.rs` replays
//! captures of other programs.

use super::*;
use crate::testing::{
    EmittedBlock, TempDir, checked_arguments, expect_failure, produce_all, produce_once,
    sink_opening, small_segment_pool,
};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use wire::capture::write;
use wire::link::LinkType;

fn replay_source(path: &str, speed: &str) -> Result<Box<dyn Source>, Failure> {
    let given = checked_arguments(&REPLAY, &[("file", path), ("speed", speed)]);
    open(&OpenArguments { origin: 3, ..sink_opening(&given, &[]) })
}

/// Returns a capture of these packets, each given as a time in milliseconds and its bytes.
fn pcap_capture(packets: &[(u64, &[u8])]) -> Vec<u8> {
    let mut bytes = write::encode_file_header(LinkType::RAW).to_vec();
    for (time, data) in packets {
        let length = data.len() as u32;
        bytes.extend(write::encode_record_header(time * SPEED_DENOMINATOR, length, length + 1));
        bytes.extend(*data);
    }
    bytes
}

/// Returns a big-endian pcapng capture with one packet on each of two interfaces.
fn big_endian_capture() -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>();
    let mut bytes = words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 0x0001_0000, u32::MAX, u32::MAX, 28]);
    bytes.extend(words(&[1, 20, 1 << 16, 0, 20]));
    bytes.extend(words(&[1, 20, 276 << 16, 0, 20]));
    bytes.extend(words(&[6, 36, 0, 0, 5, 3, 1500]));
    bytes.extend(b"abc\0");
    bytes.extend(words(&[36]));
    bytes.extend(words(&[6, 32, 1, 0, 6, 0, 9, 32]));
    bytes
}

fn block_lengths(emitted: &[EmittedBlock]) -> Vec<usize> {
    emitted.iter().map(|block| block.bytes.len()).collect()
}

#[test]
fn packets_have_time_link_type_and_lengths() {
    let dir = TempDir::new();
    let path = dir.path("big.pcapng");
    std::fs::write(&path, big_endian_capture()).unwrap();
    let mut source = replay_source(&path, "max").unwrap();
    assert!(source.properties().drives_clock && source.descriptor().is_none());
    let (emitted, end) = produce_all(&mut *source, &mut small_segment_pool(1 << 16));
    end.unwrap();
    let [first, second] = &emitted[..] else { panic!("{emitted:?}") };
    assert_eq!((&first.bytes[..], first.entry.marks), (&b"abc"[..], Marks::frame(1, 3, 1500)));
    assert_eq!((first.entry.context.time, first.entry.context.origin), (5000, 3));
    assert_eq!((&second.bytes[..], second.entry.marks), (&b""[..], Marks::frame(276, 0, 9)));
    let counters = source.counters();
    assert_eq!(
        (counters.observed, counters.given),
        (Some(counters.given), Amount { blocks: 2, bytes: 3 })
    );
}

#[test]
fn truncated_capture_emits_whole_packets_then_fails() {
    let dir = TempDir::new();
    let mut pool = small_segment_pool(1 << 16);
    let whole = pcap_capture(&[(1, b"one"), (2, b""), (3, b"three")]);
    let ends = [24, 24 + 19, 24 + 19 + 16, whole.len()];
    for length in 1..=whole.len() {
        let path = dir.path(&length.to_string());
        std::fs::write(&path, &whole[..length]).unwrap();
        let (emitted, end) = produce_all(&mut *replay_source(&path, "max").unwrap(), &mut pool);
        let expected = ends[1..].iter().filter(|end| **end <= length).count();
        assert_eq!(emitted.len(), expected, "cut at {length}");
        if ends.contains(&length) {
            end.unwrap();
            continue;
        }
        let whole =
            if length < 24 { "its header".to_owned() } else { format!("record {}", expected + 1) };
        let why = format!("capture ends in the middle of {whole} at byte {length}");
        assert_eq!(expect_failure(end).to_string(), format!("cannot read {path}: {why}"));
    }
}

#[test]
fn records_across_piece_boundaries_are_emitted_whole() {
    // Every segment ends within a record, and each record is longer than the remainder of a piece.
    let dir = TempDir::new();
    let path = dir.path("many");
    let data: Vec<Vec<u8>> = (0..3000_usize).map(|n| vec![n as u8; n * 7 % 1500]).collect();
    let packets: Vec<(u64, &[u8])> = data.iter().map(|data| (1, &data[..])).collect();
    std::fs::write(&path, pcap_capture(&packets)).unwrap();
    for segment in [1 << 12, 1 << 16, 1 << 20] {
        let mut pool = small_segment_pool(segment);
        let (emitted, end) = produce_all(&mut *replay_source(&path, "max").unwrap(), &mut pool);
        end.unwrap();
        assert_eq!(emitted.len(), data.len());
        assert!(emitted.iter().zip(&data).all(|(block, data)| block.bytes == *data), "{segment}");
        assert_eq!((pool.usage().pinned, pool.invalid_unpin_count()), (0, 0));
    }
}

#[test]
fn record_longer_than_segment_fails_with_its_length() {
    let dir = TempDir::new();
    let path = dir.path("large");
    std::fs::write(&path, pcap_capture(&[(1, b"small"), (1, &[7; 5000])])).unwrap();
    let (emitted, end) =
        produce_all(&mut *replay_source(&path, "max").unwrap(), &mut small_segment_pool(1 << 12));
    assert_eq!(block_lengths(&emitted), [5]);
    let why = expect_failure(end).to_string();
    assert!(why.contains("a record of 5016 bytes arrived"), "{why}");
    assert!(why.contains("hold 4096 bytes at most"), "{why}");
}

#[test]
fn full_pool_delays_the_source() {
    let dir = TempDir::new();
    let path = dir.path("c");
    std::fs::write(&path, pcap_capture(&[(1, b"one")])).unwrap();
    let mut pool = small_segment_pool(1 << 12);
    while pool.append(4096, |room| room.len()).is_some() {}
    let mut source = replay_source(&path, "max").unwrap();
    let (given, emitted) = produce_once(&mut *source, &mut pool, 64, 17).unwrap();
    assert_eq!(given, SourceStatus::retry_at(17));
    assert_eq!(emitted, []);
    let (emitted, end) = produce_all(&mut *source, &mut pool);
    end.unwrap();
    assert_eq!(block_lengths(&emitted), [3]);
}

#[test]
fn piped_packets_are_emitted_once_complete() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let input = Input::from_file(File::from(OwnedFd::from(reader)), "a pipe".to_owned()).unwrap();
    let mut source = ReplaySource::new(input, ReplaySchedule::new(None), 0);
    let mut pool = small_segment_pool(1 << 16);
    let wait = SourceStatus::AWAITS_INPUT;
    let bytes = pcap_capture(&[(1, b"one"), (2, b"second")]);
    let mut got = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        writer.write_all(&[*byte]).unwrap();
        let (given, emitted) = produce_once(&mut source, &mut pool, 64, 0).unwrap();
        let ends = at + 1 == 24 + 19 || at + 1 == bytes.len();
        assert_eq!(given, if ends { SourceStatus::Blocks } else { wait }, "byte {at}");
        got.extend(emitted);
    }
    assert_eq!(block_lengths(&got), [3, 6]);
    drop(writer);
    testkit::wait_until_closed(source.descriptor().unwrap());
    assert_eq!(produce_once(&mut source, &mut pool, 64, 0).unwrap(), (SourceStatus::End, vec![]));
}

#[test]
fn packets_are_paced_by_timestamps_and_speed() {
    let dir = TempDir::new();
    let path = dir.path("paced");
    // The third packet is out of order: it is late and emitted without delay.
    std::fs::write(&path, pcap_capture(&[(10, b"a"), (30, b"bb"), (5, b"ccc"), (40, b"dddd")]))
        .unwrap();
    let mut source = replay_source(&path, "2").unwrap();
    assert!(!source.properties().drives_clock);
    let mut pool = small_segment_pool(1 << 16);
    let mut at = |now, room| {
        let (given, emitted) = produce_once(&mut *source, &mut pool, room, now).unwrap();
        (given, block_lengths(&emitted))
    };
    let until = |ms: u64| SourceStatus::retry_at(ms * SPEED_DENOMINATOR);
    let begin = 100 * SPEED_DENOMINATOR;
    assert_eq!(at(begin, 64), (SourceStatus::Blocks, vec![1]));
    assert_eq!(at(begin, 64), (until(110), vec![]));
    assert_eq!(at(begin + 9 * SPEED_DENOMINATOR, 64), (until(110), vec![]));
    assert_eq!(at(begin + 10 * SPEED_DENOMINATOR, 1), (SourceStatus::Blocks, vec![2]));
    assert_eq!(at(begin + 10 * SPEED_DENOMINATOR, 64), (SourceStatus::Blocks, vec![3]));
    assert_eq!(at(begin + 10 * SPEED_DENOMINATOR, 64), (until(115), vec![]));
    assert_eq!(at(begin + 99 * SPEED_DENOMINATOR, 64), (SourceStatus::Blocks, vec![4]));
    assert_eq!(at(begin + 99 * SPEED_DENOMINATOR, 64), (SourceStatus::End, vec![]));
    assert_eq!(source.counters().position, None, "the file was read before the packets were due");
    assert!(replay_source(&path, "max").unwrap().counters().position.is_some());
}

#[test]
fn invalid_speeds_are_rejected_by_the_parser() {
    let speed = REPLAY.parameter("speed").unwrap();
    assert_eq!(speed.parse("0.5"), Ok(filter::Value::Number(SPEED_DENOMINATOR / 2)));
    assert!(speed.parse("fast").is_err() && speed.parse("0").is_err());
}

#[test]
fn non_captures_fail_at_open_with_reason() {
    let dir = TempDir::new();
    let failure_of = |bytes: &[u8]| {
        let path = dir.path("x");
        std::fs::write(&path, bytes).unwrap();
        expect_failure(replay_source(&path, "max")).to_string().replace(&path, "x")
    };
    assert_eq!(failure_of(b""), "cannot read x: it is empty; a capture has at least a header");
    assert_eq!(
        failure_of(b"GET / HTTP/1.1\r\n"),
        "cannot read x: not a capture: it begins with 47 45 54 20, which is neither pcap nor \
         pcapng; it looks like text: `read` reads the bytes or lines of any file"
    );
    assert!(failure_of(b"\x1f\x8b\x08\0\0").ends_with("`zcat FILE | streamline 'replay - | …'`"));
    assert!(failure_of(b"\x7fELF\x02\x01\x01\0").ends_with("it looks like a program"));
    assert!(
        failure_of(&[0; 30]).ends_with("begins with 00 00 00 00, which is neither pcap nor pcapng")
    );
    let mut version = pcap_capture(&[]);
    version[6] = 5;
    assert!(failure_of(&version).ends_with("unsupported pcap savefile version 2.5"));
    let mut reserved = pcap_capture(&[]);
    reserved[22] = 0x30;
    let why = "savefile linktype reserved field not zero (0x00300000)";
    assert!(failure_of(&reserved).ends_with(why));
    let mut pcapng = big_endian_capture();
    pcapng[15] = 1;
    assert!(failure_of(&pcapng).contains("unsupported pcapng savefile version 1.1"));
    assert!(
        expect_failure(replay_source(&dir.path(""), "max"))
            .to_string()
            .contains("it is a directory")
    );
}
