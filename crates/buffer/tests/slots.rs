//! Rings of slots between processes of different users: what comes through, what is lost and known
//! to be, and what a hostile writer can do to its reader. (FEATURES D11; RELIABILITY T1, T3, T5,
//! T7)
//!
//! The other process is this executable again, as user nobody, with a socket as standard input.
//! Needs root, because another user is the point.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

use abi::{DbufId, Place};
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use streamline_buffer::dbuf::fixed::{Config, Visitor, Writer, stream};
use streamline_buffer::share::{self, Offer, Refusal};
use streamline_buffer::{Fault, Policy};
use testkit::{Random, need};

const ROLE: &str = "STREAMLINE_TEST_SLOTS_ROLE";
const TOTAL: u64 = 40_000;
const SLOT: usize = 256;

fn config(policy: Policy) -> Config {
    Config { slot: SLOT, slots: 64, policy, ..Config::new(DbufId::new(1).unwrap()) }
}

fn block(number: u64) -> Vec<u8> {
    let mut block = vec![number.wrapping_mul(37) as u8; 8 + (number % 200) as usize];
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

fn spawn(role: &str) -> Option<(OwnedFd, Child)> {
    need::root()?;
    let (here, there) = sys::descriptor::pair().unwrap();
    let mut command = sys::process::again_as(sys::process::NOBODY, there).unwrap();
    command.args(["--ignored", "--exact", "the_other_process"]).env(ROLE, role);
    command.stdout(Stdio::null());
    match sys::process::start(&mut command) {
        Ok(child) => Some((here, child)),
        Err(error) => need::skip(&format!("nobody may not run this test: {error}")),
    }
}

fn send(socket: impl std::os::fd::AsFd, offer: &Offer) {
    sys::descriptor::send(socket, b"offer", &offer.descriptors()).unwrap();
}

fn receive(socket: impl std::os::fd::AsFd) -> Offer {
    let (_, descriptors) = sys::descriptor::receive(socket, &mut [0; 64]).unwrap();
    Offer::from_descriptors(descriptors).unwrap()
}

fn line(socket: &OwnedFd) -> String {
    let mut message = [0; 256];
    let (length, _) = sys::descriptor::receive(socket, &mut message).unwrap();
    String::from_utf8_lossy(&message[..length]).into_owned()
}

fn put(writer: &mut Writer, number: u64) {
    while !writer.write(&block(number)).unwrap() {
        writer.publish();
        std::thread::yield_now();
    }
    if number.is_multiple_of(8) {
        writer.publish();
    }
}

/// Reads to the end; answers taken and lost, each block being what was put.
fn drain(visitor: &mut Visitor) -> (u64, u64) {
    let (mut out, mut next) = ([0; SLOT], 0);
    while !visitor.is_finished().unwrap() {
        while let Some(length) = visitor.read(&mut out).unwrap() {
            let number = u64::from_le_bytes(out[..8].try_into().unwrap());
            assert!(number >= next && out[..length] == block(number), "block {number}");
            next = number + 1;
        }
        std::thread::yield_now();
    }
    let counted = visitor.count();
    assert_eq!(visitor.written().resident(&counted), Some(0));
    (counted.blocks, counted.lost)
}

#[test]
fn slots_come_through_to_another_user_and_what_was_overwritten_is_counted() {
    for policy in [Policy::Block, Policy::Overwrite] {
        let Some((socket, mut child)) = spawn("drain") else { return };
        let (mut writer, offers) = share::slots(&config(policy)).unwrap();
        send(&socket, &offers[0]);
        assert_eq!(line(&socket), "ready");
        (0..TOTAL).for_each(|number| put(&mut writer, number));
        drop(writer);
        let told: Vec<u64> = line(&socket).split(' ').map(|n| n.parse().unwrap()).collect();
        assert_eq!(told[0] + told[1], TOTAL, "{policy:?}");
        assert_eq!(told[1] > 0, policy == Policy::Overwrite && told[0] < TOTAL);
        assert!(child.wait().unwrap().success());
    }
}

/// Its writer puts anything into control words, table and slots: each read is a block of at most a
/// slot, nothing, or a fault.
#[test]
fn a_hostile_writer_of_slots_gives_blocks_or_faults_and_nothing_else() {
    for policy in ["block", "overwrite"] {
        let Some((socket, mut child)) = spawn(&format!("scribble {policy}")) else { return };
        let offer = receive(&socket);
        let again = || {
            let copies = offer.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
            Offer::from_descriptors(copies.into()).unwrap()
        };
        assert_eq!(line(&socket), "scribbling");
        let (mut blocks, mut faults, mut out) = (0, 0, [0; SLOT]);
        let mut random = Random::replayable();
        let mut visitor = again().read_slots();
        // Until it has lied often enough where it is looked at.
        let patience = Instant::now() + Duration::from_secs(60);
        for look in 0_u64.. {
            if look >= 60_000 && (faults >= 10 || Instant::now() > patience) {
                break;
            }
            let Ok(reader) = &mut visitor else {
                // Where the cursor page says that it starts, if that is nowhere.
                assert!(matches!(visitor, Err(Refusal::Start(_))), "{visitor:?}");
                visitor = again().read_slots();
                continue;
            };
            let place = Place::new(random.next(), random.below(300) as u32);
            let _copied = reader.copy(place, &mut out[..(place.length() as usize).min(SLOT)]);
            if random.below(16) == 0 {
                let _skipped = reader.skip_to_latest();
            }
            match reader.read(&mut out) {
                Ok(Some(length)) => {
                    assert!(length <= SLOT);
                    blocks += 1;
                }
                Ok(None) => {}
                Err(Fault::Poisoned { .. } | Fault::Damaged { .. }) => {
                    faults += 1;
                    visitor = again().read_slots();
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        println!("{policy}: {blocks} blocks, {faults} faults");
        assert!(faults > 0 && child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// A reader that is killed anywhere holds up neither the writer nor another reader; what a writer
/// had shown before it was killed is all there.
#[test]
fn who_is_killed_at_a_stream_of_slots_holds_up_nobody() {
    let mut random = Random::replayable();
    for _ in 0..5 {
        let Some((socket, mut child)) = spawn("read") else { return };
        let shape = Config { readers: 2, ..config(Policy::Block) };
        let (mut output, mut offers) = stream::stream(&shape, 8).unwrap();
        let mut honest = offers.remove(1).open().unwrap();
        let fds = offers[0].descriptors();
        sys::descriptor::send(&socket, b"offer", &fds).unwrap();
        drop(offers);
        let reading = std::thread::spawn(move || {
            let (mut out, mut number) = ([0; SLOT], 0);
            while let Some(length) = honest.read(&mut out).unwrap() {
                assert_eq!(out[..length], block(number));
                number += 1;
            }
            number
        });
        let until = random.below(TOTAL / 4);
        for number in 0..TOTAL / 4 {
            if number == until {
                child.kill().unwrap();
            }
            assert!(output.write(&block(number)).unwrap());
        }
        drop(output);
        assert_eq!(reading.join().unwrap(), TOTAL / 4);
        child.wait().unwrap();
    }
    for _ in 0..5 {
        let Some((socket, mut child)) = spawn("write") else { return };
        let (_, fds) = sys::descriptor::receive(&socket, &mut [0; 64]).unwrap();
        let mut input = stream::Offer::from_descriptors(fds).unwrap().open().unwrap();
        let (until, mut number, mut out) = (random.below(20_000), 0, [0; SLOT]);
        let fault = loop {
            if number == until {
                child.kill().unwrap();
            }
            match input.read(&mut out) {
                Ok(Some(length)) => assert_eq!(out[..length], block(number)),
                Ok(None) => panic!("it closed nothing"),
                Err(fault) => break fault,
            }
            number += 1;
        };
        assert_eq!((fault, input.written().blocks), (Fault::Abandoned, number));
        child.wait().unwrap();
    }
}

#[test]
fn an_offer_of_slots_is_no_way_to_write_and_is_not_taken_for_another_ring() {
    let (_writer, offers) = share::slots(&config(Policy::Overwrite)).unwrap();
    let [geometry, ring, _] = offers[0].descriptors();
    for fd in [geometry, ring] {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert!(file.write_at(&[0], 0).is_err() && file.set_len(0).is_err());
    }
    let copies = || {
        let copies = offers[0].descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
        Offer::from_descriptors(copies.into()).unwrap()
    };
    assert!(matches!(copies().read_blocks(), Err(Refusal::Geometry(_))));
    assert!(matches!(copies().read_pointers(), Err(Refusal::Geometry(_))));
    copies().read_slots().unwrap();
    let id = DbufId::new(2).unwrap();
    let (_writer, mut offers) = share::blocks(&streamline_buffer::dbuf::Config::new(id)).unwrap();
    assert!(matches!(offers.remove(0).read_slots(), Err(Refusal::Geometry(_))));
}

// ---- there

#[test]
#[ignore = "what the other process runs"]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let say = |text: &str| {
        sys::descriptor::send(std::io::stdin(), text.as_bytes(), &[]).unwrap();
    };
    match role.as_str() {
        "drain" => {
            let mut visitor = receive(std::io::stdin()).read_slots().unwrap();
            say("ready");
            let (taken, lost) = drain(&mut visitor);
            say(&format!("{taken} {lost}"));
        }
        "read" => {
            let (_, fds) = sys::descriptor::receive(std::io::stdin(), &mut [0; 64]).unwrap();
            let mut input = stream::Offer::from_descriptors(fds).unwrap().open().unwrap();
            while input.read(&mut [0; SLOT]).unwrap().is_some() {}
        }
        "write" => {
            let (mut output, offers) = stream::stream(&config(Policy::Block), 8).unwrap();
            let fds = offers[0].descriptors();
            sys::descriptor::send(std::io::stdin(), b"offer", &fds).unwrap();
            (0..).try_for_each(|number| output.write(&block(number)).map(drop)).unwrap();
        }
        "scribble block" => scribble(Policy::Block, say),
        "scribble overwrite" => scribble(Policy::Overwrite, say),
        _ => panic!("no role {role}"),
    }
}

/// Writes anything anywhere into its own ring, by the only way around its own library.
fn scribble(policy: Policy, say: impl Fn(&str)) {
    let (mut writer, offers) = share::slots(&config(policy)).unwrap();
    send(std::io::stdin().as_fd(), &offers[0]);
    (0..20).for_each(|number| put(&mut writer, number));
    writer.publish();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let ring = maps.lines().find(|line| line.contains("streamline-ring")).unwrap();
    let base = u64::from_str_radix(ring.split('-').next().unwrap(), 16).unwrap();
    let memory = File::options().write(true).open("/proc/self/mem").unwrap();
    let mut random = Random::new(3);
    say("scribbling");
    loop {
        let at = match random.below(3) {
            // The table, which comes after the page.
            0 => 4096 + random.below(64) * 8,
            1 => random.below(6) * 128,
            _ => random.below((8192 + 64 * SLOT as u64) / 8) * 8,
        };
        let values = [random.next(), random.below(300), random.below(200), 20, u64::MAX];
        memory.write_all_at(&random.pick(&values).to_le_bytes(), base + at).unwrap();
    }
}
