//! Readers that come and go while the writer writes.

use super::*;
use crate::stream::Input;
use crate::{Fault, Policy};
use abi::DbufId;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::Random;

fn config() -> Config {
    Config::new(DbufId::new(5).unwrap()).capacity(4096)
}

fn block(number: u64) -> Vec<u8> {
    let mut block = number.to_le_bytes().to_vec();
    block.resize(8 + usize::try_from(number * 31 % 300).unwrap(), number as u8);
    block
}

/// The number of a block that must be as it was written.
fn number(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, block(number), "block {number}");
    number
}

fn come(entrance: &Entrance) -> (Ticket, Input) {
    let (ticket, offer) = entrance.enter().unwrap().unwrap();
    (ticket, offer.open().unwrap())
}

/// Reads whole blocks: as long as one after the other.
fn read(input: &mut Input, expected: Option<u64>) -> Result<Option<u64>, Fault> {
    let mut head = [0; 8];
    if input.read(&mut head)? == 0 {
        return Ok(None);
    }
    let next = u64::from_le_bytes(head);
    let mut bytes = block(next);
    let mut done = 8;
    while done < bytes.len() {
        done += input.read(&mut bytes[done..])?;
    }
    assert_eq!(number(&bytes), expected.unwrap_or(next));
    Ok(Some(next))
}

#[test]
fn who_comes_late_starts_at_now_though_the_writer_is_idle() {
    let (mut output, entrance) = joinable(&config()).unwrap();
    for at in 0..1000 {
        assert!(output.write(&block(at)).unwrap(), "nobody reads and nobody is waited for");
    }
    output.flush();
    let (_, mut first) = come(&entrance);
    assert_eq!(first.try_read(&mut [0; 100]).unwrap(), None, "nothing that was before");
    output.write(&block(1000)).unwrap();
    output.flush();
    let (_, mut second) = come(&entrance);
    output.write(&block(1001)).unwrap();
    drop(output);
    assert!(entrance.enter().unwrap().is_none() && entrance.has_ended());
    assert_eq!(read(&mut first, Some(1000)), Ok(Some(1000)));
    assert_eq!(read(&mut first, Some(1001)), Ok(Some(1001)));
    assert_eq!(read(&mut second, Some(1001)), Ok(Some(1001)));
    for input in [&mut first, &mut second] {
        assert_eq!((read(input, None), input.count().lost), (Ok(None), 0));
    }
}

/// Readers come at any moment, read for a while, and leave by a word, or without one.
#[test]
fn d9_readers_come_and_go_and_miss_nothing_in_between() {
    let mut random = Random::replayable();
    for policy in [Policy::Block, Policy::DropNew] {
        let (mut output, entrance) = joinable(&config().policy(policy)).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            scope.spawn(move || {
                let mut at = 0;
                while !stop.load(Ordering::Relaxed) {
                    at += u64::from(output.write(&block(at)).unwrap());
                }
            });
            let mut readers = Vec::new();
            for _ in 0..3 {
                let (mut random, entrance) = (Random::new(random.next()), &entrance);
                readers.push(scope.spawn(move || {
                    for _ in 0..60 {
                        let (ticket, offer) = entrance.enter().unwrap().unwrap();
                        if random.below(4) == 0 {
                            // As a process that dies: its descriptors are closed.
                            drop(offer);
                            entrance.leave(ticket);
                            continue;
                        }
                        let (mut input, mut next) = (offer.open().unwrap(), None);
                        for _ in 0..random.below(200) {
                            next = read(&mut input, next).unwrap().map(|number| number + 1);
                        }
                    }
                }));
            }
            let ended: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
            stop.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(|reader| reader.unwrap());
        });
    }
}

#[test]
fn a_ring_that_overwrites_lets_readers_come_too() {
    let (mut output, entrance) = joinable(&config().policy(Policy::Overwrite)).unwrap();
    (0..500).for_each(|at| assert!(output.write(&block(at)).unwrap()));
    output.flush();
    let (_, mut input) = come(&entrance);
    assert_eq!(input.try_read(&mut [0; 400]).unwrap(), None);
    output.write(&block(500)).unwrap();
    output.flush();
    let mut room = [0; 400];
    let count = input.read(&mut room).unwrap();
    assert_eq!(number(&room[..count]), 500);
}

