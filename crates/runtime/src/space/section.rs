//! Boolean sections whose operands only classify, evaluated in sequence: `a +* b`, `a ++ b` and
//! `!a`. (CONTRACT 10)
//!
//! Blocks are not duplicated, so there are no copies to merge or wait for. `a +* b` runs `a`, then
//! `b` on the blocks that `a` answered; `a ++ b` runs `a`, then `b` on the blocks that `a` did not
//! answer; `!a` selects the blocks that `a` did not answer. The result is the unchanged block with
//! the class of the last operand that answered. If none answered, as in `!a`, the result has the
//! class that the block had on entry, or class 1 if that was 0.

use super::arc::NodeId;
use super::class_selection::SelectedClasses;

/// A Boolean expression over filters of the space. `N` identifies a filter.
#[derive(Clone, Debug)]
pub enum Section<N = NodeId> {
    /// A single filter of the space.
    Filter(N),
    /// A chain of filters or expressions. The first step runs on all blocks, and its class set is
    /// not used. A later step runs on a block if its class set contains the class that the previous
    /// step gave the block. The chain answers as its last step does.
    Chain(Vec<(SelectedClasses, Self)>),
    /// Conjunction of several parts. A part runs on a block if all previous parts answered the
    /// block, and if the block's class on entry into the section is in the part's set.
    All(Vec<(SelectedClasses, Self)>),
    /// Disjunction of several parts. A part runs on a block if no previous part answered the block,
    /// and if the block's class on entry into the section is in the part's set.
    Any(Vec<(SelectedClasses, Self)>),
    /// Negation: answers exactly the blocks that the contained operand does not answer.
    Not(Box<Self>),
}
