//! Tests of aggregates passed between processes by reference: delivery, segments held for the
//! reader, and their release however the reader ends. (FEATURES Q14, Q18; RELIABILITY T4, T8, T10)

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

extern crate buffer as streamline_buffer;

mod common;

use abi::access::{AccessList, Credentials};
use buffer::pool::PoolConfig;
use common::{
    OtherUserProcess, dbuf_id, digest, receive, report, send, spawn_test_thread, wait_until,
    with_watchdog,
};
use std::io::stdin;
use std::time::{Duration, Instant};
use streamline_iolite::aggregate::owner::PoolOwner;
use streamline_iolite::aggregate::pipe::{PipeOffer, Receiver, SendError, Sender, pipe};
use streamline_iolite::aggregate::server::GrantServer;
use streamline_iolite::aggregate::{Aggregate, AllocationPool, GrantRefusal};
use sys::process::OVERFLOW_ID;
use sys::process::effective_ids;
use testkit::Random;

const SEGMENT_SIZE: usize = 4096;
const SEGMENT_COUNT: usize = 64;
/// Maximum number of segments held per reader.
const HELD_SEGMENTS_MAX: usize = 16;

// ---- here: the owner

struct Fixture {
    pool: AllocationPool,
    server: GrantServer,
}

impl Fixture {
    fn new(mode: u32) -> Self {
        let config = PoolConfig { segment: SEGMENT_SIZE, segments: SEGMENT_COUNT };
        let pool = AllocationPool::new(dbuf_id(1), config, AccessList::new(0, 0, mode)).unwrap();
        let mut creator = PoolOwner::new(HELD_SEGMENTS_MAX);
        creator.share(&pool).unwrap();
        Self { pool, server: GrantServer::start(creator).unwrap() }
    }

    /// Starts a reader with this role in another process and sends it the offer of a pipe. Returns
    /// `None`, after reporting a skip, if this machine does not allow that.
    fn start_reader(&self, role: &str) -> Option<(Sender, OtherUserProcess)> {
        let other = OtherUserProcess::start(role)?;
        let (sender, offer) =
            pipe(&self.server, dbuf_id(2), Credentials::new(OVERFLOW_ID, OVERFLOW_ID)).unwrap();
        send(&other, b"offer", &offer.descriptors());
        Some((sender, other))
    }

    /// Returns an aggregate of up to three slices, which holds the only reference of this process
    /// to its memory.
    fn create_aggregate(&mut self, random: &mut Random) -> Aggregate {
        let mut all = Aggregate::new();
        for _ in 0..random.within(1..4) {
            let bytes = random.bytes(random.clone().within(1..2000));
            // The pool is full until a reader releases something.
            wait_until("memory", || {
                let part = self.pool.copy(&bytes);
                part.is_ok_and(|part| all.prepend(part).is_ok())
            });
        }
        all
    }

    /// Waits until readers have released all segments. Returns the time that this took.
    fn wait_for_releases(&self) -> Duration {
        let start = Instant::now();
        wait_until("what was lent to come back", || self.pool.usage().leased == 0);
        start.elapsed()
    }
}

#[test]
fn q14_aggregates_arrive_intact_and_are_released() {
    let mut random = Random::with_replayable_seed();
    let mut fixture = Fixture::new(0o644);
    let Some((mut sender, other)) = fixture.start_reader("read") else { return };
    let mut sums = 0_u64;
    const AGGREGATE_COUNT: u64 = 3000;
    for _ in 0..AGGREGATE_COUNT {
        let sent = fixture.create_aggregate(&mut random);
        sums = sums.wrapping_add(digest(&sent.to_vec()));
        with_watchdog("what comes back", || sender.send(&fixture.server, &sent)).unwrap();
    }
    drop(sender);
    assert_eq!(other.receive_line().as_deref(), Some(&*format!("{AGGREGATE_COUNT} {sums}")));
    fixture.wait_for_releases();
    other.wait_for_success();
    // Everything except the rest of the last segment is free.
    let free = fixture.pool.copy(&[1; (SEGMENT_COUNT - 1) * SEGMENT_SIZE]).unwrap();
    assert_eq!(free.len(), (SEGMENT_COUNT - 1) * SEGMENT_SIZE, "it can be used again");
}

/// Kills the reader at random points, while it holds some aggregates and others are in transit.
#[test]
fn q18_killed_reader_releases_its_aggregates() {
    let mut random = Random::with_replayable_seed();
    let mut fixture = Fixture::new(0o644);
    let mut slowest = Duration::ZERO;
    for round in 0..12 {
        let Some((mut sender, mut other)) = fixture.start_reader("keep some") else { return };
        let until = random.below(60);
        let killer = spawn_test_thread(move || {
            // The reader reports every tenth aggregate.
            for _ in 0..until {
                if other.receive_line().is_none() {
                    break;
                }
            }
            other.kill();
        });
        let refused = loop {
            let sent = fixture.create_aggregate(&mut random);
            let sent = with_watchdog("what comes back", || sender.send(&fixture.server, &sent));
            if let Err(refused) = sent {
                break refused;
            }
        };
        assert!(
            matches!(
                refused,
                SendError::Fault(_) | SendError::Refused(GrantRefusal::UnknownPeer(_))
            ),
            "round {round}: {refused}"
        );
        killer.join();
        slowest = slowest.max(fixture.wait_for_releases());
    }
    println!("all was back at most {slowest:?} after the sender knew");
}

