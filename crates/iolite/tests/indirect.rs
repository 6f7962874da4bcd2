//! Tests of indirect streams between processes of different users: read permissions, killed
//! processes, and hostile writers. (FEATURES D4, D5, D6, D7, D8, E2, E6; RELIABILITY T3, T4, T10,
//! T17)

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

extern crate buffer as streamline_buffer;

mod common;

use abi::access::{AccessList, Credentials, Grantees};
use abi::{BlockMetadata, Class, Entry, Extent, Marks, RichPointer};
use buffer::ibuf::{self, EntryColumns};
use buffer::{Fault, OverflowPolicy, pool, share};
use common::{
    OtherUserProcess, dbuf_id, read_and_check_blocks, read_to_fault, report, send,
    spawn_test_thread, wait_until, with_watchdog, write,
};
use std::fs::Permissions;
use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use streamline_iolite::aggregate::owner::PoolOwner;
use streamline_iolite::aggregate::server::GrantServer;
use streamline_iolite::aggregate::{AllocationPool, FrozenData};
use streamline_iolite::file::{CachedFile, FileReader};
use streamline_iolite::indirect::{
    Backing, Config, Input, Offer, Output, indirect_stream, sweep_held_segments,
};
use streamline_iolite::interface::{StreamReader as _, StreamWriter as _};
use streamline_iolite::splice::{splice, splice_all};
use streamline_iolite::view::Space;
use sys::doorbell::SocketDoorbell;
use sys::process::OVERFLOW_ID;
use sys::process::effective_ids;
use testkit::Random;

const SEGMENT_SIZE: usize = 4096;
const RING_DBUF: u32 = 1;
const OPEN_DBUF: u32 = 2;
const SECRET_DBUF: u32 = 3;
const NAMED_DBUF: u32 = 4;
const FROZEN_DBUF: u32 = 5;
const LATER_DBUF: u32 = 6;

fn stream_config() -> Config {
    Config { entries: 256, ..Config::new(dbuf_id(RING_DBUF)) }
}

// ---- here

struct Fixture {
    server: GrantServer,
}

impl Fixture {
    fn new() -> Self {
        Self { server: GrantServer::start(PoolOwner::new(64)).unwrap() }
    }

    fn pool(&self, number: u32, segments: usize, access: AccessList) -> AllocationPool {
        let config = pool::PoolConfig { segment: SEGMENT_SIZE, segments };
        let pool = AllocationPool::new(dbuf_id(number), config, access).unwrap();
        self.server.with_owner(|owner| owner.share(&pool)).unwrap();
        pool
    }

    fn introduce_user(&self, user: u32) -> OwnedFd {
        self.server.add_client(Credentials::new(user, user)).unwrap().1
    }

    /// Returns a space that can query the grant server.
    fn space(&self) -> Space {
        let space = Space::new();
        space.add_owner(self.introduce_user(0));
        space
    }
}

fn access_list_with_mode(mode: u32) -> AccessList {
    AccessList::new(0, 0, mode)
}

/// Sends an offer, with the socket of a grant server if there is one.
fn send_offer(socket: impl AsFd, offer: &Offer, server: Option<&OwnedFd>) {
    let mut all = offer.descriptors().to_vec();
    all.extend(server.map(AsFd::as_fd));
    send(socket, b"offer", &all);
}

/// Receives the offer of a stream over a socket, and opens the stream in a space. First introduces
/// the grant server whose socket was sent with the offer. Returns `None` if the sender has exited.
fn receive_input(socket: impl AsFd, space: &Space) -> Option<Input> {
    let (message, mut descriptors) = common::receive(socket);
    if descriptors.len() > Offer::DESCRIPTOR_COUNT {
        space.add_owner(descriptors.pop().unwrap());
    }
    (!message.is_empty())
        .then(|| Input::open(Offer::from_descriptors(descriptors).unwrap(), space).unwrap())
}

