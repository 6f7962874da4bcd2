//! Conversion of a kernel program's monotonic timestamps to the time of day.

/// Interval, in nanoseconds, between two comparisons of the monotonic clock with the time of day.
const CLOCK_COMPARE_INTERVAL_NS: u64 = 1_000_000_000;
/// Largest change of the offset between monotonic time and the time of day, in nanoseconds, that is
/// ignored. A measurement of the offset may be wrong by this much.
const DRIFT_TOLERANCE_NS: u64 = 20_000;

/// The offset between monotonic time and the time of day, which is measured repeatedly.
#[derive(Debug)]
pub struct ClockOffset {
    offset: u64,
    compared_at: u64,
}

impl ClockOffset {
    /// Measures the offset between monotonic time and the time of day.
    #[must_use]
    pub fn measure() -> Self {
        let (offset, compared_at) = measure_clock_offset();
        Self { offset, compared_at }
    }

    /// Compares the clocks again if [`CLOCK_COMPARE_INTERVAL_NS`] has passed. Updates the offset if
    /// it has changed by more than [`DRIFT_TOLERANCE_NS`].
    pub fn update(&mut self) {
        if sys::clock::monotonic_ns().saturating_sub(self.compared_at) < CLOCK_COMPARE_INTERVAL_NS {
            return;
        }
        let (offset, compared_at) = measure_clock_offset();
        if offset.abs_diff(self.offset) > DRIFT_TOLERANCE_NS {
            self.offset = offset;
        }
        self.compared_at = compared_at;
    }

    /// Returns the time of day for a monotonic time, in nanoseconds.
    #[must_use]
    pub const fn time_of_day(&self, monotonic: u64) -> u64 {
        monotonic.wrapping_add(self.offset)
    }
}

/// Returns the offset between monotonic time and the time of day, and the monotonic time of the
/// measurement. Uses the best of five attempts, because the thread may be preempted during an
/// attempt.
fn measure_clock_offset() -> (u64, u64) {
    let once = |_| {
        let before = sys::clock::monotonic_ns();
        let real = sys::clock::realtime_ns();
        let after = sys::clock::monotonic_ns();
        (after - before, real.wrapping_sub(before + (after - before) / 2), after)
    };
    let best = (0..5).map(once).min().unwrap_or_default();
    (best.1, best.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_monotonic_time_converts_to_now() {
        let time = ClockOffset::measure();
        let before = sys::clock::realtime_ns();
        let converted = time.time_of_day(sys::clock::monotonic_ns());
        let after = sys::clock::realtime_ns();
        assert!(
            before - DRIFT_TOLERANCE_NS <= converted && converted <= after + DRIFT_TOLERANCE_NS,
            "{before} {converted} {after}"
        );
    }
}
