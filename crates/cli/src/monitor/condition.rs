//! The conditions of `--alarm`, such as `lost>0 for 5s`.

use pipeline::language::find_nearest_word;
use std::fmt;
use std::str::FromStr;
use streamline::figures::PathFigures;

/// A condition on a counter or rate of a path, such as `lost>0 for 5s`.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    /// Text of the condition, as the user wrote it.
    text: String,
    number: Metric,
    operator: ComparisonOperator,
    limit: f64,
    /// Time for which the comparison must be true before the alarm is raised, in ns.
    pub(crate) duration_ns: u64,
}

/// A counter or rate of a path that a condition can test, such as `lost` or `blocks/s`.
#[derive(Clone, Copy, Debug)]
struct Metric {
    name: &'static str,
    /// True for an increase per second (such as `lost/s`), false for a total or a current value.
    is_rate: bool,
    of: fn(&PathFigures) -> f64,
}

/// All counters and rates that a condition can test.
const METRICS: [Metric; 11] = [
    total_metric("lost", lost_blocks),
    rate_metric("lost/s", lost_blocks),
    total_metric("dropped", dropped_blocks),
    rate_metric("dropped/s", dropped_blocks),
    total_metric("late", late_blocks),
    total_metric("blocks", source_blocks),
    rate_metric("blocks/s", source_blocks),
    total_metric("bytes", source_bytes),
    rate_metric("bytes/s", source_bytes),
    total_metric("held", held_blocks),
    total_metric("fill", highest_ring_fill),
];

const fn total_metric(name: &'static str, of: fn(&PathFigures) -> f64) -> Metric {
    Metric { name, is_rate: false, of }
}

const fn rate_metric(name: &'static str, of: fn(&PathFigures) -> f64) -> Metric {
    Metric { name, is_rate: true, of }
}

fn lost_blocks(path: &PathFigures) -> f64 {
    path.lost_blocks() as f64
}

fn dropped_blocks(path: &PathFigures) -> f64 {
    path.dropped_blocks() as f64
}

fn late_blocks(path: &PathFigures) -> f64 {
    let sinks = path.counters.latency.iter().flat_map(|latency| &latency.sinks);
    sinks.map(|sink| sink.exceeded).sum::<u64>() as f64
}

fn source_blocks(path: &PathFigures) -> f64 {
    path.counters.sources.iter().map(|source| source.given.blocks).sum::<u64>() as f64
}

fn source_bytes(path: &PathFigures) -> f64 {
    path.counters.sources.iter().map(|source| source.given.bytes).sum::<u64>() as f64
}

fn held_blocks(path: &PathFigures) -> f64 {
    path.counters.filters.iter().map(|filter| filter.held.blocks).sum::<u64>() as f64
}

