//! Tests of grants and refusals within one process. `tests/aggregate_holders.rs` has tests with
//! several processes.

use super::*;
use buffer::pool::PoolConfig;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

const SEGMENT_SIZE: usize = 4096;

fn create_pool(id: u32, access: AccessList) -> AllocationPool {
    let config = PoolConfig { segment: SEGMENT_SIZE, segments: 8 };
    AllocationPool::new(DbufId::new(id).unwrap(), config, access).unwrap()
}

fn read_through_window(window: &DbufWindow, aggregate: &Aggregate) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    for slice in aggregate.slices() {
        let mut piece = vec![0; slice.len()];
        window.copy(slice.pointer(), &mut piece)?;
        bytes.extend(piece);
    }
    Ok(bytes)
}

#[test]
fn q4_pool_is_granted_only_to_permitted_readers() {
    let mut owner = PoolOwner::new(4);
    let mut shared = create_pool(1, AccessList::new(1000, 100, 0o640));
    owner.share(&shared).unwrap();
    assert_eq!(owner.share(&shared), Err(GrantRefusal::Taken(shared.pool().id())));
    let secret = create_pool(2, AccessList::new(1001, 100, 0o600));
    owner.share(&secret).unwrap();
    let [own, member, other] = [(1000, 1), (1002, 100), (1003, 1)]
        .map(|(uid, gid)| owner.holders_mut().add_peer(Credentials::new(uid, gid)));
    let [one, two] = [&shared, &secret].map(|pool| pool.pool().id());
    for peer in [own, member] {
        assert_eq!(owner.grant(one, peer).unwrap().dbuf(), one);
        let refused = owner.grant(two, peer).unwrap_err();
        assert!(matches!(refused, GrantRefusal::Forbidden { dbuf, .. } if dbuf == two));
    }
    let refused = owner.grant(one, other).unwrap_err();
    assert_eq!(refused, GrantRefusal::Forbidden { dbuf: one, uid: 1003 });
    let text = "user 1003 may not read dbuf 1: ask its owner for a pool with another access list";
    assert_eq!(refused.to_string(), text);
    let unknown = DbufId::new(77).unwrap();
    assert_eq!(owner.grant(unknown, own).unwrap_err(), GrantRefusal::UnknownDbuf(unknown));
    let data = shared.copy(b"data").unwrap();
    owner.lend(&data, own).unwrap();
    assert!(owner.lend(&data, other).is_err());
    assert_eq!(owner.holders().peers().count(), 3);
    assert_eq!(owner.holders_mut().remove(own).unwrap().references, 1);
    assert_eq!(owner.grant(one, own).unwrap_err(), GrantRefusal::UnknownPeer(own));
    assert_eq!(owner.lend(&data, own).unwrap_err(), GrantRefusal::UnknownPeer(own));
    assert!(owner.withdraw(one) && !owner.withdraw(one));
    assert_eq!(owner.grant(one, member).unwrap_err(), GrantRefusal::UnknownDbuf(one));
}

/// The reader of an aggregate in several pools needs access to each pool (CONTRACT 21).
#[test]
fn q4_p6_reader_needs_access_to_every_pool() {
    let mut owner = PoolOwner::new(4);
    let mut pools = [(1, 0o644), (2, 0o640), (3, 0o600)]
        .map(|(id, mode)| create_pool(id, AccessList::new(1000, 100, mode)));
    let mut joined = Aggregate::new();
    let (mut readers, peers) = (Vec::new(), [(1000, 1), (1001, 100), (1002, 1)]);
    for pool in &mut pools {
        owner.share(pool).unwrap();
        joined.append(pool.copy(b"part").unwrap()).unwrap();
        let may =
            |&(uid, gid): &(u32, u32)| owner.may_read(&joined, &Credentials::new(uid, gid)).is_ok();
        readers.push(peers.iter().map(may).collect::<Vec<_>>());
    }
    assert_eq!(readers, [[true, true, true], [true, true, false], [true, false, false]]);
    joined.truncate(4);
    owner.may_read(&joined, &Credentials::new(1002, 1)).unwrap();
    let unshared = create_pool(4, AccessList::new(1000, 100, 0o644)).copy(b"x").unwrap();
    assert!(owner.may_read(&unshared, &Credentials::new(0, 0)).is_err(), "not even root");
}

