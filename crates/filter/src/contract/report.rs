//! Reports of filters and sinks.

use serde::{Deserialize, Serialize};

/// Report of a filter or sink, printed when the path stops.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Named values, in the order in which they are printed.
    pub rows: Vec<(String, u64)>,
    /// Files and other persistent output of a sink.
    pub outputs: Vec<DeliveredItems>,
    /// Remarks for the user that do not concern failures.
    pub remarks: Vec<String>,
}

/// A count of delivered items. Printed, for example, as "6 packets written to x.pcap".
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeliveredItems {
    /// Number of items that the sink delivered.
    pub count: u64,
    /// Singular noun for an item, such as `packet`.
    pub unit: String,
    /// The action and its target, as printed after the count, such as `written to x.pcap`.
    pub done: String,
}

impl Report {
    /// Creates a report with these names and values as rows.
    #[must_use]
    pub fn from_rows<N: Into<String>>(rows: impl IntoIterator<Item = (N, u64)>) -> Self {
        let rows = rows.into_iter().map(|(name, value)| (name.into(), value)).collect();
        Self { rows, ..Self::default() }
    }

    /// Adds these names and values as rows to the report. Omits values of 0.
    #[must_use]
    pub fn with_nonzero_rows(
        mut self,
        rows: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> Self {
        let rows = rows.into_iter().filter(|(_, value)| *value > 0);
        self.rows.extend(rows.map(|(name, value)| (name.to_owned(), value)));
        self
    }

    /// Returns true if the report has no rows, outputs or remarks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.outputs.is_empty() && self.remarks.is_empty()
    }

    /// Adds a count of delivered items. `unit` is the noun for one item, such as `packet`, and
    /// `done` describes the action, such as `written to x.pcap`.
    #[must_use]
    pub fn with_delivered_items(mut self, count: u64, unit: &str, done: String) -> Self {
        self.outputs.push(DeliveredItems { count, unit: unit.to_owned(), done });
        self
    }
}
