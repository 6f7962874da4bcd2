//! Published state of filters (`state=NAME`). [Th §5.3.3], FEATURES M3
//!
//! The state of a filter stays plain data owned by one thread. The thread copies changes into a
//! table that other processes read ([`buffer::state`]). It does so between two passes, never during
//! a walk: at most every [`UPDATE_INTERVAL_NS`] under load, and at once when the space is idle. The
//! age of a published value is at most that interval plus one pass, and published values are exact
//! while the path is idle. Readers cost the filter nothing. docs/book/decisions/0035-seen-state.md

use abi::access::AccessList;
use buffer::name;
use buffer::state::{Column, TableShape, TableWriter};
use filter::{
    Arguments, Description, Filter, PublishedSessions, STATE_MODE_PARAMETER, STATE_PARAMETER,
};
use sys::process::effective_ids;

/// Minimum time between two updates of a filter's published state while the space is busy, in
/// nanoseconds.
const UPDATE_INTERVAL_NS: u64 = 10_000_000;
/// Maximum number of sessions that get a row in the published table. Further sessions are only
/// counted.
const ROWS_MAX: usize = 1 << 14;

/// The published state of one filter.
#[derive(Debug)]
pub struct PublishedState {
    table: TableWriter,
    whose: PublishedSessions,
    /// Monotonic time, in nanoseconds, at which the state must be published next while the space is
    /// busy.
    pub(super) due: u64,
    /// True if the next update must write the rows of all sessions instead of only the changed
    /// rows.
    all_rows: bool,
}

impl PublishedState {
    /// Creates the table in shared memory for the state of a filter if its arguments request one
    /// (`state=NAME`). `title` is the name of the filter in the table. Returns `None` if the
    /// arguments request no table, or if the filter has no state to publish.
    ///
    /// # Errors
    ///
    /// Fails if the name is in use or invalid, or if no memory is available.
    pub fn open(
        title: &str,
        description: &Description,
        arguments: &Arguments,
    ) -> Result<Option<Self>, name::Error> {
        let Some((name, (whose, columns))) =
            arguments.text(STATE_PARAMETER.name).zip(description.published_state())
        else {
            return Ok(None);
        };
        let named = |column: &filter::Column| {
            let unit = column.unit.name().to_owned();
            column.names().map(|name| Column { name, unit: unit.clone() }).collect::<Vec<_>>()
        };
        let columns = columns.iter().flat_map(named).collect();
        let rows = if whose == PublishedSessions::Private { 1 } else { ROWS_MAX };
        let mode =
            arguments.text(STATE_MODE_PARAMETER.name).and_then(|m| u32::from_str_radix(m, 8).ok());
        let access =
            AccessList { mode: mode.unwrap_or(0o600), ..AccessList::private(effective_ids()) };
        let shape = TableShape { filter: title.to_owned(), columns, rows };
        let table = TableWriter::create(name, access, shape)?;
        Ok(Some(Self { table, whose, due: 0, all_rows: true }))
    }

    /// Makes the next update write all rows. Called after the filter was replaced.
    pub fn mark_all_rows_changed(&mut self) {
        self.all_rows = true;
    }

    /// Publishes the changed rows of a filter's state or, after [`Self::mark_all_rows_changed`],
    /// all rows. `now` is monotonic time in nanoseconds.
    pub(super) fn write_rows(&mut self, filter: &mut Filter, now: u64) {
        let Some(state) = filter.state() else { return };
        let all_rows = std::mem::take(&mut self.all_rows);
        if all_rows {
            self.table.clear();
        }
        state.publish(self.whose, all_rows, &mut |at, row| self.table.put_row(at, row));
        self.table.end_changes(now);
        self.due = now.saturating_add(UPDATE_INTERVAL_NS);
    }
}
