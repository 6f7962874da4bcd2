//! The choice of sessions that move from one replica to another. [Th §5.4], RSS++
//!
//! Sessions are hashed into buckets. The choice depends only on the number of blocks of each bucket
//! in an interval, and on the replica of each bucket. The chosen buckets move from the replica with
//! the most blocks to the one with the fewest. A bucket that has more blocks than half of the
//! difference between these two replicas (an elephant) does not move; other buckets of the busiest
//! replica move instead. The bucket of blocks without a session does not move either
//! ([`can_move_bucket`]).

use super::dispatch::can_move_bucket;

/// The blocks that arrived in an interval, by bucket of sessions, and the replica of each bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionShares {
    /// Index of the replica that owns each bucket of sessions. If a bucket has had no blocks so
    /// far, its value exceeds the indices of all replicas.
    pub replicas: Box<[u8]>,
    /// Number of blocks that arrived in the interval, for each bucket of sessions.
    pub blocks: Box<[u32]>,
    /// Number of replicas in the replica chain.
    pub replica_count: usize,
}

/// A decision to move buckets of sessions from one replica to another, with the expected effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionMove {
    /// Index of the replica that received the most blocks. The moved buckets of sessions leave this
    /// replica.
    pub from: u8,
    /// Index of the replica that received the fewest blocks. The buckets move to this replica.
    pub to: u8,
    /// Numbers of the buckets of sessions that move, in ascending order.
    pub buckets: Vec<u16>,
    /// Percentage of all blocks in the measured interval that the replica `from` received.
    pub before: u8,
    /// Percentage of all blocks in the measured interval that the replica `from` would have
    /// received without the moved buckets.
    pub after: u8,
}

/// Minimum number of blocks in an interval. In an interval with fewer blocks, no move is chosen.
const INTERVAL_BLOCKS_MIN: u64 = 4096;
/// Maximum load that the busiest replica may have after a move, as a fraction of its load before. A
/// move that relieves the replica less is not worthwhile.
const REMAINING_LOAD_FRACTION_MAX: f64 = 0.9;
/// Maximum number of buckets of sessions in one move. It bounds the time for which the chain of
/// replicas pauses during a move.
const MOVED_BUCKETS_MAX: usize = 512;

impl SessionShares {
    /// Returns the number of blocks that each replica received in the interval.
    #[must_use]
    pub fn replica_block_counts(&self) -> Vec<u64> {
        let mut loads = vec![0; self.replica_count];
        for (replica, blocks) in self.replicas.iter().zip(&self.blocks) {
            if let Some(load) = loads.get_mut(usize::from(*replica)) {
                *load += u64::from(*blocks);
            }
        }
        loads
    }

