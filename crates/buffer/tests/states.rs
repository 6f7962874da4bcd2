//! Published state of filters, between users: access rights, and the state left by a killed writer.
//! [Th §5.3.3], FEATURES M3

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use abi::access::AccessList;
use common::{Other, receive, say, until, within};
use std::io::stdin;
use std::sync::atomic::{AtomicU32, Ordering};
use streamline_buffer::name::Error;
use streamline_buffer::state::{Column, Look, Reader, Shape, Writer};
use sys::process::NOBODY;

fn named(of: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("states-{}-{}-{of}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn shape() -> Shape {
    let column = |name: &str| Column { name: name.to_owned(), unit: "blocks".to_owned() };
    Shape { filter: "count".to_owned(), columns: vec![column("one"), column("two")], rows: 4 }
}

/// The bits decide who gets a descriptor, and that is no way to write; a writer does not notice.
#[test]
fn m3_another_user_sees_what_the_bits_let_it() {
    for (mode, opens) in [(0o644, true), (0o640, false), (0o600, false), (0o666, true)] {
        // Each its own: a process that another test starts has our sockets until it is another
        // program.
        let name = named("bits");
        let access = AccessList::new(0, 0, mode);
        let mut writer = Writer::create(&name, access, shape()).unwrap();
        writer.put(1, Some(&[3, 4]));
        writer.end(9);
        let Some(other) = Other::start(&format!("look 0/{name}")) else { return };
        let said = other.line().unwrap();
        if opens {
            assert_eq!(said, "count [\"one\", \"two\"] [[3, 4]] read only");
            writer.put(1, Some(&[5, 6]));
            writer.end(10);
            other.say("again");
            assert_eq!(other.line().unwrap(), "[[5, 6]] ended: false");
            drop(writer);
            other.say("again");
            assert_eq!(other.line().unwrap(), "[[5, 6]] ended: true");
            other.say("done");
        } else {
            assert!(said.contains("user 65534, group 65534, may not open"), "{said}");
            assert!(said.contains(&format!("has mode {:03o}", mode & 0o444)), "{said}");
        }
        other.succeeds();
    }
}

/// A writer that is killed in the middle of a change: who has it open is told at once, gets every
/// row that is whole, and the name is free.
#[test]
fn m3_a_writer_that_is_killed_leaves_no_half_of_a_row() {
    let name = named("killed");
    for round in 0..10 {
        let Some(mut other) = Other::start(&format!("write {name}")) else { return };
        assert_eq!(other.line().unwrap(), "writes");
        let reader = Reader::open(&format!("{NOBODY}/{name}")).unwrap();
        until("rows", || reader.look().rows.len() == 4);
        assert!(!reader.has_ended());
        other.kill();
        let ended = within("the end of who was killed", || {
            sys::poll::readable(&[reader.host().unwrap()], None);
            reader.look()
        });
        let Look { rows, torn, ended, .. } = ended;
        assert!(ended && torn <= 1 && rows.len() + torn == 4, "{round}: {rows:?} {torn}");
        assert!(rows.iter().all(|row| row[0] == row[1]), "{round}: {rows:?}");
        assert_eq!(reader.look().rows, rows, "nothing changes any more");
        let gone = Reader::open(&format!("{NOBODY}/{name}")).unwrap_err();
        assert!(matches!(gone, Error::Unknown(_)), "{gone}");
    }
}

/// A reader that is stopped holds nobody up, and one that is killed gives its place back.
#[test]
fn m3_readers_hold_nobody_up() {
    let name = named("readers");
    let access = AccessList::new(0, 0, 0o644);
    let mut writer = Writer::create(&name, access, shape()).unwrap();
    for _ in 0..5 {
        let mut readers = Vec::new();
        // With one more, which each of them looks at and lets go, as many as one untrusted peer may
        // have.
        for _ in 0..7 {
            let Some(other) = Other::start(&format!("look 0/{name}")) else { return };
            other.line().unwrap();
            readers.push(other);
        }
        for now in 0..1000 {
            writer.put(0, Some(&[now, now]));
            writer.end(now);
        }
        assert_eq!(Reader::open(&name).unwrap().look().rows, [[999, 999]]);
        readers.iter_mut().for_each(Other::kill);
        // Their places are free when the kernel has taken their sockets.
        until("a place", || {
            let Some(other) = Other::start(&format!("look 0/{name}")) else { return true };
            other.line().is_some_and(|said| said.starts_with("count"))
        });
    }
}

// ---- there

#[test]
#[ignore = "what the other process runs"]
fn the_other_process() {
    let Some(role) = common::role() else { return };
    let (role, name) = role.split_once(' ').unwrap();
    match role {
        "look" => look(name),
        "write" => {
            let mut writer =
                Writer::create(name, AccessList::new(NOBODY, NOBODY, 0o644), shape()).unwrap();
            say("writes");
            for now in 0.. {
                (0..4).for_each(|at| writer.put(at, Some(&[now, now])));
                writer.end(now);
            }
        }
        _ => panic!("no role {role}"),
    }
}

fn look(name: &str) {
    let reader = match Reader::open(name) {
        Ok(reader) => reader,
        Err(error) => return say(&error.to_string()),
    };
    let shape = reader.shape();
    let columns: Vec<&str> = shape.columns.iter().map(|column| column.name.as_str()).collect();
    // The descriptor as it comes, before it is mapped.
    let socket = format!("streamline-state/{name}");
    let visit =
        sys::abstract_socket::connect_to(socket.as_bytes(), common::patience::limit()).unwrap();
    let (_, files) = receive(&visit);
    let file = sys::memory::Memfd::from_fd(files.into_iter().next().unwrap()).unwrap();
    assert!(file.map().is_err(), "no mapping that writes");
    drop(visit);
    say(&format!("{} {columns:?} {:?} read only", shape.filter, reader.look().rows));
    loop {
        let (said, _) = receive(stdin());
        if said != b"again" {
            return;
        }
        let look = reader.look();
        say(&format!("{:?} ended: {}", look.rows, look.ended));
    }
}
