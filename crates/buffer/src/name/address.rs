//! What a name is: `NAME`, of this user, or `UID/NAME`, of another one.
//!
//! A name has 1 to 64 letters, digits, dots, hyphens and underscores; nothing is escaped, so that
//! it reads the same in `/proc/net/unix`, in a shell and in a path.

use super::Error;
use std::fmt;
use std::str::FromStr;

/// Whose name, and which.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    uid: u32,
    name: String,
    of: Realm,
}

/// What is named: each has names of its own, so that one sees by the name of a socket what it is
/// for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Realm {
    /// Streams, inboxes, regions.
    Streams,
    /// What filters know ([`crate::state`]).
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

    /// What has this name, for messages.
    pub(super) const fn noun(&self) -> &'static str {
        match self.of {
            Realm::Streams => "stream",
            Realm::States => "state",
        }
    }

    /// Whose name it is.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// The name alone.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the host of this name listens, without the byte 0 before it.
    pub(super) fn socket(&self) -> Vec<u8> {
        let root = match self.of {
            Realm::Streams => STREAMS,
            Realm::States => STATES,
        };
        format!("{root}{}/{}", self.uid, self.name).into_bytes()
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

/// What the names of sockets begin with.
const STREAMS: &str = "streamline/";
pub(crate) const STATES: &str = "streamline-state/";

const _: () =
    assert!(STATES.len() + "4294967295/".len() + Address::NAME_MAX <= sys::name::LENGTH_MAX);
