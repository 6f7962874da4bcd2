//! Tests of a ring whose reader runs as another user: delivery, write protection, and killed or
//! hostile readers. (CONTRACT 24; RELIABILITY T1 to T3, T7, T8, T10)

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use abi::DbufId;
use common::{OtherUserProcess, receive, report, send, wait_to_be_killed, wait_until};
use std::fs::{File, OpenOptions};
use std::io::{Write as _, stdin};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::FileExt as _;
use streamline_buffer::dbuf::{BlockConfig, BlockWriter, ForeignBlockReader};
use streamline_buffer::share::{self, RingOffer};
use streamline_buffer::{Fault, OverflowPolicy};
use sys::memory::{Memfd, Seals};
use testkit::Random;

const BLOCK_LENGTH: usize = 700;

// ---- in this process: the writer

/// Creates a ring with one reader. Starts the process that acts as the reader, and sends it the
/// offer. Returns `None`, after reporting a skip, if this machine does not allow that.
fn start_with_offer(role: &str, policy: OverflowPolicy) -> Option<(BlockWriter, OtherUserProcess)> {
    let (writer, offers) = create_ring(policy, 1);
    Some((writer, offer_to_new_process(role, &offers[0])?))
}

fn create_ring(policy: OverflowPolicy, readers: usize) -> (BlockWriter, Vec<RingOffer>) {
    let id = DbufId::new(1).unwrap();
    share::block_ring(&BlockConfig { id, capacity: 16384, policy, readers }).unwrap()
}

/// Starts a process and sends it an offer. Returns `None`, after reporting a skip, if this machine
/// does not allow that.
fn offer_to_new_process(role: &str, offer: &RingOffer) -> Option<OtherUserProcess> {
    let other = OtherUserProcess::start(role)?;
    send(&other, b"offer", &offer.descriptors());
    Some(other)
}

fn put_block(writer: &mut BlockWriter, number: u64) -> bool {
    writer.write(&numbered_block(number)).unwrap()
}

