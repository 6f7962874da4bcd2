//! Tests of aggregates: compared with a plain vector, in threads, across a crossing, and at their
//! limits.

use super::*;
use abi::access::AccessList;
use abi::{Class, DbufId, Extent};
use buffer::OverflowPolicy;
use buffer::crossing::{self, crossing};
use buffer::pool::{Pool, PoolConfig};
use buffer::signal::Doorbell;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::io::{self, BufRead, IoSlice, Read, Write as _};
use std::sync::Arc;
use sys::process::effective_ids;
use testkit::Random;

const SEGMENT_SIZE: usize = 4096;

mod files;

fn create_test_pool(id: u32, segments: usize) -> AllocationPool {
    let config = PoolConfig { segment: SEGMENT_SIZE, segments };
    AllocationPool::new(DbufId::new(id).unwrap(), config, AccessList::private(effective_ids()))
        .unwrap()
}

/// Returns an aggregate with the same bytes, divided into random slices.
fn divide_randomly(random: &mut Random, mut rest: Aggregate) -> Aggregate {
    let mut pieces = Aggregate::new();
    while !rest.is_empty() {
        let length = random.within(1..rest.len() + 1).min(random.within(1..300));
        let tail = rest.split_off(length);
        pieces.append(rest).unwrap();
        rest = tail;
    }
    pieces
}

fn random_range(random: &mut Random, length: usize) -> Range<usize> {
    let from = random.within(0..length + 1);
    from..random.within(from..length + 1)
}

/// Several aggregates that share bytes, each paired with the bytes that it should contain.
struct AggregateModel {
    random: Random,
    pools: [AllocationPool; 2],
    pairs: Vec<(Aggregate, Vec<u8>)>,
    full: usize,
}

impl AggregateModel {
    const AGGREGATES_MAX: usize = 8;
    const LENGTH_MAX: usize = 20_000;

    fn apply_random_operation(&mut self) {
        let random = &mut self.random;
        let pool = &mut self.pools[random.within(0..2)];
        let index = random.within(0..self.pairs.len());
        let (other, other_model) = random.pick(&self.pairs).clone();
        let (aggregate, model) = &mut self.pairs[index];
        let at = random.within(0..model.len() + 2);
        let inside = random_range(random, model.len());
        let fresh = random.bytes(at % 7000);
        let done = match random.below(15) {
            0 => pool.copy(&fresh).map(|made| (*aggregate, *model) = (made, fresh)),
            1 => {
                let fresh = &fresh[..fresh.len().min(SEGMENT_SIZE)];
                let made = pool.allocate(fresh.len(), |room| {
                    room.copy_from_slice(fresh);
                    fresh.len()
                });
                made.map(|made| (*aggregate, *model) = (made, fresh.to_vec()))
            }
            2 => {
                aggregate.truncate(at);
                model.truncate(at);
                Ok(())
            }
            3 => {
                aggregate.trim(at);
                model.drain(..at.min(model.len()));
                Ok(())
            }
            4 => {
                model.splice(0..0, other_model);
                aggregate.prepend(other)
            }
            5 => {
                model.extend(other_model);
                aggregate.append(other)
            }
            6 | 7 => {
                let rest = aggregate.split_off(at);
                let model_rest = model.split_off(at.min(model.len()));
                self.pairs.push((rest, model_rest));
                Ok(())
            }
            8 => {
                let part = aggregate.subrange(inside.clone()).unwrap();
                let model_part = model[inside].to_vec();
                self.pairs.push((part, model_part));
                Ok(())
            }
            9 => {
                model.splice(inside.clone(), other_model);
                aggregate.replace(inside, other)
            }
            10 => {
                let inside = inside.start..inside.end.min(inside.start + SEGMENT_SIZE);
                let edit = |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
                let done = aggregate.mutate(inside.clone(), pool, edit);
                done.map(|()| edit(&mut model[inside]))
            }
            11 => {
                let fresh = &fresh[..fresh.len().min(inside.len())];
                let done = aggregate.overwrite(inside.start, fresh, pool);
                done.map(|()| model[inside.start..][..fresh.len()].copy_from_slice(fresh))
            }
            12 => aggregate.gather(pool),
            13 => {
                let made = pool.read(&fresh[..], fresh.len());
                let made = made.map_err(|error| error.downcast::<Error>().unwrap());
                made.map(|made| {
                    assert!(made.is_empty() == fresh.is_empty());
                    *model = fresh[..made.len()].to_vec();
                    *aggregate = made;
                })
            }
            _ => {
                self.pairs.push((other, other_model));
                Ok(())
            }
        };
        match done {
            Ok(()) => {}
            Err(Error::Full(_)) => {
                self.full += 1;
                self.pairs.clear();
            }
            Err(error) => panic!("{error}"),
        }
        self.drop_excess_aggregates();
    }

