//! `count`: counts messages, blocks and the bytes in their views.
//!
//! Input: any blocks. Output: the same blocks. Reads only rich pointers, and the marks of blocks
//! with an empty view, which may describe a message. The counters are a private session of plain
//! data, which moves with the filter. [SL §6.1 Table I]

use crate::prelude::*;
use crate::twin::EmitResult;
use ebpf::emit::{Answer, Exit, Layers, Scope};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Catalog entry of `count`, which counts messages, blocks and bytes.
pub const COUNT: Description = Description {
    name: "count",
    summary: "count messages, blocks and bytes",
    details: "\
Counts blocks and the bytes in their views, and reports both when the path stops. A hole (lost bytes
of a stream, or its end) is a block without bytes. Also counts the messages that a filter such as
`http` or `dns` describes; a description is a block without bytes, too. Leaves class and view
unchanged.",
    example: "replay web.pcap | count | discard",
    kind: FilterKind::Statistics,
    reads: ReadDepth::Nothing,
    state: StateFacts::private_session::<Totals>().with_worker_rule(|_| WorkerRule::Summed),
    has_report: true,
    constructor: Some(|_| Ok(Filter::statistics(Count::default()))),
    emit_twin: Some(emit_twin),
    ..Description::FILTER_DEFAULTS
};

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Totals {
    blocks: u64,
    bytes: u64,
    messages: u64,
}

impl Session for Totals {
    const FIELDS: &'static [Field<Self>] = &[
        Field::new("blocks", Unit::Blocks, "processed", |totals, _| totals.blocks),
        Field::new("bytes", Unit::Bytes, "in their views", |totals, _| totals.bytes),
        Field::new("messages", Unit::Messages, "described", |totals, _| totals.messages),
    ];
}

#[derive(Default)]
struct Count {
    totals: Sessions<Totals>,
}

impl Statistics for Count {
    fn record(&mut self, tags: MetadataView<'_>, _now: Time) {
        let totals = self.totals.get_or_create(PRIVATE_SESSION_KEY);
        for (pointer, _, marks) in tags.marked_blocks() {
            totals.blocks = totals.blocks.wrapping_add(1);
            let bytes = if pointer.is_hole() { 0 } else { pointer.length() };
            totals.bytes = totals.bytes.wrapping_add(bytes.into());
            let messages = u64::from(pointer.length() == 0 && marks.is_description());
            totals.messages = totals.messages.wrapping_add(messages);
        }
    }

    fn report(&self) -> Report {
        let totals = self.totals.get(PRIVATE_SESSION_KEY).copied().unwrap_or_default();
        let messages = Some(("messages", totals.messages)).filter(|(_, n)| *n > 0);
        let rows = [("blocks", totals.blocks), ("bytes", totals.bytes)];
        Report::from_rows(messages.into_iter().chain(rows))
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.totals)
    }
}

/// Emits the twin of `count`. The twin counts no messages, since frames contain no descriptions.
fn emit_twin<'s>(
    _: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    _: Exit<'s>,
) -> EmitResult<'s> {
    let totals = s.declare_state(size_of::<Totals>() as u16);
    s.add_to_state(totals, offset_of!(Totals, blocks) as u16, 1);
    let length = s.view_length(on);
    s.add_to_state(totals, offset_of!(Totals, bytes) as u16, length);
    Ok(Answer::new(on.class, on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Frame, report_rows};
    use abi::{DbufId, Extent};

    /// Returns the rows of the report on blocks with these views and marks. All blocks have the
    /// flags for the start and the end of a text.
    fn count_report_rows<const N: usize>(blocks: [(RichPointer, Marks); N]) -> Vec<(String, u64)> {
        let (pointers, marks) = (blocks.map(|block| block.0), blocks.map(|block| block.1));
        let flags = BlockFlags::FIRST.with(BlockFlags::LAST);
        let context = [BlockMetadata { flags, ..BlockMetadata::default() }; N];
        let live = (1 << N) - 1;
        let mut count = Count::default();
        count.record(
            MetadataView { pointers: &pointers, context: &context, marks: &marks, live },
            0,
        );
        count.report().rows
    }

    fn owned_rows<const N: usize>(rows: [(&str, u64); N]) -> Vec<(String, u64)> {
        rows.map(|(name, n)| (name.to_owned(), n)).to_vec()
    }

    fn pointer_of_length(length: u32) -> RichPointer {
        RichPointer::new(DbufId::new(1).unwrap(), Extent::new(4096, length), Class(1))
    }

    #[test]
    fn description_counts_as_message() {
        let described = Marks::for_description(100);
        let end = (RichPointer::hole(0), Marks::for_plain_block(0));
        let blocks = [
            (pointer_of_length(0), described),
            (pointer_of_length(0), described),
            (pointer_of_length(9), Marks::for_plain_block(9)),
            end,
        ];
        assert_eq!(
            count_report_rows(blocks),
            owned_rows([("messages", 2), ("blocks", 4), ("bytes", 9)])
        );
    }

    #[test]
    fn empty_record_counts_as_no_message() {
        let line = |length| (pointer_of_length(length), Marks::for_plain_block(length));
        assert_eq!(
            count_report_rows([line(1), line(0), line(1)]),
            owned_rows([("blocks", 3), ("bytes", 2)])
        );
    }

    #[test]
    fn lost_bytes_are_not_counted() {
        let hole = (RichPointer::hole(1000), Marks::for_plain_block(1000));
        let blocks = [(pointer_of_length(5), Marks::for_plain_block(5)), hole];
        assert_eq!(count_report_rows(blocks), owned_rows([("blocks", 2), ("bytes", 5)]));
    }

    #[test]
    fn blocks_and_bytes_are_counted() {
        let frames: Vec<Frame> = (0..100).map(|n| Frame::udp(1, 2, &vec![0; n])).collect();
        let rows = report_rows(&COUNT, &[], &frames);
        assert_eq!(rows, [("blocks".into(), 100), ("bytes".into(), 100 * 42 + 99 * 50)]);
        assert_eq!(report_rows(&COUNT, &[], &[]), [("blocks".into(), 0), ("bytes".into(), 0)]);
    }
}
