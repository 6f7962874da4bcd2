//! Tests that splicing is equivalent to copying: blocks passed as pointers, in pieces, and over
//! several streams arrive like copies, and all memory is released in the end.

use super::*;
use crate::aggregate::owner::PoolOwner;
use crate::aggregate::server::GrantServer;
use crate::aggregate::{Aggregate, AllocationPool, FrozenData};
use crate::indirect::{Backing, Config, Input, Output, indirect_stream, sweep_held_segments};
use crate::interface::{AggregateBlockReader, ByteReader, FrozenReader};
use crate::view::Space;
use abi::DbufId;
use abi::access::{AccessList, Credentials};
use buffer::OverflowPolicy;
use buffer::pool;
use buffer::stream;
use buffer::wait::WaitResult;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use sys::process::effective_ids;
use testkit::Random;

const SEGMENT_SIZE: usize = 4096;

fn dbuf_id(number: u32) -> DbufId {
    DbufId::new(number).unwrap()
}

struct SpliceFixture {
    server: GrantServer,
    space: Space,
}

impl SpliceFixture {
    fn new(space: Space) -> Self {
        let server = GrantServer::start(PoolOwner::new(8)).unwrap();
        space.add_owner(server.add_client(Credentials::from(effective_ids())).unwrap().1);
        Self { server, space }
    }

    fn pool(&self, number: u32, segments: usize) -> AllocationPool {
        let config = pool::PoolConfig { segment: SEGMENT_SIZE, segments };
        let pool =
            AllocationPool::new(dbuf_id(number), config, AccessList::private(effective_ids()))
                .unwrap();
        self.server.with_owner(|owner| owner.share(&pool)).unwrap();
        pool
    }

    fn open_stream(&self, number: u32) -> (Output, Input, Backing) {
        let backing = Backing::new(self.pool(number + 1, 16));
        let config = Config { entries: 256, publish_threshold: 1, ..Config::new(dbuf_id(number)) };
        let (output, mut offers) = indirect_stream(&config, backing.clone()).unwrap();
        (output, Input::open(offers.remove(0), &self.space).unwrap(), backing)
    }

    fn share_frozen_data(&self, number: u32, bytes: &[u8]) -> FrozenData {
        let frozen = FrozenData::from_reader(dbuf_id(number), bytes, bytes.len()).unwrap();
        let share = |owner: &mut PoolOwner| {
            owner.share_frozen(&frozen, AccessList::private(effective_ids()))
        };
        self.server.with_owner(share).unwrap();
        frozen
    }
}

/// Random writes, splices, peeks and reads run over two streams in sequence. Pools are recycled in
/// between, so a missing hold would cause wrong data.
#[test]
fn e2_splices_deliver_the_same_bytes_as_copies() {
    let mut random = Random::with_replayable_seed();
    for trusting in [false, true] {
        for _ in 0..20 {
            run_random_operations(
                &mut random,
                if trusting { Space::trusting() } else { Space::new() },
            );
        }
    }
}

