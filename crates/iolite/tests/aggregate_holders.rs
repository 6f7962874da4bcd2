//! Tests of processes that are killed while they hold memory of other processes: everything is
//! released, and other processes are unaffected. (FEATURES Q4, Q5, Q18; RELIABILITY T2, T10, T17;
//! [IOL §2.1, §2.3])
//!
//! The other process requests grants, receives pointers, reads, releases, and reports each step. It
//! is killed at each of these steps.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

extern crate buffer as streamline_buffer;

mod common;

use abi::access::{AccessList, Credentials};
use abi::{Class, DbufId, RichPointer};
use buffer::pool::PoolConfig;
use common::{OtherUserProcess, dbuf_id, digest, receive, send, wait_until};
use std::fs;
use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use streamline_iolite::aggregate::holders::{HeldCounts, PeerId};
use streamline_iolite::aggregate::owner::{DbufWindow, Grant, MemoryOwner as _, PoolOwner};
use streamline_iolite::aggregate::server::{Client, GrantServer};
use streamline_iolite::aggregate::{Aggregate, AllocationPool, FrozenData};
use sys::doorbell::{PeerState, SocketDoorbell};
use sys::process::OVERFLOW_ID;
use sys::process::effective_ids;
use testkit::Random;

const SEGMENT_SIZE: usize = 4096;
const SEGMENT_COUNT: usize = 8;
const LENT_SEGMENT_COUNT: usize = 3;
const SHARED_DBUF: u32 = 1;
const SECRET_DBUF: u32 = 2;
const FROZEN_DBUF: u32 = 3;

/// Serializes the tests, which count descriptors of this process.
static TEST_LOCK: Mutex<()> = Mutex::new(());

// ---- messages: a word, then numbers

fn send_text(socket: impl AsFd, text: &str) {
    send(socket, text.as_bytes(), &[]);
}

#[track_caller]
fn receive_text(socket: impl AsFd) -> Option<(String, Vec<u64>, Vec<OwnedFd>)> {
    let (message, fds) = receive(socket);
    let text = String::from_utf8(message).ok().filter(|text| !text.is_empty())?;
    let mut words = text.split(' ');
    let word = words.next().unwrap().to_owned();
    Some((word, words.map(|number| number.parse().unwrap()).collect(), fds))
}

fn describe_block(pointer: RichPointer, bytes: &[u8]) -> String {
    let [place, home] = pointer.words();
    format!("block {place} {home} {}", digest(bytes))
}

// ---- here: the owner

struct Fixture {
    creator: PoolOwner,
    pool: AllocationPool,
    random: Random,
}

struct Process {
    other: OtherUserProcess,
    peer: PeerId,
}

impl Fixture {
    fn new() -> Self {
        let config = PoolConfig { segment: SEGMENT_SIZE, segments: SEGMENT_COUNT };
        let [pool, secret] = [(SHARED_DBUF, 0o644), (SECRET_DBUF, 0o600)].map(|(number, mode)| {
            AllocationPool::new(dbuf_id(number), config, AccessList::new(0, 0, mode)).unwrap()
        });
        let mut creator = PoolOwner::new(LENT_SEGMENT_COUNT);
        creator.share(&pool).unwrap();
        creator.share(&secret).unwrap();
        Self { creator, pool, random: Random::with_replayable_seed() }
    }

    fn start_client(&mut self) -> Option<Process> {
        let other = OtherUserProcess::start("guest")?;
        let peer = self.creator.holders_mut().add_peer(Credentials::new(OVERFLOW_ID, OVERFLOW_ID));
        Some(Process { other, peer })
    }

    /// Lends the client a new segment. This process keeps no reference of its own to the segment.
    fn lend_segment(&mut self, client: &Process) {
        let bytes = self.random.bytes(SEGMENT_SIZE);
        let sent = self.pool.copy(&bytes).unwrap();
        self.creator.lend(&sent, client.peer).unwrap();
        let pointer = sent.slices().next().unwrap().pointer();
        send_text(&client.other, &describe_block(pointer, &bytes));
    }

