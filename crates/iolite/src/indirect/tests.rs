//! Tests of indirect streams within one process: delivery, lifetime of held memory, and waiting.
//! `crates/iolite/tests/indirect.rs` has tests with other processes and users.

mod splices;

use super::*;
use crate::aggregate::owner::PoolOwner;
use crate::aggregate::server::GrantServer;
use crate::aggregate::{AllocationPool, FrozenData};
use crate::interface::{StreamReader as _, StreamWriter as _};
use crate::view::Space;
use abi::access::{AccessList, Credentials};
use buffer::pool::{self, Pool};
use buffer::{Fault, WriterCounts};
use sys::process::effective_ids;

use testkit::Random;

const SEGMENT_SIZE: usize = 4096;
const RING_DBUF: u32 = 1;
const BACKING_DBUF: u32 = 2;

fn dbuf_id(number: u32) -> DbufId {
    DbufId::new(number).unwrap()
}

/// A grant server for the tests. It shares the pools that the tests create.
struct Fixture {
    server: GrantServer,
}

impl Fixture {
    fn new() -> Self {
        Self { server: GrantServer::start(PoolOwner::new(8)).unwrap() }
    }

    fn pool(&self, number: u32, segments: usize) -> AllocationPool {
        let config = pool::PoolConfig { segment: SEGMENT_SIZE, segments };
        let pool =
            AllocationPool::new(dbuf_id(number), config, AccessList::private(effective_ids()))
                .unwrap();
        self.server.with_owner(|owner| owner.share(&pool)).unwrap();
        pool
    }

    fn frozen(&self, number: u32, bytes: &[u8]) -> FrozenData {
        let frozen = FrozenData::from_reader(dbuf_id(number), bytes, bytes.len()).unwrap();
        let share = |owner: &mut PoolOwner| {
            owner.share_frozen(&frozen, AccessList::private(effective_ids()))
        };
        self.server.with_owner(share).unwrap();
        frozen
    }

    fn space(&self, space: Space) -> Space {
        let (_, socket) = self.server.add_client(Credentials::from(effective_ids())).unwrap();
        space.add_owner(socket);
        space
    }

    fn create_stream(&self, config: &Config, segments: usize) -> (Output, Vec<Offer>, Backing) {
        let backing = Backing::new(self.pool(BACKING_DBUF, segments));
        let (output, offers) = indirect_stream(config, backing.clone()).unwrap();
        (output, offers, backing)
    }

    fn stream_with_one_reader(&self, config: &Config, segments: usize) -> (Output, Input, Backing) {
        let (output, mut offers, backing) = self.create_stream(config, segments);
        let input = Input::open(offers.remove(0), &self.space(Space::new())).unwrap();
        (output, input, backing)
    }
}

fn stream_config() -> Config {
    Config { entries: 256, ..Config::new(dbuf_id(RING_DBUF)) }
}

fn leased_segment_count(backing: &Backing) -> usize {
    backing.with_pool(|pool| pool.usage().leased)
}

fn assert_balanced(output: &Output, input: &Input, resident: u64) {
    assert_eq!(
        output.counts().resident_blocks(&input.counts()),
        Some(resident),
        "{:?}",
        output.counts()
    );
}

#[test]
fn d6_pointer_stream_reads_like_a_byte_stream() {
    let fixture = Fixture::new();
    let (mut output, mut input, backing) = fixture.stream_with_one_reader(&stream_config(), 4);
    assert!(output.write(b"hello").unwrap() && output.write(b"").unwrap());
    assert!(output.write(b", world").unwrap());
    assert_eq!(input.try_read(&mut [0; 9]).unwrap(), None, "not shown yet");
    output.flush();
    let mut out = [0; 9];
    assert_eq!(input.read(&mut out[..3]).unwrap(), 3, "a part of a block");
    assert_eq!(input.peek().unwrap().unwrap(), b"lo", "the rest of it");
    input.take(1);
    assert_eq!(input.read(&mut out).unwrap(), 8, "over the end of a block");
    assert_eq!(&out[..8], b"o, world");
    assert_eq!(input.peek().unwrap(), None);
    assert!(output.write_with(100, |room| room.iter_mut().map(|byte| *byte = 7).count()).unwrap());
    assert_eq!(output.splice_counts(), SpliceCounts { blocks: 0, copied_blocks: 4 });
    drop(output);
    assert_eq!(input.peek().unwrap().unwrap(), [7; 100]);
    input.take(100);
    assert_eq!(input.peek().unwrap().unwrap(), b"");
    assert_eq!(input.read(&mut out).unwrap(), 0, "the end");
    assert_eq!(input.space().query_counts().mapped, 1, "one buffer fault for the one dbuf");
    drop(input);
    sweep_held_segments();
    assert_eq!(leased_segment_count(&backing), 0, "nothing is kept when all is over");
}

