//! Encoding and decoding of a space's events.

use super::file_format::{
    FileBlock, LocalBlockKind, ValueReader, WriteValues, append_local_block, saturating_u32,
};
use endpoint::{Gap, LossRanges};
use runtime::space::events::SpaceEvent;

/// Appends the encoding of an event to `out`. The caller then appends the blocks that belong to the
/// event.
pub(super) fn encode_event(out: &mut Vec<u8>, event: &SpaceEvent) {
    append_local_block(out, LocalBlockKind::Event, |out| match event {
        SpaceEvent::Pull { node, now, count, edge, failure } => {
            out.put_u32s(&[1, saturating_u32(*node)]);
            out.put_u64s(&[*now]);
            out.put_u32s(&[saturating_u32(*count), edge.map_or(u32::MAX, saturating_u32)]);
            put_optional_text(out, failure.as_deref());
        }
        SpaceEvent::Import { node, now, count } => {
            out.put_u32s(&[2, saturating_u32(*node)]);
            out.put_u64s(&[*now]);
            out.put_u32s(&[saturating_u32(*count)]);
        }
        SpaceEvent::Tick { now } => encode_numbered_event(out, 3, *now),
        SpaceEvent::Claim { count } => out.put_u32s(&[4, *count]),
        SpaceEvent::Finish { now, failure } => {
            encode_numbered_event(out, 5, *now);
            put_optional_text(out, failure.as_deref());
        }
        SpaceEvent::Change { number } => encode_numbered_event(out, 8, *number),
        SpaceEvent::Retire { now, failure } => {
            encode_numbered_event(out, 9, *now);
            put_optional_text(out, failure.as_deref());
        }
        SpaceEvent::Changed => out.put_u32s(&[10]),
        SpaceEvent::SourceCounts { node_number: planned, observed, dropped, missing, remark } => {
            out.put_u32s(&[6, saturating_u32(*planned)]);
            let (blocks, bytes) = observed.unwrap_or((u64::MAX, u64::MAX));
            out.put_u64s(&[blocks, bytes]);
            out.put_u32s(&[saturating_u32(dropped.len())]);
            for (place, count) in dropped {
                out.put_text(place);
                out.put_u64s(&[count.unwrap_or(u64::MAX)]);
            }
            out.put_u32s(&[saturating_u32(missing.len())]);
            for (place, ranges) in missing {
                out.put_text(place);
                put_ranges(out, ranges);
            }
            put_optional_text(out, remark.as_ref().map(|(text, _)| text.as_str()));
            out.put_u32s(&[remark.as_ref().is_some_and(|(_, warns)| *warns).into()]);
        }
        SpaceEvent::ProgramCounts { node_number: planned, written, dropped } => {
            out.put_u32s(&[7, saturating_u32(*planned)]);
            out.put_u64s(&[written.0, written.1]);
            out.put_u32s(&[saturating_u32(dropped.len())]);
            for (why, blocks, bytes) in dropped {
                out.put_text(why);
                out.put_u64s(&[*blocks, *bytes]);
            }
        }
    });
}

fn encode_numbered_event(out: &mut Vec<u8>, kind: u32, number: u64) {
    out.put_u32s(&[kind]);
    out.put_u64s(&[number]);
}

fn put_optional_text(out: &mut Vec<u8>, text: Option<&str>) {
    out.put_u32s(&[u32::from(text.is_some())]);
    out.put_text(text.unwrap_or_default());
}

fn put_ranges(out: &mut Vec<u8>, ranges: &LossRanges) {
    out.put_u64s(&[ranges.discarded_range_count()]);
    out.put_u32s(&[saturating_u32(ranges.gaps().count())]);
    for Gap { from, to, processor } in ranges.gaps() {
        out.put_u64s(&[from, to]);
        out.put_u32s(&[processor.unwrap_or(u32::MAX)]);
    }
}

