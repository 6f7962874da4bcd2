//! Tests of formatting and parsing numbers with units.

use super::{
    format_bytes, format_count, format_nanoseconds, format_one_decimal, format_short_duration,
    parse_time,
};

#[test]
fn numbers_are_formatted_with_units() {
    assert_eq!(
        [format_bytes(0), format_bytes(1000), format_bytes(4096), format_bytes(3 << 20)],
        ["0 B", "1000 B", "4 KB", "3 MB"]
    );
    assert_eq!(
        [
            format_nanoseconds(0),
            format_nanoseconds(1_500),
            format_nanoseconds(1_000_000),
            format_nanoseconds(2_000_000_000)
        ],
        ["0 ns", "1500 ns", "1 ms", "2 s"]
    );
    assert_eq!(
        [
            format_short_duration(0.0),
            format_short_duration(169.54),
            format_short_duration(9_999.0),
            format_short_duration(26_263.1),
            format_short_duration(1_543_363.8),
            format_short_duration(2e9)
        ],
        ["0 ns", "169.5 ns", "9999 ns", "26.3 µs", "1543.4 µs", "2000 ms"]
    );
    assert_eq!([format_one_decimal(1.0), format_one_decimal(228.75)], ["1", "228.8"]);
    assert_eq!([format_count(1, "block"), format_count(0, "block")], ["1 block", "0 blocks"]);
}

#[test]
fn time_parses_with_and_without_unit() {
    assert_eq!(parse_time("1.5ms"), Ok(1_500_000));
    assert_eq!(parse_time("3"), Ok(3_000_000_000));
    assert!(parse_time("soon").unwrap_err().contains("is not a time"));
}