#[test]
fn d4_d5_d7_ring_into_several_dbufs_queries_each_once() {
    let fixture = Fixture::new();
    let (mut output, mut input, _backing) = fixture.stream_with_one_reader(&stream_config(), 4);
    let pools: Vec<_> = (10..40).map(|number| fixture.pool(number, 2)).collect();
    let mut blocks = Vec::new();
    for pool in &pools {
        assert!(output.register_pool(pool.pool(), 32));
        let place = pool.pool().draft(64, 64).map(|mut draft| {
            draft.fill(pool.pool().id().number() as u8);
            draft.commit(64)
        });
        blocks.push(place.unwrap());
    }
    for round in 0..20 {
        for (pool, place) in pools.iter().zip(&blocks) {
            assert!(output.write(pool.pool().bytes(*place).unwrap()).unwrap());
        }
        output.flush();
        for pool in &pools {
            let mut out = [0; 64];
            assert_eq!(input.read(&mut out).unwrap(), 64);
            assert_eq!(out, [pool.pool().id().number() as u8; 64], "round {round}");
        }
        assert_eq!(
            input.space().query_counts().mapped,
            30,
            "each once, more than the table has lines"
        );
    }
    assert_eq!(
        output.splice_counts(),
        SpliceCounts { blocks: 600, copied_blocks: 0 },
        "D7: 30 dbufs"
    );
    assert_balanced(&output, &input, 0);
}

#[test]
fn d7_several_streams_point_into_one_dbuf() {
    let fixture = Fixture::new();
    let backing = Backing::new(fixture.pool(BACKING_DBUF, 8));
    let space = fixture.space(Space::new());
    let mut pairs: Vec<_> = (20..24)
        .map(|number| {
            let config = Config { id: dbuf_id(number), ..stream_config() };
            let (output, mut offers) = indirect_stream(&config, backing.clone()).unwrap();
            (output, Input::open(offers.remove(0), &space).unwrap())
        })
        .collect();
    for round in 0..100u8 {
        for (at, (output, _)) in pairs.iter_mut().enumerate() {
            output.write(&[round ^ at as u8; 300]).unwrap();
            output.flush();
        }
        for (at, (_, input)) in pairs.iter_mut().enumerate() {
            let mut out = [0; 300];
            assert_eq!(input.read(&mut out).unwrap(), 300);
            assert_eq!(out, [round ^ at as u8; 300]);
            input.release_consumed();
        }
    }
    assert_eq!(space.query_counts().mapped, 1, "mapped once for all");
    drop(pairs);
    sweep_held_segments();
    assert_eq!(leased_segment_count(&backing), 0);
}

