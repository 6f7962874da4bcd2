//! Cipher suites and their names (IANA, "TLS Cipher Suites").

use core::fmt;
use std::sync::LazyLock;

/// A cipher suite, identified by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CipherSuite(pub u16);

impl CipherSuite {
    /// Returns the name of the suite without the common prefix `TLS_`; `None` if the number has no
    /// name.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let place = CIPHER_SUITE_NAMES.binary_search_by_key(&self.0, |(number, _)| *number).ok()?;
        CIPHER_SUITE_NAMES.get(place).map(|(_, name)| *name)
    }
}

impl fmt::Display for CipherSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "TLS_{name}"),
            None => write!(f, "0x{:04x}", self.0),
        }
    }
}

/// Numbers and names of cipher suites, in ascending order of number.
static CIPHER_SUITE_NAMES: LazyLock<Vec<(u16, &str)>> = LazyLock::new(|| {
    let read = |line: &'static str| {
        let (number, name) = line.split_once(' ')?;
        Some((u16::from_str_radix(number, 16).ok()?, name))
    };
    include_str!("cipher_suites.txt").lines().filter_map(read).collect()
});