fn numbered_block(number: u64) -> [u8; BLOCK_LENGTH] {
    let mut bytes = [number.wrapping_mul(37) as u8; BLOCK_LENGTH];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[test]
fn p4_reader_of_another_user_cannot_write_the_ring() {
    let Some((mut writer, other)) = start_with_offer("attack", OverflowPolicy::Overwrite) else {
        return;
    };
    for number in 0..5 {
        put_block(&mut writer, number);
    }
    writer.publish();
    let report = other.receive_lines();
    println!("{report:#?}");
    other.wait_for_success();
    let expected: Vec<_> =
        CHANGE_ATTEMPTS.iter().map(|(name, _)| format!("refused {name}")).collect();
    assert_eq!(report[0], format!("uid {}", sys::process::OVERFLOW_ID));
    assert_eq!(report[1], "read 5 blocks");
    assert_eq!(report[2..], expected, "every attempt, by name");
    assert_eq!(writer.reader_counts(0).unwrap().blocks, 5, "while it could read all the time");
}

#[test]
fn t7_lossy_ring_between_processes_counts_exactly() {
    let Some((mut writer, other)) = start_with_offer("drain", OverflowPolicy::Overwrite) else {
        return;
    };
    assert_eq!(other.receive_line().as_deref(), Some("ready"));
    const BLOCK_COUNT: u64 = 300_000;
    for number in 0..BLOCK_COUNT {
        put_block(&mut writer, number);
        if number % 16 == 0 {
            writer.publish();
        }
    }
    drop(writer);
    let report = other.receive_lines();
    other.wait_for_success();
    let numbers: Vec<u64> = report[0].split(' ').map(|word| word.parse().unwrap()).collect();
    let [received, lost, torn, produced] = numbers[..] else { panic!("{report:?}") };
    println!("produced {produced}, got {received}, lost {lost}, torn {torn}");
    assert_eq!((received + lost, torn, produced), (BLOCK_COUNT, 0, BLOCK_COUNT));
    assert!(received > 0);
}

#[test]
fn blocking_ring_between_processes_loses_nothing() {
    let Some((mut writer, other)) = start_with_offer("drain", OverflowPolicy::Block) else {
        return;
    };
    const BLOCK_COUNT: u64 = 20_000;
    for number in 0..BLOCK_COUNT {
        wait_until("room for a block", || {
            let is_written = put_block(&mut writer, number);
            writer.publish();
            is_written
        });
    }
    drop(writer);
    let report = other.receive_lines();
    other.wait_for_success();
    assert_eq!(report, ["ready".to_owned(), format!("{BLOCK_COUNT} 0 0 {BLOCK_COUNT}")]);
}

/// A reader that stores arbitrary values into its own page is evicted and counted once. The other
/// reader receives every block.
#[test]
fn t3_lying_reader_is_evicted_and_the_other_continues() {
    let (mut writer, mut offers) = create_ring(OverflowPolicy::Block, 2);
    let honest = offers.remove(1);
    let Some(mut other) = offer_to_new_process("lie", &offers[0]) else { return };
    let mut honest = honest.open_block_reader().unwrap();
    assert_eq!(other.receive_line().as_deref(), Some("lying"));
    let (mut number, mut out) = (0, [0; BLOCK_LENGTH]);
    while number < 20_000 {
        match writer.write(&numbered_block(number)) {
            Ok(true) => number += 1,
            Ok(false) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
        writer.publish();
        while honest.read(&mut out).unwrap().is_some() {}
    }
    assert_eq!(writer.evicted_readers(), 1, "counted once");
    assert_eq!(honest.counts().blocks, number);
    assert_eq!(writer.counts().resident_blocks(&honest.counts()), Some(0));
    other.kill();
}

/// A reader is killed while the writer waits for it (T10). The reader's socket hangs up. Once the
/// writer has disconnected this last reader, writes fail with [`Fault::Abandoned`].
#[test]
fn t10_killed_reader_is_noticed_and_disconnected() {
    let Some((mut writer, mut other)) = start_with_offer("stall", OverflowPolicy::Block) else {
        return;
    };
    assert_eq!(other.receive_line().as_deref(), Some("stalling"));
    let mut number = 0;
    while put_block(&mut writer, number) {
        writer.publish();
        number += 1;
    }
    other.kill();
    assert_eq!(other.receive_line(), None, "hung up");
    assert!(!put_block(&mut writer, number));
    writer.disconnect(0);
    assert_eq!(writer.write(&numbered_block(number)), Err(Fault::Abandoned));
}

// ---- in the other process

#[test]
#[ignore = "run by another test, in a process of its own"]
fn run_other_process() {
    let Some(role) = common::child_role() else { return };
    let offer = RingOffer::from_descriptors(receive(stdin()).1).unwrap();
    match role.as_str() {
        "attack" => try_all_file_changes(offer),
        "drain" => drain_blocks(offer.open_block_reader().unwrap()),
        "lie" => store_false_cursors(&offer),
        "stall" => hold_without_reading(offer),
        _ => panic!("no role {role}"),
    }
}

fn drain_blocks(mut visitor: ForeignBlockReader) {
    report("ready");
    let (mut received, mut torn, mut next, mut out) = (0u64, 0u64, 0, [0; BLOCK_LENGTH]);
    while !visitor.is_finished().unwrap() {
        if visitor.read(&mut out).unwrap() != Some(BLOCK_LENGTH) {
            std::thread::yield_now();
            continue;
        }
        let number = u64::from_le_bytes(out[..8].try_into().unwrap());
        torn += u64::from(out != numbered_block(number) || number < next);
        next = number + 1;
        received += 1;
    }
    let (lost, put) = (visitor.counts().lost, visitor.writer_counts().blocks);
    report(&format!("{received} {lost} {torn} {put}"));
}

fn store_false_cursors(offer: &RingOffer) {
    let page = File::from(offer.descriptors()[2].try_clone_to_owned().unwrap());
    let mut random = Random::new(7);
    report("lying");
    loop {
        // Word 0 is the cursor. Word 16, the state, is not changed, because leaving is legitimate.
        let values =
            [random.next_u64(), random.below(1 << 20), u64::MAX - random.below(9), 1 << 63];
        page.write_all_at(&random.pick(&values).to_le_bytes(), 0).unwrap();
    }
}

fn hold_without_reading(offer: RingOffer) {
    let visitor = offer.open_block_reader().unwrap();
    report("stalling");
    wait_to_be_killed(visitor);
}

/// A function that tries to change a file through its descriptor, and returns true if it succeeds.
type ChangeAttempt = fn(&File) -> bool;

/// All known operations with which the holder of a descriptor may try to change the file
/// (RELIABILITY facts 1 to 4).
const CHANGE_ATTEMPTS: [(&str, ChangeAttempt); 21] = [
    ("mmap for writing", |file| duplicate_memfd(file).map().is_ok()),
    ("mprotect for writing", |file| {
        duplicate_memfd(file).map_read().unwrap().into_writable().is_ok()
    }),
    ("write", |mut file| file.write(b"x").is_ok()),
    ("pwrite", |file| file.write_at(b"x", 4096).is_ok()),
    ("pwrite behind the end", |file| file.write_at(b"x", 1 << 20).is_ok()),
    ("ftruncate to nothing", |file| file.set_len(0).is_ok()),
    ("ftruncate to less", |file| file.set_len(100).is_ok()),
    ("ftruncate to more", |file| file.set_len(1 << 20).is_ok()),
    ("fallocate punch hole", |file| try_fallocate(file, Flags::PUNCH_HOLE | Flags::KEEP_SIZE)),
    ("fallocate zero range", |file| try_fallocate(file, Flags::ZERO_RANGE)),
    ("fallocate collapse range", |file| try_fallocate(file, Flags::COLLAPSE_RANGE)),
    ("fallocate to more", |file| rustix::fs::fallocate(file, Flags::empty(), 0, 1 << 20).is_ok()),
    ("copy_file_range", |file| {
        let from = File::open("/proc/self/exe").or_else(|_| File::open("/etc/passwd")).unwrap();
        rustix::fs::copy_file_range(from, None, file, Some(&mut 0), 16).is_ok()
    }),
    ("sendfile", |file| {
        let from = File::open("/etc/passwd").unwrap();
        rustix::fs::sendfile(file, from, Some(&mut 0), 16).is_ok()
    }),
    ("splice", |file| {
        let (read, write) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&write, b"x").unwrap();
        let flags = rustix::pipe::SpliceFlags::empty();
        rustix::pipe::splice(read, None, file, Some(&mut 0), 1, flags).is_ok()
    }),
    ("fchmod", |file| rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(0o777)).is_ok()),
    ("reopen and mmap", |file| {
        reopen(file).is_some_and(|file| duplicate_memfd(&file).map().is_ok())
    }),
    ("reopen and write", |file| reopen(file).is_some_and(|mut file| file.write(b"x").is_ok())),
    ("reopen and ftruncate", |file| reopen(file).is_some_and(|file| file.set_len(0).is_ok())),
    ("reopen with truncation", |file| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let _ = OpenOptions::new().write(true).truncate(true).open(path);
        file.metadata().unwrap().len() == 0
    }),
    ("add a seal", |file| duplicate_memfd(file).seal(Seals::WRITE).is_ok()),
];

use rustix::fs::FallocateFlags as Flags;

fn duplicate_memfd(file: &File) -> Memfd {
    Memfd::from_fd(file.as_fd().try_clone_to_owned().unwrap()).unwrap()
}

fn try_fallocate(file: &File, flags: Flags) -> bool {
    rustix::fs::fallocate(file, flags, 4096, 4096).is_ok()
}

fn reopen(file: &File) -> Option<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(true).open(path).ok()
}

fn try_all_file_changes(offer: RingOffer) {
    report(&format!("uid {}", sys::process::effective_ids().0));
    let [geometry, ring, _] =
        offer.descriptors().map(|fd| File::from(fd.try_clone_to_owned().unwrap()));
    let mut visitor = offer.open_block_reader().unwrap();
    let (mut blocks, mut out) = (0, [0; BLOCK_LENGTH]);
    while blocks < 5 {
        blocks += u64::from(visitor.read(&mut out).unwrap().is_some());
    }
    report(&format!("read {blocks} blocks"));
    for (name, attempt) in CHANGE_ATTEMPTS {
        let succeeded = [&geometry, &ring].map(attempt);
        let both = if succeeded == [false; 2] { "refused" } else { "WORKED" };
        report(&format!("{both} {name}"));
    }
}