#[test]
fn d6_all_blocks_reach_a_reader_of_another_user() {
    let Some(other) = OtherUserProcess::start("read") else { return };
    let fixture = Fixture::new();
    let backing = Backing::new(fixture.pool(OPEN_DBUF, 8, access_list_with_mode(0o644)));
    let (mut output, offers) = indirect_stream(&stream_config(), backing.clone()).unwrap();
    send_offer(&other, &offers[0], Some(&fixture.introduce_user(OVERFLOW_ID)));
    drop(offers);
    write(&mut output, 0..30_000).unwrap();
    let put = output.counts();
    drop(output);
    assert_eq!(other.receive_line().as_deref(), Some("30000 None mapped 1 refused 0 lost 0"));
    assert_eq!(put.blocks, 30_000);
    other.wait_for_success();
    wait_until("what is in flight to be passed", || {
        sweep_held_segments() == 0 && backing.with_pool(|pool| pool.usage().leased) == 0
    });
}

/// The owner checks the access list against the credentials of the requesting process, once per
/// dbuf.
#[test]
fn d5_p2_dbuf_is_mapped_on_demand_for_permitted_readers() {
    let Some(other) = OtherUserProcess::start("report each") else { return };
    let fixture = Fixture::new();
    let backing = Backing::new(fixture.pool(OPEN_DBUF, 8, access_list_with_mode(0o644)));
    let mut secret = fixture.pool(SECRET_DBUF, 2, access_list_with_mode(0o600));
    let named = AccessList {
        readers: Grantees { users: vec![OVERFLOW_ID], groups: vec![] },
        ..access_list_with_mode(0o600)
    };
    let mut named = fixture.pool(NAMED_DBUF, 2, named);
    let frozen = FrozenData::from_reader(dbuf_id(FROZEN_DBUF), &[7; 6000][..], 6000).unwrap();
    fixture
        .server
        .with_owner(|owner| owner.share_frozen(&frozen, access_list_with_mode(0o604)))
        .unwrap();
    let (mut output, offers) = indirect_stream(&stream_config(), backing).unwrap();
    send_offer(&other, &offers[0], Some(&fixture.introduce_user(OVERFLOW_ID)));
    drop(offers);
    let blocks = [secret.copy(&[3; 10]).unwrap(), named.copy(&[4; 10]).unwrap()];
    let [secret_bytes, readable] =
        blocks.each_ref().map(|block| block.slices().next().unwrap().bytes());
    let file = frozen.aggregate().unwrap();
    let file = file.slices().next().unwrap().bytes();
    for pool in [&secret, &named] {
        assert!(output.register_pool(pool.pool(), 1));
    }
    output.register_frozen(&frozen, 1);
    for _ in 0..2 {
        for block in [b"open", secret_bytes, readable, &file[5990..]] {
            output.write(block).unwrap();
        }
    }
    assert_eq!(output.splice_counts().blocks, 6);
    drop(output);
    let forbidden = Fault::Forbidden { dbuf: dbuf_id(SECRET_DBUF), uid: OVERFLOW_ID };
    for _ in 0..2 {
        assert_eq!(other.receive_line().unwrap(), format!("{:?}", b"open"));
        assert_eq!(other.receive_line().unwrap(), format!("{forbidden:?}"), "who, what and why");
        assert_eq!(other.receive_line().unwrap(), format!("{:?}", [4; 10]));
        assert_eq!(other.receive_line().unwrap(), format!("{:?}", [7; 10]));
    }
    // The second pointer into the refused dbuf caused no query.
    assert_eq!(other.receive_line().unwrap(), "end None mapped 3 refused 1 lost 2");
    other.wait_for_success();
}

