//! Layout of a table in its region: a head of words, the columns as text, the rows.
//!
//! In: words that somebody else wrote. Out: a shape that fits into the region, or why it is none.

use super::rows::HEAD;
use crate::atomic::AtomicU64;
use crate::foreign;
use crate::name::Error;
use crate::share::Refusal;

/// Words of the head, in this order.
pub(super) mod word {
    /// Magic number with the version of the form.
    pub(in super::super) const MAGIC: usize = 0;
    /// Bytes of the text with the columns.
    pub(in super::super) const TEXT: usize = 1;
    /// Number of columns, then of rows at most.
    pub(in super::super) const COLUMNS: usize = 2;
    pub(in super::super) const ROWS: usize = 3;
    /// The lock of all that follows.
    pub(in super::super) const LOCK: usize = 4;
    /// Time of the last write, by the monotonic clock, in ns.
    pub(in super::super) const WRITTEN: usize = 5;
    /// Sessions without a row, for want of room.
    pub(in super::super) const LEFT_OUT: usize = 6;
    /// One past the last row that was ever used.
    pub(in super::super) const USED: usize = 7;
    /// 1 once its writer has ended it; the death of a writer is reported by its socket alone.
    pub(in super::super) const ENDED: usize = 8;
    /// Number of words in the head.
    pub(in super::super) const COUNT: usize = 9;
}

/// "SL state", in the first version of the form.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"SL stat1");
/// The most columns, rows, and bytes of text.
const COLUMNS_MAX: usize = 1 << 10;
const ROWS_MAX: usize = 1 << 24;
const TEXT_MAX: usize = 1 << 16;

/// A column: what its numbers are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Unit: `blocks`, `bytes`, `ns`; empty for a plain number.
    pub unit: String,
}

/// The shape of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The filter, as it stands in the request.
    pub filter: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Rows at most.
    pub rows: usize,
}

impl Shape {
    /// The text that describes it: lines of which each is a name and, behind a tab, a unit.
    pub(super) fn text(&self) -> Vec<u8> {
        let plain = |text: &str| text.replace(['\t', '\n'], " ");
        let mut text = plain(&self.filter);
        for column in &self.columns {
            text += &format!("\n{}\t{}", plain(&column.name), plain(&column.unit));
        }
        text.into_bytes()
    }

    /// Words of one row.
    pub(super) const fn width(&self) -> usize {
        HEAD + self.columns.len()
    }

    /// Returns the word at which rows begin behind a text of `text` bytes.
    pub(super) const fn first(text: usize) -> usize {
        // Rows begin where a line of the cache does.
        (word::COUNT + text.div_ceil(size_of::<u64>())).next_multiple_of(8)
    }

    /// Words of the whole.
    pub(super) fn words(&self) -> usize {
        Self::first(self.text().len()) + self.rows * self.width()
    }

    /// Returns true if it can be made.
    pub(super) fn fits(&self) -> bool {
        self.columns.len() <= COLUMNS_MAX && self.rows <= ROWS_MAX && self.text().len() <= TEXT_MAX
    }

    /// Reads a shape that another process wrote, and the word at which its rows begin.
    pub(super) fn read(words: &[AtomicU64]) -> Result<(Self, usize), Error> {
        let mut head = [0; word::COUNT * size_of::<u64>()];
        foreign::copy_out(words, 0, &mut head);
        let number = |at: usize| {
            let bytes = head.as_chunks().0.get(at).copied().unwrap_or_default();
            usize::try_from(u64::from_ne_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let refused = Refusal::Size { part: "state", is: size_of_val(words), should: 0 };
        if number(word::MAGIC) as u64 != MAGIC {
            return Err(refused.into());
        }
        let (text, columns, rows) = (number(word::TEXT), number(word::COLUMNS), number(word::ROWS));
        if text > TEXT_MAX || columns > COLUMNS_MAX || rows > ROWS_MAX {
            return Err(refused.into());
        }
        let first = Self::first(text);
        let should = first + rows * (HEAD + columns);
        if should > words.len() {
            let (is, should) = (size_of_val(words), should * size_of::<u64>());
            return Err(Refusal::Size { part: "state", is, should }.into());
        }
        let mut bytes = vec![0; text];
        foreign::copy_out(words, word::COUNT * size_of::<u64>(), &mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.split('\n');
        let filter = lines.next().unwrap_or_default().to_owned();
        let column = |line: &str| {
            let (name, unit) = line.split_once('\t').unwrap_or((line, ""));
            Column { name: name.to_owned(), unit: unit.to_owned() }
        };
        let named: Vec<Column> = lines.map(column).collect();
        if named.len() != columns {
            return Err(refused.into());
        }
        Ok((Self { filter, columns: named, rows }, first))
    }
}