    /// Handles the messages of a client until the client reports step `until`. The client is then
    /// left waiting.
    fn handle_messages_until_step(&mut self, client: &Process, until: u64) {
        loop {
            let (word, numbers, _) =
                receive_text(&client.other).expect("the other process has failed");
            match word.as_str() {
                "step" if numbers[0] == until => return,
                "step" => self.confirm_step(client, numbers[0]),
                "grant" => {
                    self.answer_grant_request(client, dbuf_id(u32::try_from(numbers[0]).unwrap()))
                }
                "back" => {
                    let pointer = RichPointer::from_words([numbers[0], numbers[1]]);
                    assert!(self.creator.holders_mut().release(client.peer, pointer));
                }
                other => panic!("`{other}` from the other process"),
            }
        }
    }

    fn confirm_step(&mut self, client: &Process, step: u64) {
        send_text(&client.other, "go");
        if step == STEP_MAPPED {
            (0..LENT_SEGMENT_COUNT).for_each(|_| self.lend_segment(client));
        }
    }

    fn answer_grant_request(&mut self, client: &Process, dbuf: DbufId) {
        match self.creator.grant(dbuf, client.peer) {
            Ok(grant) => send(&client.other, b"grant", &[grant.descriptor()]),
            Err(_) => send_text(&client.other, "no"),
        }
    }

    /// Kills a client. Returns the counters of its holds, and the time until its departure was
    /// noticed and everything was released.
    fn kill_client(&mut self, mut client: Process) -> (HeldCounts, Duration) {
        let doorbell = SocketDoorbell::from(client.other.take_socket());
        let start = Instant::now();
        client.other.kill();
        wait_until("the news that it is gone", || {
            sys::poll::wait_until_readable(
                &[doorbell.as_fd()],
                Some(common::watchdog::wait_limit()),
            );
            doorbell.clear() == PeerState::Gone
        });
        let kept = self.creator.holders_mut().remove(client.peer).unwrap();
        (kept, start.elapsed())
    }
}

/// Returns the number of memfd descriptors and the number of memfd mappings of this process.
/// Neither number may grow.
fn memfd_counts() -> (usize, usize) {
    let links = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("memfd:streamline"))
    };
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("/dev/shm/"), "nothing has a name");
    let mapped = maps.lines().filter(|line| line.contains("memfd:streamline")).count();
    (links.filter(is_ours).count(), mapped)
}

#[test]
fn q18_process_killed_at_any_step_releases_everything() {
    let _alone = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let mut fixture = Fixture::new();
    let Some(survivor) = fixture.start_client() else { return };
    fixture.handle_messages_until_step(&survivor, STEP_READ);
    let before = memfd_counts();
    let mut slowest = Duration::ZERO;
    for round in 0..3 {
        for (step, segments) in [
            (0, 0),
            (STEP_GRANTED, 0),
            (STEP_MAPPED, 0),
            (STEP_READ, 3),
            (STEP_RELEASED, 2),
            (STEP_REQUESTED, 2),
            (STEP_COPYING, 2),
        ] {
            let client = fixture.start_client().unwrap();
            fixture.handle_messages_until_step(&client, step);
            assert_eq!(
                fixture.pool.usage().leased,
                LENT_SEGMENT_COUNT + segments,
                "round {round}, step {step}"
            );
            let (kept, took) = fixture.kill_client(client);
            slowest = slowest.max(took);
            let expected = HeldCounts { segments, references: segments as u64, mistakes: 0 };
            assert_eq!(kept, expected, "round {round}, step {step}");
            assert_eq!(fixture.pool.usage().leased, LENT_SEGMENT_COUNT, "what the survivor keeps");
            assert_eq!(memfd_counts(), before, "round {round}, step {step}");
            // All other memory is reused with other contents.
            let fill = fixture
                .pool
                .copy(&[step as u8; (SEGMENT_COUNT - LENT_SEGMENT_COUNT) * SEGMENT_SIZE])
                .unwrap();
            assert!(
                fixture.pool.copy(&[0]).is_err()
                    && fill.len() == (SEGMENT_COUNT - LENT_SEGMENT_COUNT) * SEGMENT_SIZE
            );
        }
    }
    println!("from the kill until all was given back, the slowest of 21: {slowest:?}");
    send_text(&survivor.other, "go");
    fixture.handle_messages_until_step(&survivor, STEP_RELEASED);
    send_text(&survivor.other, "go");
    fixture.handle_messages_until_step(&survivor, STEP_REQUESTED);
    let (kept, _) = fixture.kill_client(survivor);
    assert_eq!(
        kept.segments,
        LENT_SEGMENT_COUNT - 1,
        "it gave one back, and read the others again before"
    );
    assert_eq!(fixture.pool.usage().leased, 0);
}

