//! Metrics of paths in the formats that Prometheus reads.
//!
//! [`to_open_metrics`] and [`to_text`] format the same families: the first in OpenMetrics 1.0, the
//! second in the older text format of Prometheus, which the textfile collector of node_exporter
//! reads. [`MetricsServer`] answers `GET /metrics` in either format, and [`write_file`] replaces a
//! file atomically. All numbers are taken from the ledger, so they equal the numbers in the final
//! report.
//!
//! Labels contain only names of paths, nodes, spaces and reasons. The number of series of a family
//! is bounded; further series are combined in one series with the label value `other`, so sums stay
//! correct.

mod families;
mod file;
mod format;
mod series;
mod server;
mod target;

pub use families::metric_families;
pub use file::write_file;
pub use format::{to_open_metrics, to_text};
pub use series::{MetricFamily, SERIES_MAX, SeriesKind, SeriesValue, Unit};
pub use server::{MetricsServer, ServerError};
pub use target::MetricsTarget;
