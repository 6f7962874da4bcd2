//! Waiting for a condition instead of for a time.

use std::time::{Duration, Instant};

/// How long anything may take before a test gives up.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Between two looks at a condition, so that what is waited for gets the processor.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until this holds.
///
/// # Panics
/// If it does not within [`LIMIT`]; `what` says what was waited for.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "waited for in vain: {what}");
        std::thread::park_timeout(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_until_it_holds() {
        let mut looks = 0;
        until("three looks", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
    }
}
