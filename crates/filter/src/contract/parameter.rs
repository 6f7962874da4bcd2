//! A parameter of a filter: its type, its default, and the parser for its values.
//!
//! Bounds are part of the type, so `check` reports a violation with its position in the request,
//! and filters need no range checks.

use super::value::{Mistake, Value};

/// Type of a parameter's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParameterType {
    /// An integer with bounds.
    Number {
        /// The smallest value that the parameter accepts.
        low: u64,
        /// The largest value that the parameter accepts.
        high: u64,
    },
    /// A size in bytes with bounds, written as `4096`, `64k`, `16M` or `1G` (powers of 1,024).
    Size {
        /// The smallest size that the parameter accepts, in bytes.
        low: u64,
        /// The largest size that the parameter accepts, in bytes.
        high: u64,
    },
    /// A duration, written as `250ns`, `10us`, `1ms`, `2s`, `5m` or `1h`. A number without a unit
    /// is in seconds. The parsed value is in nanoseconds.
    Duration,
    /// A speed factor such as `2` or `0.5`: a number above 0 with at most six decimals. The parsed
    /// value is in millionths.
    Factor {
        /// A keyword that may be given instead of a number. The value is then the keyword, as text.
        or: &'static str,
    },
    /// `yes` or `no`.
    Flag,
    /// Any text.
    Text,
    /// Any bytes, written as text. In quoted text, `\xHH` stands for one byte.
    Bytes,
    /// A name that other processes can refer to: 1 to 64 letters, digits, dots, hyphens and
    /// underscores.
    Name,
    /// A file name, or `-` for standard input or output.
    Path,
    /// One of these keywords.
    OneOf(&'static [&'static str]),
}

impl ParameterType {
    /// A size without bounds.
    pub const SIZE: Self = Self::Size { low: 0, high: u64::MAX };
}

/// A parameter of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Name of the parameter, as in `name=value`.
    pub name: &'static str,
    /// Type of the parameter's values.
    pub kind: ParameterType,
    /// True if the value may be given without the name. Positional values are assigned in the order
    /// of [`Description::parameters`](super::Description::parameters).
    pub positional: bool,
    /// The value of an absent parameter. If `None`, the parameter is required unless it is
    /// `optional`.
    pub default: Option<&'static str>,
    /// True if the parameter may be absent even though it has no default.
    pub optional: bool,
    /// True if the parameter may be given several times; all values are stored, in order.
    pub repeatable: bool,
    /// True if the value can be changed while the filter runs, through
    /// [`Filter::set`](super::Filter::set).
    pub writable: bool,
    /// Description of the parameter for the help text, in one line.
    pub help: &'static str,
}

/// Parameters that every filter has in addition to its own. Sources, sinks and programs do not have
/// them.
pub const COMMON_PARAMETERS: &[Parameter] =
    &[UNTRUSTED_PARAMETER, STATE_PARAMETER, STATE_MODE_PARAMETER];

/// The parameter `untrusted`, which runs the filter in a sandboxed process.
pub const UNTRUSTED_PARAMETER: Parameter = Parameter::optional(
    "untrusted",
    ParameterType::Flag,
    "run the filter in a sandboxed process that can only compute",
);

/// The parameter `state`: the name under which the filter publishes its state.
pub const STATE_PARAMETER: Parameter = Parameter::optional(
    "state",
    ParameterType::Name,
    "publish the state of the filter under this name (`streamline state NAME`)",
);

/// The parameter `state_mode`: the file mode of the published state.
pub const STATE_MODE_PARAMETER: Parameter = Parameter::optional(
    "state_mode",
    ParameterType::OneOf(&["600", "640", "644"]),
    "who may read the state: you alone (600, the default), your group, everybody",
);

impl Parameter {
    /// Creates a required parameter whose value may be given without its name.
    #[must_use]
    pub const fn required(name: &'static str, kind: ParameterType, help: &'static str) -> Self {
        Self { positional: true, optional: false, ..Self::optional(name, kind, help) }
    }

    /// Creates a parameter with a default. Its value is given with the name, unless the parameter
    /// is made positional.
    #[must_use]
    pub const fn with_default(
        name: &'static str,
        kind: ParameterType,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        Self { default: Some(default), optional: false, ..Self::optional(name, kind, help) }
    }

