//! Names: labels, one after the other, the rest perhaps somewhere else.
//!
//! In: a message and where a name begins in it. Out: a name whose every label is there, and its
//! text as master files and `dig` write it (RFC 1035 §5.1, RFC 4343 §2.1): what is not printable as
//! `\DDD`, what means something else there behind a backslash. A name ends without a dot; the root
//! is `.`.

use super::Fault;
use core::fmt::{self, Write as _};

/// The longest name on the wire, with the lengths of its labels and the root (RFC 1035 §2.3.4).
pub const NAME_MAX: usize = 255;
/// How many pointers a name may take. It has at most 127 labels, and one before each is plenty.
const POINTERS_MAX: usize = 127;

/// A name whose labels are all there.
#[derive(Clone, Copy, Debug)]
pub struct Name<'m> {
    message: &'m [u8],
    at: usize,
    ahead: bool,
}

impl<'m> Name<'m> {
    /// The name that begins at `at`, and the offset behind it.
    pub fn read(message: &'m [u8], at: usize) -> Result<(Self, usize), Fault> {
        let mut walk = Walk::new(message, at);
        let mut length = 1;
        loop {
            match walk.step()? {
                Some(label) => {
                    length += label.len() + 1;
                    if length > NAME_MAX {
                        return Err(Fault::Wrong(at));
                    }
                }
                None => {
                    let name = Self { message, at, ahead: walk.ahead };
                    return Ok((name, walk.behind.unwrap_or(walk.at)));
                }
            }
        }
    }

    /// The labels, the root left out.
    #[must_use]
    pub fn labels(&self) -> Labels<'m> {
        Labels(Walk::new(self.message, self.at))
    }

    /// Returns true if a pointer in it points ahead, where RFC 1035 §4.1.4 has it point to "a prior
    /// occurrence".
    #[must_use]
    pub const fn points_ahead(&self) -> bool {
        self.ahead
    }

    /// Whether it is the root.
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
            escaped(f, label, |byte| {
                matches!(byte, b'"' | b'$' | b'(' | b')' | b'.' | b';' | b'@')
            })?;
        }
        Ok(())
    }
}

/// Writes bytes with what is not printable as `\DDD` and with a backslash before each backslash and
/// what is `special`. A space is not printable.
pub(super) fn escaped(
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

/// The labels of a name, from the first to the one before the root.
#[derive(Clone, Debug)]
pub struct Labels<'m>(Walk<'m>);

impl<'m> Iterator for Labels<'m> {
    type Item = &'m [u8];

    fn next(&mut self) -> Option<Self::Item> {
        self.0.step().ok().flatten()
    }
}

/// Goes from label to label.
#[derive(Clone, Debug)]
struct Walk<'m> {
    message: &'m [u8],
    at: usize,
    /// Where the labels begin that are being read: pointers should point before that.
    begin: usize,
    /// True if one did not.
    ahead: bool,
    /// Behind the first pointer: there the name ends in its place.
    behind: Option<usize>,
    pointers: usize,
}

impl<'m> Walk<'m> {
    const fn new(message: &'m [u8], at: usize) -> Self {
        Self { message, at, begin: at, ahead: false, behind: None, pointers: 0 }
    }

    /// The next label; nothing at the root.
    fn step(&mut self) -> Result<Option<&'m [u8]>, Fault> {
        loop {
            let at = self.at;
            let first = *self.message.get(at).ok_or(Fault::Ends(at))?;
            match first {
                0 => {
                    self.at = at + 1;
                    return Ok(None);
                }
                1..=0x3f => {
                    let end = at + 1 + usize::from(first);
                    let label = self.message.get(at + 1..end).ok_or(Fault::Ends(at))?;
                    self.at = end;
                    return Ok(Some(label));
                }
                0xc0..=0xff => self.jump(at, first)?,
                // RFC 6891 §5: extended label types are no more.
                _ => return Err(Fault::Wrong(at)),
            }
        }
    }

    fn jump(&mut self, at: usize, first: u8) -> Result<(), Fault> {
        let low = *self.message.get(at + 1).ok_or(Fault::Ends(at))?;
        let target = usize::from(first & 0x3f) << 8 | usize::from(low);
        self.pointers += 1;
        // What goes round ends here, or is longer than a name may be.
        if self.pointers > POINTERS_MAX {
            return Err(Fault::Wrong(at));
        }
        self.ahead |= target >= self.begin;
        self.behind.get_or_insert(at + 2);
        (self.at, self.begin) = (target, target);
        Ok(())
    }
}
