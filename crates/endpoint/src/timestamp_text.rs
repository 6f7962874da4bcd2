//! Formatting of timestamps as text. Times are in UTC, so that the output does not depend on the
//! machine's time zone. The only exception is web server logs, which use local time with a zone
//! offset.

use filter::Time;
use jiff::Timestamp;
use std::fmt;

const SECOND_NS: u64 = 1_000_000_000;
const SECONDS_PER_DAY: u64 = 86_400;

/// A time of day with microseconds: `09:24:46.123456`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeOfDay(pub(crate) Time);

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second = self.0 / SECOND_NS % SECONDS_PER_DAY;
        let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
        let micros = self.0 % SECOND_NS / 1000;
        write!(f, "{hours:02}:{minutes:02}:{seconds:02}.{micros:06}")
    }
}

/// A date and time with nanoseconds as in RFC 3339: `2026-11-21T09:24:46.123456789Z`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rfc3339(pub(crate) Time);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.9}", timestamp(self.0))
    }
}

impl serde::Serialize for Rfc3339 {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Converts nanoseconds since 1970 to a [`Timestamp`], whose range includes every [`Time`].
pub(crate) fn timestamp(time: Time) -> Timestamp {
    Timestamp::from_nanosecond(time.into()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_formatted_in_utc() {
        let time = 1_234_567_890_123_456_789;
        assert_eq!(TimeOfDay(time).to_string(), "23:31:30.123456");
        assert_eq!(Rfc3339(time).to_string(), "2009-02-13T23:31:30.123456789Z");
        assert_eq!(Rfc3339(0).to_string(), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(Rfc3339(u64::MAX).to_string(), "2554-07-21T23:34:33.709551615Z");
    }
}
