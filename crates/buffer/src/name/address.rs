//! Names: `NAME`, of this user, or `UID/NAME`, of another one.
//!
//! A name has 1 to 64 letters, digits, dots, hyphens and underscores; nothing is escaped, so that
//! it reads the same in `/proc/net/unix`, in a shell and in a path.

use super::Error;
use std::fmt;
use std::str::FromStr;

/// A name, and the user whose it is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    uid: u32,
    name: String,
    of: Realm,
}

/// The sort of named object; each has names of its own, so that the name of a socket shows its
/// purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Realm {
    /// Streams, inboxes, regions.
    Streams,
    /// States of filters ([`crate::state`]).
    States,
}

impl Address {
    /// The longest name.
    pub const NAME_MAX: usize = 64;

    /// A name of this user.
    pub fn own(name: &str) -> Result<Self, Error> {
        Self::of(sys::process::identity().0, name)
    }

    /// A name of a user.
    pub fn of(uid: u32, name: &str) -> Result<Self, Error> {
        let wrong = |why| Err(Error::Name { name: name.chars().take(80).collect(), why });
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        match name.len() {
            0 => wrong("it is empty"),
            length if length > Self::NAME_MAX => wrong("it is longer than 64 bytes"),
            _ if !name.chars().all(plain) => {
                wrong("it may have letters, digits, dots, hyphens and underscores")
            }
            _ => Ok(Self { uid, name: name.to_owned(), of: Realm::Streams }),
        }
    }

    /// The same name, for what a filter knows.
    #[must_use]
    pub(crate) fn of_state(self) -> Self {
        Self { of: Realm::States, ..self }
    }

    /// Returns the noun for messages.
    pub(super) const fn noun(&self) -> &'static str {
        match self.of {
            Realm::Streams => "stream",
            Realm::States => "state",
        }
    }

    /// Returns the owner of the name.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// The name alone.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address at which the host of this name listens, without the leading zero byte.
    pub(super) fn socket(&self) -> Vec<u8> {
        format!("{}{}/{}", self.root(), self.uid, self.name).into_bytes()
    }

    /// A spare place to listen at while another user keeps [`Self::socket`]: there are more of them
    /// than anyone can keep.
    pub(super) fn spare(&self, number: u64) -> Vec<u8> {
        let number = number >> (64 - 4 * SPARE_DIGITS);
        let mut name = self.socket();
        name.extend_from_slice(format!("/{number:0SPARE_DIGITS$x}").as_bytes());
        name
    }

    /// The address in the name of a socket, and whether it is a spare one.
    pub(crate) fn of_socket(name: &str) -> Option<(Self, bool)> {
        let realms = [Realm::Streams, Realm::States].into_iter();
        let (of, rest) = realms.into_iter().find_map(|of| {
            let root = Self { uid: 0, name: String::new(), of }.root();
            Some((of, name.strip_prefix(root)?))
        })?;
        let mut parts = rest.split('/');
        let (uid, name, spare) = (parts.next()?, parts.next()?, parts.next());
        let is_number = |digits: &str| {
            digits.len() == SPARE_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        if parts.next().is_some() || spare.is_some_and(|number| !is_number(number)) {
            return None;
        }
        let address = format!("{uid}/{name}").parse::<Self>().ok()?;
        Some((Self { of, ..address }, spare.is_some()))
    }

    /// Returns true if it names what a filter knows.
    pub(crate) const fn is_state(&self) -> bool {
        matches!(self.of, Realm::States)
    }

    const fn root(&self) -> &'static str {
        match self.of {
            Realm::Streams => STREAMS,
            Realm::States => STATES,
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once('/') {
            None => Self::own(text),
            Some((uid, name)) => match uid.parse() {
                Ok(number) if uid.bytes().all(|byte| byte.is_ascii_digit()) => {
                    Self::of(number, name)
                }
                _ => Err(Error::Name {
                    name: text.chars().take(80).collect(),
                    why: "before the slash stands the number of a user (`id -u`)",
                }),
            },
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.uid, self.name)
    }
}

/// Prefixes of the names of sockets.
const STREAMS: &str = "streamline/";
const STATES: &str = "streamline-state/";
/// Digits of a spare place.
const SPARE_DIGITS: usize = 14;

const _: () = assert!(
    STATES.len() + "4294967295/".len() + Address::NAME_MAX + 1 + SPARE_DIGITS
        <= sys::abstract_socket::LENGTH_MAX
);