#[test]
fn e1_segment_is_held_until_every_reader_has_passed() {
    let fixture = Fixture::new();
    let (mut output, offers, _backing) =
        fixture.create_stream(&Config { readers: 2, ..stream_config() }, 4);
    let space = fixture.space(Space::new());
    let mut inputs: Vec<_> =
        offers.into_iter().map(|offer| Input::open(offer, &space).unwrap()).collect();
    let mut pool =
        Pool::new(dbuf_id(9), pool::PoolConfig { segment: SEGMENT_SIZE, segments: 2 }).unwrap();
    output.register_pool(&pool, 1);
    let (place, bytes) = pool.append(1000, |room| room.iter_mut().map(|b| *b = 5).count()).unwrap();
    output.write(bytes).unwrap();
    let fill_up = |pool: &Pool| pool.append(SEGMENT_SIZE, |room| room.len()).is_some();
    assert!(fill_up(&pool));
    pool.end_pass();
    assert_eq!(pool.usage().leased, 1, "the pool has turned, and the bytes stay");
    assert!(pool.bytes(place).is_some());
    for at in 0..2 {
        output.reclaim_passed_memory().unwrap();
        pool.end_pass();
        assert!(pool.bytes(place).is_some(), "reader {at} has not passed");
        // A reader that leaves without reading holds nothing back.
        if at == 0 {
            let fault = Fault::UnknownDbuf(dbuf_id(9));
            assert_eq!(inputs[0].read(&mut [0; 4]), Err(fault), "no server shares it");
            inputs[0].release_consumed();
        } else {
            inputs.remove(1);
        }
    }
    output.reclaim_passed_memory().unwrap();
    pool.end_pass();
    assert_eq!((pool.usage().leased, pool.bytes(place)), (0, None));
}

fn read_all(input: &mut Input) -> Vec<u8> {
    let (mut all, mut out) = (Vec::new(), [0; 1000]);
    loop {
        match input.try_read(&mut out).unwrap() {
            Some(0) | None => return all,
            Some(count) => all.extend_from_slice(&out[..count]),
        }
    }
}

#[test]
fn d11_full_stream_drops_or_overwrites_and_counts() {
    let fixture = Fixture::new();
    for (policy, segments) in [
        (OverflowPolicy::DropNew, 16),
        (OverflowPolicy::DropNew, 2),
        (OverflowPolicy::Overwrite, 32),
        (OverflowPolicy::Overwrite, 2),
    ] {
        let fixture = Fixture::new();
        let (mut output, mut input, backing) =
            fixture.stream_with_one_reader(&Config { policy, ..stream_config() }, segments);
        let mut written = 0;
        for number in 0..2000u32 {
            written += u32::from(output.write(&number.to_le_bytes().repeat(20)).unwrap());
        }
        output.flush();
        let put = output.counts();
        drop(output);
        let (mut expected, mut count, mut out) = (0, 0, [0; 80]);
        while input.read(&mut out).unwrap() > 0 {
            let number = u32::from_le_bytes([out[0], out[1], out[2], out[3]]);
            assert_eq!(out[..], number.to_le_bytes().repeat(20), "not torn");
            assert!(number >= expected, "{policy:?}: in order");
            (expected, count) = (number + 1, count + 1);
        }
        let taken = input.counts();
        assert_eq!(taken.blocks, count);
        assert_eq!(u64::from(written), put.blocks);
        match policy {
            OverflowPolicy::DropNew => {
                assert_eq!((put.dropped, taken.lost), (2000 - put.blocks, 0))
            }
            _ => assert_eq!((put.dropped, taken.lost, expected), (0, 2000 - count, 2000)),
        }
        assert!(count > 10 && count < 2000, "{policy:?} {segments}: {count}");
        assert_eq!(put.resident_blocks(&taken), Some(0));
        drop(input);
        sweep_held_segments();
        assert_eq!(leased_segment_count(&backing), 0);
    }
    drop(fixture);
}

/// Reads a ring that overwrites while its writer runs. Expects lost blocks, but no torn block.
#[test]
fn d11_lapped_reader_loses_blocks_but_reads_none_torn() {
    let fixture = Fixture::new();
    let config =
        Config { policy: OverflowPolicy::Overwrite, publish_threshold: 1, ..stream_config() };
    let (mut output, mut input, _backing) = fixture.stream_with_one_reader(&config, 4);
    let writing = std::thread::spawn(move || {
        for number in 0..200_000u32 {
            output.write(&number.to_le_bytes().repeat(50)).unwrap();
        }
        output.counts()
    });
    let (mut next, mut out) = (0, [0; 200]);
    while input.read(&mut out).unwrap() > 0 {
        let number = u32::from_le_bytes([out[0], out[1], out[2], out[3]]);
        assert!(out == number.to_le_bytes().repeat(50)[..], "torn at {number}");
        assert!(number >= next);
        next = number + 1;
    }
    let put: WriterCounts = writing.join().unwrap();
    assert_eq!(put.resident_blocks(&input.counts()), Some(0), "{:?}", input.counts());
}

