//! Tests that splicing is equivalent to copying: blocks passed as pointers, in pieces, and over
//! several streams arrive like copies, and all memory is released in the end.

use super::*;
use crate::aggregate::owner::Creator;
use crate::aggregate::server::GrantServer;
use crate::aggregate::{Aggregate, AllocationPool, Frozen};
use crate::indirect::{Backing, Config, Input, Output, indirect, sweep};
use crate::interface::{AggregateBlocks, ByteReader, FrozenReader};
use crate::view::Space;
use abi::DbufId;
use abi::access::{AccessList, Credentials};
use buffer::Policy;
use buffer::pool;
use buffer::stream;
use buffer::wait::WaitResult;
use std::collections::VecDeque;
use std::time::Duration;
use sys::process::identity;
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
        let server = GrantServer::open(Creator::new(8)).unwrap();
        space.introduce(server.introduce(Credentials::from(identity())).unwrap().1);
        Self { server, space }
    }

    fn pool(&self, number: u32, segments: usize) -> AllocationPool {
        let config = pool::PoolConfig { segment: SEGMENT_SIZE, segments };
        let pool =
            AllocationPool::new(dbuf_id(number), config, AccessList::private(identity())).unwrap();
        self.server.owner(|owner| owner.share(&pool)).unwrap();
        pool
    }

    fn pair(&self, number: u32) -> (Output, Input, Backing) {
        let backing = Backing::new(self.pool(number + 1, 16));
        let config = Config { entries: 256, every: 1, ..Config::new(dbuf_id(number)) };
        let (output, mut offers) = indirect(&config, backing.clone()).unwrap();
        (output, Input::open(offers.remove(0), &self.space).unwrap(), backing)
    }

    fn frozen(&self, number: u32, bytes: &[u8]) -> Frozen {
        let frozen = Frozen::read(dbuf_id(number), bytes, bytes.len()).unwrap();
        let share =
            |owner: &mut Creator| owner.share_frozen(&frozen, AccessList::private(identity()));
        self.server.owner(share).unwrap();
        frozen
    }
}

/// Random writes, splices, peeks and reads run over two streams in sequence. Pools are recycled in
/// between, so a missing hold would cause wrong data.
///
/// The seed is fixed: with one seed of 25, such as 459302, the second
/// stream must wait for its reader, which is this thread, and the test would never end.
#[test]
fn e2_splices_deliver_the_same_bytes_as_copies() {
    let mut random = Random::new(7919);
    for trusting in [false, true] {
        for _ in 0..20 {
            run_random(&mut random, if trusting { Space::trusting() } else { Space::new() });
        }
    }
}

