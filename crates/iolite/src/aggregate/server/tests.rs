//! Tests of a grant server and its clients in one process. `tests/aggregate_holders.rs` has tests
//! with several processes.

use super::super::{Aggregate, AllocationPool};

use super::*;
use abi::access::AccessList;
use buffer::Fault;
use buffer::pool::PoolConfig;
use std::time::Instant;
use testkit::wait_until;

const SEGMENT_SIZE: usize = 4096;

fn create_pool(id: u32, mode: u32) -> AllocationPool {
    let config = PoolConfig { segment: SEGMENT_SIZE, segments: 8 };
    let access = AccessList::new(1000, 100, mode);
    AllocationPool::new(DbufId::new(id).unwrap(), config, access).unwrap()
}

fn slice_pointers(aggregate: &Aggregate) -> Vec<RichPointer> {
    aggregate.slices().map(super::super::Slice::pointer).collect()
}

fn reference_count(server: &GrantServer, peer: PeerId) -> Option<u64> {
    server.with_owner(|owner| Some(owner.holders().held_counts(peer)?.references))
}

/// A pointer into unmapped memory maps the memory once (a buffer fault), or fails with the reason.
#[test]
fn q4_q5_pointer_maps_its_pool_once_or_fails_with_the_reason() {
    let server = GrantServer::start(PoolOwner::new(8)).unwrap();
    let (mut open, mut secret) = (create_pool(1, 0o644), create_pool(2, 0o600));
    for pool in [&open, &secret] {
        server.with_owner(|owner| owner.share(pool)).unwrap();
    }
    let (peer, socket) = server.add_client(Credentials::new(1001, 1001)).unwrap();
    let mut client = Client::new(socket);
    let sent = open.copy(b"for everybody").unwrap();
    server.with_owner(|owner| owner.lend(&sent, peer)).unwrap();
    let pointer = slice_pointers(&sent)[0];
    let mut out = [0; 13];
    assert!(!client.window().is_mapped(pointer.dbuf()));
    client.copy(pointer, &mut out).unwrap();
    assert_eq!(&out, b"for everybody");
    assert!(client.window().is_mapped(pointer.dbuf()));
    let hidden = slice_pointers(&secret.copy(b"not for everybody").unwrap())[0];
    let forbidden = GrantRefusal::Forbidden { dbuf: hidden.dbuf(), uid: 1001 };
    let refused = client.copy(hidden, &mut [0; 17]);
    assert_eq!(refused, Err(ResolveError::Refused(forbidden)));
    let unknown = DbufId::new(77).unwrap();
    let refused = client.copy(RichPointer::new(unknown, pointer.place, pointer.class), &mut out);
    assert_eq!(refused, Err(ResolveError::Refused(GrantRefusal::UnknownDbuf(unknown))));
    let hole = client.copy(RichPointer::hole(13), &mut out);
    assert_eq!(hole, Err(ResolveError::Fault(Fault::Hole)));
    let short = client.copy(pointer, &mut [0; 5]);
    assert_eq!(short, Err(ResolveError::Fault(Fault::TooLong { length: 13, limit: 5 })));
    client.release(pointer).unwrap();
    wait_until("the slice comes back", || reference_count(&server, peer) == Some(0));
    drop(client);
    wait_until("the guest is gone", || reference_count(&server, peer).is_none());
    assert!(!server.evict(peer));
}

#[test]
fn q14_aggregate_over_several_pools_is_received_completely() {
    let server = GrantServer::start(PoolOwner::new(8)).unwrap();
    let (mut one, mut two, mut ours) =
        (create_pool(1, 0o644), create_pool(2, 0o644), create_pool(3, 0o600));
    let mut sent = one.copy(&[1; 6000]).unwrap();
    sent.append(two.copy(&[2; 6000]).unwrap()).unwrap();
    for pool in [&one, &two] {
        server.with_owner(|owner| owner.share(pool)).unwrap();
    }
    let (peer, socket) = server.add_client(Credentials::new(1001, 1001)).unwrap();
    server.with_owner(|owner| owner.lend(&sent, peer)).unwrap();
    let reader = thread::spawn(move || {
        let mut client = Client::new(socket);
        let pointers = slice_pointers(&sent);
        let received = client.receive(&pointers, &mut ours).unwrap();
        pointers.iter().for_each(|pointer| client.release(*pointer).unwrap());
        (received == sent, client)
    });
    let (same, _client) = reader.join().unwrap();
    assert!(same);
    wait_until("all slices come back", || reference_count(&server, peer) == Some(0));
    let leased = || one.usage().leased + two.usage().leased;
    assert_eq!(leased(), 0);
}

