//! Tests of resolution: every kind of memory, every fault, and tens of thousands of forged
//! pointers.

use super::*;
use abi::{BLOCK_LENGTH_MAX, Class, Entry, Extent};
use buffer::crossing::{self, crossing};
use buffer::pool::PoolConfig;
use buffer::share;
use buffer::signal::Doorbell;
use buffer::{OverflowPolicy, dbuf};
use proptest::prelude::*;
use std::sync::Arc;
use testkit::Random;

const SEGMENT_SIZE: usize = 4096;

fn dbuf_id(number: u32) -> DbufId {
    DbufId::new(number).unwrap()
}

fn create_pool(number: u32) -> Pool {
    Pool::new(dbuf_id(number), PoolConfig { segment: SEGMENT_SIZE, segments: 4 }).unwrap()
}

/// Returns the byte expected at a position of a dbuf, so that the position of a slice suffices to
/// verify its bytes.
fn expected_byte(dbuf: u32, position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ dbuf as u8
}

fn append_expected_bytes(pool: &Pool, length: usize) -> Extent {
    let mut draft = pool.draft(length, length).unwrap();
    let position = draft.position();
    for (i, at) in draft.iter_mut().enumerate() {
        *at = expected_byte(pool.id().number(), position + i as u64);
    }
    draft.commit(length)
}

fn matches_expected_bytes(pointer: RichPointer, bytes: &[u8]) -> bool {
    bytes.len() == pointer.length() as usize
        && bytes.iter().enumerate().all(|(i, &found)| {
            found == expected_byte(pointer.dbuf().number(), pointer.place.position() + i as u64)
        })
}

#[test]
fn every_memory_kind_resolves_and_every_fault_occurs() {
    let (mine, sent) = (create_pool(1), create_pool(2));
    let place = append_expected_bytes(&mine, 100);
    let (doorbell, other) = (Arc::new(Doorbell::new()), Arc::new(Doorbell::new()));
    let (mut writer, mut readers) =
        crossing(&crossing::RingConfig::default(), doorbell, &[other]).unwrap();
    let pointer = RichPointer::new(sent.id(), append_expected_bytes(&sent, 200), Class::YES);
    let entry =
        Entry::new(pointer, abi::BlockMetadata::default(), abi::Marks::for_plain_block(200));
    writer.push(&[entry], &[&sent]).unwrap();
    let kept = create_pool(3);
    let lease = kept.lease(append_expected_bytes(&kept, 50)).unwrap();
    let (mut blocks, mut offers) = share::block_ring(&dbuf::BlockConfig {
        policy: OverflowPolicy::Overwrite,
        ..dbuf::BlockConfig::new(dbuf_id(4))
    })
    .unwrap();
    let mut visitor = offers.remove(0).open_block_reader().unwrap();
    let mut room = blocks.reserve(30).unwrap().unwrap();
    room.fill(9);
    let foreign = room.commit(30);
    blocks.publish();

    let mut table = PointerTable::new();
    table.register_memory(BorrowedMemory::Pool(&mine));
    table.register_memory(BorrowedMemory::Batch(readers[0].peek(8).unwrap()));
    table.register_memory(BorrowedMemory::Lease(&lease));
    table.register_ring(dbuf_id(4), &mut visitor);
    let at = |dbuf, place| RichPointer::new(dbuf_id(dbuf), place, Class::YES);
    assert!(matches_expected_bytes(at(1, place), table.resolve(at(1, place)).unwrap()));
    assert!(matches_expected_bytes(entry.pointer, table.resolve(entry.pointer).unwrap()));
    assert!(matches_expected_bytes(
        at(3, Extent::new(0, 50)),
        table.resolve(at(3, Extent::new(0, 50))).unwrap()
    ));
    let mut out = [0; 30];
    table.copy(at(4, foreign), &mut out).unwrap();
    assert_eq!(out, [9; 30]);
    table.copy(at(1, place.subrange(0, 30)), &mut out).unwrap();
    assert!(matches_expected_bytes(at(1, place.subrange(0, 30)), &out));

    assert_eq!(table.resolve(RichPointer::hole(5)), Err(Fault::Hole));
    assert_eq!(table.resolve(at(4, foreign)), Err(Fault::UnknownDbuf(dbuf_id(4))), "never a slice");
    assert_eq!(table.resolve(at(9, place)), Err(Fault::UnknownDbuf(dbuf_id(9))));
    let long = place.subrange(0, 101);
    assert_eq!(table.resolve(at(1, long)), Err(Fault::OutOfWindow(long)));
    let crossing = place.subrange(0, SEGMENT_SIZE as u32 + 1);
    assert_eq!(table.resolve(at(1, crossing)), Err(Fault::CrossesSegment(crossing)));
    let lapped = Extent::new(SEGMENT_SIZE as u64 * 4, 10);
    assert_eq!(table.resolve(at(1, lapped)), Err(Fault::OutOfWindow(lapped)));
    let (length, limit) = (30, 29);
    let short = table.copy(at(4, foreign), &mut out[..29]);
    assert_eq!(short, Err(Fault::TooLong { length, limit }));
}

