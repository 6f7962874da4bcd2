//! Published state of a filter (`state=NAME`): numbers with names and units. [Th §5.3.3,
//! "communicating state"], FEATURES M3
//!
//! In: a session, which is plain data. Out: a row of numbers, one for each field. The fields of a
//! session stand once, beside it ([`Session::FIELDS`](super::Session::FIELDS)); help, checks, the
//! tables that others read and the printed output are made from those. Values that are not among
//! the fields (seeds, hashes, lists of held blocks) are never published.

/// Unit of a field's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Blocks.
    Blocks,
    /// Bytes.
    Bytes,
    /// Messages of a protocol.
    Messages,
    /// Nanoseconds: a stretch of time, or a time by the clock of the path.
    Nanoseconds,
    /// 1 or 0.
    YesNo,
    /// A number that means itself: a session, a port.
    Number,
}

impl Unit {
    /// The unit as it is printed; of what means itself nothing.
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

/// A field, whatever session it is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// `[a-z][a-z0-9_]*`
    pub name: &'static str,
    /// Unit of the number.
    pub unit: Unit,
    /// Number of values of the column: if there are several, each has its number behind the name.
    pub times: usize,
    /// Description, for help.
    pub help: &'static str,
}

impl Column {
    /// The names of its numbers, as they stand at the head of a table.
    pub fn names(self) -> impl Iterator<Item = String> {
        let name = move |number| match self.times {
            1 => self.name.to_owned(),
            _ => format!("{}.{number}", self.name),
        };
        (0..self.times).map(name)
    }
}

/// The number of a session: the first column where a filter keeps several.
pub const SESSION: Column =
    Column { name: "session", unit: Unit::Number, times: 1, help: "the number of the session" };

/// A field of a session, and where its number is.
#[derive(Debug)]
pub struct Field<S> {
    pub(super) column: Column,
    pub(super) of: fn(&S, usize) -> u64,
}

impl<S> Field<S> {
    /// A field of one number.
    #[must_use]
    pub const fn new(
        name: &'static str,
        unit: Unit,
        help: &'static str,
        of: fn(&S, usize) -> u64,
    ) -> Self {
        Self::many(name, unit, 1, help, of)
    }

    /// A field of several numbers, which `of` is asked for by their place.
    #[must_use]
    pub const fn many(
        name: &'static str,
        unit: Unit,
        times: usize,
        help: &'static str,
        of: fn(&S, usize) -> u64,
    ) -> Self {
        Self { column: Column { name, unit, times, help }, of }
    }
}

/// Sessions whose state a filter publishes, as [`Keeps`](super::Keeps) declares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The private one: one row.
    Private,
    /// All others: what the private one shares among them (seeds) is nobody's.
    Sessions,
}

/// The columns of a session of this kind, for a description.
#[must_use]
pub fn columns<S: super::Session>() -> Vec<Column> {
    S::FIELDS.iter().map(|field| field.column).collect()
}

/// Callback for each changed row: its position, and its numbers; `None`: it has ended.
pub type Row<'r> = dyn FnMut(usize, Option<&[u64]>) + 'r;
