//! Tests of pools: drafts, pins, leases, recycling, and arbitrary extents from untrusted parties.

use super::*;

const SEGMENT_BYTES: usize = 4096;

fn create_pool(segments: usize) -> Pool {
    let id = DbufId::new(7).unwrap();
    Pool::new(id, PoolConfig { segment: SEGMENT_BYTES, segments }).unwrap()
}

fn append_block(pool: &Pool, length: usize, byte: u8) -> Option<Extent> {
    let fill = |bytes: &mut [u8]| {
        bytes.fill(byte);
        bytes.len()
    };
    pool.append(length, fill).map(|(place, _)| place)
}

#[test]
fn slices_stay_valid_while_blocks_are_appended() {
    let pool = create_pool(2);
    let first = append_block(&pool, 100, 1).unwrap();
    let held = pool.bytes(first).unwrap();
    for byte in 2..60 {
        let place = append_block(&pool, 100, byte).unwrap();
        assert_eq!(pool.bytes(place).unwrap(), [byte; 100]);
    }
    assert_eq!(held, [1; 100]);
    assert_eq!(pool.bytes(first.subrange(10, 5)).unwrap(), [1; 5]);
}

#[test]
fn draft_is_unreadable_until_committed() {
    let pool = create_pool(2);
    let mut draft = pool.draft(64, 1 << 20).unwrap();
    assert_eq!(draft.len(), SEGMENT_BYTES, "as much as there is");
    let position = draft.position();
    assert!(pool.bytes(Extent::new(position, 1)).is_none());
    assert!(pool.draft(1, 1).is_none(), "one at a time");
    draft[..3].copy_from_slice(b"abc");
    let place = draft.commit(3);
    assert_eq!(pool.bytes(place).unwrap(), b"abc");
    assert!(pool.bytes(place.subrange(0, 4)).is_none(), "not filled");
    drop(pool.draft(8, 8).unwrap());
    let next = pool.draft(8, 8).unwrap();
    assert_eq!(next.position(), 3, "an abandoned draft took nothing");
}

#[test]
fn empty_block_has_an_address_inside_a_segment() {
    let pool = create_pool(2);
    let append_nothing = || {
        let (place, bytes) = pool.append(0, |room| room.len()).unwrap();
        assert_eq!((place.length(), bytes), (0, &[][..]));
        place
    };
    for _ in 0..2 {
        let place = append_nothing();
        assert_eq!(pool.bytes(place), Some(&[][..]));
        let filled = append_block(&pool, SEGMENT_BYTES, 1).unwrap();
        // Even if the previous segment is full, the address is inside a segment.
        assert!(place.position() <= filled.position());
    }
    assert!(pool.append(0, |_| 0).is_none(), "no segment is free");
}

#[test]
fn nested_append_is_rejected() {
    let pool = create_pool(2);
    let mut inner = None;
    pool.append(8, |bytes| {
        inner = Some(pool.append(8, |_| 8).is_some());
        bytes.len()
    });
    assert_eq!(inner, Some(false));
    assert!(append_block(&pool, 8, 1).is_some(), "and works again behind it");
}

#[test]
fn panic_while_filling_leaves_pool_usable() {
    let pool = create_pool(2);
    let fill = || pool.append(8, |_| panic!("a filter failed"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fill)).is_err());
    assert_eq!(append_block(&pool, 8, 1).unwrap().position(), 0);
}

#[test]
fn draft_leaked_in_a_pass_is_discarded_at_its_end() {
    let mut pool = create_pool(2);
    std::mem::forget(pool.draft(8, 8));
    assert!(pool.draft(8, 8).is_none());
    pool.end_pass();
    assert!(pool.draft(8, 8).is_some());
}

#[test]
fn pinned_blocks_outlive_passes_and_others_do_not() {
    let mut pool = create_pool(4);
    let kept = append_block(&pool, 3000, 1).unwrap();
    let pin = pool.pin(kept).unwrap();
    let lost = append_block(&pool, 3000, 2).unwrap();
    for _ in 0..20 {
        pool.end_pass();
        append_block(&pool, 4000, 3).unwrap();
    }
    assert_eq!(pool.bytes(kept).unwrap(), [1; 3000]);
    assert!(pool.bytes(lost).is_none(), "the slot has another segment now");
    assert_eq!(pool.usage().pinned, 1);
    assert!(pool.unpin(pin));
    assert_eq!(pool.bytes(kept).unwrap(), [1; 3000], "until the pass ends");
    pool.end_pass();
    assert!(pool.bytes(kept).is_none());
    assert_eq!(pool.resolve(RichPointer::new(pool.id(), kept, abi::Class::YES)), {
        Err(Fault::OutOfWindow(kept))
    });
}

