//! Views of a ClientHello and a ServerHello (RFC 8446 §4.1.2, §4.1.3).
//!
//! In: the body of the handshake message. Out: fields and lists. A list that is cut short by its
//! own length makes the hello malformed; bytes behind the last field are passed over.

use super::{Version, is_grease};
use crate::read::be16;

/// Numbers of extensions.
pub mod extension {
    /// The name of the server (RFC 6066 §3).
    pub const SERVER_NAME: u16 = 0;
    /// The signature algorithms (RFC 8446 §4.2.3).
    pub const SIGNATURE_ALGORITHMS: u16 = 13;
    /// The application protocols (RFC 7301).
    pub const ALPN: u16 = 16;
    /// A secret of an earlier session, in TLS 1.3 (RFC 8446 §4.2.11).
    pub const PRE_SHARED_KEY: u16 = 41;
    /// The versions (RFC 8446 §4.2.1).
    pub const SUPPORTED_VERSIONS: u16 = 43;
}

/// The random bytes by which a ServerHello asks for another ClientHello (RFC 8446 §4.1.3).
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];
/// The longest session identifier.
const SESSION_MAX: usize = 32;

/// A view of a ClientHello.
#[derive(Clone, Copy, Debug)]
pub struct ClientHello<'b> {
    /// The version of the old field; see [`ClientHello::offered`].
    pub version: Version,
    /// The session that the client would resume.
    pub session: &'b [u8],
    ciphers: &'b [u8],
    extensions: &'b [u8],
}

/// A view of a ServerHello.
#[derive(Clone, Copy, Debug)]
pub struct ServerHello<'b> {
    /// The version of the old field; see [`ServerHello::negotiated`].
    pub version: Version,
    /// Whether it asks for another ClientHello.
    pub is_retry: bool,
    /// The session that is resumed or begun.
    pub session: &'b [u8],
    /// The cipher suite.
    pub cipher: super::Cipher,
    extensions: &'b [u8],
}

impl<'b> ClientHello<'b> {
    pub(super) fn parse(body: &'b [u8]) -> Option<Self> {
        let mut rest = body;
        let version = Version(word(&mut rest)?);
        take(&mut rest, 32)?;
        let session = short_list(&mut rest).filter(|id| id.len() <= SESSION_MAX)?;
        let ciphers = long_list(&mut rest).filter(|list| list.len() % 2 == 0)?;
        short_list(&mut rest)?;
        let extensions = extensions(rest)?;
        (version.0 >> 8 == 3).then_some(Self { version, session, ciphers, extensions })
    }

