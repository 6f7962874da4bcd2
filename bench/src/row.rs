//! A figure: what was measured against what, how often, and how far the samples lie apart.

use serde::Serialize;
use std::fmt;

/// One row of one bench.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The bench.
    pub(crate) bench: &'static str,
    /// The variable: `8 filters`.
    pub(crate) row: String,
    /// The candidate.
    pub(crate) candidate: &'static str,
    /// Against whom.
    pub(crate) reference: &'static str,
    /// The median.
    pub(crate) value: f64,
    /// The unit.
    pub(crate) unit: &'static str,
    /// The median of the ratios round by round; above 1: the candidate is better.
    pub(crate) ratio: f64,
    /// The number of samples.
    pub(crate) n: usize,
    /// Least and largest sample.
    pub(crate) spread: [f64; 2],
    /// Round trip of a cache line between two cores while it was measured, in ns.
    pub(crate) sentinel_ns: f64,
    /// The goal of the project that this row answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goal: Option<&'static str>,
    /// The ratio to reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<f64>,
    /// The position on the x axis of a picture; NaN if it has none.
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
