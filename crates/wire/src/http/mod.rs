//! Parser for HTTP/1 heads, and tracking of the bodies that follow (RFC 9112, RFC 9110).
//!
//! The caller parses one direction of a connection as its bytes arrive: first a [`Head`], when
//! complete, then a [`Body`], which separates data from framing. Nothing is copied; slices point
//! into the input.
//!
//! There are two modes. [`ParseMode::Strict`] accepts what RFC 9112 permits, as a server should.
//! [`ParseMode::Lenient`] accepts what a browser or proxy might, because an observer must not miss
//! messages that the endpoints accept: bare CR or LF as line ends, folded lines, misplaced white
//! space, invalid versions. Where the RFC leaves recipients a choice, a comment states the choice.
//!
//! Not supported: HTTP/2, content decoding, analysis of targets. [SL §4.2]

mod body;
mod codings;
mod fault;
mod fields;
mod head;
mod lines;
mod method;
mod mode;
mod protocol_guess;
mod start_line;
#[cfg(test)]
mod tests;

pub use body::{Body, BodyPart};
pub use codings::{ContentCoding, ContentCodings};
pub use fault::{HeadError, HttpFault};
pub use fields::EvaluatedFields;
pub use head::Head;
pub use lines::HeadSearch;
pub use method::{METHOD_CLASSES, OTHER_METHOD, RequestMethod, method_number};
pub use mode::ParseMode;
pub use protocol_guess::{ProtocolGuess, guess_protocol};
pub use start_line::StartLine;
