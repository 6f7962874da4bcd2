//! Views of ClientHello and ServerHello (RFC 8446 §4.1.2, §4.1.3). Both are parsed from the body of
//! a handshake message. A hello is malformed if one of its lists extends beyond it. A list that
//! extends beyond its extension is read as empty. Bytes after the last field are ignored.

use super::{Version, is_grease};
use crate::read::be16;

/// Numbers of TLS extensions.
pub mod extension {
    /// Number of the extension with the server name (RFC 6066 §3).
    pub const SERVER_NAME_EXTENSION: u16 = 0;
    /// Number of the extension with the signature algorithms (RFC 8446 §4.2.3).
    pub const SIGNATURE_ALGORITHMS_EXTENSION: u16 = 13;
    /// Number of the extension with the application-layer protocols (RFC 7301).
    pub const ALPN_EXTENSION: u16 = 16;
    /// Number of the extension with a pre-shared key, in TLS 1.3 (RFC 8446 §4.2.11).
    pub const PRE_SHARED_KEY_EXTENSION: u16 = 41;
    /// Number of the extension with the supported versions (RFC 8446 §4.2.1).
    pub const SUPPORTED_VERSIONS_EXTENSION: u16 = 43;
}

/// Value of the random field that identifies a ServerHello as a HelloRetryRequest (RFC 8446
/// §4.1.3).
const HELLO_RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];
/// Maximum length of a session id in bytes.
const SESSION_ID_LENGTH_MAX: usize = 32;

/// A view of a ClientHello.
#[derive(Clone, Copy, Debug)]
pub struct ClientHello<'b> {
    /// Legacy version field. [`ClientHello::highest_offered_version`] returns the version actually
    /// offered.
    pub version: Version,
    /// Session id that the client offers for resumption; empty if there is none.
    pub session_id: &'b [u8],
    ciphers: &'b [u8],
    extensions: &'b [u8],
}

/// A view of a ServerHello.
#[derive(Clone, Copy, Debug)]
pub struct ServerHello<'b> {
    /// Legacy version field. [`ServerHello::negotiated_version`] returns the version actually
    /// negotiated.
    pub version: Version,
    /// True if this ServerHello is a HelloRetryRequest.
    pub is_retry: bool,
    /// Id of the session that the server resumes or creates; in TLS 1.3, the client's session id.
    pub session_id: &'b [u8],
    /// Cipher suite that the server has chosen.
    pub cipher: super::CipherSuite,
    extensions: &'b [u8],
}

impl<'b> ClientHello<'b> {
    pub(super) fn parse(body: &'b [u8]) -> Option<Self> {
        let mut rest = body;
        let version = Version(take_u16(&mut rest)?);
        split_off(&mut rest, 32)?;
        let session =
            take_list_with_u8_length(&mut rest).filter(|id| id.len() <= SESSION_ID_LENGTH_MAX)?;
        let ciphers = take_list_with_u16_length(&mut rest).filter(|list| list.len() % 2 == 0)?;
        take_list_with_u8_length(&mut rest)?;
        let extensions = parse_extensions(rest)?;
        (version.0 >> 8 == 3).then_some(Self { version, session_id: session, ciphers, extensions })
    }

    /// Iterates over the offered cipher suites, including GREASE values.
    #[must_use]
    pub fn offered_cipher_suites(&self) -> U16List<'b> {
        U16List(self.ciphers)
    }

    /// Iterates over the extensions, including GREASE values.
    #[must_use]
    pub fn extensions(&self) -> Extensions<'b> {
        Extensions(self.extensions)
    }

    /// Returns the first host name in the server name extension; `None` if there is none.
    #[must_use]
    pub fn server_name(&self) -> Option<&'b [u8]> {
        let mut names = list_contents(self.extensions().find(extension::SERVER_NAME_EXTENSION)?);
        while let Some((kind, mut rest)) = names.split_first() {
            let name = take_list_with_u16_length(&mut rest)?;
            if *kind == 0 {
                return Some(name);
            }
            names = rest;
        }
        None
    }

    /// Iterates over the application protocols that the client offers (ALPN).
    pub fn offered_protocols(&self) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        alpn_protocols(self.extensions())
    }

    /// Iterates over the offered signature algorithms, including GREASE values.
    #[must_use]
    pub fn signature_algorithms(&self) -> U16List<'b> {
        let data = self.extensions().find(extension::SIGNATURE_ALGORITHMS_EXTENSION);
        U16List(data.map(list_contents).unwrap_or_default())
    }

    /// Iterates over the versions in the extension `supported_versions`, including GREASE values;
    /// `None` if the hello lacks this extension.
    #[must_use]
    pub fn offered_versions(&self) -> Option<U16List<'b>> {
        let mut data = self.extensions().find(extension::SUPPORTED_VERSIONS_EXTENSION)?;
        Some(U16List(take_list_with_u8_length(&mut data).unwrap_or_default()))
    }

    /// Returns the highest known version in the `supported_versions` extension. If there is none,
    /// returns the version in the legacy field, but at most TLS 1.2 (RFC 8446 §4.2.1).
    #[must_use]
    pub fn highest_offered_version(&self) -> Version {
        let known = |word| Version(word).normalized_version();
        let listed = self.offered_versions().and_then(|words| words.filter_map(known).max());
        listed.unwrap_or_else(|| self.version.min(Version::TLS12))
    }
}

