//! Tests of tables of published filter state within one process. `tests/states.rs` tests access by
//! other users and killed writers.

use super::*;
use crate::name::Error;
use abi::access::AccessList;
use std::sync::atomic::{AtomicBool, Ordering};
use sys::process::effective_ids;

fn unique_name(of: &str) -> String {
    format!("test-{}-{of}", std::process::id())
}

fn table_shape(columns: usize, rows: usize) -> TableShape {
    let column = |n| Column { name: format!("c{n}"), unit: "blocks".to_owned() };
    TableShape { filter: "count".to_owned(), columns: (0..columns).map(column).collect(), rows }
}

#[test]
fn m3_table_is_read_back_with_columns_and_rows() {
    let name = unique_name("plain");
    let missing = TableReader::open(&name).unwrap_err();
    assert!(missing.to_string().contains("no state is called"), "{missing}");
    let mut writer =
        TableWriter::create(&name, AccessList::private(effective_ids()), table_shape(2, 4))
            .unwrap();
    let taken = TableWriter::create(&name, AccessList::private(effective_ids()), table_shape(2, 4))
        .unwrap_err();
    assert!(matches!(taken, Error::Taken(_)), "{taken}");
    let reader = TableReader::open(&name).unwrap();
    assert_eq!(reader.shape(), writer.shape());
    let snapshot = reader.snapshot();
    assert!(
        snapshot.rows.is_empty()
            && snapshot.is_consistent
            && !snapshot.ended
            && snapshot.written_ns == 0
    );
    writer.put_row(0, Some(&[1, 2]));
    writer.put_row(3, Some(&[3, 4]));
    writer.put_row(4, Some(&[5, 6]));
    writer.end_changes(5);
    let snapshot = reader.snapshot();
    assert_eq!(
        (snapshot.rows, snapshot.left_out_sessions, snapshot.written_ns),
        (vec![vec![1, 2], vec![3, 4]], 1, 5)
    );
    writer.put_row(0, None);
    assert!(!reader.snapshot().is_consistent, "in the middle of a change");
    writer.end_changes(6);
    let snapshot = reader.snapshot();
    assert_eq!((snapshot.rows, snapshot.is_consistent), (vec![vec![3, 4]], true));
    writer.clear();
    writer.end_changes(7);
    assert!(reader.snapshot().rows.is_empty() && reader.snapshot().left_out_sessions == 0);
    let (uid, _) = effective_ids();
    let listed: Vec<String> =
        TableNames::list().unwrap().addresses().map(ToString::to_string).collect();
    assert!(listed.contains(&format!("{uid}/{name}")), "{listed:?}");
    drop(writer);
    assert!(reader.snapshot().ended);
    assert!(matches!(TableReader::open(&name), Err(Error::Unknown(_))));
}

#[test]
fn m3_no_row_is_torn_under_constant_writes() {
    let name = unique_name("busy");
    let mut writer =
        TableWriter::create(&name, AccessList::private(effective_ids()), table_shape(64, 8))
            .unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let reader = TableReader::open(&name).unwrap();
                let done = &done;
                scope.spawn(move || {
                    let (mut count, mut whole) = (0, 0);
                    while !done.load(Ordering::Relaxed) || whole == 0 {
                        let snapshot = reader.snapshot();
                        for row in &snapshot.rows {
                            assert!(row.iter().all(|number| *number == row[0]), "{row:?}");
                        }
                        if snapshot.is_consistent && snapshot.rows.len() == 8 {
                            assert!(snapshot.rows.iter().all(|row| row[0] == snapshot.rows[0][0]));
                            whole += 1;
                        }
                        count += snapshot.rows.len();
                    }
                    (count, whole)
                })
            })
            .collect();
        for round in 0..20_000 {
            (0..8).for_each(|at| writer.put_row(at, Some(&[round; 64])));
            writer.end_changes(round);
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            let (count, whole) = reader.join().unwrap();
            assert!(count > 0 && whole > 0, "{count} {whole}");
        }
    });
}

#[test]
fn m3_invalid_head_is_refused() {
    let words = |numbers: &[u64]| -> Vec<crate::atomic::AtomicU64> {
        numbers.iter().map(|number| crate::atomic::AtomicU64::new(*number)).collect()
    };
    let magic = layout::MAGIC;
    for lie in [
        vec![0; 64],
        [&[magic, 1 << 40, 1, 1][..], &[0; 60]].concat(),
        [&[magic, 8, 1 << 30, 1][..], &[0; 60]].concat(),
        [&[magic, 8, 1, 1 << 23][..], &[0; 60]].concat(),
        [&[magic, 8, 5, 1][..], &[0; 60]].concat(),
        [&[magic, u64::MAX, u64::MAX, u64::MAX][..], &[0; 60]].concat(),
        vec![magic],
    ] {
        let refused = TableShape::read(&words(&lie));
        assert!(refused.is_err(), "{lie:?}");
    }
}
