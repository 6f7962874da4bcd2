//! Tests of published filter states between users: access rights, and the state left by a killed
//! writer. [Th §5.3.3], FEATURES M3

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use abi::access::AccessList;
use common::{OtherUserProcess, receive, report, wait_until, with_watchdog};
use std::io::stdin;
use std::sync::atomic::{AtomicU32, Ordering};
use streamline_buffer::name::Error;
use streamline_buffer::state::{Column, Snapshot, TableReader, TableShape, TableWriter};
use sys::process::OVERFLOW_ID;

fn unique_name(of: &str) -> String {
    static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("states-{}-{}-{of}", std::process::id(), NEXT_NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn table_shape() -> TableShape {
    let column = |name: &str| Column { name: name.to_owned(), unit: "blocks".to_owned() };
    TableShape { filter: "count".to_owned(), columns: vec![column("one"), column("two")], rows: 4 }
}

/// The permission bits determine which users receive a descriptor, which grants no write access.
/// The writer is not affected.
#[test]
fn m3_other_user_reads_what_the_mode_permits() {
    for (mode, opens) in [(0o644, true), (0o640, false), (0o600, false), (0o666, true)] {
        // A new name each time: a process being started by another test holds copies of these
        // sockets until it executes its program.
        let name = unique_name("bits");
        let access = AccessList::new(0, 0, mode);
        let mut writer = TableWriter::create(&name, access, table_shape()).unwrap();
        writer.put_row(1, Some(&[3, 4]));
        writer.end_changes(9);
        let Some(other) = OtherUserProcess::start(&format!("look 0/{name}")) else { return };
        let reply = other.receive_line().unwrap();
        if opens {
            assert_eq!(reply, "count [\"one\", \"two\"] [[3, 4]] read only");
            writer.put_row(1, Some(&[5, 6]));
            writer.end_changes(10);
            other.send_text("again");
            assert_eq!(other.receive_line().unwrap(), "[[5, 6]] ended: false");
            drop(writer);
            other.send_text("again");
            assert_eq!(other.receive_line().unwrap(), "[[5, 6]] ended: true");
            other.send_text("done");
        } else {
            assert!(reply.contains("user 65534, group 65534, may not open"), "{reply}");
            assert!(reply.contains(&format!("has mode {:03o}", mode & 0o444)), "{reply}");
        }
        other.wait_for_success();
    }
}

/// A writer is killed in the middle of changing a row. Its reader notices immediately and receives
/// every consistent row, and the name can be claimed again.
#[test]
fn m3_killed_writer_leaves_no_torn_row_readable() {
    let name = unique_name("killed");
    for round in 0..10 {
        let Some(mut other) = OtherUserProcess::start(&format!("write {name}")) else { return };
        assert_eq!(other.receive_line().unwrap(), "writes");
        let reader = TableReader::open(&format!("{OVERFLOW_ID}/{name}")).unwrap();
        wait_until("rows", || reader.snapshot().rows.len() == 4);
        assert!(!reader.has_ended());
        other.kill();
        let ended = with_watchdog("the end of who was killed", || {
            sys::poll::wait_until_readable(&[reader.host_descriptor().unwrap()], None);
            reader.snapshot()
        });
        let Snapshot { rows, torn_rows: torn, ended, .. } = ended;
        assert!(ended && torn <= 1 && rows.len() + torn == 4, "{round}: {rows:?} {torn}");
        assert!(rows.iter().all(|row| row[0] == row[1]), "{round}: {rows:?}");
        assert_eq!(reader.snapshot().rows, rows, "nothing changes any more");
        let gone = TableReader::open(&format!("{OVERFLOW_ID}/{name}")).unwrap_err();
        assert!(matches!(gone, Error::Unknown(_)), "{gone}");
    }
}

/// A stopped reader stalls no other party. A killed reader releases its slot.
#[test]
fn m3_stopped_or_killed_readers_stall_no_writer() {
    let name = unique_name("readers");
    let access = AccessList::new(0, 0, 0o644);
    let mut writer = TableWriter::create(&name, access, table_shape()).unwrap();
    for _ in 0..5 {
        let mut readers = Vec::new();
        // Together with their short-lived connections, these readers use all slots of a user.
        for _ in 0..7 {
            let Some(other) = OtherUserProcess::start(&format!("look 0/{name}")) else { return };
            other.receive_line().unwrap();
            readers.push(other);
        }
        for now in 0..1000 {
            writer.put_row(0, Some(&[now, now]));
            writer.end_changes(now);
        }
        assert_eq!(TableReader::open(&name).unwrap().snapshot().rows, [[999, 999]]);
        readers.iter_mut().for_each(OtherUserProcess::kill);
        // Their slots are free once the kernel has closed their sockets.
        wait_until("a place", || {
            let Some(other) = OtherUserProcess::start(&format!("look 0/{name}")) else {
                return true;
            };
            other.receive_line().is_some_and(|reply| reply.starts_with("count"))
        });
    }
}

// ---- in the other process

#[test]
#[ignore = "run by another test, in a process of its own"]
fn run_other_process() {
    let Some(role) = common::child_role() else { return };
    let (role, name) = role.split_once(' ').unwrap();
    match role {
        "look" => observe_table(name),
        "write" => {
            let mut writer = TableWriter::create(
                name,
                AccessList::new(OVERFLOW_ID, OVERFLOW_ID, 0o644),
                table_shape(),
            )
            .unwrap();
            report("writes");
            for now in 0.. {
                (0..4).for_each(|at| writer.put_row(at, Some(&[now, now])));
                writer.end_changes(now);
            }
        }
        _ => panic!("no role {role}"),
    }
}

fn observe_table(name: &str) {
    let reader = match TableReader::open(name) {
        Ok(reader) => reader,
        Err(error) => return report(&error.to_string()),
    };
    let shape = reader.shape();
    let columns: Vec<&str> = shape.columns.iter().map(|column| column.name.as_str()).collect();
    // The descriptor as received, before it is mapped.
    let socket = format!("streamline-state/{name}");
    let connection =
        sys::abstract_socket::connect_to(socket.as_bytes(), common::watchdog::wait_limit())
            .unwrap();
    let (_, files) = receive(&connection);
    let file = sys::memory::Memfd::from_fd(files.into_iter().next().unwrap()).unwrap();
    assert!(file.map().is_err(), "no mapping that writes");
    drop(connection);
    report(&format!("{} {columns:?} {:?} read only", shape.filter, reader.snapshot().rows));
    loop {
        let (reply, _) = receive(stdin());
        if reply != b"again" {
            return;
        }
        let snapshot = reader.snapshot();
        report(&format!("{:?} ended: {}", snapshot.rows, snapshot.ended));
    }
}