    fn drop_excess_aggregates(&mut self) {
        for (aggregate, model) in &mut self.pairs {
            model.truncate(Self::LENGTH_MAX);
            aggregate.truncate(Self::LENGTH_MAX);
        }
        while self.pairs.len() > Self::AGGREGATES_MAX {
            let index = self.random.within(0..self.pairs.len());
            self.pairs.swap_remove(index);
        }
        if self.pairs.is_empty() {
            self.pairs.push((Aggregate::new(), Vec::new()));
        }
    }

    fn assert_agrees_with_vectors(&mut self) {
        for (aggregate, model) in &self.pairs {
            assert_eq!(aggregate.len(), model.len());
            assert_eq!(aggregate.is_empty(), model.is_empty());
            assert!(aggregate == model.as_slice(), "{aggregate:?}");
            assert_eq!(aggregate.slices().rev().count(), aggregate.slices().count());
            assert!(aggregate.pieces().all(|piece| !piece.is_empty()));
            let at = self.random.within(0..model.len() + 1);
            assert_eq!(aggregate.byte(at), model.get(at).copied());
            let mut out = vec![0; self.random.within(0..100)];
            let copied = aggregate.copy(at, &mut out);
            assert_eq!(copied, out.len().min(model.len() - at));
            assert_eq!(out[..copied], model[at..at + copied]);
            assert_eq!(&aggregate.to_vec(), model);
        }
    }
}

#[test]
fn q1_q2_operations_agree_with_a_vector() {
    let steps = if cfg!(miri) { 300 } else { 20_000 };
    let pools = [create_test_pool(1, 64), create_test_pool(2, 256)];
    let pairs = vec![(Aggregate::new(), Vec::new())];
    let mut model =
        AggregateModel { random: Random::with_replayable_seed(), pools, pairs, full: 0 };
    for _ in 0..steps {
        model.apply_random_operation();
        model.assert_agrees_with_vectors();
    }
    model.pairs.clear();
    for pool in &model.pools {
        assert_eq!(pool.usage().leased, 0, "nothing refers to the pool any more");
    }
    assert!(model.full < steps / 10, "full {} times", model.full);
}

#[test]
fn q1_changes_are_invisible_to_other_aggregates() {
    let mut pool = create_test_pool(1, 16);
    let original = pool.copy(b"HTTP/1.1 200 OK, of one buffer").unwrap();
    let mut copy = original.clone();
    let lies = |aggregate: &Aggregate| aggregate.slices().next().unwrap().bytes().as_ptr();
    assert_eq!(lies(&copy), lies(&original), "no bytes are copied");
    copy.mutate(9..12, &mut pool, |status| {
        assert_eq!(status, b"200");
        status.copy_from_slice(b"404");
    })
    .unwrap();
    assert_eq!(original.to_vec(), b"HTTP/1.1 200 OK, of one buffer");
    assert_eq!(copy.to_vec(), b"HTTP/1.1 404 OK, of one buffer");
    let lengths: Vec<_> = copy.slices().map(Slice::len).collect();
    assert_eq!(lengths, [9, 3, 18], "only what changed was written");
    assert_eq!(lies(&copy), lies(&original));
}

#[test]
fn q2_prepended_header_leaves_data_in_place() {
    let (mut files, mut headers) = (create_test_pool(1, 16), create_test_pool(2, 16));
    let file = files.copy(&[7; 3000]).unwrap();
    let mut response = file.clone();
    response.prepend(headers.copy(b"header").unwrap()).unwrap();
    assert_eq!(response.len(), 3006);
    let contents: Vec<_> = response.slices().map(Slice::content_id).collect();
    assert_eq!(contents[1], file.slices().next().unwrap().content_id());
    assert_eq!(contents[0].dbuf, headers.pool().id());
}

