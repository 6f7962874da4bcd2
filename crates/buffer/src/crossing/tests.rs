//! Tests of crossings within one thread and between three: block contents, leases, rejected
//! entries, counts.

use super::*;
use crate::WriterCounts;
use crate::ibuf::{EntryColumns, PushResult};
use crate::pool::Pool;
use crate::pool::PoolConfig;
use crate::signal::spin_limit_for_processors;
use abi::{BlockMetadata, Class, DbufId, Entry, Marks, RichPointer};

fn create_pool(id: u32) -> Pool {
    Pool::new(DbufId::new(id).unwrap(), PoolConfig { segment: 4096, segments: 8 }).unwrap()
}

fn create_doorbells(count: usize) -> Vec<Arc<Doorbell>> {
    (0..count).map(|_| Arc::new(Doorbell::new())).collect()
}

fn ring_config(entries: usize, policy: OverflowPolicy) -> RingConfig {
    RingConfig { entries, policy, ..RingConfig::default() }
}

/// Appends a block of `length` bytes to the pool, filled with a pattern derived from `number`. The
/// view of the returned entry omits 4 bytes at each end of the block. Returns `None` if the pool is
/// full.
fn append_block(pool: &Pool, number: u64, length: usize) -> Option<Entry> {
    let (place, _) = pool.append(length, |bytes| {
        fill_pattern(bytes, number);
        bytes.len()
    })?;
    let view = RichPointer::new(pool.id(), place.subrange(4, length as u32 - 8), Class::YES);
    let marks = {
        let mut marks = Marks::frame(1, length as u32, length as u32);
        marks.view = 4;
        marks
    };
    Some(Entry::new(view, BlockMetadata { time: number, ..BlockMetadata::default() }, marks))
}

fn fill_pattern(bytes: &mut [u8], number: u64) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (number.wrapping_mul(31).wrapping_add(i as u64)) as u8;
    }
}

fn check_entry(batch: &Batch<'_>, index: usize) {
    let entry = batch.entry(index);
    let frame = batch.frame(index).unwrap();
    let mut expected = vec![0; entry.marks.captured as usize];
    fill_pattern(&mut expected, entry.context.time);
    assert_eq!(frame, expected, "block {}", entry.context.time);
    assert_eq!(batch.bytes(index).unwrap(), &expected[4..expected.len() - 4]);
}

#[test]
fn segments_are_leased_until_the_slowest_reader_passed() {
    let mut pool = create_pool(1);
    let doorbell = create_doorbells(3);
    let (mut writer, mut readers) =
        crossing(&ring_config(64, OverflowPolicy::Block), doorbell[0].clone(), &doorbell[1..])
            .unwrap();
    for number in 0..6 {
        let entry = append_block(&pool, number, 1500).unwrap();
        assert_eq!(writer.push(&[entry], &[&pool]).unwrap().put, 1);
    }
    assert_eq!(writer.drop_passed_leases(), Ok(3));
    pool.end_pass();
    assert_eq!(pool.usage().leased, 3);
    for (index, reader) in readers.iter_mut().enumerate() {
        let batch = reader.peek(100).unwrap();
        assert_eq!(batch.len(), 6);
        (0..6).for_each(|i| check_entry(&batch, i));
        reader.release(6).unwrap();
        let left = writer.drop_passed_leases().unwrap();
        assert_eq!(left, if index == 0 { 3 } else { 0 });
    }
    pool.end_pass();
    assert_eq!(pool.usage().leased, 0);
    assert_eq!(writer.reader_counts(0), Some(readers[0].counts()));
    assert_eq!(writer.counts().resident_blocks(&readers[1].counts()), Some(0));
}

