//! The order in which a space reads its sources. Sources that report the times of their next
//! blocks, such as captures, are merged by time. All other sources are read in rotation, one batch
//! at a time.

use super::Space;
use super::arc::NodeId;
use super::graph::LocalGraph;
use super::input::Input;
use super::node::Operator;
use super::pass::PassResult;
use endpoint::NextBlockTime;
use filter::Time;

/// The source that supplies the next blocks of a space, chosen among the sources that are merged by
/// time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NextSource {
    /// Index of the source among the inputs of the space.
    input: usize,
    /// Time up to which this source's blocks may be taken, because another source is then due.
    until: Time,
}

impl Space {
    /// Returns the source that supplies the next blocks in time order, or `None` if fewer than two
    /// sources are merged by time or if the path is stopped.
    pub(super) fn next_source(&self) -> Option<NextSource> {
        if self.inputs.list.len() < 2 || self.ports.control.is_stopped() {
            return None;
        }
        let sources = self.inputs.list.iter().enumerate().filter_map(|(input, of)| {
            let Input::Source { node, .. } = of else { return None };
            Some((input, next_time(&self.graph, *node)))
        });
        earliest_source(sources)
    }

    /// Takes a batch from the source at node `at` (input `input`, intake `from`), if it is the turn
    /// of this source. `next` names the source that supplies the next blocks in time order; if it
    /// is `None`, or if this source is not merged by time, this source is always read.
    pub(super) fn pull_in_time_order(
        &mut self,
        input: usize,
        (at, from): (NodeId, usize),
        next: Option<NextSource>,
        pass: &mut PassResult,
    ) {
        let Some(next) = next else { return self.pull_source((at, from), None, pass) };
        let before = next_time(&self.graph, at);
        if before == NextBlockTime::Unordered {
            return self.pull_source((at, from), None, pass);
        }
        pass.expects_input = true;
        if next.input == input {
            self.pull_source((at, from), Some(next.until), pass);
            // A pass that has read the next block counts as progress, so the next pass follows at
            // once.
            pass.moved |= next_time(&self.graph, at) != before;
        }
    }
}

/// Returns the time of a source's next block. A source that has ended is not merged.
fn next_time(graph: &LocalGraph, source: NodeId) -> NextBlockTime {
    match &graph.nodes[source].operator {
        Operator::Source(part) if !part.ended => part.source.next_block_time(),
        _ => NextBlockTime::Unordered,
    }
}

/// Returns the source with the earliest next block, among the sources that are merged by time.
/// Returns `None` if there are fewer than two such sources. If the next blocks of several sources
/// have the same time, chooses the source that comes first in the request. A source whose next
/// block is unknown precedes all others, but may only emit blocks of time 0.
fn earliest_source(sources: impl Iterator<Item = (usize, NextBlockTime)>) -> Option<NextSource> {
    let mut first: Option<(Time, usize)> = None;
    let mut until = Time::MAX;
    let mut unknown = None;
    let mut count = 0_usize;
    for (input, next) in sources {
        let time = match next {
            NextBlockTime::Unordered => continue,
            NextBlockTime::Unknown => {
                unknown = unknown.or(Some(input));
                0
            }
            NextBlockTime::At(time) => time,
        };
        count += 1;
        match first {
            // At equal times, earlier sources come first.
            Some((earliest, _)) if earliest <= time => until = until.min(time),
            Some((earliest, _)) => {
                until = until.min(earliest.saturating_sub(1));
                first = Some((time, input));
            }
            None => first = Some((time, input)),
        }
    }
    match (first, unknown) {
        _ if count < 2 => None,
        (_, Some(input)) => Some(NextSource { input, until: 0 }),
        (Some((_, input)), None) => Some(NextSource { input, until }),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use NextBlockTime::{At, Unknown, Unordered};

    fn find_first_source(sources: &[NextBlockTime]) -> Option<(usize, Time)> {
        let next = earliest_source(sources.iter().copied().enumerate());
        next.map(|next| (next.input, next.until))
    }

    #[test]
    fn earliest_source_emits_blocks_up_to_next_of_another() {
        assert_eq!(find_first_source(&[At(5), At(9)]), Some((0, 9)));
        assert_eq!(
            find_first_source(&[At(9), At(5)]),
            Some((1, 8)),
            "at time 9, the first source is first"
        );
        assert_eq!(find_first_source(&[At(5), At(5)]), Some((0, 5)));
        assert_eq!(find_first_source(&[At(7), Unordered, At(3), At(4)]), Some((2, 4)));
        assert_eq!(find_first_source(&[At(4), At(3), At(9)]), Some((1, 3)));
    }

    #[test]
    fn source_with_unknown_next_time_is_read_first() {
        assert_eq!(find_first_source(&[At(5), Unknown, Unknown]), Some((1, 0)));
    }

    #[test]
    fn single_source_is_not_limited() {
        assert_eq!(find_first_source(&[]), None);
        assert_eq!(find_first_source(&[At(5)]), None);
        assert_eq!(find_first_source(&[Unordered, At(5), Unordered]), None);
    }
}
