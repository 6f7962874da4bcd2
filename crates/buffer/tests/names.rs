//! Tests of names that several users open: permissions, the rights of a received descriptor, killed
//! processes, and hostile clients. (RELIABILITY T1, T8, T10, T12, T13, T17)

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use abi::DbufId;
use abi::access::AccessList;
use common::{OtherUserProcess, wait_until, with_watchdog};
use common::{receive, report, spawn_test_thread};
use std::io::stdin;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use streamline_buffer::Fault;
use streamline_buffer::name::{self, Error, NameHost, ReaderLimits};
use streamline_buffer::stream::{Config, Output};
use sys::process::OVERFLOW_ID;
use sys::process::effective_ids;

/// Serializes these tests, because one of them counts the descriptors of this process.
static SERIAL_TEST_LOCK: Mutex<()> = Mutex::new(());

fn stream_config() -> Config {
    Config::new(DbufId::new(1).unwrap()).capacity(16384)
}

fn unique_name(of: &str) -> String {
    format!("names-{}-{of}", std::process::id())
}

/// Starts the other process, which runs the test code for `role` with the stream or region called
/// `name`. Returns `None`, after reporting a skip, if this machine does not allow that.
fn start_in_role(role: &str, name: &str) -> Option<OtherUserProcess> {
    OtherUserProcess::start(&format!("{role} {name}"))
}

fn create_stream(host: &NameHost, name: &str, mode: u32, limits: ReaderLimits) -> Output {
    host.create(name, AccessList::new(0, 0, mode), &stream_config(), limits).unwrap()
}

/// Expects the permission bits of a stream to determine which users receive descriptors, and a
/// descriptor to grant no write access.
#[test]
fn d13_other_user_reads_only_what_the_mode_permits() {
    let _alone = SERIAL_TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let (host, name) = (NameHost::open().unwrap(), unique_name("bits"));
    for (mode, opens) in [(0o644, true), (0o640, false), (0o600, false), (0o604, true)] {
        let mut output = create_stream(&host, &name, mode, ReaderLimits::default());
        let Some(other) = start_in_role("open", &format!("0/{name}")) else { return };
        let reply = other.receive_line().unwrap();
        if opens {
            assert_eq!(reply, "opened");
            output.write(b"for all to read").unwrap();
            output.flush();
            assert_eq!(other.receive_line().unwrap(), "15 bytes");
        } else {
            assert!(reply.contains("user 65534, group 65534, may not open"), "{reply}");
            assert!(
                reply.contains(&format!("user 0, group 0, and has mode {mode:03o}")),
                "{reply}"
            );
        }
        drop(output);
        other.wait_for_success();
    }
}

/// A client that reopens its descriptor of a read-only region cannot write to the region.
#[test]
fn d17_region_is_writable_only_with_permission() {
    let _alone = SERIAL_TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let (host, name) = (NameHost::open().unwrap(), unique_name("region"));
    for (mode, expected) in [(0o644, "read only"), (0o664, "read only"), (0o666, "written")] {
        let access = AccessList::new(0, 0, mode);
        let region = host.create_region(&name, access, 4096).unwrap();
        region.write_at(8, b"here").unwrap();
        let Some(other) = start_in_role("region", &format!("0/{name}")) else { return };
        assert_eq!(other.receive_line().unwrap(), expected, "{mode:o}");
        let mut content = [0; 5];
        region.read_at(100, &mut content).unwrap();
        assert_eq!(&content == b"there", expected == "written");
        other.wait_for_success();
        assert!(host.withdraw(&name::Address::for_current_user(&name).unwrap()));
    }
}