fn highest_ring_fill(path: &PathFigures) -> f64 {
    path.ring_fills().iter().map(|ring| ring.fill_ratio()).fold(0.0, f64::max)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ComparisonOperator {
    AtLeast,
    AtMost,
    Above,
    Below,
    Equal,
    Unequal,
}

/// The symbols of the comparison operators. `>=` and `<=` must precede `>` and `<`, which are
/// prefixes of them.
const COMPARISON_OPERATORS: [(&str, ComparisonOperator); 6] = [
    (">=", ComparisonOperator::AtLeast),
    ("<=", ComparisonOperator::AtMost),
    ("==", ComparisonOperator::Equal),
    ("!=", ComparisonOperator::Unequal),
    (">", ComparisonOperator::Above),
    ("<", ComparisonOperator::Below),
];

impl Condition {
    /// Returns the current value of the counter or rate. `before` contains an earlier sample, and
    /// the time in ns between that sample and `now`. Returns `None` for a rate if there is no
    /// earlier sample, or if the time is 0.
    pub(crate) fn value(
        &self,
        now: &PathFigures,
        before: Option<(&PathFigures, u64)>,
    ) -> Option<f64> {
        let of = self.number.of;
        if !self.number.is_rate {
            return Some(of(now));
        }
        let (before, ns) = before.filter(|(_, ns)| *ns > 0)?;
        Some((of(now) - of(before)).max(0.0) / (ns as f64 / 1e9))
    }

    /// Returns true if a value satisfies the comparison.
    pub(crate) fn holds(&self, value: f64) -> bool {
        match self.operator {
            ComparisonOperator::AtLeast => value >= self.limit,
            ComparisonOperator::AtMost => value <= self.limit,
            ComparisonOperator::Above => value > self.limit,
            ComparisonOperator::Below => value < self.limit,
            ComparisonOperator::Equal => (value - self.limit).abs() < f64::EPSILON,
            ComparisonOperator::Unequal => (value - self.limit).abs() >= f64::EPSILON,
        }
    }

    /// Returns true if the condition tests an increase per second.
    pub(crate) const fn is_rate(&self) -> bool {
        self.number.is_rate
    }

    /// Returns the name of the counter or rate, such as `lost/s`.
    pub(crate) const fn metric_name(&self) -> &'static str {
        self.number.name
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Condition {
    type Err = String;

    /// Parses a condition of the form `NUMBER OPERATOR LIMIT [for TIME]`, such as `lost>0 for 5s`.
    /// Fails with a message for the user if the text has another form.
    fn from_str(text: &str) -> Result<Self, String> {
        let at = text.find(['<', '>', '=', '!']);
        let (name, rest) = text.split_at(at.ok_or_else(|| {
            "the condition has no comparison: write for example 'lost>0' or 'fill>=90% for 5s'"
                .to_owned()
        })?);
        let name = name.trim();
        let number = METRICS.into_iter().find(|number| number.name == name).ok_or_else(|| {
            let all = METRICS.map(|number| number.name);
            let meant = find_nearest_word(name, all)
                .map_or_else(String::new, |meant| format!(", did you mean `{meant}`?"));
            format!("unknown metric `{name}`{meant}: use {}", all.join(", "))
        })?;
        let found = COMPARISON_OPERATORS.into_iter().find(|(text, _)| rest.starts_with(text));
        let (operator_text, operator) =
            found.ok_or_else(|| "compare with >, >=, <, <=, == or !=".to_owned())?;
        let rest = &rest[operator_text.len()..];
        let (limit, duration) = match rest.split_once(" for ") {
            Some((limit, duration)) => (limit, Some(duration)),
            None => (rest, None),
        };
        let limit = parse_limit(limit.trim())?;
        if number.name == "fill" && !(0.0..=1.0).contains(&limit) {
            return Err(format!(
                "`fill` is at most 100%: write for example 'fill>=90%', not {limit}"
            ));
        }
        let duration = duration.map(|time| pipeline::explain::parse_time(time.trim()));
        let duration_ns = duration.transpose()?.unwrap_or(0);
        Ok(Self { text: text.to_owned(), number, operator, limit, duration_ns })
    }
}

/// Parses the limit of a condition, such as `0`, `1.5`, `90%` or `10k`. Fails with a message for
/// the user if the text is not a valid limit.
fn parse_limit(text: &str) -> Result<f64, String> {
    let scales = [('%', 0.01), ('k', 1e3), ('M', 1e6), ('G', 1e9)];
    let scaled = scales.into_iter().find_map(|(end, scale)| Some((text.strip_suffix(end)?, scale)));
    let (digits, scale) = scaled.unwrap_or((text, 1.0));
    let number = digits.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    number
        .map(|number| number * scale)
        .ok_or_else(|| format!("`{text}` is not a number: write for example 0, 1.5, 90% or 10k"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_is_a_comparison_with_an_optional_time() {
        let parse = |text: &str| text.parse::<Condition>().unwrap();
        let condition = parse("lost>0 for 5s");
        assert_eq!((condition.number.name, condition.duration_ns), ("lost", 5_000_000_000));
        assert!(condition.holds(1.0) && !condition.holds(0.0));
        let condition = parse("fill >= 90%");
        assert_eq!((condition.limit, condition.duration_ns), (0.9, 0));
        assert!(condition.holds(0.9) && !condition.holds(0.89));
        let condition = parse("blocks/s<10k for 500ms");
        assert_eq!((condition.number.name, condition.limit), ("blocks/s", 10_000.0));
        assert!(condition.is_rate());
    }

    #[test]
    fn wrong_conditions_are_refused_with_the_reason() {
        for (text, why) in [
            ("", "no comparison"),
            ("lost", "no comparison"),
            ("lots>0", "did you mean `lost`?"),
            ("lost=0", ">="),
            ("lost>many", "`many` is not a number"),
            ("fill>=90", "at most 100%"),
            ("lost>0 for ever", "ever"),
        ] {
            let refused = text.parse::<Condition>().unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