/// Changes one field of a valid pointer to every kind of value, and the other fields to random
/// values. Expects resolution to return exactly the bytes at that position, or a fault (T4).
#[test]
fn forged_pointers_resolve_exactly_or_fail() {
    let mut random = Random::with_replayable_seed();
    let (mut mine, mut sent) = (create_pool(1), create_pool(2));
    let (mut good, mut bad) = (0, 0);
    for round in 0..200 {
        let pools = [&mine, &sent];
        let mut places = Vec::new();
        for pool in pools {
            for _ in 0..1 + random.below(3) {
                let length = random.within(1..SEGMENT_SIZE);
                places.push(RichPointer::new(
                    pool.id(),
                    append_expected_bytes(pool, length),
                    Class::YES,
                ));
            }
        }
        let mut table = PointerTable::new();
        for pool in pools {
            table.register_memory(BorrowedMemory::Pool(pool));
        }
        for _ in 0..500 {
            let pointer = forge_pointer(&mut random, &places);
            match table.resolve(pointer) {
                Ok(bytes) => {
                    good += 1;
                    assert!(matches_expected_bytes(pointer, bytes), "round {round}: {pointer:?}");
                }
                Err(_) => bad += 1,
            }
        }
        mine.end_pass();
        sent.end_pass();
    }
    assert!(good > 5_000 && bad > 20_000, "{good} resolved, {bad} refused");
}

fn forge_pointer(random: &mut Random, places: &[RichPointer]) -> RichPointer {
    let base = *random.pick(places);
    let (mut dbuf, mut position) = (base.dbuf().number(), base.place.position());
    let mut length = base.length();
    let edges =
        [0, 1, 15, 16, SEGMENT_SIZE as u64 - 1, SEGMENT_SIZE as u64, SEGMENT_SIZE as u64 + 1];
    match random.below(6) {
        0 => dbuf = *random.pick(&[0, 1, 2, 3, DbufId::MAX.number()]),
        1 => position = position.wrapping_add(*random.pick(&edges)),
        2 => position = position.wrapping_sub(*random.pick(&edges)),
        3 => {
            length = random.pick(&[0, 1, length - 1, length + 1, 4096, BLOCK_LENGTH_MAX as u32])
                & 0xf_ffff
        }
        4 => position = random.next_u64(),
        _ => {
            let from = random.below(u64::from(length)) as u32;
            return base.subrange(from, length - from);
        }
    }
    RichPointer::new(dbuf_id(dbuf), Extent::new(position, length), Class(random.next_u64() as u32))
}

proptest! {
    /// Two random words, used as a pointer, resolve to exactly the bytes at their position, or to a
    /// fault.
    #[test]
    fn arbitrary_words_resolve_exactly_or_fail(words in any::<[u64; 2]>(), near in 0u64..9000) {
        let pool = create_pool(1);
        append_expected_bytes(&pool, 1000);
        append_expected_bytes(&pool, 3500);
        let mut table = PointerTable::new();
        table.register_memory(BorrowedMemory::Pool(&pool));
        let wild = RichPointer::from_words(words);
        let place = Extent::new(near, wild.length() & 0x1fff);
        let close = RichPointer::new(pool.id(), place, wild.class);
        for pointer in [wild, close] {
            if let Ok(bytes) = table.resolve(pointer) {
                prop_assert!(matches_expected_bytes(pointer, bytes));
            }
        }
    }
}