/// Pointers into a file cause buffer faults like other pointers. The mode of the file determines
/// access, and a truncated target is a fault of that pointer alone.
#[test]
fn e5_g4_file_pointer_in_stream_needs_read_permission() {
    let Some(other) = OtherUserProcess::start("report each") else { return };
    let fixture = Fixture::new();
    let backing = Backing::new(fixture.pool(OPEN_DBUF, 8, access_list_with_mode(0o644)));
    let (mut output, offers) = indirect_stream(&stream_config(), backing).unwrap();
    send_offer(&other, &offers[0], Some(&fixture.introduce_user(OVERFLOW_ID)));
    drop(offers);
    let named = |kind: &str, bits: u32| {
        let name = format!("streamline-indirect-{kind}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, b"0123456789").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(bits)).unwrap();
        path
    };
    let (readable_path, secret_path) = (named("shown", 0o644), named("hidden", 0o600));
    let reader = |number: u32, path: &Path| {
        let file = CachedFile::open(dbuf_id(number), path).unwrap();
        fixture.server.with_owner(|owner| owner.share_file(&file)).unwrap();
        file.reader().with_pointer_splices()
    };
    let (mut open, mut closed) =
        (reader(NAMED_DBUF, &readable_path), reader(SECRET_DBUF, &secret_path));
    let mut pass = |from: &mut FileReader| {
        let moved = splice(from, &mut output, 5).unwrap();
        assert_eq!((moved.bytes, moved.by_pointer), (5, 5));
        output.flush();
    };
    pass(&mut open);
    assert_eq!(other.receive_line().unwrap(), format!("{:?}", b"01234"));
    pass(&mut closed);
    let forbidden = Fault::Forbidden { dbuf: dbuf_id(SECRET_DBUF), uid: OVERFLOW_ID };
    assert_eq!(other.receive_line().unwrap(), format!("{forbidden:?}"));
    pass(&mut open);
    assert_eq!(other.receive_line().unwrap(), format!("{:?}", b"56789"));
    open.seek_to(3);
    std::fs::OpenOptions::new()
        .write(true)
        .open(&readable_path)
        .unwrap()
        .write_at(b"xyz", 4)
        .unwrap();
    pass(&mut open);
    assert_eq!(
        other.receive_line().unwrap(),
        format!("{:?}", b"3xyz7"),
        "what the file contains now"
    );
    let behind = RichPointer::new(dbuf_id(NAMED_DBUF), Extent::new(2, 5), Class::YES);
    open.seek_to(2);
    let blocked = write_truncated_pointer(&mut output, &mut open, &readable_path);
    assert_eq!(blocked.unwrap(), 5);
    let cut = Fault::OutOfWindow(behind.place);
    assert_eq!(other.receive_line().unwrap(), format!("{cut:?}"));
    drop(output);
    assert_eq!(other.receive_line().unwrap(), "end None mapped 1 refused 1 lost 2");
    other.wait_for_success();
    for path in [readable_path, secret_path] {
        std::fs::remove_file(path).unwrap();
    }
}

/// Writes a pointer to five bytes of a file and truncates the file before it publishes the pointer.
fn write_truncated_pointer(
    output: &mut Output,
    from: &mut FileReader,
    path: &Path,
) -> Result<usize, Fault> {
    let moved = splice(from, output, 5)?;
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4).unwrap();
    output.flush();
    Ok(moved.by_pointer)
}

#[test]
fn d5_mappings_outlive_killed_owner_and_new_faults_fail() {
    let Some(mut other) = OtherUserProcess::start("own and write") else { return };
    let space = Space::new();
    let mut input = receive_input(&other, &space).unwrap();
    let mut out = [0; 64];
    assert_eq!(with_watchdog("a block", || input.read(&mut out[..10]).unwrap()), 10);
    assert_eq!(out[..10], [1; 10]);
    assert_eq!(other.receive_line().as_deref(), Some("all written"));
    other.kill();
    assert_eq!(
        with_watchdog("a block", || input.read(&mut out[..10]).unwrap()),
        10,
        "mapped before"
    );
    assert_eq!(out[..10], [2; 10]);
    assert_eq!(input.read(&mut out), Err(Fault::OwnerGone(dbuf_id(LATER_DBUF))));
    assert_eq!(input.read(&mut out).unwrap(), 10, "the fault was passed");
    assert_eq!(out[..10], [4; 10]);
    assert_eq!(input.read(&mut out), Err(Fault::Abandoned), "the writer is gone too");
    assert_eq!(input.counts().lost, 1);
    assert_eq!(input.writer_counts().resident_blocks(&input.counts()), Some(0));
}

