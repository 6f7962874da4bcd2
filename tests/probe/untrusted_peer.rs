//! Probe 7: a process of another user maps a ring read-only, and every attempt to write fails.
//!
//! The owner passes a ring ([`buffer::share`]) to this executable, started again as user 65534.
//! That process reads all blocks, then makes every attempt to write to or resize the ring or its
//! geometry, or to resize the reader's page; then it passes the descriptors on, and a third process
//! makes the same attempts. Each attempt must be refused, the owner must observe no effect, and the
//! ring must continue to work. (RELIABILITY T1, facts 2, 4)
//!
//! Another test shows that each attempt would succeed on unsealed memory.

use crate::maps;
use buffer::OverflowPolicy;
use buffer::dbuf::{BlockConfig, BlockWriter, ForeignBlockReader};
use buffer::share::{self, RingOffer};
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use sys::descriptor;
use sys::memory::{Memfd, ReadMapping, Seals};
use sys::process::{self, OVERFLOW_ID};
use testkit::{Random, need};

const ROLE_VARIABLE: &str = "STREAMLINE_PROBE_STRANGER";
const BLOCKS: u64 = 60;
const PAGE_SIZE: u64 = 4096;
const EPERM: i32 = Errno::PERM.raw_os_error();
const EACCES: i32 = Errno::ACCESS.raw_os_error();

/// Returns the bytes that the owner of the ring writes as block `n`.
fn block_bytes(n: u64) -> Vec<u8> {
    let mut random = Random::new(n);
    let length = random.within(1..900);
    random.bytes(length)
}

/// A file that was received from the owner, and the mapping that the file's seals permit.
struct SharedFile {
    name: &'static str,
    file: File,
    mapping: ReadMapping,
}

impl SharedFile {
    fn new(name: &'static str, fd: BorrowedFd<'_>) -> sys::Result<Self> {
        let copy = || fd.try_clone_to_owned().expect("a free descriptor");
        let mapping = Memfd::from_fd(copy())?.map_read()?;
        Ok(Self { name, file: File::from(copy()), mapping })
    }

    fn length(&self) -> u64 {
        self.mapping.len() as u64
    }

    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    /// Opens the shared file again, for writing.
    fn reopen_writable(&self) -> io::Result<File> {
        File::options().read(true).write(true).open(self.path())
    }

    /// Returns true if `mprotect` could make the mapping writable, which the flag `VM_MAYWRITE` in
    /// smaps shows. Calling `mprotect` would need unsafe code; a test in `sys` shows that the
    /// kernel honours the flag.
    fn may_become_writable(&self) -> bool {
        maps::may_become_writable(self.mapping.base().addr().get()).expect("it is mapped")
    }
}

/// An attempt to misuse a shared file, with its name.
type MisuseAttempt = (&'static str, fn(&SharedFile) -> io::Result<()>);

/// Ways in which an untrusted process may try to write bytes into a shared file.
const WRITE_ATTEMPTS: &[MisuseAttempt] = &[
    ("mmap, shared and writable", |part| map_writable(part.file.try_clone()?)),
    ("write", |part| (&part.file).write_all(b"x")),
    ("pwrite", |part| part.file.write_all_at(b"x", 0)),
    ("fallocate, punching a hole", |part| punch_hole(&part.file, part.length())),
    ("open for writing, then write", |part| part.reopen_writable()?.write_all(b"x")),
    ("open for writing, then mmap", |part| map_writable(part.reopen_writable()?)),
    ("open for writing, then punch a hole", |part| {
        punch_hole(&part.reopen_writable()?, part.length())
    }),
];

/// Ways in which an untrusted process may try to change the size or the seals of a shared file.
const RESIZE_ATTEMPTS: &[MisuseAttempt] = &[
    ("ftruncate to nothing", |part| part.file.set_len(0)),
    ("ftruncate to a page less", |part| part.file.set_len(part.length() - PAGE_SIZE)),
    ("ftruncate to a page more", |part| part.file.set_len(part.length() + PAGE_SIZE)),
    ("pwrite behind the end", |part| part.file.write_all_at(b"x", part.length())),
    ("fallocate behind the end", |part| {
        Ok(rustix::fs::fallocate(&part.file, FallocateFlags::empty(), part.length(), PAGE_SIZE)?)
    }),
    ("open with O_TRUNC", |part| {
        File::options().write(true).truncate(true).open(part.path()).map(drop)
    }),
    ("F_ADD_SEALS, against the owner's writing", |part| {
        Ok(rustix::fs::fcntl_add_seals(&part.file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
    }),
];

fn map_writable(file: File) -> io::Result<()> {
    Ok(Memfd::from_fd(file.into())?.map().map(drop)?)
}

fn punch_hole(file: &File, length: u64) -> io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, mode, 0, length)?)
}