#[test]
fn invalid_unpin_is_rejected_and_counted() {
    let mut pool = create_pool(2);
    let place = append_block(&pool, 3000, 1).unwrap();
    let pin = pool.pin(place).unwrap();
    assert!(pool.unpin(pin));
    assert!(!pool.unpin(pin), "twice");
    assert!(!pool.unpin(SegmentPin::from_word(12345)));
    assert!(!pool.unpin(SegmentPin::from_word(u64::MAX)), "the mark of a free slot");
    pool.end_pass();
    assert!(!pool.unpin(pin), "recycled");
    assert_eq!(pool.invalid_unpin_count(), 4);
    assert!(pool.pin(place).is_none());
}

#[test]
fn full_pool_refuses_appends_and_recovers() {
    let mut pool = create_pool(4);
    let places: Vec<_> = std::iter::from_fn(|| append_block(&pool, SEGMENT_BYTES, 9)).collect();
    assert_eq!(places.len(), 4);
    assert_eq!(pool.usage().free, 0);
    let leases: Vec<_> = places.iter().map(|&place| pool.lease(place).unwrap()).collect();
    pool.end_pass();
    assert!(append_block(&pool, 1, 9).is_none(), "all leased");
    assert_eq!(pool.usage().leased, 4);
    drop(leases);
    pool.end_pass();
    assert_eq!(pool.usage(), PoolUsage { free: 4, segments: 4, ..PoolUsage::default() });
    assert!(append_block(&pool, 1, 9).is_some());
}

#[test]
fn pool_without_backlog_stays_in_first_slot() {
    let mut pool = create_pool(16);
    for _ in 0..100 {
        append_block(&pool, 4000, 5).unwrap();
        pool.end_pass();
    }
    assert_eq!(pool.populated.get(), 1);
}

#[test]
fn lease_outlives_its_pool() {
    let pool = create_pool(2);
    let place = append_block(&pool, 100, 42).unwrap();
    let lease = pool.lease(place).unwrap();
    let clone = lease.clone();
    drop(pool);
    drop(lease);
    let reader = std::thread::spawn(move || clone.bytes(place).map(<[u8]>::to_vec));
    assert_eq!(reader.join().unwrap().unwrap(), [42; 100]);
}

#[test]
fn no_block_crosses_a_segment_boundary() {
    let pool = create_pool(2);
    assert!(append_block(&pool, SEGMENT_BYTES + 1, 1).is_none());
    let place = append_block(&pool, SEGMENT_BYTES, 1).unwrap();
    assert_eq!(pool.memory.locate(place.subrange(1, SEGMENT_BYTES as u32)), {
        Err(Fault::CrossesSegment(place.subrange(1, SEGMENT_BYTES as u32)))
    });
    let end = place.subrange(SEGMENT_BYTES as u32, 0);
    assert_eq!(pool.bytes(end), Some(&[][..]), "an empty view at the end of a segment");
    assert!(pool.pin(end).is_some());
}

#[test]
fn arbitrary_extents_never_leave_the_memory() {
    // Every bit pattern of an extent is an allegation; only filled bytes are ever returned.
    let mut pool = create_pool(4);
    for pass in 0..9u8 {
        append_block(&pool, 1 + usize::from(pass) * 300, pass).unwrap();
        if pass % 3 == 0 {
            pool.end_pass();
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
                assert!(bytes.len() <= SEGMENT_BYTES);
                std::hint::black_box(bytes.iter().fold(0u8, |sum, byte| sum ^ byte));
            }
        }
    }
    assert!(found > 500, "{found} places hit");
}

#[test]
fn segment_returns_only_its_own_blocks() {
    let config = PoolConfig { segment: 4096, segments: 2 };
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
    assert_eq!(segment.bytes(named(second.subrange(1400, 200))), None, "not filled yet");
    let other = RichPointer::new(DbufId::new(10).unwrap(), first, abi::Class::YES);
    assert_eq!(segment.bytes(other), None, "of another dbuf");
    assert!(pool.segment(named(first.subrange(0, 0))).is_none(), "no bytes");
    let found = pool.segment(named(elsewhere)).and_then(|s| s.bytes(named(elsewhere)));
    assert_eq!(found, pool.bytes(elsewhere));
}
