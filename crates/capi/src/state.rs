//! The state of a filter (`state=NAME`), from C: opened by name, copied, and read by row and
//! column.

use crate::end::Kind;
use crate::failure::{ENOENT, Failure, Outcome, wrong_end};
use crate::table::{self, add, copy, not_ours};
use buffer::state::{Look, Reader};
use std::time::Duration;

/// A table, and what it had when it was looked at last.
#[derive(Debug)]
pub(crate) struct State {
    reader: Reader,
    look: Option<Look>,
}

impl State {
    /// Waits until its writer is gone.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> bool {
        match self.reader.host() {
            Some(host) => sys::poll::readable(&[host], limit).contains(&true),
            None => true,
        }
    }
}

pub(crate) fn open(name: &str) -> Outcome<i32> {
    let reader = Reader::open(name)?;
    // Its number hangs up when the writer is gone.
    let host = reader.host().map(|host| copy(&host)).transpose()?;
    add(Kind::State(State { reader, look: None }), host)
}

fn with<T>(fd: i32, work: impl FnOnce(&mut State) -> Outcome<T>) -> Outcome<T> {
    match table::place(fd)?.end().map(|end| &mut end.kind) {
        Some(Kind::State(state)) => work(state),
        Some(_) => Err(wrong_end("what a filter shows")),
        None => Err(not_ours(fd)),
    }
}

/// Returns the number of columns.
pub(crate) fn columns(fd: i32) -> Outcome<usize> {
    with(fd, |state| Ok(state.reader.shape().columns.len()))
}

/// Writes the name of a column, or its unit, as a string into `out`, cut where it does not fit.
pub(crate) fn name(fd: i32, column: usize, unit: bool, out: &mut [u8]) -> Outcome<usize> {
    with(fd, |state| {
        let columns = &state.reader.shape().columns;
        let known = columns.get(column).ok_or_else(|| none("column", column, columns.len()))?;
        let text = if unit { &known.unit } else { &known.name };
        // The writer is a stranger: what it wrote may have zeros in it.
        let bytes = text.bytes().filter(|byte| *byte != 0).chain([0]);
        out.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        if let Some(last) = out.last_mut() {
            *last = 0;
        }
        Ok(text.len())
    })
}

/// Copies what there is now; answers how many rows that are.
pub(crate) fn look(fd: i32) -> Outcome<usize> {
    with(fd, |state| {
        let look = state.reader.look();
        let rows = look.rows.len();
        state.look = Some(look);
        Ok(rows)
    })
}

/// A number of what was copied.
pub(crate) fn number(fd: i32, row: usize, column: usize) -> Outcome<u64> {
    with(fd, |state| {
        let Some(look) = &state.look else {
            return Err(Failure::invalid("nothing was copied: call streamline_state_look() first"));
        };
        let numbers = look.rows.get(row).ok_or_else(|| none("row", row, look.rows.len()))?;
        numbers.get(column).copied().ok_or_else(|| none("column", column, numbers.len()))
    })
}

fn none(what: &str, number: usize, of: usize) -> Failure {
    Failure::new(ENOENT, format!("there is no {what} {number}: there are {of}, from 0 on"))
}