/// One grant covers all later data in the pool, and permits only reading (Q5, Q6).
#[test]
fn q5_q6_pool_is_mapped_once_and_read_only() {
    let mut owner = PoolOwner::new(64);
    let mut pool = create_pool(1, AccessList::private(sys::process::effective_ids()));
    owner.share(&pool).unwrap();
    let peer = owner.holders_mut().add_peer(Credentials::from(sys::process::effective_ids()));
    let mut window = DbufWindow::new();
    let data = pool.copy(b"needs a grant").unwrap();
    let dbuf = pool.pool().id();
    assert_eq!(read_through_window(&window, &data), Err(Fault::UnknownDbuf(dbuf)));
    let grant = owner.grant(dbuf, peer).unwrap();
    let file = Memfd::from_fd(duplicate_descriptor(grant.descriptor()).unwrap()).unwrap();
    assert!(file.map().is_err(), "sealed against writing");
    assert!(file.map_read().unwrap().into_writable().is_err());
    let file = File::from(OwnedFd::from(file));
    assert!(file.write_at(b"x", 0).is_err() && file.set_len(0).is_err());
    window
        .admit(Grant::from_descriptor(dbuf, duplicate_descriptor(grant.descriptor()).unwrap()))
        .unwrap();
    window.admit(grant).unwrap();
    assert_eq!(read_through_window(&window, &data).unwrap(), b"needs a grant");
    // Covers segments that had no memory when the file was sealed, and reused segments.
    for round in 0..50u32 {
        let bytes = round.to_le_bytes().repeat(SEGMENT_SIZE / 3);
        let later = pool.copy(&bytes).unwrap();
        assert_eq!(read_through_window(&window, &later).unwrap(), bytes, "without a grant");
    }
    assert!(window.unmap(dbuf) && !window.unmap(dbuf));
    assert_eq!(read_through_window(&window, &data), Err(Fault::UnknownDbuf(dbuf)));
}

/// Received memory that its sender can still change is copied once.
#[test]
fn mutable_foreign_memory_is_received_as_copy() {
    let mut owner = PoolOwner::new(64);
    let (mut theirs, mut ours) = (
        create_pool(1, AccessList::private(sys::process::effective_ids())),
        create_pool(2, AccessList::private(sys::process::effective_ids())),
    );
    owner.share(&theirs).unwrap();
    let peer = owner.holders_mut().add_peer(Credentials::from(sys::process::effective_ids()));
    let mut window = DbufWindow::new();
    window.admit(owner.grant(theirs.pool().id(), peer).unwrap()).unwrap();
    let bytes: Vec<u8> = (0..3 * SEGMENT_SIZE).map(|n| (n % 251) as u8).collect();
    let sent = theirs.copy(&bytes).unwrap();
    let pointers: Vec<_> = sent.slices().map(super::super::Slice::pointer).collect();
    let received = window.receive(&pointers, &mut ours).unwrap();
    assert!(received == *bytes);
    assert!(received.slices().all(|slice| slice.content_id().dbuf == ours.pool().id()));
    drop(received);
    let unknown = RichPointer::new(DbufId::new(9).unwrap(), pointers[0].place, pointers[0].class);
    let refused = window.receive(&[pointers[0], unknown], &mut ours).unwrap_err();
    assert_eq!(refused, Error::Fault(Fault::UnknownDbuf(unknown.dbuf())));
    assert_eq!(ours.usage().leased, 0, "nothing is left of what failed");
}

