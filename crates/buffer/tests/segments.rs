//! Tests of streams between processes of different users, while the size, owner and readers of the
//! stream change: delivery, hostile writers of segments, and the release of memory. (CONTRACT 23,
//! RELIABILITY T2, T3, T11)

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use abi::DbufId;
use abi::ring::{LINE_WORDS, PAGE_SIZE, RecordHeader, RingGeometry, writer};
use common::{
    OtherUserProcess, fill_block, read_and_check_blocks, receive_stream, report, send_offer,
    spawn_test_thread, with_watchdog,
};
use common::{receive, send, wait_to_be_killed};
use std::fs::File;
use std::io::stdin;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use streamline_buffer::Fault;
use streamline_buffer::stream::{ChangeError, Config, Handover, Output, stream};
use sys::doorbell::SocketDoorbell;
use sys::memory::{Memfd, Seals};
use testkit::{Random, need};
use zerocopy::IntoBytes as _;

const BLOCK_COUNT: u64 = 30_000;

fn stream_config(readers: usize) -> Config {
    Config::new(DbufId::new(1).unwrap()).capacity(16384).readers(readers)
}

/// Writes blocks, resizes the ring at random, and publishes all blocks.
#[track_caller]
fn write_and_resize_watched(
    output: &mut Output,
    numbers: std::ops::Range<u64>,
    random: &mut Random,
) {
    with_watchdog("room for a block", || write_and_resize(output, numbers, random));
}

fn write_and_resize(output: &mut Output, numbers: std::ops::Range<u64>, random: &mut Random) {
    let mut room = Vec::new();
    for number in numbers {
        fill_block(number, &mut room);
        assert!(output.write(&room).unwrap(), "a stream that blocks drops nothing");
        if random.below(50) == 0 {
            match output.resize(4096 << random.below(8)) {
                Ok(()) | Err(ChangeError::InProgress | ChangeError::Unreachable(_)) => {}
                Err(stay) => panic!("{stay}"),
            }
        }
    }
    output.flush();
}

/// Another user receives every byte while the size changes constantly.
#[test]
fn f2_reader_of_another_user_follows_resizes() {
    let Some(other) = OtherUserProcess::start("read") else { return };
    let (mut output, offers) = stream(&stream_config(1)).unwrap();
    send_offer(&other, &offers[0]);
    drop(offers);
    write_and_resize_watched(&mut output, 0..BLOCK_COUNT, &mut Random::with_replayable_seed());
    assert!(output.segment_number() > 20, "{}", output.segment_number());
    drop(output);
    assert_eq!(other.receive_line(), Some(format!("{BLOCK_COUNT} None")));
    other.wait_for_success();
}

/// The stream is handed over to a writer of another user and back. Readers in both processes get
/// every byte and see no change.
#[test]
fn stream_is_handed_to_another_user_and_back() {
    let Some(reader) = OtherUserProcess::start("read") else { return };
    let Some(writer) = OtherUserProcess::start("take over and hand back") else { return };
    let (mut output, mut offers) = stream(&stream_config(2)).unwrap();
    send_offer(&reader, &offers[0]);
    let mut input = offers.remove(1).open().unwrap();
    drop(offers);
    let reading = spawn_test_thread(move || read_and_check_blocks(&mut input));
    let mut random = Random::with_replayable_seed();
    write_and_resize_watched(&mut output, 0..5000, &mut random);
    let handover = output.hand_over().unwrap();
    send(&writer, &handover.message(), &handover.descriptors());
    drop(handover);
    let mut output = take_over(&writer);
    assert_eq!(output.counts().blocks, 10_000);
    write_and_resize_watched(&mut output, 10_000..15_000, &mut random);
    drop(output);
    assert_eq!(reading.join(), (15_000, None));
    assert_eq!(reader.receive_line().as_deref(), Some("15000 None"));
    reader.wait_for_success();
    writer.wait_for_success();
}

fn take_over(socket: impl AsFd) -> Output {
    let (message, descriptors) = receive(socket);
    Handover::from_parts(&message, descriptors).unwrap().open().unwrap()
}

