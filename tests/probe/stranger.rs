//! 7. A process of another user maps a ring read-only and fails at every way to write.
//!
//! The owner hands a ring ([`buffer::share`]) to this very executable, started again as user 65534.
//! The stranger reads all blocks, then tries by name whatever might write to the ring or its
//! geometry, or resize its own page; then it hands the descriptors on, and a third process tries
//! again. Each attempt must be refused, the owner must see nothing of it, and the ring goes on.
//! (RELIABILITY T1, facts 2, 4)
//!
//! That an attempt is one, and would work on memory that nobody has sealed, is a test of its own.

use crate::maps;
use buffer::Policy;
use buffer::dbuf::{Config, Visitor, Writer};
use buffer::share::{self, Offer};
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use sys::descriptor;
use sys::memory::{Memfd, ReadMapping, Seals};
use sys::process::{self, NOBODY};
use testkit::{Random, need};

const CHILD: &str = "STREAMLINE_PROBE_STRANGER";
const BLOCKS: u64 = 60;
const PAGE: u64 = 4096;
const EPERM: i32 = Errno::PERM.raw_os_error();
const EACCES: i32 = Errno::ACCESS.raw_os_error();

/// Returns block `n` as the owner writes it.
fn block(n: u64) -> Vec<u8> {
    let mut random = Random::new(n);
    let length = random.within(1..900);
    random.bytes(length)
}

/// A file that was handed over, and the mapping that its receiver may have.
struct Part {
    name: &'static str,
    file: File,
    mapping: ReadMapping,
}

impl Part {
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

    /// The same file by a descriptor that was opened for writing.
    fn reopened(&self) -> io::Result<File> {
        File::options().read(true).write(true).open(self.path())
    }

    /// Returns true if `mprotect` could make the mapping writable, by the kernel's own flag:
    /// calling it takes unsafe code (`sys` shows that the flag holds).
    fn may_be_widened(&self) -> bool {
        maps::may_write(self.mapping.base().addr().get()).expect("it is mapped")
    }
}

