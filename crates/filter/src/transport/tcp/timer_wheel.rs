//! Timer wheel with insertion and expiry in constant time.
//!
//! Input: keys with their due times. Output: each key once, at most two buckets after its due time,
//! or early if the due time is beyond the last bucket. Callers must insert an early key again. The
//! wheel is not part of the filter's state, and is rebuilt after connections have moved.

use crate::contract::Time;

/// A timer wheel: an array of buckets, each with the keys that are due in one time span.
#[derive(Debug)]
pub(super) struct TimerWheel {
    /// Time span of a bucket in ns.
    bucket_span: u64,
    /// Index of the first bucket that may contain keys, counted in bucket spans from time 0.
    first_bucket: u64,
    buckets: [Vec<TimerEntry>; BUCKET_COUNT],
    len: usize,
}

/// A session with a timer in the wheel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TimerEntry {
    pub(super) key: u64,
    /// Session number. When the timer expires, the key may belong to another session, which has
    /// another number.
    pub(super) session: u32,
}

const BUCKET_COUNT: usize = 32;

impl TimerWheel {
    /// Creates a wheel for due times up to about `ahead` ns in the future. Each bucket spans a
    /// sixteenth of `ahead`.
    pub(super) fn new(ahead: u64) -> Self {
        let span = (ahead / (BUCKET_COUNT as u64 / 2)).max(1);
        Self {
            bucket_span: span,
            first_bucket: 0,
            buckets: [const { Vec::new() }; BUCKET_COUNT],
            len: 0,
        }
    }

    /// Inserts a key with due time `due`. `now` is the current time. If the due time is beyond the
    /// last bucket, the key expires early.
    pub(super) fn add(&mut self, timer: TimerEntry, due: Time, now: Time) {
        if self.len == 0 {
            self.first_bucket = now / self.bucket_span;
        }
        let last = self.first_bucket.saturating_add(BUCKET_COUNT as u64 - 1);
        let bucket = (due / self.bucket_span).saturating_add(1).clamp(self.first_bucket, last);
        if let Some(bucket) = self.buckets.get_mut(bucket_index(bucket)) {
            bucket.push(timer);
            self.len += 1;
        }
    }

    /// Returns true if `now` is in a later bucket than `due`. If the result is false for a key that
    /// [`TimerWheel::take_due_timers`] returned, the key has expired early.
    pub(super) const fn is_due(&self, due: Time, now: Time) -> bool {
        now / self.bucket_span > due / self.bucket_span
    }

    /// Returns the next time at which [`TimerWheel::take_due_timers`] may return a key, or `None`
    /// if the wheel is empty.
    pub(super) fn next_due_time(&self) -> Option<Time> {
        if self.len == 0 {
            return None;
        }
        let filled =
            |bucket: &u64| self.buckets.get(bucket_index(*bucket)).is_some_and(|b| !b.is_empty());
        let next =
            (0..BUCKET_COUNT as u64).map(|n| self.first_bucket.saturating_add(n)).find(filled)?;
        Some(next.saturating_mul(self.bucket_span))
    }

    /// Removes and returns the keys that may be due at `now`.
    pub(super) fn take_due_timers(&mut self, now: Time) -> Vec<TimerEntry> {
        let until = now / self.bucket_span;
        let mut due = Vec::new();
        while self.len > 0 && self.first_bucket <= until {
            if let Some(bucket) = self.buckets.get_mut(bucket_index(self.first_bucket)) {
                self.len -= bucket.len();
                due.append(bucket);
            }
            if self.first_bucket == until {
                break;
            }
            self.first_bucket += 1;
        }
        self.first_bucket = self.first_bucket.max(until);
        due
    }
}

#[expect(clippy::cast_possible_truncation, reason = "less than the number of buckets")]
const fn bucket_index(bucket: u64) -> usize {
    (bucket % BUCKET_COUNT as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_expire_within_the_resolution() {
        let mut wheel = TimerWheel::new(1600);
        let mut random = testkit::Random::with_replayable_seed();
        let mut now = 12_345;
        let mut timer: Vec<(u64, u64)> = Vec::new();
        for key in 0..5000 {
            let due = now + random.below(1700);
            wheel.add(TimerEntry { key, session: 0 }, due, now);
            timer.push((key, due));
            now += random.below(60);
            let next = wheel.next_due_time();
            let found = wheel.take_due_timers(now);
            assert!(found.is_empty() || next.is_some_and(|next| next <= now));
            for found in found {
                let at = timer.iter().position(|(key, _)| *key == found.key);
                let (_, due) = timer.remove(at.expect("once"));
                assert!(wheel.is_due(due, now), "{due} {now}");
            }
            assert!(timer.iter().all(|(_, due)| due + 100 > now), "{now}: {timer:?}");
        }
    }

    #[test]
    fn clock_jump_visits_each_bucket_once() {
        let mut wheel = TimerWheel::new(16);
        wheel.add(TimerEntry { key: 1, session: 1 }, 1 << 60, 5);
        assert_eq!(wheel.next_due_time(), Some(5 + 31), "too early: it is put back");
        assert_eq!(wheel.take_due_timers(u64::MAX).len(), 1);
        assert_eq!((wheel.next_due_time(), wheel.take_due_timers(u64::MAX).len()), (None, 0));
        wheel.add(TimerEntry { key: 1, session: 1 }, u64::MAX - 3, u64::MAX - 40);
        assert!(wheel.next_due_time().is_some());
    }
}
