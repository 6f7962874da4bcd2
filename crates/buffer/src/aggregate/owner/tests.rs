//! Grants and refusals, within one process; `tests/aggregate_holders.rs` has real ones.

use super::*;
use crate::pool::Config;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

const SEGMENT: usize = 4096;

fn pool(id: u32, access: AccessList) -> AllocationPool {
    let config = Config { segment: SEGMENT, segments: 8 };
    AllocationPool::new(DbufId::new(id).unwrap(), config, access).unwrap()
}

fn read(window: &Window, aggregate: &Aggregate) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    for slice in aggregate.slices() {
        let mut piece = vec![0; slice.len()];
        window.copy(slice.pointer(), &mut piece)?;
        bytes.extend(piece);
    }
    Ok(bytes)
}

#[test]
fn q4_who_may_read_gets_the_pool_and_who_may_not_does_not() {
    let mut owner = Creator::new(4);
    let mut shared = pool(1, AccessList::new(1000, 100, 0o640));
    owner.share(&shared).unwrap();
    assert_eq!(owner.share(&shared), Err(Refusal::Taken(shared.pool().id())));
    let secret = pool(2, AccessList::new(1001, 100, 0o600));
    owner.share(&secret).unwrap();
    let [own, member, other] = [(1000, 1), (1002, 100), (1003, 1)]
        .map(|(uid, gid)| owner.holders_mut().join(Credentials::new(uid, gid)));
    let [one, two] = [&shared, &secret].map(|pool| pool.pool().id());
    for peer in [own, member] {
        assert_eq!(owner.grant(one, peer).unwrap().dbuf(), one);
        let refused = owner.grant(two, peer).unwrap_err();
        assert!(matches!(refused, Refusal::Forbidden { dbuf, .. } if dbuf == two));
    }
    let refused = owner.grant(one, other).unwrap_err();
    assert_eq!(refused, Refusal::Forbidden { dbuf: one, uid: 1003 });
    let said = "user 1003 may not read dbuf 1: ask its owner for a pool with another access list";
    assert_eq!(refused.to_string(), said);
    let unknown = DbufId::new(77).unwrap();
    assert_eq!(owner.grant(unknown, own).unwrap_err(), Refusal::UnknownDbuf(unknown));
    let data = shared.copy(b"data").unwrap();
    owner.lend(&data, own).unwrap();
    assert!(owner.lend(&data, other).is_err());
    assert_eq!(owner.holders().peers().count(), 3);
    assert_eq!(owner.holders_mut().gone(own).unwrap().references, 1);
    assert_eq!(owner.grant(one, own).unwrap_err(), Refusal::UnknownPeer(own));
    assert_eq!(owner.lend(&data, own).unwrap_err(), Refusal::UnknownPeer(own));
    assert!(owner.withdraw(one) && !owner.withdraw(one));
    assert_eq!(owner.grant(one, member).unwrap_err(), Refusal::UnknownDbuf(one));
}

/// CONTRACT 21: of several pools, only who may read every one.
#[test]
fn q4_data_of_several_pools_is_for_who_may_read_every_one() {
    let mut owner = Creator::new(4);
    let mut pools = [(1, 0o644), (2, 0o640), (3, 0o600)]
        .map(|(id, mode)| pool(id, AccessList::new(1000, 100, mode)));
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
    let unshared = pool(4, AccessList::new(1000, 100, 0o644)).copy(b"x").unwrap();
    assert!(owner.may_read(&unshared, &Credentials::new(0, 0)).is_err(), "not even root");
}

/// Q5, Q6: one grant for all that comes in the pool; it shows everything and lets nothing be done.
#[test]
fn q5_q6_a_pool_is_mapped_once_and_only_its_maker_writes_it() {
    let mut owner = Creator::new(64);
    let mut pool = pool(1, AccessList::private());
    owner.share(&pool).unwrap();
    let peer = owner.holders_mut().join(Credentials::own());
    let mut window = Window::new();
    let data = pool.copy(b"needs a grant").unwrap();
    let dbuf = pool.pool().id();
    assert_eq!(read(&window, &data), Err(Fault::UnknownDbuf(dbuf)));
    let grant = owner.grant(dbuf, peer).unwrap();
    let file = Memfd::from_fd(copy(grant.descriptor()).unwrap()).unwrap();
    assert!(file.map().is_err(), "sealed against writing");
    assert!(file.map_read().unwrap().into_writable().is_err());
    let file = File::from(OwnedFd::from(file));
    assert!(file.write_at(b"x", 0).is_err() && file.set_len(0).is_err());
    window.admit(Grant::from_descriptor(dbuf, copy(grant.descriptor()).unwrap())).unwrap();
    window.admit(grant).unwrap();
    assert_eq!(read(&window, &data).unwrap(), b"needs a grant");
    // Segments that had no memory when the file was sealed, and segments that are used again.
    for round in 0..50u32 {
        let bytes = round.to_le_bytes().repeat(SEGMENT / 3);
        let later = pool.copy(&bytes).unwrap();
        assert_eq!(read(&window, &later).unwrap(), bytes, "without a grant");
    }
    assert!(window.forget(dbuf) && !window.forget(dbuf));
    assert_eq!(read(&window, &data), Err(Fault::UnknownDbuf(dbuf)));
}

/// T2, T3: what is granted, and what is pointed to, are allegations.
#[test]
fn what_is_no_pool_is_not_mapped_and_no_pointer_leaves_it() {
    let dbuf = DbufId::new(1).unwrap();
    let mut window = Window::new();
    let mut admit = |bytes, seals| {
        let file = Memfd::create("test", bytes).unwrap();
        file.seal(seals).unwrap();
        window.admit(Grant::from_descriptor(dbuf, file.into()))
    };
    for seals in [Seals::NONE, Seals::SIZE, Seals::FUTURE_WRITE] {
        assert_eq!(admit(PAGE, seals), Err(Refusal::Unsealed { dbuf, seals }));
    }
    for bytes in [0, PAGE / 2, PAGE + 1, 3 * PAGE] {
        assert_eq!(admit(bytes, Seals::READER), Err(Refusal::Size { dbuf, is: bytes }));
    }
    admit(2 * PAGE, Seals::READER).unwrap();
    let null = File::open("/dev/null").unwrap();
    let stranger = DbufId::new(2).unwrap();
    let refused = window.admit(Grant::from_descriptor(stranger, null.into()));
    assert!(matches!(refused, Err(Refusal::System(_))));
    let mut random = testkit::Random::replayable();
    let mut copied = 0;
    for _ in 0..50_000 {
        let place = abi::Place::new(random.next(), random.within(0..3 * PAGE) as u32);
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