/// One way to do harm.
type Attempt = (&'static str, fn(&Part) -> io::Result<()>);

/// Ways to change bytes.
const WRITES: &[Attempt] = &[
    ("mmap, shared and writable", |part| map_writable(part.file.try_clone()?)),
    ("write", |part| (&part.file).write_all(b"x")),
    ("pwrite", |part| part.file.write_all_at(b"x", 0)),
    ("fallocate, punching a hole", |part| punch(&part.file, part.length())),
    ("open for writing, then write", |part| part.reopened()?.write_all(b"x")),
    ("open for writing, then mmap", |part| map_writable(part.reopened()?)),
    ("open for writing, then punch a hole", |part| punch(&part.reopened()?, part.length())),
];

/// Ways to change the size, or what may be done at all.
const SIZES: &[Attempt] = &[
    ("ftruncate to nothing", |part| part.file.set_len(0)),
    ("ftruncate to a page less", |part| part.file.set_len(part.length() - PAGE)),
    ("ftruncate to a page more", |part| part.file.set_len(part.length() + PAGE)),
    ("pwrite behind the end", |part| part.file.write_all_at(b"x", part.length())),
    ("fallocate behind the end", |part| {
        Ok(rustix::fs::fallocate(&part.file, FallocateFlags::empty(), part.length(), PAGE)?)
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

fn punch(file: &File, length: u64) -> io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, mode, 0, length)?)
}

/// Tries all of it, and says what the kernel said; answers how much was tried.
fn try_everything(who: &str, offer: &Offer) -> usize {
    let [geometry, ring, cursor] = offer.descriptors();
    let mut tried = 0;
    let mut attempt = |part: &Part, attempts: &[Attempt]| {
        for (what, attempt) in attempts {
            let refused = attempt(part).expect_err(what);
            println!("{CHILD}{who}: {}: {what}: {refused}", part.name);
            tried += 1;
        }
    };
    for (name, fd) in [("geometry", geometry), ("ring", ring)] {
        let part = Part::new(name, fd).expect("it may be read");
        attempt(&part, WRITES);
        attempt(&part, SIZES);
        assert!(!part.may_be_widened(), "mprotect could make the {name} writable");
        println!("{CHILD}{who}: {name}: mprotect: the mapping may never be written");
    }
    // Its own page the reader writes; but it stays as long as it is.
    attempt(&Part::new("cursor", cursor).expect("it may be read"), SIZES);
    tried
}

/// Starts this executable again as nobody with these descriptors. `None`: nobody cannot reach it,
/// or we may not become nobody.
fn hand_on(role: &str, offer: &Offer) -> Option<Child> {
    let (here, there) = descriptor::pair().expect("a pair of sockets");
    let mut command = process::reexec_as(NOBODY, there).expect("this executable");
    command.args(["stranger::child", "--exact", "--nocapture"]).env(CHILD, role);
    if role == SECOND {
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

const SECOND: &str = "the stranger";
const THIRD: &str = "a third process";

/// The other processes: get the descriptors on standard input.
#[test]
fn child() {
    let Ok(role) = std::env::var(CHILD) else { return };
    assert_eq!(process::identity(), (NOBODY, NOBODY));
    let (_, received) = descriptor::receive(io::stdin(), &mut [0; 16]).unwrap();
    let copies: Vec<OwnedFd> = received.iter().map(|fd| fd.try_clone().unwrap()).collect();
    let offer = Offer::from_descriptors(received).unwrap();
    if role == SECOND {
        let mut visitor = Offer::from_descriptors(copies).unwrap().read_blocks().unwrap();
        read_all(&mut visitor, 0..BLOCKS);
        println!("{CHILD}{role}: read {} blocks", visitor.count().blocks);
        try_everything(&role, &offer);
        let mut third = hand_on(THIRD, &offer).expect("we have reached it ourselves");
        assert!(third.wait().unwrap().success());
    } else {
        try_everything(&role, &offer);
    }
}

/// Reads these blocks and compares every byte.
fn read_all(visitor: &mut Visitor, blocks: std::ops::Range<u64>) {
    let mut out = [0; 1024];
    for n in blocks {
        let length = visitor.read(&mut out).unwrap().expect("a block");
        assert_eq!(&out[..length], block(n), "block {n}");
    }
    assert_eq!(visitor.read(&mut out), Ok(None));
}

/// All bytes of the files that were handed over, but for the reader's own.
fn bytes(offer: &Offer) -> [Vec<u8>; 2] {
    let [geometry, ring, _] = offer.descriptors();
    [geometry, ring].map(|fd| {
        let file = File::from(fd.try_clone_to_owned().unwrap());
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    })
}

#[test]
fn p4_an_untrusted_peer_reads_a_ring_and_cannot_write() {
    let Some(()) = need::root() else { return };
    for policy in [Policy::Overwrite, Policy::Block, Policy::DropNew] {
        let id = abi::DbufId::new(7).unwrap();
        let config = Config { capacity: 1 << 16, policy, readers: 2, ..Config::new(id) };
        let (mut writer, mut offers) = share::blocks(&config).unwrap();
        let mut own = offers.pop().unwrap().read_blocks().unwrap();
        let theirs = offers.pop().unwrap();
        put(&mut writer, 0..BLOCKS);
        let (before, counted) = (bytes(&theirs), writer.count());

        let why = "needs to become user 65534, who may enter the build folder";
        let child = hand_on(SECOND, &theirs).or_else(|| need::skip(why));
        let Some(child) = child else { return };
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        let lines: Vec<&str> = said.lines().filter_map(|l| Some(l.split_once(CHILD)?.1)).collect();
        println!("{policy:?}\n  {}", lines.join("\n  "));
        let refused = lines.iter().filter(|line| line.contains("(os error ")).count();
        assert_eq!(refused, 2 * (2 * WRITES.len() + 3 * SIZES.len()));

        assert!(bytes(&theirs) == before, "a byte of the ring or of its geometry has changed");
        assert_eq!(writer.count(), counted);
        assert_eq!(writer.taken(0).map(|taken| taken.blocks), Some(BLOCKS), "what it read");
        read_all(&mut own, 0..BLOCKS);
        put(&mut writer, BLOCKS..BLOCKS + 5);
        read_all(&mut own, BLOCKS..BLOCKS + 5);
    }
}

fn put(writer: &mut Writer, blocks: std::ops::Range<u64>) {
    for n in blocks {
        assert_eq!(writer.write(&block(n)), Ok(true));
    }
    writer.publish();
}

/// On memory that nobody has sealed each attempt succeeds: what refuses is the seals.
#[test]
fn every_attempt_works_where_nothing_is_sealed() {
    for (what, attempt) in WRITES.iter().chain(SIZES) {
        let file = Memfd::create("probe-unsealed", 4 * PAGE as usize).unwrap();
        assert_eq!(file.seals(), Ok(Seals::NONE));
        let part = Part::new("unsealed", file.as_fd()).unwrap();
        assert!(part.may_be_widened());
        attempt(&part).unwrap_or_else(|refused| panic!("{what}: {refused}"));
    }
}