/// Pointers pass from ring to ring through a process without permission to read the data.
#[test]
fn e2_forwarder_needs_no_read_permission() {
    let Some(other) = OtherUserProcess::start("pass on") else { return };
    let fixture = Fixture::new();
    let backing = Backing::new(fixture.pool(SECRET_DBUF, 8, access_list_with_mode(0o600)));
    let (mut output, offers) = indirect_stream(&stream_config(), backing.clone()).unwrap();
    send_offer(&other, &offers[0], Some(&fixture.introduce_user(OVERFLOW_ID)));
    drop(offers);
    let space = fixture.space();
    let mut input = receive_input(&other, &space).unwrap();
    let reading = spawn_test_thread(move || {
        let read = read_and_check_blocks(&mut input);
        (read, input.counts().lost)
    });
    write(&mut output, 0..20_000).unwrap();
    let bytes = output.counts().bytes;
    drop(output);
    assert_eq!(reading.join(), ((20_000, None), 0));
    assert_eq!(other.receive_line().unwrap(), format!("{bytes} {bytes} by pointer, mapped 0"));
    other.wait_for_success();
    wait_until("what is in flight to be passed", || {
        sweep_held_segments() == 0 && backing.with_pool(|pool| pool.usage().leased) == 0
    });
}

#[test]
fn e6_forwarder_may_be_killed_at_any_time() {
    let mut random = Random::with_replayable_seed();
    for _ in 0..6 {
        let Some(mut other) = OtherUserProcess::start("pass on") else { return };
        let fixture = Fixture::new();
        let backing = Backing::new(fixture.pool(SECRET_DBUF, 8, access_list_with_mode(0o600)));
        let (mut output, offers) = indirect_stream(&stream_config(), backing.clone()).unwrap();
        send_offer(&other, &offers[0], Some(&fixture.introduce_user(OVERFLOW_ID)));
        drop(offers);
        let mut input = receive_input(&other, &fixture.space()).unwrap();
        let enough = random.below(10_000);
        let reading = spawn_test_thread(move || {
            let mut out = [0; 1000];
            while input.counts().blocks < enough {
                assert!(input.read(&mut out).unwrap() > 0, "it goes on until it is killed");
            }
            other.kill();
            (read_to_fault(&mut input), input.writer_counts().resident_blocks(&input.counts()))
        });
        assert_eq!(write(&mut output, 0..u64::MAX), Err(Fault::Abandoned), "nobody reads");
        assert_eq!(reading.join(), (Fault::Abandoned, Some(0)), "all that was shown");
        drop(output);
        wait_until("what is in flight to be passed", || {
            sweep_held_segments() == 0 && backing.with_pool(|pool| pool.usage().leased) == 0
        });
    }
}