/// A reader's release does not wake a writer that sleeps for a reason other than lack of room.
#[test]
fn writer_is_woken_for_room_only_if_it_waits_for_it() {
    let pool = create_pool(1);
    let doorbell = create_doorbells(2);
    let (mut writer, mut readers) =
        crossing(&ring_config(64, OverflowPolicy::Block), doorbell[0].clone(), &doorbell[1..])
            .unwrap();
    for waits in [true, false, true] {
        let entry = append_block(&pool, 1, 100).unwrap();
        assert_eq!(writer.push(&[entry], &[&pool]).unwrap().put, 1);
        doorbell[0].set_waits_for_room(waits);
        let _ticket = doorbell[0].prepare_to_sleep();
        assert_eq!(readers[0].peek(1).unwrap().len(), 1);
        readers[0].release(1).unwrap();
        assert_eq!(doorbell[0].has_unnotified_sleeper(), !waits);
    }
    doorbell[0].set_waits_for_room(false);
    let _ticket = doorbell[0].prepare_to_sleep();
    drop(readers);
    assert!(
        !doorbell[0].has_unnotified_sleeper() && writer.is_abandoned(),
        "the last reader's exit always notifies"
    );
}

/// Pushes entries from one pool by [`CrossingWriter::push_columns`]. Returns its result.
fn put_columns(
    writer: &mut CrossingWriter,
    entries: &[Entry],
    origin: &Pool,
) -> Result<bool, Fault> {
    let pointers: Vec<_> = entries.iter().map(|entry| entry.pointer).collect();
    let context: Vec<_> = entries.iter().map(|entry| entry.context).collect();
    let marks: Vec<_> = entries.iter().map(|entry| entry.marks).collect();
    let columns = Columns { pointers: &pointers, metadata: &context, marks: &marks };
    writer.push_columns(columns, &[origin])
}

#[test]
fn pushed_columns_arrive_like_pushed_entries() {
    for lanes in [EntryColumns::Pointer, EntryColumns::Metadata, EntryColumns::Marks] {
        let mut pool = create_pool(1);
        let doorbell = create_doorbells(2);
        let config = RingConfig { columns: lanes, ..ring_config(8, OverflowPolicy::Block) };
        let (mut writer, mut readers) =
            crossing(&config, doorbell[0].clone(), &doorbell[1..]).unwrap();
        let mut number = 0;
        let mut taken = WriterCounts::default();
        // Five of eight slots each time, so that every position wraps around the ring's end.
        for _ in 0..20 {
            let entries: Vec<Entry> = (number..number + 5)
                .map(|number| append_block(&pool, number, 200).unwrap())
                .collect();
            number += 5;
            let one_segment = entries.windows(2).all(|two| {
                let segment = |entry: &Entry| entry.frame().place.position() / 4096;
                segment(&two[0]) == segment(&two[1])
            });
            assert_eq!(put_columns(&mut writer, &entries, &pool), Ok(one_segment));
            if !one_segment {
                assert_eq!(writer.push(&entries, &[&pool]).unwrap().put, 5);
            }
            assert_eq!(put_columns(&mut writer, &entries, &pool), Ok(false), "no room");
            pool.end_pass();
            let batch = readers[0].peek(8).unwrap();
            assert_eq!(batch.len(), 5);
            for (i, entry) in entries.iter().enumerate() {
                let crossed = batch.entry(i);
                let all = lanes == EntryColumns::Marks;
                assert_eq!(crossed.pointer, entry.pointer);
                assert_eq!(
                    crossed.context.time,
                    if lanes == EntryColumns::Pointer { 0 } else { entry.context.time }
                );
                assert_eq!(crossed.marks == entry.marks, all);
                assert_eq!(batch.bytes(i).unwrap().len(), 192);
                if all {
                    check_entry(&batch, i);
                }
            }
            readers[0].release(5).unwrap();
            taken.blocks += 5;
            taken.bytes += 5 * 192;
            assert_eq!(
                (writer.counts().blocks, writer.counts().bytes),
                (taken.blocks, taken.bytes)
            );
        }
        assert_eq!(writer.drop_passed_leases(), Ok(0));
    }
}