#[test]
fn killed_process_releases_its_slot_and_name() {
    let _alone = SERIAL_TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let (host, name) = (NameHost::open().unwrap(), unique_name("killed"));
    let limits = ReaderLimits { readers: 3, per_untrusted_user: 2 };
    let mut output = create_stream(&host, &name, 0o644, limits);
    for _ in 0..3 {
        let mut readers = Vec::new();
        for number in 0..3 {
            let Some(other) = start_in_role("hold", &format!("0/{name}")) else { return };
            let reply = other.receive_line().unwrap();
            assert_eq!(reply == "opened", number < 2, "an untrusted user has two slots: {reply}");
            readers.push(other);
        }
        // The readers never read: the writer waits for them until they are killed.
        let writing = spawn_test_thread(move || {
            for _ in 0..100 {
                assert!(output.write(&[1; 1000]).unwrap());
            }
            output
        });
        wait_until("the readers that there are", || host.names()[0].readers == 2);
        readers.iter_mut().for_each(OtherUserProcess::kill);
        output = writing.join();
        wait_until("the readers that there are", || host.names()[0].readers == 0);
    }
    drop(output);
    // The creator is killed: its readers notice, and its name is free at once.
    let squatted = unique_name("nobody");
    for _ in 0..3 {
        let Some(mut other) = start_in_role("create", &squatted) else { return };
        assert_eq!(other.receive_line().unwrap(), "created");
        let mut input = name::open_stream(&format!("{OVERFLOW_ID}/{squatted}")).unwrap();
        other.send_text("go on");
        assert_eq!(with_watchdog("a block", || input.read(&mut [0; 64])), Ok(5));
        other.kill();
        let read = with_watchdog("the end of who was killed", || input.read(&mut [0; 64]));
        assert_eq!(read, Err(Fault::Abandoned));
        let gone = name::open_stream(&format!("{OVERFLOW_ID}/{squatted}")).unwrap_err();
        assert!(matches!(gone, Error::Unknown(_)), "{gone}");
    }
}

/// A process of another user is the first to bind a name that belongs to root (T13). Clients reject
/// that process with an error that names its user. Root can claim the name once, at a spare socket,
/// and readers find that socket.
#[test]
fn t13_owner_can_claim_a_squatted_name() {
    let _alone = SERIAL_TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let name = unique_name("squatted");
    let Some(mut other) = start_in_role("squat", &name) else { return };
    assert_eq!(other.receive_line().unwrap(), "squatting");
    let refused = name::open_stream(&name).unwrap_err();
    assert!(matches!(refused, Error::Squatted { holder: OVERFLOW_ID, .. }), "{refused}");
    let host = NameHost::open().unwrap();
    let mut output = create_stream(&host, &name, 0o600, ReaderLimits::default());
    let again = host.create(
        &name,
        AccessList::private(effective_ids()),
        &stream_config(),
        ReaderLimits::default(),
    );
    assert!(matches!(again.unwrap_err(), Error::Taken(_)), "a name has one owner");
    let reads = |output: &mut Output| {
        let mut input = name::open_stream(&name).unwrap();
        output.write(b"bytes").unwrap();
        output.flush();
        assert_eq!(input.read(&mut [0; 9]).unwrap(), 5);
    };
    reads(&mut output);
    // The squatter has exited: the owner still has the name, and no one else can claim the free
    // socket.
    other.kill();
    reads(&mut output);
    let again = host.create(
        &name,
        AccessList::private(effective_ids()),
        &stream_config(),
        ReaderLimits::default(),
    );
    assert!(matches!(again.unwrap_err(), Error::Taken(_)), "a name has one owner");
    drop(output);
    wait_until("the name is free", || {
        host.create(
            &name,
            AccessList::private(effective_ids()),
            &stream_config(),
            ReaderLimits::default(),
        )
        .is_ok()
    });
}