/// A writer puts arbitrary pointers into its ring. Valid pointers resolve correctly, all others are
/// faults without side effects, and the number of queries to the owner is bounded.
#[test]
fn d4_hostile_writer_damages_only_its_own_stream() {
    let Some(other) = OtherUserProcess::start("lie") else { return };
    let fixture = Fixture::new();
    let readable = fixture.pool(OPEN_DBUF, 2, access_list_with_mode(0o644));
    let _secret = fixture.pool(SECRET_DBUF, 2, access_list_with_mode(0));
    let frozen = FrozenData::from_reader(dbuf_id(FROZEN_DBUF), &[9; 5000][..], 5000).unwrap();
    fixture
        .server
        .with_owner(|owner| owner.share_frozen(&frozen, access_list_with_mode(0o644)))
        .unwrap();
    let place = readable.pool().draft(64, 64).map(|mut draft| {
        draft.fill(6);
        draft.commit(64)
    });
    assert_eq!(place, Some(Extent::new(0, 64)), "what the other process takes it for");
    let space = Space::new();
    space.add_owner(fixture.introduce_user(1000));
    let mut input = receive_input(&other, &space).unwrap();
    let (mut good, mut faults) = (0_u64, 0_u64);
    let mut out = [0; 1 << 13];
    loop {
        // One block at a time, to tell valid pointers from invalid ones.
        match input.peek() {
            Ok(None) => _ = with_watchdog("a lie", || input.wait(None).unwrap()),
            Ok(Some([])) => break,
            Ok(Some(block)) => {
                let length = block.len();
                // 64 bytes of value 6, or part of the frozen file (zero beyond its end), or part of
                // the pool that has not been written yet.
                assert!(block.iter().all(|byte| [0, 6, 9].contains(byte)), "{block:?}");
                good += u64::from(block == [6; 64]);
                let count = length.min(out.len());
                out[..count].copy_from_slice(&block[..count]);
                input.take(length);
            }
            Err(fault) => {
                let lie = matches!(
                    fault,
                    Fault::UnknownDbuf(_)
                        | Fault::Forbidden { .. }
                        | Fault::OutOfWindow(_)
                        | Fault::CrossesSegment(_)
                        | Fault::Hole
                );
                assert!(lie, "{fault}");
                faults += 1;
            }
        }
    }
    assert_eq!(other.receive_line().unwrap(), format!("{good}"), "all that was good came");
    assert_eq!(
        (input.counts().lost, input.writer_counts().resident_blocks(&input.counts())),
        (faults, Some(0))
    );
    assert!(faults > 10_000, "{faults}");
    let requests = space.query_counts();
    assert!(requests.mapped == 2 && requests.refused < 200, "{requests:?} for {faults} faults");
    other.wait_for_success();
}

// ---- there

#[test]
#[ignore = "run by another test, in a process of its own"]
fn run_other_process() {
    let Some(role) = common::child_role() else { return };
    match role.as_str() {
        "read" => {
            let mut input = receive_input(stdin(), &Space::new()).unwrap();
            let (count, fault) = read_and_check_blocks(&mut input);
            report_end(&format!("{count}"), fault, &input);
        }
        "report each" => report_each_block(),
        "own and write" => write_until_killed(),
        "pass on" => forward_until_killed(),
        "lie" => write_false_pointers(),
        _ => panic!("no role {role}"),
    }
}

fn report_end(word: &str, fault: Option<Fault>, input: &Input) {
    let requests = input.space().query_counts();
    let lost = input.counts().lost;
    report(&format!(
        "{word} {fault:?} mapped {} refused {} lost {lost}",
        requests.mapped, requests.refused
    ));
}

fn report_each_block() {
    let mut input = receive_input(stdin(), &Space::new()).unwrap();
    let mut out = [0; 64];
    loop {
        input.wait(None).unwrap();
        match input.peek() {
            Ok(None) => {}
            Ok(Some([])) => break,
            Ok(Some(block)) => {
                let count = block.len();
                out[..count].copy_from_slice(block);
                report(&format!("{:?}", &out[..count]));
                input.take(count);
            }
            Err(fault) => report(&format!("{fault:?}")),
        }
    }
    report_end("end", None, &input);
}

fn write_until_killed() {
    let server = GrantServer::start(PoolOwner::new(4)).unwrap();
    let config_of = pool::PoolConfig { segment: SEGMENT_SIZE, segments: 2 };
    let mut pools = [OPEN_DBUF, LATER_DBUF].map(|number| {
        let all = AccessList::new(OVERFLOW_ID, OVERFLOW_ID, 0o644);
        let pool = AllocationPool::new(dbuf_id(number), config_of, all).unwrap();
        server.with_owner(|owner| owner.share(&pool)).unwrap();
        pool
    });
    let later = pools[1].copy(&[3; 10]).unwrap();
    let [open, _keeps] = pools;
    let (mut output, offers) = indirect_stream(&stream_config(), Backing::new(open)).unwrap();
    output.register_pool(_keeps.pool(), 1);
    let (_, socket) = server.add_client(Credentials::new(0, 0)).unwrap();
    send_offer(stdin(), &offers[0], Some(&socket));
    drop((offers, socket));
    output.write(&[1; 10]).unwrap();
    output.write(&[2; 10]).unwrap();
    output.write(later.slices().next().unwrap().bytes()).unwrap();
    output.write(&[4; 10]).unwrap();
    output.flush();
    report("all written");
    common::wait_to_be_killed(output);
}