/// If the successor is killed before or after it takes over, the stream ends and no reader hangs.
#[test]
fn readers_of_a_killed_successor_get_a_fault() {
    for role in ["take nothing over", "take over and stop"] {
        let Some(mut writer) = OtherUserProcess::start(role) else { return };
        let (mut output, mut offers) = stream(&stream_config(1)).unwrap();
        let mut input = offers.remove(0).open().unwrap();
        write_and_resize_watched(&mut output, 0..10, &mut Random::new(1));
        let handover = output.hand_over().unwrap();
        send(&writer, &handover.message(), &handover.descriptors());
        drop(handover);
        assert_eq!(writer.receive_line().as_deref(), Some("here"));
        writer.kill();
        assert_eq!(read_and_check_blocks(&mut input), (10, Some(Fault::Abandoned)), "{role}");
    }
}

/// A revoked process reads the blocks written before the revocation and none later: it has no
/// descriptor for the memory that contains later blocks. (RELIABILITY T11)
#[test]
fn t11_revoked_reader_of_another_user_reads_to_revocation() {
    let Some(other) = OtherUserProcess::start("read") else { return };
    let (mut output, mut offers) = stream(&stream_config(2)).unwrap();
    send_offer(&other, &offers[0]);
    let mut input = offers.remove(1).open().unwrap();
    drop(offers);
    let reading = spawn_test_thread(move || read_and_check_blocks(&mut input));
    let mut random = Random::new(7);
    write_and_resize_watched(&mut output, 0..2000, &mut random);
    output.revoke(0).unwrap();
    write_and_resize_watched(&mut output, 2000..4000, &mut random);
    drop(output);
    let reported = other.receive_line().unwrap();
    assert!(reported.starts_with("2000 Some(Revoked { position: "), "{reported}");
    assert_eq!(reading.join(), (4000, None));
    other.wait_for_success();
}

/// A writer is killed amid changes of size: readers receive all published blocks, then the fault.
#[test]
fn published_blocks_survive_a_writer_killed_resizing() {
    common::check_published_blocks_survive_kill(10_000);
}

/// A way in which a hostile writer falsifies the next segment: the name of the false property, and
/// a predicate for the fault that the reader must get.
type FalseSegment = (&'static str, fn(&Fault) -> bool);

const FALSE_SEGMENTS: [FalseSegment; 12] = [
    ("magic", |fault| matches!(fault, Fault::Segment { .. })),
    ("capacity", |fault| matches!(fault, Fault::Segment { .. })),
    ("policy", |fault| matches!(fault, Fault::Segment { .. })),
    ("id", |fault| matches!(fault, Fault::Segment { .. })),
    ("start", |fault| matches!(fault, Fault::Segment { .. })),
    ("extent", |fault| matches!(fault, Fault::Segment { .. })),
    ("short", |fault| matches!(fault, Fault::Segment { .. })),
    ("unsealed", |fault| matches!(fault, Fault::Segment { .. })),
    ("position", |fault| matches!(fault, Fault::Poisoned { .. })),
    ("nothing", |fault| matches!(fault, Fault::Abandoned)),
    ("one descriptor", |fault| matches!(fault, Fault::Abandoned)),
    ("flood", |fault| matches!(fault, Fault::Abandoned)),
];

/// A segment is validated like the first offer, so a writer that announces an invalid segment harms
/// only its own stream. (RELIABILITY T2)
#[test]
fn t2_hostile_segment_spoils_only_its_own_stream() {
    let Some(other) = OtherUserProcess::start("lie") else { return };
    let honest: [FalseSegment; 1] = [("honest", |_| false)];
    for (lie, expected) in honest.iter().chain(&FALSE_SEGMENTS) {
        let mut input = receive_stream(&other).unwrap();
        let mut out = [0; 64];
        let mut read = || with_watchdog("a block of a hostile writer", || input.read(&mut out));
        assert_eq!(read(), Ok(5), "{lie}");
        let next = read();
        match next {
            Ok(count) => assert_eq!((*lie, count), ("honest", 6)),
            Err(fault) => assert!(expected(&fault), "{lie}: {fault:?}"),
        }
        other.send_text("next");
    }
    other.wait_for_success();
}

/// Shrinking a ring returns memory to the kernel (`Shmem` falls), and growing the ring allocates
/// memory again. The test resizes by reallocation and in place.
#[test]
fn f2_f3_shrunk_ring_releases_shared_memory() {
    const LARGE_RING_BYTES: usize = 512 << 20;
    // Tolerance for other programs' use of memory.
    const SLACK_BYTES_MAX: i64 = (LARGE_RING_BYTES / 4) as i64;
    for in_place in [false, true] {
        // Other programs also use and release shared memory; a disturbed attempt is repeated.
        let mut tried = resize_large_ring(in_place, LARGE_RING_BYTES, SLACK_BYTES_MAX);
        for _ in 0..4 {
            tried =
                tried.or_else(|_| resize_large_ring(in_place, LARGE_RING_BYTES, SLACK_BYTES_MAX));
        }
        assert_eq!(tried, Ok(()), "in place {in_place}");
    }
}

/// Creates a ring of `large` bytes, shrinks it, and grows it again. Fails if the shared memory of
/// the machine then differs from the expected amount by more than `slack` bytes. The error names
/// the step after which it differs.
fn resize_large_ring(in_place: bool, large: usize, slack: i64) -> Result<(), &'static str> {
    let before = shared_memory_bytes();
    let config = stream_config(1).capacity(large);
    let config = if in_place { config.in_place_capacity_max(large) } else { config };
    let (mut output, mut offers) = match stream(&config) {
        Ok(made) => made,
        Err(error) => {
            let _: Option<()> = need::report_skip(&format!("not enough memory: {error}"));
            return Ok(());
        }
    };
    let offer = offers.remove(0);
    let mut input = if in_place { offer.open_trusting().unwrap() } else { offer.open().unwrap() };
    if shared_memory_bytes() - before <= large as i64 - slack {
        return Err("creation");
    }
    output.write(b"small").unwrap();
    output.resize(1 << 20).unwrap();
    output.write(b"still small").unwrap();
    output.flush();
    assert_eq!(input.read(&mut [0; 5]), Ok(5));
    assert_eq!(input.read(&mut [0; 11]), Ok(11));
    input.release();
    output.flush();
    if shared_memory_bytes() - before >= slack {
        return Err("shrinking");
    }
    output.resize(large).unwrap();
    match shared_memory_bytes() - before > large as i64 - slack {
        true => Ok(()),
        false => Err("growing"),
    }
}

