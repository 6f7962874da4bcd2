//! Streams between processes of different users: what comes through, who is killed when, and what a
//! hostile end can do. (RELIABILITY T3, T8, T10, T15)

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use abi::DbufId;
use common::{Other, block, offer, open, read, run, say, within, write};
use std::fs::File;
use std::io::stdin;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;
use streamline_buffer::stream::{Config, Input, Offer, stream};
use testkit::Random;

fn config(readers: usize) -> Config {
    Config::new(DbufId::new(1).unwrap()).capacity(16384).readers(readers)
}

#[test]
fn everything_comes_through_to_another_user() {
    let Some(other) = Other::start("read") else { return };
    let (mut output, offers) = stream(&config(1)).unwrap();
    offer(&other, &offers[0]);
    drop(offers);
    write(&mut output, 0..50_000).unwrap();
    drop(output);
    assert_eq!(other.line().as_deref(), Some("50000 None"));
    other.succeeds();
}

/// One ring serves two processes for as long as they want: it is mapped once, its control words for
/// reading by who only reads them, and nothing is mapped for what passes through.
#[test]
fn d1_d12_a_ring_is_mapped_once_and_only_ones_own_page_for_writing() {
    let Some(other) = Other::start("tell mappings") else { return };
    let (mut output, offers) = stream(&config(1)).unwrap();
    offer(&other, &offers[0]);
    drop(offers);
    let before = other.line().unwrap();
    let kinds: Vec<_> = before.lines().map(|line| line.split(' ').skip(1).collect()).collect();
    let expected =
        [vec!["r--s", "/memfd:streamline-ring"], vec!["rw-s", "/memfd:streamline-cursor"]];
    assert!(expected.iter().all(|kind| kinds.contains(kind)) && kinds.len() == 2, "{before}");
    write(&mut output, 0..20_000).unwrap();
    assert!(output.count().bytes > 400 * 16384, "hundreds of laps");
    drop(output);
    assert_eq!(other.line().unwrap(), before);
    other.succeeds();
}

#[test]
fn a_reader_that_is_killed_anywhere_holds_up_nobody() {
    let mut random = Random::replayable();
    for _ in 0..6 {
        let Some(mut other) = Other::start("read and tell") else { return };
        let (mut output, mut offers) = stream(&config(2)).unwrap();
        offer(&other, &offers[0]);
        let mut honest = offers.remove(1).open().unwrap();
        drop(offers);
        let reading = run(move || read(&mut honest));
        let until = random.below(18);
        let killing = run(move || {
            // It tells each thousand blocks how far it is.
            for _ in 0..until {
                other.line();
            }
            other.stop();
        });
        write(&mut output, 0..20_000).unwrap();
        drop(output);
        assert_eq!(reading.ends(), (20_000, None), "the other reader has everything");
        killing.ends();
    }
}

#[test]
fn what_a_writer_has_shown_before_it_was_killed_is_all_there() {
    common::all_that_was_shown_is_there(20_000);
}

/// A reader that writes what it likes into the only page that it can write, and rings without end:
/// it may be shut out, and the other one goes on.
#[test]
fn a_hostile_reader_harms_itself() {
    let Some(mut other) = Other::start("attack") else { return };
    let (mut output, mut offers) = stream(&config(2)).unwrap();
    offer(&other, &offers[0]);
    let mut honest = offers.remove(1).open().unwrap();
    drop(offers);
    assert_eq!(other.line().as_deref(), Some("attacking"));
    let reading = run(move || read(&mut honest));
    let mut room = Vec::new();
    for number in 0..30_000 {
        block(number, &mut room);
        assert_eq!(within("the honest reader", || output.write(&room)), Ok(true));
    }
    assert!(output.evicted() <= 1, "counted once");
    other.kill();
    drop(output);
    assert_eq!(reading.ends(), (30_000, None));
}

// ---- there

#[test]
#[ignore = "what the other process runs"]
fn the_other_process() {
    let Some(role) = common::role() else { return };
    match role.as_str() {
        "read" => {
            let (count, fault) = read(&mut open(stdin()).unwrap());
            say(&format!("{count} {fault:?}"));
        }
        "tell mappings" => {
            let mut input = open(stdin()).unwrap();
            say(&mappings());
            assert_eq!(read(&mut input), (20_000, None));
            say(&mappings());
        }
        "read and tell" => read_and_tell(open(stdin()).unwrap()),
        "write" => write_on(),
        "attack" => attack(),
        _ => panic!("no role {role}"),
    }
}

/// Returns the mappings of rings: address, protection, name.
fn mappings() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("/memfd:streamline"));
    let parts = ours.map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        format!("{} {} {}", words[0], words[1], words[5])
    });
    parts.collect::<Vec<_>>().join("\n")
}

fn read_and_tell(mut input: Input) {
    let mut next = 0;
    let mut out = [0; 333];
    while input.read(&mut out).unwrap() > 0 {
        if input.count().blocks >= next {
            say("another thousand");
            next += 1000;
        }
    }
}

fn write_on() {
    let (mut output, offers) = stream(&config(1)).unwrap();
    offer(stdin(), &offers[0]);
    drop(offers);
    write(&mut output, 0..u64::MAX).unwrap();
}

fn attack() {
    let (_, descriptors) = common::receive(stdin());
    let offer = Offer::from_descriptors(descriptors).unwrap();
    let [_, _, page, doorbell] = offer.descriptors();
    let page = File::from(page.try_clone_to_owned().unwrap());
    let mut random = Random::new(11);
    say("attacking");
    loop {
        // The turns of a sleeper and where it wants to be woken; sometimes the cursor.
        let word = *random.pick(&[48, 49, 48, 49, 48, 49, 0]);
        let values = [random.next(), random.below(1 << 16), random.next() | 1];
        page.write_all_at(&random.pick(&values).to_le_bytes(), word * 8).unwrap();
        ring(doorbell);
    }
}

fn ring(doorbell: BorrowedFd<'_>) {
    use rustix::net::{SendFlags, send};
    let _ = send(doorbell, &[0; 100], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}
