//! All interleavings of a writer and a reader of rows, up to a bound of preemptions. Tried on
//! purpose: without either fence of a change a model fails. With a relaxed store at its end none
//! does, though the language asks for the release.

use super::rows::{HEAD, Reading, Seen, close, get, open, put};
use crate::atomic::Ordering;
use crate::region::Region;
use loom::sync::Arc;
use loom::thread;

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

const ROW: usize = HEAD + 2;

#[test]
fn m3_nobody_reads_half_of_a_row() {
    model(|| {
        let region = Arc::new(Region::heap(ROW));
        let writing = {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                put(&region.words()[..ROW], Some(&[1, 1]));
                put(&region.words()[..ROW], None);
                put(&region.words()[..ROW], Some(&[3, 3]));
            })
        };
        let mut out = [0; 2];
        match get(&region.words()[..ROW], &mut out) {
            Seen::Numbers => assert!(out == [1, 1] || out == [3, 3], "{out:?}"),
            Seen::Nothing | Seen::Torn => {}
        }
        writing.join().unwrap();
        assert_eq!((get(&region.words()[..ROW], &mut out), out), (Seen::Numbers, [3, 3]));
    });
}

#[test]
fn m3_two_rows_are_of_one_moment_where_the_lock_of_all_did_not_change() {
    model(|| {
        let region = Arc::new(Region::heap(1 + 2 * ROW));
        let writing = {
            let region = Arc::clone(&region);
            thread::spawn(move || {
                let words = region.words();
                open(&words[0]);
                put(&words[1..1 + ROW], Some(&[1, 1]));
                put(&words[1 + ROW..1 + 2 * ROW], Some(&[1, 1]));
                close(&words[0]);
            })
        };
        let words = region.words();
        if let Some(reading) = Reading::begin(&words[0]) {
            let (mut one, mut other) = ([0; 2], [0; 2]);
            let seen =
                (get(&words[1..1 + ROW], &mut one), get(&words[1 + ROW..1 + 2 * ROW], &mut other));
            if reading.is_whole(&words[0]) {
                assert_eq!((seen.0, one), (seen.1, other));
                assert_ne!(seen.0, Seen::Torn);
            }
        }
        writing.join().unwrap();
        assert_eq!(words[0].load(Ordering::Relaxed), 2);
    });
}
