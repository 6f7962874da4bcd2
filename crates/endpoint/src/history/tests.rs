//! Tests of the limits of a history, of its compression, and of freezing.

use super::*;
use crate::testing::{frame_block, frameless_block};
use abi::BlockMetadata;

fn block_at(time: Time, bytes: &[u8]) -> Block<'_> {
    Block { context: BlockMetadata { time, ..BlockMetadata::default() }, ..frame_block(bytes) }
}

fn stored_frames(history: &History, from: HistoryStart) -> Vec<(Time, Vec<u8>)> {
    let mut all = Vec::new();
    history.visit_frames_since(from, |header, bytes| all.push((header.time, bytes.to_vec())));
    all
}

#[test]
fn history_retains_frames_within_the_time_limit() {
    let mut history =
        History::new(HistoryLimits { bytes: 1 << 20, time: 10 }, CompressionMode::CallingThread);
    for time in 0..100 {
        history.push(&block_at(time, &[time as u8; 3]));
    }
    let stored = stored_frames(&history, HistoryStart::Oldest);
    assert_eq!(stored.len(), 11);
    assert_eq!(stored[0], (89, vec![89; 3]));
    assert_eq!(history.count_and_first_number(), (11, 89));
    assert_eq!(stored_frames(&history, HistoryStart::Time(97)).len(), 3);
    assert_eq!(stored_frames(&history, HistoryStart::Number(98)), stored[9..]);
    assert_eq!(
        stored_frames(&history, HistoryStart::Number(3)),
        stored,
        "evicted frames are not returned"
    );
}

/// Fills a history of 1 MB with text. The history must then contain more frames than its memory
/// could hold uncompressed, without a missing frame, and with the bytes of every frame
/// unchanged.
#[test]
fn d16_cold_frames_are_compressed_within_the_byte_limit() {
    let text =
        |number: u64| format!("GET /page/{number} HTTP/1.1 host: example.org\r\n").repeat(20);
    let limits = HistoryLimits { bytes: 1 << 20, time: 3000 };
    let mut history = History::new(limits, CompressionMode::CallingThread);
    for number in 0..8000 {
        history.push(&block_at(number, text(number).as_bytes()));
        assert!(history.memory_used() <= limits.bytes);
    }
    let (before, after) = history.compressed_totals();
    assert!(after * 4 < before && before > 4 << 20, "{before} bytes to {after}");
    let stored = stored_frames(&history, HistoryStart::Oldest);
    assert_eq!(
        stored.len(),
        3001,
        "all frames within the time limit are stored in less than half their size"
    );
    assert!(stored.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > 2 * limits.bytes);
    for (number, (time, bytes)) in (4999..).zip(&stored) {
        assert!(*time == number && *bytes == text(number).into_bytes(), "{number}");
    }
    assert_eq!(stored_frames(&history, HistoryStart::Number(7000)), stored[2001..]);
    history.clear();
    assert_eq!(
        (history.memory_used(), stored_frames(&history, HistoryStart::Oldest).len()),
        (0, 0)
    );
}

/// A separate thread compresses frames within the byte limit, and changes neither their order nor
/// their bytes, even while some frames are still queued for the thread.
#[test]
fn d16_compression_thread_does_not_delay_the_caller() {
    let mut random = testkit::Random::with_replayable_seed();
    let limits = HistoryLimits { bytes: 1 << 20, time: Time::MAX };
    let mut history = History::new(limits, CompressionMode::OwnThread);
    let frame = |number: u64, noise: &[u8]| match number / 500 % 4 {
        3 => noise.to_vec(),
        _ => format!("GET /page/{number} HTTP/1.1 host: example.org\r\n").repeat(20).into_bytes(),
    };
    let mut all = Vec::new();
    let mut most = RetainedFrames::default();
    testkit::wait_until("a history longer than its memory", || {
        let noise = random.bytes(900);
        let number = all.len() as u64;
        all.push(frame(number, &noise));
        history.push(&block_at(number, &all[all.len() - 1]));
        assert!(history.memory_used() <= limits.bytes);
        let kept = history.retained_frame_counts();
        assert_eq!(kept.stored, history.memory_used() as u64);
        if kept.bytes > most.bytes {
            most = kept;
        }
        if number.is_multiple_of(400) {
            let stored = stored_frames(&history, HistoryStart::Oldest);
            let first = all.len() - stored.len();
            assert_eq!(stored.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>(), kept.bytes);
            for (number, (time, bytes)) in (first..).zip(&stored) {
                assert!(*time == number as u64 && *bytes == all[number], "{number}");
            }
        }
        all.len() > 4000 && most.bytes > 2 * limits.bytes as u64
    });
    let (before, after) = history.compressed_totals();
    assert!(after * 4 < before, "{before} {after}");
    history.clear();
    assert_eq!(history.retained_frame_counts(), RetainedFrames::default());
}

