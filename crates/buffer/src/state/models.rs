//! Loom models of one writer and one reader of a state table, in all interleavings with a bounded
//! number of preemptions. The models fail if either fence is removed. They cannot detect a relaxed
//! store at the end of a change, although the memory model requires Release there.

use super::rows::{
    ROW_HEAD_WORDS, RowReadResult, SequenceRead, begin_change, end_locked_change, try_read_row,
    write_row,
};
use crate::atomic::Ordering;
use crate::region::Region;
use loom::sync::Arc;
use loom::thread;

fn run_model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

const ROW_WORDS: usize = ROW_HEAD_WORDS + 2;

#[test]
fn m3_no_reader_sees_a_torn_row() {
    run_model(|| {
        let region = Arc::new(Region::heap(ROW_WORDS));
        let writing = {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                write_row(&region.words()[..ROW_WORDS], Some(&[1, 1]));
                write_row(&region.words()[..ROW_WORDS], None);
                write_row(&region.words()[..ROW_WORDS], Some(&[3, 3]));
            })
        };
        let mut out = [0; 2];
        match try_read_row(&region.words()[..ROW_WORDS], &mut out) {
            RowReadResult::Numbers => assert!(out == [1, 1] || out == [3, 3], "{out:?}"),
            RowReadResult::Nothing | RowReadResult::Torn => {}
        }
        writing.join().unwrap();
        assert_eq!(
            (try_read_row(&region.words()[..ROW_WORDS], &mut out), out),
            (RowReadResult::Numbers, [3, 3])
        );
    });
}

#[test]
fn m3_rows_are_consistent_under_the_table_lock() {
    run_model(|| {
        let region = Arc::new(Region::heap(1 + 2 * ROW_WORDS));
        let writing = {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                let words = region.words();
                begin_change(&words[0]);
                write_row(&words[1..1 + ROW_WORDS], Some(&[1, 1]));
                write_row(&words[1 + ROW_WORDS..1 + 2 * ROW_WORDS], Some(&[1, 1]));
                end_locked_change(&words[0]);
            })
        };
        let words = region.words();
        if let Some(reading) = SequenceRead::begin(&words[0]) {
            let (mut one, mut other) = ([0; 2], [0; 2]);
            let read = (
                try_read_row(&words[1..1 + ROW_WORDS], &mut one),
                try_read_row(&words[1 + ROW_WORDS..1 + 2 * ROW_WORDS], &mut other),
            );
            if reading.is_consistent(&words[0]) {
                assert_eq!((read.0, one), (read.1, other));
                assert_ne!(read.0, RowReadResult::Torn);
            }
        }
        writing.join().unwrap();
        assert_eq!(words[0].load(Ordering::Relaxed), 2);
    });
}