impl<'b> ServerHello<'b> {
    pub(super) fn parse(body: &'b [u8]) -> Option<Self> {
        let mut rest = body;
        let version = Version(take_u16(&mut rest)?);
        // Drafts 14 to 21 of TLS 1.3 had neither session id nor compression method.
        let draft = matches!(version.0, 0x7f0e..=0x7f15);
        let is_retry = split_off(&mut rest, 32)? == HELLO_RETRY_RANDOM;
        let session = match draft {
            true => &[],
            false => take_list_with_u8_length(&mut rest)
                .filter(|id| id.len() <= SESSION_ID_LENGTH_MAX)?,
        };
        let cipher = super::CipherSuite(take_u16(&mut rest)?);
        if !draft {
            split_off(&mut rest, 1)?;
        }
        let extensions = parse_extensions(rest)?;
        version.normalized_version()?;
        Some(Self { version, is_retry, session_id: session, cipher, extensions })
    }

    /// Iterates over the extensions of the ServerHello.
    #[must_use]
    pub fn extensions(&self) -> Extensions<'b> {
        Extensions(self.extensions)
    }

    /// Returns the negotiated version: that of the `supported_versions` extension if it is known,
    /// otherwise that of the legacy field.
    #[must_use]
    pub fn negotiated_version(&self) -> Version {
        let chosen = self.extensions().find(extension::SUPPORTED_VERSIONS_EXTENSION);
        let chosen = chosen.and_then(|data| Version(be16(data, 0)?).normalized_version());
        chosen.or_else(|| self.version.normalized_version()).unwrap_or(self.version)
    }

    /// Returns the application protocol that the server has chosen; `None` if the choice is absent
    /// or encrypted (TLS 1.3).
    #[must_use]
    pub fn negotiated_protocol(&self) -> Option<&'b [u8]> {
        alpn_protocols(self.extensions()).next()
    }

    /// Returns true if the server accepts a pre-shared key (TLS 1.3 resumption).
    #[must_use]
    pub fn accepts_psk(&self) -> bool {
        self.extensions().find(extension::PRE_SHARED_KEY_EXTENSION).is_some()
    }
}

/// An iterator over TLS extensions as pairs of number and data.
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
        let number = take_u16(&mut self.0)?;
        Some((number, take_list_with_u16_length(&mut self.0)?))
    }
}

/// An iterator over a list of u16 values.
#[derive(Clone, Debug)]
pub struct U16List<'b>(&'b [u8]);

impl U16List<'_> {
    /// Iterates over the remaining values, skipping GREASE values (RFC 8701).
    pub fn without_grease(self) -> impl Iterator<Item = u16> {
        self.filter(|value| !is_grease(*value))
    }
}

impl Iterator for U16List<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        take_u16(&mut self.0)
    }
}

/// Returns the list of extensions at the end of a hello; `None` if the list is malformed. If there
/// is no list, returns an empty one.
fn parse_extensions(mut rest: &[u8]) -> Option<&[u8]> {
    if rest.is_empty() {
        return Some(rest);
    }
    let list = take_list_with_u16_length(&mut rest)?;
    let mut walk = Extensions(list);
    while !walk.0.is_empty() {
        walk.next()?;
    }
    Some(list)
}

fn alpn_protocols(extensions: Extensions<'_>) -> impl Iterator<Item = &[u8]> {
    let mut list =
        extensions.find(extension::ALPN_EXTENSION).map(list_contents).unwrap_or_default();
    core::iter::from_fn(move || take_list_with_u8_length(&mut list))
}

/// Returns the contents of a list with a two-byte length prefix. The result is empty if the list is
/// truncated.
fn list_contents(mut data: &[u8]) -> &[u8] {
    take_list_with_u16_length(&mut data).unwrap_or_default()
}

fn split_off<'b>(rest: &mut &'b [u8], length: usize) -> Option<&'b [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    split_off(rest, 2).and_then(|bytes| be16(bytes, 0))
}

/// Splits a one-byte length, and as many bytes as it states, off the front of `rest`. Returns the
/// bytes after the length; `None` if they are truncated.
fn take_list_with_u8_length<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = split_off(rest, 1)?.first().copied()?;
    split_off(rest, usize::from(length))
}

/// Splits a two-byte length, and as many bytes as it states, off the front of `rest`. Returns the
/// bytes after the length; `None` if they are truncated.
fn take_list_with_u16_length<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = take_u16(rest)?;
    split_off(rest, usize::from(length))
}
