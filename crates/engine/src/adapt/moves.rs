//! Decision logic that moves filters between the kernel and a thread, one observation after the
//! other.
//!
//! In: the measured cost of a block, and its predicted cost with some nodes elsewhere. Out: to move
//! them, or nothing. A move must save a fifth, in several observations in a row that name the same
//! nodes, and a while after the last move. Undoing a move multiplies the wait before the next one
//! by eight: at break-even, a path comes to rest.

use super::copies::{LONGER, REST_MAX};
use crate::change::Place;
use crate::path::Pace;
use pipeline::graph::NodeId;
use std::collections::HashSet;

/// Minimum saving per block, as a fraction of its cost.
const SAVES: f64 = 0.2;
/// Observations required beyond those for replicas: no later measurement tells if a move was right.
const LOOKS_MORE: u32 = 1;

/// A proposed move.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offer {
    /// Cost of a block in ns: now, and with these nodes elsewhere.
    pub(super) now: f64,
    pub(super) then: f64,
    pub(super) places: Vec<Place>,
}

impl Offer {
    fn pays(&self) -> bool {
        self.then <= self.now * (1.0 - SAVES)
    }
}

/// State kept between observations.
#[derive(Debug)]
pub(super) struct Moves {
    pace: Pace,
    /// The looks in a row that offered the same.
    votes: u32,
    last: Vec<Place>,
    /// Nodes that were moved at least once: moving one again lengthens the wait.
    moved: HashSet<NodeId>,
    /// Moves that were refused.
    refused: Vec<Vec<Place>>,
    rests_until: u64,
    rest: u64,
}

impl Moves {
    pub(super) fn new(pace: Pace) -> Self {
        Self {
            pace,
            votes: 0,
            last: Vec::new(),
            moved: HashSet::new(),
            refused: Vec::new(),
            rests_until: 0,
            rest: pace.rest_ns,
        }
    }

    /// Returns true if a move is imminent.
    pub(super) const fn is_near(&self) -> bool {
        self.votes > 0
    }

    /// Decides on a proposal made at `at`, in ns: returns the moves to make, or none.
    pub(super) fn next(&mut self, at: u64, offer: Option<&Offer>) -> Option<Vec<Place>> {
        let offer = offer.filter(|offer| offer.pays() && !self.refused.contains(&offer.places));
        let Some(offer) = offer.filter(|_| at >= self.rests_until) else {
            self.votes = 0;
            return None;
        };
        if self.last != offer.places {
            (self.last, self.votes) = (offer.places.clone(), 0);
        }
        self.votes += 1;
        if self.votes < self.pace.looks + LOOKS_MORE {
            return None;
        }
        self.votes = 0;
        if offer.places.iter().any(|(node, _)| self.moved.contains(node)) {
            self.rest = self.rest.saturating_mul(LONGER).min(REST_MAX);
        }
        self.moved.extend(offer.places.iter().map(|(node, _)| *node));
        self.rests_until = at.saturating_add(self.rest);
        Some(offer.places.clone())
    }

    /// Records that these moves were refused for a permanent reason.
    pub(super) fn is_refused(&mut self, places: Vec<Place>) {
        self.refused.push(places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn moves() -> Moves {
        Moves::new(Pace { look_ns: 1, looks: 2, rest_ns: SECOND })
    }

    fn offer(now: f64, then: f64, space: &str) -> Offer {
        Offer { now, then, places: vec![(NodeId(1), space.to_owned())] }
    }

    #[test]
    fn v6_a_move_must_pay_by_a_fifth_several_times_in_a_row() {
        let mut moves = moves();
        let (good, poor) = (offer(100.0, 80.0, "kernel"), offer(100.0, 81.0, "kernel"));
        assert!((0..9).all(|at| moves.next(at, Some(&poor)).is_none()));
        assert_eq!(moves.next(10, Some(&good)), None);
        assert_eq!(moves.next(11, Some(&good)), None);
        assert_eq!(moves.next(12, None), None);
        assert!(!moves.is_near());
        assert_eq!(moves.next(13, Some(&good)), None);
        assert_eq!(moves.next(14, Some(&good)), None);
        assert_eq!(moves.next(15, Some(&good)), Some(good.places.clone()));
        moves.is_refused(good.places.clone());
        assert!((2..9).all(|at| moves.next(at * SECOND, Some(&good)).is_none()));
    }

    #[test]
    fn v6_at_the_border_a_path_comes_to_rest() {
        let (mut moves, mut inside, mut made) = (moves(), false, Vec::new());
        // Whatever it does, the other one is better: as a load says that changes with each look.
        for at in (0..4000 * SECOND).step_by(SECOND as usize / 10) {
            let space = if inside { "thread0" } else { "kernel" };
            if moves.next(at, Some(&offer(100.0, 50.0, space))).is_some() {
                inside = !inside;
                made.push(at / SECOND);
            }
        }
        assert_eq!(made, [0, 1, 9, 73, 586], "each wait is eight times the one before");
    }
}