/// Hostile clients connect endlessly, send garbage and sockets, never read, and never close a
/// descriptor that they receive.
#[test]
fn t12_hostile_client_is_bounded_and_stalls_no_client() {
    let _alone = SERIAL_TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let (host, name) = (NameHost::open().unwrap(), unique_name("hostile"));
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let limits = ReaderLimits { readers: 8, per_untrusted_user: 2 };
    let mut output = create_stream(&host, &name, 0o644, limits);
    let before = descriptors();
    let Some(mut other) = start_in_role("storm", &format!("0/{name}")) else { return };
    assert_eq!(other.receive_line().unwrap(), "raging");
    let mut opened = 0;
    wait_until("50 visits in the storm", || {
        // The untrusted client's slots stall the writer until it is disconnected.
        match name::open_stream(&name) {
            Ok(mut input) => {
                opened += 1;
                with_watchdog("the reader that is there", || output.write(&[7; 100])).unwrap();
                output.flush();
                assert_eq!(with_watchdog("a block", || input.read(&mut [0; 200])), Ok(100));
            }
            Err(Error::Silent(_)) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(host.names()[0].readers <= 3);
        // Two per used slot, one for the client being served, and the descriptors of this thread.
        assert!(descriptors() < before + 16, "{} {before}", descriptors());
        opened >= 50
    });
    other.kill();
    wait_until("the readers that there are", || host.names()[0].readers == 0);
    output.write(b"x").unwrap();
    output.flush();
    // The writer keeps the doorbell of a slot until the next reader reuses it.
    wait_until("descriptors that are closed", || descriptors() <= before + limits.readers);
}

// ---- in the other process

#[test]
#[ignore = "run by another test, in a process of its own"]
fn run_other_process() {
    let Some(role) = common::child_role() else { return };
    let (role, name) = role.split_once(' ').unwrap();
    match role {
        "open" => match name::open_stream(name) {
            Ok(mut input) => {
                report("opened");
                let count = input.read(&mut [0; 64]).unwrap();
                report(&format!("{count} bytes"));
            }
            Err(error) => report(&error.to_string()),
        },
        "hold" => {
            let held = name::open_stream(name);
            report(&held.as_ref().map_or_else(Error::to_string, |_| "opened".to_owned()));
            wait_for_parent();
        }
        "region" => hold_region(name),
        "create" => {
            let host = NameHost::open().unwrap();
            let access = AccessList::private(effective_ids());
            let mut output =
                host.create(name, access, &stream_config(), ReaderLimits::default()).unwrap();
            report("created");
            wait_for_parent();
            output.write(b"bytes").unwrap();
            output.flush();
            wait_for_parent();
        }
        "squat" => {
            let taken = sys::abstract_socket::listen(
                format!("streamline/0/{name}").as_bytes(),
                100,
                sys::abstract_socket::AcceptedContent::Bytes,
            )
            .unwrap();
            report("squatting");
            loop {
                sys::poll::wait_until_readable(&[taken.as_fd()], None);
                // The squatter replies with garbage.
                if let Some(client) = sys::abstract_socket::accept(&taken).unwrap() {
                    let _ = sys::descriptor::send(&client, &[1; 32], &[]);
                }
            }
        }
        "storm" => connect_endlessly(name),
        _ => panic!("no role {role}"),
    }
}

/// Waits until the parent sends a message or exits.
fn wait_for_parent() {
    receive(stdin());
}

fn hold_region(name: &str) {
    // The descriptor as received, before it is mapped.
    let socket = format!("streamline/{name}");
    let connection =
        sys::abstract_socket::connect_to(socket.as_bytes(), common::watchdog::wait_limit())
            .unwrap();
    let (_, files) = receive(&connection);
    let region = name::open_region(name).unwrap();
    let mut content = [0; 4];
    region.read_at(8, &mut content).unwrap();
    assert_eq!(&content, b"here");
    let path = format!("/proc/self/fd/{}", files[0].as_raw_fd());
    let again = std::fs::OpenOptions::new().read(true).write(true).open(path);
    let file = sys::memory::Memfd::from_fd(files[0].try_clone().unwrap()).unwrap();
    if region.is_writable() {
        region.write_at(100, b"there").unwrap();
        return report("written");
    }
    assert!(region.write_at(100, b"there").is_err());
    assert!(file.map().is_err(), "no mapping that writes");
    assert!(file.map_read().unwrap().into_writable().is_err(), "nor one that is made to");
    assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    report("read only");
}

fn connect_endlessly(name: &str) -> ! {
    let socket = format!("streamline/{name}");
    let mut held = std::collections::VecDeque::new();
    let mut number = 0u32;
    loop {
        if let Ok(connection) =
            sys::abstract_socket::connect_to(socket.as_bytes(), Duration::from_millis(100))
        {
            let garbage = [number as u8; 3000];
            let length = 1 + number as usize % garbage.len();
            let _ = sys::descriptor::send(&connection, &garbage[..length], &[connection.as_fd()]);
            let _ = sys::descriptor::send(&connection, &garbage[..length], &[]);
            held.push_back(connection);
        }
        if held.len() > 500 {
            held.pop_front();
        }
        number += 1;
        if number == 100 {
            report("raging");
        }
    }
}