/// Makes all attempts to misuse the shared files, asserts that each is refused, and prints the
/// kernel's reasons. Returns the number of attempts.
fn make_all_attempts(who: &str, offer: &RingOffer) -> usize {
    let [geometry, ring, cursor] = offer.descriptors();
    let mut tried = 0;
    let mut attempt = |part: &SharedFile, attempts: &[MisuseAttempt]| {
        for (what, attempt) in attempts {
            let refused = attempt(part).expect_err(what);
            println!("{ROLE_VARIABLE}{who}: {}: {what}: {refused}", part.name);
            tried += 1;
        }
    };
    for (name, fd) in [("geometry", geometry), ("ring", ring)] {
        let part = SharedFile::new(name, fd).expect("it may be read");
        attempt(&part, WRITE_ATTEMPTS);
        attempt(&part, RESIZE_ATTEMPTS);
        assert!(!part.may_become_writable(), "mprotect could make the {name} writable");
        println!("{ROLE_VARIABLE}{who}: {name}: mprotect: the mapping may never be written");
    }
    // The reader may write its own page, but not resize it.
    attempt(&SharedFile::new("cursor", cursor).expect("it may be read"), RESIZE_ATTEMPTS);
    tried
}

/// Starts this executable again as the overflow user, with the ring's descriptors. Returns `None`
/// if that user cannot execute it, or this process may not change its user.
fn start_with_descriptors(role: &str, offer: &RingOffer) -> Option<Child> {
    let (here, there) = descriptor::socket_pair().expect("a pair of sockets");
    let mut command = process::reexec_command(OVERFLOW_ID, there).expect("this executable");
    command
        .args(["untrusted_peer::child_process_attempts_to_write", "--exact", "--nocapture"])
        .env(ROLE_VARIABLE, role);
    if role == SECOND_PROCESS {
        command.stdout(Stdio::piped());
    }
    let child = match process::spawn(&mut command) {
        Ok(child) => child,
        Err(error) if [EPERM, EACCES].contains(&error.errno) => return None,
        Err(error) => panic!("{error}"),
    };
    descriptor::send(&here, b"a ring", &offer.descriptors()).expect("somebody who receives");
    Some(child)
}

const SECOND_PROCESS: &str = "the stranger";
const THIRD_PROCESS: &str = "a third process";

/// Entry point of the other processes that attempt to write. They receive the descriptors over
/// standard input.
#[test]
fn child_process_attempts_to_write() {
    let Ok(role) = std::env::var(ROLE_VARIABLE) else { return };
    assert_eq!(process::effective_ids(), (OVERFLOW_ID, OVERFLOW_ID));
    let (_, received) = descriptor::receive(io::stdin(), &mut [0; 16]).unwrap();
    let copies: Vec<OwnedFd> = received.iter().map(|fd| fd.try_clone().unwrap()).collect();
    let offer = RingOffer::from_descriptors(received).unwrap();
    if role == SECOND_PROCESS {
        let mut visitor = RingOffer::from_descriptors(copies).unwrap().open_block_reader().unwrap();
        assert_remaining_blocks(&mut visitor, 0..BLOCKS);
        println!("{ROLE_VARIABLE}{role}: read {} blocks", visitor.counts().blocks);
        make_all_attempts(&role, &offer);
        let mut third =
            start_with_descriptors(THIRD_PROCESS, &offer).expect("we have reached it ourselves");
        assert!(third.wait().unwrap().success());
    } else {
        make_all_attempts(&role, &offer);
    }
}