fn run_random_operations(random: &mut Random, space: Space) {
    let place = SpliceFixture::new(space);
    let (mut first, mut middle, one) = place.open_stream(10);
    let (mut second, last, two) = place.open_stream(20);
    let mut pool = place.pool(30, 8);
    let text = random.bytes(3 * SEGMENT_SIZE);
    let frozen = place.share_frozen_data(40, &text);
    let file = frozen.aggregate().unwrap();
    assert!(first.register_pool(pool.pool(), 32) && first.register_frozen(&frozen, 32));
    assert!(second.follow_input(&middle) && second.register_frozen(&frozen, 32));
    let (mut queue, mut passed, mut out) = (VecDeque::new(), Vec::new(), vec![0; 2000]);
    let mut blocks: VecDeque<Aggregate> = VecDeque::new();
    let consumed = Arc::new(AtomicUsize::new(0));
    let reading = {
        let (consumed, random) = (Arc::clone(&consumed), Random::new(random.next_u64()));
        std::thread::spawn(move || read_to_end(last, random, &consumed))
    };
    for _ in 0..400 {
        let length = random.within(150..700);
        // This thread plays the first two processes. A write to the second stream may wait for the
        // third one.
        second.reclaim_passed_memory().unwrap();
        middle.release_consumed();
        let in_second = passed.len() - consumed.load(Ordering::Acquire);
        let may_pass = in_second < 1500;
        let waiting = queue.len() + in_second;
        match random.below(6) {
            // Bytes from outside any dbuf, from a pool, or from the file: copied, or as a pointer.
            0..=2 if waiting < 9000 => {
                let own = random.bytes(length);
                let from = random.within(0..text.len() - length);
                let source = random.below(3);
                let bytes: &[u8] = match source {
                    0 => &own,
                    1 => {
                        blocks.push_back(pool.copy(&own).unwrap());
                        blocks.back().unwrap().slices().next().unwrap().bytes()
                    }
                    _ => &file.slices().next().unwrap().bytes()[from..from + length],
                };
                first.write(bytes).unwrap();
                queue.extend(bytes);
                // From here on, only entries in flight hold the block.
                if blocks.len() > 1 {
                    blocks.pop_front();
                }
            }
            // To the second stream: as a pointer, from the peeked slice, or as a copy.
            3 if !queue.is_empty() && may_pass => {
                let moved = splice(&mut middle, &mut second, length).unwrap();
                assert!(moved.bytes > 0 && moved.bytes == moved.by_pointer, "{moved:?}");
                passed.extend(queue.drain(..moved.bytes));
            }
            4 if !queue.is_empty() && may_pass => {
                let block = middle.peek().unwrap().unwrap();
                let count = block.len().min(length);
                second.write(&block[..count]).unwrap();
                middle.take(count);
                passed.extend(queue.drain(..count));
            }
            5 if !queue.is_empty() && may_pass => {
                let count = middle.read(&mut out[..length]).unwrap();
                second.write(&out[..count]).unwrap();
                let bytes: Vec<u8> = queue.drain(..count).collect();
                assert_eq!(out[..count], bytes);
                passed.extend(bytes);
            }
            _ => first.reclaim_passed_memory().unwrap(),
        }
    }
    drop(first);
    passed.extend(queue);
    splice_all(&mut middle, &mut second).unwrap();
    drop(second);
    assert!(reading.join().unwrap() == passed, "in order, to the last byte");
    sweep_held_segments();
    middle.release_consumed();
    drop(middle);
    sweep_held_segments();
    drop(blocks);
    let leased = |pool: &AllocationPool| pool.usage().leased;
    assert_eq!(
        (leased(&pool), one.with_pool(|p| leased(p)), two.with_pool(|p| leased(p))),
        (0, 0, 0)
    );
}

/// Reads and peeks a stream to its end, with random pauses, and returns all bytes. Adds the number
/// of bytes released so far to `consumed`.
fn read_to_end(mut last: Input, mut random: Random, consumed: &AtomicUsize) -> Vec<u8> {
    let (mut all, mut out) = (Vec::new(), vec![0; 2000]);
    loop {
        if random.below(8) == 0 {
            std::thread::yield_now();
        }
        let length = random.within(150..700);
        let count = match random.below(3) {
            0 => last.peek().unwrap().map_or(0, |block| {
                all.extend_from_slice(block);
                block.len()
            }),
            _ => 0,
        };
        let count = match count {
            0 => {
                let count = last.read(&mut out[..length]).unwrap();
                all.extend_from_slice(&out[..count]);
                if count == 0 {
                    return all;
                }
                count
            }
            peeked => {
                last.take(peeked);
                peeked
            }
        };
        last.release_consumed();
        consumed.fetch_add(count, Ordering::Release);
    }
}