fn run_random(random: &mut Random, space: Space) {
    let place = SpliceFixture::new(space);
    let (mut first, mut middle, one) = place.pair(10);
    let (mut second, mut last, two) = place.pair(20);
    let mut pool = place.pool(30, 8);
    let text = random.bytes(3 * SEGMENT_SIZE);
    let frozen = place.frozen(40, &text);
    let file = frozen.aggregate().unwrap();
    assert!(first.register_pool(pool.pool(), 32) && first.register_frozen(&frozen, 32));
    assert!(second.follow(&middle) && second.register_frozen(&frozen, 32));
    let (mut queues, mut out) = ([VecDeque::new(), VecDeque::new()], vec![0; 2000]);
    let mut blocks: VecDeque<Aggregate> = VecDeque::new();
    for _ in 0..400 {
        let length = random.within(150..700);
        // A single thread plays all three processes: a blocking call would never return.
        last.release_consumed();
        second.reap().unwrap();
        middle.release_consumed();
        let may_pass = queues[1].len() < 1500;
        let waiting = queues[0].len() + queues[1].len();
        match random.below(9) {
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
                queues[0].extend(bytes);
                // From here on, only entries in flight hold the block.
                if blocks.len() > 1 {
                    blocks.pop_front();
                }
            }
            // To the second stream: as a pointer, from the peeked slice, or as a copy.
            3 if !queues[0].is_empty() && may_pass => {
                let moved = splice(&mut middle, &mut second, length).unwrap();
                assert!(moved.bytes > 0 && moved.bytes == moved.by_pointer, "{moved:?}");
                let bytes: Vec<u8> = queues[0].drain(..moved.bytes).collect();
                queues[1].extend(bytes);
            }
            4 if !queues[0].is_empty() && may_pass => {
                let block = middle.peek().unwrap().unwrap();
                let count = block.len().min(length);
                second.write(&block[..count]).unwrap();
                middle.take(count);
                let bytes: Vec<u8> = queues[0].drain(..count).collect();
                queues[1].extend(bytes);
            }
            5 if !queues[0].is_empty() && may_pass => {
                let count = middle.read(&mut out[..length]).unwrap();
                second.write(&out[..count]).unwrap();
                let bytes: Vec<u8> = queues[0].drain(..count).collect();
                assert_eq!(out[..count], bytes);
                queues[1].extend(bytes);
            }
            // Out of the second stream.
            6 | 7 if !queues[1].is_empty() => {
                let count = last.read(&mut out[..length]).unwrap();
                let bytes: Vec<u8> = queues[1].drain(..count).collect();
                assert_eq!(out[..count], bytes);
            }
            8 if !queues[1].is_empty() => {
                let block = last.peek().unwrap().unwrap();
                let bytes: Vec<u8> = queues[1].drain(..block.len()).collect();
                assert_eq!(block, bytes);
                last.take(bytes.len());
            }
            _ => first.reap().unwrap(),
        }
    }
    drop(first);
    let [in_first, in_second] = queues;
    let left: Vec<u8> = in_second.into_iter().chain(in_first).collect();
    let reading = std::thread::spawn(move || {
        let (mut rest, mut out) = (Vec::new(), [0; 1000]);
        loop {
            match last.read(&mut out).unwrap() {
                0 => break rest,
                count => rest.extend_from_slice(&out[..count]),
            }
        }
    });
    splice_all(&mut middle, &mut second).unwrap();
    drop(second);
    assert!(reading.join().unwrap() == left, "in order, to the last byte");
    sweep();
    middle.release_consumed();
    drop(middle);
    sweep();
    drop(blocks);
    let leased = |pool: &AllocationPool| pool.usage().leased;
    assert_eq!((leased(&pool), one.pool(|p| leased(p)), two.pool(|p| leased(p))), (0, 0, 0));
}

/// Splices every kind of source into every kind of destination.
#[test]
fn e6_every_source_splices_into_every_destination() {
    let place = SpliceFixture::new(Space::new());
    let bytes = Random::replayable().bytes(50_000);
    let frozen = place.frozen(40, &bytes);
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
            let (output, input, _) = place.pair(number);
            (Box::new(output), Box::new(input))
        };
        let (mut to, mut out): (Box<dyn StreamWriter>, Box<dyn StreamReader>) = if to_bytes {
            let (output, input) = direct(dbuf_id(number + 10));
            (Box::new(output), Box::new(input))
        } else {
            let (output, input, _) = place.pair(number + 20);
            (Box::new(output), Box::new(input))
        };
        // File to ring, as a pointer into a ring of pointers.
        let mut held = AggregateBlocks::new(&file, 1000);
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
    let config = stream::Config::new(dbuf_id(8)).capacity(4096).policy(Policy::DropNew);
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

/// Splices of random lengths move files as runs of adjacent blocks. The reader gets each byte once,
/// in blocks that neither a run nor a full ring has changed.
#[test]
fn e2_runs_of_blocks_arrive_like_single_blocks() {
    let mut random = Random::replayable();
    for trial in 0..40 {
        let place = SpliceFixture::new(Space::new());
        let (mut to, mut read, _) = place.pair(50);
        let bytes = random.bytes(random.clone().within(1..30_000));
        let frozen = place.frozen(40, &bytes);
        let block = random.within(1..3000);
        let file = frozen.aggregate().unwrap();
        let mut lent = AggregateBlocks::new(&file, block);
        let mut owned = FrozenReader::new(&frozen, block).unwrap();
        let from: &mut dyn StreamReader = if trial % 2 == 0 { &mut lent } else { &mut owned };
        let (mut lengths, mut all) = (Vec::new(), Vec::new());
        loop {
            // The ring has 256 entries, and one call must not fill it: nobody else reads.
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
        assert_eq!(to.spliced().copied_blocks, 0);
    }
}
