//! The end of a replica: what its filters let out when nothing more comes, session by session, in
//! the order that one instance would keep. [Th §5.4; CONTRACT 16]
//!
//! One instance ends filter after filter, and each lets its sessions out in the order in which they
//! began. Replicas number sessions apart, so their numbers do not tell that order; the turn of the
//! block that began a session does, which is one word for all replicas ([`crate::copies`]). So the
//! session filter notes it, and at the end every filter is ended one session at a time. What comes
//! out bears the **step** (which filter of the chain ends) and the **rank** of the session: its
//! turn before the last one. The join merges replicas by both ([`super::behind`]).
//!
//! Ranks are exact for sessions that began within the last 2²⁶ bursts.

use super::node::{Node, NodeId, Part};
use super::walk::Walk;
use super::{Clock, Input, Space};
use crate::copies::{BEHIND, Board};
use filter::{Filter, Moved, PRIVATE, Time};
use std::collections::HashMap;

/// Birth times of sessions.
#[derive(Debug, Default)]
pub(crate) struct Births {
    /// Turns of the blocks that began them, by number of session.
    turns: HashMap<u32, u32>,
    /// Maximum number of entries before those of ended sessions are forgotten.
    most: usize,
}

/// As many births are kept at least before it is looked which sessions have ended.
const BIRTHS_MIN: usize = 4096;

impl Births {
    /// Adds sessions.
    pub(super) fn add(&mut self, begun: Vec<(u32, u32)>) {
        self.turns.extend(begun);
    }

    /// Returns true if it should be looked which sessions have ended.
    pub(super) fn are_many(&self) -> bool {
        self.turns.len() > self.most.max(BIRTHS_MIN)
    }

    /// Forgets all but these, and answers for twice as many.
    fn keep(&mut self, live: impl Iterator<Item = u32>) {
        let live = live.filter_map(|session| Some((session, *self.turns.get(&session)?)));
        self.turns = live.collect();
        self.most = 2 * self.turns.len();
    }

    /// The rank of a session, where the first turn behind all others is `end`.
    fn rank(&self, session: u64, end: u32) -> u32 {
        let number = u32::try_from(session).unwrap_or(u32::MAX);
        // Sessions that a filter before the chain numbered have one order as they are.
        self.turns.get(&number).map_or(number, |turn| turn.wrapping_sub(end))
    }
}

/// The sessions of a filter that has a replica in a space, taken out of it to be ended one by one.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Sessions by rank, the last first.
    sessions: Vec<(u32, Moved)>,
}

impl Leaving {
    /// Takes all sessions out of a filter. What it keeps beside them stays.
    pub(super) fn of(node: &mut Node, births: &Births, end: u32) -> Self {
        let Part::Filter(Filter::Stream(filter)) = &mut node.part else { return Self::default() };
        let Some(state) = filter.state() else { return Self::default() };
        let keys = state.sessions().into_iter().filter(|key| *key != PRIVATE);
        let mut ranked: Vec<(u32, u64)> =
            keys.map(|key| (births.rank(state.number(key), end), key)).collect();
        ranked.sort_unstable_by(|one, other| other.cmp(one));
        let taken = ranked.into_iter().filter_map(|(rank, key)| {
            let moved = state.take(key, &mut node.holds)?;
            Some((rank, moved))
        });
        Self { sessions: taken.collect() }
    }

    /// The rank of the next session, if there is one.
    pub(super) fn next(&self) -> Option<u32> {
        self.sessions.last().map(|(rank, _)| *rank)
    }
}

impl Walk<'_, '_> {
    /// Ends a filter that is a replica: session by session, then what it keeps beside them.
    pub(super) fn finish_replica(&mut self, at: NodeId) {
        self.turn.step += 1;
        let mut leaving = Leaving::of(&mut self.nodes[at], &self.turn.births, self.turn.end);
        while leaving.next().is_some() && self.turn.failure.is_none() {
            self.finish_session(at, &mut leaving);
        }
        self.out_of_turn(at, true, BEHIND);
    }

    /// Ends the next session of a filter.
    pub(super) fn finish_session(&mut self, at: NodeId, leaving: &mut Leaving) {
        let Some((rank, moved)) = leaving.sessions.pop() else { return };
        let node = &mut self.nodes[at];
        if let Part::Filter(Filter::Stream(filter)) = &mut node.part
            && let Some(state) = filter.state()
        {
            // What was taken from it fits it.
            let back = state.put(moved, &mut node.holds);
            debug_assert!(back.is_ok(), "{back:?}");
        }
        self.out_of_turn(at, true, rank);
    }
}

impl Space {
    /// Learns when the last blocks came, before a replica ends here: all replicas go by that.
    pub(super) fn ends_replica(&mut self, now: Time) -> Time {
        let known = self.board().map(|board| (board.end(), board.clock()));
        let Some((end, clock)) = known else { return now };
        self.graph.turn.end = end;
        self.graph.clock.not_before(clock, now)
    }

    /// Says that nothing more is shared out here: the replicas may end, before the one beside.
    pub(super) fn close_deal(&mut self, at: NodeId) {
        let Part::Deal(deal) = &self.graph.nodes[at].part else { return };
        deal.close(match self.graph.clock {
            Clock::Blocks(newest) => newest,
            Clock::Live => 0,
        });
        let replicas: Vec<NodeId> = self.graph.nodes[at].arcs.iter().map(|arc| arc.to).collect();
        for to in replicas {
            if let Part::Export(export) = &mut self.graph.nodes[to].part {
                export.close();
            }
        }
    }

    /// Returns the board of the replica chain, if a replica runs here.
    fn board(&self) -> Option<&Board> {
        let deal =
            self.graph.shape.deals.first().and_then(|at| match &self.graph.nodes[*at].part {
                Part::Deal(deal) => Some(deal.board()),
                _ => None,
            });
        let input = self.inputs.iter().find_map(|input| match input {
            Input::Copy { own, .. } => Some(&*own.board),
            Input::Join(gather) => Some(gather.board()),
            _ => None,
        });
        deal.or(input)
    }

    /// Forgets when sessions began that have ended.
    pub(super) fn forget_births(&mut self) {
        if !self.graph.turn.births.are_many() {
            return;
        }
        let mut live = Vec::new();
        for node in self.graph.nodes.iter_mut().filter(|node| node.copied) {
            let Part::Filter(Filter::Stream(filter)) = &mut node.part else { continue };
            let Some(state) = filter.state() else { continue };
            let keys = state.sessions().into_iter();
            live.extend(keys.filter_map(|key| u32::try_from(state.number(key)).ok()));
        }
        self.graph.turn.births.keep(live.into_iter());
    }
}
