//! Metrics of paths in the form that Prometheus reads.
//!
//! [`to_open_metrics`] and [`to_text`] format the same families: the first in OpenMetrics 1.0, the
//! second in the older text format of Prometheus, which the textfile collector of node_exporter
//! reads. [`Server`] answers `GET /metrics` in either format, and [`write_file`] replaces a file
//! atomically. All numbers are those of the ledger, so they equal the final report.
//!
//! Labels contain names of paths, nodes, spaces and reasons only. A family has a bounded number of
//! series; the series beyond it are added up in one with the label value `other`, so sums stay
//! right.

mod families;
mod file;
mod format;
mod series;
mod server;
mod target;

pub use families::families_of;
pub use file::write_file;
pub use format::{to_open_metrics, to_text};
pub use series::{Family, SERIES_MAX, SeriesKind, Unit, Value};
pub use server::{Server, ServerError};
pub use target::Target;