/// After the owner is killed, a process that has mapped the memory still reads the sent data: by
/// copying from a pool, or in place if the data is frozen.
#[test]
fn sent_memory_outlives_its_owner() {
    let _alone = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut maker) = OtherUserProcess::start("maker") else { return };
    let mut window = DbufWindow::new();
    let mut blocks = Vec::new();
    let mut frozen = None;
    while frozen.is_none() {
        let (word, numbers, mut fds) = receive_text(&maker).expect("the other process has failed");
        match word.as_str() {
            "grant" => {
                window.admit(Grant::from_descriptor(dbuf_id(SHARED_DBUF), fds.remove(0))).unwrap()
            }
            "frozen" => {
                let length = usize::try_from(numbers[0]).unwrap();
                let data = FrozenData::map(dbuf_id(FROZEN_DBUF), fds.remove(0), length).unwrap();
                frozen = Some((data.aggregate().unwrap(), numbers[1]));
            }
            _ => blocks.push(numbers),
        }
    }
    let (data, sent) = frozen.unwrap();
    assert_eq!((blocks.len(), data.len()), (LENT_SEGMENT_COUNT, LENT_SEGMENT_COUNT * SEGMENT_SIZE));
    for is_dead in [false, true] {
        if is_dead {
            maker.kill();
            assert!(receive_text(&maker).is_none());
        }
        blocks.iter().for_each(|block| check_block(&window, block));
        assert_eq!(digest(&data.to_vec()), sent);
    }
    assert!(window.unmap(dbuf_id(SHARED_DBUF)));
}

/// The thread of a grant server detects that a client has exited, and releases the client's
/// segments.
#[test]
fn q18_grant_server_notices_killed_client() {
    let _alone = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let config = PoolConfig { segment: SEGMENT_SIZE, segments: SEGMENT_COUNT };
    let access = AccessList::new(0, 0, 0o644);
    let mut pool = AllocationPool::new(dbuf_id(SHARED_DBUF), config, access).unwrap();
    let server = GrantServer::start(PoolOwner::new(LENT_SEGMENT_COUNT)).unwrap();
    server.with_owner(|owner| owner.share(&pool)).unwrap();
    let before = memfd_counts();
    for round in 0..10u8 {
        let (peer, socket) = server.add_client(Credentials::new(OVERFLOW_ID, OVERFLOW_ID)).unwrap();
        let sent = pool.copy(&[round; 2 * SEGMENT_SIZE]).unwrap();
        server.with_owner(|owner| owner.lend(&sent, peer)).unwrap();
        let pointers = sent.slices().map(|slice| {
            let [place, home] = slice.pointer().words();
            format!(" {place} {home} {}", digest(slice.bytes()))
        });
        let role = format!("asks{}", pointers.collect::<String>());
        drop(sent);
        let Some(mut client) = OtherUserProcess::start_on_socket(socket, &role, Stdio::null())
        else {
            return;
        };
        let holding = || server.with_owner(|owner| owner.holders().held_counts(peer));
        wait_until("the guest", || holding().unwrap().references == 1);
        assert_eq!(pool.usage().leased, 1, "it has read both and given one back");
        client.kill();
        wait_until("what was kept", || holding().is_none());
        assert_eq!(pool.usage().leased, 0);
        wait_until("descriptors and mappings", || memfd_counts() == before);
    }
}

fn check_block(window: &DbufWindow, block: &[u64]) {
    let pointer = RichPointer::from_words([block[0], block[1]]);
    let mut bytes = vec![0; pointer.length() as usize];
    window.copy(pointer, &mut bytes).unwrap();
    assert_eq!(digest(&bytes), block[2], "not what was sent");
}

// ---- there: the other process

const STEP_GRANTED: u64 = 1;
const STEP_MAPPED: u64 = 2;
const STEP_READ: u64 = 3;
const STEP_RELEASED: u64 = 4;
const STEP_REQUESTED: u64 = 5;
const STEP_COPYING: u64 = 6;

