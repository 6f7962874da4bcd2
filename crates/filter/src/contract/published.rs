//! Published state of a filter (`state=NAME`): numbers with names and units. [Th §5.3.3,
//! "communicating state"], FEATURES M3
//!
//! A session becomes a row of numbers, one or more per field. The fields are declared once
//! ([`Session::FIELDS`](super::Session::FIELDS)); help, checks, shared tables and printed output
//! derive from them. Other values of a session (seeds, hashes, held blocks) are never published.

/// Unit of a number.
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
    /// 1 for yes, 0 for no.
    YesNo,
    /// A number without a unit, such as a session or port number.
    Number,
}

impl Unit {
    /// Returns the unit as printed; empty for [`Unit::Number`].
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

/// A field of a session, without the session's type and accessor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// Name, of the form `[a-z][a-z0-9_]*`.
    pub name: &'static str,
    /// Unit of the number.
    pub unit: Unit,
    /// Number of values; if above 1, each value has a column of its own, named `NAME.INDEX`.
    pub times: usize,
    /// One line for help.
    pub help: &'static str,
}

impl Column {
    /// Returns the headings: the name, or one name per value.
    pub fn names(self) -> impl Iterator<Item = String> {
        let name = move |number| match self.times {
            1 => self.name.to_owned(),
            _ => format!("{}.{number}", self.name),
        };
        (0..self.times).map(name)
    }
}

/// The session number: the first column of filters with several sessions.
pub const SESSION: Column =
    Column { name: "session", unit: Unit::Number, times: 1, help: "the number of the session" };

/// A field of a session type, with its accessor.
#[derive(Debug)]
pub struct Field<S> {
    pub(super) column: Column,
    pub(super) of: fn(&S, usize) -> u64,
}

impl<S> Field<S> {
    /// Creates a field with one value.
    #[must_use]
    pub const fn new(
        name: &'static str,
        unit: Unit,
        help: &'static str,
        of: fn(&S, usize) -> u64,
    ) -> Self {
        Self::many(name, unit, 1, help, of)
    }

    /// Creates a field with `times` values; `of` receives the index of a value.
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

/// The part of its sessions that a filter publishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishedSessions {
    /// The private session: one row.
    Private,
    /// All sessions except the private one, which holds internal data such as seeds.
    Sessions,
}

/// Callback for a changed row: receives the index of the row and its numbers, or `None` if the
/// session has ended.
pub type Row<'r> = dyn FnMut(usize, Option<&[u64]>) + 'r;
