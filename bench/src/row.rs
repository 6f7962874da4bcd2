//! A measured value, with its reference, number of samples and spread.

use serde::Serialize;
use std::fmt;

/// A row of a bench's results: a measured value, and its comparison with a reference.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Name of the bench that measured the value.
    pub(crate) bench: &'static str,
    /// Setting in which the value was measured, such as `8 filters`.
    pub(crate) row: String,
    /// The name of the measured candidate.
    pub(crate) candidate: &'static str,
    /// The name of the candidate with which `candidate` is compared.
    pub(crate) reference: &'static str,
    /// Median of the candidate's samples.
    pub(crate) value: f64,
    /// Unit of the value, such as `GB/s`.
    pub(crate) unit: &'static str,
    /// Median over the rounds of the ratio to the reference. A ratio above 1 means that the
    /// candidate is better.
    pub(crate) ratio: f64,
    /// Number of samples, one per round.
    pub(crate) n: usize,
    /// The smallest and the largest sample.
    pub(crate) spread: [f64; 2],
    /// Round-trip time of a cache line between two cores during the measurement, in ns.
    pub(crate) sentinel_ns: f64,
    /// The project goal that this row measures, or `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goal: Option<&'static str>,
    /// The ratio that the goal requires, or `None` without a goal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<f64>,
    /// Position on the x axis of a chart; NaN if the bench has no variable.
    #[serde(skip)]
    pub(crate) x: f64,
}

impl Row {
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|why| format!("{{\"error\":\"{why}\"}}"))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bench, row, candidate, reference, value, unit, ratio, n, .. } = self;
        let [low, high] = self.spread;
        let subject = format!("{bench} {row}: {candidate}");
        write!(f, "{subject:44} {value:>12.4} {unit:10} ({low:.4} to {high:.4}, n {n})")?;
        if candidate != reference {
            write!(f, "  {ratio:.2}x {reference}")?;
        }
        if let (Some(goal), Some(target)) = (self.goal, self.target) {
            let met = if *ratio >= target { "met" } else { "missed" };
            write!(f, "  [{goal}: {}x {met}]", (target * 100.0).round() / 100.0)?;
        }
        write!(f, "  sentinel {:.0} ns", self.sentinel_ns)
    }
}
