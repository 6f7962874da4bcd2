//! Domain names: sequences of labels, possibly compressed by pointers.
//!
//! Parsing verifies every label. Text is formatted as in master files and by `dig` (RFC 1035 §5.1,
//! RFC 4343 §2.1): unprintable bytes as `\DDD`, special characters preceded by a backslash, no
//! final dot, and the root as `.`.

use super::DnsFault;
use core::fmt::{self, Write as _};

/// Maximum length in bytes of a name on the wire, including length bytes and the root (RFC 1035
/// §2.3.4).
pub const NAME_MAX: usize = 255;
/// Maximum number of compression pointers per name, which allows one pointer before each of up to
/// 127 labels.
const POINTERS_MAX: usize = 127;

/// A domain name in a message, whose labels have all been verified.
#[derive(Clone, Copy, Debug)]
pub struct Name<'m> {
    message: &'m [u8],
    at: usize,
    has_forward_pointer: bool,
}

impl<'m> Name<'m> {
    /// Parses the name at offset `at` of a message. Also returns the offset of the first byte after
    /// it.
    pub fn read(message: &'m [u8], at: usize) -> Result<(Self, usize), DnsFault> {
        let mut walk = LabelIterator::new(message, at);
        let mut length = 1;
        loop {
            match walk.next_label()? {
                Some(label) => {
                    length += label.len() + 1;
                    if length > NAME_MAX {
                        return Err(DnsFault::Invalid(at));
                    }
                }
                None => {
                    let name = Self { message, at, has_forward_pointer: walk.has_forward_pointer };
                    return Ok((name, walk.end.unwrap_or(walk.at)));
                }
            }
        }
    }

    /// Iterates over the labels, excluding the root.
    #[must_use]
    pub fn labels(&self) -> Labels<'m> {
        Labels(LabelIterator::new(self.message, self.at))
    }

    /// Returns true if a pointer in the name points forward, although RFC 1035 §4.1.4 allows only
    /// "a prior occurrence".
    #[must_use]
    pub const fn has_forward_pointer(&self) -> bool {
        self.has_forward_pointer
    }

    /// Returns true if the name is the root name, which has no labels.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.labels().next().is_none()
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_char('.');
        }
        for (number, label) in self.labels().enumerate() {
            if number > 0 {
                f.write_char('.')?;
            }
            write_escaped(f, label, |byte| {
                matches!(byte, b'"' | b'$' | b'(' | b')' | b'.' | b';' | b'@')
            })?;
        }
        Ok(())
    }
}

/// Writes bytes with escapes. Unprintable bytes and spaces become `\DDD`; backslashes and the bytes
/// in `special` are preceded by a backslash.
pub(super) fn write_escaped(
    f: &mut fmt::Formatter<'_>,
    bytes: &[u8],
    special: impl Fn(u8) -> bool,
) -> fmt::Result {
    for &byte in bytes {
        match byte {
            b'\\' => f.write_str("\\\\")?,
            _ if special(byte) => write!(f, "\\{}", char::from(byte))?,
            0x21..=0x7e => f.write_char(char::from(byte))?,
            _ => write!(f, "\\{byte:03}")?,
        }
    }
    Ok(())
}

/// An iterator over the labels of a name, excluding the root.
#[derive(Clone, Debug)]
pub struct Labels<'m>(LabelIterator<'m>);

impl<'m> Iterator for Labels<'m> {
    type Item = &'m [u8];

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_label().ok().flatten()
    }
}

/// The state of a walk over the labels of a name, which follows compression pointers.
#[derive(Clone, Debug)]
struct LabelIterator<'m> {
    message: &'m [u8],
    at: usize,
    /// Offset of the first label since the last compression pointer. A pointer to this offset or
    /// beyond counts as a forward pointer.
    begin: usize,
    /// True if a compression pointer that was read so far pointed forward.
    has_forward_pointer: bool,
    /// Offset after the first compression pointer, where the enclosing record continues; `None`
    /// before any pointer.
    end: Option<usize>,
    pointers: usize,
}

impl<'m> LabelIterator<'m> {
    const fn new(message: &'m [u8], at: usize) -> Self {
        Self { message, at, begin: at, has_forward_pointer: false, end: None, pointers: 0 }
    }

    /// Returns the next label; `None` at the root.
    fn next_label(&mut self) -> Result<Option<&'m [u8]>, DnsFault> {
        loop {
            let at = self.at;
            let first = *self.message.get(at).ok_or(DnsFault::Truncated(at))?;
            match first {
                0 => {
                    self.at = at + 1;
                    return Ok(None);
                }
                1..=0x3f => {
                    let end = at + 1 + usize::from(first);
                    let label = self.message.get(at + 1..end).ok_or(DnsFault::Truncated(at))?;
                    self.at = end;
                    return Ok(Some(label));
                }
                0xc0..=0xff => self.follow_pointer(at, first)?,
                // RFC 6891 §5 withdrew extended label types.
                _ => return Err(DnsFault::Invalid(at)),
            }
        }
    }

    fn follow_pointer(&mut self, at: usize, first: u8) -> Result<(), DnsFault> {
        let low = *self.message.get(at + 1).ok_or(DnsFault::Truncated(at))?;
        let target = usize::from(first & 0x3f) << 8 | usize::from(low);
        self.pointers += 1;
        // Ends a loop of pointers, unless the name exceeds the maximum length first.
        if self.pointers > POINTERS_MAX {
            return Err(DnsFault::Invalid(at));
        }
        self.has_forward_pointer |= target >= self.begin;
        self.end.get_or_insert(at + 2);
        (self.at, self.begin) = (target, target);
        Ok(())
    }
}