fn forward_until_killed() {
    let space = Space::new();
    let mut input = receive_input(stdin(), &space).unwrap();
    let server = GrantServer::start(PoolOwner::new(4)).unwrap();
    let config_of = pool::PoolConfig { segment: SEGMENT_SIZE, segments: 2 };
    let own =
        AllocationPool::new(dbuf_id(20), config_of, AccessList::private(effective_ids())).unwrap();
    server.with_owner(|owner| owner.share(&own)).unwrap();
    let config = Config { id: dbuf_id(21), entries: 256, ..Config::new(dbuf_id(21)) };
    let (mut output, offers) = indirect_stream(&config, Backing::new(own)).unwrap();
    send_offer(stdin(), &offers[0], None);
    drop(offers);
    // Splices one byte first, which splits a block.
    let first = splice(&mut input, &mut output, 1).unwrap();
    let rest = splice_all(&mut input, &mut output).unwrap();
    let bytes = first.bytes + rest.bytes;
    let by_pointer = first.by_pointer + rest.by_pointer;
    report(&format!("{bytes} {by_pointer} by pointer, mapped {}", space.query_counts().mapped));
    drop(output);
    wait_until("what is in flight to be passed", || sweep_held_segments() == 0);
}

fn write_false_pointers() {
    let shape = ibuf::RingConfig {
        entries: 1024,
        columns: EntryColumns::Pointer,
        policy: OverflowPolicy::Block,
        readers: 1,
    };
    let (mut writer, mut offers) = share::pointer_ring(&shape, dbuf_id(RING_DBUF)).unwrap();
    let (doorbell, theirs) = SocketDoorbell::pair().unwrap();
    let ring = offers.remove(0);
    let mut all = ring.descriptors().to_vec();
    all.push(theirs.as_fd());
    send(stdin(), b"offer", &all);
    let mut random = Random::with_replayable_seed();
    let good = RichPointer::new(dbuf_id(OPEN_DBUF), Extent::new(0, 64), Class::YES);
    let mut count = 0;
    for _ in 0..40_000 {
        let length = random.below(70) as u32;
        let (near, far) = (random.below(3 * SEGMENT_SIZE as u64), random.next_u64());
        let number = |dbuf: u32| dbuf_id(dbuf);
        let pointer = match random.below(8) {
            0 | 1 => good,
            2 => RichPointer::from_words([random.next_u64(), random.next_u64()]),
            3 => RichPointer::new(number(SECRET_DBUF), Extent::new(near, length), Class::YES),
            4 => RichPointer::new(number(FROZEN_DBUF), Extent::new(4 * near, length), Class(7)),
            5 => RichPointer::new(number(OPEN_DBUF), Extent::new(far, u32::MAX), Class::YES),
            6 => RichPointer::hole(length),
            // Ids of dbufs that no longer exist, or not yet.
            _ => RichPointer::new(number(100 + (far % 1000) as u32), Extent::new(0, 9), Class::YES),
        };
        count += u64::from(pointer == good);
        let entry = Entry::new(pointer, BlockMetadata::default(), Marks::for_plain_block(0));
        while writer.push(&[entry]).unwrap().put == 0 {
            doorbell.notify();
            std::thread::yield_now();
        }
    }
    drop(writer);
    doorbell.notify();
    report(&format!("{count}"));
}
