//! Indirect streams in one process: what comes through, what is kept how long, and who waits for
//! whom. Other processes and users: `crates/buffer/tests/indirect.rs`.

use super::*;
use crate::aggregate::access::{AccessList, Credentials};
use crate::aggregate::desk::Desk;
use crate::aggregate::owner::Creator;
use crate::aggregate::{Aggregate, AllocationPool, Frozen};
use crate::pool::{self, Pool};
use crate::{Fault, Put};
use abi::{Class, Place};
use std::time::Duration;
use testkit::Random;

const SEGMENT: usize = 4096;
const RING: u32 = 1;
const BACKING: u32 = 2;

fn id(number: u32) -> DbufId {
    DbufId::new(number).unwrap()
}

/// A desk, and what it shares.
struct House {
    desk: Desk,
}

impl House {
    fn new() -> Self {
        Self { desk: Desk::open(Creator::new(8)).unwrap() }
    }

    fn pool(&self, number: u32, segments: usize) -> AllocationPool {
        let config = pool::Config { segment: SEGMENT, segments };
        let pool = AllocationPool::new(id(number), config, AccessList::private()).unwrap();
        self.desk.owner(|owner| owner.share(&pool)).unwrap();
        pool
    }

    fn frozen(&self, number: u32, bytes: &[u8]) -> Frozen {
        let frozen = Frozen::read(id(number), bytes, bytes.len()).unwrap();
        let share = |owner: &mut Creator| owner.share_frozen(&frozen, AccessList::private());
        self.desk.owner(share).unwrap();
        frozen
    }

    fn space(&self, space: Space) -> Space {
        let (_, socket) = self.desk.introduce(Credentials::own()).unwrap();
        space.introduce(socket);
        space
    }

    fn stream(&self, config: &Config, segments: usize) -> (Output, Vec<Offer>, Backing) {
        let backing = Backing::new(self.pool(BACKING, segments));
        let (output, offers) = indirect(config, backing.clone()).unwrap();
        (output, offers, backing)
    }

    fn one(&self, config: &Config, segments: usize) -> (Output, Input, Backing) {
        let (output, mut offers, backing) = self.stream(config, segments);
        let input = offers.remove(0).open(&self.space(Space::new())).unwrap();
        (output, input, backing)
    }
}

fn config() -> Config {
    Config { entries: 256, ..Config::new(id(RING)) }
}

fn leased(backing: &Backing) -> usize {
    backing.pool(|pool| pool.usage().leased)
}

fn balanced(output: &Output, input: &Input, resident: u64) {
    assert_eq!(output.count().resident(&input.count()), Some(resident), "{:?}", output.count());
}

#[test]
fn d6_a_stream_of_pointers_is_read_as_a_stream_of_bytes() {
    let house = House::new();
    let (mut output, mut input, backing) = house.one(&config(), 4);
    assert!(output.write(b"hello").unwrap() && output.write(b"").unwrap());
    assert!(output.write(b", world").unwrap());
    assert_eq!(input.try_read(&mut [0; 9]).unwrap(), None, "not shown yet");
    output.flush();
    let mut out = [0; 9];
    assert_eq!(input.read(&mut out[..3]).unwrap(), 3, "a part of a block");
    assert_eq!(input.peek().unwrap().unwrap(), b"lo", "the rest of it");
    input.take(1);
    assert_eq!(input.read(&mut out).unwrap(), 8, "over the end of a block");
    assert_eq!(&out[..8], b"o, world");
    assert_eq!(input.peek().unwrap(), None);
    assert!(output.write_with(100, |room| room.iter_mut().map(|byte| *byte = 7).count()).unwrap());
    assert_eq!(output.spliced(), Spliced { blocks: 0, copied: 4 });
    drop(output);
    assert_eq!(input.peek().unwrap().unwrap(), [7; 100]);
    input.take(100);
    assert_eq!(input.peek().unwrap().unwrap(), b"");
    assert_eq!(input.read(&mut out).unwrap(), 0, "the end");
    assert_eq!(input.space().faults().mapped, 1, "one buffer fault for the one dbuf");
    drop(input);
    sweep();
    assert_eq!(leased(&backing), 0, "nothing is kept when all is over");
}

#[test]
fn d5_a_second_pointer_into_a_dbuf_costs_no_call_and_one_ibuf_leads_into_several() {
    let house = House::new();
    let (mut output, mut input, _backing) = house.one(&config(), 4);
    let pools: Vec<_> = (10..40).map(|number| house.pool(number, 2)).collect();
    let mut blocks = Vec::new();
    for pool in &pools {
        assert!(output.know_pool(pool.pool(), 32));
        let place = pool.pool().draft(64, 64).map(|mut draft| {
            draft.fill(pool.pool().id().number() as u8);
            draft.commit(64)
        });
        blocks.push(place.unwrap());
    }
    for round in 0..20 {
        for (pool, place) in pools.iter().zip(&blocks) {
            assert!(output.write(pool.pool().bytes(*place).unwrap()).unwrap());
        }
        output.flush();
        for pool in &pools {
            let mut out = [0; 64];
            assert_eq!(input.read(&mut out).unwrap(), 64);
            assert_eq!(out, [pool.pool().id().number() as u8; 64], "round {round}");
        }
        assert_eq!(input.space().faults().mapped, 30, "each once, more than the table has lines");
    }
    assert_eq!(output.spliced(), Spliced { blocks: 600, copied: 0 }, "D7: 30 dbufs");
    balanced(&output, &input, 0);
}

