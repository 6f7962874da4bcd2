//! Tests of rings of rich pointers: entry columns, policies, concurrent threads, and hostile
//! readers and writers.

use super::*;
use abi::{Class, DbufId, Extent};

fn numbered_entry(number: u64) -> Entry {
    let pointer =
        RichPointer::new(DbufId::new(3).unwrap(), Extent::new(number, 10), Class(number as u32));
    let context = BlockMetadata { time: number, ..BlockMetadata::default() };
    Entry::new(pointer, context, Marks::frame(1, 64, 64))
}

fn ring_config(entries: usize, policy: OverflowPolicy, readers: usize) -> RingConfig {
    RingConfig { entries, policy, readers, ..RingConfig::default() }
}

/// An entry of the ring has the same size for blocks of every length.
#[test]
fn d2_ring_stores_pointers_and_no_bytes() {
    let shape = RingConfig {
        columns: EntryColumns::Pointer,
        ..ring_config(1024, OverflowPolicy::Block, 1)
    };
    let (mut writer, mut readers) = ring(&shape);
    let data = writer.cursor.store.writer.len() - DATA_OFFSET_WORDS * 8;
    assert_eq!(data, 1024 * size_of::<RichPointer>());
    let home = DbufId::new(3).unwrap();
    let long = |number: u64| RichPointer::new(home, Extent::new(number << 20, 1 << 19), Class::YES);
    let all: Vec<_> = (0..1024)
        .map(|n| Entry::new(long(n), BlockMetadata::default(), Marks::for_plain_block(0)))
        .collect();
    assert_eq!(writer.push(&all).unwrap(), PushResult { put: 1024, dropped: 0 });
    let mut entries = vec![numbered_entry(0); 1024];
    assert_eq!(readers[0].read(&mut entries).unwrap(), ReadResult { count: 1024, lost: 0 });
    assert!(entries.iter().zip(0..).all(|(entry, number)| entry.pointer == long(number)));
    assert_eq!(writer.counts().bytes, 1024 << 19, "half a gigabyte was named");
}

#[test]
fn each_entry_size_carries_its_columns() {
    for (lanes, stride) in
        [(EntryColumns::Pointer, 16), (EntryColumns::Metadata, 32), (EntryColumns::Marks, 64)]
    {
        assert_eq!(lanes.stride(), stride);
        let (mut writer, mut readers) =
            ring(&RingConfig { columns: lanes, ..RingConfig::default() });
        let sent = numbered_entry(5);
        assert_eq!(writer.push(&[sent]).unwrap().put, 1);
        let mut entries = [numbered_entry(0); 2];
        assert_eq!(readers[0].read(&mut entries).unwrap(), ReadResult { count: 1, lost: 0 });
        assert_eq!(entries[0].pointer, sent.pointer);
        assert_eq!(entries[0].context == sent.context, lanes != EntryColumns::Pointer);
        assert_eq!(entries[0].marks == sent.marks, lanes == EntryColumns::Marks);
    }
}

#[test]
fn full_ring_refuses_or_drops_by_policy() {
    let entries: Vec<_> = (0..10).map(numbered_entry).collect();
    let (mut writer, mut readers) = ring(&ring_config(8, OverflowPolicy::Block, 2));
    assert_eq!(writer.push(&entries).unwrap(), PushResult { put: 8, dropped: 0 });
    let mut out = [numbered_entry(0); 4];
    readers[0].read(&mut out).unwrap();
    assert_eq!(writer.push(&entries).unwrap().put, 0, "the slower reader counts");
    drop(readers.pop());
    assert_eq!(writer.push(&entries).unwrap().put, 4, "and no longer once it has left");
    drop(readers);
    assert_eq!(writer.push(&entries), Err(Fault::Abandoned));

    let (mut writer, mut readers) = ring(&ring_config(8, OverflowPolicy::DropNew, 1));
    assert_eq!(writer.push(&entries).unwrap(), PushResult { put: 8, dropped: 2 });
    readers[0].read(&mut out).unwrap();
    let put = writer.counts();
    assert_eq!((put.blocks, put.bytes, put.dropped, put.dropped_bytes), (8, 80, 2, 20));
    assert_eq!(put.resident_blocks(&readers[0].counts()), Some(4));
    assert_eq!(writer.reader_counts(0), Some(readers[0].counts()), "as published");
    assert_eq!(readers[0].writer_counts(), put);
}

#[test]
fn ring_finishes_after_the_last_entry() {
    let (mut writer, mut readers) = ring(&ring_config(8, OverflowPolicy::Block, 1));
    writer.push(&[numbered_entry(1)]).unwrap();
    drop(writer);
    assert!(!readers[0].is_finished().unwrap());
    readers[0].read(&mut [numbered_entry(0)]).unwrap();
    assert!(readers[0].is_finished().unwrap());
}

#[test]
fn lapped_reader_counts_its_losses() {
    let (mut writer, mut readers) = ring(&ring_config(16, OverflowPolicy::Overwrite, 1));
    let mut entries = vec![numbered_entry(0); 64];
    for _ in 0..10 {
        writer.push(&(0..10).map(numbered_entry).collect::<Vec<_>>()).unwrap();
    }
    let read = readers[0].read(&mut entries).unwrap();
    assert_eq!(read.count as u64 + read.lost, 100);
    assert_eq!(entries[read.count - 1], numbered_entry(9));
    assert_eq!(writer.counts().resident_blocks(&readers[0].counts()), Some(0));
}

