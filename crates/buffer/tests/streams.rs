//! Streams between processes of different users: what comes through, who is killed when, and what a
//! hostile end can do. (RELIABILITY T3, T8, T10, T15)
//!
//! The other process is this executable again, as user nobody, with a socket as standard input over
//! which offers travel. Needs root, because another user is the point.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

use abi::DbufId;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Stdio};
use streamline_buffer::Fault;
use streamline_buffer::stream::{Config, Input, Offer, Output, stream};
use testkit::{Random, need};

const ROLE: &str = "STREAMLINE_TEST_STREAM_ROLE";
/// Bytes of the longest block.
const LONGEST: usize = 900;

fn config(readers: usize) -> Config {
    Config::new(DbufId::new(1).unwrap()).capacity(16384).readers(readers)
}

/// Block number `number`: its length, then bytes, all told by the number.
fn block(number: u64, room: &mut Vec<u8>) {
    let length = 8 + usize::try_from(number * 7919 % (LONGEST as u64 - 8)).unwrap();
    room.clear();
    room.extend_from_slice(&number.to_le_bytes());
    room.resize(length, number.wrapping_mul(37) as u8);
}

// ---- here

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

fn offer(socket: impl AsFd, offer: &Offer) {
    sys::descriptor::send(socket, b"offer", &offer.descriptors()).unwrap();
}

fn receive(socket: impl AsFd) -> Option<Input> {
    let (length, descriptors) = sys::descriptor::receive(socket, &mut [0; 64]).unwrap();
    (length > 0).then(|| Offer::from_descriptors(descriptors).unwrap().open().unwrap())
}

/// One line from the other process; `None`: it is gone.
fn line(socket: &OwnedFd) -> Option<String> {
    let mut message = [0; 4096];
    let (length, _) = sys::descriptor::receive(socket, &mut message).ok()?;
    (length > 0).then(|| String::from_utf8_lossy(&message[..length]).into_owned())
}

fn write(output: &mut Output, numbers: std::ops::Range<u64>) -> Result<(), Fault> {
    let mut room = Vec::new();
    for number in numbers {
        block(number, &mut room);
        assert!(output.write(&room)?, "a stream that blocks drops nothing");
    }
    output.flush();
    Ok(())
}

/// Reads blocks until the end, or until there is a fault; answers how many, each as it must be.
fn read(input: &mut Input) -> (u64, Option<Fault>) {
    let (mut number, mut expected, mut at) = (0, Vec::new(), 0);
    let mut out = [0; 333];
    loop {
        let count = match input.read(&mut out) {
            Ok(0) => return (number, None),
            Ok(count) => count,
            Err(fault) => return (number, Some(fault)),
        };
        for byte in &out[..count] {
            if at == expected.len() {
                block(number, &mut expected);
                (number, at) = (number + 1, 0);
            }
            assert_eq!(*byte, expected[at], "block {} byte {at}", number - 1);
            at += 1;
        }
    }
}

#[test]
fn everything_comes_through_to_another_user() {
    let Some((socket, mut child)) = spawn("read") else { return };
    let (mut output, offers) = stream(&config(1)).unwrap();
    offer(&socket, &offers[0]);
    drop(offers);
    write(&mut output, 0..50_000).unwrap();
    drop(output);
    assert_eq!(line(&socket).as_deref(), Some("50000 None"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_reader_that_is_killed_anywhere_holds_up_nobody() {
    let mut random = Random::replayable();
    for _ in 0..6 {
        let Some((socket, mut child)) = spawn("read and tell") else { return };
        let (mut output, mut offers) = stream(&config(2)).unwrap();
        offer(&socket, &offers[0]);
        let mut honest = offers.remove(1).open().unwrap();
        drop(offers);
        let reading = std::thread::spawn(move || read(&mut honest));
        let until = random.below(18);
        let killing = std::thread::spawn(move || {
            // It tells each thousand blocks how far it is.
            for _ in 0..until {
                line(&socket);
            }
            child.kill().unwrap();
            child.wait().unwrap();
        });
        write(&mut output, 0..20_000).unwrap();
        drop(output);
        assert_eq!(reading.join().unwrap(), (20_000, None), "the other reader has everything");
        killing.join().unwrap();
    }
}

#[test]
fn what_a_writer_has_shown_before_it_was_killed_is_all_there() {
    let mut random = Random::replayable();
    for _ in 0..12 {
        let Some((socket, mut child)) = spawn("write") else { return };
        let mut input = receive(&socket).unwrap();
        let until = random.below(20_000);
        while input.count().blocks < until {
            input.read(&mut [0; 8192]).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let fault = loop {
            match input.read(&mut [0; 8192]) {
                Ok(0) => panic!("it closed nothing"),
                Ok(_) => {}
                Err(fault) => break fault,
            }
        };
        assert_eq!(fault, Fault::Abandoned);
        let (written, taken) = (input.written(), input.count());
        assert!(taken.blocks >= until, "{taken:?}");
        assert_eq!(written.resident(&taken), Some(0), "all that was shown");
    }
}

/// A reader that writes what it likes into the only page that it can write, and rings without end:
/// it may be shut out, and the other one goes on.
#[test]
fn a_hostile_reader_harms_itself() {
    let Some((socket, mut child)) = spawn("attack") else { return };
    let (mut output, mut offers) = stream(&config(2)).unwrap();
    offer(&socket, &offers[0]);
    let mut honest = offers.remove(1).open().unwrap();
    drop(offers);
    assert_eq!(line(&socket).as_deref(), Some("attacking"));
    let reading = std::thread::spawn(move || read(&mut honest));
    let (mut room, mut lies) = (Vec::new(), 0);
    for number in 0..30_000 {
        block(number, &mut room);
        loop {
            match output.write(&room) {
                Ok(written) => {
                    assert!(written);
                    break;
                }
                Err(Fault::Poisoned { .. }) => lies += 1,
                Err(fault) => panic!("{fault}"),
            }
        }
    }
    assert!(lies <= 1, "told once");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(output);
    assert_eq!(reading.join().unwrap(), (30_000, None));
}

// ---- there

#[test]
#[ignore = "what the other process runs"]
fn the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "read" => {
            let (count, fault) = read(&mut receive(std::io::stdin()).unwrap());
            say(&format!("{count} {fault:?}"));
        }
        "read and tell" => read_and_tell(receive(std::io::stdin()).unwrap()),
        "write" => write_on(),
        "attack" => attack(),
        _ => panic!("no role {role}"),
    }
}

fn say(text: &str) {
    sys::descriptor::send(std::io::stdin(), text.as_bytes(), &[]).unwrap();
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
    offer(std::io::stdin(), &offers[0]);
    drop(offers);
    write(&mut output, 0..u64::MAX).unwrap();
}

fn attack() {
    let (_, descriptors) = sys::descriptor::receive(std::io::stdin(), &mut [0; 64]).unwrap();
    let offer = Offer::from_descriptors(descriptors).unwrap();
    let [_, _, page, bell] = offer.descriptors();
    let page = File::from(page.try_clone_to_owned().unwrap());
    let mut random = Random::new(11);
    say("attacking");
    loop {
        // The turns of a sleeper and where it wants to be woken; sometimes the cursor.
        let word = *random.pick(&[48, 49, 48, 49, 48, 49, 0]);
        let values = [random.next(), random.below(1 << 16), random.next() | 1];
        page.write_all_at(&random.pick(&values).to_le_bytes(), word * 8).unwrap();
        ring(bell);
    }
}

fn ring(bell: BorrowedFd<'_>) {
    use rustix::net::{SendFlags, send};
    let _ = send(bell, &[0; 100], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}
