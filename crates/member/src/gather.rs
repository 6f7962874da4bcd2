//! Asks many peers at once, with one deadline for all of them. (RELIABILITY T8)
//!
//! ```text
//!  peers by user ──► at most so many at a time, as many of each user ──► poll ──► answers
//!                                                   the deadline ──► who did not answer
//! ```
//!
//! A peer is a process of any user: it may be stopped, or never answer. Each user has an equal
//! share of the places, so that mute peers of one user hold up answers of no other, however many
//! they are. Nothing waits for a peer but the poll of all, until the deadline.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// The most peers that are asked at the same time: each has two descriptors.
const PLACES_MAX: usize = 480;

/// A peer that was begun to be asked.
struct Asked<P> {
    at: usize,
    uid: u32,
    peer: P,
}

/// Asks all peers and returns what each answered, in their order; `None`: no answer came within
/// `limit`, or there was no place for it. `begin` sends the question and must not wait for the
/// peer; an `Err` is an answer. `next` is called when the peer can be read, and continues with it
/// until its answer is whole.
pub fn gather<A, P: AsFd, R>(
    peers: &[(u32, A)],
    limit: Duration,
    mut begin: impl FnMut(&A) -> Result<P, R>,
    mut next: impl FnMut(&A, P) -> ControlFlow<R, P>,
) -> Vec<Option<R>> {
    let deadline = Instant::now() + limit;
    let mut answers: Vec<Option<R>> = peers.iter().map(|_| None).collect();
    let mut waiting = Waiting::new(peers.iter().map(|(uid, _)| *uid));
    let mut asked: Vec<Asked<P>> = Vec::new();
    loop {
        while let Some((at, uid)) = waiting.next(Instant::now() < deadline) {
            let Some((_, peer)) = peers.get(at) else { continue };
            match begin(peer) {
                Ok(peer) => asked.push(Asked { at, uid, peer }),
                Err(answer) => {
                    waiting.leaves(uid);
                    answers[at] = Some(answer);
                }
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if asked.is_empty() || left.is_zero() {
            return answers;
        }
        let descriptors: Vec<BorrowedFd<'_>> = asked.iter().map(|it| it.peer.as_fd()).collect();
        let ready = sys::poll::readable(&descriptors, Some(left));
        for (it, ready) in std::mem::take(&mut asked).into_iter().zip(ready) {
            let Some((_, wanted)) = peers.get(it.at).filter(|_| ready) else {
                asked.push(it);
                continue;
            };
            match next(wanted, it.peer) {
                ControlFlow::Continue(peer) => asked.push(Asked { peer, ..it }),
                ControlFlow::Break(answer) => {
                    waiting.leaves(it.uid);
                    answers[it.at] = Some(answer);
                }
            }
        }
    }
}

/// Peers not yet asked, by user, and the indexes of each user.
struct Waiting {
    users: BTreeMap<u32, User>,
    share: usize,
    free: usize,
    /// The user whose turn it was.
    last: Option<u32>,
}

#[derive(Default)]
struct User {
    queue: VecDeque<usize>,
    asked: usize,
}

impl Waiting {
    fn new(uids: impl Iterator<Item = u32>) -> Self {
        let mut users: BTreeMap<u32, User> = BTreeMap::new();
        for (at, uid) in uids.enumerate() {
            users.entry(uid).or_default().queue.push_back(at);
        }
        let descriptors =
            usize::try_from(sys::process::raise_descriptor_limit()).unwrap_or(usize::MAX);
        let free = (descriptors.saturating_sub(64) / 3).clamp(4, PLACES_MAX);
        let share = (free / users.len().max(1)).max(1);
        Self { users, share, free, last: None }
    }

    /// The next peer that has a place, one user after the other; `None`: all places are taken, or
    /// there is no time any more.
    fn next(&mut self, in_time: bool) -> Option<(usize, u32)> {
        let may = |user: &User| user.asked < self.share && !user.queue.is_empty();
        let mut behind =
            self.users.iter().filter(|(uid, user)| Some(**uid) > self.last && may(user));
        let first = || self.users.iter().find(|(_, user)| may(user));
        let uid = behind.next().or_else(first).map(|(uid, _)| *uid);
        let uid = uid.filter(|_| in_time && self.free > 0)?;
        let user = self.users.get_mut(&uid)?;
        let at = user.queue.pop_front()?;
        user.asked += 1;
        self.free -= 1;
        self.last = Some(uid);
        Some((at, uid))
    }

    /// The place of a peer of this user is free again.
    fn leaves(&mut self, uid: u32) {
        self.free += 1;
        if let Some(user) = self.users.get_mut(&uid) {
            user.asked -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    const MUTE: u32 = 41_001;
    const OTHER: u32 = 41_002;

    /// Asks peers of which some never answer; which answered.
    fn ask(peers: &[(u32, bool)], limit: Duration) -> Vec<Option<()>> {
        let peers: Vec<(u32, bool)> = peers.to_vec();
        let mut kept: Vec<OwnedFd> = Vec::new();
        let begin = |speaks: &bool| {
            let (near, far) = sys::descriptor::pair().unwrap();
            if *speaks {
                sys::descriptor::send(&far, b"here", &[]).unwrap();
            }
            kept.push(far);
            Ok(near)
        };
        gather(&peers, limit, begin, |_, near| {
            sys::descriptor::receive(&near, &mut [0; 8]).unwrap();
            ControlFlow::Break(())
        })
    }

    #[test]
    fn mute_peers_of_one_user_hide_nobody() {
        let mut peers = vec![(MUTE, false); 10_000];
        peers.extend([(OTHER, true); 300]);
        peers.insert(5000, (OTHER, true));
        let answers = ask(&peers, Duration::from_millis(700));
        let spoke = |at: usize| peers[at].1;
        for (at, answer) in answers.iter().enumerate() {
            assert_eq!(answer.is_some(), spoke(at), "{at}");
        }
    }

    #[test]
    fn peers_that_answer_are_all_heard() {
        let answers = ask(&[(OTHER, true); 2000], testkit::wait::LIMIT);
        assert!(answers.iter().all(Option::is_some));
        let answers = gather(
            &[(0, 1), (0, 2)],
            testkit::wait::LIMIT,
            |n| Err(*n),
            |_, near: OwnedFd| ControlFlow::Continue(near),
        );
        assert_eq!(answers, [Some(1), Some(2)]);
    }
}
