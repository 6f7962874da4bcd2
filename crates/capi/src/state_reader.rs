//! Reader of the published state of a filter.

use buffer::state::{Snapshot, TableReader};
use std::time::Duration;

/// Published state of a filter, with the last copy of its rows.
#[derive(Debug)]
pub(crate) struct StateReader {
    pub(crate) reader: TableReader,
    pub(crate) last: Option<Snapshot>,
}

impl StateReader {
    /// Blocks until the writer has ended, for at most `limit` (`None` means no limit). Returns true
    /// if the writer has ended.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> bool {
        match self.reader.host_descriptor() {
            Some(host) => sys::poll::wait_until_readable(&[host], limit).contains(&true),
            None => true,
        }
    }
}
