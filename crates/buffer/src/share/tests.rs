//! Tests of offers. Complete offers are accepted, and all others are refused with the matching
//! reason.

use super::*;
use crate::Fault;
use abi::{Class, Entry, Extent, RichPointer};

fn dbuf_id() -> DbufId {
    DbufId::new(9).unwrap()
}

fn ring_config(policy: OverflowPolicy) -> dbuf::BlockConfig {
    dbuf::BlockConfig { capacity: 8192, policy, ..dbuf::BlockConfig::new(dbuf_id()) }
}

fn create_memfd(bytes: usize, seals: Seals) -> OwnedFd {
    let file = Memfd::create("test", bytes).unwrap();
    file.seal(seals).unwrap();
    file.into()
}

fn sealed_geometry(change: impl FnOnce(&mut RingGeometry)) -> OwnedFd {
    let mut plan = ring_geometry(dbuf_id(), 8192, 0, OverflowPolicy::Overwrite, 1);
    change(&mut plan);
    let file = Memfd::create("test", PAGE_SIZE).unwrap();
    {
        let region = Region::mapped(file.map().unwrap());
        crate::foreign_memory::copy_in(region.words(), 0, plan.as_bytes());
    }
    file.seal(Seals::FROZEN).unwrap();
    file.into()
}

#[test]
fn complete_offer_is_opened_and_read() {
    for policy in [OverflowPolicy::Block, OverflowPolicy::DropNew, OverflowPolicy::Overwrite] {
        let (mut writer, mut offers) = block_ring(&ring_config(policy)).unwrap();
        let offer = offers.remove(0);
        let fds = offer.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
        let mut reader =
            RingOffer::from_descriptors(fds.into()).unwrap().open_block_reader().unwrap();
        let mut out = [0; 64];
        assert_eq!(reader.read(&mut out), Ok(None));
        let mut room = writer.reserve(11).unwrap().unwrap();
        room.copy_from_slice(b"hello world");
        let place = room.commit(11);
        writer.publish();
        let mut part = [0; 5];
        reader.copy(place.subrange(6, 5), &mut part).unwrap();
        assert_eq!(&part, b"world");
        for wrong in [place.subrange(6, 6), Extent::new(1 << 20, 5), Extent::new(8190, 5)] {
            let mut out = vec![0; wrong.length() as usize];
            assert_eq!(reader.copy(wrong, &mut out).is_ok(), wrong == place.subrange(6, 6));
        }
        assert!(matches!(reader.copy(place, &mut [0; 4]), Err(Fault::TooLong { .. })));
        assert_eq!(reader.read(&mut out), Ok(Some(11)));
        assert_eq!(reader.writer_counts(), writer.counts());
        assert_eq!(writer.reader_counts(0), Some(reader.counts()));
        drop(writer);
        assert!(reader.is_finished().unwrap());
    }
}

#[test]
fn pointer_ring_is_opened_and_read() {
    let shape = ibuf::RingConfig { entries: 64, ..ibuf::RingConfig::default() };
    let (mut writer, mut offers) = pointer_ring(&shape, dbuf_id()).unwrap();
    let mut reader = offers.remove(0).open_pointer_reader().unwrap();
    let pointer = RichPointer::new(dbuf_id(), Extent::new(77, 7), Class::YES);
    let entry = Entry { pointer, ..Entry::default() };
    writer.push(&[entry]).unwrap();
    let mut out = [Entry::default(); 2];
    assert_eq!(reader.read(&mut out).unwrap().count, 1);
    assert_eq!(out[0], entry);
    let (_writer, mut offers) = pointer_ring(&shape, dbuf_id()).unwrap();
    let refused = offers.remove(0).open_block_reader();
    assert!(matches!(refused, Err(OfferRefusal::Geometry(_))), "not a ring of blocks");
}