#[test]
fn reader_without_permission_is_sent_nothing() {
    let mut fixture = Fixture::new(0o600);
    let Some((mut sender, other)) = fixture.start_reader("read") else { return };
    let sent = fixture.pool.copy(b"secret").unwrap();
    let refused = sender.try_send(&fixture.server, &sent);
    let forbidden = GrantRefusal::Forbidden { dbuf: dbuf_id(1), uid: OVERFLOW_ID };
    assert_eq!(refused, Err(SendError::Refused(forbidden)));
    drop((sender, sent));
    assert_eq!(other.receive_line().as_deref(), Some("0 0"));
    other.wait_for_success();
    fixture.wait_for_releases();
}

/// A reader that releases nothing is refused further aggregates at its limit, and stalls no other
/// reader. A reader that releases aggregates that it does not hold has no effect.
#[test]
fn greedy_or_lying_reader_harms_only_itself() {
    let mut fixture = Fixture::new(0o644);
    let Some((mut greedy, mut one)) = fixture.start_reader("keep all") else { return };
    let (mut liar, mut two) = fixture.start_reader("lie").unwrap();
    let (mut honest, three) = fixture.start_reader("read").unwrap();
    let mut sums = 0_u64;
    let mut refused = 0;
    for number in 0..300_u64 {
        let bytes = vec![number as u8; SEGMENT_SIZE];
        let sent = fixture.pool.copy(&bytes).unwrap();
        sums = sums.wrapping_add(digest(&bytes));
        match greedy.try_send(&fixture.server, &sent) {
            Err(SendError::Refused(GrantRefusal::Limit { .. })) => refused += 1,
            sent => sent.unwrap(),
        }
        let _full = liar.try_send(&fixture.server, &sent);
        with_watchdog("what comes back", || honest.send(&fixture.server, &sent)).unwrap();
        wait_until("what the honest one gives back", || {
            let holding =
                fixture.server.with_owner(|owner| owner.holders().held_counts(honest.peer()));
            holding.is_none_or(|holding| holding.segments <= 2)
        });
    }
    assert_eq!(refused, 300 - HELD_SEGMENTS_MAX);
    drop(honest);
    assert_eq!(three.receive_line().as_deref(), Some(&*format!("300 {sums}")));
    let kept =
        fixture.server.with_owner(|owner| owner.holders().held_counts(greedy.peer()).unwrap());
    assert_eq!(kept.segments, HELD_SEGMENTS_MAX);
    one.kill();
    two.kill();
    three.wait_for_success();
    fixture.wait_for_releases();
}

// ---- there

#[test]
#[ignore = "run by another test, in a process of its own"]
fn run_other_process() {
    let Some(role) = common::child_role() else { return };
    let mut receiver = PipeOffer::from_descriptors(receive(stdin()).1).unwrap().open().unwrap();
    match role.as_str() {
        "read" => read_and_report(&mut receiver),
        "keep some" => hold_last_aggregates(&mut receiver, 5),
        "keep all" => hold_last_aggregates(&mut receiver, usize::MAX),
        "lie" => release_forged_pointers(&mut receiver),
        _ => panic!("no role {role}"),
    }
}

/// Receives aggregates until the end of the pipe, reading each in two parts or copying it into a
/// pool. Reports the number of aggregates and the sum of their digests.
fn read_and_report(receiver: &mut Receiver) {
    let config = PoolConfig { segment: 1 << 16, segments: 4 };
    let mut pool =
        AllocationPool::new(dbuf_id(9), config, AccessList::private(effective_ids())).unwrap();
    let (mut count, mut sums) = (0_u64, 0_u64);
    while let Some(received) = receiver.receive().unwrap() {
        let bytes = if count.is_multiple_of(2) {
            let mut bytes = vec![0; received.len()];
            let (front, back) = bytes.split_at_mut(received.len() / 3);
            receiver.copy(&received, 0, front).unwrap();
            receiver.copy(&received, front.len(), back).unwrap();
            assert!(receiver.copy(&received, received.len(), &mut [0]).is_err());
            receiver.release(received).unwrap();
            bytes
        } else {
            receiver.copy_and_release(received, &mut pool).unwrap().to_vec()
        };
        count += 1;
        sums = sums.wrapping_add(digest(&bytes));
    }
    report(&format!("{count} {sums}"));
}

/// Receives aggregates and holds the last `most` of them until this process is killed.
fn hold_last_aggregates(receiver: &mut Receiver, most: usize) {
    let (mut kept, mut count) = (Vec::new(), 0);
    while let Some(received) = receiver.receive().unwrap() {
        let mut bytes = vec![0; received.len()];
        receiver.copy(&received, 0, &mut bytes).unwrap();
        kept.push(received);
        if kept.len() > most {
            receiver.release(kept.remove(0)).unwrap();
        }
        count += 1;
        if count % 10 == 0 && most < usize::MAX {
            report("ten more");
        }
    }
}

/// Releases each aggregate repeatedly, and also releases pointers that were never sent.
fn release_forged_pointers(receiver: &mut Receiver) {
    let mut random = Random::new(4);
    while let Some(received) = receiver.receive().unwrap() {
        let pointer = received.pointers()[0];
        receiver.release(received).unwrap();
        for _ in 0..20 {
            let word = pointer.words()[0] ^ (1 << random.below(50));
            let forged = abi::RichPointer::from_words([word, pointer.words()[1]]);
            // The result is bytes of this pool, which the reader may read, or a fault.
            let mut out = vec![0; forged.length() as usize];
            let _copied = receiver.client_mut().copy(forged, &mut out);
            receiver.client_mut().release(forged).unwrap();
        }
    }
}
