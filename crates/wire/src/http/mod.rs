//! HTTP/1 heads, and the ends of the bodies after them (RFC 9112, RFC 9110).
//!
//! Parses one direction of a connection as its bytes arrive: a [`Head`] once it is complete, then a
//! [`Body`], plain data that separates body bytes from framing. Nothing is copied; slices point
//! into the input.
//!
//! Two modes: [`ParseMode::Strict`] accepts what RFC 9112 permits, as a server should.
//! [`ParseMode::Lenient`] accepts what a browser or proxy might, since an observer must not miss
//! messages that the endpoints accept: bare CR or LF as line ends, folded lines, misplaced white
//! space, invalid versions. Where the RFC leaves recipients a choice, a comment states the choice.
//!
//! Not supported: HTTP/2, content decoding, analysis of targets. [SL §4.2]

mod body;
mod fault;
mod fields;
mod guess;
mod head;
mod lines;
mod method;
mod mode;
mod start;
#[cfg(test)]
mod tests;

pub use body::{Body, BodyPart, RequestMethod};
pub use fault::{HttpFault, Stop};
pub use fields::{Coding, Codings, Fields};
pub use guess::{Guess, guess};
pub use head::Head;
pub use lines::HeadSearch;
pub use method::{METHODS, OTHER, method_number};
pub use mode::ParseMode;
pub use start::Start;
