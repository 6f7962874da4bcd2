//! Formatting and parsing of numbers with units: bytes, times, counts.

use filter::{Parameter, ParameterType, Value};

/// Formats a number with one decimal, which is omitted if it is 0.
pub(crate) fn format_one_decimal(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// Formats a time given in ns. Uses ms if the time is at least 10 ms, otherwise µs if it is at
/// least 10 µs, and otherwise ns.
#[must_use]
pub fn format_short_duration(ns: f64) -> String {
    let units = [(1e7, 1e6, "ms"), (1e4, 1e3, "µs")];
    let (per, name) =
        units.iter().find(|(from, ..)| ns >= *from).map_or((1.0, "ns"), |unit| (unit.1, unit.2));
    format!("{} {name}", format_one_decimal(ns / per))
}

/// Formats a count with its noun, such as `1 block` or `2 blocks`.
pub(crate) fn format_count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Formats a number of bytes in the largest unit (B, KB, MB, GB, each 1,024 times the previous one)
/// that divides it.
#[must_use]
pub fn format_bytes(n: u64) -> String {
    let units = [(30, "GB"), (20, "MB"), (10, "KB")];
    let unit = units.into_iter().find(|(shift, _)| n >> shift > 0 && n.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{n} B"), |(shift, name)| format!("{} {name}", n >> shift))
}

/// Formats a time given in ns in the largest unit that divides it.
#[must_use]
pub fn format_nanoseconds(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let unit = units.into_iter().find(|(unit, _)| ns >= *unit && ns.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{ns} ns"), |(unit, name)| format!("{} {name}", ns / unit))
}

/// Formats a time given in ns in the largest unit that it reaches, such as `5.31 ms`, with three
/// significant digits. Truncates further decimal places, but no digits before the decimal point.
#[must_use]
pub fn format_rounded_duration(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| ns >= *unit) else {
        return format!("{ns} ns");
    };
    let (whole, rest) = (ns / unit, ns % unit * 1000 / unit);
    match whole {
        0..10 => format!("{whole}.{:02} {name}", rest / 10),
        10..100 => format!("{whole}.{} {name}", rest / 100),
        _ => format!("{whole} {name}"),
    }
}

/// Parses a time in the syntax of a request, such as `250ms`, into ns. Fails with the reason.
pub fn parse_time(text: &str) -> Result<u64, String> {
    match Parameter::required("time", ParameterType::Duration, "").parse(text) {
        Ok(Value::Number(ns)) => Ok(ns),
        Ok(_) => Err(format!("`{text}` is not a time")),
        Err(mistake) => Err(mistake.to_string()),
    }
}

/// Parses a size in the syntax of a request, such as `64M`, into bytes. Fails with the reason.
pub fn parse_size(text: &str) -> Result<u64, String> {
    match Parameter::required("size", ParameterType::SIZE, "").parse(text) {
        Ok(Value::Number(bytes)) => Ok(bytes),
        Ok(_) => Err(format!("`{text}` is not a size")),
        Err(mistake) => Err(mistake.to_string()),
    }
}

#[cfg(test)]
mod tests;