/// A peek returns bytes in place if that is sound, otherwise a copy. The borrow of the slice limits
/// its validity (D10).
#[test]
fn d10_peek_is_in_place_for_frozen_or_trusted_memory() {
    let fixture = Fixture::new();
    let frozen = fixture.frozen(9, &[9; 100]);
    let file = frozen.aggregate().unwrap();
    for (space, direct) in [(Space::new(), false), (Space::trusting(), true)] {
        let fixture_space = fixture.space(space);
        let backing = Backing::new(fixture.pool(if direct { 30 } else { 31 }, 4));
        let (mut output, mut offers) = indirect_stream(&stream_config(), backing.clone()).unwrap();
        let mut input = Input::open(offers.remove(0), &fixture_space).unwrap();
        output.register_frozen(&frozen, 1);
        output.write(&[7; 50]).unwrap();
        output.write(file.slices().next().unwrap().bytes()).unwrap();
        output.flush();
        let is_mapped = |slice: &[u8]| {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().any(|line| {
                let (range, rest) = line.split_once(' ').unwrap();
                let (from, to) = range.split_once('-').unwrap();
                let number = |hex| usize::from_str_radix(hex, 16).unwrap();
                (number(from)..number(to)).contains(&slice.as_ptr().addr())
                    && rest.starts_with("r--s")
            })
        };
        let block = input.peek().unwrap().unwrap();
        assert_eq!((block, is_mapped(block)), (&[7; 50][..], direct));
        input.take(50);
        let block = input.peek().unwrap().unwrap();
        assert_eq!((block, is_mapped(block)), (&[9; 100][..], true), "frozen: always in place");
    }
}

#[test]
fn blocks_of_dropped_writer_stay_until_read() {
    let fixture = Fixture::new();
    let (output, mut input, backing) = fixture.stream_with_one_reader(&stream_config(), 4);
    let mut output = output;
    output.write(&[1; 1000]).unwrap();
    drop(output);
    assert!(sweep_held_segments() > 0 && leased_segment_count(&backing) == 1);
    let over = backing.with_pool(|pool| (0..10).filter(|_| pool.copy(&[2; 3000]).is_ok()).count());
    assert!(over > 0, "the rest is written over");
    assert_eq!(read_all(&mut input), [1; 1000]);
    drop(input);
    sweep_held_segments();
    assert_eq!(leased_segment_count(&backing), 0);
}

