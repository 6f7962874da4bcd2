//! `split`: spreads blocks over several classes, so that filters can share the work.
//!
//! Input: any blocks. Output: the same blocks, with a class from 1 to `ways`: `split 2 | (|1 regex
//! a + |2 regex a)`. If split by flow, all packets of a connection, in both directions, have the
//! same class, and the class is the same on every machine, because the hash of `wire::flow` is used
//! without a seed [Par §IV-A]. If split by block, the classes rotate. [Th §5.4, `split_rr`]
//!
//! The twin computes the same hash. If it splits by block, it uses one counter for all CPUs.

use crate::layers::{self, HEAD_SIZE, HeaderError};
use crate::prelude::*;
use crate::sharing::{SHARD_HASH_SEED, ShardKey};
use crate::twin::{EmitResult, TwinExits};
use ebpf::emit::{Answer, Exit, Layers, Scope};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Catalog entry of `split`, which spreads blocks over several classes by flow or in rotation.
pub const SPLIT: Description = Description {
    name: "split",
    summary: "distribute blocks to branches, by flow or in rotation",
    details: "\
Distributes blocks to branches: the class is a number from 1 to `ways`. With `by=flow` all packets
between two addresses and ports have the same, in both directions and on every machine; later
fragments have no ports and may have another. With `by=block` the numbers rotate.

Reasons for no class, by flow: `not ip`, `malformed`, `cut`, `too deep`.",
    example: "replay web.pcap | split 4 |1 count",
    kind: FilterKind::Classification,
    reads: ReadDepth::Head(HEAD_SIZE),
    effect: Some(effect),
    parameters: &[
        Parameter::required(
            "ways",
            ParameterType::Number { low: 1, high: CLASSES_MAX as u64 },
            "number of branches",
        ),
        Parameter {
            kind: ParameterType::OneOf(&["flow", "block"]),
            ..Parameter::with_default(
                "by",
                ParameterType::Text,
                "flow",
                "unit that has one class: flow or block",
            )
        },
    ],
    classes: Classes::Number {
        meaning: "the number of the branch",
        range: ValueRange { low: 1, high: CLASSES_MAX },
        names: &[],
    },
    reasons: &["not ip", "malformed", "cut", "too deep"],
    state: StateFacts::private_session::<RoundRobin>(),
    constructor: Some(make_filter),
    emit_twin: Some(emit_twin),
    twin_test_arguments: &["4", "3 by=block"],
    ..Description::FILTER_DEFAULTS
};

/// Catalog entry of `split_rr`, which assigns blocks to the branches in round-robin order. The
/// check of a request inserts the number of branches and the labels of their arcs into the request
/// (`pipeline/src/check/splits.rs`).
pub const SPLIT_RR: Description = Description {
    name: "split_rr",
    summary: "distribute blocks to the next branches, in rotation",
    details: "\
Sends each block to one branch of the group after it, in rotation: `split_rr | f + f + f | join` is
`split 3 by=block | (|1 f + |2 f + |3 f) | join`. The class is the number of the branch, from 1 to
`ways`. Set `ways` unless a group of branches without classes follows.",
    example: "replay web.pcap | split_rr 3 | count + count + count | join",
    reads: ReadDepth::Nothing,
    effect: None,
    parameters: &[Parameter::required(
        "ways",
        ParameterType::Number { low: 1, high: CLASSES_MAX as u64 },
        "number of branches; by default that of the next group",
    )],
    reasons: &[],
    constructor: Some(make_round_robin),
    emit_twin: Some(emit_round_robin),
    twin_test_arguments: &["3"],
    ..SPLIT
};

const _: () = HeaderError::assert_reason_names(SPLIT.reasons, 4);
const CLASSES_MAX: u32 = 4096;

fn effect(arguments: &Arguments) -> Effect {
    let reads =
        if splits_by_flow(arguments) { ReadDepth::Head(HEAD_SIZE) } else { ReadDepth::Nothing };
    Effect { kind: SPLIT.kind, output_form: SPLIT.output_form, reads }
}

fn splits_by_flow(arguments: &Arguments) -> bool {
    arguments.text("by") != Some("block")
}

fn class_count(arguments: &Arguments) -> u32 {
    let ways = arguments.number("ways").and_then(|ways| u32::try_from(ways).ok());
    ways.unwrap_or(1).max(1)
}

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    Ok(make_split(arguments, splits_by_flow(arguments)))
}