/// After the history is cleared, the compression thread first finishes the jobs of the evicted
/// chunks. It then accepts and compresses new chunks.
#[test]
fn d16_compression_thread_continues_after_a_clear() {
    let limits = HistoryLimits { bytes: 1 << 20, time: Time::MAX };
    let mut history = History::new(limits, CompressionMode::OwnThread);
    let (packer, begin) = CompressionThread::new_paused();
    history.compression_thread = Some(packer);
    let push_all = |history: &mut History, times: std::ops::Range<Time>| {
        times.for_each(|time| history.push(&block_at(time, &[time as u8; 1000])));
    };
    push_all(&mut history, 0..1000);
    assert!(history.compression_thread.as_ref().is_some_and(CompressionThread::is_full));
    history.clear();
    push_all(&mut history, 1000..2000);
    // No chunk is passed to the thread while it is full.
    assert_eq!(history.cold.stored_size(), 0);
    drop(begin);
    let mut time = 2000;
    testkit::wait_until("a thread that compresses", || {
        push_all(&mut history, time..time + 100);
        time += 100;
        history.compressed_totals().0 > 4 * limits.bytes as u64
    });
    for (time, bytes) in stored_frames(&history, HistoryStart::Oldest) {
        assert_eq!(bytes, [time as u8; 1000]);
    }
}

#[test]
fn d16_random_frames_remain_uncompressed() {
    let mut random = testkit::Random::with_replayable_seed();
    let mut history = History::new(
        HistoryLimits { bytes: 1 << 20, time: Time::MAX },
        CompressionMode::CallingThread,
    );
    for time in 0..4000 {
        history.push(&block_at(time, &random.bytes(1000)));
    }
    assert_eq!(history.compressed_totals(), (0, 0));
    assert!(history.count_and_first_number().0 > 900, "{:?}", history.count_and_first_number());
}

#[test]
fn v9_frozen_history_keeps_its_frames_and_counts_skipped_ones() {
    let limits = HistoryLimits { bytes: 10 * (100 + FRAME_OVERHEAD_BYTES), time: 50 };
    let mut history = History::new(limits, CompressionMode::CallingThread);
    for time in 1..=8 {
        history.push(&block_at(time, &[time as u8; 100]));
    }
    history.freeze(1000);
    for time in [9, 10, 11, 12, 999] {
        history.push(&block_at(time, &[7; 100]));
    }
    let stored = stored_frames(&history, HistoryStart::Oldest);
    assert!(
        stored.iter().map(|(time, _)| *time).eq(1..=10),
        "frames beyond the time limit are stored too"
    );
    assert_eq!((history.count_and_first_number(), history.skipped_frame_count()), ((10, 0), 3));
    assert!(history.memory_used() <= limits.bytes);
    // The skipped frames leave a gap. The history is cleared and begins again after the gap.
    history.push(&block_at(1000, &[8; 100]));
    assert_eq!((history.count_and_first_number(), history.skipped_frame_count()), ((1, 13), 0));
    history.freeze(5000);
    history.freeze(0);
    history.push(&block_at(1060, &[9; 100]));
    assert_eq!(history.count_and_first_number(), (1, 14));
}

#[test]
fn history_evicts_frames_beyond_the_byte_limit() {
    let limits = HistoryLimits { bytes: 1000, time: Time::MAX };
    let mut history = History::new(limits, CompressionMode::CallingThread);
    for length in (0..400).chain([2000, 10]) {
        history.push(&block_at(5, &vec![7; length]));
        assert!(history.memory_used() <= limits.bytes);
    }
    assert_eq!(
        history.count_and_first_number(),
        (1, 401),
        "only the frame after a too long one is stored"
    );
    history.push(&frameless_block(b"no frame"));
    assert_eq!(history.count_and_first_number(), (0, 403));
}
