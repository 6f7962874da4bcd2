//! HTTP/1: heads, and where the bodies behind them end (RFC 9112, RFC 9110).
//!
//! In: the bytes of one direction of a connection, as they come. Out: a [`Head`] once all of it is
//! there, and a [`Body`], plain data that says byte by byte what belongs to a body and what only
//! frames it. Nothing is copied or kept: slices point into the bytes that came.
//!
//! There are two manners. [`Manner::Strict`] takes what RFC 9112 lets through and refuses the rest:
//! what a server should do. [`Manner::Lenient`] takes what a browser or a proxy may take, since who
//! watches a connection must not see less than its ends do: single CR or LF as line ends, folded
//! lines, white space where none belongs, wrong versions. Where the RFC leaves recipients a choice,
//! the comment says which one is made.
//!
//! What is absent: nothing here understands HTTP/2, undoes a content coding, or looks into a
//! target. [SL §4.2]

mod body;
mod fault;
mod fields;
mod head;
mod lines;
mod method;
mod start;
#[cfg(test)]
mod tests;

pub use body::{Asked, Body, Piece};
pub use fault::{Fault, Stop};
pub use fields::{Coding, Codings, Fields};
pub use head::Head;
pub use lines::Seek;
pub use method::{METHODS, method_number};
pub use start::Start;

/// How much is taken for HTTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// What RFC 9112 lets through.
    Strict,
    /// What the ends of a connection may take.
    Lenient,
}

/// What the first bytes of a direction look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guess {
    /// Too few bytes to say.
    Short,
    /// The head of an HTTP/1 request.
    Request,
    /// The head of an HTTP/1 response.
    Response,
    /// The preface of HTTP/2 (RFC 9113 §3.4).
    Http2,
    /// A handshake record of TLS.
    Tls,
    /// Something else.
    Other,
}

/// The longest method that [`guess`] takes for one.
const METHOD_MAX: usize = 24;

/// What these first bytes of a direction look like. Line ends before a head are passed over.
#[must_use]
pub fn guess(bytes: &[u8]) -> Guess {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";
    let begins = |with: &[u8]| {
        let length = with.len().min(bytes.len());
        bytes.get(..length) == with.get(..length)
    };
    if let [0x16, 3, minor, ..] = bytes {
        return if *minor <= 4 { Guess::Tls } else { Guess::Other };
    }
    let blank = bytes.iter().take_while(|byte| lines::is_blank(**byte)).count();
    let rest = bytes.get(blank..).unwrap_or_default();
    match rest {
        [] | [b'P'] | [b'P', b'R'] | [b'P', b'R', b'I'] => Guess::Short,
        [b'P', b'R', b'I', b' ', ..] if begins(PREFACE) => match rest.len() < PREFACE.len() {
            true => Guess::Short,
            false => Guess::Http2,
        },
        _ if start::names_http(rest) => Guess::Response,
        _ => guess_request(rest),
    }
}

/// Whether a method and a blank stand there, or how far they are.
fn guess_request(rest: &[u8]) -> Guess {
    let end = rest.iter().take(METHOD_MAX + 1).position(|byte| !fields::is_token(*byte));
    match end {
        Some(end) if end > 0 && rest.get(end) == Some(&b' ') => Guess::Request,
        None if rest.len() <= METHOD_MAX => Guess::Short,
        _ => Guess::Other,
    }
}