/// An offer is refused if one of its files lacks a seal, is too short, is too long, or is not a
/// memfd (T2).
#[test]
fn t2_incomplete_offer_is_refused() {
    let memfd = create_memfd;
    let (size, reader) = (Seals::SIZE, Seals::READER);
    let whole = PAGE_SIZE + 8192;
    let partly = |without: u32| {
        [Seals::SHRINK, Seals::GROW, Seals::FUTURE_WRITE]
            .into_iter()
            .enumerate()
            .filter(|&(i, _)| i as u32 != without)
            .fold(Seals::NONE, |seals, (_, seal)| seals.union(seal))
    };
    let good = || (sealed_geometry(|_| ()), memfd(whole, reader), memfd(PAGE_SIZE, size));
    let look = |(geometry, ring, cursor)| {
        RingOffer::from_descriptors(vec![geometry, ring, cursor])
            .unwrap()
            .open_block_reader()
            .map(drop)
    };
    assert_eq!(look(good()), Ok(()));
    for seals in [Seals::NONE, partly(0), partly(1), partly(2), partly(3), size] {
        let refused = look((sealed_geometry(|_| ()), memfd(whole, seals), memfd(PAGE_SIZE, size)));
        assert!(matches!(refused, Err(OfferRefusal::Unsealed { file: "ring", .. })), "{seals:?}");
    }
    for seals in [Seals::NONE, Seals::GROW, Seals::SHRINK] {
        let refused =
            look((sealed_geometry(|_| ()), memfd(whole, reader), memfd(PAGE_SIZE, seals)));
        assert!(matches!(refused, Err(OfferRefusal::Unsealed { file: "cursor", .. })));
    }
    let refused = look((memfd(PAGE_SIZE, reader), memfd(whole, reader), memfd(PAGE_SIZE, size)));
    assert!(matches!(refused, Err(OfferRefusal::Unsealed { file: "geometry", .. })));
    for bytes in [PAGE_SIZE, whole - 1, whole + 1, 2 * whole] {
        let refused = look((sealed_geometry(|_| ()), memfd(bytes, reader), memfd(PAGE_SIZE, size)));
        assert!(matches!(refused, Err(OfferRefusal::Size { file: "ring", .. })), "{bytes}");
    }
    let refused = look((sealed_geometry(|_| ()), memfd(whole, reader), memfd(2 * PAGE_SIZE, size)));
    assert!(matches!(refused, Err(OfferRefusal::Size { file: "cursor", .. })));
    let changes: [fn(&mut RingGeometry); 9] = [
        |g| g.magic = 0,
        |g| g.capacity = 0,
        |g| g.capacity = 8191,
        |g| g.capacity = 2048,
        |g| g.capacity = 1 << 63,
        |g| g.capacity = 1 << 41,
        |g| g.stride = 16,
        |g| g.policy = 3,
        |g| g.policy = u32::MAX,
    ];
    for change in changes {
        let refused = look((sealed_geometry(change), memfd(whole, reader), memfd(PAGE_SIZE, size)));
        assert!(matches!(refused, Err(OfferRefusal::Geometry(_))), "{refused:?}");
    }
    let (_, ring, cursor) = good();
    let null = File::open("/dev/null").unwrap();
    assert!(matches!(look((null.into(), ring, cursor)), Err(OfferRefusal::System(_))));
    assert_eq!(
        RingOffer::from_descriptors(Vec::new()).map(drop),
        Err(OfferRefusal::Descriptors(0))
    );
}

#[test]
fn offered_descriptors_cannot_be_mapped_writable() {
    let (_writer, offers) = block_ring(&ring_config(OverflowPolicy::Overwrite)).unwrap();
    let [geometry, ring, cursor] =
        offers[0].descriptors().map(|fd| Memfd::from_fd(fd.try_clone_to_owned().unwrap()).unwrap());
    assert!(geometry.map().is_err() && ring.map().is_err());
    assert!(geometry.seals().unwrap().contains(Seals::FROZEN));
    assert!(ring.seals().unwrap().contains(Seals::READER));
    assert!(cursor.seals().unwrap().contains(Seals::SIZE));
}
