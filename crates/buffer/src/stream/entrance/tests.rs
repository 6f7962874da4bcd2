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
