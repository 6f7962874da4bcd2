//! `count`: counts messages, blocks and the bytes in their views.
//!
//! Input: any blocks. Output: the same blocks. Reads only rich pointers. A first block with an
//! empty view is recognized as the description of a message. The counters are a private session of
//! plain data, which moves with the filter. [SL §6.1 Table I]

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
Counts blocks and the bytes in their views, and reports both when the path stops. Also counts the
messages that a filter such as `http` or `dns` describes; a description is a block without bytes.
Leaves class and view unchanged.",
    example: "replay web.pcap | count | discard",
    kind: FilterKind::Statistics,
    reads: ReadDepth::Nothing,
    state: StateFacts::private::<Totals>().with_worker_rule(|_| WorkerRule::Summed),
    reports: true,
    user: Some(|_| Ok(Filter::statistics(Count::default()))),
    kernel: Some(emit_twin),
    ..Description::EMPTY
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
        Field::new("blocks", Unit::Blocks, "processed", |seen, _| seen.blocks),
        Field::new("bytes", Unit::Bytes, "in their views", |seen, _| seen.bytes),
        Field::new("messages", Unit::Messages, "described", |seen, _| seen.messages),
    ];
}

#[derive(Default)]
struct Count {
    seen: Sessions<Totals>,
}

impl Statistics for Count {
    fn record(&mut self, tags: Tags<'_>, _now: Time) {
        let seen = self.seen.get_or_create(PRIVATE_KEY);
        for (pointer, context) in tags.blocks() {
            seen.blocks = seen.blocks.wrapping_add(1);
            seen.bytes = seen.bytes.wrapping_add(pointer.length().into());
            let messages = u64::from(is_description(pointer, context));
            seen.messages = seen.messages.wrapping_add(messages);
        }
    }

    fn report(&self) -> Report {
        let seen = self.seen.get(PRIVATE_KEY).copied().unwrap_or_default();
        let messages = Some(("messages", seen.messages)).filter(|(_, n)| *n > 0);
        let rows = [("blocks", seen.blocks), ("bytes", seen.bytes)];
        Report::from_rows(messages.into_iter().chain(rows))
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.seen)
    }
}

/// Returns true for the description that begins a message: a first block that has an empty view and
/// is not a hole. (An empty hole marks the end of a direction without data.)
fn is_description(pointer: RichPointer, context: BlockMetadata) -> bool {
    pointer.length() == 0 && !pointer.is_hole() && context.flags.has(Flags::FIRST)
}

/// Emits the twin. It counts no messages, since frames contain no descriptions.
fn emit_twin<'s>(
    _: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    _: Exit<'s>,
) -> EmitResult<'s> {
    let seen = s.state(size_of::<Totals>() as u16);
    s.add_to(seen, offset_of!(Totals, blocks) as u16, 1);
    let length = s.view_length(on);
    s.add_to(seen, offset_of!(Totals, bytes) as u16, length);
    Ok(Answer::new(on.class, on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Frame, report_rows};
    use abi::{DbufId, Extent};

    #[test]
    fn descriptions_are_messages() {
        let place = Extent::new(4096, 0);
        let description = RichPointer::new(DbufId::new(1).unwrap(), place, Class(1));
        let pointers =
            [description, description.with_class(Class(2)), RichPointer::hole(0), description];
        let flags = [Flags::FIRST, Flags::FIRST.with(Flags::LAST), Flags::FIRST, Flags::LAST];
        let context = flags.map(|flags| BlockMetadata { flags, ..BlockMetadata::default() });
        let mut count = Count::default();
        count.record(Tags { pointers: &pointers, context: &context, live: 0b1111 }, 0);
        let rows = [("messages", 2), ("blocks", 4), ("bytes", 0)];
        assert_eq!(count.report().rows, rows.map(|(name, n)| (name.to_owned(), n)));
    }

    #[test]
    fn blocks_and_bytes_are_counted() {
        let frames: Vec<Frame> = (0..100).map(|n| Frame::udp(1, 2, &vec![0; n])).collect();
        let rows = report_rows(&COUNT, &[], &frames);
        assert_eq!(rows, [("blocks".into(), 100), ("bytes".into(), 100 * 42 + 99 * 50)]);
        assert_eq!(report_rows(&COUNT, &[], &[]), [("blocks".into(), 0), ("bytes".into(), 0)]);
    }
}
