//! Moves of sessions from one replica to another, while the dispatcher and the replicas are paused.
//! [Th §5.4; CONTRACT 15, 16]
//!
//! Input: buckets of sessions ([`crate::replicas::balance`]). A bucket contains the sessions that
//! the dispatcher assigns to a replica together. The filter that numbers the sessions finds the
//! sessions of a bucket by their keys. The filters downstream of it find them by their numbers; the
//! filters upstream of it have no sessions. If the sessions were numbered upstream of the chain,
//! all filters find them by number. The sessions are copied to the other replica with their held
//! blocks, and then removed from the first one. The moved blocks count as consumed by the first
//! replica and as made by the other, as when a filter moves to another space.

use super::Space;
use super::node::{Node, Operator};
use super::saved_state::{SavedState, add_amounts};
use crate::replicas::balance::{SessionMove, SessionShares};
use filter::sharing::ShardKey;
use filter::{Amount, PRIVATE_SESSION_KEY};
use std::collections::HashSet;
use std::time::Duration;

/// The sessions of all filters of a replica, copied for another replica.
#[derive(Debug, Default)]
pub struct MovedSessions {
    /// The state of each filter of the replica chain, in the order of the chain.
    filters: Vec<SavedState>,
    /// The number of each moved session, with the sequence number of the session's first block.
    births: Vec<(u32, u32)>,
    /// Number of sessions that move, counted at the first filter of the chain that has sessions.
    pub sessions: usize,
    /// True if a filter of the chain can determine which sessions belong to a bucket of the
    /// dispatcher.
    are_found: bool,
}

impl MovedSessions {
    /// Returns the number of held blocks, and the number of bytes in their views.
    #[must_use]
    pub fn held_amount(&self) -> Amount {
        self.filters.iter().map(SavedState::held_amount).fold(Amount::default(), add_amounts)
    }
}

impl Space {
    /// Returns the load of each bucket of sessions: its replica, and the number of blocks that the
    /// dispatcher in this space has sent to the bucket since the last call. Returns `None` if there
    /// is no dispatcher, or if its sessions cannot move.
    pub fn take_session_shares(&mut self) -> Option<SessionShares> {
        let at = *self.graph.shape.dispatchers.first()?;
        match &mut self.graph.nodes[at].operator {
            Operator::Dispatch(dispatcher) => dispatcher.take_bucket_shares(),
            _ => None,
        }
    }

    /// Blocks for at most `limit` until all replicas in other spaces have processed the blocks from
    /// the dispatcher in this space. Returns false if the limit expires first. The caller must have
    /// stopped this space and flushed its outputs.
    #[must_use]
    pub fn wait_for_replicas(&self, limit: Duration) -> bool {
        let mut dispatchers = self.graph.shape.dispatchers.iter();
        dispatchers.all(|at| match &self.graph.nodes[*at].operator {
            Operator::Dispatch(dispatcher) => dispatcher.wait_for_replicas(limit),
            _ => true,
        })
    }

    /// Makes the dispatcher send the blocks of the session buckets in `chosen` to another replica.
    /// That replica must already have the sessions of these buckets.
    pub fn reassign_buckets(&mut self, chosen: &SessionMove) {
        let Some(at) = self.graph.shape.dispatchers.first().copied() else { return };
        if let Operator::Dispatch(dispatcher) = &mut self.graph.nodes[at].operator {
            dispatcher.reassign(&chosen.buckets, chosen.to);
        }
    }

    /// Copies the sessions in some buckets of the dispatcher from the replica in this space, whose
    /// state does not change. `buckets` contains the numbers of these buckets, and must be sorted.
    /// `sharing` is the property of blocks by which the dispatcher assigns them to buckets.
    pub fn copy_sessions(&mut self, sharing: ShardKey, buckets: &[u16]) -> MovedSessions {
        let mut moved = MovedSessions::default();
        let mut numbers: Option<HashSet<u64>> = None;
        for at in self.replica_filters() {
            let finds = numbers.is_none() && self.can_find_sessions(at, sharing);
            let mut found = HashSet::new();
            let mut wanted = |key: u64, number: u64| {
                let is_wanted = key != PRIVATE_SESSION_KEY
                    && match (&numbers, sharing) {
                        (Some(numbers), ShardKey::Flow) => numbers.contains(&number),
                        (None, ShardKey::Flow) if !finds => false,
                        _ => {
                            let bucket =
                                crate::replicas::dispatch::session_bucket(sharing, key, number);
                            bucket.is_some_and(|bucket| buckets.binary_search(&bucket).is_ok())
                        }
                    };
                if is_wanted {
                    found.insert(number);
                }
                is_wanted
            };
            let mut sessions = Vec::new();
            let mut put = |session| {
                sessions.push(session);
                Some(())
            };
            let wake = self.save_node_sessions(at, &mut wanted, &mut put).flatten();
            if finds {
                (moved.sessions, moved.are_found) = (sessions.len(), true);
                numbers = Some(found);
            }
            moved.filters.push(SavedState { sessions, wake });
        }
        let births = &self.graph.pass.births.first_seqs;
        let numbers = numbers.into_iter().flatten().filter_map(|number| u32::try_from(number).ok());
        moved.births = numbers.filter_map(|number| Some((number, *births.get(&number)?))).collect();
        moved
    }

