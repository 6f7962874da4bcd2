//! Parsed arguments of `http`.

use wire::http::ParseMode;

/// The parsed arguments of `http`.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) emit: EmittedParts,
    pub(super) mode: ParseMode,
    pub(super) decode: bool,
    /// True if an arc from this filter selects exchanges.
    pub(super) exchanges: bool,
    /// Maximum size of a message head in bytes.
    pub(super) head_max: usize,
    /// Maximum number of pending requests per connection.
    pub(super) pending_max: usize,
    /// Maximum number of connections whose state is stored at a time.
    pub(super) connections_max: usize,
    /// Maximum size of a coded body and of a decoded body, in bytes.
    pub(super) decoded_max: usize,
}

/// The parts of a message that are emitted after its description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EmittedParts {
    Message,
    Head,
    Body,
}
