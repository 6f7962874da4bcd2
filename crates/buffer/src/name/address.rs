//! Names of objects: `NAME` of the current user, or `UID/NAME` of another user.
//!
//! A name consists of 1 to 64 letters, digits, dots, hyphens and underscores. It needs no escapes,
//! so it reads the same in `/proc/net/unix`, in a shell and in a path.

use super::Error;
use std::fmt;
use std::str::FromStr;

/// A name and the user that owns it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    uid: u32,
    name: String,
    namespace: Namespace,
}

/// The namespace of a name. Streams and filter states have separate namespaces, so that a socket's
/// name shows its purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Namespace {
    /// The namespace of streams, inboxes and regions.
    Streams,
    /// The namespace of filter states ([`crate::state`]).
    States,
}

impl Address {
    /// Maximum length of a name in bytes.
    pub const NAME_MAX: usize = 64;

    /// Returns the address that consists of `name` and the current user. Fails with [`Error::Name`]
    /// if the name is invalid.
    pub fn for_current_user(name: &str) -> Result<Self, Error> {
        Self::for_user(sys::process::effective_ids().0, name)
    }

    /// Returns the address that consists of `name` and user `uid`. Fails with [`Error::Name`] if
    /// the name is invalid.
    pub fn for_user(uid: u32, name: &str) -> Result<Self, Error> {
        let wrong = |why| Err(Error::Name { name: name.chars().take(80).collect(), why });
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        match name.len() {
            0 => wrong("it is empty"),
            length if length > Self::NAME_MAX => wrong("it is longer than 64 bytes"),
            _ if !name.chars().all(plain) => {
                wrong("it may contain only letters, digits, dots, hyphens and underscores")
            }
            _ => Ok(Self { uid, name: name.to_owned(), namespace: Namespace::Streams }),
        }
    }

    /// Returns the same name in the namespace of filter states.
    #[must_use]
    pub(crate) fn in_state_namespace(self) -> Self {
        Self { namespace: Namespace::States, ..self }
    }

    /// Returns the kind of the named object for error messages: "stream" or "state".
    pub(super) const fn object_kind_name(&self) -> &'static str {
        match self.namespace {
            Namespace::Streams => "stream",
            Namespace::States => "state",
        }
    }

    /// Returns the user ID of the name's owner.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the name without the user.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the socket address on which the host of this name listens, without the leading zero
    /// byte.
    pub(super) fn socket_name(&self) -> Vec<u8> {
        format!("{}{}/{}", self.socket_prefix(), self.uid, self.name).into_bytes()
    }

    /// Returns the address of spare socket `number`, for an owner whose [`Self::socket_name`] is
    /// occupied by another user. There are more spare addresses than a squatter can occupy.
    pub(super) fn spare_socket_name(&self, number: u64) -> Vec<u8> {
        let number = number >> (64 - 4 * SPARE_SOCKET_DIGITS);
        let mut name = self.socket_name();
        name.extend_from_slice(format!("/{number:0SPARE_SOCKET_DIGITS$x}").as_bytes());
        name
    }

    /// Parses the name of a socket. Returns the address, and true if the socket is a spare one.
    /// Returns `None` if the name is not that of a host's socket.
    pub(crate) fn parse_socket_name(name: &str) -> Option<(Self, bool)> {
        let namespaces = [Namespace::Streams, Namespace::States].into_iter();
        let (namespace, rest) = namespaces.into_iter().find_map(|namespace| {
            let socket_prefix = Self { uid: 0, name: String::new(), namespace }.socket_prefix();
            Some((namespace, name.strip_prefix(socket_prefix)?))
        })?;
        let mut parts = rest.split('/');
        let (uid, name, spare) = (parts.next()?, parts.next()?, parts.next());
        let is_number = |digits: &str| {
            digits.len() == SPARE_SOCKET_DIGITS
                && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        if parts.next().is_some() || spare.is_some_and(|number| !is_number(number)) {
            return None;
        }
        let address = format!("{uid}/{name}").parse::<Self>().ok()?;
        Some((Self { namespace, ..address }, spare.is_some()))
    }

    /// Returns true if the name is that of a filter state.
    pub(crate) const fn is_state(&self) -> bool {
        matches!(self.namespace, Namespace::States)
    }

    const fn socket_prefix(&self) -> &'static str {
        match self.namespace {
            Namespace::Streams => STREAM_SOCKET_PREFIX,
            Namespace::States => STATE_SOCKET_PREFIX,
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once('/') {
            None => Self::for_current_user(text),
            Some((uid, name)) => match uid.parse() {
                Ok(number) if uid.bytes().all(|byte| byte.is_ascii_digit()) => {
                    Self::for_user(number, name)
                }
                _ => Err(Error::Name {
                    name: text.chars().take(80).collect(),
                    why: "the part before the slash must be a user id (`id -u`)",
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

/// Prefix of the socket names of streams, inboxes and regions.
const STREAM_SOCKET_PREFIX: &str = "streamline/";
/// Prefix of the socket names of filter states.
const STATE_SOCKET_PREFIX: &str = "streamline-state/";
/// Number of hexadecimal digits in the name of a spare socket.
const SPARE_SOCKET_DIGITS: usize = 14;

const _: () = assert!(
    STATE_SOCKET_PREFIX.len() + "4294967295/".len() + Address::NAME_MAX + 1 + SPARE_SOCKET_DIGITS
        <= sys::abstract_socket::NAME_LENGTH_MAX
);