#[test]
fn mixed_or_invalid_columns_are_not_put() {
    let (mine, other) = (create_pool(1), create_pool(2));
    let doorbell = create_doorbells(2);
    let (mut writer, mut readers) =
        crossing(&ring_config(64, OverflowPolicy::Block), doorbell[0].clone(), &doorbell[1..])
            .unwrap();
    let [good, beside] = [1, 2].map(|number| append_block(&mine, number, 1500).unwrap());
    let elsewhere = append_block(&mine, 3, 1500).unwrap();
    let foreign = append_block(&other, 1, 100).unwrap();
    let hole =
        Entry::new(RichPointer::hole(99), BlockMetadata::default(), Marks::for_plain_block(99));
    let mut empty = beside;
    empty.pointer = empty.pointer.subrange(0, 0);
    let mut longer = beside;
    longer.pointer = beside.pointer.subrange(0, 1600);
    let mut cut = beside;
    cut.marks.captured = 5000;
    let mut before = beside;
    before.marks.view = 3000;
    for odd in [elsewhere, foreign, hole, empty, longer, cut, before] {
        for entries in [[good, odd], [odd, good]] {
            let put = put_columns(&mut writer, &entries, &mine);
            assert!(!matches!(put, Ok(true)), "{entries:?}: {put:?}");
            assert_eq!(readers[0].peek(9).unwrap().len(), 0, "{entries:?}");
        }
    }
    let (pointers, context) = ([good.pointer, beside.pointer], [good.context, beside.context]);
    for (contexts, marks) in [(1, 2), (2, 1), (2, 0)] {
        let (context, marks) = (&context[..contexts], &[good.marks, beside.marks][..marks]);
        let uneven = Columns { pointers: &pointers, metadata: context, marks };
        assert_eq!(writer.push_columns(uneven, &[&mine]), Ok(false));
    }
    assert_eq!(readers[0].peek(9).unwrap().len(), 0);
    assert_eq!(put_columns(&mut writer, &[], &mine), Ok(true));
    assert_eq!(put_columns(&mut writer, &[good, beside], &mine), Ok(true));
    assert_eq!(writer.counts().blocks, 2);
    drop(readers);
    assert_eq!(put_columns(&mut writer, &[good], &mine), Err(Fault::Abandoned));
}

#[test]
fn entries_that_contradict_their_memory_are_rejected() {
    let (mine, other) = (create_pool(1), create_pool(2));
    let twin = create_pool(1);
    let doorbell = create_doorbells(2);
    let (mut writer, mut readers) =
        crossing(&ring_config(64, OverflowPolicy::Block), doorbell[0].clone(), &doorbell[1..])
            .unwrap();
    let good = append_block(&mine, 1, 100).unwrap();
    let foreign = append_block(&other, 1, 100).unwrap();
    let refused = |writer: &mut CrossingWriter, entry, origins: &[&dyn Origin]| {
        writer.push(&[good, entry], origins).unwrap_err()
    };
    assert_eq!(refused(&mut writer, foreign, &[&mine]), Fault::UnknownDbuf(other.id()));
    let mut longer = good;
    longer.pointer = good.pointer.subrange(0, 100);
    assert!(matches!(refused(&mut writer, longer, &[&mine]), Fault::OutOfWindow(_)));
    let mut cut = good;
    cut.marks.captured = 5000;
    assert!(matches!(refused(&mut writer, cut, &[&mine]), Fault::CrossesSegment(_)));
    // Another pool under an id that is already registered: C5.
    let long = append_block(&twin, 1, 4000).unwrap();
    let late = append_block(&twin, 2, 4000).unwrap();
    assert!(refused(&mut writer, long, &[&twin]) != Fault::Hole);
    assert_eq!(refused(&mut writer, late, &[&twin]), Fault::UnknownDbuf(twin.id()));
    assert_eq!(readers[0].peek(9).unwrap().len(), 0, "nothing was put");
    let hole =
        Entry::new(RichPointer::hole(99), BlockMetadata::default(), Marks::for_plain_block(99));
    assert_eq!(writer.push(&[hole, foreign], &[&mine, &other]).unwrap().put, 2);
    let batch = readers[0].peek(9).unwrap();
    assert_eq!(batch.bytes(0), Err(Fault::Hole));
    check_entry(&batch, 1);
    assert_eq!(batch.bytes(2), Err(Fault::Hole), "out of range");
}

