//! Encoding of a space's events.

use super::form::{FileBlock, LocalKind, ValueReader, WriteValues, local, word};
use runtime::space::events::SpaceEvent;

/// Appends an event. The caller must then append the blocks of the event.
pub(super) fn encode_event(out: &mut Vec<u8>, event: &SpaceEvent) {
    local(out, LocalKind::Event, |out| match event {
        SpaceEvent::Pull { node, now, count, edge, failure } => {
            out.words(&[1, word(*node)]);
            out.longs(&[*now]);
            out.words(&[word(*count), edge.map_or(u32::MAX, word)]);
            put_text(out, failure.as_deref());
        }
        SpaceEvent::Import { node, now, count } => {
            out.words(&[2, word(*node)]);
            out.longs(&[*now]);
            out.words(&[word(*count)]);
        }
        SpaceEvent::Tick { now } => put_numbered(out, 3, *now),
        SpaceEvent::Claim { count } => out.words(&[4, *count]),
        SpaceEvent::Finish { now, failure } => {
            put_numbered(out, 5, *now);
            put_text(out, failure.as_deref());
        }
        SpaceEvent::Change { number } => put_numbered(out, 8, *number),
        SpaceEvent::Retire { now, failure } => {
            put_numbered(out, 9, *now);
            put_text(out, failure.as_deref());
        }
        SpaceEvent::Changed => out.words(&[10]),
        SpaceEvent::SourceCounts { planned, seen, dropped } => {
            out.words(&[6, word(*planned)]);
            let (blocks, bytes) = seen.unwrap_or((u64::MAX, u64::MAX));
            out.longs(&[blocks, bytes]);
            out.words(&[word(dropped.len())]);
            for (place, count) in dropped {
                out.text(place);
                out.longs(&[count.unwrap_or(u64::MAX)]);
            }
        }
        SpaceEvent::ProgramCounts { planned, written, dropped } => {
            out.words(&[7, word(*planned)]);
            out.longs(&[written.0, written.1]);
            out.words(&[word(dropped.len())]);
            for (why, blocks, bytes) in dropped {
                out.text(why);
                out.longs(&[*blocks, *bytes]);
            }
        }
    });
}

fn put_numbered(out: &mut Vec<u8>, kind: u32, number: u64) {
    out.words(&[kind]);
    out.longs(&[number]);
}

fn put_text(out: &mut Vec<u8>, text: Option<&str>) {
    out.words(&[u32::from(text.is_some())]);
    out.text(text.unwrap_or_default());
}

impl FileBlock<'_> {
    /// Decodes an event; `None` if the bytes are not a valid event.
    pub(super) fn event(&self) -> Option<SpaceEvent> {
        let (LocalKind::Event, mut take) = self.local()? else { return None };
        let said = |take: &mut ValueReader<'_>| -> Option<Option<String>> {
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
                SpaceEvent::SourceCounts { planned, seen, dropped }
            }
            7 => {
                let (planned, written) = (take.size()?, (take.long()?, take.long()?));
                let mut dropped = Vec::new();
                for _ in 0..take.word()? {
                    dropped.push((take.text()?.to_owned(), take.long()?, take.long()?));
                }
                SpaceEvent::ProgramCounts { planned, written, dropped }
            }
            8 => SpaceEvent::Change { number: take.long()? },
            9 => SpaceEvent::Retire { now: take.long()?, failure: said(&mut take)? },
            10 => SpaceEvent::Changed,
            _ => return None,
        })
    }
}
