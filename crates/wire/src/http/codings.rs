//! Content codings of a message body.

use super::fields::eq_ignore_case;

/// A content coding (RFC 9110 §8.4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContentCoding {
    /// `gzip` or `x-gzip`.
    Gzip,
    /// `deflate`: the zlib format, or raw deflate from senders that misread the RFC.
    Deflate,
    /// `br` (RFC 7932).
    Brotli,
    /// Another registered coding, such as `zstd`.
    OtherRegistered,
    /// A coding that is not registered, such as a character set that a sender states by mistake.
    Unknown,
}

/// Registered names of content codings that [`ContentCoding`] does not distinguish (IANA, HTTP
/// Content Coding Registry).
const OTHER_REGISTERED_CODINGS: &str =
    "zstd compress x-compress exi pack200-gzip aes128gcm dcb dcz";

/// The content codings of a message, without `identity`, in the order in which they were applied.
/// The value is 2 bytes of plain data. If there are more than four codings, the last one stored is
/// [`ContentCoding::OtherRegistered`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct ContentCodings(u16);

impl ContentCodings {
    const CODINGS_MAX: u32 = 4;

    /// Restores a list of codings from the number that [`ContentCodings::number`] returned.
    #[must_use]
    pub const fn from_number(number: u16) -> Self {
        Self(number)
    }

    /// Encodes the list of codings as a number, for storage in a session.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Returns true if the list contains no codings.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Iterates over the codings in the order of decoding, which begins with the coding applied
    /// last.
    pub fn iter_outermost_first(self) -> impl Iterator<Item = ContentCoding> {
        let number = self.0;
        (0..Self::CODINGS_MAX).rev().filter_map(move |place| match number >> (4 * place) & 0xf {
            0 => None,
            1 => Some(ContentCoding::Gzip),
            2 => Some(ContentCoding::Deflate),
            3 => Some(ContentCoding::Brotli),
            14 => Some(ContentCoding::OtherRegistered),
            _ => Some(ContentCoding::Unknown),
        })
    }

    /// Appends the coding called `word` to the list, unless it is `identity`.
    pub(super) fn add(&mut self, word: &[u8]) {
        let number = match word {
            _ if eq_ignore_case(word, b"gzip") || eq_ignore_case(word, b"x-gzip") => 1,
            _ if eq_ignore_case(word, b"deflate") => 2,
            _ if eq_ignore_case(word, b"br") => 3,
            _ if word.is_empty() || eq_ignore_case(word, b"identity") => return,
            _ if OTHER_REGISTERED_CODINGS
                .split(' ')
                .any(|name| eq_ignore_case(word, name.as_bytes())) =>
            {
                14
            }
            _ => 15,
        };
        let used = (0..Self::CODINGS_MAX).find(|place| self.0 >> (4 * place) & 0xf == 0);
        match used {
            Some(place) => self.0 |= number << (4 * place),
            // The upper four bits.
            None => self.0 = self.0 & 0x0fff | 14 << 12,
        }
    }
}