    /// Adds the sessions in `moved` to the replica in this space. Fails without effect if no memory
    /// is available, if the two replicas have different filters, or if no filter finds the sessions
    /// of a bucket.
    pub fn add_sessions(&mut self, moved: &MovedSessions) -> Result<(), String> {
        if !moved.are_found {
            return Err("no filter of the replicas identifies their sessions".to_owned());
        }
        let filters = self.replica_filters();
        if filters.len() != moved.filters.len() {
            return Err("the replicas have different filters".to_owned());
        }
        for (done, (at, saved)) in filters.iter().zip(&moved.filters).enumerate() {
            if let Err(why) =
                self.with_detached_node(*at, |space, node| space.load_sessions(node, saved))
            {
                for (at, saved) in filters.iter().zip(&moved.filters).take(done + 1) {
                    self.with_detached_node(*at, |space, node| {
                        space.remove_sessions(node, &session_keys(saved))
                    });
                }
                return Err(why);
            }
        }
        for (at, saved) in filters.iter().zip(&moved.filters) {
            let (node, held) = (&mut self.graph.nodes[*at], saved.held_amount());
            node.counts.made = add_amounts(node.counts.made, held);
            node.counts.held = add_amounts(node.counts.held, held);
            node.wake = node.wake.into_iter().chain(saved.wake).min();
        }
        self.graph.pass.births.add(moved.births.clone());
        Ok(())
    }

    /// Removes the sessions that another replica has taken over. Their held blocks count as
    /// consumed.
    pub fn remove_moved_sessions(&mut self, moved: &MovedSessions) {
        for (at, saved) in self.replica_filters().into_iter().zip(&moved.filters) {
            self.with_detached_node(at, |space, node| {
                space.remove_sessions(node, &session_keys(saved))
            });
            let (node, held) = (&mut self.graph.nodes[at], saved.held_amount());
            node.counts.consumed = add_amounts(node.counts.consumed, held);
            node.counts.held.blocks = node.counts.held.blocks.saturating_sub(held.blocks);
            node.counts.held.bytes = node.counts.held.bytes.saturating_sub(held.bytes);
        }
    }

    /// Returns the node indices of the filters of the replica in this space, in the order of the
    /// chain.
    fn replica_filters(&self) -> Vec<usize> {
        let nodes = self.graph.nodes.iter().enumerate();
        let filters = nodes
            .filter(|(_, node)| node.is_replica && matches!(node.operator, Operator::Filter(_)));
        filters.map(|(at, _)| at).collect()
    }

    /// Returns true if the filter at node `at` can determine which sessions belong to a bucket of
    /// the dispatcher. This is the filter that numbers the sessions. If they were numbered upstream
    /// of the replica chain, it is any filter with sessions.
    fn can_find_sessions(&mut self, at: usize, sharing: ShardKey) -> bool {
        let node = &mut self.graph.nodes[at];
        match (&mut node.operator, sharing) {
            (Operator::Filter(filter), ShardKey::Session) => filter.state().is_some(),
            _ => node.numbers_sessions,
        }
    }

    /// Removes the node with index `at` from the graph, calls `work` with it, and puts it back.
    fn with_detached_node<T>(&mut self, at: usize, work: impl FnOnce(&Self, &mut Node) -> T) -> T {
        let place = Node::new("", usize::MAX, Operator::Pass, filter::Counts::default());
        let mut node = std::mem::replace(&mut self.graph.nodes[at], place);
        let result = work(self, &mut node);
        self.graph.nodes[at] = node;
        result
    }
}

fn session_keys(saved: &SavedState) -> Vec<u64> {
    saved.sessions.iter().map(|session| session.key).collect()
}