/// Returns the shared memory in use on this machine, in bytes.
fn shared_memory_bytes() -> i64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<i64>().unwrap() << 10
}

// ---- in the other process

#[test]
#[ignore = "run by another test, in a process of its own"]
fn run_other_process() {
    let Some(role) = common::child_role() else { return };
    match role.as_str() {
        "read" => {
            let (count, fault) = read_and_check_blocks(&mut receive_stream(stdin()).unwrap());
            report(&format!("{count} {fault:?}"));
        }
        "write" => {
            let (mut output, offers) = stream(&stream_config(1)).unwrap();
            send_offer(stdin(), &offers[0]);
            drop(offers);
            write_and_resize_watched(&mut output, 0..u64::MAX, &mut Random::new(3));
        }
        "take over and hand back" => {
            let mut output = take_over(stdin());
            write_and_resize_watched(&mut output, 5000..10_000, &mut Random::new(4));
            let handover = output.hand_over().unwrap();
            let descriptors = handover.descriptors();
            send(stdin(), &handover.message(), &descriptors);
        }
        "take nothing over" => report_and_wait(()),
        "take over and stop" => report_and_wait(take_over(stdin())),
        "lie" => announce_false_segments(),
        _ => panic!("no role {role}"),
    }
}

fn report_and_wait<T>(kept: T) {
    report("here");
    wait_to_be_killed(kept);
}

/// Acts as a hostile writer. Offers streams that contain one block and a switch, and announces a
/// next segment for each: a valid one for the first stream, and a false one for every other.
fn announce_false_segments() {
    for lie in ["honest"].iter().chain(FALSE_SEGMENTS.iter().map(|(lie, _)| lie)) {
        let (own_end, peer_end) = SocketDoorbell::pair().unwrap();
        let first = segment_files(
            &valid_geometry(),
            &[(b"first", RecordHeader::KIND_BLOCK, 0)],
            Some(1),
            Seals::READER,
            0,
        );
        let cursor = Memfd::create("cursor", PAGE_SIZE).unwrap();
        cursor.seal(Seals::SIZE).unwrap();
        let offered = [first[0].as_fd(), first[1].as_fd(), cursor.as_fd(), peer_end.as_fd()];
        announce_false_segment(lie, &own_end);
        send(stdin(), b"offer", &offered);
        drop(peer_end);
        // The doorbell of the honest stream stays open, so that its end is not a fault.
        let kept = (*lie == "honest").then_some(own_end);
        assert!(!receive(stdin()).0.is_empty());
        drop(kept);
    }
}

