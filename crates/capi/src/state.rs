//! Calls on the published state of a filter (`state=NAME`), which open it by name, copy its rows,
//! and read a value by row and column.

use crate::end::EndKind;
use crate::failure::{ENOENT, Failure, Outcome, wrong_end_error};
use crate::state_reader::StateReader;
use crate::table::{self, duplicate_descriptor, register_end};
use buffer::state::TableReader;

pub(crate) fn open(name: &str) -> Outcome<i32> {
    let reader = TableReader::open(name)?;
    // Polling the number reports a hang-up when the writer is gone.
    let host = reader.host_descriptor().map(|host| duplicate_descriptor(&host)).transpose()?;
    register_end(EndKind::State(StateReader { reader, last: None }), host)
}

fn with_state_reader<T>(fd: i32, work: impl FnOnce(&mut StateReader) -> Outcome<T>) -> Outcome<T> {
    match &mut table::lock_entry(fd)?.require_end(fd)?.kind {
        EndKind::State(state) => work(state),
        _ => Err(wrong_end_error("the published state of a filter")),
    }
}

/// Returns the number of columns.
pub(crate) fn column_count(fd: i32) -> Outcome<usize> {
    with_state_reader(fd, |state| Ok(state.reader.shape().columns.len()))
}

/// Writes the name of a column, or its unit if `unit` is true, as a terminated string into `out`.
/// Omits zero bytes, and truncates the string to the size of `out`. Returns the length of the
/// complete text in bytes. Fails if there is no such column.
pub(crate) fn write_column_text(
    fd: i32,
    column: usize,
    unit: bool,
    out: &mut [u8],
) -> Outcome<usize> {
    with_state_reader(fd, |state| {
        let columns = &state.reader.shape().columns;
        let known = columns
            .get(column)
            .ok_or_else(|| out_of_range_error("column", column, columns.len()))?;
        let text = if unit { &known.unit } else { &known.name };
        // The writer is not trusted: the text may contain zero bytes.
        let bytes = text.bytes().filter(|byte| *byte != 0).chain([0]);
        out.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        if let Some(last) = out.last_mut() {
            *last = 0;
        }
        Ok(text.len())
    })
}

/// Copies all rows of the published state into this process, and returns the number of rows.
pub(crate) fn copy_rows(fd: i32) -> Outcome<usize> {
    with_state_reader(fd, |state| {
        let snapshot = state.reader.snapshot();
        let rows = snapshot.rows.len();
        state.last = Some(snapshot);
        Ok(rows)
    })
}

/// Returns the value at a row and column of the last copy. Fails with `EINVAL` before the first
/// copy and with `ENOENT` outside the table.
pub(crate) fn value(fd: i32, row: usize, column: usize) -> Outcome<u64> {
    with_state_reader(fd, |state| {
        let Some(snapshot) = &state.last else {
            return Err(Failure::invalid("nothing was copied: call streamline_state_look() first"));
        };
        let numbers = snapshot
            .rows
            .get(row)
            .ok_or_else(|| out_of_range_error("row", row, snapshot.rows.len()))?;
        numbers
            .get(column)
            .copied()
            .ok_or_else(|| out_of_range_error("column", column, numbers.len()))
    })
}

fn out_of_range_error(what: &str, number: usize, of: usize) -> Failure {
    Failure::new(ENOENT, format!("there is no {what} {number}: there are {of}, numbered from 0"))
}
