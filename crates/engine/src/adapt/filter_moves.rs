//! Policy that decides after each observation which filters move between the kernel and threads.
//!
//! Input: the measured cost of a block, and its predicted cost if some nodes ran in other spaces.
//! Output: the moves to make, if any. A move is made only if several consecutive observations agree
//! on the nodes to move and on a sufficient saving ([`MoveThreshold`]), and only after a pause
//! since the previous move. Each repeated move of the same node multiplies this pause by eight, so
//! a path whose placements cost about the same soon stops moving.

use super::replicas::{CHANGE_PAUSE_MAX_NS, PAUSE_GROWTH_FACTOR};
use crate::change::NodePlacement;
use crate::path::RatePolicy;
use pipeline::graph::NodeId;
use std::collections::HashSet;

/// The evidence that the policy requires before it moves filters.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoveThreshold {
    /// Minimum saving for which the policy makes a move, as a fraction of the current cost of a
    /// block.
    saving_min: f64,
    /// Number of consecutive observations that must propose a move, beyond the number in
    /// [`RatePolicy::agreeing_observations`].
    extra_votes: u32,
}

impl MoveThreshold {
    /// The evidence that a move requires after the first seconds of a path. It is high because the
    /// costs come from short observations, and because the effect of a move is not verified later.
    pub(super) const AFTER_START: Self = Self { saving_min: 0.2, extra_votes: 1 };
    /// The evidence required during the first seconds of a path, when costs come from block counts
    /// alone. A placement that costs at most 1.1 times the minimum stays, which wastes at most one
    /// eleventh of its cost.
    pub(super) const DURING_START: Self = Self { saving_min: 1.0 / 11.0, extra_votes: 0 };
}

/// A proposal to move nodes to other spaces, with the average cost of a block before and after the
/// move.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MoveProposal {
    /// Average cost of a block in ns without the move.
    pub(super) current_cost_ns: f64,
    /// Predicted average cost of a block in ns with the move.
    pub(super) predicted_cost_ns: f64,
    /// The nodes to move, each with the name of its new space.
    pub(super) placements: Vec<NodePlacement>,
}

impl MoveProposal {
    fn has_required_saving(&self, threshold: MoveThreshold) -> bool {
        self.predicted_cost_ns <= self.current_cost_ns * (1.0 - threshold.saving_min)
    }
}

/// The policy that decides about moves of filters. It keeps its state from one observation to the
/// next.
#[derive(Debug)]
pub(super) struct MovePolicy {
    rate_policy: RatePolicy,
    threshold: MoveThreshold,
    /// Number of consecutive observations that have proposed the moves in `last`.
    votes: u32,
    last: Vec<NodePlacement>,
    /// Nodes that were moved at least once. A further move of one of these nodes lengthens the
    /// pause.
    moved: HashSet<NodeId>,
    /// Moves that the path has refused permanently, which are not proposed again.
    refused: Vec<Vec<NodePlacement>>,
    pause_until_ns: u64,
    pause_ns: u64,
}

impl MovePolicy {
    pub(super) fn new(rate_policy: RatePolicy, threshold: MoveThreshold) -> Self {
        Self {
            rate_policy,
            threshold,
            votes: 0,
            last: Vec::new(),
            moved: HashSet::new(),
            refused: Vec::new(),
            pause_until_ns: 0,
            pause_ns: rate_policy.pause_ns,
        }
    }

    /// Returns true if the last observation proposed moves that the policy will make if further
    /// observations propose them too.
    pub(super) const fn is_imminent(&self) -> bool {
        self.votes > 0
    }

