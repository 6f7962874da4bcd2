//! Errors for bytes that are rejected because they are not valid HTTP.

use core::fmt;

/// The error of a head that could not be parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadError {
    /// The head is incomplete, and more bytes are needed.
    Incomplete,
    /// The head is invalid.
    Fault(HttpFault),
}

impl From<HttpFault> for HeadError {
    fn from(fault: HttpFault) -> Self {
        Self::Fault(fault)
    }
}

/// A violated rule of HTTP/1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HttpFault {
    /// A line ends with a bare CR or LF, or contains a bare CR (RFC 9112 §2.2).
    LineEnd,
    /// The method is not a token (RFC 9110 §9.1).
    Method,
    /// The target is empty or, in strict mode, contains bytes other than visible ASCII (RFC 9112
    /// §3.2).
    Target,
    /// The version in the start line is missing or invalid. Only an HTTP/0.9 request has no version
    /// (RFC 9112 §2.3). In strict mode, the version must be 0.9, 1.0, 1.1 or 2.0.
    Version,
    /// The status code does not have three digits (RFC 9112 §4).
    Status,
    /// The reason phrase contains control characters (RFC 9112 §4).
    Reason,
    /// A field name is empty, is not a token, or is not followed by a colon (RFC 9112 §5.1).
    FieldName,
    /// A field value contains control characters (RFC 9110 §5.5).
    FieldValue,
    /// A line begins with white space, which would continue the previous line (RFC 9112 §2.2,
    /// §5.2).
    FoldedLine,
    /// `Content-Length` is not a number (RFC 9112 §6.3).
    Length,
    /// `Content-Length` occurs more than once (RFC 9112 §6.3).
    DuplicateLength,
    /// `Content-Length` occurs together with `Transfer-Encoding` (RFC 9112 §6.1).
    LengthAndTransfer,
    /// `Transfer-Encoding` of a request does not end with `chunked` (RFC 9112 §6.3).
    TransferEncoding,
    /// `Transfer-Encoding` contains `chunked` twice (RFC 9112 §6.1).
    ChunkedTwice,
    /// A chunk does not begin with its size, or the size is too large (RFC 9112 §7.1).
    ChunkSize,
    /// A chunk extension is malformed (RFC 9112 §7.1.1).
    ChunkExtension,
    /// A chunk is longer than its size states (RFC 9112 §7.1).
    ChunkEnd,
    /// The trailer section is malformed (RFC 9112 §7.1.2).
    Trailer,
}

impl fmt::Display for HttpFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LineEnd => "a line does not end with CR LF",
            Self::Method => "the method is not a token",
            Self::Target => "the target is empty or has characters that cannot be in it",
            Self::Version => "the version is not HTTP/1",
            Self::Status => "the status code is not a number of three digits",
            Self::Reason => "the reason phrase has control characters",
            Self::FieldName => "the name of a field is malformed",
            Self::FieldValue => "the value of a field has control characters",
            Self::FoldedLine => "a line begins with white space",
            Self::Length => "Content-Length is not a number",
            Self::DuplicateLength => "Content-Length is given twice",
            Self::LengthAndTransfer => "Content-Length is combined with Transfer-Encoding",
            Self::TransferEncoding => "Transfer-Encoding of a request does not end with chunked",
            Self::ChunkedTwice => "Transfer-Encoding contains chunked twice",
            Self::ChunkSize => "a chunk does not begin with a valid size",
            Self::ChunkExtension => "a chunk extension is malformed",
            Self::ChunkEnd => "a chunk does not end where its size says",
            Self::Trailer => "the trailer section is malformed",
        })
    }
}

impl core::error::Error for HttpFault {}
