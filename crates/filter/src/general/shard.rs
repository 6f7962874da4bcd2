//! `shard`: passes one of several shares of the flows.
//!
//! Input: any blocks. Output: the same blocks, without a class if they belong to another share. Two
//! processes that read the same source and begin with `shard 1 of=2` and `shard 2 of=2` together
//! process every block once. All blocks of a session, in both directions, are processed by the same
//! process, because [`ShardKey`] determines the share. Blocks without a flow belong to the first
//! share. [Par §IV-A], [Par §V-B]
//!
//! The twin computes the same share.

use crate::layers::HEAD_SIZE;
use crate::prelude::*;
use crate::sharing::ShardKey;
use crate::twin::{EmitResult, TwinExits};
use ebpf::emit::{Answer, Cmp, Exit, Layers, Scope};

/// Catalog entry of `shard`, which passes one of several shares of the flows.
pub const SHARD: Description = Description {
    name: "shard",
    summary: "pass one of several shares of the flows",
    details: "\
Passes the blocks of share `number` with their class. With `by=flow` all packets between two
addresses and ports are in one share, in both directions and on every machine; later fragments have
no ports and may be in another. With `by=addresses` all packets between two addresses are, fragments
included. Blocks without addresses are in share 1. Every block is in exactly one share, so a request
that runs once per number processes every block once; `--engines` does this.

Reasons for no class: `another share`.",
    example: "replay web.pcap | shard 1 of=4 | count",
    kind: FilterKind::Classification,
    reads: ReadDepth::Head(HEAD_SIZE),
    parameters: &[
        Parameter::required(
            "number",
            ParameterType::Number { low: 1, high: SHARES_MAX as u64 },
            "the share that passes, from 1",
        ),
        Parameter::required(
            "of",
            ParameterType::Number { low: 1, high: SHARES_MAX as u64 },
            "number of shares",
        ),
        Parameter::with_default(
            "by",
            ParameterType::OneOf(&["flow", "addresses"]),
            "flow",
            "unit that stays in one share",
        ),
    ],
    reasons: &[ANOTHER_SHARE_TEXT],
    constructor: Some(make_filter),
    emit_twin: Some(emit_twin),
    twin_test_arguments: &["1 of=2", "2 of=3", "1 of=2 by=addresses", "2 of=2 by=addresses"],
    ..Description::FILTER_DEFAULTS
};

const SHARES_MAX: u32 = 4096;
const ANOTHER_SHARE_TEXT: &str = "another share";
const ANOTHER_SHARE: Reason = SHARD.reason(ANOTHER_SHARE_TEXT);

/// Selects the share of the flows that `shard` passes: the number of the share, from 1; the total
/// number of shares; and the key by which blocks are assigned to shares.
#[derive(Clone, Copy)]
struct ShareSelection {
    number: u32,
    of: u32,
    by: ShardKey,
}

impl ShareSelection {
    fn from_arguments(arguments: &Arguments) -> Self {
        let number = |name| {
            let given = arguments.number(name).and_then(|number| u32::try_from(number).ok());
            given.unwrap_or(1).max(1)
        };
        let by = match arguments.text("by") {
            Some("addresses") => ShardKey::Addresses,
            _ => ShardKey::Flow,
        };
        Self { number: number("number"), of: number("of"), by }
    }
}

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let share = ShareSelection::from_arguments(arguments);
    if share.number > share.of {
        let ShareSelection { number, of, .. } = share;
        let what = format!("there is no share {number} of {of}");
        return Err(Mistake::new("number", what).with_hint(format!("give a number from 1 to {of}")));
    }
    Ok(Filter::classify(share))
}

impl Classify for ShareSelection {
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        let own = self.by.hash(block) % u64::from(self.of) + 1 == u64::from(self.number);
        if own { block.pointer.class } else { cx.answer_absent(ANOTHER_SHARE) }
    }
}

/// Emits the twin of `shard`, which computes the share of a flow from the same hash as the filter.
fn emit_twin<'s>(
    a: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    let ShareSelection { number, of, by } = ShareSelection::from_arguments(a);
    let others = s.absent(ANOTHER_SHARE_TEXT, out);
    let unsure = s.unsure();
    let zero = s.wide_constant(0);
    let found = s.wide_var(zero);
    // The number is 0 for a frame without a flow.
    s.arm(|t, none| {
        let exits = TwinExits { not_ip: none, malformed: none, cut: none, unsure };
        by.emit_hash(t, on, exits).map(|number| t.set_wide(found, number))
    })?;
    let found = s.get_wide(found);
    let rest = s.remainder(found, of);
    s.only(rest, Cmp::Eq, number - 1, others);
    Ok(Answer::new(on.class, on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Frame, Node, answer_frames};

    /// Returns, for each frame, the numbers of those shares of the flows that include the frame.
    fn passing_shares(of: usize, by: &str, frames: &[Frame]) -> Vec<Vec<usize>> {
        let mut found = vec![Vec::new(); frames.len()];
        for number in 1..=of {
            let words = [number.to_string(), format!("of={of}"), format!("by={by}")];
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            for (at, answer) in answer_frames(&SHARD, &words, frames).iter().enumerate() {
                match answer.class {
                    Class::YES => found[at].push(number),
                    class => {
                        assert_eq!((class, answer.reason), (Class::NONE, Some(ANOTHER_SHARE_TEXT)))
                    }
                }
            }
        }
        found
    }

    #[test]
    fn n7_flow_belongs_to_one_share_in_both_directions() {
        let there: Vec<Frame> = (1..100).map(|port| Frame::udp(port, 53, b"x")).collect();
        let back: Vec<Frame> =
            (1..100).map(|port| Frame::udp(53, port, b"x").with_swapped_addresses()).collect();
        for by in ["flow", "addresses"] {
            let found = passing_shares(3, by, &there);
            assert!(found.iter().all(|of| of.len() == 1), "{by}: {found:?}");
            assert_eq!(found, passing_shares(3, by, &back), "{by}");
            let mut different = found;
            different.sort_unstable();
            different.dedup();
            assert_eq!(different.len(), if by == "flow" { 3 } else { 1 }, "{by}");
        }
    }

    #[test]
    fn n7_blocks_without_flow_are_in_the_first_share() {
        let frames = [Frame::ethernet(&[8, 6, 0]), Frame::ethernet(&[0])];
        assert_eq!(passing_shares(4, "flow", &frames), [[1], [1]]);
        assert!(Node::new(&SHARD, &["3", "of=2"]).is_err() && Node::new(&SHARD, &["1"]).is_err());
    }
}
