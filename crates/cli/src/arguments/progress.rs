//! The value of `--progress`.

/// Default interval between progress lines, in ns.
pub(crate) const DEFAULT_INTERVAL_NS: u64 = 1_000_000_000;
/// Minimum interval between progress lines, in ns.
const PROGRESS_INTERVAL_NS_MIN: u64 = 100_000_000;

/// The value of `--progress`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProgressMode {
    /// Progress every second.
    Yes,
    /// No progress.
    No,
    /// Progress at this interval, in ns.
    Every(u64),
}

/// Parses `yes`, `no` or a duration, which is in seconds if it has no unit. Fails with a message
/// for the user.
pub(crate) fn parse_progress_mode(text: &str) -> Result<ProgressMode, String> {
    match text {
        "yes" => Ok(ProgressMode::Yes),
        "no" => Ok(ProgressMode::No),
        _ => match pipeline::explain::parse_time(text) {
            Ok(every) if every >= PROGRESS_INTERVAL_NS_MIN => Ok(ProgressMode::Every(every)),
            Ok(_) => Err("at most every 100ms".to_owned()),
            Err(_) => Err("write `yes`, `no`, seconds, or a time such as 500ms".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_value_is_a_word_seconds_or_a_duration() {
        assert_eq!(parse_progress_mode("yes"), Ok(ProgressMode::Yes));
        assert_eq!(parse_progress_mode("no"), Ok(ProgressMode::No));
        assert_eq!(parse_progress_mode("10"), Ok(ProgressMode::Every(10_000_000_000)));
        assert_eq!(parse_progress_mode("0.5"), Ok(ProgressMode::Every(500_000_000)));
        assert_eq!(parse_progress_mode("500ms"), Ok(ProgressMode::Every(500_000_000)));
        for wrong in ["", "often", "0", "1us", "-1"] {
            assert!(parse_progress_mode(wrong).is_err(), "{wrong}");
        }
    }
}