fn make_round_robin(arguments: &Arguments) -> Result<Filter, Mistake> {
    Ok(make_split(arguments, false))
}

fn make_split(arguments: &Arguments, by_flow: bool) -> Filter {
    let ways = class_count(arguments).into();
    let mut counter = Sessions::<RoundRobin>::default();
    counter.get_or_create(PRIVATE_SESSION_KEY);
    Filter::classify(Split { ways, by_flow, counter })
}

/// Returns the class for a hash or block number: the remainder modulo `ways`, plus 1.
fn class_of_number(number: u64, ways: u64) -> Class {
    Class((number % ways) as u32 + 1)
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct RoundRobin {
    blocks: u64,
}

impl Session for RoundRobin {
    const FIELDS: &'static [Field<Self>] =
        &[Field::new("blocks", Unit::Blocks, "distributed in rotation", |counter, _| {
            counter.blocks
        })];
}

struct Split {
    ways: u64,
    by_flow: bool,
    counter: Sessions<RoundRobin>,
}

impl Classify for Split {
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        if self.by_flow {
            return match layers::packet_flow(block) {
                Ok(flow) => class_of_number(flow.hash(SHARD_HASH_SEED), self.ways),
                Err(why) => cx.answer_absent(why.reason()),
            };
        }
        let counter = self.counter.get_or_create(PRIVATE_SESSION_KEY);
        let number = counter.blocks;
        counter.blocks = number.wrapping_add(1);
        class_of_number(number, self.ways)
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.counter)
    }
}

/// Emits the twin of `split`, which splits by flow or by block, depending on the arguments.
fn emit_twin<'s>(
    a: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    if !splits_by_flow(a) {
        return emit_round_robin(a, s, on, out);
    }
    let exits = TwinExits::new(s, out);
    let number = ShardKey::Flow.emit_hash(s, on, exits)?;
    let rest = s.remainder(number, class_count(a));
    Ok(Answer::new(s.add(rest, 1), on))
}

/// Emits the twin of `split_rr`, which is also the twin of `split` if it splits by block.
fn emit_round_robin<'s>(
    a: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    _: Exit<'s>,
) -> EmitResult<'s> {
    let counter = s.declare_state(size_of::<RoundRobin>() as u16);
    let number = s.fetch_add(counter, 0, 1);
    let rest = s.remainder(number, class_count(a));
    Ok(Answer::new(s.add(rest, 1), on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Frame, Node, answer_frames};

    fn run_classes(words: &[&str], frames: &[Frame]) -> Vec<u32> {
        answer_frames(&SPLIT, words, frames).iter().map(|answer| answer.class.0).collect()
    }

    #[test]
    fn flow_has_one_class_in_both_directions() {
        let forward: Vec<Frame> = (1..100).map(|port| Frame::udp(port, 53, b"x")).collect();
        let backward: Vec<Frame> =
            (1..100).map(|port| Frame::udp(53, port, b"x").with_swapped_addresses()).collect();
        let classes = run_classes(&["8"], &forward);
        assert_eq!(classes, run_classes(&["8"], &backward));
        let mut distinct = classes.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn h18_split_rr_rotates_through_its_classes() {
        let frames: Vec<Frame> = (0..5).map(|_| Frame::ethernet(&[0, 0])).collect();
        let found = answer_frames(&SPLIT_RR, &["2"], &frames);
        assert_eq!(found.iter().map(|answer| answer.class.0).collect::<Vec<_>>(), [1, 2, 1, 2, 1]);
    }

    #[test]
    fn block_without_flow_has_a_reason() {
        let answer = &answer_frames(&SPLIT, &["2"], &[Frame::ethernet(&[8, 6, 0])])[0];
        assert_eq!((answer.class, answer.reason), (Class::NONE, Some("not ip")));
        let icmp = [Frame::ipv4(1, &[8, 0, 0, 0])];
        assert!(run_classes(&["2"], &icmp)[0] > 0);
    }

    #[test]
    fn blocks_rotate_through_the_classes() {
        let frames: Vec<Frame> = (0..7).map(|_| Frame::ethernet(&[0, 0])).collect();
        assert_eq!(run_classes(&["3", "by=block"], &frames), [1, 2, 3, 1, 2, 3, 1]);
        assert!(Node::new(&SPLIT, &["0"]).is_err() && Node::new(&SPLIT, &["2", "by=x"]).is_err());
    }
}