/// A client that sends garbage or does not read is evicted, and the other clients continue to be
/// served (T8).
#[test]
fn misbehaving_client_is_evicted_others_are_served() {
    let server = GrantServer::start(PoolOwner::new(8)).unwrap();
    let mut pool = create_pool(1, 0o644);
    server.with_owner(|owner| owner.share(&pool)).unwrap();
    let introduce = || server.add_client(Credentials::new(1001, 1001)).unwrap();
    let (honest, socket) = introduce();
    let mut client = Client::new(socket);
    let sent = pool.copy(b"data").unwrap();
    let id = pool.pool().id();
    let invalid_messages: [&dyn Fn(&OwnedFd); 6] = [
        &|socket| descriptor::send(socket, b"x", &[]).unwrap(),
        &|socket| descriptor::send(socket, &[7; Message::SIZE], &[]).unwrap(),
        &|socket| descriptor::send(socket, &[0; 4096], &[]).unwrap(),
        &|socket| descriptor::send(socket, b"", &[]).unwrap(),
        &|socket| {
            let wrong = Message { kind: REQUEST_GRANT, dbuf: u32::MAX, words: [0; 2] };
            descriptor::send(socket, wrong.as_bytes(), &[socket.as_fd(); 60]).unwrap();
        },
        // Sends requests and never reads; the eviction cannot even be reported to it.
        &|socket| {
            let request = Message::new(REQUEST_GRANT, id, [0; 2]);
            while descriptor::send(socket, request.as_bytes(), &[]).is_ok() {}
        },
    ];
    for send in invalid_messages {
        let (peer, socket) = introduce();
        server.with_owner(|owner| owner.lend(&sent, peer)).unwrap();
        send(&socket);
        wait_until("it is shown out", || reference_count(&server, peer).is_none());
        let mut evicted = Client::new(socket);
        while evicted.request_grant(id).is_ok() {}
        assert_eq!(evicted.request_grant(id).unwrap_err(), GrantRefusal::Abandoned);
        client.copy(slice_pointers(&sent)[0], &mut [0; 4]).unwrap();
        assert!(client.request_grant(id).is_ok(), "the others are served");
    }
    assert_eq!(server.with_owner(|owner| owner.holders().peers().collect::<Vec<_>>()), [honest]);
    drop(sent);
    assert_eq!(pool.usage().leased, 0);
}

#[test]
fn closing_server_leaves_no_client_waiting() {
    let server = GrantServer::start(PoolOwner::new(8)).unwrap();
    let mut pool = create_pool(1, 0o644);
    server.with_owner(|owner| owner.share(&pool)).unwrap();
    let (peer, socket) = server.add_client(Credentials::new(1001, 1001)).unwrap();
    let sent = pool.copy(b"data").unwrap();
    server.with_owner(|owner| owner.lend(&sent, peer)).unwrap();
    let mut client = Client::new(socket);
    let pointer = slice_pointers(&sent)[0];
    let mut out = [0; 4];
    client.copy(pointer, &mut out).unwrap();
    drop((sent, server));
    assert_eq!(pool.usage().leased, 0);
    assert_eq!(client.request_grant(pool.pool().id()).unwrap_err(), GrantRefusal::Abandoned);
    assert_eq!(client.release(pointer), Err(GrantRefusal::Abandoned));
    client.copy(pointer, &mut out).unwrap();
    assert_eq!(&out, b"data", "what is mapped stays");
}

/// Measures the costs of grants. Run with `cargo test -p streamline-iolite --release -- --ignored
/// --nocapture prints_costs_of_grants`.
#[test]
#[ignore = "a measurement"]
fn prints_costs_of_grants() {
    let server = GrantServer::start(PoolOwner::new(8)).unwrap();
    let mut pool = create_pool(1, 0o644);
    server.with_owner(|owner| owner.share(&pool)).unwrap();
    let (_, socket) = server.add_client(Credentials::new(1001, 1001)).unwrap();
    let mut client = Client::new(socket);
    let id = pool.pool().id();
    let start = Instant::now();
    for _ in 0..10_000 {
        drop(client.request_grant(id).unwrap());
    }
    println!("ask for a dbuf and get it: {:?}", start.elapsed() / 10_000);
    for length in [64, 1024, 4096] {
        let sent = pool.allocate(length, |room| room.len()).unwrap();
        let (pointer, mut out) = (slice_pointers(&sent)[0], vec![0; length]);
        client.copy(pointer, &mut out).unwrap();
        let start = Instant::now();
        for _ in 0..1_000_000 {
            client.copy(std::hint::black_box(pointer), &mut out).unwrap();
        }
        println!("copy {length} B out of a mapped pool: {:?}", start.elapsed() / 1_000_000);
    }
}