    /// The cipher suites, GREASE included.
    #[must_use]
    pub fn ciphers(&self) -> Words<'b> {
        Words(self.ciphers)
    }

    /// The extensions, GREASE included.
    #[must_use]
    pub fn extensions(&self) -> Extensions<'b> {
        Extensions(self.extensions)
    }

    /// The name that the client asks for: the first host name.
    #[must_use]
    pub fn server_name(&self) -> Option<&'b [u8]> {
        let mut names = list_in(self.extensions().find(extension::SERVER_NAME)?);
        while let Some((kind, mut rest)) = names.split_first() {
            let name = long_list(&mut rest)?;
            if *kind == 0 {
                return Some(name);
            }
            names = rest;
        }
        None
    }

    /// The application protocols that are offered.
    pub fn protocols(&self) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        protocols(self.extensions())
    }

    /// The signature algorithms that are offered, GREASE included.
    #[must_use]
    pub fn signature_algorithms(&self) -> Words<'b> {
        let data = self.extensions().find(extension::SIGNATURE_ALGORITHMS);
        Words(data.map(list_in).unwrap_or_default())
    }

    /// The versions that the extension lists, GREASE included; none without the extension.
    #[must_use]
    pub fn versions(&self) -> Option<Words<'b>> {
        let mut data = self.extensions().find(extension::SUPPORTED_VERSIONS)?;
        Some(Words(short_list(&mut data).unwrap_or_default()))
    }

    /// The highest known version that is offered. Without the extension that is at most TLS 1.2,
    /// whatever the old field says (RFC 8446 §4.2.1).
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
        // Drafts 18 to 21 of TLS 1.3 had neither session nor compression method.
        let draft = matches!(version.0, 0x7f0e..=0x7f15);
        let is_retry = take(&mut rest, 32)? == RETRY;
        let session = match draft {
            true => &[],
            false => short_list(&mut rest).filter(|id| id.len() <= SESSION_MAX)?,
        };
        let cipher = super::Cipher(word(&mut rest)?);
        if !draft {
            take(&mut rest, 1)?;
        }
        let extensions = extensions(rest)?;
        version.known()?;
        Some(Self { version, is_retry, session, cipher, extensions })
    }

    /// The extensions.
    #[must_use]
    pub fn extensions(&self) -> Extensions<'b> {
        Extensions(self.extensions)
    }

    /// The version that the server chose.
    #[must_use]
    pub fn negotiated(&self) -> Version {
        let chosen = self.extensions().find(extension::SUPPORTED_VERSIONS);
        let chosen = chosen.and_then(|data| Version(be16(data, 0)?).known());
        chosen.or_else(|| self.version.known()).unwrap_or(self.version)
    }

    /// The application protocol that the server chose. TLS 1.3 says it where it is encrypted.
    #[must_use]
    pub fn protocol(&self) -> Option<&'b [u8]> {
        protocols(self.extensions()).next()
    }

    /// Whether the server takes up a secret of an earlier session (TLS 1.3).
    #[must_use]
    pub fn takes_secret(&self) -> bool {
        self.extensions().find(extension::PRE_SHARED_KEY).is_some()
    }
}

/// The extensions of a hello in their order: number and data.
#[derive(Clone, Debug)]
pub struct Extensions<'b>(&'b [u8]);

impl<'b> Extensions<'b> {
    /// The data of the first extension with this number.
    #[must_use]
    pub fn find(mut self, number: u16) -> Option<&'b [u8]> {
        Iterator::find(&mut self, |(found, _)| *found == number).map(|(_, data)| data)
    }
}

impl<'b> Iterator for Extensions<'b> {
    type Item = (u16, &'b [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let number = word(&mut self.0)?;
        Some((number, long_list(&mut self.0)?))
    }
}

/// A list of numbers of two bytes.
#[derive(Clone, Debug)]
pub struct Words<'b>(&'b [u8]);

impl Words<'_> {
    /// Without the values that say nothing.
    pub fn meant(self) -> impl Iterator<Item = u16> {
        self.filter(|value| !is_grease(*value))
    }
}

impl Iterator for Words<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        word(&mut self.0)
    }
}

/// The list of extensions, walked to its end; a hello may end before it.
fn extensions(mut rest: &[u8]) -> Option<&[u8]> {
    if rest.is_empty() {
        return Some(rest);
    }
    let list = long_list(&mut rest)?;
    let mut walk = Extensions(list);
    while !walk.0.is_empty() {
        walk.next()?;
    }
    Some(list)
}

fn protocols(extensions: Extensions<'_>) -> impl Iterator<Item = &[u8]> {
    let mut list = extensions.find(extension::ALPN).map(list_in).unwrap_or_default();
    core::iter::from_fn(move || short_list(&mut list))
}

/// The list that these data are; nothing if they are shorter than they say.
fn list_in(mut data: &[u8]) -> &[u8] {
    long_list(&mut data).unwrap_or_default()
}

fn take<'b>(rest: &mut &'b [u8], length: usize) -> Option<&'b [u8]> {
    let (taken, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(taken)
}

fn word(rest: &mut &[u8]) -> Option<u16> {
    take(rest, 2).and_then(|bytes| be16(bytes, 0))
}

/// Bytes behind one byte that says how many.
fn short_list<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = take(rest, 1)?.first().copied()?;
    take(rest, usize::from(length))
}

/// Bytes behind two bytes that say how many.
fn long_list<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = word(rest)?;
    take(rest, usize::from(length))
}
