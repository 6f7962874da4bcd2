//! `join`: marks the point where branches reunite.
//!
//! Input: the outputs of several branches. Output: the same blocks in the order of the branches'
//! input. The arcs into the filter restore the order (CONTRACT 16), as for any filter after several
//! branches. `join` only gives this point a name, as in the Streamline thesis. [Th §5.4]

use crate::prelude::*;

/// Catalog entry of `join`, which passes all blocks unchanged and marks the point where branches
/// reunite.
pub const JOIN: Description = Description {
    name: "join",
    summary: "join branches, and keep the order of their input",
    details: "\
Passes every block unchanged. Blocks from several branches arrive in the order of their input, as at
any filter after branches; `join` only marks the place, and counts the blocks that pass.",
    example: "replay web.pcap | split_rr 3 | count + count + count | join",
    kind: FilterKind::Statistics,
    reads: ReadDepth::Nothing,
    constructor: Some(|_| Ok(Filter::statistics(Join))),
    ..Description::FILTER_DEFAULTS
};

struct Join;

impl Statistics for Join {
    fn record(&mut self, _: MetadataView<'_>, _: Time) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Frame, answer_frames};

    #[test]
    fn blocks_pass_unchanged() {
        let found = answer_frames(&JOIN, &[], &[Frame::udp(1, 2, b"abc")]);
        assert_eq!((found[0].class, found[0].view, found[0].length), (Class::YES, 0, 45));
    }
}