#[test]
fn block_passes_two_crossings_without_copy() {
    let mut pool = create_pool(1);
    let doorbell = create_doorbells(3);
    let (mut first, mut middle) =
        crossing(&ring_config(8, OverflowPolicy::Block), doorbell[0].clone(), &doorbell[1..2])
            .unwrap();
    let (mut second, mut last) =
        crossing(&ring_config(8, OverflowPolicy::Block), doorbell[1].clone(), &doorbell[2..])
            .unwrap();
    first.push(&[append_block(&pool, 7, 3000).unwrap()], &[&pool]).unwrap();
    let batch = middle[0].peek(8).unwrap();
    let address = batch.bytes(0).unwrap().as_ptr();
    second.push(&[batch.entry(0)], &[&batch]).unwrap();
    let outside = batch.entry(0).pointer.place.subrange(1 << 19, 1);
    assert!(batch.resolve(RichPointer::new(pool.id(), outside, Class::YES)).is_err());
    middle[0].release(1).unwrap();
    assert_eq!(first.drop_passed_leases().unwrap(), 0);
    for number in 0..20 {
        pool.end_pass();
        append_block(&pool, 100 + number, 3000).unwrap();
    }
    let batch = last[0].peek(8).unwrap();
    check_entry(&batch, 0);
    assert_eq!(batch.bytes(0).unwrap().as_ptr(), address);
    let lease = batch.lease(batch.entry(0).pointer).unwrap();
    drop((second, last));
    for number in 0..20 {
        pool.end_pass();
        append_block(&pool, 100 + number, 3000).unwrap();
    }
    assert_eq!(pool.usage().leased, 1, "kept by the lease alone");
    drop(lease);
    pool.end_pass();
    assert_eq!(pool.usage().leased, 0);
}

#[test]
fn leases_outlive_an_exited_writer() {
    let mut pool = create_pool(1);
    let doorbell = create_doorbells(2);
    let (mut writer, mut readers) =
        crossing(&ring_config(8, OverflowPolicy::Block), doorbell[0].clone(), &doorbell[1..])
            .unwrap();
    writer.push(&[append_block(&pool, 7, 3000).unwrap()], &[&pool]).unwrap();
    drop(writer);
    for number in 0..20 {
        pool.end_pass();
        append_block(&pool, number, 3000).unwrap();
    }
    drop(pool);
    let mut reader = readers.remove(0);
    let batch = reader.peek(8).unwrap();
    check_entry(&batch, 0);
    assert!(!reader.is_finished().unwrap());
    reader.release(1).unwrap();
    assert!(reader.is_finished().unwrap());
}

#[test]
fn crossing_rejects_overwriting_policy() {
    let doorbell = create_doorbells(2);
    let made =
        crossing(&ring_config(8, OverflowPolicy::Overwrite), doorbell[0].clone(), &doorbell[1..]);
    assert_eq!(made.map(|_| ()), Err(Fault::Lossy));
}

/// Two readers of different speeds read from a pool of eight segments, with a blocking writer and
/// with a dropping writer. Contents are intact, every block is counted, and the pool is free again
/// at the end.
#[test]
fn threads_under_pressure_read_intact_blocks() {
    const BLOCK_COUNT: u64 = if cfg!(miri) { 100 } else { 20_000 };
    let spin = spin_limit_for_processors(processor_count());
    for policy in [OverflowPolicy::Block, OverflowPolicy::DropNew] {
        let doorbell = create_doorbells(3);
        let (mut writer, readers) =
            crossing(&ring_config(16, policy), doorbell[0].clone(), &doorbell[1..]).unwrap();
        std::thread::scope(|scope| {
            for (mut reader, doorbell) in readers.into_iter().zip(&doorbell[1..]) {
                scope.spawn(move || {
                    let mut last = None;
                    loop {
                        doorbell.wait_until(spin, || {
                            reader.unread_entries().unwrap() > 0 || reader.is_finished().unwrap()
                        });
                        let batch = reader.peek(5).unwrap();
                        if batch.is_empty() {
                            break;
                        }
                        for index in 0..batch.len() {
                            check_entry(&batch, index);
                            let number = batch.entry(index).context.time;
                            assert!(last.is_none_or(|last| number > last));
                            last = Some(number);
                        }
                        let count = batch.len();
                        reader.release(count).unwrap();
                    }
                    assert_eq!(reader.writer_counts().resident_blocks(&reader.counts()), Some(0));
                    let put = reader.writer_counts();
                    assert_eq!(put.blocks + put.dropped, BLOCK_COUNT, "{policy:?}");
                });
            }
            scope.spawn(|| {
                let mut pool = create_pool(1);
                let mut number = 0;
                while number < BLOCK_COUNT {
                    let length = 8 + (number % 1490) as usize;
                    let Some(entry) = append_block(&pool, number, length) else {
                        writer.wake_readers();
                        doorbell[0].wait_until(spin, || writer.drop_passed_leases().unwrap() < 8);
                        pool.end_pass();
                        continue;
                    };
                    let pushed = writer.push(&[entry], &[&pool]).unwrap();
                    if pushed == PushResult::default() {
                        writer.wake_readers();
                        doorbell[0].wait_until(spin, || writer.free_entries(1).unwrap() > 0);
                        continue;
                    }
                    number += 1;
                    if number % 4 == 0 {
                        writer.wake_readers();
                        pool.end_pass();
                    }
                }
                drop(writer);
                assert_eq!(pool.invalid_unpin_count(), 0);
            });
        });
    }
}

