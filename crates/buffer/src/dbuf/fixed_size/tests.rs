//! Tests of rings of slots: memory layout, rounding and limits, lap counts, and streams of slots.

use super::*;
use crate::Fault;

fn ring_config(slots: usize, policy: OverflowPolicy) -> SlotConfig {
    SlotConfig { id: DbufId::new(5).unwrap(), slot: 100, slots, policy, readers: 1 }
}

#[test]
fn slots_are_contiguous_multiples_of_their_size() {
    let shape = ring_config(60, OverflowPolicy::Block).slot_layout();
    assert_eq!((shape.slot, shape.slots, shape.block_length_max()), (128, 64, 128));
    assert_eq!((shape.slots_size(), shape.table_size()), (8192, 4096));
    let (mut writer, mut readers) = ring(&ring_config(60, OverflowPolicy::Block));
    let (reader, mut places) = (&mut readers[0], Vec::new());
    for length in [0_usize, 1, 64, 128] {
        let mut room = writer.reserve(length).unwrap().unwrap();
        room.fill(length as u8);
        places.push(room.commit(length));
    }
    writer.publish();
    let extents: Vec<_> = places.iter().map(|p| (p.position(), p.length())).collect();
    assert_eq!(extents, [(0, 0), (128, 1), (256, 64), (384, 128)]);
    let base = reader.next_block().unwrap().unwrap().as_ptr().addr();
    for (number, length) in (1..).zip([1_usize, 64, 128]) {
        let block = reader.next_block().unwrap().unwrap();
        assert_eq!((block.as_ptr().addr() - base) / 128, number);
        assert_eq!(block, vec![length as u8; length]);
    }
    assert!(reader.next_block().unwrap().is_none());
    let limit = writer.block_length_max();
    assert_eq!(writer.write(&[0; 129]), Err(Fault::TooLong { length: 129, limit }));
}

#[test]
fn dimensions_are_rounded_and_clamped() {
    let shape = SlotConfig { slot: 1 << 20, slots: 3, ..SlotConfig::new(DbufId::new(1).unwrap()) }
        .slot_layout();
    assert_eq!((shape.slot, shape.slots, shape.block_length_max()), (1 << 20, 4, BLOCK_LENGTH_MAX));
    let small =
        SlotConfig { slot: 1, slots: 1, ..SlotConfig::new(DbufId::new(1).unwrap()) }.slot_layout();
    assert_eq!((small.slot, small.slots), (64, 64));
}

/// A lapped reader computes the number of lost blocks from slot positions alone.
#[test]
fn lapped_reader_counts_lost_blocks_exactly() {
    let (mut writer, mut readers) = ring(&ring_config(64, OverflowPolicy::Overwrite));
    let reader = &mut readers[0];
    for number in 0..1000_u64 {
        assert!(writer.write(&number.to_le_bytes()).unwrap());
    }
    writer.publish();
    let mut out = [0; 128];
    let mut received = Vec::new();
    while let Some(length) = reader.read(&mut out).unwrap() {
        received.push(u64::from_le_bytes(out[..length].try_into().unwrap()));
    }
    assert_eq!(received.last(), Some(&999));
    assert!(
        received.windows(2).all(|pair| pair[1] == pair[0] + 1) && received.len() >= 32,
        "{received:?}"
    );
    let counted = reader.counts();
    assert_eq!(
        (counted.lost, counted.blocks),
        (1000 - received.len() as u64, received.len() as u64)
    );
    assert_eq!(reader.peek(), Err(Fault::Lossy));
}

/// Expects the reader to report damage after the writer has stored a length greater than the slot
/// size into the table.
#[test]
fn impossible_slot_length_is_reported_as_damage() {
    let (mut writer, mut readers) = ring(&ring_config(64, OverflowPolicy::Block));
    writer.write(b"one").unwrap();
    writer.write(b"two").unwrap();
    let shape = writer.layout;
    writer.side.store.writer.word(shape.length_word_index(1)).store(u64::MAX, Ordering::Relaxed);
    writer.publish();
    let mut out = [0; 128];
    assert_eq!(readers[0].read(&mut out).unwrap(), Some(3));
    assert_eq!(readers[0].read(&mut out), Err(Fault::Damaged { position: 1 }));
    assert!(matches!(
        readers[0].read(&mut out),
        Err(Fault::Damaged { .. } | Fault::Poisoned { .. })
    ));
}

#[test]
fn slot_is_copied_by_extent_between_publish_and_release() {
    let (mut writer, mut readers) =
        ring(&SlotConfig { readers: 2, ..ring_config(64, OverflowPolicy::Block) });
    let mut visitor =
        ForeignSlotReader::new(ReaderCursor::new(writer.side.store.clone(), 1), writer.layout);
    let mut room = writer.reserve(100).unwrap().unwrap();
    room.copy_from_slice(&[7; 100]);
    let place = room.commit(100);
    let mut out = [0; 10];
    assert_eq!(
        visitor.copy(place.subrange(3, 10), &mut out),
        Err(Fault::OutOfWindow(place.subrange(3, 10)))
    );
    writer.publish();
    visitor.copy(place.subrange(3, 10), &mut out).unwrap();
    assert_eq!(out, [7; 10]);
    let over = place.subrange(120, 10);
    assert_eq!(visitor.copy(over, &mut out), Err(Fault::CrossesSegment(over)));
    assert!(visitor.copy(place, &mut out).is_err(), "of another length");
    assert_eq!(visitor.read(&mut [0; 128]).unwrap(), Some(100));
    assert!(visitor.copy(place.subrange(0, 10), &mut out).is_err(), "released");
    assert_eq!(readers.remove(0).read(&mut [0; 128]).unwrap(), Some(100));
}

/// Reader and writer sleep repeatedly, on rings with many and with few free slots. No block is
/// lost.
#[test]
fn slot_stream_blocks_on_both_sides_without_loss() {
    for (slots, spins, every) in [(64, 0, 1), (64, 0, 32), (64, 500, 7), (1024, 0, 32)] {
        let shape = ring_config(slots, OverflowPolicy::Block);
        let (mut output, mut offers) = stream::stream(&shape, every).unwrap();
        let mut input = offers.remove(0).open().unwrap();
        output.set_spin_limit(spins);
        input.set_spin_limit(spins);
        let writing = std::thread::spawn(move || {
            for number in 0..20_000_u64 {
                assert!(output.write(&number.to_le_bytes()).unwrap());
            }
            output.counts()
        });
        let (mut out, mut number) = ([0; 128], 0_u64);
        while let Some(length) = input.read(&mut out).unwrap() {
            assert_eq!(out[..length], number.to_le_bytes());
            number += 1;
        }
        let put = writing.join().unwrap();
        assert_eq!(put.resident_blocks(&crate::rate::SkippingReader::counts(&input)), Some(0));
        assert_eq!((number, input.writer_counts()), (20_000, put));
    }
}

#[test]
fn slot_stream_writer_fails_when_its_reader_exits() {
    let shape = ring_config(64, OverflowPolicy::Block);
    let (mut output, mut offers) = stream::stream(&shape, 1).unwrap();
    let input = offers.remove(0).open().unwrap();
    let writing = std::thread::spawn(move || {
        while output.write(b"as long as somebody reads").is_ok() {}
        output.write(b"nobody")
    });
    drop(input);
    assert_eq!(writing.join().unwrap(), Err(Fault::Abandoned));
}
