//! Waits of calls from C, which end when the end is ready or the time limit has passed. A signal
//! handler or a stale notification does not end them.

use crate::failure::Outcome;
use std::time::Duration;

/// Calls `attempt` with the rest of `limit` (`None` means no limit) until it returns a value, or
/// until the limit has passed; the result is then `None`. An attempt may end early.
pub(crate) fn repeat_until_limit<T>(
    limit: Option<Duration>,
    mut attempt: impl FnMut(Option<Duration>) -> Outcome<Option<T>>,
) -> Outcome<Option<T>> {
    let begin = sys::clock::monotonic_ns();
    loop {
        let passed = Duration::from_nanos(sys::clock::monotonic_ns().saturating_sub(begin));
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
            Ok((attempts == 3).then_some("ready"))
        });
        assert!(matches!(waited, Ok(Some("ready"))) && attempts == 3);
        let limit = Duration::from_millis(20);
        let begin = std::time::Instant::now();
        let waited = repeat_until_limit(Some(limit), |_| Ok(None::<()>));
        assert!(matches!(waited, Ok(None)) && begin.elapsed() >= limit);
        let mut attempts = 0;
        let waited = repeat_until_limit(Some(Duration::ZERO), |_| {
            attempts += 1;
            Ok(None::<()>)
        });
        assert!(matches!(waited, Ok(None)) && attempts == 1);
    }
}