fn processor_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Size range in these tests, in bytes: 16 to 256 entries with marks.
const CROSSING_SCALING: crate::scale::ScalingParameters =
    crate::scale::ScalingParameters::for_pointers(16 * 64, 256 * 64);

#[test]
fn f6_full_crossing_grows_without_waiting_for_its_reader() {
    let mut pool = create_pool(1);
    let doorbell = create_doorbells(2);
    let (writer, mut readers) =
        crossing(&ring_config(16, OverflowPolicy::Block), doorbell[0].clone(), &doorbell[1..])
            .unwrap();
    let (mut writer, mut reader) = (writer.with_scaling(CROSSING_SCALING), readers.remove(0));
    let (mut put, mut read) = (0, 0);
    while put < 16 {
        put += writer.push(&[append_block(&pool, put, 100).unwrap()], &[&pool]).unwrap().put as u64;
    }
    assert!(writer.grow() || writer.capacity() == 32, "the reader has not read a block");
    assert_eq!((writer.capacity(), writer.unreleased_entries()), (32, 16));
    assert!(!writer.grow(), "the reader has not followed yet");
    for number in 16..48 {
        writer.push(&[append_block(&pool, number, 100).unwrap()], &[&pool]).unwrap();
    }
    assert_eq!(writer.free_entries(1), Ok(0));
    // A batch ends at the change; the next batch begins after it.
    for expected in [16, 32] {
        let batch = reader.peek(100).unwrap();
        assert_eq!(batch.len(), expected);
        for i in 0..expected {
            assert_eq!(batch.entry(i).context.time, read);
            check_entry(&batch, i);
            read += 1;
        }
        reader.release(expected).unwrap();
    }
    assert_eq!((writer.unreleased_entries(), writer.drop_passed_leases()), (0, Ok(0)));
    pool.end_pass();
    assert_eq!(pool.usage().leased, 0);
    assert_eq!(writer.counts().resident_blocks(&reader.counts()), Some(0));
    drop(writer);
    assert!(reader.peek(1).unwrap().is_empty());
    assert_eq!(reader.is_finished(), Ok(true));
}

#[test]
#[cfg_attr(miri, ignore = "4,000 blocks take minutes in Miri")]
fn f6_crossing_follows_the_pressure_within_its_range() {
    let mut pool = create_pool(1);
    let doorbell = create_doorbells(2);
    let (writer, mut readers) =
        crossing(&ring_config(256, OverflowPolicy::Block), doorbell[0].clone(), &doorbell[1..])
            .unwrap();
    let (mut writer, mut reader) = (writer.with_scaling(CROSSING_SCALING), readers.remove(0));
    let entry = append_block(&pool, 0, 100).unwrap();
    for _ in 0..2000 {
        assert_eq!(writer.push(&[entry], &[&pool]).unwrap().put, 1);
        assert_eq!(reader.peek(9).unwrap().len(), 1);
        reader.release(1).unwrap();
    }
    assert_eq!(writer.capacity(), 16, "a reader that keeps up needs the least");
    let scale = writer.sizing_state().unwrap().to_string();
    assert!(scale.contains("grown 0, shrunk 4; 1 KB: pressure "), "{scale}");
    for _ in 0..2000 {
        if writer.push(&[entry], &[&pool]).unwrap().put == 0 && !writer.grow() {
            let waiting = reader.unread_entries().unwrap();
            reader.release(waiting).unwrap();
        }
    }
    assert_eq!(writer.capacity(), 256, "a late reader gets the most");
    pool.end_pass();
}