fn valid_geometry() -> RingGeometry {
    let capacity = 4096;
    RingGeometry { magic: RingGeometry::MAGIC, capacity, id: 1, readers: 1, ..Default::default() }
}

/// Announces a next segment. `lie` names the property of the segment to falsify; an unknown name
/// falsifies nothing.
fn announce_false_segment(lie: &str, doorbell: &SocketDoorbell) {
    // The start follows the header, the five bytes with padding, and the switch.
    let start = 16 + 16 + 16;
    let mut shape = RingGeometry { segment: 1, start, ..valid_geometry() };
    let (mut seals, mut missing) = (Seals::READER, 0);
    match lie {
        "magic" => shape.magic ^= 1,
        "capacity" => shape.capacity = 4100,
        "policy" => shape.policy = 2,
        "id" => shape.id = 2,
        "start" => shape.start = 64,
        "extent" => shape.extent = 8192,
        "short" => missing = 4096,
        "unsealed" => seals = Seals::SIZE,
        _ => {}
    }
    let files =
        segment_files(&shape, &[(b"second", RecordHeader::KIND_BLOCK, 1)], None, seals, missing);
    if lie == "position" {
        // The ring is sealed, but its page holds no published position.
        let empty = segment_files(&RingGeometry { start: 0, ..shape }, &[], None, Seals::READER, 0);
        let note = [&[2][..], &1u64.to_le_bytes()].concat();
        doorbell.send(&note, &[files[0].as_fd(), empty[1].as_fd()]);
        return;
    }
    let note = |number: u64| [&[2][..], &number.to_le_bytes()].concat();
    let all: [BorrowedFd<'_>; 2] = [files[0].as_fd(), files[1].as_fd()];
    match lie {
        "nothing" => ignore_send_result(doorbell.send(&note(1), &[])),
        "one descriptor" => ignore_send_result(doorbell.send(&note(1), &all[..1])),
        "flood" => (0..10_000).for_each(|n| ignore_send_result(doorbell.send(&note(n + 2), &all))),
        _ => ignore_send_result(doorbell.send(&note(1), &all)),
    }
}

/// Ignores the result of a send, because the tests check only the receiver.
const fn ignore_send_result(_: sys::doorbell::SendResult) {}

/// Creates the files of a segment that contains these records.
fn segment_files(
    shape: &RingGeometry,
    records: &[(&[u8], u32, u64)],
    switch: Option<u64>,
    seals: Seals,
    missing: usize,
) -> [Memfd; 2] {
    let plan = Memfd::create("geometry", PAGE_SIZE).unwrap();
    duplicate_as_file(&plan).write_all_at(shape.as_bytes(), 0).unwrap();
    plan.seal(Seals::FROZEN).unwrap();
    let bytes = usize::try_from(shape.capacity.next_power_of_two()).unwrap();
    let ring = Memfd::create("ring", PAGE_SIZE + bytes - missing).unwrap();
    let mut at = shape.start;
    let put = |at: u64, bytes: &[u8]| {
        let place = PAGE_SIZE as u64 + at % shape.capacity.next_power_of_two();
        let _ = duplicate_as_file(&ring).write_all_at(bytes, place);
    };
    for (bytes, kind, sequence) in records {
        let length = u32::try_from(bytes.len()).unwrap();
        put(at, RecordHeader { length, kind: *kind, sequence: *sequence }.as_bytes());
        put(at + 16, bytes);
        at += RecordHeader::span(length);
    }
    if let Some(sequence) = switch {
        put(at, RecordHeader { length: 0, kind: RecordHeader::KIND_SWITCH, sequence }.as_bytes());
        at += 16;
    }
    const { assert!(writer::COMMITTED_POSITION == LINE_WORDS) };
    duplicate_as_file(&ring)
        .write_all_at(&at.to_le_bytes(), writer::COMMITTED_POSITION as u64 * 8)
        .unwrap();
    ring.seal(seals).unwrap();
    [plan, ring]
}

fn duplicate_as_file(memfd: &Memfd) -> File {
    File::from(memfd.as_fd().try_clone_to_owned().unwrap())
}