#[test]
fn threads_lose_nothing_uncounted_under_any_policy() {
    const ENTRY_COUNT: u64 = 100_000;
    for policy in [OverflowPolicy::Block, OverflowPolicy::DropNew, OverflowPolicy::Overwrite] {
        let (mut writer, readers) = ring(&ring_config(64, policy, 2));
        std::thread::scope(|scope| {
            let join: Vec<_> = readers
                .into_iter()
                .map(|reader| scope.spawn(move || drain_and_count(reader, policy)))
                .collect();
            scope.spawn(move || {
                let mut next = 0;
                while next < ENTRY_COUNT {
                    let batch: Vec<_> =
                        (next..(next + 7).min(ENTRY_COUNT)).map(numbered_entry).collect();
                    let pushed = writer.push(&batch).unwrap();
                    next += (pushed.put + pushed.dropped) as u64;
                    if pushed.put == 0 {
                        std::thread::yield_now();
                    }
                }
                let put = writer.counts();
                assert_eq!(put.blocks + put.dropped, ENTRY_COUNT);
            });
            for reader in join {
                let (taken, put) = reader.join().unwrap();
                assert_eq!(put.resident_blocks(&taken), Some(0), "{policy:?}");
                assert_eq!(put.blocks + put.dropped, ENTRY_COUNT);
            }
        });
    }
}

fn drain_and_count(
    mut reader: PointerReader,
    policy: OverflowPolicy,
) -> (ReaderCounts, WriterCounts) {
    let mut entries = vec![numbered_entry(0); 32];
    let mut last = None;
    while !reader.is_finished().unwrap() {
        let read = reader.read(&mut entries).unwrap();
        if read.count == 0 {
            std::thread::yield_now();
        }
        for found in &entries[..read.count] {
            let number = found.context.time;
            assert_eq!(*found, numbered_entry(number), "torn");
            assert!(last.is_none_or(|last| number > last), "out of order");
            assert!(policy != OverflowPolicy::Block || number == last.map_or(0, |last| last + 1));
            last = Some(number);
        }
    }
    (reader.counts(), reader.writer_counts())
}

/// The writer publishes a position that it cannot have reached (T3). The reader fails with a fault.
/// A reader of an overwriting ring accepts any position ahead of its own up to 2^63 - 1, because
/// the writer does not wait for it.
#[test]
fn t3_reader_rejects_impossible_positions() {
    use abi::ring::writer::COMMITTED_POSITION;
    for policy in [OverflowPolicy::Block, OverflowPolicy::DropNew, OverflowPolicy::Overwrite] {
        for lie in [9u64, 16, 1 << 31, (1 << 32) - 1, 1 << 63, u64::MAX, 3] {
            let (mut writer, mut readers) = ring(&ring_config(8, policy, 1));
            writer.push(&(0..4).map(numbered_entry).collect::<Vec<_>>()).unwrap();
            assert_eq!(readers[0].unread_entries().unwrap(), 4);
            readers[0].cursor.next = 4;
            writer.cursor.store.writer.word(COMMITTED_POSITION).store(lie, Ordering::Release);
            let plausible = policy == OverflowPolicy::Overwrite && lie > 3 && lie <= u64::MAX >> 1;
            let looked = readers[0].cursor.refresh_published_position();
            assert_eq!(looked.is_ok(), plausible, "{policy:?} {lie}: {looked:?}");
            if !plausible {
                writer.cursor.store.writer.word(COMMITTED_POSITION).store(4, Ordering::Release);
                assert!(readers[0].read(&mut [numbered_entry(0)]).is_err(), "stays poisoned");
            }
        }
    }
}

/// A reader that publishes a position which it cannot have reached is disconnected, and counted
/// once. The ring continues for the other reader (T3).
#[test]
fn t3_lying_reader_is_evicted_and_counted_once() {
    use abi::ring::reader::RELEASED_POSITION;
    for lie in [0u64, 1, 5, 8, 9, 1 << 31, (1 << 32) - 1, 1 << 63, u64::MAX] {
        let (mut writer, mut readers) = ring(&ring_config(8, OverflowPolicy::Block, 2));
        let entries: Vec<_> = (0..4).map(numbered_entry).collect();
        writer.push(&entries).unwrap();
        for reader in &mut readers {
            reader.read(&mut [numbered_entry(0); 2]).unwrap();
        }
        writer.cursor.refresh_reader_positions().unwrap();
        writer.cursor.store.readers[0].word(RELEASED_POSITION).store(lie, Ordering::Release);
        assert_eq!(writer.cursor.refresh_reader_positions(), Ok(2), "{lie}");
        assert_eq!(writer.evicted_readers(), 1, "{lie}");
        readers[1].read(&mut [numbered_entry(0); 2]).unwrap();
        let both = [entries.clone(), entries].concat();
        assert_eq!(writer.push(&both).unwrap().put, 8, "{lie}");
        // Evicts the last reader; the refresh reports why no reader is left.
        writer.cursor.store.readers[1].word(RELEASED_POSITION).store(u64::MAX, Ordering::Release);
        assert!(
            matches!(
                writer.cursor.refresh_reader_positions(),
                Err(Fault::Poisoned { own: 12, .. })
            ),
            "{lie}"
        );
        assert_eq!((writer.evicted_readers(), writer.push(&both)), (2, Err(Fault::Abandoned)));
    }
}
