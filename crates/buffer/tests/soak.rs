//! Soak test of two processes and a stream that changes size constantly. One process is killed
//! repeatedly, at each numbered step of its work and at random times. (RELIABILITY, kill -9)
//!
//! After each kill, a surviving reader has every published byte, and a surviving writer continues
//! for its remaining reader. After all kills, no descriptor, mapping or memory is left over.
//! `STREAMLINE_SOAK` sets the duration in seconds; the default is a few seconds.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use abi::DbufId;
use common::{
    OtherUserProcess, fill_block, read_and_check_blocks, receive, send_offer, spawn_test_thread,
    write,
};
use std::io::stdin;
use std::time::{Duration, Instant};
use streamline_buffer::Fault;
use streamline_buffer::stream::{ChangeError, Config, Handover, Offer, Output, stream};
use testkit::{Random, need};

/// Number of steps in the work that the other process repeats. Its role contains the number of the
/// step before which it kills itself, or `STEPS` if the test kills it at a random time.
const STEPS: usize = 8;
fn stream_config(readers: usize) -> Config {
    Config::new(DbufId::new(1).unwrap()).capacity(8192).readers(readers)
}

fn resize_ring(output: &mut Output, size: usize) {
    match output.resize(size) {
        Ok(()) | Err(ChangeError::InProgress | ChangeError::Unreachable(_)) => {}
        Err(stay) => panic!("{stay}"),
    }
}

fn start_at_step(role: &str, step: usize) -> Option<OtherUserProcess> {
    OtherUserProcess::start(&format!("{role} {step}"))
}

/// Runs one round of the soak test, in which the other process writes and is killed. Returns `None`
/// if the other process cannot be started.
fn run_writer_kill(step: usize, random: &mut Random) -> Option<()> {
    let mut other = start_at_step("write", step)?;
    let (message, descriptors) = receive(&other);
    if message.is_empty() {
        // The other process was killed before it had sent an offer.
        other.wait_until_killed();
        return Some(());
    }
    let mut input = Offer::from_descriptors(descriptors).unwrap().open().unwrap();
    let killing = (step == STEPS).then(|| {
        let delay = Duration::from_micros(random.below(4000));
        spawn_test_thread(move || {
            std::thread::sleep(delay);
            other.kill();
        })
    });
    let (blocks, fault) = read_and_check_blocks(&mut input);
    assert_eq!(fault, Some(Fault::Abandoned), "at step {step} after {blocks}");
    let (written, taken) = (input.writer_counts(), input.counts());
    assert_eq!(written.resident_blocks(&taken), Some(0), "all published blocks");
    if let Some(killing) = killing {
        killing.join();
    }
    Some(())
}

/// Runs one round of the soak test, in which the other process reads and is killed. Another reader
/// in this process receives every byte. Returns `None` if the other process cannot be started.
fn run_reader_kill(step: usize, random: &mut Random) -> Option<()> {
    let mut other = start_at_step("read", step)?;
    let (mut output, mut offers) = stream(&stream_config(2)).unwrap();
    let mut honest = offers.remove(1).open().unwrap();
    // Fails if the process has been killed already.
    let _ = sys::descriptor::send(&other, b"offer", &offers[0].descriptors());
    drop(offers);
    let reading = spawn_test_thread(move || read_and_check_blocks(&mut honest));
    let delay = (step == STEPS).then(|| Duration::from_micros(random.below(4000)));
    let killing = spawn_test_thread(move || match delay {
        Some(delay) => {
            std::thread::sleep(delay);
            other.stop();
        }
        None => other.wait_until_killed(),
    });
    for part in 0..40 {
        write(&mut output, part * 50..(part + 1) * 50).unwrap();
        resize_ring(&mut output, 4096 << random.below(6));
    }
    drop(output);
    killing.join();
    assert_eq!(reading.join(), (2000, None), "the other reader has everything");
    Some(())
}

/// Runs one round of the soak test, in which the other process takes over the stream and is killed.
/// Returns `None` if the other process cannot be started.
fn run_successor_kill(step: usize, random: &mut Random) -> Option<()> {
    let mut other = start_at_step("take over", step)?;
    let (mut output, mut offers) = stream(&stream_config(1)).unwrap();
    let mut input = offers.remove(0).open().unwrap();
    let reading = spawn_test_thread(move || {
        let end = read_and_check_blocks(&mut input);
        (end, input.writer_counts().resident_blocks(&input.counts()))
    });
    write(&mut output, 0..100).unwrap();
    let handover = output.hand_over().unwrap();
    // Fails if the process has been killed already.
    let _ = sys::descriptor::send(&other, &handover.message(), &handover.descriptors());
    drop(handover);
    if step == STEPS {
        std::thread::sleep(Duration::from_micros(random.below(4000)));
        other.kill();
    } else {
        other.wait_until_killed();
    }
    let ((blocks, fault), resident) = reading.join();
    assert_eq!((fault, resident), (Some(Fault::Abandoned), Some(0)), "step {step}: {blocks}");
    assert!(blocks >= 100);
    Some(())
}

