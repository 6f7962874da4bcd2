//! Tests of a cached file read by a process of another user: read permission, resolution of
//! pointers, and defense against a hostile owner. (FEATURES E5; RELIABILITY T4, T17; CONTRACT 26)

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

extern crate buffer as streamline_buffer;

mod common;

use abi::RichPointer;
use abi::access::Credentials;
use buffer::Fault;
use common::{OtherUserProcess, dbuf_id, send, wait_until};
use std::fs::{File, Permissions};
use std::io::{Write as _, stdin};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::Stdio;
use streamline_iolite::aggregate::GrantRefusal;
use streamline_iolite::aggregate::owner::{DbufWindow, Grant, PoolOwner};
use streamline_iolite::aggregate::server::{Client, GrantServer, ResolveError};
use streamline_iolite::file;
use streamline_iolite::file::CachedFile;
use streamline_iolite::resolve::PointerTable;
use sys::process::OVERFLOW_ID;
use testkit::{Random, need};

const FILLED_EXTENT_LENGTH: usize = 3000;
/// An offset beyond 4 GB.
const FAR_OFFSET: u64 = 6_000_000_000;

/// A file in a world-accessible directory, removed when dropped.
struct NamedFile(PathBuf);

impl NamedFile {
    fn new(name: &str, mode: u32) -> Self {
        let path = std::env::temp_dir().join(format!("streamline-{name}-{}", std::process::id()));
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let mut file = options.open(&path).unwrap();
        file.write_all(&[b'a'; FILLED_EXTENT_LENGTH]).unwrap();
        file.write_all_at(&[b'z'; FILLED_EXTENT_LENGTH], FAR_OFFSET).unwrap();
        file.set_permissions(Permissions::from_mode(mode)).unwrap();
        Self(path)
    }
}