    /// Creates a parameter for the maximum size of a session table.
    #[must_use]
    pub const fn table_size(name: &'static str, default: &'static str, help: &'static str) -> Self {
        Self::with_default(name, ParameterType::Number { low: 1, high: 1 << 24 }, default, help)
    }

    /// Creates an optional parameter without a default. Its value is given with the name, unless
    /// the parameter is made positional.
    #[must_use]
    pub const fn optional(name: &'static str, kind: ParameterType, help: &'static str) -> Self {
        Self {
            name,
            kind,
            positional: false,
            default: None,
            optional: true,
            repeatable: false,
            writable: false,
            help,
        }
    }

    /// Allows the value to be given without the parameter's name.
    #[must_use]
    pub const fn positional(self) -> Self {
        Self { positional: true, ..self }
    }

    /// Allows the parameter to be given several times in a request.
    #[must_use]
    pub const fn repeatable(self) -> Self {
        Self { repeatable: true, ..self }
    }

    /// Permits changes to the value while the filter runs. No other part of the plan may depend on
    /// the value of such a parameter.
    #[must_use]
    pub const fn make_writable(self) -> Self {
        Self { writable: true, ..self }
    }

    /// Parses a value given as bytes.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`Parameter::parse`]. For types other than
    /// [`ParameterType::Bytes`], also fails if the bytes are not UTF-8.
    pub fn parse_bytes(&self, bytes: &[u8]) -> Result<Value, Mistake> {
        match (self.kind, std::str::from_utf8(bytes)) {
            (ParameterType::Bytes, _) => Ok(Value::Bytes(bytes.to_vec())),
            (_, Ok(text)) => self.parse(text),
            (_, Err(_)) => Err(Mistake::new(self.name, "the bytes are not valid UTF-8")),
        }
    }

