//! Published state of a filter (`state=NAME`): numbers with names and units. [Th §5.3.3,
//! "communicating state"], FEATURES M3
//!
//! Each session is published as a row of numbers, with one or more numbers per field. The fields
//! are declared once ([`Session::FIELDS`](super::Session::FIELDS)). Help, checks, shared tables and
//! printed output are derived from this declaration. Other values in a session (seeds, hashes, held
//! blocks) are never published.

/// Unit of a published number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Count of blocks.
    Blocks,
    /// Count of bytes.
    Bytes,
    /// Count of messages of a protocol.
    Messages,
    /// Nanoseconds: a duration, or a time on the path's clock.
    Nanoseconds,
    /// A Boolean value: 1 for yes, 0 for no.
    YesNo,
    /// A number without a unit, such as a port.
    Number,
}

impl Unit {
    /// Returns the unit as text; empty for [`Unit::Number`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Bytes => "bytes",
            Self::Messages => "messages",
            Self::Nanoseconds => "ns",
            Self::YesNo => "yes or no",
            Self::Number => "",
        }
    }
}

/// A column of published state: the name, unit, number of values and description of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// Name of the column, of the form `[a-z][a-z0-9_]*`.
    pub name: &'static str,
    /// Unit of the numbers in the column.
    pub unit: Unit,
    /// Number of values per row. If there are several, each value has its own column, named
    /// `NAME.INDEX`.
    pub value_count: usize,
    /// Description of the column for the help text, in one line.
    pub help: &'static str,
}

impl Column {
    /// Returns the column headings: the name or, if there are several values, one name per value.
    pub fn names(self) -> impl Iterator<Item = String> {
        let name = move |number| match self.value_count {
            1 => self.name.to_owned(),
            _ => format!("{}.{number}", self.name),
        };
        (0..self.value_count).map(name)
    }
}

/// The column of session numbers. A filter with several sessions publishes it as its first column.
pub const SESSION_COLUMN: Column = Column {
    name: "session",
    unit: Unit::Number,
    value_count: 1,
    help: "the number of the session",
};

/// A published field of session type `S`: its column, and the function that reads its values.
#[derive(Debug)]
pub struct Field<S> {
    pub(super) column: Column,
    pub(super) of: fn(&S, usize) -> u64,
}

impl<S> Field<S> {
    /// Creates a field with one value, which `of` returns. The second argument of `of` is always 0.
    #[must_use]
    pub const fn new(
        name: &'static str,
        unit: Unit,
        help: &'static str,
        of: fn(&S, usize) -> u64,
    ) -> Self {
        Self::array(name, unit, 1, help, of)
    }

    /// Creates a field with `value_count` values. `of` returns the value whose index is given as
    /// its second argument.
    #[must_use]
    pub const fn array(
        name: &'static str,
        unit: Unit,
        value_count: usize,
        help: &'static str,
        of: fn(&S, usize) -> u64,
    ) -> Self {
        Self { column: Column { name, unit, value_count, help }, of }
    }
}

/// Selects the sessions that a filter publishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishedSessions {
    /// Only the private session of the filter, published as a single row.
    Private,
    /// All sessions except the private one, which contains internal data such as seeds.
    Sessions,
}

/// Callback that receives a changed row of published state: the index of the row, and the numbers
/// in the row. The numbers are `None` if the session of the row has ended.
pub type RowCallback<'r> = dyn FnMut(usize, Option<&[u64]>) + 'r;