#[test]
#[ignore = "run by another test, in a process of its own"]
fn run_other_process() {
    let Some(role) = common::child_role() else { return };
    let socket = stdin().as_fd().try_clone_to_owned().unwrap();
    match role.as_str() {
        "guest" => run_client(&socket),
        "maker" => run_memory_owner(&socket),
        _ => request_grants(socket, &role),
    }
}

fn run_client(socket: &OwnedFd) {
    let at = |step: u64| {
        send_text(socket, &format!("step {step}"));
        loop {
            match receive_text(socket) {
                Some((word, ..)) if word == "go" => return,
                Some(_) => {}
                None => std::process::exit(0),
            }
        }
    };
    let request = |dbuf: u32| {
        send_text(socket, &format!("grant {dbuf}"));
        receive_text(socket).unwrap()
    };
    at(0);
    assert_eq!(request(SECRET_DBUF).0, "no");
    let (_, _, mut fds) = request(SHARED_DBUF);
    at(STEP_GRANTED);
    let mut window = DbufWindow::new();
    window.admit(Grant::from_descriptor(dbuf_id(SHARED_DBUF), fds.remove(0))).unwrap();
    let unknown_id = RichPointer::new(dbuf_id(SECRET_DBUF), abi::Extent::new(0, 1), Class::YES);
    assert!(window.copy(unknown_id, &mut [0]).is_err());
    at(STEP_MAPPED);
    let blocks: Vec<_> = (0..LENT_SEGMENT_COUNT).map(|_| receive_text(socket).unwrap().1).collect();
    blocks.iter().for_each(|block| check_block(&window, block));
    at(STEP_READ);
    // The survivor has been waiting here.
    blocks.iter().for_each(|block| check_block(&window, block));
    send_text(socket, &format!("back {} {}", blocks[0][0], blocks[0][1]));
    at(STEP_RELEASED);
    send_text(socket, &format!("grant {SHARED_DBUF}"));
    at(STEP_REQUESTED);
    send_text(socket, &format!("step {STEP_COPYING}"));
    loop {
        check_block(&window, &blocks[1]);
    }
}

fn request_grants(socket: OwnedFd, role: &str) {
    let numbers: Vec<u64> = role.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
    let mut client = Client::new(socket);
    let mut read = |block: &[u64]| {
        let pointer = RichPointer::from_words([block[0], block[1]]);
        let mut bytes = vec![0; pointer.length() as usize];
        client.copy(pointer, &mut bytes).unwrap();
        assert_eq!(digest(&bytes), block[2], "not what was sent");
        pointer
    };
    let [first, _] = [0, 3].map(|at| read(&numbers[at..at + 3]));
    client.release(first).unwrap();
    // Repeats requests until this process is killed.
    while client.request_grant(dbuf_id(SHARED_DBUF)).is_ok() {}
}

fn run_memory_owner(socket: &OwnedFd) {
    let config = PoolConfig { segment: SEGMENT_SIZE, segments: SEGMENT_COUNT };
    let access = AccessList::private(effective_ids());
    let mut pool = AllocationPool::new(dbuf_id(SHARED_DBUF), config, access).unwrap();
    let mut creator = PoolOwner::new(SEGMENT_COUNT);
    creator.share(&pool).unwrap();
    let peer = creator.holders_mut().add_peer(Credentials::new(0, 0));
    let grant = creator.grant(dbuf_id(SHARED_DBUF), peer).unwrap();
    send(socket, b"grant", &[grant.descriptor()]);
    let mut kept = Aggregate::new();
    for number in 0..LENT_SEGMENT_COUNT {
        let bytes = vec![number as u8 + 1; SEGMENT_SIZE];
        let sent = pool.copy(&bytes).unwrap();
        creator.lend(&sent, peer).unwrap();
        for slice in sent.slices() {
            send_text(socket, &describe_block(slice.pointer(), slice.bytes()));
        }
        kept.append(sent).unwrap();
    }
    let frozen = FrozenData::from_aggregate(dbuf_id(FROZEN_DBUF), &kept).unwrap();
    let message = format!("frozen {} {}", frozen.len(), digest(&kept.to_vec()));
    send(socket, message.as_bytes(), &[frozen.descriptor().unwrap()]);
    // Waits until this process is killed.
    while receive_text(socket).is_some() {}
}
