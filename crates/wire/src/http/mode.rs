//! The choice between the strict and the lenient parser.

/// The tolerance of the HTTP parser for violations of RFC 9112.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseMode {
    /// Accepts only messages that RFC 9112 permits.
    Strict,
    /// Also accepts messages that browsers, proxies or servers might accept.
    Lenient,
}
