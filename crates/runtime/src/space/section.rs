//! Boolean sections whose operands only classify, evaluated in sequence: `a +* b`, `a ++ b` and
//! `!a`. (CONTRACT 10)
//!
//! Blocks are not duplicated, so there are no copies to merge or wait for. `a +* b` runs `a`, then
//! `b` on the blocks that `a` answered; `a ++ b` runs `a`, then `b` on the blocks that `a` did not
//! answer; `!a` selects the blocks that `a` did not answer. The result is the unchanged block with
//! the class of the last operand that answered. If none answered, as in `!a`, the result has the
//! class that the block had on entry, or class 1 if that was 0.

use super::arc::NodeId;
use super::select::SelectedClasses;

/// A Boolean expression over filters of the space. `N` identifies a filter.
#[derive(Clone, Debug)]
pub enum Section<N = NodeId> {
    /// A single filter.
    Filter(N),
    /// A chain of filters or expressions. The first step runs on all blocks, and its class set is
    /// not used. Each later step runs on the blocks whose class from the previous step is in the
    /// later step's set. The answer of the last step is the answer of the chain.
    Chain(Vec<(SelectedClasses, Self)>),
    /// Conjunction: each part runs on every block that all previous parts answered and whose class
    /// on entry into the section is in the part's set.
    All(Vec<(SelectedClasses, Self)>),
    /// Disjunction: each part runs on every block that no previous part answered and whose class on
    /// entry into the section is in the part's set.
    Any(Vec<(SelectedClasses, Self)>),
    /// Negation: answers the blocks that the operand does not answer.
    Not(Box<Self>),
}
