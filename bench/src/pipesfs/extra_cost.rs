//! Rows that compare two candidates, of which the second does additional work, and a row for the
//! cost of this work.

use crate::harness::{BetterDirection, Samples, rows_of_samples};
use crate::row::Row;

/// Parameters of the row that reports the additional cost of the second of two candidates.
pub(super) struct ExtraCost {
    /// Name of the additional cost in the result rows.
    pub(super) name: &'static str,
    /// Number of parts by which the additional cost is divided, such as the number of filters that
    /// cause it.
    pub(super) parts: u32,
    /// Goal for the additional cost: its maximum after the division by `parts`, in the unit of the
    /// samples.
    pub(super) limit: f64,
    /// Name of the goal that sets `limit`, such as `B9`.
    pub(super) goal: &'static str,
}

impl ExtraCost {
    /// Returns the rows of two candidates, and a row for the additional cost of the second
    /// candidate in each round.
    pub(super) fn rows(
        &self,
        (row, unit): (&str, &'static str),
        sentinel_ns: f64,
        samples: &[Samples],
    ) -> Vec<Row> {
        let (subject, unit) = (("pipesfs", row, f64::NAN), (unit, BetterDirection::Less));
        let mut rows = rows_of_samples(subject, unit, sentinel_ns, samples, &[]);
        let [without, with] = samples else { return rows };
        let values = with.values.iter().zip(&without.values);
        let values = values.map(|(with, without)| (with - without) / f64::from(self.parts));
        let values = values.map(|cost| cost.max(0.001)).collect();
        let cost = Samples { name: self.name, values };
        let mut row = rows_of_samples(subject, unit, sentinel_ns, &[cost], &[]).pop();
        if let Some(row) = &mut row {
            (row.reference, row.ratio) = ("limit", self.limit / row.value);
            (row.goal, row.target) = (Some(self.goal), Some(1.0));
        }
        rows.extend(row);
        rows
    }
}
