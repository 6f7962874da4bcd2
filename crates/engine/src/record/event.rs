//! The turns of a space, as a record has them: in bytes, and out of them.

use super::form::{Found, Local, Put, Take, local};
use filter::Time;

/// One turn of a space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A source gave so many blocks, which follow.
    Pull {
        /// The node of the space.
        node: usize,
        /// The path's time.
        now: Time,
        /// How many blocks follow.
        count: usize,
        /// Along which arc they went, where the source knew.
        edge: Option<usize>,
        /// Why the source could not go on.
        failure: Option<String>,
    },
    /// So many blocks were taken off a ring.
    Import {
        /// The node behind the ring.
        node: usize,
        /// The path's time.
        now: Time,
        /// How many.
        count: usize,
    },
    /// Filters were called because their time had come.
    Tick {
        /// The path's time.
        now: Time,
    },
    /// Of those that wanted it, so many blocks were taken (`-c`).
    Claim {
        /// How many.
        count: u32,
    },
    /// Nothing came any more, and what was held left.
    Finish {
        /// The path's time.
        now: Time,
        /// Why the space ended early.
        failure: Option<String>,
    },
    /// The space stood still here for a change of the path, of this number. Up to
    /// [`Event::Changed`] the old graph settles its accounts.
    Change {
        /// The number.
        number: u64,
    },
    /// What goes let out what it held, and ended.
    Retire {
        /// The path's time.
        now: Time,
        /// Why the space is about to end instead.
        failure: Option<String>,
    },
    /// From here on nodes are those of the new graph.
    Changed,
    /// What a source had seen in all, by place where it was lost.
    Seen {
        /// The node of the plan.
        planned: usize,
        /// Blocks and bytes that there were, where that is known.
        seen: Option<(u64, u64)>,
        /// What was lost, by place.
        dropped: Vec<(String, Option<u64>)>,
    },
    /// What a program had been given in all, and what it did not take.
    Heard {
        /// The node of the plan.
        planned: usize,
        /// Blocks and bytes that it took.
        written: (u64, u64),
        /// What it did not, by reason.
        dropped: Vec<(String, u64, u64)>,
    },
}

/// Appends an event; the blocks that came in it follow.
pub(super) fn put(out: &mut Vec<u8>, event: &Event) {
    let word = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    local(out, Local::Event, |out| match event {
        Event::Pull { node, now, count, edge, failure } => {
            out.word(1);
            out.word(word(*node));
            out.long(*now);
            out.word(word(*count));
            out.word(edge.map_or(u32::MAX, word));
            told(out, failure.as_deref());
        }
        Event::Import { node, now, count } => {
            out.word(2);
            out.word(word(*node));
            out.long(*now);
            out.word(word(*count));
        }
        Event::Tick { now } => {
            out.word(3);
            out.long(*now);
        }
        Event::Claim { count } => {
            out.word(4);
            out.word(*count);
        }
        Event::Finish { now, failure } => {
            out.word(5);
            out.long(*now);
            told(out, failure.as_deref());
        }
        Event::Change { number } => {
            out.word(8);
            out.long(*number);
        }
        Event::Retire { now, failure } => {
            out.word(9);
            out.long(*now);
            told(out, failure.as_deref());
        }
        Event::Changed => out.word(10),
        Event::Seen { planned, seen, dropped } => {
            out.word(6);
            out.word(word(*planned));
            let (blocks, bytes) = seen.unwrap_or((u64::MAX, u64::MAX));
            out.long(blocks);
            out.long(bytes);
            out.word(word(dropped.len()));
            for (place, count) in dropped {
                out.text(place);
                out.long(count.unwrap_or(u64::MAX));
            }
        }
        Event::Heard { planned, written, dropped } => {
            out.word(7);
            out.word(word(*planned));
            out.long(written.0);
            out.long(written.1);
            out.word(word(dropped.len()));
            for (why, blocks, bytes) in dropped {
                out.text(why);
                out.long(*blocks);
                out.long(*bytes);
            }
        }
    });
}

fn told(out: &mut Vec<u8>, text: Option<&str>) {
    out.word(u32::from(text.is_some()));
    out.text(text.unwrap_or_default());
}

impl Found<'_> {
    /// The event that it is.
    pub(super) fn event(&self) -> Option<Event> {
        let (Local::Event, mut take) = self.local()? else { return None };
        let said = |take: &mut Take<'_>| -> Option<Option<String>> {
            let there = take.word()? != 0;
            let text = take.text()?;
            Some(there.then(|| text.to_owned()))
        };
        Some(match take.word()? {
            1 => Event::Pull {
                node: take.size()?,
                now: take.long()?,
                count: take.size()?,
                edge: take.word().map(|edge| (edge != u32::MAX).then_some(edge as usize))?,
                failure: said(&mut take)?,
            },
            2 => Event::Import { node: take.size()?, now: take.long()?, count: take.size()? },
            3 => Event::Tick { now: take.long()? },
            4 => Event::Claim { count: take.word()? },
            5 => Event::Finish { now: take.long()?, failure: said(&mut take)? },
            6 => {
                let planned = take.size()?;
                let (blocks, bytes) = (take.long()?, take.long()?);
                let mut dropped = Vec::new();
                for _ in 0..take.word()? {
                    let (place, count) = (take.text()?.to_owned(), take.long()?);
                    dropped.push((place, (count != u64::MAX).then_some(count)));
                }
                let seen = (blocks != u64::MAX).then_some((blocks, bytes));
                Event::Seen { planned, seen, dropped }
            }
            7 => {
                let (planned, written) = (take.size()?, (take.long()?, take.long()?));
                let mut dropped = Vec::new();
                for _ in 0..take.word()? {
                    dropped.push((take.text()?.to_owned(), take.long()?, take.long()?));
                }
                Event::Heard { planned, written, dropped }
            }
            8 => Event::Change { number: take.long()? },
            9 => Event::Retire { now: take.long()?, failure: said(&mut take)? },
            10 => Event::Changed,
            _ => return None,
        })
    }
}
