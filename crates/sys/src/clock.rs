//! Clocks, in nanoseconds. The data path reads only the monotonic clock (CONTRACT 11).

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns the monotonic time in ns. Costs about 20 ns.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read_clock(ClockId::Monotonic)
}

/// Returns the wall-clock time in ns since 1970, which may jump. For names and reports only.
#[must_use]
pub fn realtime_ns() -> u64 {
    read_clock(ClockId::Realtime)
}

/// Returns the CPU time that all threads of this process have used, user and system, in ns.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    read_clock(ClockId::ProcessCPUTime)
}

/// Returns the CPU time that this thread has used, user and system, in ns.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read_clock(ClockId::ThreadCPUTime)
}

fn read_clock(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let ns = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(ns)
}

/// Calls `attempt` with the rest of `limit` (`None` means no limit) until it returns a value, or
/// until the limit has passed; the result is then `None`. An attempt may end early, for example
/// after a signal.
pub fn repeat_until_limit<T, E>(
    limit: Option<Duration>,
    mut attempt: impl FnMut(Option<Duration>) -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let begin = monotonic_ns();
    loop {
        let passed = Duration::from_nanos(monotonic_ns().saturating_sub(begin));
        let left = limit.map(|limit| limit.saturating_sub(passed));
        match attempt(left)? {
            None if left != Some(Duration::ZERO) => {}
            result => return Ok(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_end_of_an_attempt_is_not_the_end_of_the_wait() {
        let mut attempts = 0;
        let waited = repeat_until_limit(None, |left| {
            assert_eq!(left, None);
            attempts += 1;
            Ok::<_, ()>((attempts == 3).then_some("ready"))
        });
        assert!(matches!(waited, Ok(Some("ready"))) && attempts == 3);
        let limit = Duration::from_millis(20);
        let begin = std::time::Instant::now();
        let waited = repeat_until_limit(Some(limit), |_| Ok::<_, ()>(None::<()>));
        assert!(matches!(waited, Ok(None)) && begin.elapsed() >= limit);
        let mut attempts = 0;
        let waited = repeat_until_limit(Some(Duration::ZERO), |_| {
            attempts += 1;
            Ok::<_, ()>(None::<()>)
        });
        assert!(matches!(waited, Ok(None)) && attempts == 1);
    }
}
