//! The exam of `buffer::late`, for the readers of this crate.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use crate::aggregate::AllocationPool;
use crate::aggregate::owner::Creator;
use crate::aggregate::pipe::pipe;
use crate::aggregate::server::GrantServer;
use crate::indirect::{self, Backing, indirect};
use crate::interface::StreamReader;
use crate::merge::{Merged, Next, Order, Stamped};
use crate::mpipe::{mpipe, open_read, open_write};
use crate::splice::splice_all;
use crate::view::Space;
use abi::DbufId;
use abi::access::{AccessList, Credentials};
use buffer::dbuf::fixed;
use buffer::late::LateEvent;
use buffer::stream::{self, Config};
use buffer::{Fault, Policy, pool};
use std::time::Duration;
use sys::process::identity;

const LAST: &[u8] = b"shown, and then there was nobody";
const POLICIES: [Policy; 3] = [Policy::Block, Policy::DropNew, Policy::Overwrite];

fn id(number: u32) -> DbufId {
    DbufId::new(number).unwrap()
}

/// A writer's manner of going.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Ends,
    IsKilled,
}

const BOTH: [How; 2] = [How::IsKilled, How::Ends];

impl How {
    /// Returns the end that a reader sees after all bytes: no bytes, or a fault.
    const fn end(self) -> Result<Vec<u8>, Fault> {
        match self {
            Self::Ends => Ok(Vec::new()),
            Self::IsKilled => Err(Fault::Abandoned),
        }
    }
}

/// A writer that shows a block and goes.
trait Goes: Send + 'static {
    fn goes(self, how: How);
}

macro_rules! goes {
    ($($output:ty),*) => {$(
        impl Goes for $output {
            fn goes(mut self, how: How) {
                assert!(self.write(LAST).unwrap());
                self.flush();
                match how {
                    How::IsKilled => self.die(),
                    How::Ends => drop(self),
                }
            }
        }
    )*};
}

goes!(stream::Output, fixed::stream::Output, indirect::Output);

/// Lets a writer go in the middle of a call.
fn race(late: &mut LateEvent, output: impl Goes, how: How) {
    late.arm(move || output.goes(how));
}

/// Reads a block and what comes after it, by this call.
fn exam<I>(what: &str, how: How, input: &mut I, call: fn(&mut I) -> Result<Vec<u8>, Fault>) {
    assert_eq!(call(input).as_deref(), Ok(LAST), "{what}, and it {how:?}");
    assert_eq!(call(input), how.end(), "{what}, and it {how:?}");
}

