//! Two processes and a stream whose size changes all the time, killed over and over: at each
//! numbered step of what a party does, and anywhere in between. (RELIABILITY, kill -9)
//!
//! After each kill the survivor has every byte that was shown, or goes on for who is left; and
//! after all of them nothing is left behind: no descriptor, no mapping, no memory.
//! `STREAMLINE_SOAK` says for how many seconds; without it, a few.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use abi::DbufId;
use common::{Other, block, offer, read, receive, run, write};
use std::io::stdin;
use std::time::{Duration, Instant};
use streamline_buffer::Fault;
use streamline_buffer::stream::{Config, Handover, Offer, Output, Stay, stream};
use testkit::{Random, need};

/// Number of steps that the other process repeats in this order; it ends itself before the step of
/// the number that it was given.
const STEPS: usize = 8;
fn config(readers: usize) -> Config {
    Config::new(DbufId::new(1).unwrap()).capacity(8192).readers(readers)
}

fn resize(output: &mut Output, size: usize) {
    match output.resize(size) {
        Ok(()) | Err(Stay::Changing | Stay::Deaf(_)) => {}
        Err(stay) => panic!("{stay}"),
    }
}

fn start(role: &str, step: usize) -> Option<Other> {
    Other::start(&format!("{role} {step}"))
}

/// The other process writes and dies.
fn writer_dies(step: usize, random: &mut Random) -> Option<()> {
    let mut other = start("write", step)?;
    let (message, descriptors) = receive(&other);
    if message.is_empty() {
        // It died before it had anything to offer.
        other.dies();
        return Some(());
    }
    let mut input = Offer::from_descriptors(descriptors).unwrap().open().unwrap();
    let killing = (step == STEPS).then(|| {
        let delay = Duration::from_micros(random.below(4000));
        run(move || {
            std::thread::sleep(delay);
            other.kill();
        })
    });
    let (blocks, fault) = read(&mut input);
    assert_eq!(fault, Some(Fault::Abandoned), "at step {step} after {blocks}");
    let (written, taken) = (input.written(), input.count());
    assert_eq!(written.resident(&taken), Some(0), "all that was shown");
    if let Some(killing) = killing {
        killing.ends();
    }
    Some(())
}

/// The other process reads and dies; another reader, here, misses nothing.
fn reader_dies(step: usize, random: &mut Random) -> Option<()> {
    let mut other = start("read", step)?;
    let (mut output, mut offers) = stream(&config(2)).unwrap();
    let mut honest = offers.remove(1).open().unwrap();
    // Whoever has died already gets nothing.
    let _ = sys::descriptor::send(&other, b"offer", &offers[0].descriptors());
    drop(offers);
    let reading = run(move || read(&mut honest));
    let delay = (step == STEPS).then(|| Duration::from_micros(random.below(4000)));
    let killing = run(move || match delay {
        Some(delay) => {
            std::thread::sleep(delay);
            other.stop();
        }
        None => other.dies(),
    });
    for part in 0..40 {
        write(&mut output, part * 50..(part + 1) * 50).unwrap();
        resize(&mut output, 4096 << random.below(6));
    }
    drop(output);
    killing.ends();
    assert_eq!(reading.ends(), (2000, None), "the other reader has everything");
    Some(())
}

/// The other process takes the writer over and dies.
fn successor_dies(step: usize, random: &mut Random) -> Option<()> {
    let mut other = start("take over", step)?;
    let (mut output, mut offers) = stream(&config(1)).unwrap();
    let mut input = offers.remove(0).open().unwrap();
    let reading = run(move || {
        let end = read(&mut input);
        (end, input.written().resident(&input.count()))
    });
    write(&mut output, 0..100).unwrap();
    let handover = output.hand_over().unwrap();
    // Whoever has died already takes nothing over.
    let _ = sys::descriptor::send(&other, &handover.message(), &handover.descriptors());
    drop(handover);
    if step == STEPS {
        std::thread::sleep(Duration::from_micros(random.below(4000)));
        other.kill();
    } else {
        other.dies();
    }
    let ((blocks, fault), resident) = reading.ends();
    assert_eq!((fault, resident), (Some(Fault::Abandoned), Some(0)), "step {step}: {blocks}");
    assert!(blocks >= 100);
    Some(())
}

