//! Tests of races between a reader's check for input and the end of its writer, for the readers of
//! this crate. An event of `buffer::late` reproduces each race.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use crate::aggregate::AllocationPool;
use crate::aggregate::owner::PoolOwner;
use crate::aggregate::pipe::pipe;
use crate::aggregate::server::GrantServer;
use crate::indirect::{self, Backing, indirect_stream};
use crate::interface::StreamReader;
use crate::interface::StreamWriter as _;
use crate::merge::{MergeOrder, MergedRead, MergedReader, TimestampMerge};
use crate::mpipe::{mpipe, open_read_end, open_write_end};
use crate::splice::splice_all;
use crate::view::Space;
use abi::DbufId;
use abi::access::{AccessList, Credentials};
use buffer::dbuf::fixed_size;
use buffer::late_event::LateEvent;
use buffer::stream::{self, Config};
use buffer::{Fault, OverflowPolicy, pool};
use std::time::Duration;
use sys::process::effective_ids;

const LAST_BLOCK: &[u8] = b"published just before the exit";
const POLICIES: [OverflowPolicy; 3] =
    [OverflowPolicy::Block, OverflowPolicy::DropNew, OverflowPolicy::Overwrite];

fn dbuf_id(number: u32) -> DbufId {
    DbufId::new(number).unwrap()
}

/// Way in which a writer ends in a test: it closes its stream or is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WriterExit {
    Closed,
    Killed,
}

const WRITER_EXITS: [WriterExit; 2] = [WriterExit::Killed, WriterExit::Closed];

impl WriterExit {
    /// Returns the expected result of a read after the last block: no bytes, or a fault.
    const fn expected_end(self) -> Result<Vec<u8>, Fault> {
        match self {
            Self::Closed => Ok(Vec::new()),
            Self::Killed => Err(Fault::Abandoned),
        }
    }
}

/// A writer that publishes [`LAST_BLOCK`] and then ends in the given manner.
trait RaceWriter: Send + 'static {
    fn write_and_end(self, how: WriterExit);
}

macro_rules! race_writer {
    ($($output:ty),*) => {$(
        impl RaceWriter for $output {
            fn write_and_end(mut self, how: WriterExit) {
                assert!(self.write(LAST_BLOCK).unwrap());
                self.flush();
                match how {
                    WriterExit::Killed => self.simulate_kill(),
                    WriterExit::Closed => drop(self),
                }
            }
        }
    )*};
}

race_writer!(stream::Output, fixed_size::stream::SlotOutput, indirect::Output);

/// Arms an event that ends the writer in the middle of a reader's call.
fn arm_writer_end(late: &mut LateEvent, output: impl RaceWriter, how: WriterExit) {
    late.arm(move || output.write_and_end(how));
}

/// Calls `call` twice. Checks that the first result is [`LAST_BLOCK`], and that the second result
/// is the end that matches `how`.
fn check_block_and_end<I>(
    what: &str,
    how: WriterExit,
    input: &mut I,
    call: fn(&mut I) -> Result<Vec<u8>, Fault>,
) {
    assert_eq!(call(input).as_deref(), Ok(LAST_BLOCK), "{what}, and it {how:?}");
    assert_eq!(call(input), how.expected_end(), "{what}, and it {how:?}");
}

/// Repeats a read, at most 10 times, until it returns a block, the end or a fault. Panics if it
/// never does.
fn retry_read<I>(
    input: &mut I,
    attempt: fn(&mut I, &mut [u8]) -> Result<Option<usize>, Fault>,
) -> Result<Vec<u8>, Fault> {
    let mut out = vec![0; 100];
    for _ in 0..10 {
        if let Some(count) = attempt(input, &mut out)? {
            out.truncate(count);
            return Ok(out);
        }
    }
    panic!("nothing, again and again");
}