#[test]
fn q10_content_id_is_never_reused() {
    let mut pool = create_test_pool(1, 2);
    let mut positions = HashSet::new();
    for round in 0..2000u32 {
        let made = pool.copy(&round.to_le_bytes().repeat(700)).unwrap();
        for slice in made.slices() {
            let ContentId { dbuf, position } = slice.content_id();
            assert_eq!(dbuf, pool.pool().id());
            assert_eq!(position % (1 << 44), slice.pointer().place.position());
            assert!(positions.insert(position), "the same id for other bytes");
        }
    }
    assert!(
        *positions.iter().max().unwrap() > 100 * SEGMENT_SIZE as u64,
        "of a pool of two segments"
    );
}

#[test]
fn equality_and_hash_ignore_division_into_slices() {
    /// A hasher that records the length and the bytes of each `write` call, so that its record
    /// depends on the division of the input into calls.
    #[derive(Default)]
    struct WriteRecorder(Vec<u8>);
    impl Hasher for WriteRecorder {
        fn write(&mut self, bytes: &[u8]) {
            self.0.push(bytes.len() as u8);
            self.0.extend(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let recorded = |aggregate: &Aggregate| {
        let mut hasher = WriteRecorder::default();
        aggregate.hash(&mut hasher);
        hasher.0
    };
    let mut random = Random::with_replayable_seed();
    let (mut left, mut right) = (create_test_pool(1, 64), create_test_pool(2, 64));
    for _ in 0..300 {
        let length = random.within(0..500);
        let bytes = random.bytes(length);
        let one = left.copy(&bytes).unwrap();
        let one = divide_randomly(&mut random, one);
        let two = right.copy(&bytes).unwrap();
        let two = divide_randomly(&mut random, two);
        assert_eq!(one, two);
        assert_eq!(recorded(&one), recorded(&two));
        let mut other = bytes.clone();
        random.flip_bits(&mut other, 1);
        other.truncate(random.within(0..other.len() + 1));
        let three = right.copy(&other).unwrap();
        let three = divide_randomly(&mut random, three);
        assert_eq!(one.cmp(&three), bytes.cmp(&other));
        assert_eq!(one == three, bytes == other);
        assert_eq!(one == *other, bytes == other);
        assert_eq!(recorded(&one) == recorded(&three), bytes == other);
    }
}

#[test]
fn full_pool_fails_and_recovers_after_drops() {
    let mut pool = create_test_pool(1, 4);
    let mut kept: Vec<_> = (0..4).map(|_| pool.copy(&[1; SEGMENT_SIZE]).unwrap()).collect();
    let Err(Error::Full(usage)) = pool.copy(&[2]) else { panic!("there is no room") };
    assert_eq!((usage.leased, usage.segments), (4, 4));
    assert_eq!(pool.read(&b"x"[..], 1).unwrap_err().kind(), io::ErrorKind::StorageFull);
    let before = kept[1].clone();
    kept[1].mutate(0..1, &mut pool, |_| panic!("no room to edit in")).unwrap_err();
    kept[1].gather(&mut pool).unwrap_err();
    kept[1].overwrite(0, b"x", &mut pool).unwrap_err();
    assert_eq!(kept[1], before, "unchanged where it is refused");
    drop(kept.remove(0));
    kept.push(pool.copy(&[2; SEGMENT_SIZE]).unwrap());
    for (aggregate, byte) in kept.iter().zip([1, 1, 1, 2]) {
        assert_eq!(aggregate.to_vec(), [byte; SEGMENT_SIZE]);
    }
    drop(pool);
    assert_eq!(kept[0].to_vec(), [1; SEGMENT_SIZE], "longer than the pool");
}

/// An unreferenced segment is reused even if it is less than half full.
#[test]
fn unreferenced_segment_is_reused_at_any_fill() {
    let mut pool = create_test_pool(1, 2);
    let kept = pool.copy(&[1; SEGMENT_SIZE]).unwrap();
    let small = pool.copy(&[2; 1000]).unwrap();
    let refused = pool.allocate(3500, |_| panic!("the small one is still there"));
    assert!(matches!(refused, Err(Error::Full(usage)) if usage.leased == 2));
    let tail = pool.copy(&[4; 96]).unwrap();
    assert_eq!(tail.len(), 96, "what fits is still taken");
    drop((small, tail));
    for byte in 5..9 {
        let large = pool.allocate(3500, |room| {
            room.fill(byte);
            room.len()
        });
        assert_eq!(large.unwrap().to_vec(), [byte; 3500]);
        pool.copy(&[byte; 10]).unwrap();
    }
    assert_eq!(kept.to_vec(), [1; SEGMENT_SIZE]);
}

#[test]
fn panic_in_fill_leaves_the_pool_usable() {
    let mut pool = create_test_pool(1, 4);
    let fill = || pool.allocate(8, |_| panic!("a program failed"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fill)).is_err());
    assert_eq!(pool.copy(b"on it goes").unwrap().to_vec(), b"on it goes");
    assert!(pool.allocate(100, |_| 0).unwrap().is_empty());
    assert_eq!(pool.allocate(100, |_| 1000).unwrap().len(), 100);
    let limit = SEGMENT_SIZE;
    let long = Fault::TooLong { length: SEGMENT_SIZE + 1, limit };
    assert_eq!(pool.allocate(SEGMENT_SIZE + 1, |_| 0).unwrap_err(), Error::Fault(long));
}

#[test]
fn out_of_range_operations_fail_without_change() {
    let mut pool = create_test_pool(1, 4);
    let mut aggregate = pool.copy(b"0123456789").unwrap();
    #[expect(clippy::reversed_empty_ranges, reason = "a reversed range must be refused")]
    for wrong in [0..11, 10..11, 11..11, 7..3, 0..usize::MAX, usize::MAX..usize::MAX] {
        let refused = Error::OutOfRange { from: wrong.start, to: wrong.end, length: 10 };
        assert_eq!(aggregate.subrange(wrong.clone()).unwrap_err(), refused);
        assert_eq!(aggregate.replace(wrong.clone(), Aggregate::new()).unwrap_err(), refused);
        let edited = aggregate.mutate(wrong, &mut pool, |_| panic!("nothing to edit"));
        assert_eq!(edited.unwrap_err(), refused);
    }
    aggregate.overwrite(usize::MAX, b"x", &mut pool).unwrap_err();
    aggregate.overwrite(10, b"x", &mut pool).unwrap_err();
    aggregate.overwrite(10, b"", &mut pool).unwrap();
    aggregate.truncate(11);
    aggregate.trim(0);
    assert!(aggregate.split_off(10).is_empty() && aggregate.split_off(usize::MAX).is_empty());
    assert_eq!(aggregate.contiguous_bytes(), Some(&b"0123456789"[..]));
    aggregate.trim(usize::MAX);
    assert_eq!((aggregate.len(), aggregate.slices().count()), (0, 0));
    assert_eq!(aggregate.contiguous_bytes(), Some(&[][..]));
}

#[test]
fn invalid_pointers_do_not_become_aggregates() {
    let pool =
        Pool::new(DbufId::new(1).unwrap(), PoolConfig { segment: SEGMENT_SIZE, segments: 4 })
            .unwrap();
    let fill = |bytes: &mut [u8]| bytes.len();
    let (place, _) = pool.append(3000, fill).unwrap();
    let (elsewhere, _) = pool.append(3000, fill).unwrap();
    let length_of =
        |pointer| Aggregate::from_block(pool.lease(place).unwrap(), pointer).map(|it| it.len());
    let named = |place| RichPointer::new(pool.id(), place, Class::YES);
    assert_eq!(length_of(named(place)), Ok(3000));
    assert_eq!(length_of(named(place.subrange(2999, 1))), Ok(1));
    assert_eq!(length_of(named(place.subrange(5, 0))), Ok(0));
    assert_eq!(length_of(RichPointer::hole(5)), Err(Error::Fault(Fault::Hole)));
    let other = DbufId::new(2).unwrap();
    let unknown = Error::Fault(Fault::UnknownDbuf(other));
    assert_eq!(length_of(RichPointer::new(other, place, Class::YES)), Err(unknown));
    for wrong in [elsewhere, place.subrange(1, 3000), Extent::new(1 << 30, 5)] {
        assert_eq!(length_of(named(wrong)), Err(Error::Fault(Fault::OutOfWindow(wrong))));
    }
}

#[test]
fn aggregate_is_limited_to_slices_max() {
    let mut pool = create_test_pool(1, 4);
    let mut aggregate = pool.copy(b"x").unwrap();
    while aggregate.len() < SLICES_MAX {
        aggregate.append(aggregate.clone()).unwrap();
    }
    let one = pool.copy(b"y").unwrap();
    let refused = Error::TooMany { slices: SLICES_MAX + 1 };
    assert_eq!(aggregate.append(one.clone()).unwrap_err(), refused);
    assert_eq!(aggregate.prepend(one.clone()).unwrap_err(), refused);
    assert!(aggregate.replace(5..6, one.clone()).is_err());
    assert!(aggregate.mutate(5..6, &mut pool, |_| panic!("too late")).is_err());
    assert_eq!(aggregate.len(), SLICES_MAX);
    assert_eq!(pool.usage().leased, 1);
    let mut large = create_test_pool(2, 32);
    aggregate.gather(&mut large).unwrap();
    assert_eq!(aggregate.slices().count(), SLICES_MAX / SEGMENT_SIZE);
    aggregate.append(one).unwrap();
    assert_eq!(pool.usage().leased, 1, "of 65,536 leases one is left: that of `one`");
}

/// A thread that panics releases its references (Q18 within a process).
#[test]
fn q18_panicking_thread_releases_its_leases() {
    let mut pool = create_test_pool(1, 8);
    let aggregate = pool.copy(&[5; 3 * SEGMENT_SIZE]).unwrap();
    assert_eq!(pool.usage().leased, 3);
    let threads: Vec<_> = (0..4u32)
        .map(|number| {
            let mine = aggregate.clone();
            std::thread::spawn(move || {
                let mut all = vec![mine];
                for round in 0..200usize {
                    let mut copy = all[round % all.len()].clone();
                    all.push(copy.split_off(round));
                    all.push(copy);
                    assert!(number == 0 || round < 150, "a program failed");
                }
                all.iter().map(Aggregate::len).sum::<usize>()
            })
        })
        .collect();
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().is_ok()).collect();
    assert_eq!(ended, [true, false, false, false]);
    assert_eq!(aggregate.to_vec(), [5; 3 * SEGMENT_SIZE]);
    drop(aggregate);
    assert_eq!(pool.usage().leased, 0);
}

/// An aggregate crosses by reference, and stays intact after its sender has ended (Q14 within a
/// process).
#[test]
fn q14_aggregate_crosses_by_reference() {
    let (mut headers, mut files) = (create_test_pool(1, 8), create_test_pool(2, 8));
    let mut sent = files.copy(&[3; 2 * SEGMENT_SIZE]).unwrap();
    sent.prepend(headers.copy(b"header").unwrap()).unwrap();
    let addresses: Vec<_> = sent.pieces().map(<[u8]>::as_ptr).collect();
    let expected = sent.to_vec();
    let shape =
        crossing::RingConfig { policy: OverflowPolicy::Block, ..crossing::RingConfig::default() };
    let doorbell = || Arc::new(Doorbell::new());
    let (mut writer, mut readers) = crossing(&shape, doorbell(), &[doorbell()]).unwrap();
    let entries: Vec<_> = sent.entries(BlockMetadata::default()).collect();
    let pushed = writer.push(&entries, &[&sent]).unwrap();
    assert_eq!(pushed.put, 3);
    drop(sent);
    let mut reader = readers.remove(0);
    let mut received = Aggregate::new();
    let batch = reader.peek(64).unwrap();
    let mut flags = Vec::new();
    for entry in batch.entries() {
        let lease = batch.lease(entry.pointer).unwrap();
        received.append(Aggregate::from_block(lease, entry.pointer).unwrap()).unwrap();
        flags.push(entry.context.flags);
    }
    assert_eq!(flags, [BlockFlags::FIRST, BlockFlags::NONE, BlockFlags::LAST]);
    reader.release(3).unwrap();
    writer.drop_passed_leases().unwrap();
    drop((writer, reader, headers, files));
    assert_eq!(received.to_vec(), expected);
    let here: Vec<_> = received.pieces().map(<[u8]>::as_ptr).collect();
    assert_eq!(here, addresses, "the same bytes, at the same place");
}

#[test]
fn errors_of_aggregates_state_cause_and_remedy() {
    let usage = PoolUsage { leased: 3, pinned: 1, segments: 4, free: 0 };
    let full = "the pool is full: of its 4 segments, 3 are held by leases and 1 by pins; drop \
                aggregates, or make the pool larger";
    assert_eq!(Error::Full(usage).to_string(), full);
    let range = Error::OutOfRange { from: 5, to: 9, length: 7 };
    assert_eq!(range.to_string(), "bytes 5 to 9 exceed an aggregate of 7");
    let many = Error::TooMany { slices: 70_000 };
    assert_eq!(
        many.to_string(),
        "an aggregate of 70000 slices exceeds the maximum of 65536: gather it"
    );
}

/// Measures the costs of aggregates. Run with `cargo test -p streamline-iolite --release --
/// --ignored --nocapture prints_costs_of_aggregates`.
#[test]
#[ignore = "a measurement"]
fn prints_costs_of_aggregates() {
    let config = PoolConfig { segment: 1 << 20, segments: 16 };
    let id = DbufId::new(1).unwrap();
    let mut pool = AllocationPool::new(id, config, AccessList::private(effective_ids())).unwrap();
    let data = pool.copy(&[1; 1 << 16]).unwrap();
    let header = pool.copy(&[2; 100]).unwrap();
    let of = |slices: usize| {
        let mut aggregate = Aggregate::new();
        (0..slices).for_each(|_| aggregate.append(data.clone()).unwrap());
        aggregate
    };
    let time = |what: &str, run: &mut dyn FnMut()| {
        let best = (0..7)
            .map(|_| {
                let start = std::time::Instant::now();
                (0..100_000).for_each(|_| run());
                start.elapsed().as_nanos() as f64 / 100_000.0
            })
            .fold(f64::MAX, f64::min);
        println!("{what:48} {best:9.1} ns");
    };
    for slices in [1, 2, 4, 16] {
        let aggregate = of(slices);
        time(&format!("duplicate and drop, {slices} slices"), &mut || {
            std::hint::black_box(aggregate.clone());
        });
        time(&format!("duplicate, split in the middle, append, {slices}"), &mut || {
            let mut left = aggregate.clone();
            let right = left.split_off(left.len() / 2 + 1);
            left.append(right).unwrap();
            std::hint::black_box(left);
        });
        time(&format!("all pieces looked at, {slices} slices"), &mut || {
            std::hint::black_box(aggregate.pieces().map(<[u8]>::len).sum::<usize>());
        });
    }
    time("duplicate 64 KB and prepend a header of 100 bytes", &mut || {
        let mut response = data.clone();
        response.prepend(header.clone()).unwrap();
        std::hint::black_box(response);
    });
    time("allocate 100 bytes and drop", &mut || {
        std::hint::black_box(pool.copy(&[3; 100]).unwrap());
    });
    time("mutate 4 bytes of 64 KB", &mut || {
        let mut changed = data.clone();
        changed.mutate(1000..1004, &mut pool, |bytes| bytes.fill(9)).unwrap();
        std::hint::black_box(changed);
    });
    let mut vector = vec![1u8; 1 << 16];
    time("for comparison: a vector of 64 KB is cloned", &mut || {
        vector = std::hint::black_box(vector.clone());
    });
    let start = std::time::Instant::now();
    for number in 0..2000 {
        let frozen = FrozenData::from_aggregate(DbufId::new(100 + number).unwrap(), &data).unwrap();
        std::hint::black_box(frozen.aggregate().unwrap());
    }
    let each = start.elapsed().as_nanos() as f64 / 2000.0;
    println!("{:48} {each:9.1} ns", "64 KB are frozen and mapped");
    let mut cache = checksum::ChecksumCache::new(1024);
    let of = |bytes: &[u8]| bytes.iter().fold(0u16, |sum, &byte| sum.wrapping_add(byte.into()));
    time("checksum of 64 KB, remembered", &mut || {
        std::hint::black_box(cache.aggregate_sum(&data, of));
    });
}
