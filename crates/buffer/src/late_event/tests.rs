//! Tests that every kind of reader receives a block that its writer publishes just before exiting.

use super::LateEvent;
use crate::dbuf::fixed_size;
use crate::stream::{self, BlockReadResult, Config};
use crate::{Fault, OverflowPolicy};
use abi::DbufId;

const LAST_BLOCK: &[u8] = b"published just before the exit";
const POLICIES: [OverflowPolicy; 3] =
    [OverflowPolicy::Block, OverflowPolicy::DropNew, OverflowPolicy::Overwrite];

fn dbuf_id(number: u32) -> DbufId {
    DbufId::new(number).unwrap()
}

/// The way a writer exits: it closes the stream, or it is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WriterExit {
    Closed,
    Killed,
}

const WRITER_EXITS: [WriterExit; 2] = [WriterExit::Killed, WriterExit::Closed];

impl WriterExit {
    /// Returns the result that a read after the last block must have: no bytes, or a fault.
    const fn expected_end(self) -> Result<Vec<u8>, Fault> {
        match self {
            Self::Closed => Ok(Vec::new()),
            Self::Killed => Err(Fault::Abandoned),
        }
    }
}

/// A writer under test, which publishes a block and exits.
trait WriteAndExit: Send + 'static {
    fn write_and_exit(self, exit: WriterExit);
}

macro_rules! impl_write_and_exit {
    ($($output:ty),*) => {$(
        impl WriteAndExit for $output {
            fn write_and_exit(mut self, exit: WriterExit) {
                assert!(self.write(LAST_BLOCK).unwrap());
                self.flush();
                match exit {
                    WriterExit::Killed => self.simulate_kill(),
                    WriterExit::Closed => drop(self),
                }
            }
        }
    )*};
}

impl_write_and_exit!(stream::Output, fixed_size::stream::SlotOutput);

impl LateEvent {
    fn write_and_exit(&mut self, output: impl WriteAndExit, exit: WriterExit) {
        self.arm(move || output.write_and_exit(exit));
    }
}

/// Reads twice through `call`. Expects the first read to return a block that the writer publishes
/// during this read, and the second to return the end of the stream that the writer's `exit`
/// causes.
fn check_late_block<I>(
    what: &str,
    exit: WriterExit,
    input: &mut I,
    call: fn(&mut I) -> Result<Vec<u8>, Fault>,
) {
    assert_eq!(call(input).as_deref(), Ok(LAST_BLOCK), "{what}, and it {exit:?}");
    assert_eq!(call(input), exit.expected_end(), "{what}, and it {exit:?}");
}

/// Repeats a read, at most 10 times, until it returns something. Returns the bytes read, no bytes
/// at the end of the stream, or a fault. Panics if every read returns nothing.
fn read_until_ready<I>(
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

/// Returns the length of the block that a read returned. Returns 0 at the end of the stream, and
/// `None` if no block was published.
const fn block_length(piece: BlockReadResult) -> Option<usize> {
    match piece {
        BlockReadResult::Block(length) => Some(length),
        BlockReadResult::End => Some(0),
        BlockReadResult::Nothing => None,
    }
}

type NamedReadCall<I> = (&'static str, fn(&mut I) -> Result<Vec<u8>, Fault>);

#[test]
fn t10_late_block_of_a_stream_is_read() {
    let calls: [NamedReadCall<stream::Input>; 3] = [
        ("read", |input| {
            let mut out = vec![0; 100];
            input.read(&mut out).map(|count| out[..count].to_vec())
        }),
        ("try_read", |input| read_until_ready(input, |input, out| input.try_read(out))),
        ("read_block", |input| {
            read_until_ready(input, |input, out| input.read_block(out).map(block_length))
        }),
    ];
    for (name, call) in calls {
        for (policy, exit) in
            POLICIES.into_iter().flat_map(|policy| WRITER_EXITS.map(|how| (policy, how)))
        {
            let config = Config::new(dbuf_id(1)).capacity(4096).policy(policy);
            let (output, mut offers) = stream::stream(&config).unwrap();
            let mut input = offers.remove(0).open().unwrap();
            input.late_event.write_and_exit(output, exit);
            check_late_block(&format!("{name} of a stream, {policy:?}"), exit, &mut input, call);
            assert_eq!(input.writer_counts().resident_blocks(&input.counts()), Some(0));
        }
    }
}

/// The writer publishes the block in a segment that the reader has not received yet.
#[test]
fn t10_late_block_in_the_next_segment_is_read() {
    for exit in WRITER_EXITS {
        let (mut output, mut offers) =
            stream::stream(&Config::new(dbuf_id(1)).capacity(4096)).unwrap();
        let mut input = offers.remove(0).open().unwrap();
        input.late_event.arm(move || {
            output.resize(8192).unwrap();
            output.write_and_exit(exit);
        });
        check_late_block("read of a stream", exit, &mut input, |input| {
            read_until_ready(input, |input, out| input.try_read(out))
        });
    }
}

#[test]
fn t10_late_block_of_a_slot_stream_is_read() {
    for (policy, exit) in
        POLICIES.into_iter().flat_map(|policy| WRITER_EXITS.map(|how| (policy, how)))
    {
        let config = fixed_size::SlotConfig {
            slot: 64,
            slots: 16,
            policy,
            ..fixed_size::SlotConfig::new(dbuf_id(1))
        };
        let (output, mut offers) = fixed_size::stream::stream(&config, 1).unwrap();
        let mut input = offers.remove(0).open().unwrap();
        input.late_event.write_and_exit(output, exit);
        check_late_block(&format!("slots, {policy:?}"), exit, &mut input, |input| {
            read_until_ready(input, |input, out| input.try_read(out).map(block_length))
        });
    }
}
