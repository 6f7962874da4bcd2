//! The time of day of what a program saw, which knows the monotonic clock only.

/// The interval at which the two clocks are compared, in ns.
const EVERY_NS: u64 = 1_000_000_000;
/// The drift that is tolerated before the difference is updated: a comparison itself may err by
/// that much.
const DRIFT_NS: u64 = 20_000;

/// The difference of the time of day and the monotonic clock.
#[derive(Debug)]
pub(super) struct TimeOfDay {
    lacks: u64,
    compared: u64,
}

impl TimeOfDay {
    pub(super) fn new() -> Self {
        let (lacks, compared) = compare();
        Self { lacks, compared }
    }

    /// Follows the time of day, which may jump.
    pub(super) fn keep_up(&mut self) {
        if sys::clock::monotonic().saturating_sub(self.compared) < EVERY_NS {
            return;
        }
        let (lacks, compared) = compare();
        if lacks.abs_diff(self.lacks) > DRIFT_NS {
            self.lacks = lacks;
        }
        self.compared = compared;
    }

    /// The time of day at this moment of the monotonic clock.
    pub(super) const fn of(&self, monotonic: u64) -> u64 {
        monotonic.wrapping_add(self.lacks)
    }
}

/// The difference, and when it was: the best of a few, since one may be interrupted in between.
fn compare() -> (u64, u64) {
    let once = |_| {
        let before = sys::clock::monotonic();
        let real = sys::clock::real();
        let after = sys::clock::monotonic();
        (after - before, real.wrapping_sub(before + (after - before) / 2), after)
    };
    let best = (0..5).map(once).min().unwrap_or_default();
    (best.1, best.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_now_is_now() {
        let time = TimeOfDay::new();
        let before = sys::clock::real();
        let seen = time.of(sys::clock::monotonic());
        let after = sys::clock::real();
        assert!(before - DRIFT_NS <= seen && seen <= after + DRIFT_NS, "{before} {seen} {after}");
    }
}
