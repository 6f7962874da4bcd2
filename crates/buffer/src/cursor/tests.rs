//! Tests that each control word has one writer, and that polled words do not share cache lines.

use super::*;
use crate::atomic::Ordering;
use crate::join::JoinQueue;
use crate::wait::Sleeper;
use abi::ring::LINE_WORDS;

/// Returns the values of all words of a control page.
fn page_words(page: &Region) -> Vec<u64> {
    page.words().iter().take(8 * LINE_WORDS).map(|word| word.load(Ordering::Relaxed)).collect()
}

/// Each party writes only its own page. No cache line therefore alternates between two writers, and
/// a reader needs write access only to its own page.
#[test]
fn d12_each_party_writes_only_its_own_page() {
    for policy in [OverflowPolicy::Block, OverflowPolicy::DropNew, OverflowPolicy::Overwrite] {
        let store = RingMemory::heap(512, 4096, policy, 2);
        let pages = || {
            let readers = store.readers.iter().map(|page| page_words(page));
            std::iter::once(page_words(&store.writer)).chain(readers).collect::<Vec<_>>()
        };
        let mut writer = WriterCursor::new(store.clone());
        let mut readers = [0, 1].map(|index| ReaderCursor::new(store.clone(), index));
        let mut sleepers = [(); 3].map(|()| Sleeper::default());
        for round in 1..100 {
            let before = pages();
            writer.free_positions(64).unwrap();
            writer.head += 64;
            writer.counts.blocks += 1;
            writer.announce_overwrite(writer.head);
            writer.mark_resume_position(writer.head);
            writer.publish();
            sleepers[2].announce_sleep(&store.writer, writer::WAIT, 0);
            let written = pages();
            assert_ne!(written[0], before[0], "{policy:?}, round {round}");
            assert_eq!(written[1..], before[1..], "the writer writes its own page alone");
            for (at, reader) in readers.iter_mut().enumerate() {
                let before = pages();
                reader.next = reader.available_position().unwrap();
                reader.taken.blocks += 1;
                reader.release();
                sleepers[at].announce_sleep(&store.readers[at], reader::WAIT, 0);
                let read = pages();
                assert_ne!(read[1 + at], before[1 + at]);
                let others = (0..3).filter(|page| *page != 1 + at);
                others.for_each(|page| assert_eq!(read[page], before[page], "page {page}"));
            }
        }
        let before = pages();
        readers[1].leave();
        assert!(pages()[..2] == before[..2] && pages()[2] != before[2]);
    }
}

/// Words that the other party polls are on separate pairs of cache lines, so stores to other words
/// do not disturb the polling.
#[test]
fn d12_polled_words_do_not_share_cache_lines() {
    use abi::ring::{reader, writer};
    let lines = |words: &[usize]| {
        let mut lines: Vec<_> = words.iter().map(|word| word / LINE_WORDS).collect();
        lines.dedup();
        lines.len()
    };
    let (w, r) = (
        [
            writer::RESERVED_POSITION,
            writer::COMMITTED_POSITION,
            writer::RESUME_POSITION,
            writer::STATE,
            writer::WAIT,
        ],
        [reader::RELEASED_POSITION, reader::STATE, reader::WAIT],
    );
    assert_eq!((lines(&w), lines(&r)), (w.len(), r.len()));
    assert_eq!(LINE_WORDS * 8, 128, "processors fetch lines in pairs");
    let store = RingMemory::heap(8, 64, OverflowPolicy::Block, 2);
    let regions = [&store.writer, &*store.readers[0], &*store.readers[1]];
    assert!(regions.iter().all(|region| region.words().as_ptr().addr().is_multiple_of(128)));
}

/// A joining reader stores a forged position in its page before the writer learns of the reader.
/// The reader is evicted for every forged position, and the writer's room neither grows nor
/// shrinks.
#[test]
fn t3_joining_reader_with_a_forged_position_is_evicted() {
    for forged in [1 << 40, u64::MAX, 4096 + 64, 64] {
        let store = RingMemory::heap(512, 4096, OverflowPolicy::Block, 1);
        let mut writer = WriterCursor::new(store.clone());
        let queue = Arc::new(JoinQueue::default());
        writer.accept_joins_from(Arc::clone(&queue));
        writer.head += 128;
        writer.publish();
        let page = Arc::new(Region::heap(reader::WAIT + LINE_WORDS));
        queue.join(Arc::clone(&page), None, || 128).unwrap();
        page.word(reader::RELEASED_POSITION).store(forged, Ordering::Release);
        // The other reader has read nothing.
        for _ in 0..3 {
            assert_eq!(writer.refresh_reader_positions().unwrap(), 0, "{forged}");
            assert_eq!(writer.free_positions(4096).unwrap(), 4096 - 128, "{forged}");
            assert_eq!(writer.evicted_readers(), 1, "{forged}");
        }
    }
}