    /// Parses a value.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a valid value for the parameter's type, or is out of bounds.
    pub fn parse(&self, text: &str) -> Result<Value, Mistake> {
        let wrong = |what: String| Err(Mistake::new(self.name, what));
        match self.kind {
            ParameterType::Number { low, high } => match parse_number(text) {
                Some(n) if (low..=high).contains(&n) => Ok(Value::Number(n)),
                Some(n) => wrong(format!("{n} is not between {low} and {high}")),
                None => wrong(format!("`{text}` is not a number")),
            },
            ParameterType::Size { low, high } => match parse_size(text) {
                Some(n) if (low..=high).contains(&n) => Ok(Value::Number(n)),
                Some(_) => wrong(format!("{text} is not between {low} and {high} bytes")),
                None => wrong(format!("`{text}` is not a size; write it as 4096, 64k, 16M or 1G")),
            },
            ParameterType::Duration => match parse_duration(text) {
                Some(n) => Ok(Value::Number(n)),
                None => wrong(format!("`{text}` is not a time; write it as 10us, 250ms, 2s or 5m")),
            },
            ParameterType::Factor { or } if text == or => Ok(Value::Text(text.to_owned())),
            ParameterType::Factor { or } => match parse_millionths(text) {
                Some(n) if n > 0 => Ok(Value::Number(n)),
                _ => wrong(format!(
                    "`{text}` is neither `{or}` nor a number above 0; write it as 2 or 0.5"
                )),
            },
            ParameterType::Flag => match text {
                "yes" => Ok(Value::Flag(true)),
                "no" => Ok(Value::Flag(false)),
                _ => wrong(format!("`{text}` is neither `yes` nor `no`")),
            },
            ParameterType::Name if is_name(text) => Ok(Value::Text(text.to_owned())),
            ParameterType::Name => wrong(format!(
                "`{text}` is not a valid name: 1 to 64 letters, digits, dots, hyphens and \
                 underscores"
            )),
            ParameterType::Text | ParameterType::Path => Ok(Value::Text(text.to_owned())),
            ParameterType::Bytes => Ok(Value::Bytes(text.as_bytes().to_vec())),
            ParameterType::OneOf(words) if words.contains(&text) => {
                Ok(Value::Text(text.to_owned()))
            }
            ParameterType::OneOf(words) => {
                wrong(format!("`{text}` is not one of {}", words.join(", ")))
            }
        }
    }
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    (1..=64).contains(&text.len()) && text.chars().all(plain)
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let split = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
    let (digits, unit) = text.split_at(split);
    let shift = match unit {
        "" | "B" => 0,
        "k" | "K" | "KB" | "KiB" => 10,
        "M" | "MB" | "MiB" => 20,
        "G" | "GB" | "GiB" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn parse_duration(text: &str) -> Option<u64> {
    let split = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
    let (digits, unit) = text.split_at(split);
    let ns = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    match digits.split_once('.') {
        None => digits.parse::<u64>().ok()?.checked_mul(ns),
        Some((whole, part)) if !part.is_empty() && part.len() <= 9 => {
            let scale = 10u64.pow(u32::try_from(part.len()).ok()?);
            let whole = whole.parse::<u64>().ok()?.checked_mul(ns)?;
            whole.checked_add(part.parse::<u64>().ok()?.checked_mul(ns)? / scale)
        }
        Some(_) => None,
    }
}

/// Parses a decimal number with at most six decimals, and returns it in millionths. Returns `None`
/// for any other text.
fn parse_millionths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 6 {
        return None;
    }
    let part = format!("{part:0<6}").parse::<u64>().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_out_of_bounds_is_rejected() {
        let size = Parameter::required("size", ParameterType::Size { low: 1, high: 1 << 20 }, "");
        assert_eq!(size.parse("1M"), Ok(Value::Number(1 << 20)));
        let why = |text| size.parse(text).unwrap_err().message;
        assert_eq!(why("2M"), "2M is not between 1 and 1048576 bytes");
        assert_eq!(why("0"), "0 is not between 1 and 1048576 bytes");
    }

    #[test]
    fn only_a_bytes_parameter_accepts_invalid_utf8() {
        let of = |kind| Parameter::required("name", kind, "");
        assert_eq!(
            of(ParameterType::Bytes).parse_bytes(b"a\xff"),
            Ok(Value::Bytes(b"a\xff".to_vec()))
        );
        assert_eq!(of(ParameterType::Bytes).parse("é"), Ok(Value::Bytes("é".as_bytes().to_vec())));
        assert_eq!(
            of(ParameterType::Text).parse_bytes("é".as_bytes()),
            Ok(Value::Text("é".to_owned()))
        );
        let why = of(ParameterType::Text).parse_bytes(b"a\xff").unwrap_err();
        assert_eq!(why.message, "the bytes are not valid UTF-8");
    }

    #[test]
    fn factors_have_at_most_six_decimals() {
        let speed = Parameter::required("speed", ParameterType::Factor { or: "max" }, "");
        assert_eq!(speed.parse("max"), Ok(Value::Text("max".to_owned())));
        let right = [("1", 1_000_000), ("0.5", 500_000), ("12.25", 12_250_000), ("0.000001", 1)];
        for (text, millionths) in right {
            assert_eq!(speed.parse(text), Ok(Value::Number(millionths)));
        }
        let wrong = "fast 0 0.0 -1 +1 1e3 .5 1. 1.1234567 0.0000001 99999999999999999999 Max";
        for text in wrong.split(' ').chain([""]) {
            let what = speed.parse(text).unwrap_err().message;
            assert!(what.starts_with(&format!("`{text}` is neither `max` nor ")), "{what}");
        }
    }

    #[test]
    fn sizes_and_durations_have_units() {
        let size = Parameter::required("size", ParameterType::SIZE, "");
        assert_eq!(size.parse("64k"), Ok(Value::Number(65_536)));
        assert_eq!(size.parse("4096"), Ok(Value::Number(4096)));
        assert!(size.parse("64q").is_err());
        let time = Parameter::required("time", ParameterType::Duration, "");
        assert_eq!(time.parse("1.5ms"), Ok(Value::Number(1_500_000)));
        assert_eq!(time.parse("2"), Ok(Value::Number(2_000_000_000)));
        assert!(time.parse("").is_err());
        assert!(time.parse("99999999999999999999s").is_err());
    }
}
