//! The lag of timestamps behind the path's clock.
//!
//! The path's clock never goes back, but the clock that stamps the packets may: if it is set back,
//! or if a capture is followed by an earlier one. All later timestamps are then far behind the
//! path's clock, and every connection seems idle as soon as it begins. Therefore, no timer ends
//! idle connections while the timestamps lag. A connection that was silent for longer than the
//! timeout still ends when its next segment arrives.

use crate::contract::Time;

/// The time by which timestamps lag behind the path's clock, as of the latest batch.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct TimestampLag {
    /// Lag of the timestamps in ns; 0 if they do not lag.
    lag: Time,
}

impl TimestampLag {
    /// Measures the lag of a batch with these timestamps. `now` is the time on the path's clock. If
    /// two clocks stamp the blocks of the batch, the larger lag counts. Earlier batches have no
    /// influence, because a filter may have been replaced since then. A lag of at most half the
    /// connection timeout `timeout` may result from waiting and reordering, and counts as 0.
    #[inline]
    pub(super) fn measure(
        &mut self,
        timestamps: impl Iterator<Item = Time>,
        now: Time,
        timeout: Time,
    ) {
        let ignored = timeout / 2;
        // In a sparse capture, the first timestamps of a batch are behind the clock in any case.
        let (mut newest, mut oldest, mut last) = (0, Time::MAX, now);
        for time in timestamps {
            match time.saturating_add(ignored) < newest {
                true => oldest = oldest.min(time),
                false => newest = newest.max(time),
            }
            last = time;
        }
        let lag = now.saturating_sub(oldest.min(last));
        self.lag = if lag > ignored { lag } else { 0 };
    }

    /// Returns true if the timestamps do not lag behind the path's clock.
    pub(super) const fn is_zero(self) -> bool {
        self.lag == 0
    }

    /// Converts a timestamp to the corresponding time on the path's clock.
    pub(super) const fn to_path_time(self, time: Time) -> Time {
        time.saturating_add(self.lag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Time = 1_000_000_000;

    fn lag_after(batches: &[(&[Time], Time)]) -> Time {
        let mut lag = TimestampLag::default();
        for (seconds, now) in batches {
            lag.measure(seconds.iter().map(|second| second * SECOND), now * SECOND, 600 * SECOND);
        }
        lag.lag / SECOND
    }

    #[test]
    fn only_a_clock_that_was_set_back_lags() {
        assert_eq!(lag_after(&[(&[1, 500, 9000], 9000)]), 0, "a sparse capture");
        assert_eq!(lag_after(&[(&[9000, 9001, 9000], 9001)]), 0, "reordered");
        assert_eq!(lag_after(&[(&[9000], 9000), (&[5399, 5400], 9000)]), 3600);
        assert_eq!(lag_after(&[(&[9000], 9000), (&[9000, 8000, 9001], 9001)]), 1001, "two clocks");
        assert_eq!(lag_after(&[(&[5400], 9000)]), 3600, "set back before the first block");
        assert_eq!(lag_after(&[(&[5400], 9000), (&[9100], 9100)]), 0, "set forward again");
    }
}
