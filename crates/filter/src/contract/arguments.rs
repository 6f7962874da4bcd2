//! The typed arguments of one filter in a request: text checked against the parameters once, by
//! `pipeline`, so that filters only ask for values.

use super::{Description, Parameter, Type};
use std::fmt;

/// One argument's value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A number, a size in bytes or a duration in nanoseconds.
    Number(u64),
    /// A flag.
    Flag(bool),
    /// A text, a path or one of several words.
    Text(String),
}

/// The arguments of one filter, defaults included.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Arguments {
    values: Vec<(&'static str, Value)>,
}

/// What a user got wrong in an argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// The parameter, if it is known which.
    pub parameter: Option<&'static str>,
    /// Where in the argument's text, in bytes, if it is known.
    pub at: Option<std::ops::Range<usize>>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Mistake {
    /// A mistake in the argument for `parameter`.
    #[must_use]
    pub fn new(parameter: &'static str, what: impl Into<String>) -> Self {
        Self { parameter: Some(parameter), at: None, what: what.into(), hint: None }
    }

    /// The same mistake with what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistake {}

impl Arguments {
    /// The defaults of a description.
    ///
    /// # Panics
    /// When a default is not a value of its parameter: a mistake in the description, which the catalog
    /// test finds.
    #[must_use]
    pub fn defaults(description: &Description) -> Self {
        let mut arguments = Self::default();
        for p in description.parameters {
            if let Some(text) = p.default {
                let value = p.parse(text).expect("a default is a value of its parameter");
                arguments.set(p.name, value);
            }
        }
        arguments
    }

    /// Sets a value.
    pub fn set(&mut self, name: &'static str, value: Value) {
        match self.values.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = value,
            None => self.values.push((name, value)),
        }
    }

    /// Adds a value of a parameter that may be given several times.
    pub fn add(&mut self, name: &'static str, value: Value) {
        self.values.push((name, value));
    }

    /// The value of this parameter, if it was given or has a default.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// A number, size or duration.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(Value::Number(n)) => Some(*n),
            _ => None,
        }
    }

    /// Whether this flag is set.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.get(name) == Some(&Value::Flag(true))
    }

    /// A text, path or word.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Text(t)) => Some(t),
            _ => None,
        }
    }

    /// All values, in the order in which they were set or added.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values.iter().map(|(n, v)| (*n, v))
    }
}

impl Parameter {
    /// The value that this text means, or why it means none.
    pub fn parse(&self, text: &str) -> Result<Value, Mistake> {
        let wrong = |what: String| Err(Mistake::new(self.name, what));
        match self.kind {
            Type::Number { low, high } => match number(text) {
                Some(n) if (low..=high).contains(&n) => Ok(Value::Number(n)),
                Some(n) => wrong(format!("{n} is not between {low} and {high}")),
                None => wrong(format!("`{text}` is not a number")),
            },
            Type::Size => match size(text) {
                Some(n) => Ok(Value::Number(n)),
                None => wrong(format!("`{text}` is not a size; write it as 4096, 64k, 16M or 1G")),
            },
            Type::Duration => match duration(text) {
                Some(n) => Ok(Value::Number(n)),
                None => wrong(format!("`{text}` is not a time; write it as 10us, 250ms, 2s or 5m")),
            },
            Type::Flag => match text {
                "yes" => Ok(Value::Flag(true)),
                "no" => Ok(Value::Flag(false)),
                _ => wrong(format!("`{text}` is neither `yes` nor `no`")),
            },
            Type::Text | Type::Path => Ok(Value::Text(text.to_owned())),
            Type::OneOf(words) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
            Type::OneOf(words) => wrong(format!("`{text}` is none of {}", words.join(", "))),
        }
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn size(text: &str) -> Option<u64> {
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

fn duration(text: &str) -> Option<u64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        let size = Parameter::needed("size", Type::Size, "");
        assert_eq!(size.parse("64k"), Ok(Value::Number(65_536)));
        assert_eq!(size.parse("4096"), Ok(Value::Number(4096)));
        assert!(size.parse("64q").is_err());
        let time = Parameter::needed("time", Type::Duration, "");
        assert_eq!(time.parse("1.5ms"), Ok(Value::Number(1_500_000)));
        assert_eq!(time.parse("2"), Ok(Value::Number(2_000_000_000)));
        assert!(time.parse("").is_err());
        assert!(time.parse("99999999999999999999s").is_err());
    }
}