    /// Decides whether to make the moves that an observation proposes. `at` is the time of the
    /// observation in ns, and `move_offer` is its proposal, if it has one. Returns the moves to
    /// make if enough consecutive observations after the pause propose the same moves with a
    /// sufficient saving. Otherwise returns `None`.
    pub(super) fn decide(
        &mut self,
        at: u64,
        move_offer: Option<&MoveProposal>,
    ) -> Option<Vec<NodePlacement>> {
        let move_offer = move_offer.filter(|move_offer| {
            move_offer.has_required_saving(self.threshold)
                && !self.refused.contains(&move_offer.placements)
        });
        let Some(move_offer) = move_offer.filter(|_| at >= self.pause_until_ns) else {
            self.votes = 0;
            return None;
        };
        if self.last != move_offer.placements {
            (self.last, self.votes) = (move_offer.placements.clone(), 0);
        }
        self.votes += 1;
        if self.votes < self.rate_policy.agreeing_observations + self.threshold.extra_votes {
            return None;
        }
        self.votes = 0;
        if move_offer.placements.iter().any(|(node, _)| self.moved.contains(node)) {
            self.pause_ns =
                self.pause_ns.saturating_mul(PAUSE_GROWTH_FACTOR).min(CHANGE_PAUSE_MAX_NS);
        }
        self.moved.extend(move_offer.placements.iter().map(|(node, _)| *node));
        self.pause_until_ns = at.saturating_add(self.pause_ns);
        Some(move_offer.placements.clone())
    }

    /// Records moves that were refused permanently. [`decide`](Self::decide) never returns them
    /// again.
    pub(super) fn record_refusal(&mut self, places: Vec<NodePlacement>) {
        self.refused.push(places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn move_policy() -> MovePolicy {
        MovePolicy::new(rate_policy(), MoveThreshold::AFTER_START)
    }

    fn rate_policy() -> RatePolicy {
        RatePolicy { observation_ns: 1, agreeing_observations: 2, pause_ns: SECOND_NS }
    }

    fn move_proposal(now: f64, then: f64, space: &str) -> MoveProposal {
        MoveProposal {
            current_cost_ns: now,
            predicted_cost_ns: then,
            placements: vec![(NodeId(1), space.to_owned())],
        }
    }

    #[test]
    fn v6_move_requires_a_saving_of_a_fifth_several_times() {
        let mut move_policy = move_policy();
        let (good, poor) =
            (move_proposal(100.0, 80.0, "kernel"), move_proposal(100.0, 81.0, "kernel"));
        assert!((0..9).all(|at| move_policy.decide(at, Some(&poor)).is_none()));
        assert_eq!(move_policy.decide(10, Some(&good)), None);
        assert_eq!(move_policy.decide(11, Some(&good)), None);
        assert_eq!(move_policy.decide(12, None), None);
        assert!(!move_policy.is_imminent());
        assert_eq!(move_policy.decide(13, Some(&good)), None);
        assert_eq!(move_policy.decide(14, Some(&good)), None);
        assert_eq!(move_policy.decide(15, Some(&good)), Some(good.placements.clone()));
        move_policy.record_refusal(good.placements.clone());
        assert!((2..9).all(|at| move_policy.decide(at * SECOND_NS, Some(&good)).is_none()));
    }

    #[test]
    fn v6_move_at_the_start_requires_a_saving_of_an_eleventh_twice() {
        let mut move_policy = MovePolicy::new(rate_policy(), MoveThreshold::DURING_START);
        let (good, poor) =
            (move_proposal(110.0, 100.0, "kernel"), move_proposal(109.0, 100.0, "kernel"));
        assert!((0..9).all(|at| move_policy.decide(at, Some(&poor)).is_none()));
        assert_eq!(move_policy.decide(10, Some(&good)), None);
        assert_eq!(move_policy.decide(11, Some(&good)), Some(good.placements));
    }

    #[test]
    fn v6_path_at_break_even_moves_ever_less_often() {
        let (mut move_policy, mut inside, mut made) = (move_policy(), false, Vec::new());
        // Each observation prefers the placement that is not in use, as it would under an
        // alternating load.
        for at in (0..4000 * SECOND_NS).step_by(SECOND_NS as usize / 10) {
            let space = if inside { "thread0" } else { "kernel" };
            if move_policy.decide(at, Some(&move_proposal(100.0, 50.0, space))).is_some() {
                inside = !inside;
                made.push(at / SECOND_NS);
            }
        }
        assert_eq!(made, [0, 1, 9, 73, 586], "each wait is eight times the one before");
    }
}
