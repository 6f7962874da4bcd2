//! Readers of a table, which map it and copy from it.

use super::layout::{Shape, word};
use super::rows::{self, Reading, RowRead};
use super::table::Table;
use crate::atomic::Ordering;
use crate::name::{Address, Error, Opened, Visit, opened};
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::thread;

/// The reading end of a table.
#[derive(Debug)]
pub struct Reader {
    table: Table,
}

impl Deref for Reader {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

/// The content of a table at a look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// Each row: a number for each column.
    pub rows: Vec<Vec<u64>>,
    /// True if all rows are of one moment; else each row is of one moment, but not all of the same.
    pub whole: bool,
    /// Rows that could not be read: their writer was stopped in the middle of a change.
    pub torn: usize,
    /// Sessions that have no row for want of room.
    pub left_out: u64,
    /// Time of the last write, by the monotonic clock, in ns; 0: never.
    pub written_ns: u64,
    /// True if its writer is gone, or has ended it: nothing changes any more.
    pub ended: bool,
}

/// Attempts at a table that changes during the read, before the result is taken as it is.
const LOOKS: usize = 8;
/// Attempts at a row that changes during the read. The writer needs less than a microsecond for
/// one; where it lost its processor in the middle, it gets ours.
const TRIES: usize = 10_000;

impl Reader {
    /// Opens the table that has this name: `NAME`, or `UID/NAME` of another user.
    pub fn open(name: &str) -> Result<Self, Error> {
        let address = name.parse::<Address>()?.of_state();
        Self::of(opened(&address)?, address)
    }

    /// The table of a name that was asked what it is ([`Visit::begin`]).
    pub fn arrived(visit: Visit, address: &Address) -> Result<Self, Error> {
        Self::of(visit.answered()?, address.clone())
    }

    fn of(opened: Opened, address: Address) -> Result<Self, Error> {
        let Opened::Region(region) = opened else { return Err(Error::Strange(address)) };
        let (shape, first) = Shape::read(region.words())?;
        Ok(Self { table: Table { region, address, shape, first } })
    }

    /// Returns true if its writer is gone, or has ended it.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let ended = self.words().get(word::ENDED);
        ended.is_some_and(|word| word.load(Ordering::Acquire) != 0) || self.region.has_ended()
    }

    /// Returns the descriptor that hangs up when the writer is gone.
    #[must_use]
    pub fn host(&self) -> Option<BorrowedFd<'_>> {
        self.region.host()
    }

    /// Copies what there is now. Its writer is neither asked nor held up.
    #[must_use]
    pub fn look(&self) -> Look {
        // Asked first: what a writer wrote before it ended is here then.
        let ended = self.has_ended();
        let words = self.words();
        let value = |at: usize| words.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
        let mut seen =
            Look { rows: Vec::new(), whole: false, torn: 0, left_out: 0, written_ns: 0, ended };
        for look in 1..=LOOKS {
            let lock = words.get(word::LOCK);
            let reading = lock.and_then(Reading::begin);
            if reading.is_none() && look < LOOKS {
                thread::yield_now();
                continue;
            }
            let used = usize::try_from(value(word::USED)).unwrap_or(usize::MAX);
            (seen.left_out, seen.written_ns) = (value(word::LEFT_OUT), value(word::WRITTEN));
            (seen.rows, seen.torn) = (Vec::new(), 0);
            for at in 0..used.min(self.shape.rows) {
                self.row(at, &mut seen);
            }
            seen.whole = reading.zip(lock).is_some_and(|(reading, lock)| reading.is_whole(lock));
            if seen.whole {
                break;
            }
        }
        seen
    }

    fn row(&self, at: usize, seen: &mut Look) {
        let row = self.table.row(at);
        let mut numbers = vec![0; self.shape.columns.len()];
        for attempt in 0..TRIES {
            match rows::get(row, &mut numbers) {
                RowRead::Numbers => return seen.rows.push(numbers),
                RowRead::Nothing => return,
                RowRead::Torn if seen.ended => break,
                RowRead::Torn if attempt < 100 => crate::atomic::pause(),
                RowRead::Torn => thread::yield_now(),
            }
        }
        seen.torn += 1;
    }
}