/// Until there is something.
fn patiently<I>(
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

type Call<I> = (&'static str, fn(&mut I) -> Result<Vec<u8>, Fault>);

/// An indirect stream with one reader, in a space that reads what it names.
fn pointers(policy: Policy) -> (indirect::Output, indirect::Input, GrantServer) {
    let server = GrantServer::open(Creator::new(8)).unwrap();
    let shape = pool::Config { segment: 4096, segments: 4 };
    let pool = AllocationPool::new(id(2), shape, AccessList::private(identity())).unwrap();
    server.owner(|owner| owner.share(&pool)).unwrap();
    let config = indirect::Config { entries: 16, policy, ..indirect::Config::new(id(1)) };
    let (output, mut offers) = indirect(&config, Backing::new(pool)).unwrap();
    let space = Space::new();
    space.introduce(server.introduce(Credentials::from(identity())).unwrap().1);
    (output, indirect::Input::open(offers.remove(0), &space).unwrap(), server)
}

#[test]
fn of_an_indirect_stream_nothing_that_was_shown_is_lost() {
    let calls: [Call<indirect::Input>; 2] = [
        ("try_read", |input| patiently(input, |input, out| input.try_read(out))),
        ("peek", |input| {
            patiently(input, |input, out| {
                let Some(block) = input.peek()? else { return Ok(None) };
                let length = block.len();
                out[..length].copy_from_slice(block);
                input.take(length);
                Ok(Some(length))
            })
        }),
    ];
    for (name, call) in calls {
        for (policy, how) in POLICIES.into_iter().flat_map(|policy| BOTH.map(|how| (policy, how))) {
            let (output, mut input, _desk) = pointers(policy);
            race(&mut input.late, output, how);
            exam(&format!("{name} of pointers, {policy:?}"), how, &mut input, call);
            assert_eq!(input.written().resident(&input.count()), Some(0));
        }
    }
}

/// A splice neither maps nor reads, and asks in its own way for the end.
#[test]
fn what_was_shown_is_passed_on_before_its_writer_is_missed() {
    for how in BOTH {
        let (output, mut input, _desk) = pointers(Policy::Block);
        let (mut to, mut through, _behind) = pointers(Policy::Block);
        race(&mut input.late, output, how);
        let moved = splice_all(&mut input, &mut to);
        assert_eq!(moved.map(|_| Vec::new()), how.end());
        to.flush();
        assert_eq!(to.count().bytes, LAST.len() as u64, "{how:?}");
        drop(to);
        assert_eq!(StreamReader::wait(&mut through, None), Ok(stream::Ready::Something));
        assert_eq!(through.written().blocks, 1);
    }
}

#[test]
fn of_a_producer_that_is_merged_nothing_that_was_shown_is_lost() {
    for how in BOTH {
        let orders: [fn() -> Order; 2] = [
            || Order::Fair(1),
            || Order::Stamped(Stamped::new(1, Duration::from_millis(1), |_| 0)),
        ];
        for order in orders {
            let mut merged = Merged::new(order());
            let config = Config::new(id(1)).capacity(4096);
            let (output, mut offers) = stream::stream(&config).unwrap();
            let mut input = offers.remove(0).open().unwrap();
            race(&mut input.late, output, how);
            let first = merged.join(input);
            let shape = fixed::Config { slot: 64, slots: 16, ..fixed::Config::new(id(2)) };
            let (output, mut offers) = fixed::stream::stream(&shape, 1).unwrap();
            let mut input = offers.remove(0).open().unwrap();
            race(&mut input.late, output, how);
            let second = merged.join(input);
            let (mut out, mut from) = ([0; 100], Vec::new());
            while let Next::Block { from: who, length } = merged.read(&mut out).unwrap() {
                assert_eq!(&out[..length], LAST);
                from.push(who);
            }
            from.sort();
            assert_eq!(from, [first, second], "{how:?}");
            for _ in 0..2 {
                let gone = merged.departed().unwrap();
                assert_eq!(gone.fault, how.end().err());
                assert_eq!(gone.put.resident(&gone.taken), Some(0));
            }
        }
    }
}

#[test]
fn of_a_multiway_pipe_nothing_that_was_shown_is_lost() {
    for how in BOTH {
        let mut ends = mpipe(3, &Config::new(id(1)).capacity(4096)).unwrap();
        let (output, _) = open_write(ends.remove(0)).unwrap();
        let mut input = open_read(ends.remove(0)).unwrap().unwrap();
        race(&mut input.late, output, how);
        // And by an end that is opened when the writer is gone already.
        for mut input in [input, open_read(ends.remove(0)).unwrap().unwrap()] {
            exam("an end of a pipe", how, &mut input, |input| {
                let mut out = vec![0; 100];
                input.read(&mut out).map(|count| out[..count].to_vec())
            });
        }
    }
}

#[test]
fn of_a_pipe_of_aggregates_nothing_that_was_sent_is_lost() {
    for how in BOTH {
        let shape = pool::Config { segment: 4096, segments: 4 };
        let mut pool = AllocationPool::new(id(1), shape, AccessList::private(identity())).unwrap();
        let mut creator = Creator::new(4);
        creator.share(&pool).unwrap();
        let server = GrantServer::open(creator).unwrap();
        let (mut sender, offer) = pipe(&server, id(2), Credentials::from(identity())).unwrap();
        let mut receiver = offer.open().unwrap();
        let sent = pool.copy(LAST).unwrap();
        receiver.late().arm(move || {
            sender.send(&server, &sent).unwrap();
            match how {
                How::IsKilled => sender.die(),
                How::Ends => drop(sender),
            }
            // Its owner is gone as well, and what was not mapped cannot be any more.
            drop(server);
        });
        let received = receiver.receive().unwrap().unwrap();
        assert_eq!(received.len(), LAST.len());
        let _gone = receiver.give_back(received);
        let end = receiver.receive().map(|none| {
            assert!(none.is_none());
            Vec::new()
        });
        assert_eq!(end, how.end());
    }
}