/// Reads the given blocks, and compares every byte. Asserts that no block follows.
fn assert_remaining_blocks(visitor: &mut ForeignBlockReader, blocks: std::ops::Range<u64>) {
    let mut out = [0; 1024];
    for n in blocks {
        let length = visitor.read(&mut out).unwrap().expect("a block");
        assert_eq!(&out[..length], block_bytes(n), "block {n}");
    }
    assert_eq!(visitor.read(&mut out), Ok(None));
}

/// Returns all bytes of the shared files, except the reader's own page.
fn shared_bytes(offer: &RingOffer) -> [Vec<u8>; 2] {
    let [geometry, ring, _] = offer.descriptors();
    [geometry, ring].map(|fd| {
        let file = File::from(fd.try_clone_to_owned().unwrap());
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    })
}

#[test]
fn p4_untrusted_peer_reads_a_ring_but_cannot_write() {
    let Some(()) = need::require_root() else { return };
    for policy in [OverflowPolicy::Overwrite, OverflowPolicy::Block, OverflowPolicy::DropNew] {
        let id = abi::DbufId::new(7).unwrap();
        let config = BlockConfig { capacity: 1 << 16, policy, readers: 2, ..BlockConfig::new(id) };
        let (mut writer, mut offers) = share::block_ring(&config).unwrap();
        let mut own = offers.pop().unwrap().open_block_reader().unwrap();
        let theirs = offers.pop().unwrap();
        write_blocks(&mut writer, 0..BLOCKS);
        let (before, counted) = (shared_bytes(&theirs), writer.counts());

        let why = "needs to become user 65534, who may enter the build folder";
        let child =
            start_with_descriptors(SECOND_PROCESS, &theirs).or_else(|| need::report_skip(why));
        let Some(child) = child else { return };
        let output = child.wait_with_output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{stdout}");
        let lines: Vec<&str> =
            stdout.lines().filter_map(|l| Some(l.split_once(ROLE_VARIABLE)?.1)).collect();
        println!("{policy:?}\n  {}", lines.join("\n  "));
        let refused = lines.iter().filter(|line| line.contains("(os error ")).count();
        assert_eq!(refused, 2 * (2 * WRITE_ATTEMPTS.len() + 3 * RESIZE_ATTEMPTS.len()));

        assert!(
            shared_bytes(&theirs) == before,
            "a byte of the ring or of its geometry has changed"
        );
        assert_eq!(writer.counts(), counted);
        assert_eq!(writer.reader_counts(0).map(|taken| taken.blocks), Some(BLOCKS), "what it read");
        assert_remaining_blocks(&mut own, 0..BLOCKS);
        write_blocks(&mut writer, BLOCKS..BLOCKS + 5);
        assert_remaining_blocks(&mut own, BLOCKS..BLOCKS + 5);
    }
}

fn write_blocks(writer: &mut BlockWriter, blocks: std::ops::Range<u64>) {
    for n in blocks {
        assert_eq!(writer.write(&block_bytes(n)), Ok(true));
    }
    writer.publish();
}

/// Every attempt to write or to resize a shared file succeeds on unsealed memory, so it is the
/// seals that prevent the attempts.
#[test]
fn every_attempt_succeeds_on_unsealed_memory() {
    for (what, attempt) in WRITE_ATTEMPTS.iter().chain(RESIZE_ATTEMPTS) {
        let file = Memfd::create("probe-unsealed", 4 * PAGE_SIZE as usize).unwrap();
        assert_eq!(file.seals(), Ok(Seals::NONE));
        let part = SharedFile::new("unsealed", file.as_fd()).unwrap();
        assert!(part.may_become_writable());
        attempt(&part).unwrap_or_else(|refused| panic!("{what}: {refused}"));
    }
}
