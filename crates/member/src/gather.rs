//! Parallel queries of many peers, with one deadline for all. (RELIABILITY T8)
//!
//! ```text
//! peers by user ──► limited number in flight, shared equally by users ──► poll ──► answers
//!                                             deadline ──► `None` for the silent ones
//! ```
//!
//! A peer is a process of any user, and may be stopped or never reply. Each user has an equal share
//! of the queries in flight, so silent peers of one user cannot delay the peers of another,
//! regardless of their number. Blocks only while polling all peers, at most until the deadline.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Maximum number of outstanding queries at a time; each uses two descriptors.
const QUERIES_MAX: usize = 480;

/// A query whose answer is outstanding.
struct Query<P> {
    at: usize,
    uid: u32,
    peer: P,
}

/// Queries all peers, each given with its user id, and returns their answers in the same order. The
/// answer is `None` if it was incomplete after `limit`. Blocks for at most `limit`.
///
/// `begin` sends the query to a peer, and should not block. An `Err` is the final answer, for
/// example if the query cannot be sent. `next` is called whenever the peer is readable. It returns
/// `Break` with the complete answer, or `Continue` with the peer if the answer is still incomplete.
pub fn gather_answers<A, P: AsFd, R>(
    peers: &[(u32, A)],
    limit: Duration,
    mut begin: impl FnMut(&A) -> Result<P, R>,
    mut next: impl FnMut(&A, P) -> ControlFlow<R, P>,
) -> Vec<Option<R>> {
    let deadline = Instant::now() + limit;
    let mut answers: Vec<Option<R>> = peers.iter().map(|_| None).collect();
    let mut waiting = QueryQueue::new(peers.iter().map(|(uid, _)| *uid));
    let mut in_flight: Vec<Query<P>> = Vec::new();
    loop {
        while let Some((at, uid)) = waiting.next_peer(Instant::now() < deadline) {
            let Some((_, peer)) = peers.get(at) else { continue };
            match begin(peer) {
                Ok(peer) => in_flight.push(Query { at, uid, peer }),
                Err(answer) => {
                    waiting.release_slot(uid);
                    answers[at] = Some(answer);
                }
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if in_flight.is_empty() || left.is_zero() {
            return answers;
        }
        let descriptors: Vec<BorrowedFd<'_>> = in_flight.iter().map(|it| it.peer.as_fd()).collect();
        let ready = sys::poll::wait_until_readable(&descriptors, Some(left));
        for (it, ready) in std::mem::take(&mut in_flight).into_iter().zip(ready) {
            let Some((_, wanted)) = peers.get(it.at).filter(|_| ready) else {
                in_flight.push(it);
                continue;
            };
            match next(wanted, it.peer) {
                ControlFlow::Continue(peer) => in_flight.push(Query { peer, ..it }),
                ControlFlow::Break(answer) => {
                    waiting.release_slot(it.uid);
                    answers[it.at] = Some(answer);
                }
            }
        }
    }
}

/// The peers that have not been queried yet, in a queue for each user. `share` limits the
/// outstanding queries of a user, and `free` is the number of further queries that may be sent now.
struct QueryQueue {
    users: BTreeMap<u32, UserQueries>,
    share: usize,
    free: usize,
    /// User of the latest query, for the round-robin order; `None` before the first query.
    last_user: Option<u32>,
}

#[derive(Default)]
struct UserQueries {
    queue: VecDeque<usize>,
    in_flight: usize,
}

impl QueryQueue {
    fn new(uids: impl Iterator<Item = u32>) -> Self {
        let mut users: BTreeMap<u32, UserQueries> = BTreeMap::new();
        for (at, uid) in uids.enumerate() {
            users.entry(uid).or_default().queue.push_back(at);
        }
        let descriptors =
            usize::try_from(sys::process::raise_descriptor_limit()).unwrap_or(usize::MAX);
        let free = (descriptors.saturating_sub(64) / 3).clamp(4, QUERIES_MAX);
        let share = (free / users.len().max(1)).max(1);
        Self { users, share, free, last_user: None }
    }

    /// Removes the next peer from the queue, and returns its index and user. Users with less than
    /// their share of outstanding queries take turns. Returns `None` if there is no such peer, if
    /// too many queries are outstanding, or if `in_time` is false because the deadline has passed.
    fn next_peer(&mut self, in_time: bool) -> Option<(usize, u32)> {
        let may = |user: &UserQueries| user.in_flight < self.share && !user.queue.is_empty();
        let mut behind =
            self.users.iter().filter(|(uid, user)| Some(**uid) > self.last_user && may(user));
        let first = || self.users.iter().find(|(_, user)| may(user));
        let uid = behind.next().or_else(first).map(|(uid, _)| *uid);
        let uid = uid.filter(|_| in_time && self.free > 0)?;
        let user = self.users.get_mut(&uid)?;
        let at = user.queue.pop_front()?;
        user.in_flight += 1;
        self.free -= 1;
        self.last_user = Some(uid);
        Some((at, uid))
    }

    /// Records that a query of this user is no longer outstanding, so that another peer can be
    /// queried.
    fn release_slot(&mut self, uid: u32) {
        self.free += 1;
        if let Some(user) = self.users.get_mut(&uid) {
            user.in_flight -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    /// User id of peers that never reply.
    const SILENT_USER: u32 = 41_001;
    /// User id of peers that reply.
    const REPLYING_USER: u32 = 41_002;

    /// Queries test peers, and returns their answers. Each peer is a pair of its user id and a flag
    /// that is true if the peer replies.
    fn query_peers(peers: &[(u32, bool)], limit: Duration) -> Vec<Option<()>> {
        let peers: Vec<(u32, bool)> = peers.to_vec();
        let mut kept: Vec<OwnedFd> = Vec::new();
        let begin = |speaks: &bool| {
            let (own_end, peer_end) = sys::descriptor::socket_pair().unwrap();
            if *speaks {
                sys::descriptor::send(&peer_end, b"here", &[]).unwrap();
            }
            kept.push(peer_end);
            Ok(own_end)
        };
        gather_answers(&peers, limit, begin, |_, own_end| {
            sys::descriptor::receive(&own_end, &mut [0; 8]).unwrap();
            ControlFlow::Break(())
        })
    }

    #[test]
    fn silent_peers_of_one_user_delay_no_others() {
        let mut peers = vec![(SILENT_USER, false); 10_000];
        peers.extend([(REPLYING_USER, true); 300]);
        peers.insert(5000, (REPLYING_USER, true));
        let answers = query_peers(&peers, Duration::from_millis(700));
        let spoke = |at: usize| peers[at].1;
        for (at, answer) in answers.iter().enumerate() {
            assert_eq!(answer.is_some(), spoke(at), "{at}");
        }
    }

    #[test]
    fn all_replying_peers_are_gathered() {
        let answers = query_peers(&[(REPLYING_USER, true); 2000], testkit::wait::WAIT_TIMEOUT);
        assert!(answers.iter().all(Option::is_some));
        let answers = gather_answers(
            &[(0, 1), (0, 2)],
            testkit::wait::WAIT_TIMEOUT,
            |n| Err(*n),
            |_, own_end: OwnedFd| ControlFlow::Continue(own_end),
        );
        assert_eq!(answers, [Some(1), Some(2)]);
    }
}
