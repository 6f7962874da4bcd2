//! A family of metrics with a bounded number of series.

use std::collections::HashMap;

/// Maximum number of ordinary series of a family. The values of all further series are added to a
/// series with the label value `other`. There is one such series for each reason, and at most this
/// number of them.
pub const SERIES_MAX: usize = 1000;
/// Maximum length of a label value, in characters.
const LABEL_CHARS_MAX: usize = 100;
/// Label value of the series that combines the series beyond [`SERIES_MAX`].
const OTHER_LABEL: &str = "other";

/// The kind of a family, which determines how its series are combined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeriesKind {
    /// A number that only grows while its node exists.
    Counter,
    /// A number that may fall. The value of the series `other` is the sum of the series beyond
    /// [`SERIES_MAX`].
    Gauge,
    /// A number that may fall. The value of the series `other` is the maximum of the series beyond
    /// [`SERIES_MAX`].
    Maximum,
}

/// The unit of a family. The name of a family ends with its unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// No unit: the family's name states what is counted.
    None,
    /// A number of blocks.
    Blocks,
    /// A number of bytes.
    Bytes,
    /// A time in seconds.
    Seconds,
    /// A fraction from 0 to 1.
    Ratio,
}

/// The value of a series.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SeriesValue {
    /// A count.
    Count(u64),
    /// A measured value.
    Measure(f64),
}

/// The labels of a series, as pairs of name and value.
pub(super) type Labels = Vec<(&'static str, String)>;

/// A family of metrics: one name, and its series.
#[derive(Clone, PartialEq, Debug)]
pub struct MetricFamily {
    /// Name without the unit and without `_total`.
    pub name: &'static str,
    /// Unit of the values.
    pub unit: Unit,
    /// Kind of the values.
    pub kind: SeriesKind,
    /// Description without a final full stop.
    pub help: &'static str,
    /// Series of the metric, in the order of the paths and their nodes.
    pub series: Vec<(Labels, SeriesValue)>,
    /// Map from the labels of a series to its index in `series`.
    indices: HashMap<Labels, usize>,
}

impl MetricFamily {
    pub(super) fn new(
        name: &'static str,
        unit: Unit,
        kind: SeriesKind,
        help: &'static str,
    ) -> Self {
        Self { name, unit, kind, help, series: Vec::new(), indices: HashMap::new() }
    }

    /// Adds a value to the series with these labels. In a family that already has [`SERIES_MAX`]
    /// series, a value with new labels is added to the series `other` with the same reason. In a
    /// family with twice that number, a value with new labels is discarded.
    pub(super) fn add(&mut self, labels: &[(&'static str, &str)], value: SeriesValue) {
        let bounded = |text: &str| text.chars().take(LABEL_CHARS_MAX).collect::<String>();
        let mut labels: Labels = labels.iter().map(|(name, text)| (*name, bounded(text))).collect();
        if !self.indices.contains_key(&labels) && self.series.len() >= SERIES_MAX {
            // The label `reason` stays, because there are few reasons. Sums by reason therefore
            // stay correct.
            labels.iter_mut().filter(|(name, _)| *name != "reason").for_each(|(_, text)| {
                *text = OTHER_LABEL.to_owned();
            });
        }
        match self.indices.get(&labels) {
            Some(at) => {
                let sum = &mut self.series[*at].1;
                *sum = sum.combined(value, self.kind);
            }
            // The number of reasons is bounded too, because another process may invent reasons.
            None if self.series.len() >= 2 * SERIES_MAX => {}
            None => {
                self.indices.insert(labels.clone(), self.series.len());
                self.series.push((labels, value));
            }
        }
    }

    pub(super) fn add_count(&mut self, labels: &[(&'static str, &str)], n: u64) {
        self.add(labels, SeriesValue::Count(n));
    }
}

impl SeriesValue {
    fn combined(self, other: Self, kind: SeriesKind) -> Self {
        match (self, other) {
            (Self::Count(a), Self::Count(b)) if kind == SeriesKind::Maximum => {
                Self::Count(a.max(b))
            }
            (Self::Count(a), Self::Count(b)) => Self::Count(a.saturating_add(b)),
            (a, b) if kind == SeriesKind::Maximum => Self::Measure(a.as_f64().max(b.as_f64())),
            (a, b) => Self::Measure(a.as_f64() + b.as_f64()),
        }
    }

    /// Returns the value as a floating-point number.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Count(n) => n as f64,
            Self::Measure(x) => x,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_beyond_the_limit_are_added_up_by_reason() {
        let mut family = MetricFamily::new("f", Unit::Blocks, SeriesKind::Counter, "help");
        let names: Vec<String> = (0..SERIES_MAX + 50).map(|n| format!("n{n}")).collect();
        for _ in 0..2 {
            for name in &names {
                family.add_count(&[("filter", name), ("reason", "ring")], 3);
            }
        }
        assert_eq!(family.series.len(), SERIES_MAX + 1);
        let sum: f64 = family.series.iter().map(|(_, value)| value.as_f64()).sum();
        assert_eq!(sum, (names.len() * 2 * 3) as f64);
        let other = vec![("filter", OTHER_LABEL.to_owned()), ("reason", "ring".to_owned())];
        assert_eq!(family.series.last().unwrap(), &(other, SeriesValue::Count(50 * 2 * 3)));
    }

    #[test]
    fn overflow_series_of_a_ratio_has_the_maximum() {
        let mut family = MetricFamily::new("f", Unit::Ratio, SeriesKind::Maximum, "help");
        (0..SERIES_MAX)
            .for_each(|n| family.add(&[("from", &n.to_string())], SeriesValue::Measure(0.1)));
        family.add(&[("from", "a")], SeriesValue::Measure(0.9));
        family.add(&[("from", "b")], SeriesValue::Measure(0.5));
        assert_eq!(family.series.last().unwrap().1, SeriesValue::Measure(0.9));
    }

    #[test]
    fn reasons_beyond_the_limit_get_no_series() {
        let mut family = MetricFamily::new("f", Unit::None, SeriesKind::Counter, "help");
        (0..10 * SERIES_MAX).for_each(|n| family.add_count(&[("reason", &n.to_string())], 1));
        assert_eq!(family.series.len(), 2 * SERIES_MAX);
    }
}
