//! Views of ClientHello and ServerHello (RFC 8446 §4.1.2, §4.1.3).
//!
//! Parsed from the body of the handshake message. A list that exceeds its bounds makes the hello
//! malformed; bytes after the last field are ignored.

use super::{Version, is_grease};
use crate::read::be16;

/// Extension numbers.
pub mod extension {
    /// Server name (RFC 6066 §3).
    pub const SERVER_NAME: u16 = 0;
    /// Signature algorithms (RFC 8446 §4.2.3).
    pub const SIGNATURE_ALGORITHMS: u16 = 13;
    /// Application-layer protocols (RFC 7301).
    pub const ALPN: u16 = 16;
    /// Pre-shared key, in TLS 1.3 (RFC 8446 §4.2.11).
    pub const PRE_SHARED_KEY: u16 = 41;
    /// Supported versions (RFC 8446 §4.2.1).
    pub const SUPPORTED_VERSIONS: u16 = 43;
}

/// Random value that marks a HelloRetryRequest (RFC 8446 §4.1.3).
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];
/// Maximum length of a session id in bytes.
const SESSION_MAX: usize = 32;

/// A view of a ClientHello.
#[derive(Clone, Copy, Debug)]
pub struct ClientHello<'b> {
    /// Legacy version; see [`ClientHello::offered`].
    pub version: Version,
    /// Session id offered for resumption.
    pub session: &'b [u8],
    ciphers: &'b [u8],
    extensions: &'b [u8],
}

/// A view of a ServerHello.
#[derive(Clone, Copy, Debug)]
pub struct ServerHello<'b> {
    /// Legacy version; see [`ServerHello::negotiated`].
    pub version: Version,
    /// True for a HelloRetryRequest.
    pub is_retry: bool,
    /// Session id, resumed or new.
    pub session: &'b [u8],
    /// Chosen cipher suite.
    pub cipher: super::Cipher,
    extensions: &'b [u8],
}

impl<'b> ClientHello<'b> {
    pub(super) fn parse(body: &'b [u8]) -> Option<Self> {
        let mut rest = body;
        let version = Version(word(&mut rest)?);
        take(&mut rest, 32)?;
        let session = list8(&mut rest).filter(|id| id.len() <= SESSION_MAX)?;
        let ciphers = list16(&mut rest).filter(|list| list.len() % 2 == 0)?;
        list8(&mut rest)?;
        let extensions = extensions(rest)?;
        (version.0 >> 8 == 3).then_some(Self { version, session, ciphers, extensions })
    }

    /// Iterates over the cipher suites, GREASE included.
    #[must_use]
    pub fn ciphers(&self) -> U16List<'b> {
        U16List(self.ciphers)
    }

    /// Iterates over the extensions, GREASE included.
    #[must_use]
    pub fn extensions(&self) -> Extensions<'b> {
        Extensions(self.extensions)
    }

    /// Returns the first host name of the server name extension; `None` if there is none.
    #[must_use]
    pub fn server_name(&self) -> Option<&'b [u8]> {
        let mut names = length_prefixed(self.extensions().find(extension::SERVER_NAME)?);
        while let Some((kind, mut rest)) = names.split_first() {
            let name = list16(&mut rest)?;
            if *kind == 0 {
                return Some(name);
            }
            names = rest;
        }
        None
    }

    /// Iterates over the offered application protocols.
    pub fn protocols(&self) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        protocols(self.extensions())
    }

    /// Iterates over the offered signature algorithms, GREASE included.
    #[must_use]
    pub fn signature_algorithms(&self) -> U16List<'b> {
        let data = self.extensions().find(extension::SIGNATURE_ALGORITHMS);
        U16List(data.map(length_prefixed).unwrap_or_default())
    }

    /// Iterates over the supported versions, GREASE included; `None` without the extension.
    #[must_use]
    pub fn versions(&self) -> Option<U16List<'b>> {
        let mut data = self.extensions().find(extension::SUPPORTED_VERSIONS)?;
        Some(U16List(list8(&mut data).unwrap_or_default()))
    }

    /// Returns the highest known version offered. Without the extension it is at most TLS 1.2,
    /// whatever the legacy version states (RFC 8446 §4.2.1).
    #[must_use]
    pub fn offered(&self) -> Version {
        let known = |word| Version(word).known();
        let listed = self.versions().and_then(|words| words.filter_map(known).max());
        listed.unwrap_or_else(|| self.version.min(Version::TLS12))
    }
}

