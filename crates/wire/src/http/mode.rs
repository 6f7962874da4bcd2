//! The tolerance of the parser.

/// The tolerance of the parser.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseMode {
    /// Accepts what RFC 9112 permits.
    Strict,
    /// Accepts what endpoints might.
    Lenient,
}