#[test]
fn nothing_is_left_of_who_is_killed_at_any_step_and_nobody_else_notices() {
    let name = "nothing_is_left_of_who_is_killed_at_any_step_and_nobody_else_notices";
    if !testkit::alone(name) {
        return;
    }
    let Some(()) = need::root() else { return };
    let seconds = std::env::var("STREAMLINE_SOAK").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(3));
    let (descriptors, mut random) = (descriptors(), Random::replayable());
    let (mut kills, mut steps) = (0u64, 0);
    loop {
        // Each step once before anything is left out, then as long as there is time.
        let step = if steps <= STEPS { steps } else { random.below(STEPS as u64 + 1) as usize };
        for party in [writer_dies, reader_dies, successor_dies] {
            let Some(()) = party(step, &mut random) else { return };
            kills += 1;
        }
        steps += 1;
        if steps > STEPS && Instant::now() >= until {
            break;
        }
    }
    println!("{kills} kills");
    assert_eq!(self::descriptors(), descriptors, "no descriptor");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("streamline-"), "no mapping: {maps}");
}

/// Returns the number of open descriptors.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

// ---- there

#[test]
#[ignore = "what the other process runs"]
fn the_other_process() {
    let Some(role) = common::role() else { return };
    let (role, last) = role.rsplit_once(' ').unwrap();
    let last: usize = last.parse().unwrap();
    match role {
        "write" => {
            let (output, offers) = {
                die_at(0, last);
                let (output, offers) = stream(&config(1)).unwrap();
                die_at(1, last);
                offer(stdin(), &offers[0]);
                (output, offers)
            };
            drop(offers);
            write_on(output, 0, last);
        }
        "read" => read_on(last),
        "take over" => {
            die_at(0, last);
            let (message, files) = receive(stdin());
            die_at(1, last);
            let handover = Handover::from_parts(&message, files).unwrap();
            write_on(handover.open().unwrap(), 100, last);
        }
        _ => panic!("no role {role}"),
    }
}

/// The end, as kill -9 makes it.
fn die_at(step: usize, last: usize) {
    if step == last {
        let itself = rustix::process::getpid();
        rustix::process::kill_process(itself, rustix::process::Signal::KILL).unwrap();
        loop {
            std::thread::park();
        }
    }
}

fn write_on(mut output: Output, first: u64, last: usize) {
    let (mut random, mut next) = (Random::new(last as u64 + 1), first);
    for turn in 0.. {
        let dies = |step: usize| {
            if turn == 3 {
                die_at(step, last);
            }
        };
        dies(2);
        write(&mut output, next..next + 20).unwrap();
        dies(3);
        resize(&mut output, 4096 << random.below(6));
        dies(4);
        let mut room = Vec::new();
        block(next + 20, &mut room);
        output.write(&room).unwrap();
        // Written and not shown, and the size changes, which shows it.
        dies(5);
        resize(&mut output, 4096 << random.below(6));
        dies(6);
        output.flush();
        dies(7);
        next += 21;
    }
}

fn read_on(last: usize) {
    die_at(0, last);
    let (_, descriptors) = receive(stdin());
    die_at(1, last);
    let offer = Offer::from_descriptors(descriptors).unwrap();
    die_at(2, last);
    let mut input = offer.open().unwrap();
    die_at(3, last);
    let mut out = [0; 300];
    for turn in 0.. {
        if input.read(&mut out).unwrap() == 0 {
            return;
        }
        match turn {
            10 => die_at(4, last),
            50 => die_at(5, last),
            200 => {
                input.give_back();
                die_at(6, last);
            }
            400 => die_at(7, last),
            _ => {}
        }
    }
}