#[test]
fn d7_several_ibufs_lead_into_one_dbuf() {
    let house = House::new();
    let backing = Backing::new(house.pool(BACKING, 8));
    let space = house.space(Space::new());
    let mut pairs: Vec<_> = (20..24)
        .map(|number| {
            let config = Config { id: id(number), ..config() };
            let (output, mut offers) = indirect(&config, backing.clone()).unwrap();
            (output, offers.remove(0).open(&space).unwrap())
        })
        .collect();
    for round in 0..100u8 {
        for (at, (output, _)) in pairs.iter_mut().enumerate() {
            output.write(&[round ^ at as u8; 300]).unwrap();
            output.flush();
        }
        for (at, (_, input)) in pairs.iter_mut().enumerate() {
            let mut out = [0; 300];
            assert_eq!(input.read(&mut out).unwrap(), 300);
            assert_eq!(out, [round ^ at as u8; 300]);
            input.give_back();
        }
    }
    assert_eq!(space.faults().mapped, 1, "mapped once for all");
    drop(pairs);
    sweep();
    assert_eq!(leased(&backing), 0);
}

#[test]
fn e1_what_lies_in_a_dbuf_is_written_as_a_pointer_and_what_does_not_is_copied() {
    let house = House::new();
    let (mut output, mut input, _backing) = house.one(&config(), 4);
    let mut pool = house.pool(9, 4);
    let aggregate = pool.copy(&[1; 3000]).unwrap();
    let frozen = house.frozen(10, &[2; 10_000]);
    let file = frozen.aggregate().unwrap();
    let unknown = house.pool(11, 2).copy(&[3; 100]).unwrap();
    assert!(output.know_pool(pool.pool(), 8) && output.know_frozen(&frozen, 64));
    assert_eq!(output.threshold(), 8, "K6: that of the smallest dbuf");
    let slice = aggregate.slices().next().unwrap().bytes();
    let piece = file.slices().next().unwrap().bytes();
    let own = vec![4; 500];
    let other = unknown.slices().next().unwrap().bytes();
    let written: [&[u8]; 8] =
        [slice, &slice[17..40], piece, &own, &piece[9_999..], other, &slice[2_999..], &[]];
    for block in written {
        assert!(output.write(block).unwrap());
    }
    assert_eq!(output.spliced(), Spliced { blocks: 5, copied: 3 });
    drop(output);
    let mut all = Vec::new();
    let mut out = [0; 4096];
    while let Some(count) = Some(input.read(&mut out).unwrap()).filter(|count| *count > 0) {
        all.extend_from_slice(&out[..count]);
    }
    assert_eq!(all, written.concat());
    assert_eq!(input.space().faults().mapped, 3, "of the unknown dbuf nothing went over");
}

/// What is drafted is not shown to anybody: its address is no hit. (S4)
#[test]
fn e1_bytes_that_are_still_written_are_copied() {
    let house = House::new();
    let (mut output, mut input, _backing) = house.one(&config(), 4);
    let pool = house.pool(9, 2);
    output.know_pool(pool.pool(), 32);
    let mut draft = pool.pool().draft(100, 100).unwrap();
    draft.fill(1);
    output.write(&draft[..50]).unwrap();
    draft.fill(2);
    let place = draft.commit(100);
    // E4: after a miss in a range it is left alone for a while, longer each time.
    let bytes = pool.pool().bytes(place).unwrap();
    for _ in 0..3 {
        output.write(&bytes[..50]).unwrap();
    }
    assert_eq!(output.spliced(), Spliced { blocks: 2, copied: 2 });
    output.flush();
    let mut out = [0; 200];
    assert_eq!(input.read(&mut out).unwrap(), 200);
    assert_eq!((&out[..50], &out[50..]), (&[1; 50][..], &[2; 150][..]));
}

#[test]
fn e1_a_segment_is_kept_until_every_reader_has_passed() {
    let house = House::new();
    let (mut output, offers, _backing) = house.stream(&Config { readers: 2, ..config() }, 4);
    let space = house.space(Space::new());
    let mut inputs: Vec<_> = offers.into_iter().map(|offer| offer.open(&space).unwrap()).collect();
    let mut pool = Pool::new(id(9), pool::Config { segment: SEGMENT, segments: 2 }).unwrap();
    output.know_pool(&pool, 1);
    let (place, bytes) = pool.append(1000, |room| room.iter_mut().map(|b| *b = 5).count()).unwrap();
    output.write(bytes).unwrap();
    let fill_up = |pool: &Pool| pool.append(SEGMENT, |room| room.len()).is_some();
    assert!(fill_up(&pool));
    pool.turn();
    assert_eq!(pool.usage().leased, 1, "the pool has turned, and the bytes stay");
    assert!(pool.bytes(place).is_some());
    for at in 0..2 {
        output.reap().unwrap();
        pool.turn();
        assert!(pool.bytes(place).is_some(), "reader {at} has not passed");
        // A reader that leaves without reading needs nothing.
        if at == 0 {
            let fault = Fault::UnknownDbuf(id(9));
            assert_eq!(inputs[0].read(&mut [0; 4]), Err(fault), "no desk shares it");
            inputs[0].give_back();
        } else {
            inputs.remove(1);
        }
    }
    output.reap().unwrap();
    pool.turn();
    assert_eq!((pool.usage().leased, pool.bytes(place)), (0, None));
}
