//! `sample`: passes one block in `every`.
//!
//! Input: any blocks. Output: the same blocks, with class 1 for the first of each `every`
//! successive blocks and without a class for the rest. The selection depends only on block order,
//! so the same capture yields the same sample. The state is a private counter, which moves with the
//! filter. [SL §6.1 Table I]
//!
//! The twin has one counter for all CPUs.

use crate::prelude::*;
use crate::twin::EmitResult;
use ebpf::emit::{Answer, Cmp, Exit, Layers, Scope};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Catalog entry of `sample`, which passes the first of every N blocks.
pub const SAMPLE: Description = Description {
    name: "sample",
    summary: "pass one block in every N",
    details: "\
Passes one block in `every`: the class is 1 for the first block, and for every `every`-th after it.

Reasons for no class: `passed over`.",
    example: "replay web.pcap | sample 10 | count",
    kind: FilterKind::Classification,
    reads: ReadDepth::Nothing,
    parameters: &[Parameter::required(
        "every",
        ParameterType::Number { low: 1, high: u32::MAX as u64 },
        "number of blocks of which one passes",
    )
    .make_writable()],
    classes: Classes::YesNo,
    reasons: &["passed over"],
    state: StateFacts::private_session::<SampleCount>(),
    constructor: Some(make_filter),
    emit_twin: Some(emit_twin),
    twin_test_arguments: &["3"],
    ..Description::FILTER_DEFAULTS
};

const PASSED_OVER: Reason = SAMPLE.reason("passed over");

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    Ok(Filter::classify(Sample {
        every: sample_interval(arguments).into(),
        counter: Sessions::default(),
    }))
}

fn sample_interval(arguments: &Arguments) -> u32 {
    let every = arguments.number("every").and_then(|every| u32::try_from(every).ok());
    every.unwrap_or(1).max(1)
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct SampleCount {
    blocks: u64,
}

impl Session for SampleCount {
    const FIELDS: &'static [Field<Self>] =
        &[Field::new("blocks", Unit::Blocks, "processed", |counter, _| counter.blocks)];
}

struct Sample {
    every: u64,
    counter: Sessions<SampleCount>,
}

impl Classify for Sample {
    const SETS_MARKS: bool = false;

    fn classify(&mut self, _: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        let counter = self.counter.get_or_create(PRIVATE_SESSION_KEY);
        let number = counter.blocks;
        counter.blocks = number.wrapping_add(1);
        if number.is_multiple_of(self.every) { Class::YES } else { cx.answer_absent(PASSED_OVER) }
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.counter)
    }

    fn set(&mut self, arguments: &Arguments) -> Result<(), Mistake> {
        self.every = sample_interval(arguments).into();
        Ok(())
    }
}

/// Emits the twin of `sample`, which counts blocks in one counter for all CPUs.
fn emit_twin<'s>(
    a: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    let passed_over = s.absent("passed over", out);
    let counter = s.declare_state(size_of::<SampleCount>() as u16);
    let number = s.fetch_add(counter, 0, 1);
    let rest = s.remainder(number, sample_interval(a));
    s.only(rest, Cmp::Eq, 0, passed_over);
    Ok(Answer::new(Class::YES.0, on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Arena, Frame, Node, Space};

    fn passed_blocks(node: &mut Node, count: usize) -> Vec<usize> {
        let arena = Arena::new(count);
        let mut space = Space::new(&arena);
        let frames: Vec<Frame> = (0..count).map(|_| Frame::udp(1, 2, b"")).collect();
        let batch = node.process_batch(space.batch(&frames), &mut space, 0).remove(0);
        lanes(batch.lanes_with_class(Class::is_answered)).collect()
    }

    #[test]
    fn first_of_three_passes_for_any_batch_size() {
        let mut node = Node::new(&SAMPLE, &["3"]).unwrap();
        assert_eq!(passed_blocks(&mut node, 7), [0, 3, 6]);
        assert_eq!(passed_blocks(&mut node, 2), [], "the eighth and the ninth");
        let saved = node.take_sessions();
        let mut moved = Node::new(&SAMPLE, &["3"]).unwrap();
        moved.restore_sessions(saved).unwrap();
        assert_eq!(passed_blocks(&mut moved, 4), [0, 3], "it counts on elsewhere");
        assert_eq!(node.unanswered_reasons().next(), Some(("passed over", 6)));
    }

    #[test]
    fn interval_of_one_passes_all_blocks() {
        assert_eq!(passed_blocks(&mut Node::new(&SAMPLE, &["1"]).unwrap(), 5).len(), 5);
        assert!(Node::new(&SAMPLE, &["0"]).is_err());
    }
}