impl Drop for NamedFile {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// Starts a grant server in this process, and a client of the server in another process. Returns
/// `None`, after reporting a skip, if this machine does not allow that.
fn start_server_and_client(role: &str) -> Option<(GrantServer, OtherUserProcess, [NamedFile; 2])> {
    need::require_root()?;
    let named = |kind, mode| NamedFile::new(&format!("{role}-{kind}"), mode);
    let files = [named("open", 0o644), named("closed", 0o600)];
    let mut creator = PoolOwner::new(4);
    for (number, named) in (1..).zip(&files) {
        creator.share_file(&CachedFile::open(dbuf_id(number), &named.0).unwrap()).unwrap();
    }
    let taken = CachedFile::open(dbuf_id(1), &files[0].0).unwrap();
    assert_eq!(creator.share_file(&taken), Err(GrantRefusal::Taken(dbuf_id(1))));
    let server = GrantServer::start(creator).unwrap();
    let (_, peer) = server.add_client(Credentials::new(OVERFLOW_ID, OVERFLOW_ID)).unwrap();
    Some((server, OtherUserProcess::start_on_socket(peer, role, Stdio::piped())?, files))
}

#[test]
fn e5_file_pointer_needs_read_permission() {
    let Some((_server, other, _files)) = start_server_and_client("guest") else { return };
    let text = other.wait_for_report();
    assert!(text.contains("all of it was as it must be"), "{text}");
}

/// One process truncates and extends the file in a loop while another reads it.
#[test]
fn truncated_file_faults_readers_of_other_users() {
    let Some((_server, mut other, files)) = start_server_and_client("loop") else { return };
    let file = File::options().write(true).open(&files[0].0).unwrap();
    let mut random = Random::with_replayable_seed();
    let mut cuts = 0;
    wait_until("a reader that has seen enough", || {
        file.set_len(random.below(FILLED_EXTENT_LENGTH as u64)).unwrap();
        file.write_all_at(&[b'a'; FILLED_EXTENT_LENGTH], 0).unwrap();
        cuts += 1;
        !other.is_running()
    });
    let text = other.wait_for_report();
    assert!(text.contains("copies"), "{cuts} cuts: {text}");
}

#[test]
fn table_copies_bytes_of_cached_files() {
    let named = NamedFile::new("table", 0o600);
    let cached = CachedFile::open(dbuf_id(5), &named.0).unwrap();
    let mut table = PointerTable::new();
    table.register_file(&cached);
    let mut out = [0; FILLED_EXTENT_LENGTH];
    table.copy(cached.pointer(FAR_OFFSET, FILLED_EXTENT_LENGTH), &mut out).unwrap();
    assert_eq!(out, [b'z'; FILLED_EXTENT_LENGTH]);
    assert_eq!(
        table.resolve(cached.pointer(0, 10)),
        Err(Fault::UnknownDbuf(dbuf_id(5))),
        "there is no slice of a file"
    );
    let behind = cached.pointer(FAR_OFFSET + FILLED_EXTENT_LENGTH as u64 - 1, 2);
    assert_eq!(table.copy(behind, &mut [0; 2]), Err(Fault::OutOfWindow(behind.place)));
}

/// Expects a descriptor that is not a regular file to be rejected if an owner sends it as a file.
#[test]
fn received_non_files_are_rejected() {
    let pipe = || rustix::pipe::pipe().unwrap().0;
    let memory = || sys::memory::Memfd::create("streamline-test", 4096).unwrap();
    let mut window = DbufWindow::new();
    let nothing: OwnedFd = File::open("/dev/zero").unwrap().into();
    for fd in [pipe(), nothing] {
        let refused = window.admit(Grant::from_file_descriptor(dbuf_id(1), fd));
        assert_eq!(refused, Err(GrantRefusal::NoFile(dbuf_id(1))));
    }
    // A memfd is acceptable as a file: it is read by system calls.
    window.admit(Grant::from_file_descriptor(dbuf_id(2), memory().into())).unwrap();
    let pointer = RichPointer::new(dbuf_id(2), abi::Extent::new(4000, 96), abi::Class::YES);
    window.copy(pointer, &mut [0; 96]).unwrap();
    // But a file is not acceptable as memory, since it can be truncated.
    let named = NamedFile::new("memory", 0o600);
    let file: OwnedFd = File::open(&named.0).unwrap().into();
    let refused = window.admit(Grant::from_descriptor(dbuf_id(3), file));
    assert!(
        matches!(refused, Err(GrantRefusal::System(_) | GrantRefusal::Unsealed { .. })),
        "{refused:?}"
    );
}

#[test]
fn fuse_file_is_refused_from_untrusted_peers() {
    let Some(_) = need::require_file("/dev/fuse") else { return };
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let is_fuse = |line: &&str| line.split(' ').nth(2).is_some_and(|kind| kind.starts_with("fuse"));
    let mounted = mounts.lines().find(is_fuse).and_then(|line| line.split(' ').nth(1));
    let Some(mounted) = mounted.filter(|path| File::open(path).is_ok()) else {
        let _skipped = need::report_skip::<()>("nothing is mounted by FUSE");
        return;
    };
    let folder = File::open(mounted).unwrap();
    assert_eq!(
        CachedFile::from_untrusted_descriptor(dbuf_id(1), folder.into()).unwrap_err(),
        file::FileRefusal::InUserSpace
    );
}

// ---- there

#[test]
#[ignore = "run by another test, in a process of its own"]
fn run_other_process() {
    let Some(role) = common::child_role() else { return };
    let client = Client::new(stdin().as_fd().try_clone_to_owned().unwrap());
    if role == "loop" { copy_until_both_outcomes(client) } else { check_file_access(client) }
}

/// Copies random extents until both outcomes have occurred often: all bytes, and a fault because of
/// truncation.
#[expect(clippy::print_stdout, reason = "prints the report of this process")]
fn copy_until_both_outcomes(mut client: Client) {
    let (mut random, mut copies, mut cuts) = (Random::new(9), 0, 0);
    let mut out = [0; FILLED_EXTENT_LENGTH];
    while copies < 5000 || cuts < 100 {
        let at = random.within(0..FILLED_EXTENT_LENGTH - 1);
        let length = random.within(1..FILLED_EXTENT_LENGTH - at);
        let place = abi::Extent::new(at as u64, length as u32);
        let pointer = RichPointer::new(dbuf_id(1), place, abi::Class::YES);
        match client.copy(pointer, &mut out[..length]) {
            Ok(()) => {
                assert!(out[..length].iter().all(|byte| [0, b'a'].contains(byte)));
                copies += 1;
            }
            Err(ResolveError::Fault(Fault::OutOfWindow(_))) => cuts += 1,
            Err(other) => panic!("{other}"),
        }
    }
    println!("{copies} copies, {cuts} of what was cut off");
}

#[expect(clippy::print_stdout, reason = "prints the report of this process")]
fn check_file_access(mut client: Client) {
    let pointer = |number, at, length| {
        RichPointer::new(dbuf_id(number), abi::Extent::new(at, length), abi::Class::YES)
    };
    let mut out = [0; FILLED_EXTENT_LENGTH];
    for (at, byte) in [(0, b'a'), (FAR_OFFSET, b'z'), (1 << 32, 0)] {
        client.copy(pointer(1, at, FILLED_EXTENT_LENGTH as u32), &mut out).unwrap();
        assert_eq!(out, [byte; FILLED_EXTENT_LENGTH]);
    }
    let behind = pointer(1, FAR_OFFSET + 10, FILLED_EXTENT_LENGTH as u32);
    let refused = client.copy(behind, &mut out);
    assert_eq!(refused, Err(ResolveError::Fault(Fault::OutOfWindow(behind.place))));
    let refused = client.copy(pointer(2, 0, FILLED_EXTENT_LENGTH as u32), &mut out);
    let forbidden = GrantRefusal::Forbidden { dbuf: dbuf_id(2), uid: OVERFLOW_ID };
    assert_eq!(refused, Err(ResolveError::Refused(forbidden)));
    // The received descriptor is not writable.
    let granted = File::from(
        client.request_grant(dbuf_id(1)).unwrap().descriptor().try_clone_to_owned().unwrap(),
    );
    assert!(granted.write_at(b"x", 0).is_err() && granted.set_len(0).is_err());
    let fd = std::os::fd::AsRawFd::as_raw_fd(&granted);
    assert!(File::options().write(true).open(format!("/proc/self/fd/{fd}")).is_err());
    let received = CachedFile::from_untrusted_descriptor(dbuf_id(1), granted.into()).unwrap();
    assert_eq!(received.size(), Ok(FAR_OFFSET + FILLED_EXTENT_LENGTH as u64));
    send(stdin(), b"no message of a guest", &[]);
    println!("all of it was as it must be");
}
