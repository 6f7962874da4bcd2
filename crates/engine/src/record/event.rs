//! The events of a space as bytes of a record, and out of them.

use super::form::{Found, Local, Put, Take, local};
use runtime::space::events::SpaceEvent;

/// Appends an event; the blocks that came in it follow.
pub(super) fn put(out: &mut Vec<u8>, event: &SpaceEvent) {
    let word = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    local(out, Local::Event, |out| match event {
        SpaceEvent::Pull { node, now, count, edge, failure } => {
            out.word(1);
            out.word(word(*node));
            out.long(*now);
            out.word(word(*count));
            out.word(edge.map_or(u32::MAX, word));
            told(out, failure.as_deref());
        }
        SpaceEvent::Import { node, now, count } => {
            out.word(2);
            out.word(word(*node));
            out.long(*now);
            out.word(word(*count));
        }
        SpaceEvent::Tick { now } => {
            out.word(3);
            out.long(*now);
        }
        SpaceEvent::Claim { count } => {
            out.word(4);
            out.word(*count);
        }
        SpaceEvent::Finish { now, failure } => {
            out.word(5);
            out.long(*now);
            told(out, failure.as_deref());
        }
        SpaceEvent::Change { number } => {
            out.word(8);
            out.long(*number);
        }
        SpaceEvent::Retire { now, failure } => {
            out.word(9);
            out.long(*now);
            told(out, failure.as_deref());
        }
        SpaceEvent::Changed => out.word(10),
        SpaceEvent::Seen { planned, seen, dropped } => {
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
        SpaceEvent::Heard { planned, written, dropped } => {
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
    pub(super) fn event(&self) -> Option<SpaceEvent> {
        let (Local::Event, mut take) = self.local()? else { return None };
        let said = |take: &mut Take<'_>| -> Option<Option<String>> {
            let there = take.word()? != 0;
            let text = take.text()?;
            Some(there.then(|| text.to_owned()))
        };
        Some(match take.word()? {
            1 => SpaceEvent::Pull {
                node: take.size()?,
                now: take.long()?,
                count: take.size()?,
                edge: take.word().map(|edge| (edge != u32::MAX).then_some(edge as usize))?,
                failure: said(&mut take)?,
            },
            2 => SpaceEvent::Import { node: take.size()?, now: take.long()?, count: take.size()? },
            3 => SpaceEvent::Tick { now: take.long()? },
            4 => SpaceEvent::Claim { count: take.word()? },
            5 => SpaceEvent::Finish { now: take.long()?, failure: said(&mut take)? },
            6 => {
                let planned = take.size()?;
                let (blocks, bytes) = (take.long()?, take.long()?);
                let mut dropped = Vec::new();
                for _ in 0..take.word()? {
                    let (place, count) = (take.text()?.to_owned(), take.long()?);
                    dropped.push((place, (count != u64::MAX).then_some(count)));
                }
                let seen = (blocks != u64::MAX).then_some((blocks, bytes));
                SpaceEvent::Seen { planned, seen, dropped }
            }
            7 => {
                let (planned, written) = (take.size()?, (take.long()?, take.long()?));
                let mut dropped = Vec::new();
                for _ in 0..take.word()? {
                    dropped.push((take.text()?.to_owned(), take.long()?, take.long()?));
                }
                SpaceEvent::Heard { planned, written, dropped }
            }
            8 => SpaceEvent::Change { number: take.long()? },
            9 => SpaceEvent::Retire { now: take.long()?, failure: said(&mut take)? },
            10 => SpaceEvent::Changed,
            _ => return None,
        })
    }
}
