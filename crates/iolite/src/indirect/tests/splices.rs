//! Tests that writes of bytes in dbufs become pointers, and other writes are copied.

use super::*;
use crate::interface::{StreamReader as _, StreamWriter as _};
use abi::RichPointer;

#[test]
fn e1_bytes_in_dbufs_become_pointers_and_others_copies() {
    let fixture = Fixture::new();
    let (mut output, mut input, _backing) = fixture.stream_with_one_reader(&stream_config(), 4);
    let mut pool = fixture.pool(9, 4);
    let aggregate = pool.copy(&[1; 3000]).unwrap();
    let frozen = fixture.frozen(10, &[2; 10_000]);
    let file = frozen.aggregate().unwrap();
    let unknown = fixture.pool(11, 2).copy(&[3; 100]).unwrap();
    assert!(output.register_pool(pool.pool(), 8) && output.register_frozen(&frozen, 64));
    let slice = aggregate.slices().next().unwrap().bytes();
    let piece = file.slices().next().unwrap().bytes();
    let own = vec![4; 500];
    let other = unknown.slices().next().unwrap().bytes();
    let written: [&[u8]; 8] =
        [slice, &slice[17..40], piece, &own, &piece[9_999..], other, &slice[2_999..], &[]];
    for block in written {
        assert!(output.write(block).unwrap());
    }
    assert_eq!(output.splice_counts(), SpliceCounts { blocks: 5, copied_blocks: 3 });
    drop(output);
    let mut all = Vec::new();
    let mut out = [0; 4096];
    while let Some(count) = Some(input.read(&mut out).unwrap()).filter(|count| *count > 0) {
        all.extend_from_slice(&out[..count]);
    }
    assert_eq!(all, written.concat());
    assert_eq!(input.space().query_counts().mapped, 3, "of the unknown dbuf nothing went over");
}

/// The lowest threshold of all referenced dbufs determines when readers are notified.
#[test]
fn k6_lowest_dbuf_threshold_applies() {
    let fixture = Fixture::new();
    let (mut output, mut input, _backing) = fixture.stream_with_one_reader(&stream_config(), 4);
    let mut small = fixture.pool(9, 4);
    let frozen = fixture.frozen(10, &[2; 100]);
    assert_eq!(output.publish_threshold(), 32);
    assert!(output.register_frozen(&frozen, 64));
    assert_eq!(output.publish_threshold(), 32, "a larger one changes nothing");
    let block = small.copy(&[1; 10]).unwrap();
    assert!(output.register_pool(small.pool(), 8));
    assert_eq!(output.publish_threshold(), 8);
    let block = block.slices().next().unwrap().bytes();
    let mut out = [0; 1000];
    for _ in 0..20 {
        for _ in 0..7 {
            output.write(block).unwrap();
        }
        assert_eq!(input.try_read(&mut out), Ok(None), "not yet");
        output.write(block).unwrap();
        assert_eq!(input.try_read(&mut out), Ok(Some(80)), "all eight");
    }
}

/// After a miss in a dbuf, the dbuf is not searched for a number of writes that grows with each
/// miss.
#[test]
fn e4_misses_suspend_splicing_from_a_dbuf() {
    let fixture = Fixture::new();
    let (mut output, mut input, _backing) = fixture.stream_with_one_reader(&stream_config(), 4);
    let pool = fixture.pool(9, 2);
    assert!(output.register_pool(pool.pool(), 32));
    let mut tried = Vec::new();
    let mut copied = 0;
    for round in 1..=3 {
        // A draft is in the dbuf but not published, so it is a miss.
        let mut draft = pool.pool().draft(100, 100).unwrap();
        draft.fill(round);
        let before = output.splice_counts();
        output.write(&draft[..50]).unwrap();
        copied += 1;
        let place = draft.commit(100);
        assert_eq!(output.splice_counts().copied_blocks, before.copied_blocks + 1);
        // The bytes are published now, but the back-off must expire before they are found.
        let bytes = pool.pool().bytes(place).unwrap();
        let spliced = output.splice_counts().blocks;
        let mut writes = 0;
        while output.splice_counts().blocks == spliced {
            output.write(&bytes[..50]).unwrap();
            writes += 1;
        }
        copied += writes - 1;
        tried.push(writes);
        output.flush();
        while input.try_read(&mut [0; 4096]).unwrap().is_some() {}
    }
    assert!(tried.iter().all(|writes| *writes > 1), "{tried:?}");
    assert_eq!(output.splice_counts().copied_blocks, copied);
}

/// The address ranges of eight dbufs share one cache line. A hit in a ninth dbuf replaces one of
/// the ranges.
#[test]
fn e4_recently_hit_dbufs_share_one_cache_line() {
    use super::range_table::{RANGE_COUNT, RangeTable};
    assert!(RANGE_COUNT == 8 && size_of::<RangeTable>() >= 64);
    let mut ranges = RangeTable::default();
    let at = |number: usize| (1 + number) << 32;
    for number in 0..RANGE_COUNT + 1 {
        ranges.insert(at(number), SEGMENT_SIZE, number);
    }
    let found: Vec<_> = (0..=RANGE_COUNT).map(|number| ranges.find(at(number) + 9)).collect();
    assert_eq!(found.iter().flatten().count(), RANGE_COUNT, "{found:?}");
    assert_eq!(found.last(), Some(&Some(RANGE_COUNT)), "the last one is there");
    let known: Vec<_> = found.iter().flatten().copied().collect();
    assert!(known.iter().all(|name| found[*name] == Some(*name)));
    assert_eq!(ranges.find(at(RANGE_COUNT) + SEGMENT_SIZE), None, "behind its end");
}