type ReadCall<I> = (&'static str, fn(&mut I) -> Result<Vec<u8>, Fault>);

/// Creates an indirect stream with one reader, in a space that can map the stream's memory.
fn pointer_stream(policy: OverflowPolicy) -> (indirect::Output, indirect::Input, GrantServer) {
    let server = GrantServer::start(PoolOwner::new(8)).unwrap();
    let shape = pool::PoolConfig { segment: 4096, segments: 4 };
    let pool =
        AllocationPool::new(dbuf_id(2), shape, AccessList::private(effective_ids())).unwrap();
    server.with_owner(|owner| owner.share(&pool)).unwrap();
    let config = indirect::Config { entries: 16, policy, ..indirect::Config::new(dbuf_id(1)) };
    let (output, mut offers) = indirect_stream(&config, Backing::new(pool)).unwrap();
    let space = Space::new();
    space.add_owner(server.add_client(Credentials::from(effective_ids())).unwrap().1);
    (output, indirect::Input::open(offers.remove(0), &space).unwrap(), server)
}

#[test]
fn indirect_stream_loses_no_published_block() {
    let calls: [ReadCall<indirect::Input>; 2] = [
        ("try_read", |input| retry_read(input, |input, out| input.try_read(out))),
        ("peek", |input| {
            retry_read(input, |input, out| {
                let Some(block) = input.peek()? else { return Ok(None) };
                let length = block.len();
                out[..length].copy_from_slice(block);
                input.take(length);
                Ok(Some(length))
            })
        }),
    ];
    for (name, call) in calls {
        for (policy, how) in
            POLICIES.into_iter().flat_map(|policy| WRITER_EXITS.map(|how| (policy, how)))
        {
            let (output, mut input, _server) = pointer_stream(policy);
            arm_writer_end(&mut input.late, output, how);
            check_block_and_end(&format!("{name} of pointers, {policy:?}"), how, &mut input, call);
            assert_eq!(input.writer_counts().resident_blocks(&input.counts()), Some(0));
        }
    }
}

/// Expects a splice to forward a block that was published before the writer died. A splice neither
/// maps nor reads the block, so it has its own check for the end of the stream.
#[test]
fn published_blocks_are_spliced_before_writer_death() {
    for how in WRITER_EXITS {
        let (output, mut input, _server) = pointer_stream(OverflowPolicy::Block);
        let (mut to, mut through, _behind) = pointer_stream(OverflowPolicy::Block);
        arm_writer_end(&mut input.late, output, how);
        let moved = splice_all(&mut input, &mut to);
        assert_eq!(moved.map(|_| Vec::new()), how.expected_end());
        to.flush();
        assert_eq!(to.counts().bytes, LAST_BLOCK.len() as u64, "{how:?}");
        drop(to);
        assert_eq!(StreamReader::wait(&mut through, None), Ok(stream::WaitResult::Ready));
        assert_eq!(through.writer_counts().blocks, 1);
    }
}

#[test]
fn merged_producer_loses_no_published_block() {
    for how in WRITER_EXITS {
        let orders: [fn() -> MergeOrder; 2] = [
            || MergeOrder::Fair(1),
            || MergeOrder::Stamped(TimestampMerge::new(1, Duration::from_millis(1), |_| 0)),
        ];
        for order in orders {
            let mut merged = MergedReader::new(order());
            let config = Config::new(dbuf_id(1)).capacity(4096);
            let (output, mut offers) = stream::stream(&config).unwrap();
            let mut input = offers.remove(0).open().unwrap();
            arm_writer_end(&mut input.late_event, output, how);
            let first = merged.add_producer(input);
            let shape = fixed_size::SlotConfig {
                slot: 64,
                slots: 16,
                ..fixed_size::SlotConfig::new(dbuf_id(2))
            };
            let (output, mut offers) = fixed_size::stream::stream(&shape, 1).unwrap();
            let mut input = offers.remove(0).open().unwrap();
            arm_writer_end(&mut input.late_event, output, how);
            let second = merged.add_producer(input);
            let (mut out, mut from) = ([0; 100], Vec::new());
            while let MergedRead::Block { from: who, length } = merged.read(&mut out).unwrap() {
                assert_eq!(&out[..length], LAST_BLOCK);
                from.push(who);
            }
            from.sort();
            assert_eq!(from, [first, second], "{how:?}");
            for _ in 0..2 {
                let gone = merged.next_departed_producer().unwrap();
                assert_eq!(gone.fault, how.expected_end().err());
                assert_eq!(gone.put.resident_blocks(&gone.taken), Some(0));
            }
        }
    }
}

#[test]
fn multiway_pipe_loses_no_published_block() {
    for how in WRITER_EXITS {
        let mut ends = mpipe(3, &Config::new(dbuf_id(1)).capacity(4096)).unwrap();
        let (output, _) = open_write_end(ends.remove(0)).unwrap();
        let mut input = open_read_end(ends.remove(0)).unwrap().unwrap();
        arm_writer_end(&mut input.late_event, output, how);
        // Also checks an end that is opened after the writer has ended.
        for mut input in [input, open_read_end(ends.remove(0)).unwrap().unwrap()] {
            check_block_and_end("an end of a pipe", how, &mut input, |input| {
                let mut out = vec![0; 100];
                input.read(&mut out).map(|count| out[..count].to_vec())
            });
        }
    }
}

#[test]
fn aggregate_pipe_loses_no_sent_aggregate() {
    for how in WRITER_EXITS {
        let shape = pool::PoolConfig { segment: 4096, segments: 4 };
        let mut pool =
            AllocationPool::new(dbuf_id(1), shape, AccessList::private(effective_ids())).unwrap();
        let mut creator = PoolOwner::new(4);
        creator.share(&pool).unwrap();
        let server = GrantServer::start(creator).unwrap();
        let (mut sender, offer) =
            pipe(&server, dbuf_id(2), Credentials::from(effective_ids())).unwrap();
        let mut receiver = offer.open().unwrap();
        let sent = pool.copy(LAST_BLOCK).unwrap();
        receiver.late_event().arm(move || {
            sender.send(&server, &sent).unwrap();
            match how {
                WriterExit::Killed => sender.simulate_kill(),
                WriterExit::Closed => drop(sender),
            }
            // The owner has exited as well, so unmapped memory can no longer be mapped.
            drop(server);
        });
        let received = receiver.receive().unwrap().unwrap();
        assert_eq!(received.len(), LAST_BLOCK.len());
        let _gone = receiver.release(received);
        let end = receiver.receive().map(|none| {
            assert!(none.is_none());
            Vec::new()
        });
        assert_eq!(end, how.expected_end());
    }
}
