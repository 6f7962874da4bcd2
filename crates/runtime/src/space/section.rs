//! Boolean sections evaluated in sequence: `a +* b`, `a ++ b`, `!a` over filters that only
//! classify. (CONTRACT 10)
//!
//! Blocks are not duplicated, so none must be merged or awaited. `a +* b` runs `a`, then `b` on the
//! blocks that `a` answered; `a ++ b` runs `a`, then `b` on the others; `!a` selects the blocks
//! that `a` did not answer. The result is the unchanged block with the class of the last operand
//! that answered.

use super::arc::NodeId;
use super::select::Wanted;

/// Expression over nodes of the space, each given as `N`.
#[derive(Clone, Debug)]
pub enum Section<N = NodeId> {
    /// Single filter.
    Filter(N),
    /// Chain of steps. Each step runs on the blocks whose class, given by the previous step, is in
    /// its set; the first step's set is unused. The last step answers.
    Chain(Vec<(Wanted, Self)>),
    /// Conjunction: each part runs on the blocks that all previous parts answered, if the block's
    /// class on entry is in the part's set.
    All(Vec<(Wanted, Self)>),
    /// Disjunction: each part runs on the blocks that no previous part answered, if the block's
    /// class on entry is in the part's set.
    Any(Vec<(Wanted, Self)>),
    /// Negation.
    Not(Box<Self>),
}
