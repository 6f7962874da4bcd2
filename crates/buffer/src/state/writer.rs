//! Writers of a table. [`TableWriter::end_changes`] completes a group of changes, which readers
//! then see as a consistent snapshot.

use super::layout::{MAGIC, TableShape, word};
use super::rows;
use super::table::Table;
use crate::atomic::{AtomicU64, Ordering};
use crate::foreign_memory;
use crate::name::{Address, Error, NameHost, SharedRegion};
use abi::access::AccessList;
use std::collections::HashSet;
use std::ops::Deref;

/// The writing end of a table. Dropping it releases the name and marks the table as ended for its
/// readers.
#[derive(Debug)]
pub struct TableWriter {
    table: Table,
    /// Host that serves the processes that open the table.
    _host: NameHost,
    used: usize,
    /// Indices of the rows that did not fit into the table. These rows are only counted.
    overflow: HashSet<usize>,
    /// True if a row was put since the last [`TableWriter::end_changes`].
    is_open: bool,
}

impl Deref for TableWriter {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

impl TableWriter {
    /// Creates an empty table under a name of this user. `access` limits who may read the table.
    pub fn create(name: &str, access: AccessList, shape: TableShape) -> Result<Self, Error> {
        let address = Address::for_current_user(name)?.in_state_namespace();
        if !shape.is_within_limits() {
            let why = "its table has too many columns or rows";
            return Err(Error::Name { name: name.to_owned(), why });
        }
        let text = shape.column_text();
        let (region, files) = SharedRegion::create(shape.table_words() * size_of::<u64>(), false)?;
        let words = region.words();
        foreign_memory::copy_in(words, word::HEAD_WORD_COUNT, &text);
        let numbers = [
            (word::TEXT_LENGTH, text.len() as u64),
            (word::COLUMN_COUNT, shape.columns.len() as u64),
            (word::ROW_COUNT_MAX, shape.rows as u64),
            (word::MAGIC, MAGIC),
        ];
        for (at, number) in numbers {
            // Not shared yet: readers get the memory from the kernel, after all of these stores.
            store_word(words, at, number);
        }
        let host = NameHost::open()?;
        // Write permission is dropped: other processes get read-only memory.
        let access = AccessList { mode: access.mode & READ_PERMISSION_BITS, ..access };
        host.add_region(address.clone(), access, files)?;
        let first = TableShape::first_row_word(text.len());
        let (used, overflow, is_open) = Default::default();
        let table = Table { region, address, shape, first };
        Ok(Self { table, _host: host, used, overflow, is_open })
    }

    /// Clears all rows of the table.
    pub fn clear(&mut self) {
        for at in 0..self.used {
            self.put_row(at, None);
        }
        self.overflow.clear();
    }

    /// Sets the numbers of a row; `None` clears the row. A row beyond the end of the table is only
    /// counted. Until [`TableWriter::end_changes`], readers see the table as inconsistent.
    pub fn put_row(&mut self, at: usize, numbers: Option<&[u64]>) {
        if !std::mem::replace(&mut self.is_open, true)
            && let Some(lock) = self.words().get(word::LOCK)
        {
            rows::begin_change(lock);
        }
        if at >= self.shape.rows {
            match numbers {
                Some(_) => self.overflow.insert(at),
                None => self.overflow.remove(&at),
            };
            return;
        }
        if numbers.is_none() && at >= self.used {
            return;
        }
        self.used = self.used.max(at + 1);
        rows::write_row(self.table.row(at), numbers);
    }

    /// Ends a group of changes, which readers then see as consistent. `now` is the time in
    /// nanoseconds of the monotonic clock.
    pub fn end_changes(&mut self, now: u64) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let words = self.words();
        store_word(words, word::WRITE_TIME, now);
        store_word(words, word::LEFT_OUT_SESSIONS, self.overflow.len() as u64);
        store_word(words, word::USED_ROWS, self.used as u64);
        if let Some(lock) = words.get(word::LOCK) {
            rows::end_locked_change(lock);
        }
    }
}

impl Drop for TableWriter {
    fn drop(&mut self) {
        // Set first: a process just being started may hold a copy of the socket, which delays its
        // hang-up.
        if let Some(word) = self.words().get(word::ENDED) {
            word.store(1, Ordering::Release);
        }
    }
}

fn store_word(words: &[AtomicU64], at: usize, number: u64) {
    if let Some(word) = words.get(at) {
        word.store(number, Ordering::Relaxed);
    }
}

/// Permission bits that allow reading.
const READ_PERMISSION_BITS: u32 = 0o444;
