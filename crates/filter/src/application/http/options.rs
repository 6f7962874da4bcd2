//! Parsed arguments of `http`.

use wire::http::ParseMode;

/// The parsed arguments of `http`.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) emit: Emit,
    pub(super) mode: ParseMode,
    pub(super) decode: bool,
    pub(super) exchanges: bool,
    pub(super) head: usize,
    pub(super) pending: usize,
    pub(super) connections: usize,
    pub(super) most: usize,
}

/// The parts of a message that are emitted after its description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Emit {
    Message,
    Head,
    Body,
}
