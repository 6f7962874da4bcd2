//! Filters of these tests, and what comes out of a line.
//!
//! `keep id=N` stands where the test looks, in whatever thread that is; what it saw is taken when
//! the line has ended.

use crate::line::Line;
use engine::build::Settings;
use engine::run::Outcome;
use filter::prelude::*;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Filters that a line may use besides the catalog's.
pub(crate) const OURS: &[&Description] = &[&KEEP, &STUMBLE, &TIMES, &FAILS];

const fn number(name: &'static str, high: u64) -> Parameter {
    Parameter::needed(name, Type::Number { low: 0, high }, "a number")
}

const KEEP: Description = Description {
    name: "keep",
    summary: "keep what goes by for the test",
    state: StateFacts { keeps: Keeps::Private, ..StateFacts::NONE },
    parameters: &[number("id", u64::MAX)],
    user: Some(|arguments| Ok(Filter::lanes(Keep(arguments.number("id").unwrap_or(0))))),
    ..Description::EMPTY
};

/// Takes a while, sometimes: another thread gets its turn.
const STUMBLE: Description = Description {
    name: "stumble",
    summary: "let others go first, by chance",
    parameters: &[number("seed", u64::MAX)],
    user: Some(|arguments| {
        let seed = arguments.number("seed").unwrap_or(1) ^ u64::from(arguments.copy().0) << 40;
        Ok(Filter::lanes(Stumble(testkit::Random::new(seed))))
    }),
    ..Description::EMPTY
};

/// Makes several blocks of one, none of another.
const TIMES: Description = Description {
    name: "times",
    summary: "give each block as often as its number says",
    kind: Kind::Reordering,
    parameters: &[number("most", 255)],
    user: Some(|arguments| Ok(Filter::stream(Times(arguments.number("most").unwrap_or(1))))),
    ..Description::EMPTY
};

const FAILS: Description = Description {
    name: "fails",
    summary: "has a bug that a certain block finds",
    user: Some(|_| Ok(Filter::lanes(Fails))),
    ..Description::EMPTY
};

static KEPT: Mutex<Option<HashMap<u64, Vec<Seen>>>> = Mutex::new(None);

/// One block that came by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) class: u32,
    pub(crate) session: u32,
    pub(crate) flags: u16,
    pub(crate) time: u64,
    pub(crate) length: u32,
    pub(crate) bytes: Vec<u8>,
    /// The record of a description.
    pub(crate) record: Vec<u8>,
}

struct Keep(u64);

impl Lanes for Keep {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        let mut kept = KEPT.lock().expect("nobody panics here");
        let kept = kept.get_or_insert_default().entry(self.0).or_default();
        kept.extend(batch.blocks().map(|(_, block)| Seen {
            class: block.pointer.class.0,
            session: block.context.session,
            flags: block.context.flags.0,
            time: block.context.time,
            length: block.length(),
            bytes: block.bytes().to_vec(),
            record: if block.marks.is_description() { block.frame.to_vec() } else { Vec::new() },
        }));
    }
}

/// The low byte of the number of a generated block, or the first byte of another one.
fn low(block: &Block<'_>) -> u8 {
    let bytes = block.bytes();
    bytes.get(49).or_else(|| bytes.first()).copied().unwrap_or(1)
}

struct Stumble(testkit::Random);

impl Lanes for Stumble {
    fn process<'a>(&mut self, _: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        for _ in 0..self.0.below(4) {
            std::thread::yield_now();
        }
    }
}

struct Times(u64);

impl Stream for Times {
    fn block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        let last = u64::from(low(&block));
        match last % (self.0 + 1) {
            0 => cx.consume(&block),
            times => {
                cx.pass(block);
                for number in 1..times {
                    let bytes = [last as u8, number as u8];
                    cx.append(2, Class(7), block.context, |room| {
                        room.copy_from_slice(&bytes);
                        2
                    });
                }
            }
        }
    }
}

struct Fails;

impl Lanes for Fails {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        for (_, block) in batch.blocks() {
            assert!(low(&block) != 77, "seventy-seven is too much");
        }
    }
}

/// Runs a line that contains `KEEP` with this many replicas; returns what it kept.
pub(crate) fn run(text: &str, copies: usize) -> (Vec<Seen>, Outcome) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let text = text.replace("KEEP", &format!("keep id={id}"));
    let text = format!("--parallel={copies} {text}");
    let line = Line::with(&text, OURS);
    assert_eq!(line.copies(), if copies > 1 { copies } else { 0 }, "{text}");
    let outcome = line.threads(Settings::default());
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    let kept = KEPT.lock().expect("nobody panics here").get_or_insert_default().remove(&id);
    (kept.unwrap_or_default(), outcome)
}

/// The same of a line that is to end well.
pub(crate) fn kept(text: &str, copies: usize) -> Vec<Seen> {
    let (seen, outcome) = run(text, copies);
    assert!(outcome.failures.is_empty(), "{text}, {copies} copies: {:?}", outcome.failures);
    seen
}