/// Splices every kind of source into every kind of destination.
#[test]
fn e6_every_source_splices_into_every_destination() {
    let place = SpliceFixture::new(Space::new());
    let bytes = Random::with_replayable_seed().bytes(50_000);
    let frozen = place.share_frozen_data(40, &bytes);
    let file = frozen.aggregate().unwrap();
    for (number, (from_bytes, to_bytes)) in
        [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate()
    {
        let number = 100 + 50 * number as u32;
        let direct = |id| {
            let config = stream::Config::new(id).capacity(1 << 20);
            let (output, mut offers) = stream::stream(&config).unwrap();
            (output, ByteReader::new(offers.remove(0).open().unwrap()))
        };
        let (mut from, mut read): (Box<dyn StreamWriter>, Box<dyn StreamReader>) = if from_bytes {
            let (output, input) = direct(dbuf_id(number));
            (Box::new(output), Box::new(input))
        } else {
            let (output, input, _) = place.open_stream(number);
            (Box::new(output), Box::new(input))
        };
        let (mut to, mut out): (Box<dyn StreamWriter>, Box<dyn StreamReader>) = if to_bytes {
            let (output, input) = direct(dbuf_id(number + 10));
            (Box::new(output), Box::new(input))
        } else {
            let (output, input, _) = place.open_stream(number + 20);
            (Box::new(output), Box::new(input))
        };
        // File to ring, as a pointer into a ring of pointers.
        let mut held = AggregateBlockReader::new(&file, 1000);
        let moved = splice_all(&mut held, &mut *from).unwrap();
        let by_pointer = if from_bytes { 0 } else { bytes.len() };
        assert_eq!((moved.bytes, moved.by_pointer), (bytes.len(), by_pointer));
        drop(from);
        // Ring to ring.
        let moved = splice_all(&mut *read, &mut *to).unwrap();
        let by_pointer = if from_bytes || to_bytes { 0 } else { bytes.len() };
        assert_eq!((moved.bytes, moved.by_pointer), (bytes.len(), by_pointer));
        drop(to);
        let mut all = Vec::new();
        let mut room = [0; 1500];
        loop {
            match out.read(&mut room).unwrap() {
                0 => break,
                count => all.extend_from_slice(&room[..count]),
            }
        }
        assert!(all == bytes, "{from_bytes} {to_bytes}");
    }
}

/// A reader that reports that peeked bytes would have to be copied
/// ([`StreamReader::copied_read_max`]).
#[derive(Debug)]
struct CopyingReader(ByteReader);

impl StreamReader for CopyingReader {
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.0.try_read(out)
    }

    fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        self.0.peek()
    }

    fn copied_read_max(&mut self) -> Result<usize, Fault> {
        Ok(self.0.peek()?.map_or(0, <[u8]>::len))
    }

    fn take(&mut self, count: usize) {
        self.0.take(count);
    }

    fn wait(&mut self, limit: Option<Duration>) -> Result<WaitResult, Fault> {
        self.0.wait(limit)
    }
}

/// A block for which the destination has no room is counted as dropped once, both in the splice
/// result and by the destination.
#[test]
fn dropped_block_of_a_copying_source_is_counted_once() {
    let config = stream::Config::new(dbuf_id(7)).capacity(1 << 16);
    let (mut output, mut offers) = stream::stream(&config).unwrap();
    let mut from = CopyingReader(ByteReader::new(offers.remove(0).open().unwrap()));
    let config = stream::Config::new(dbuf_id(8)).capacity(4096).policy(OverflowPolicy::DropNew);
    let (mut to, mut offers) = stream::stream(&config).unwrap();
    let _unread = offers.remove(0).open().unwrap();
    for number in 0..10 {
        assert!(output.write(&[number; 1000]).unwrap());
    }
    drop(output);
    let moved = splice_all(&mut from, &mut to).unwrap();
    let counts = to.counts();
    assert_eq!(moved.bytes, 10_000);
    assert!(moved.dropped > 0);
    assert_eq!(counts.dropped_bytes, moved.dropped as u64, "{counts:?}");
    assert_eq!(counts.bytes + counts.dropped_bytes, 10_000, "{counts:?}");
}

/// Splices of random lengths move files as runs of adjacent blocks. The reader receives each byte
/// once, in blocks that neither a run nor a full ring has changed.
#[test]
fn e2_runs_of_blocks_arrive_like_single_blocks() {
    let mut random = Random::with_replayable_seed();
    for trial in 0..40 {
        let place = SpliceFixture::new(Space::new());
        let (mut to, mut read, _) = place.open_stream(50);
        let bytes = random.bytes(random.clone().within(1..30_000));
        let frozen = place.share_frozen_data(40, &bytes);
        let block = random.within(1..3000);
        let file = frozen.aggregate().unwrap();
        let mut lent = AggregateBlockReader::new(&file, block);
        let mut owned = FrozenReader::new(&frozen, block).unwrap();
        let from: &mut dyn StreamReader = if trial % 2 == 0 { &mut lent } else { &mut owned };
        let (mut lengths, mut all) = (Vec::new(), Vec::new());
        loop {
            // The ring has 256 entries, and one call must not fill it: no other thread reads.
            let max = random.within(1..200 * block);
            let moved = splice(from, &mut to, max).unwrap();
            assert_eq!((moved.by_pointer, moved.dropped), (moved.bytes, 0));
            to.flush();
            while let Some(found) = read.peek().unwrap().filter(|found| !found.is_empty()) {
                let count = found.len();
                all.extend_from_slice(found);
                lengths.push(count);
                read.take(count);
            }
            read.release_consumed();
            if moved.bytes == 0 {
                break;
            }
        }
        assert!(all == bytes, "block {block}");
        assert!(lengths.iter().all(|length| *length <= block), "{lengths:?} of {block}");
        assert_eq!(to.splice_counts().copied_blocks, 0);
    }
}
