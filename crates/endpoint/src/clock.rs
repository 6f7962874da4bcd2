//! Times as text, in UTC: a path has no time zone, and two runs must print the same. Only the logs
//! of web servers have one.

use filter::Time;
use std::fmt;

const SECOND_NS: u64 = 1_000_000_000;
const DAY_S: u64 = 86_400;

/// The time of day with microseconds: `09:24:46.123456`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeOfDay(pub(crate) Time);

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hours, minutes, seconds) = clock(self.0);
        let micros = self.0 % SECOND_NS / 1000;
        write!(f, "{hours:02}:{minutes:02}:{seconds:02}.{micros:06}")
    }
}

/// Date and time with nanoseconds as in RFC 3339: `2026-11-21T09:24:46.123456789Z`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rfc3339(pub(crate) Time);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hours, minutes, seconds) = clock(self.0);
        let (year, month, day) = date(self.0 / SECOND_NS / DAY_S);
        write!(f, "{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}")?;
        write!(f, ".{:09}Z", self.0 % SECOND_NS)
    }
}

impl serde::Serialize for Rfc3339 {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Date and time as in the logs of web servers: `21/Nov/2026:09:24:46 +0100`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogTime {
    /// The time.
    pub(crate) time: Time,
    /// Offset of the zone, in seconds east of UTC.
    pub(crate) offset_s: i32,
}

impl fmt::Display for LogTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let second = (self.time / SECOND_NS).saturating_add_signed(self.offset_s.into());
        let (year, month, day) = date(second / DAY_S);
        let month = usize::try_from(month - 1).ok().and_then(|month| MONTHS.get(month));
        let day_s = second % DAY_S;
        let (hours, minutes, seconds) = (day_s / 3600, day_s / 60 % 60, day_s % 60);
        write!(f, "{day:02}/{}/{year:04}", month.copied().unwrap_or("-"))?;
        write!(f, ":{hours:02}:{minutes:02}:{seconds:02}")?;
        let (sign, offset) = (if self.offset_s < 0 { '-' } else { '+' }, self.offset_s.abs());
        write!(f, " {sign}{:02}{:02}", offset / 3600, offset / 60 % 60)
    }
}

fn clock(time: Time) -> (u64, u64, u64) {
    let second = time / SECOND_NS % DAY_S;
    (second / 3600, second / 60 % 60, second % 60)
}

/// Year, month and day of a number of days since 1970, by the Gregorian calendar. Years are counted
/// from March, so that the leap day comes last; 400 years have 146,097 days.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_BEFORE_1970: u64 = 719_468;
    let days = days + DAYS_BEFORE_1970;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_utc() {
        let time = 1_234_567_890_123_456_789;
        assert_eq!(TimeOfDay(time).to_string(), "23:31:30.123456");
        assert_eq!(Rfc3339(time).to_string(), "2009-02-13T23:31:30.123456789Z");
        assert_eq!(Rfc3339(0).to_string(), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(Rfc3339(u64::MAX).to_string(), "2554-07-21T23:34:33.709551615Z");
    }

    #[test]
    fn logs_have_a_zone() {
        let at = |time, offset_s| LogTime { time, offset_s }.to_string();
        let time = 1_234_567_890_999_999_999;
        assert_eq!(at(time, 0), "13/Feb/2009:23:31:30 +0000");
        assert_eq!(at(time, 19_800), "14/Feb/2009:05:01:30 +0530");
        assert_eq!(at(time, -12_600), "13/Feb/2009:20:01:30 -0330");
        assert_eq!(at(0, -3600), "01/Jan/1970:00:00:00 -0100", "there is nothing before");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let every = |y: u64, years| y.is_multiple_of(years);
        let leap = |y| every(y, 4) && (!every(y, 100) || every(y, 400));
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..220_000 {
            assert_eq!(date(days), (year, month, day), "{days} days");
            let length = match month {
                2 if leap(year) => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }
}
