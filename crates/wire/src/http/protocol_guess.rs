//! Detection of a connection's protocol from its first bytes.

use super::fields::is_token_byte;
use super::lines::is_blank;
use super::start_line::begins_with_http;

/// The protocol guessed from the first bytes of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolGuess {
    /// There are too few bytes to decide.
    TooShort,
    /// The bytes begin an HTTP/1 request.
    Request,
    /// The bytes begin an HTTP/1 response.
    Response,
    /// The bytes begin with the preface of HTTP/2 (RFC 9113 §3.4).
    Http2,
    /// The bytes begin with a TLS handshake record.
    Tls,
    /// The bytes belong to any other protocol.
    Other,
}

/// Maximum length in bytes of a request method that [`guess_protocol`] recognizes.
const METHOD_LENGTH_MAX: usize = 24;

/// Guesses the protocol from the first bytes of one direction. Skips line ends and white space
/// before a head.
#[must_use]
pub fn guess_protocol(bytes: &[u8]) -> ProtocolGuess {
    const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";
    let begins = |with: &[u8]| {
        let length = with.len().min(bytes.len());
        bytes.get(..length) == with.get(..length)
    };
    if let [0x16, 3, minor, ..] = bytes {
        return if *minor <= 4 { ProtocolGuess::Tls } else { ProtocolGuess::Other };
    }
    let blank = bytes.iter().take_while(|byte| is_blank(**byte)).count();
    let rest = bytes.get(blank..).unwrap_or_default();
    match rest {
        [] | [b'P'] | [b'P', b'R'] | [b'P', b'R', b'I'] => ProtocolGuess::TooShort,
        [b'P', b'R', b'I', b' ', ..] if begins(HTTP2_PREFACE) => {
            match rest.len() < HTTP2_PREFACE.len() {
                true => ProtocolGuess::TooShort,
                false => ProtocolGuess::Http2,
            }
        }
        _ if begins_with_http(rest) => ProtocolGuess::Response,
        _ => guess_request(rest),
    }
}

/// Returns [`ProtocolGuess::Request`] if `rest` begins with a method and a space,
/// [`ProtocolGuess::TooShort`] if more bytes could complete a method and a space, and
/// [`ProtocolGuess::Other`] otherwise.
fn guess_request(rest: &[u8]) -> ProtocolGuess {
    let end = rest.iter().take(METHOD_LENGTH_MAX + 1).position(|byte| !is_token_byte(*byte));
    match end {
        Some(end) if end > 0 && rest.get(end) == Some(&b' ') => ProtocolGuess::Request,
        None if rest.len() <= METHOD_LENGTH_MAX => ProtocolGuess::TooShort,
        _ => ProtocolGuess::Other,
    }
}