fn read_ranges(take: &mut ValueReader<'_>) -> Option<LossRanges> {
    let mut ranges = LossRanges::default();
    let (discarded, gaps) = (take.read_u64()?, take.read_size()?);
    if gaps > 2 * LossRanges::RANGES_PER_END_MAX {
        return None;
    }
    for _ in 0..gaps {
        let (from, to, processor) = (take.read_u64()?, take.read_u64()?, take.read_u32()?);
        ranges.push_gap(Gap { from, to, processor: (processor != u32::MAX).then_some(processor) });
    }
    ranges.add_discarded_ranges(discarded);
    Some(ranges)
}

/// Reads the details that follow the counts of a source in a record: the positions of its lost
/// blocks, and its note. A recording of an earlier version contains no details; returns empty ones
/// for it. Returns `None` if the details are malformed.
fn read_source_details(take: &mut ValueReader<'_>) -> Option<SourceDetails> {
    let Some(places) = take.read_u32() else { return Some(SourceDetails::default()) };
    let mut missing = Vec::new();
    for _ in 0..places {
        missing.push((take.read_text()?.to_owned(), read_ranges(take)?));
    }
    let (is_remark, text, warns) = (take.read_u32()? != 0, take.read_text()?, take.read_u32()?);
    Some((missing, is_remark.then(|| (text.to_owned(), warns != 0))))
}

/// Details of a source: the numbers of the blocks that it lost, by location of the loss; and its
/// note for the user, with a flag that is true if the note is a warning.
pub(super) type SourceDetails = (Vec<(String, LossRanges)>, Option<(String, bool)>);

impl FileBlock<'_> {
    /// Decodes an event. Returns `None` if the bytes are not a valid event.
    pub(super) fn decode_event(&self) -> Option<SpaceEvent> {
        let (LocalBlockKind::Event, mut take) = self.local_block()? else { return None };
        let read_failure = |take: &mut ValueReader<'_>| -> Option<Option<String>> {
            let there = take.read_u32()? != 0;
            let text = take.read_text()?;
            Some(there.then(|| text.to_owned()))
        };
        Some(match take.read_u32()? {
            1 => SpaceEvent::Pull {
                node: take.read_size()?,
                now: take.read_u64()?,
                count: take.read_size()?,
                edge: take.read_u32().map(|edge| (edge != u32::MAX).then_some(edge as usize))?,
                failure: read_failure(&mut take)?,
            },
            2 => SpaceEvent::Import {
                node: take.read_size()?,
                now: take.read_u64()?,
                count: take.read_size()?,
            },
            3 => SpaceEvent::Tick { now: take.read_u64()? },
            4 => SpaceEvent::Claim { count: take.read_u32()? },
            5 => SpaceEvent::Finish { now: take.read_u64()?, failure: read_failure(&mut take)? },
            6 => {
                let planned = take.read_size()?;
                let (blocks, bytes) = (take.read_u64()?, take.read_u64()?);
                let mut dropped = Vec::new();
                for _ in 0..take.read_u32()? {
                    let (place, count) = (take.read_text()?.to_owned(), take.read_u64()?);
                    dropped.push((place, (count != u64::MAX).then_some(count)));
                }
                let observed = (blocks != u64::MAX).then_some((blocks, bytes));
                let (missing, remark) = read_source_details(&mut take)?;
                SpaceEvent::SourceCounts {
                    node_number: planned,
                    observed,
                    dropped,
                    missing,
                    remark,
                }
            }
            7 => {
                let (planned, written) = (take.read_size()?, (take.read_u64()?, take.read_u64()?));
                let mut dropped = Vec::new();
                for _ in 0..take.read_u32()? {
                    dropped.push((
                        take.read_text()?.to_owned(),
                        take.read_u64()?,
                        take.read_u64()?,
                    ));
                }
                SpaceEvent::ProgramCounts { node_number: planned, written, dropped }
            }
            8 => SpaceEvent::Change { number: take.read_u64()? },
            9 => SpaceEvent::Retire { now: take.read_u64()?, failure: read_failure(&mut take)? },
            10 => SpaceEvent::Changed,
            _ => return None,
        })
    }
}