/// Only memory that cannot be written counts as immutable and is read in place (Q6, T6).
#[test]
fn q6_frozen_data_is_read_in_place_by_permitted_readers() {
    let mut owner = PoolOwner::new(4);
    let mut local = create_pool(1, AccessList::private(sys::process::effective_ids()));
    let bytes: Vec<u8> = (0..20_000u32).map(|n| (n % 253) as u8).collect();
    let id = DbufId::new(7).unwrap();
    let frozen = FrozenData::from_aggregate(id, &local.copy(&bytes).unwrap()).unwrap();
    owner.share_frozen(&frozen, AccessList::new(1000, 100, 0o640)).unwrap();
    let [own, other] =
        [1000, 1001].map(|user| owner.holders_mut().add_peer(Credentials::new(user, user)));
    assert_eq!(
        owner.grant(id, other).unwrap_err(),
        GrantRefusal::Forbidden { dbuf: id, uid: 1001 }
    );
    let grant = owner.grant(id, own).unwrap();
    let file = Memfd::from_fd(duplicate_descriptor(grant.descriptor()).unwrap()).unwrap();
    assert!(file.map().is_err() && File::from(OwnedFd::from(file)).write_at(b"x", 0).is_err());
    let received = grant.into_frozen(bytes.len()).unwrap();
    owner.lend(&frozen.aggregate().unwrap(), own).unwrap();
    let mut here = received.aggregate().unwrap();
    assert!(here == *bytes);
    drop((frozen, received, owner));
    // Received frozen data behaves like any other aggregate.
    here.mutate(10_000..10_001, &mut local, |byte| byte[0] = 255).unwrap();
    here.prepend(local.copy(b"header").unwrap()).unwrap();
    assert_eq!(here.len(), bytes.len() + 6);
    assert_eq!(here.byte(6 + 10_000), Some(255));
    assert_eq!(here.byte(6 + 10_001), Some(bytes[10_001]));
}

/// A file whose creator keeps a writable mapping cannot be sealed, so it is rejected (T6).
#[test]
fn unsealed_file_is_not_frozen() {
    let id = DbufId::new(7).unwrap();
    let file = Memfd::create("test", 2 * PAGE_SIZE).unwrap();
    let writing = file.map().unwrap();
    assert!(file.seal(Seals::FROZEN).is_err(), "somebody can write it");
    let again = |file: &Memfd| duplicate_descriptor(file.as_fd()).unwrap();
    for seals in [Seals::NONE, Seals::SIZE.union(Seals::FUTURE_WRITE)] {
        let file = Memfd::create("test", PAGE_SIZE).unwrap();
        file.seal(seals).unwrap();
        let refused = FrozenData::map(id, again(&file), 1).unwrap_err();
        assert_eq!(refused, GrantRefusal::Unsealed { dbuf: id, seals });
    }
    assert!(FrozenData::map(id, again(&file), 1).is_err());
    drop(writing);
    file.seal(Seals::FROZEN).unwrap();
    let refused = FrozenData::map(id, again(&file), 2 * PAGE_SIZE + 1).unwrap_err();
    assert_eq!(refused, GrantRefusal::Size { dbuf: id, is: 2 * PAGE_SIZE });
    assert_eq!(
        FrozenData::map(id, again(&file), 2 * PAGE_SIZE).unwrap().aggregate().unwrap().len(),
        2 * PAGE_SIZE
    );
    for wrong in [0, PAGE_SIZE - 1, PAGE_SIZE + 8] {
        let file = Memfd::create("test", wrong).unwrap();
        file.seal(Seals::FROZEN).unwrap();
        let refused = FrozenData::map(id, again(&file), 0).unwrap_err();
        assert_eq!(refused, GrantRefusal::Size { dbuf: id, is: wrong });
    }
    let null = File::open("/dev/null").unwrap();
    assert!(matches!(FrozenData::map(id, null.into(), 0), Err(GrantRefusal::System(_))));
}

