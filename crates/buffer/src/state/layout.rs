//! The layout of a table in its region: head words, the columns as text, and the rows.
//!
//! [`TableShape::read`] validates words that another process has written. It returns a shape that
//! fits the region, or an error.

use super::rows::ROW_HEAD_WORDS;
use crate::atomic::AtomicU64;
use crate::foreign_memory;
use crate::name::Error;
use crate::share::OfferRefusal;

/// Indices of the words at the start of a table's region. These words form its head and precede the
/// column text and the rows.
pub(super) mod word {
    /// Index, in the table's region, of the word with the magic number, which includes the version
    /// of the format.
    pub(in super::super) const MAGIC: usize = 0;
    /// Index, in the table's region, of the word with the length of the column text in bytes.
    pub(in super::super) const TEXT_LENGTH: usize = 1;
    /// Index, in the table's region, of the word with the number of columns.
    pub(in super::super) const COLUMN_COUNT: usize = 2;
    /// Index, in the table's region, of the word with the maximum number of rows.
    pub(in super::super) const ROW_COUNT_MAX: usize = 3;
    /// Index, in the table's region, of the sequence lock that protects all rows, and all later
    /// words of the head except [`ENDED`].
    pub(in super::super) const LOCK: usize = 4;
    /// Index, in the table's region, of the word with the time of the last write, in nanoseconds of
    /// the monotonic clock.
    pub(in super::super) const WRITE_TIME: usize = 5;
    /// Index, in the table's region, of the word with the number of sessions that found no free
    /// row.
    pub(in super::super) const LEFT_OUT_SESSIONS: usize = 6;
    /// Index, in the table's region, of the word with the number of rows up to and including the
    /// last one ever used.
    pub(in super::super) const USED_ROWS: usize = 7;
    /// Index, in the table's region, of the word that is 1 if the writer has ended the table, and
    /// otherwise 0. A killed writer does not set this word; the hang-up of the host's socket
    /// reports its death.
    pub(in super::super) const ENDED: usize = 8;
    /// Number of words in the head of a table's region.
    pub(in super::super) const HEAD_WORD_COUNT: usize = 9;
}

/// Magic number: "SL stat" and the version of the format.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"SL stat1");
/// Maximum number of columns of a table.
const COLUMNS_MAX: usize = 1 << 10;
/// Maximum number of rows of a table.
const ROWS_MAX: usize = 1 << 24;
/// Maximum length of the column text in bytes.
const TEXT_LENGTH_MAX: usize = 1 << 16;

/// A column of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// Unit, such as `blocks`, `bytes` or `ns`; empty if the values have none.
    pub unit: String,
}

/// The shape of a table: the filter, the columns, and the maximum number of rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableShape {
    /// Filter call as written in the request.
    pub filter: String,
    /// Columns, in the order of the numbers in a row.
    pub columns: Vec<Column>,
    /// Maximum number of rows of the table.
    pub rows: usize,
}

impl TableShape {
    /// Returns the text stored in the table: a line with the filter, then one line per column with
    /// its name and unit, separated by a tab.
    pub(super) fn column_text(&self) -> Vec<u8> {
        let plain = |text: &str| text.replace(['\t', '\n'], " ");
        let mut text = plain(&self.filter);
        for column in &self.columns {
            text += &format!("\n{}\t{}", plain(&column.name), plain(&column.unit));
        }
        text.into_bytes()
    }

    /// Returns the size of a row in words.
    pub(super) const fn row_words(&self) -> usize {
        ROW_HEAD_WORDS + self.columns.len()
    }

    /// Returns the index of the first row's first word, given the length of the text in bytes.
    pub(super) const fn first_row_word(text: usize) -> usize {
        // Rows begin at a cache line.
        (word::HEAD_WORD_COUNT + text.div_ceil(size_of::<u64>())).next_multiple_of(8)
    }

    /// Returns the size of the table in words.
    pub(super) fn table_words(&self) -> usize {
        Self::first_row_word(self.column_text().len()) + self.rows * self.row_words()
    }

    /// Returns true if columns, rows and text are within their limits.
    pub(super) fn is_within_limits(&self) -> bool {
        self.columns.len() <= COLUMNS_MAX
            && self.rows <= ROWS_MAX
            && self.column_text().len() <= TEXT_LENGTH_MAX
    }

    /// Validates a shape that another process has written. Returns the shape, and the index of the
    /// first row's first word.
    pub(super) fn read(words: &[AtomicU64]) -> Result<(Self, usize), Error> {
        let mut head = [0; word::HEAD_WORD_COUNT * size_of::<u64>()];
        foreign_memory::copy_out(words, 0, &mut head);
        let number = |at: usize| {
            let bytes = head.as_chunks().0.get(at).copied().unwrap_or_default();
            usize::try_from(u64::from_ne_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let refused = OfferRefusal::Size { file: "state", is: size_of_val(words), expected: 0 };
        if number(word::MAGIC) as u64 != MAGIC {
            return Err(refused.into());
        }
        let (text, columns, rows) =
            (number(word::TEXT_LENGTH), number(word::COLUMN_COUNT), number(word::ROW_COUNT_MAX));
        if text > TEXT_LENGTH_MAX || columns > COLUMNS_MAX || rows > ROWS_MAX {
            return Err(refused.into());
        }
        let first = Self::first_row_word(text);
        let should = first + rows * (ROW_HEAD_WORDS + columns);
        if should > words.len() {
            let (is, should) = (size_of_val(words), should * size_of::<u64>());
            return Err(OfferRefusal::Size { file: "state", is, expected: should }.into());
        }
        let mut bytes = vec![0; text];
        foreign_memory::copy_out(words, word::HEAD_WORD_COUNT * size_of::<u64>(), &mut bytes);
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
