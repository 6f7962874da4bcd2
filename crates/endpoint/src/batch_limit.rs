//! The limit of a batch in block time. Timers of filters run after a batch, so a batch must end
//! with the first block at which a timer expires. Otherwise the results of a replay would depend on
//! the number of blocks in a batch. (CONTRACT 11)

use filter::Time;

/// The limit of a batch in block time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchLimit {
    /// Time from which a block ends the batch.
    end: Time,
}

/// Maximum duration between the first block of a batch and a block that does not end the batch, in
/// nanoseconds of block time. Timers that a batch sets do not expire within it, unless their delay
/// is shorter.
const BATCH_DURATION_MAX: Time = 100_000_000;

impl BatchLimit {
    /// Creates the limit of a batch. `timer` is the due time of the earliest timer, if one is set.
    #[must_use]
    pub fn new(timer: Option<Time>) -> Self {
        Self { end: timer.unwrap_or(Time::MAX) }
    }

    /// Returns true if a block with this timestamp ends the batch. Must be called for each block of
    /// the batch in order.
    #[inline]
    pub fn ends_with(&mut self, time: Time) -> bool {
        let ends = time >= self.end;
        self.end = self.end.min(time.saturating_add(BATCH_DURATION_MAX));
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_ends_with_the_first_block_at_the_timer() {
        let mut limit = BatchLimit::new(Some(70));
        assert_eq!([10, 69, 70].map(|time| limit.ends_with(time)), [false, false, true]);
    }

    #[test]
    fn batch_has_a_maximum_duration() {
        let mut limit = BatchLimit::new(None);
        let times = [5, 3, 2 + BATCH_DURATION_MAX, 3 + BATCH_DURATION_MAX];
        assert_eq!(times.map(|time| limit.ends_with(time)), [false, false, false, true]);
    }
}