/// Bytes outside any dbuf are copied into the space's default dbuf, which all its streams share.
#[test]
fn d8_bytes_outside_dbufs_go_to_default_dbuf() {
    let fixture = Fixture::new();
    let backing = Backing::new(fixture.pool(BACKING_DBUF, 4));
    let space = fixture.space(Space::new());
    for number in 20..23 {
        let config = Config { id: dbuf_id(number), ..stream_config() };
        let (mut output, mut offers) = indirect_stream(&config, backing.clone()).unwrap();
        let mut input = Input::open(offers.remove(0), &space).unwrap();
        output.write(&[number as u8; 700]).unwrap();
        output.write_with(10, |room| room.iter_mut().map(|byte| *byte = 1).count()).unwrap();
        output.flush();
        let mut pointers = [RichPointer::hole(0); 4];
        assert_eq!(input.take_pointers(&mut pointers), Ok(2));
        assert!(pointers[..2].iter().all(|pointer| pointer.dbuf() == dbuf_id(BACKING_DBUF)));
    }
    assert_eq!(space.query_counts().mapped, 1);
}

/// Expects bytes of an unpublished draft to be copied. Its pool is registered, but a pointer may
/// only name published bytes (S4).
#[test]
fn e1_bytes_of_unpublished_draft_are_copied() {
    let fixture = Fixture::new();
    let (mut output, mut input, _backing) = fixture.stream_with_one_reader(&stream_config(), 4);
    let pool = fixture.pool(9, 2);
    output.register_pool(pool.pool(), 32);
    let mut draft = pool.pool().draft(100, 100).unwrap();
    draft.fill(1);
    output.write(&draft[..50]).unwrap();
    draft.fill(2);
    let place = draft.commit(100);
    let bytes = pool.pool().bytes(place).unwrap();
    for _ in 0..3 {
        output.write(&bytes[..50]).unwrap();
    }
    assert_eq!(output.splice_counts(), SpliceCounts { blocks: 2, copied_blocks: 2 });
    output.flush();
    let mut out = [0; 200];
    assert_eq!(input.read(&mut out).unwrap(), 200);
    assert_eq!((&out[..50], &out[50..]), (&[1; 50][..], &[2; 150][..]));
}

/// A block that is peeked and forwarded is held by the first writer until the last reader has
/// passed it (F5).
#[test]
fn e1_peeked_block_becomes_pointer_in_next_stream() {
    let fixture = Fixture::new();
    let space = fixture.space(Space::trusting());
    let (mut first, mut offers, backing) = fixture.create_stream(&stream_config(), 4);
    let mut middle = Input::open(offers.remove(0), &space).unwrap();
    let other = Backing::new(fixture.pool(30, 4));
    let (mut second, mut offers) =
        indirect_stream(&Config { id: dbuf_id(31), ..stream_config() }, other).unwrap();
    let mut last = Input::open(offers.remove(0), &space).unwrap();
    assert!(second.follow_input(&middle));
    first.write(&[5; 500]).unwrap();
    first.flush();
    let block = middle.peek().unwrap().unwrap();
    second.write(&block[100..300]).unwrap();
    middle.take(500);
    second.flush();
    middle.release_consumed();
    assert_eq!(second.splice_counts(), SpliceCounts { blocks: 1, copied_blocks: 0 });
    assert_eq!(
        (middle.unreleased_blocks(), leased_segment_count(&backing)),
        (1, 1),
        "not given back"
    );
    first.reclaim_passed_memory().unwrap();
    assert_eq!(leased_segment_count(&backing), 1);
    assert_eq!(read_all(&mut last), [5; 200]);
    last.release_consumed();
    second.reclaim_passed_memory().unwrap();
    middle.release_consumed();
    assert_eq!(middle.unreleased_blocks(), 0, "now it is");
    drop(first);
    sweep_held_segments();
    assert_eq!(leased_segment_count(&backing), 0);
}

/// Forwarded entries hold back the first writer until they are read, as in a shell pipeline. The
/// forwarding process waits for its input and its output.
#[test]
fn e1_forwarder_waits_for_both_sides() {
    let fixture = Fixture::new();
    let space = fixture.space(Space::trusting());
    let (mut first, mut offers, _backing) = fixture.create_stream(&stream_config(), 4);
    let mut middle = Input::open(offers.remove(0), &space).unwrap();
    let other = Backing::new(fixture.pool(30, 4));
    let (mut second, mut offers) =
        indirect_stream(&Config { id: dbuf_id(31), ..stream_config() }, other).unwrap();
    let mut last = Input::open(offers.remove(0), &space).unwrap();
    let writing = std::thread::spawn(move || {
        for number in 0..20_000_u32 {
            first.write(&number.to_le_bytes().repeat(1 + number as usize % 60)).unwrap();
        }
    });
    let passing = std::thread::spawn(move || {
        second.follow_input(&middle);
        loop {
            let count = match middle.peek().unwrap() {
                Some([]) => return second.splice_counts(),
                Some(block) => {
                    second.write(block).unwrap();
                    block.len()
                }
                None => {
                    crate::splice::wait_for_input_or_release(&mut middle, &mut second).unwrap();
                    continue;
                }
            };
            middle.take(count);
        }
    });
    let (mut all, mut out) = (Vec::new(), [0; 900]);
    loop {
        match last.read(&mut out).unwrap() {
            0 => break,
            count => all.extend_from_slice(&out[..count]),
        }
    }
    writing.join().unwrap();
    let spliced = passing.join().unwrap();
    assert!(spliced.blocks > 1000, "{spliced:?}");
    let expected = (0..20_000_u32).flat_map(|n| n.to_le_bytes().repeat(1 + n as usize % 60));
    assert!(all.into_iter().eq(expected));
}