#[test]
fn t10_process_killed_at_any_step_leaves_nothing_behind() {
    let name = "t10_process_killed_at_any_step_leaves_nothing_behind";
    if !testkit::run_in_separate_process(name) {
        return;
    }
    let Some(()) = need::require_root() else { return };
    let seconds = std::env::var("STREAMLINE_SOAK").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(3));
    let (descriptors, mut random) = (descriptor_count(), Random::with_replayable_seed());
    let (mut kills, mut steps) = (0u64, 0);
    loop {
        // Each step once, then random steps while there is time.
        let step = if steps <= STEPS { steps } else { random.below(STEPS as u64 + 1) as usize };
        for party in [run_writer_kill, run_reader_kill, run_successor_kill] {
            let Some(()) = party(step, &mut random) else { return };
            kills += 1;
        }
        steps += 1;
        if steps > STEPS && Instant::now() >= until {
            break;
        }
    }
    println!("{kills} kills");
    assert_eq!(descriptor_count(), descriptors, "no descriptor");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("streamline-"), "no mapping: {maps}");
}

/// Returns the number of descriptors that this process has open.
fn descriptor_count() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

// ---- in the other process

#[test]
#[ignore = "run by another test, in a process of its own"]
fn run_other_process() {
    let Some(role) = common::child_role() else { return };
    let (role, last) = role.rsplit_once(' ').unwrap();
    let last: usize = last.parse().unwrap();
    match role {
        "write" => {
            let (output, offers) = {
                kill_self_at(0, last);
                let (output, offers) = stream(&stream_config(1)).unwrap();
                kill_self_at(1, last);
                send_offer(stdin(), &offers[0]);
                (output, offers)
            };
            drop(offers);
            write_until_killed(output, 0, last);
        }
        "read" => read_until_killed(last),
        "take over" => {
            kill_self_at(0, last);
            let (message, files) = receive(stdin());
            kill_self_at(1, last);
            let handover = Handover::from_parts(&message, files).unwrap();
            write_until_killed(handover.open().unwrap(), 100, last);
        }
        _ => panic!("no role {role}"),
    }
}

/// Kills this process if `step` equals `last`, the step before which it must die.
fn kill_self_at(step: usize, last: usize) {
    if step == last {
        let itself = rustix::process::getpid();
        rustix::process::kill_process(itself, rustix::process::Signal::KILL).unwrap();
        loop {
            std::thread::park();
        }
    }
}

fn write_until_killed(mut output: Output, first: u64, last: usize) {
    let (mut random, mut next) = (Random::new(last as u64 + 1), first);
    for round in 0.. {
        let die_before = |step: usize| {
            if round == 3 {
                kill_self_at(step, last);
            }
        };
        die_before(2);
        write(&mut output, next..next + 20).unwrap();
        die_before(3);
        resize_ring(&mut output, 4096 << random.below(6));
        die_before(4);
        let mut room = Vec::new();
        fill_block(next + 20, &mut room);
        output.write(&room).unwrap();
        // The block is written but not published; the change of size publishes it.
        die_before(5);
        resize_ring(&mut output, 4096 << random.below(6));
        die_before(6);
        output.flush();
        die_before(7);
        next += 21;
    }
}

fn read_until_killed(last: usize) {
    kill_self_at(0, last);
    let (_, descriptors) = receive(stdin());
    kill_self_at(1, last);
    let offer = Offer::from_descriptors(descriptors).unwrap();
    kill_self_at(2, last);
    let mut input = offer.open().unwrap();
    kill_self_at(3, last);
    let mut out = [0; 300];
    for round in 0.. {
        if input.read(&mut out).unwrap() == 0 {
            return;
        }
        match round {
            10 => kill_self_at(4, last),
            50 => kill_self_at(5, last),
            200 => {
                input.release();
                kill_self_at(6, last);
            }
            400 => kill_self_at(7, last),
            _ => {}
        }
    }
}
