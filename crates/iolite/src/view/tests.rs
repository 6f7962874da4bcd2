//! Tests of translations and faults: the number of queries to owners, and refused mappings.

use super::*;
use crate::aggregate::owner::PoolOwner;
use crate::aggregate::server::GrantServer;
use crate::aggregate::{AllocationPool, FrozenData};
use abi::access::{AccessList, Credentials};
use abi::{Class, Extent};
use buffer::pool::PoolConfig;
use sys::process::effective_ids;

fn dbuf_id(number: u32) -> DbufId {
    DbufId::new(number).unwrap()
}

fn rich_pointer(dbuf: u32, position: u64, length: u32) -> RichPointer {
    RichPointer::new(dbuf_id(dbuf), Extent::new(position, length), Class::YES)
}

fn start_server(pools: &[AllocationPool]) -> GrantServer {
    let server = GrantServer::start(PoolOwner::new(4)).unwrap();
    for pool in pools {
        server.with_owner(|owner| owner.share(pool)).unwrap();
    }
    server
}

fn create_pool(number: u32, mode: u32) -> AllocationPool {
    let config = PoolConfig { segment: 4096, segments: 2 };
    AllocationPool::new(dbuf_id(number), config, AccessList::new(0, 0, mode)).unwrap()
}

#[test]
fn d4_pointer_is_validated_against_its_dbuf() {
    let fixture = start_server(&[create_pool(3, 0o644)]);
    let frozen = FrozenData::from_reader(dbuf_id(4), &[1; 5000][..], 5000).unwrap();
    let share = |owner: &mut PoolOwner| owner.share_frozen(&frozen, AccessList::new(0, 0, 0o644));
    fixture.with_owner(share).unwrap();
    let space = Space::new();
    space.add_owner(fixture.add_client(Credentials::new(9, 9)).unwrap().1);
    let mut translation = TranslationCache::new(space.clone());
    let mut at = |pointer| translation.resolve(pointer).map(|(_, at)| at);
    assert_eq!(at(rich_pointer(3, 100, 50)), Ok(100));
    assert_eq!(at(rich_pointer(3, 8192 + 100, 50)), Ok(100), "a later lap");
    assert_eq!(at(rich_pointer(3, 8191, 1)), Ok(8191));
    let crosses = Extent::new(8191, 2);
    assert_eq!(at(rich_pointer(3, 8191, 2)), Err(Fault::CrossesSegment(crosses)));
    assert_eq!(at(rich_pointer(4, 0, 8192)), Ok(0), "whole pages");
    assert_eq!(at(rich_pointer(4, 8192, 1)), Err(Fault::OutOfWindow(Extent::new(8192, 1))));
    let far = Extent::new((1 << 44) - 1, 1 << 19);
    assert_eq!(at(RichPointer::new(dbuf_id(4), far, Class::YES)), Err(Fault::OutOfWindow(far)));
    assert_eq!(at(RichPointer::hole(5)), Err(Fault::Hole));
    assert_eq!(space.query_counts(), QueryCounts { mapped: 2, refused: 0 });
}

#[test]
fn d5_owners_are_queried_in_order_until_one_decides() {
    let (one, other) = (
        start_server(&[create_pool(3, 0o644)]),
        start_server(&[create_pool(4, 0o644), create_pool(5, 0o600)]),
    );
    let space = Space::new();
    for server in [&one, &other] {
        space.add_owner(server.add_client(Credentials::new(9, 9)).unwrap().1);
    }
    let mut translation = TranslationCache::new(space.clone());
    for dbuf in [3, 4, 3, 4] {
        assert_eq!(translation.resolve(rich_pointer(dbuf, 0, 1)).map(|(_, at)| at), Ok(0));
    }
    let forbidden = Fault::Forbidden { dbuf: dbuf_id(5), uid: 9 };
    for _ in 0..1000 {
        assert_eq!(translation.resolve(rich_pointer(5, 0, 1)).map(|_| ()), Err(forbidden));
    }
    let faults = space.query_counts();
    assert!(faults.mapped == 2 && faults.refused < 12, "E4: {faults:?}");
    // Permission that is granted later is noticed after the back-off.
    assert!(other.with_owner(|owner| owner.withdraw(dbuf_id(5))));
    let again = create_pool(5, 0o644);
    other.with_owner(|owner| owner.share(&again)).unwrap();
    let found = (0..100_000).any(|_| translation.resolve(rich_pointer(5, 0, 1)).is_ok());
    assert!(found, "back-off ends");
    drop((one, other));
    assert_eq!(
        translation.resolve(rich_pointer(6, 0, 1)).map(|_| ()),
        Err(Fault::OwnerGone(dbuf_id(6))),
        "nobody is left"
    );
    assert_eq!(translation.resolve(rich_pointer(3, 0, 1)).map(|(_, at)| at), Ok(0), "mapped stays");
    assert_eq!(
        TranslationCache::new(Space::new()).resolve(rich_pointer(3, 0, 1)).map(|_| ()),
        Err(Fault::UnknownDbuf(dbuf_id(3)))
    );
}

#[test]
fn only_own_user_and_root_are_trusted() {
    let own = effective_ids().0;
    assert!(Space::trusting().trusts(own) && Space::trusting().trusts(0));
    assert!(!Space::trusting().trusts(own + 1) && !Space::new().trusts(own));
}
