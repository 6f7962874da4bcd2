//! Timer wheel with insertion and expiry in constant time.
//!
//! Input: keys with their due times. Output: each key once, within two buckets after its due time,
//! or early if the due time is beyond the last bucket; callers insert early keys again. The wheel
//! is not part of the state: it is rebuilt after connections move.

use crate::contract::Time;

/// A timer wheel: an array of buckets, each with the keys that are due in one time span.
#[derive(Debug)]
pub(super) struct Wheel {
    /// Time span of a bucket in ns.
    span: u64,
    /// Number of the first bucket that may contain keys, counted in spans from time 0.
    at: u64,
    buckets: [Vec<Waiting>; BUCKETS],
    len: usize,
}

/// A session with a timer in the wheel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Waiting {
    pub(super) key: u64,
    /// Session number. At the due time, the key may belong to another session, which has another
    /// number.
    pub(super) session: u32,
}

const BUCKETS: usize = 32;

impl Wheel {
    /// Creates a wheel for due times up to about `ahead` ns in the future. Each bucket spans a
    /// sixteenth of `ahead`.
    pub(super) fn new(ahead: u64) -> Self {
        let span = (ahead / (BUCKETS as u64 / 2)).max(1);
        Self { span, at: 0, buckets: [const { Vec::new() }; BUCKETS], len: 0 }
    }

    /// Inserts a key with due time `due`, where `now` is the current time. A key with a due time
    /// beyond the last bucket expires early.
    pub(super) fn add(&mut self, waiting: Waiting, due: Time, now: Time) {
        if self.len == 0 {
            self.at = now / self.span;
        }
        let last = self.at.saturating_add(BUCKETS as u64 - 1);
        let bucket = (due / self.span).saturating_add(1).clamp(self.at, last);
        if let Some(bucket) = self.buckets.get_mut(bucket_index(bucket)) {
            bucket.push(waiting);
            self.len += 1;
        }
    }

    /// Returns true if `due` is in an earlier bucket than `now`. A key that [`Wheel::due`]
    /// returned, and for which this is false, was returned early.
    pub(super) const fn is_due(&self, due: Time, now: Time) -> bool {
        now / self.span > due / self.span
    }

    /// Returns the next time at which [`Wheel::due`] may return a key; `None` if the wheel is
    /// empty.
    pub(super) fn next(&self) -> Option<Time> {
        if self.len == 0 {
            return None;
        }
        let filled =
            |bucket: &u64| self.buckets.get(bucket_index(*bucket)).is_some_and(|b| !b.is_empty());
        let next = (0..BUCKETS as u64).map(|n| self.at.saturating_add(n)).find(filled)?;
        Some(next.saturating_mul(self.span))
    }

    /// Removes and returns the keys that may be due at `now`.
    pub(super) fn due(&mut self, now: Time) -> Vec<Waiting> {
        let until = now / self.span;
        let mut due = Vec::new();
        while self.len > 0 && self.at <= until {
            if let Some(bucket) = self.buckets.get_mut(bucket_index(self.at)) {
                self.len -= bucket.len();
                due.append(bucket);
            }
            if self.at == until {
                break;
            }
            self.at += 1;
        }
        self.at = self.at.max(until);
        due
    }
}

#[expect(clippy::cast_possible_truncation, reason = "less than the number of buckets")]
const fn bucket_index(bucket: u64) -> usize {
    (bucket % BUCKETS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_expire_within_the_resolution() {
        let mut wheel = Wheel::new(1600);
        let mut random = testkit::Random::replayable();
        let mut now = 12_345;
        let mut waiting: Vec<(u64, u64)> = Vec::new();
        for key in 0..5000 {
            let due = now + random.below(1700);
            wheel.add(Waiting { key, session: 0 }, due, now);
            waiting.push((key, due));
            now += random.below(60);
            let next = wheel.next();
            let found = wheel.due(now);
            assert!(found.is_empty() || next.is_some_and(|next| next <= now));
            for found in found {
                let at = waiting.iter().position(|(key, _)| *key == found.key);
                let (_, due) = waiting.remove(at.expect("once"));
                assert!(wheel.is_due(due, now), "{due} {now}");
            }
            assert!(waiting.iter().all(|(_, due)| due + 100 > now), "{now}: {waiting:?}");
        }
    }

    #[test]
    fn clock_jump_costs_one_round() {
        let mut wheel = Wheel::new(16);
        wheel.add(Waiting { key: 1, session: 1 }, 1 << 60, 5);
        assert_eq!(wheel.next(), Some(5 + 31), "too early: it is put back");
        assert_eq!(wheel.due(u64::MAX).len(), 1);
        assert_eq!((wheel.next(), wheel.due(u64::MAX).len()), (None, 0));
        wheel.add(Waiting { key: 1, session: 1 }, u64::MAX - 3, u64::MAX - 40);
        assert!(wheel.next().is_some());
    }
}