#[test]
fn places_of_readers_that_are_gone_are_used_again() {
    let (mut output, entrance) = joinable(&config()).unwrap();
    for round in 0..100 {
        let (ticket, mut input) = come(&entrance);
        output.write(&block(round)).unwrap();
        output.flush();
        assert_eq!(read(&mut input, Some(round)), Ok(Some(round)));
        if round % 2 == 0 {
            std::mem::forget(input);
            entrance.leave(ticket);
        } else {
            drop(input);
        }
        output.flush();
    }
    assert!(output.readers() <= 2, "{}", output.readers());
}

#[test]
fn a_writer_is_abandoned_when_nobody_can_come_any_more() {
    let (mut output, entrance) = joinable(&config()).unwrap();
    let (_, input) = come(&entrance);
    drop(input);
    for at in 0..100 {
        output.write(&block(at)).unwrap();
    }
    drop(entrance);
    let fault = (0..1000).find_map(|at| output.write(&block(at)).err());
    assert_eq!(fault, Some(Fault::Abandoned));
}

/// A reader of a named stream writes whatever it likes into its own page: it is evicted and
/// counted, and the two others get every byte (T3).
#[test]
fn t3_hostile_cursor_costs_the_others_nothing() {
    use abi::ring::{CLOSED, PAGE, reader};
    use std::os::unix::fs::FileExt as _;
    let edges = [0, 1, 2, 7, 8, 4095, 4096, 4097, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 32];
    let edges = edges.into_iter().chain([1 << 63, (1 << 63) - 1, u64::MAX - 7, u64::MAX]);
    let words = [reader::CURSOR, reader::WAIT, reader::WAIT + 1, reader::LEDGER];
    let mut lies: Vec<Vec<(usize, u64)>> = edges
        .clone()
        .flat_map(|value| words.map(|word| vec![(word, value)]))
        .chain([vec![(reader::STATE, CLOSED)], vec![(reader::STATE, u64::MAX)]])
        .collect();
    // The whole page, and a cursor that goes back after it went on.
    lies.extend(edges.map(|value| (0..PAGE / 8).map(|word| (word, value)).collect()));
    lies.push(vec![(reader::CURSOR, 800), (reader::CURSOR, 16)]);
    for lie in lies {
        let (mut output, entrance) = joinable(&config()).unwrap();
        let (_, hostile) = entrance.enter().unwrap().unwrap();
        let page = std::fs::File::from(hostile.descriptors()[2].try_clone_to_owned().unwrap());
        let mut honest = [come(&entrance).1, come(&entrance).1];
        let mut got = [0, 0];
        let mut drain = |output: &mut Output| {
            output.flush();
            for (input, got) in honest.iter_mut().zip(&mut got) {
                let mut head = [0; 8];
                while input.try_read(&mut head).unwrap().is_some_and(|length| length > 0) {
                    let mut bytes = block(u64::from_le_bytes(head));
                    let mut done = 8;
                    while done < bytes.len() {
                        done += input.read(&mut bytes[done..]).unwrap();
                    }
                    assert_eq!(number(&bytes), *got, "{lie:?}");
                    *got += 1;
                }
            }
        };
        let mut lies = lie.iter();
        for at in 0..200 {
            let ready = output.is_ready(block(at).len());
            if !ready.unwrap() {
                drain(&mut output);
                let lie = lies.next();
                lie.into_iter().for_each(|(word, value)| {
                    page.write_all_at(&value.to_le_bytes(), *word as u64 * 8).unwrap();
                });
                // What does not take its place away keeps the ring full: it is shut out by hand.
                if lie.is_none() && !output.is_ready(block(at).len()).unwrap() {
                    output.shut_out(0);
                }
            }
            while !output.is_ready(block(at).len()).unwrap() {
                drain(&mut output);
                if let Some((word, value)) = lies.next() {
                    page.write_all_at(&value.to_le_bytes(), *word as u64 * 8).unwrap();
                } else {
                    output.shut_out(0);
                }
            }
            assert_eq!(output.write(&block(at)), Ok(true), "{lie:?}");
        }
        drain(&mut output);
        assert_eq!(got, [200, 200], "{lie:?}");
        assert!(output.evicted() <= 1, "{lie:?}: counted once");
        if lie == [(reader::CURSOR, u64::MAX)] {
            assert_eq!(output.evicted(), 1);
        }
        drop(hostile);
    }
}
