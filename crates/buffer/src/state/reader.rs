//! Readers of a table, which map the table read-only and copy rows out.

use super::layout::{TableShape, word};
use super::rows::{self, RowReadResult, SequenceRead};
use super::table::Table;
use crate::atomic::Ordering;
use crate::name::{Address, Error, OpenRequest, OpenedObject, open_address};
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::thread;

/// The reading end of a table.
#[derive(Debug)]
pub struct TableReader {
    table: Table,
}

impl Deref for TableReader {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

/// A copy of a table's rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Rows, with one number per column.
    pub rows: Vec<Vec<u64>>,
    /// True if all rows are from one instant. Otherwise each row is consistent, but different rows
    /// may be from different instants.
    pub is_consistent: bool,
    /// Number of rows that could not be read, because the writer stopped or was suspended in the
    /// middle of a change.
    pub torn_rows: usize,
    /// Number of sessions that found no free row.
    pub left_out_sessions: u64,
    /// Time of the last write, in nanoseconds of the monotonic clock; 0 before the first write.
    pub written_ns: u64,
    /// True if the contents are final, because the writer has exited or ended the table.
    pub ended: bool,
}

/// Maximum number of attempts to copy a consistent snapshot while the writer changes the table.
const SNAPSHOT_ATTEMPTS_MAX: usize = 8;
/// Maximum number of attempts to copy a row intact while the writer changes it. The writer changes
/// a row in less than a microsecond; if it was preempted in the middle, yielding lets the writer
/// run on this processor.
const ROW_ATTEMPTS_MAX: usize = 10_000;

impl TableReader {
    /// Opens the table named `NAME`, or `UID/NAME` of another user. Blocks until its host replies;
    /// fails with [`Error::Silent`] after 20 s.
    pub fn open(name: &str) -> Result<Self, Error> {
        let address = name.parse::<Address>()?.in_state_namespace();
        Self::from_opened_object(open_address(&address)?, address)
    }

    /// Opens a table from a completed [`OpenRequest`].
    pub fn from_request(request: OpenRequest, address: &Address) -> Result<Self, Error> {
        Self::from_opened_object(request.finish()?, address.clone())
    }

    fn from_opened_object(opened: OpenedObject, address: Address) -> Result<Self, Error> {
        let OpenedObject::Region(region) = opened else { return Err(Error::InvalidReply(address)) };
        let (shape, first) = TableShape::read(region.words())?;
        Ok(Self { table: Table { region, address, shape, first } })
    }

    /// Returns true if the writer has exited or ended the table.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let ended = self.words().get(word::ENDED);
        ended.is_some_and(|word| word.load(Ordering::Acquire) != 0) || self.region.has_ended()
    }

    /// Returns the descriptor that hangs up when the writer exits; `None` in the writer itself.
    #[must_use]
    pub fn host_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.region.host_descriptor()
    }

    /// Returns a copy of the current rows. Does not involve the writer.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        // Checked first: everything written before the end is then visible.
        let ended = self.has_ended();
        let words = self.words();
        let value = |at: usize| words.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
        let mut snapshot = Snapshot {
            rows: Vec::new(),
            is_consistent: false,
            torn_rows: 0,
            left_out_sessions: 0,
            written_ns: 0,
            ended,
        };
        for attempt in 1..=SNAPSHOT_ATTEMPTS_MAX {
            let lock = words.get(word::LOCK);
            let reading = lock.and_then(SequenceRead::begin);
            if reading.is_none() && attempt < SNAPSHOT_ATTEMPTS_MAX {
                thread::yield_now();
                continue;
            }
            let used = usize::try_from(value(word::USED_ROWS)).unwrap_or(usize::MAX);
            (snapshot.left_out_sessions, snapshot.written_ns) =
                (value(word::LEFT_OUT_SESSIONS), value(word::WRITE_TIME));
            (snapshot.rows, snapshot.torn_rows) = (Vec::new(), 0);
            for at in 0..used.min(self.shape.rows) {
                self.copy_row(at, &mut snapshot);
            }
            snapshot.is_consistent =
                reading.zip(lock).is_some_and(|(reading, lock)| reading.is_consistent(lock));
            if snapshot.is_consistent {
                break;
            }
        }
        snapshot
    }

    fn copy_row(&self, at: usize, snapshot: &mut Snapshot) {
        let row = self.table.row(at);
        let mut numbers = vec![0; self.shape.columns.len()];
        for attempt in 0..ROW_ATTEMPTS_MAX {
            match rows::try_read_row(row, &mut numbers) {
                RowReadResult::Numbers => return snapshot.rows.push(numbers),
                RowReadResult::Nothing => return,
                RowReadResult::Torn if snapshot.ended => break,
                RowReadResult::Torn if attempt < 100 => crate::atomic::pause(),
                RowReadResult::Torn => thread::yield_now(),
            }
        }
        snapshot.torn_rows += 1;
    }
}