    /// Returns the move that relieves the busiest replica. Returns `None` if no move reduces the
    /// load of that replica by at least a tenth, or if the interval has fewer than
    /// `INTERVAL_BLOCKS_MIN` blocks.
    #[must_use]
    pub fn choose_move(&self) -> Option<SessionMove> {
        let loads = self.replica_block_counts();
        let total: u64 = loads.iter().sum();
        let (from, most) = (0..).zip(&loads).max_by_key(|(_, load)| **load)?;
        let (to, least) = (0..).zip(&loads).min_by_key(|(_, load)| **load)?;
        if total < INTERVAL_BLOCKS_MIN || from == to {
            return None;
        }
        let mut room = (most - least) / 2;
        let mut buckets: Vec<(u32, u16)> = (0..)
            .zip(self.replicas.iter().zip(&self.blocks))
            .filter(|(bucket, _)| can_move_bucket(*bucket))
            .filter(|(_, (replica, blocks))| **replica == from && **blocks > 0)
            .map(|(bucket, (_, blocks))| (*blocks, bucket))
            .collect();
        // Heaviest buckets first, so that few sessions move.
        buckets.sort_unstable_by(|one, other| other.cmp(one));
        buckets.retain(|(blocks, _)| {
            let fits = u64::from(*blocks) <= room;
            room -= if fits { u64::from(*blocks) } else { 0 };
            fits
        });
        buckets.truncate(MOVED_BUCKETS_MAX);
        let moved = buckets.iter().map(|(blocks, _)| u64::from(*blocks)).sum::<u64>();
        if (most - moved) as f64 > REMAINING_LOAD_FRACTION_MAX * *most as f64 {
            return None;
        }
        let mut buckets: Vec<u16> = buckets.into_iter().map(|(_, bucket)| bucket).collect();
        buckets.sort_unstable();
        // The percentage is at most 100.
        let percent = |part: u64| u8::try_from(part * 100 / total).unwrap_or(100);
        let (before, after) = (percent(*most), percent(most - moved));
        Some(SessionMove { from, to, buckets, before, after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session_shares(of: &[(u8, u32)]) -> SessionShares {
        SessionShares {
            replicas: of.iter().map(|(replica, _)| *replica).collect(),
            blocks: of.iter().map(|(_, blocks)| *blocks).collect(),
            replica_count: 2,
        }
    }

    #[test]
    fn n3_light_sessions_leave_the_replica_of_a_heavy_one() {
        let elephant =
            session_shares(&[(0, 6000), (0, 1000), (1, 1000), (0, 900), (0, 100), (255, 0)]);
        assert_eq!(
            elephant.choose_move(),
            Some(SessionMove { from: 0, to: 1, buckets: vec![1, 3, 4], before: 88, after: 66 })
        );
        // The elephant is alone on its replica, so no move helps.
        let alone = session_shares(&[(0, 6000), (1, 1000), (1, 1000), (1, 900), (1, 100)]);
        assert_eq!(alone.choose_move(), None);
    }

    #[test]
    fn n3_heavy_session_moves_if_that_balances_replicas() {
        let two = session_shares(&[(0, 3000), (0, 3000), (1, 10), (0, 20)]);
        let moved = two.choose_move().unwrap();
        assert_eq!((moved.buckets.as_slice(), moved.before, moved.after), (&[1][..], 99, 50));
    }

    #[test]
    fn n3_small_differences_and_few_blocks_move_nothing() {
        assert_eq!(session_shares(&[(0, 5200), (1, 4800)]).choose_move(), None);
        assert_eq!(session_shares(&[(0, 400), (0, 300), (1, 1)]).choose_move(), None);
        assert_eq!(session_shares(&[(0, 5000), (0, 5000)]).choose_move().unwrap().buckets.len(), 1);
        let one = SessionShares { replica_count: 1, ..session_shares(&[(0, 9000)]) };
        assert_eq!(one.choose_move(), None);
    }

    /// Blocks without a session do not move, because the state that a filter keeps for them is
    /// private to a replica.
    #[test]
    fn n3_blocks_without_a_session_are_not_moved() {
        let heavy = session_shares(&[(0, 4000), (0, 3000), (1, 10), (0, 3000)]);
        assert_eq!(heavy.choose_move().unwrap().buckets, [3]);
        assert_eq!(session_shares(&[(0, 3000), (0, 9000), (1, 10)]).choose_move(), None);
    }

    /// Repeated moves lead to a distribution for which no further move is chosen.
    #[test]
    fn n3_repeated_moves_reach_a_balance() {
        let mut random = testkit::Random::with_replayable_seed();
        for _ in 0..100 {
            let of: Vec<(u8, u32)> = (0..200).map(|_| (0, random.within(0..1000) as u32)).collect();
            let mut now = session_shares(&of);
            let mut moves = 0;
            while let Some(chosen) = now.choose_move() {
                let before = *now.replica_block_counts().iter().max().unwrap();
                for bucket in &chosen.buckets {
                    assert_eq!(now.replicas[usize::from(*bucket)], chosen.from);
                    now.replicas[usize::from(*bucket)] = chosen.to;
                }
                assert!(*now.replica_block_counts().iter().max().unwrap() < before);
                moves += 1;
            }
            assert!(moves <= 2, "{moves}");
            let loads = now.replica_block_counts();
            assert!(loads[0].abs_diff(loads[1]) < loads.iter().sum::<u64>() / 5, "{loads:?}");
        }
    }
}
