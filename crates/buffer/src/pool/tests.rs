//! Pools: drafts, pins, leases, recycling, and every place that can be alleged.

use super::*;

const SEGMENT: usize = 4096;

fn pool(segments: usize) -> Pool {
    let id = DbufId::new(7).unwrap();
    Pool::new(id, Config { segment: SEGMENT, segments }).unwrap()
}

fn put(pool: &Pool, length: usize, byte: u8) -> Option<Extent> {
    let fill = |bytes: &mut [u8]| {
        bytes.fill(byte);
        bytes.len()
    };
    pool.append(length, fill).map(|(place, _)| place)
}

#[test]
fn slices_of_one_turn_stay_while_blocks_are_appended() {
    let pool = pool(2);
    let first = put(&pool, 100, 1).unwrap();
    let held = pool.bytes(first).unwrap();
    for byte in 2..60 {
        let place = put(&pool, 100, byte).unwrap();
        assert_eq!(pool.bytes(place).unwrap(), [byte; 100]);
    }
    assert_eq!(held, [1; 100]);
    assert_eq!(pool.bytes(first.within(10, 5)).unwrap(), [1; 5]);
}

#[test]
fn a_draft_is_nobodys_until_it_is_committed() {
    let pool = pool(2);
    let mut draft = pool.draft(64, 1 << 20).unwrap();
    assert_eq!(draft.len(), SEGMENT, "as much as there is");
    let position = draft.position();
    assert!(pool.bytes(Extent::new(position, 1)).is_none());
    assert!(pool.draft(1, 1).is_none(), "one at a time");
    draft[..3].copy_from_slice(b"abc");
    let place = draft.commit(3);
    assert_eq!(pool.bytes(place).unwrap(), b"abc");
    assert!(pool.bytes(place.within(0, 4)).is_none(), "not filled");
    drop(pool.draft(8, 8).unwrap());
    let next = pool.draft(8, 8).unwrap();
    assert_eq!(next.position(), 3, "an abandoned draft took nothing");
}

#[test]
fn appending_inside_an_append_is_refused() {
    let pool = pool(2);
    let mut inner = None;
    pool.append(8, |bytes| {
        inner = Some(pool.append(8, |_| 8).is_some());
        bytes.len()
    });
    assert_eq!(inner, Some(false));
    assert!(put(&pool, 8, 1).is_some(), "and works again behind it");
}

#[test]
fn a_panic_while_filling_leaves_the_pool_usable() {
    let pool = pool(2);
    let fill = || pool.append(8, |_| panic!("a filter failed"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fill)).is_err());
    assert_eq!(put(&pool, 8, 1).unwrap().position(), 0);
}

#[test]
fn a_forgotten_draft_is_over_at_the_end_of_the_turn() {
    let mut pool = pool(2);
    std::mem::forget(pool.draft(8, 8));
    assert!(pool.draft(8, 8).is_none());
    pool.turn();
    assert!(pool.draft(8, 8).is_some());
}

#[test]
fn what_is_pinned_outlives_turns_and_what_is_not_goes() {
    let mut pool = pool(4);
    let kept = put(&pool, 3000, 1).unwrap();
    let pin = pool.pin(kept).unwrap();
    let lost = put(&pool, 3000, 2).unwrap();
    for _ in 0..20 {
        pool.turn();
        put(&pool, 4000, 3).unwrap();
    }
    assert_eq!(pool.bytes(kept).unwrap(), [1; 3000]);
    assert!(pool.bytes(lost).is_none(), "the slot has another segment now");
    assert_eq!(pool.usage().pinned, 1);
    assert!(pool.unpin(pin));
    assert_eq!(pool.bytes(kept).unwrap(), [1; 3000], "until the turn ends");
    pool.turn();
    assert!(pool.bytes(kept).is_none());
    assert_eq!(pool.resolve(RichPointer::new(pool.id(), kept, abi::Class::YES)), {
        Err(Fault::OutOfWindow(kept))
    });
}

#[test]
fn a_wrong_unpin_is_refused_counted_and_harmless() {
    let mut pool = pool(2);
    let place = put(&pool, 3000, 1).unwrap();
    let pin = pool.pin(place).unwrap();
    assert!(pool.unpin(pin));
    assert!(!pool.unpin(pin), "twice");
    assert!(!pool.unpin(Pin::from_word(12345)));
    assert!(!pool.unpin(Pin::from_word(u64::MAX)), "the mark of a free slot");
    pool.turn();
    assert!(!pool.unpin(pin), "recycled");
    assert_eq!(pool.mistakes(), 4);
    assert!(pool.pin(place).is_none());
}