impl<'b> ServerHello<'b> {
    pub(super) fn parse(body: &'b [u8]) -> Option<Self> {
        let mut rest = body;
        let version = Version(word(&mut rest)?);
        // Drafts 18 to 21 of TLS 1.3 had neither session id nor compression method.
        let draft = matches!(version.0, 0x7f0e..=0x7f15);
        let is_retry = take(&mut rest, 32)? == RETRY;
        let session = match draft {
            true => &[],
            false => list8(&mut rest).filter(|id| id.len() <= SESSION_MAX)?,
        };
        let cipher = super::Cipher(word(&mut rest)?);
        if !draft {
            take(&mut rest, 1)?;
        }
        let extensions = extensions(rest)?;
        version.known()?;
        Some(Self { version, is_retry, session, cipher, extensions })
    }

    /// Iterates over the extensions.
    #[must_use]
    pub fn extensions(&self) -> Extensions<'b> {
        Extensions(self.extensions)
    }

    /// Returns the negotiated version.
    #[must_use]
    pub fn negotiated(&self) -> Version {
        let chosen = self.extensions().find(extension::SUPPORTED_VERSIONS);
        let chosen = chosen.and_then(|data| Version(be16(data, 0)?).known());
        chosen.or_else(|| self.version.known()).unwrap_or(self.version)
    }

    /// Returns the chosen application protocol; `None` if it is absent or encrypted (TLS 1.3).
    #[must_use]
    pub fn protocol(&self) -> Option<&'b [u8]> {
        protocols(self.extensions()).next()
    }

    /// Returns true if the server accepts a pre-shared key (TLS 1.3 resumption).
    #[must_use]
    pub fn accepts_psk(&self) -> bool {
        self.extensions().find(extension::PRE_SHARED_KEY).is_some()
    }
}

/// An iterator over extensions: number and data.
#[derive(Clone, Debug)]
pub struct Extensions<'b>(&'b [u8]);

impl<'b> Extensions<'b> {
    /// Returns the data of the first extension with this number; `None` if there is none.
    #[must_use]
    pub fn find(mut self, number: u16) -> Option<&'b [u8]> {
        Iterator::find(&mut self, |(found, _)| *found == number).map(|(_, data)| data)
    }
}

impl<'b> Iterator for Extensions<'b> {
    type Item = (u16, &'b [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let number = word(&mut self.0)?;
        Some((number, list16(&mut self.0)?))
    }
}

/// An iterator over a list of u16.
#[derive(Clone, Debug)]
pub struct U16List<'b>(&'b [u8]);

impl U16List<'_> {
    /// Skips GREASE values.
    pub fn without_grease(self) -> impl Iterator<Item = u16> {
        self.filter(|value| !is_grease(*value))
    }
}

impl Iterator for U16List<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        word(&mut self.0)
    }
}

/// Returns the extension list after validating it; a hello may end before it.
fn extensions(mut rest: &[u8]) -> Option<&[u8]> {
    if rest.is_empty() {
        return Some(rest);
    }
    let list = list16(&mut rest)?;
    let mut walk = Extensions(list);
    while !walk.0.is_empty() {
        walk.next()?;
    }
    Some(list)
}

fn protocols(extensions: Extensions<'_>) -> impl Iterator<Item = &[u8]> {
    let mut list = extensions.find(extension::ALPN).map(length_prefixed).unwrap_or_default();
    core::iter::from_fn(move || list8(&mut list))
}

/// Returns a length-prefixed list; empty if it is truncated.
fn length_prefixed(mut data: &[u8]) -> &[u8] {
    list16(&mut data).unwrap_or_default()
}

fn take<'b>(rest: &mut &'b [u8], length: usize) -> Option<&'b [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

fn word(rest: &mut &[u8]) -> Option<u16> {
    take(rest, 2).and_then(|bytes| be16(bytes, 0))
}

/// Splits off bytes with a one-byte length prefix.
fn list8<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = take(rest, 1)?.first().copied()?;
    take(rest, usize::from(length))
}

/// Splits off bytes with a two-byte length prefix.
fn list16<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = word(rest)?;
    take(rest, usize::from(length))
}
