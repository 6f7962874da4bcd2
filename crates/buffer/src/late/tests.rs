//! The exam.

use super::LateEvent;
use crate::dbuf::fixed;
use crate::stream::{self, Config, Piece};
use crate::{Fault, Policy};
use abi::DbufId;

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

goes!(stream::Output, fixed::stream::Output);

impl LateEvent {
    fn goes(&mut self, output: impl Goes, how: How) {
        self.arm(move || output.goes(how));
    }
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

/// As `Option` of a count, where no bytes are the end.
const fn counted(piece: Piece) -> Option<usize> {
    match piece {
        Piece::Block(length) => Some(length),
        Piece::End => Some(0),
        Piece::Nothing => None,
    }
}

type Call<I> = (&'static str, fn(&mut I) -> Result<Vec<u8>, Fault>);

#[test]
fn of_a_stream_nothing_that_was_shown_is_lost() {
    let calls: [Call<stream::Input>; 3] = [
        ("read", |input| {
            let mut out = vec![0; 100];
            input.read(&mut out).map(|count| out[..count].to_vec())
        }),
        ("try_read", |input| patiently(input, |input, out| input.try_read(out))),
        ("read_block", |input| patiently(input, |input, out| input.read_block(out).map(counted))),
    ];
    for (name, call) in calls {
        for (policy, how) in POLICIES.into_iter().flat_map(|policy| BOTH.map(|how| (policy, how))) {
            let config = Config::new(id(1)).capacity(4096).policy(policy);
            let (output, mut offers) = stream::stream(&config).unwrap();
            let mut input = offers.remove(0).open().unwrap();
            input.late.goes(output, how);
            exam(&format!("{name} of a stream, {policy:?}"), how, &mut input, call);
            assert_eq!(input.written().resident(&input.count()), Some(0));
        }
    }
}

/// The block lies in a segment of which the reader has not heard yet.
#[test]
fn of_a_stream_nothing_is_lost_that_lies_in_the_next_segment() {
    for how in BOTH {
        let (mut output, mut offers) = stream::stream(&Config::new(id(1)).capacity(4096)).unwrap();
        let mut input = offers.remove(0).open().unwrap();
        input.late.arm(move || {
            output.resize(8192).unwrap();
            output.goes(how);
        });
        exam("read of a stream", how, &mut input, |input| {
            patiently(input, |input, out| input.try_read(out))
        });
    }
}

#[test]
fn of_a_stream_of_slots_nothing_that_was_shown_is_lost() {
    for (policy, how) in POLICIES.into_iter().flat_map(|policy| BOTH.map(|how| (policy, how))) {
        let config = fixed::Config { slot: 64, slots: 16, policy, ..fixed::Config::new(id(1)) };
        let (output, mut offers) = fixed::stream::stream(&config, 1).unwrap();
        let mut input = offers.remove(0).open().unwrap();
        input.late.goes(output, how);
        exam(&format!("slots, {policy:?}"), how, &mut input, |input| {
            patiently(input, |input, out| input.try_read(out).map(counted))
        });
    }
}