#[test]
fn frozen_data_of_every_length_is_complete() {
    let mut random = testkit::Random::with_replayable_seed();
    let bytes = random.bytes(3 << 20);
    let lengths = [
        0,
        1,
        PAGE_SIZE - 1,
        PAGE_SIZE,
        PAGE_SIZE + 1,
        (1 << 19) - 1,
        1 << 19,
        (1 << 19) + 1,
        3 << 20,
    ];
    for (number, length) in lengths.into_iter().enumerate() {
        let id = DbufId::new(number as u32 + 1).unwrap();
        let frozen = FrozenData::from_reader(id, &bytes[..length], 4 << 20).unwrap();
        assert_eq!((frozen.len(), frozen.is_empty()), (length, length == 0));
        let file =
            Memfd::from_fd(duplicate_descriptor(frozen.descriptor().unwrap()).unwrap()).unwrap();
        assert_eq!(file.len(), length.max(1).next_multiple_of(PAGE_SIZE), "no more than is needed");
        let all = frozen.aggregate().unwrap();
        assert!(all == bytes[..length], "{length}");
        let again = FrozenData::from_aggregate(DbufId::new(99).unwrap(), &all).unwrap();
        assert!(again.aggregate().unwrap() == all);
        assert_eq!(
            FrozenData::from_reader(id, &bytes[..length], 1000).unwrap().len(),
            length.min(1000)
        );
    }
    let endless =
        FrozenData::from_reader(DbufId::new(1).unwrap(), &b"short"[..], usize::MAX).unwrap();
    assert!(endless.aggregate().unwrap() == b"short"[..]);
}

/// Granted descriptors and pointers are untrusted, and invalid ones are refused (T2, T3).
#[test]
fn invalid_pools_and_pointers_are_refused() {
    let dbuf = DbufId::new(1).unwrap();
    let mut window = DbufWindow::new();
    let mut admit = |bytes, seals| {
        let file = Memfd::create("test", bytes).unwrap();
        file.seal(seals).unwrap();
        window.admit(Grant::from_descriptor(dbuf, file.into()))
    };
    for seals in [Seals::NONE, Seals::SIZE, Seals::FUTURE_WRITE] {
        assert_eq!(admit(PAGE_SIZE, seals), Err(GrantRefusal::Unsealed { dbuf, seals }));
    }
    for bytes in [0, PAGE_SIZE / 2, PAGE_SIZE + 1, 3 * PAGE_SIZE] {
        assert_eq!(admit(bytes, Seals::READER), Err(GrantRefusal::Size { dbuf, is: bytes }));
    }
    admit(2 * PAGE_SIZE, Seals::READER).unwrap();
    let null = File::open("/dev/null").unwrap();
    let unknown_id = DbufId::new(2).unwrap();
    let refused = window.admit(Grant::from_descriptor(unknown_id, null.into()));
    assert!(matches!(refused, Err(GrantRefusal::System(_))));
    let mut random = testkit::Random::with_replayable_seed();
    let mut copied = 0;
    for _ in 0..50_000 {
        let place = abi::Extent::new(random.next_u64(), random.within(0..3 * PAGE_SIZE) as u32);
        let pointer = RichPointer::new(dbuf, place, abi::Class::YES);
        let mut out = vec![0xee; pointer.length() as usize];
        match window.copy(pointer, &mut out) {
            Ok(()) => {
                copied += 1;
                assert!(out.iter().all(|&byte| byte == 0));
            }
            Err(fault) => assert_eq!(fault, Fault::CrossesSegment(place)),
        }
        let short = window.copy(pointer, &mut vec![0; out.len() + 1]);
        assert!(matches!(short, Err(Fault::TooLong { .. })));
    }
    assert!(copied > 1000, "{copied}");
    assert_eq!(window.copy(RichPointer::hole(0), &mut []), Err(Fault::Hole));
}
