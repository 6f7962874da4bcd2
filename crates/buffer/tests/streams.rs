//! Tests of streams between processes of different users: delivery, killed processes, and hostile
//! readers. (RELIABILITY T3, T8, T10, T15)

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use abi::DbufId;
use common::{
    OtherUserProcess, fill_block, read_and_check_blocks, receive_stream, report, send_offer,
    spawn_test_thread, with_watchdog, write,
};
use std::fs::File;
use std::io::stdin;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;
use streamline_buffer::stream::{Config, Input, Offer, stream};
use testkit::Random;

fn stream_config(readers: usize) -> Config {
    Config::new(DbufId::new(1).unwrap()).capacity(16384).readers(readers)
}

#[test]
fn another_user_receives_every_byte() {
    let Some(other) = OtherUserProcess::start("read") else { return };
    let (mut output, offers) = stream(&stream_config(1)).unwrap();
    send_offer(&other, &offers[0]);
    drop(offers);
    write(&mut output, 0..50_000).unwrap();
    drop(output);
    assert_eq!(other.receive_line().as_deref(), Some("50000 None"));
    other.wait_for_success();
}

/// A ring is mapped once for its whole lifetime, read-only except for the reader's own page, and
/// nothing is mapped per block.
#[test]
fn d1_d12_ring_is_mapped_once_and_read_only() {
    let Some(other) = OtherUserProcess::start("report mappings") else { return };
    let (mut output, offers) = stream(&stream_config(1)).unwrap();
    send_offer(&other, &offers[0]);
    drop(offers);
    let before = other.receive_line().unwrap();
    let kinds: Vec<_> = before.lines().map(|line| line.split(' ').skip(1).collect()).collect();
    let expected =
        [vec!["r--s", "/memfd:streamline-ring"], vec!["rw-s", "/memfd:streamline-cursor"]];
    assert!(expected.iter().all(|kind| kinds.contains(kind)) && kinds.len() == 2, "{before}");
    write(&mut output, 0..20_000).unwrap();
    assert!(output.counts().bytes > 400 * 16384, "hundreds of laps");
    drop(output);
    assert_eq!(other.receive_line().unwrap(), before);
    other.wait_for_success();
}

#[test]
fn t10_killed_reader_stalls_no_other_party() {
    let mut random = Random::with_replayable_seed();
    for _ in 0..6 {
        let Some(mut other) = OtherUserProcess::start("read and report") else { return };
        let (mut output, mut offers) = stream(&stream_config(2)).unwrap();
        send_offer(&other, &offers[0]);
        let mut honest = offers.remove(1).open().unwrap();
        drop(offers);
        let reading = spawn_test_thread(move || read_and_check_blocks(&mut honest));
        let until = random.below(18);
        let killing = spawn_test_thread(move || {
            // The reader reports every thousand blocks.
            for _ in 0..until {
                other.receive_line();
            }
            other.stop();
        });
        write(&mut output, 0..20_000).unwrap();
        drop(output);
        assert_eq!(reading.join(), (20_000, None), "the other reader has everything");
        killing.join();
    }
}

#[test]
fn t10_published_blocks_survive_a_killed_writer() {
    common::check_published_blocks_survive_kill(20_000);
}

/// A reader stores arbitrary values into its own page and notifies endlessly. It may be
/// disconnected, and the other reader continues.
#[test]
fn t8_hostile_reader_harms_only_itself() {
    let Some(mut other) = OtherUserProcess::start("attack") else { return };
    let (mut output, mut offers) = stream(&stream_config(2)).unwrap();
    send_offer(&other, &offers[0]);
    let mut honest = offers.remove(1).open().unwrap();
    drop(offers);
    assert_eq!(other.receive_line().as_deref(), Some("attacking"));
    let reading = spawn_test_thread(move || read_and_check_blocks(&mut honest));
    let mut room = Vec::new();
    for number in 0..30_000 {
        fill_block(number, &mut room);
        assert_eq!(with_watchdog("the honest reader", || output.write(&room)), Ok(true));
    }
    assert!(output.evicted_readers() <= 1, "counted once");
    other.kill();
    drop(output);
    assert_eq!(reading.join(), (30_000, None));
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
        "report mappings" => {
            let mut input = receive_stream(stdin()).unwrap();
            report(&ring_mappings());
            assert_eq!(read_and_check_blocks(&mut input), (20_000, None));
            report(&ring_mappings());
        }
        "read and report" => read_and_report(receive_stream(stdin()).unwrap()),
        "write" => write_endlessly(),
        "attack" => store_and_notify_endlessly(),
        _ => panic!("no role {role}"),
    }
}

/// Returns the ring mappings of this process: address, protection and name of each.
fn ring_mappings() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("/memfd:streamline"));
    let parts = ours.map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        format!("{} {} {}", words[0], words[1], words[5])
    });
    parts.collect::<Vec<_>>().join("\n")
}

fn read_and_report(mut input: Input) {
    let mut next = 0;
    let mut out = [0; 333];
    while input.read(&mut out).unwrap() > 0 {
        if input.counts().blocks >= next {
            report("another thousand");
            next += 1000;
        }
    }
}

fn write_endlessly() {
    let (mut output, offers) = stream(&stream_config(1)).unwrap();
    send_offer(stdin(), &offers[0]);
    drop(offers);
    write(&mut output, 0..u64::MAX).unwrap();
}

fn store_and_notify_endlessly() {
    let (_, descriptors) = common::receive(stdin());
    let offer = Offer::from_descriptors(descriptors).unwrap();
    let [_, _, page, doorbell] = offer.descriptors();
    let page = File::from(page.try_clone_to_owned().unwrap());
    let mut random = Random::new(11);
    report("attacking");
    loop {
        // Sleep count and wake-up threshold; sometimes the cursor.
        let word = *random.pick(&[48, 49, 48, 49, 48, 49, 0]);
        let values = [random.next_u64(), random.below(1 << 16), random.next_u64() | 1];
        page.write_all_at(&random.pick(&values).to_le_bytes(), word * 8).unwrap();
        notify(doorbell);
    }
}

fn notify(doorbell: BorrowedFd<'_>) {
    use rustix::net::{SendFlags, send};
    let _ = send(doorbell, &[0; 100], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}