#[test]
fn a_full_pool_says_so_and_recovers() {
    let mut pool = pool(4);
    let places: Vec<_> = std::iter::from_fn(|| put(&pool, SEGMENT, 9)).collect();
    assert_eq!(places.len(), 4);
    assert_eq!(pool.usage().free, 0);
    let leases: Vec<_> = places.iter().map(|&place| pool.lease(place).unwrap()).collect();
    pool.turn();
    assert!(put(&pool, 1, 9).is_none(), "all leased");
    assert_eq!(pool.usage().leased, 4);
    drop(leases);
    pool.turn();
    assert_eq!(pool.usage(), Usage { free: 4, segments: 4, ..Usage::default() });
    assert!(put(&pool, 1, 9).is_some());
}

#[test]
fn without_backlog_a_pool_stays_in_its_first_slot() {
    let mut pool = pool(16);
    for _ in 0..100 {
        put(&pool, 4000, 5).unwrap();
        pool.turn();
    }
    assert_eq!(pool.populated.get(), 1);
}

#[test]
fn a_lease_keeps_bytes_longer_than_the_pool() {
    let pool = pool(2);
    let place = put(&pool, 100, 42).unwrap();
    let lease = pool.lease(place).unwrap();
    let clone = lease.clone();
    drop(pool);
    drop(lease);
    let reader = std::thread::spawn(move || clone.bytes(place).map(<[u8]>::to_vec));
    assert_eq!(reader.join().unwrap().unwrap(), [42; 100]);
}

#[test]
fn blocks_cross_no_segment_and_stay_in_their_length() {
    let pool = pool(2);
    assert!(put(&pool, SEGMENT + 1, 1).is_none());
    let place = put(&pool, SEGMENT, 1).unwrap();
    assert_eq!(pool.memory.locate(place.within(1, SEGMENT as u32)), {
        Err(Fault::CrossesSegment(place.within(1, SEGMENT as u32)))
    });
    let end = place.within(SEGMENT as u32, 0);
    assert_eq!(pool.bytes(end), Some(&[][..]), "an empty view at the end of a segment");
    assert!(pool.pin(end).is_some());
}

#[test]
fn no_place_leaves_the_memory() {
    // Every bit pattern of a place is an allegation; only what was filled is ever given out.
    let mut pool = pool(4);
    for turn in 0..9u8 {
        put(&pool, 1 + usize::from(turn) * 300, turn).unwrap();
        if turn % 3 == 0 {
            pool.turn();
        }
    }
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut found = 0;
    for _ in 0..200_000 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let near = seed & 0xffff;
        for position in [seed, near, (1 << 44) - near, u64::from(seed as u32)] {
            let place = Extent::new(position, (seed >> 50) as u32);
            if let Some(bytes) = pool.bytes(place) {
                found += 1;
                assert_eq!(bytes.len(), place.length() as usize);
                assert!(bytes.len() <= SEGMENT);
                std::hint::black_box(bytes.iter().fold(0u8, |sum, byte| sum ^ byte));
            }
        }
    }
    assert!(found > 500, "{found} places hit");
}

#[test]
fn a_small_machine_gets_a_small_pool() {
    assert_eq!(Config::for_memory(64 << 30), Config::default());
    assert_eq!(Config::for_memory(512 << 20).segments, 8);
    assert_eq!(Config::for_memory(1 << 20).segments, 4);
}

#[test]
fn a_segment_gives_its_own_blocks_only() {
    let config = Config { segment: 4096, segments: 2 };
    let pool = Pool::new(DbufId::new(9).unwrap(), config).unwrap();
    let put = |byte: u8| {
        pool.append(1500, |room| {
            room.fill(byte);
            1500
        })
    };
    let (first, _) = put(1).unwrap();
    let (second, _) = put(2).unwrap();
    let (elsewhere, _) = put(3).unwrap();
    let named = |place| RichPointer::new(pool.id(), place, abi::Class::YES);
    let segment = pool.segment(named(second)).unwrap();
    assert_eq!(segment.bytes(named(first)), pool.bytes(first));
    assert_eq!(segment.bytes(named(second)), pool.bytes(second));
    assert_eq!(segment.bytes(named(elsewhere)), None);
    assert_eq!(segment.bytes(named(second.within(1400, 200))), None, "not filled yet");
    let stranger = RichPointer::new(DbufId::new(10).unwrap(), first, abi::Class::YES);
    assert_eq!(segment.bytes(stranger), None, "of another dbuf");
    assert!(pool.segment(named(first.within(0, 0))).is_none(), "no bytes");
    let found = pool.segment(named(elsewhere)).and_then(|s| s.bytes(named(elsewhere)));
    assert_eq!(found, pool.bytes(elsewhere));
}