#[test]
fn t10_killed_writer_differs_from_one_that_closed() {
    let fixture = Fixture::new();
    let (mut output, mut input, _backing) = fixture.stream_with_one_reader(&stream_config(), 4);
    output.write(b"shown").unwrap();
    output.flush();
    output.write(b"not shown").unwrap();
    output.simulate_kill();
    let mut out = [0; 100];
    assert_eq!(input.read(&mut out).unwrap(), 5);
    assert_eq!(input.read(&mut out), Err(Fault::Abandoned));
    let (mut output, input, _backing) = open_second_stream(&fixture);
    drop(input);
    let fault = loop {
        match output.write(&[1; 100]) {
            Ok(_) => {}
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault, Fault::Abandoned);
}

/// Opens another stream with one reader, whose memory the same grant server shares.
fn open_second_stream(fixture: &Fixture) -> (Output, Input, Backing) {
    let backing = Backing::new(fixture.pool(77, 4));
    let (output, mut offers) =
        indirect_stream(&Config { id: dbuf_id(78), ..stream_config() }, backing.clone()).unwrap();
    let input = Input::open(offers.remove(0), &fixture.space(Space::new())).unwrap();
    (output, input, backing)
}

/// A waiting reader is woken, and so are writers that wait for room in the ring or for memory.
#[test]
fn waiting_threads_wake_each_other_without_loss() {
    let fixture = Fixture::new();
    for (entries, segments) in [(256, 2), (256, 64)] {
        let backing = Backing::new(fixture.pool(50 + segments as u32, segments));
        let config = Config { entries, ..stream_config() };
        let (mut output, mut offers) = indirect_stream(&config, backing).unwrap();
        let mut input = Input::open(offers.remove(0), &fixture.space(Space::new())).unwrap();
        let mut random = Random::with_replayable_seed();
        let writing = std::thread::spawn(move || {
            for number in 0..20_000u32 {
                let length = 1 + random.within(0..50);
                output.write(&number.to_le_bytes().repeat(length)).unwrap();
            }
        });
        let (mut all, mut out) = (Vec::new(), [0; 777]);
        loop {
            match input.read(&mut out).unwrap() {
                0 => break,
                count => all.extend_from_slice(&out[..count]),
            }
        }
        writing.join().unwrap();
        let words = all.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let mut last = 0;
        for word in words {
            assert!(word == last || word == last + 1, "{word} after {last}");
            last = word;
        }
        assert_eq!(last, 19_999);
    }
}

/// The memory for copied bytes grows while the reader falls behind and shrinks while the reader
/// keeps up. Every byte arrives. The memory of a stream with a fixed size never changes its size.
#[test]
fn f6_memory_of_a_pointer_stream_sizes_itself() {
    check_sizing_of_memory(|| ());

    let (output, ..) = Fixture::new().stream_with_one_reader(&stream_config(), 8);
    assert_eq!(output.memory_size(), (8 * SEGMENT_SIZE, None));
}

/// The memory shrinks also if another stream of the process releases it before it is used up.
#[test]
fn f6_memory_sizes_itself_while_other_streams_release_it() {
    check_sizing_of_memory(|| _ = sweep_held_segments());
}

/// Checks that the memory for copied bytes of a stream grows and shrinks. Calls `after_block` after
/// each block that is written and read while the reader keeps up.
fn check_sizing_of_memory(after_block: impl Fn()) {
    use buffer::scale::{ScalingParameters, SegmentWindow};
    let fixture = Fixture::new();
    let scaling = ScalingParameters::for_pointers(2 * SEGMENT_SIZE, 16 * SEGMENT_SIZE);
    let window = SegmentWindow::new(scaling, SEGMENT_SIZE, 4 * SEGMENT_SIZE);
    let backing =
        Backing::new(fixture.pool(BACKING_DBUF, window.segments_max())).with_window(window);
    let config = Config { entries: 4096, publish_threshold: 1, ..Config::new(dbuf_id(RING_DBUF)) };
    let (mut output, mut offers) = indirect_stream(&config, backing).unwrap();
    let mut input = Input::open(offers.remove(0), &fixture.space(Space::new())).unwrap();
    let size = |output: &Output| output.memory_size().0 / SEGMENT_SIZE;
    assert_eq!(size(&output), 4);
    let write = |output: &mut Output, number: u32| {
        assert!(output.write(&[number as u8; 1000]).unwrap());
    };
    // A segment has four blocks. Nothing is read: the writer must find room instead of waiting.
    (0..64).for_each(|number| write(&mut output, number));
    assert_eq!(size(&output), 16, "as far as it may go");
    let mut out = [0; 1000];
    let mut read = |input: &mut Input, number: u32| {
        assert_eq!(input.read(&mut out).unwrap(), 1000);
        assert!(out.iter().all(|byte| *byte == number as u8), "{number}");
    };
    (0..64).for_each(|number| read(&mut input, number));
    // Blocks that were read are released when the reader waits.
    input.wait(Some(std::time::Duration::ZERO)).unwrap();
    for number in 64..40_000 {
        write(&mut output, number);
        read(&mut input, number);
        input.wait(Some(std::time::Duration::ZERO)).unwrap();
        after_block();
    }
    let (bytes, sizing) = output.memory_size();
    let sizing = sizing.unwrap();
    assert_eq!(bytes, 2 * SEGMENT_SIZE, "{sizing:?}");
    assert_eq!((sizing.grown, sizing.shrunk), (2, 3), "{sizing:?}");
    assert_eq!(output.splice_counts(), SpliceCounts { blocks: 0, copied_blocks: 40_000 });
    assert_balanced(&output, &input, 0);
}
