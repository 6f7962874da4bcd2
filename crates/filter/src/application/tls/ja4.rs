//! JA4, a fingerprint of a TLS client computed from its hello (FoxIO, "JA4: TLS Client
//! Fingerprinting", a specification under the BSD license).
//!
//! Input: a ClientHello. Output: 36 characters. The readable part has transport, version, presence
//! of a server name, the numbers of cipher suites and extensions, and the first protocol. Two
//! truncated hashes follow: of the sorted cipher suites, and of the sorted extensions with the
//! signature algorithms. GREASE values are ignored everywhere.

use sha2::{Digest, Sha256};
use wire::tls::{ClientHello, Version, extension, is_grease};

/// Length of a JA4 fingerprint in characters.
const FINGERPRINT_LENGTH: usize = 36;
/// Length of a truncated hash in characters.
const HASH_SIZE: usize = 12;

/// Returns the fingerprint of a TLS client over TCP. `numbers` is a buffer for sorting.
pub(super) fn fingerprint(
    hello: &ClientHello<'_>,
    numbers: &mut Vec<u16>,
) -> [u8; FINGERPRINT_LENGTH] {
    let named = hello.extensions().find(extension::SERVER_NAME).is_some();
    let extensions = || hello.extensions().map(|(number, _)| number).filter(|n| !is_grease(*n));
    let [first, last] = alpn_ends(hello.protocols().next().unwrap_or_default());
    let [ciphers_tens, ciphers_ones] = two_digits(hello.ciphers().without_grease().count());
    let [extensions_tens, extensions_ones] = two_digits(extensions().count());
    let [major, minor] = version_digits(hello);
    let sni = if named { b'd' } else { b'i' };

    sort_into(numbers, hello.ciphers().without_grease());
    let ciphers = hash(numbers, &[]);
    let hashed = |n: &u16| !matches!(*n, extension::SERVER_NAME | extension::ALPN);
    sort_into(numbers, extensions().filter(hashed));
    let split = numbers.len();
    numbers.extend(hello.signature_algorithms().without_grease());
    let (extensions, algorithms) = numbers.split_at(split);
    let extensions = hash(extensions, algorithms);

    let head = [
        b't',
        major,
        minor,
        sni,
        ciphers_tens,
        ciphers_ones,
        extensions_tens,
        extensions_ones,
        first,
        last,
        b'_',
    ];
    let mut text = [b'_'; FINGERPRINT_LENGTH];
    let parts = head.into_iter().chain(ciphers).chain([b'_']).chain(extensions);
    text.iter_mut().zip(parts).for_each(|(place, byte)| *place = byte);
    text
}

/// Returns the two characters for the highest version in the `supported_versions` extension, or for
/// the legacy version if there is no such extension.
fn version_digits(hello: &ClientHello<'_>) -> [u8; 2] {
    let highest = hello.versions().and_then(|words| words.without_grease().max());
    match highest.map_or(hello.version, Version) {
        Version::TLS13 => *b"13",
        Version::TLS12 => *b"12",
        Version::TLS11 => *b"11",
        Version::TLS10 => *b"10",
        Version::SSL30 => *b"s3",
        Version(0x0002) => *b"s2",
        Version(_) => *b"00",
    }
}

/// Formats a number as two decimal digits; numbers above 99 become 99.
fn two_digits(number: usize) -> [u8; 2] {
    let number = number.min(99) as u8;
    [b'0' + number / 10, b'0' + number % 10]
}

/// Returns the first and last character of the first offered protocol name. If either character is
/// not alphanumeric, takes both from the hexadecimal form of the name.
fn alpn_ends(protocol: &[u8]) -> [u8; 2] {
    let (Some(&first), Some(&last)) = (protocol.first(), protocol.last()) else { return *b"00" };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        return [first, last];
    }
    [hex(first >> 4), hex(last & 0x0f)]
}

fn hex(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'a' - 10 + value }
}

fn sort_into(numbers: &mut Vec<u16>, values: impl Iterator<Item = u16>) {
    numbers.clear();
    numbers.extend(values);
    numbers.sort_unstable();
}

/// Returns the truncated hash of `list`, an underscore and `suffix`, or zeros if `list` is empty.
fn hash(list: &[u16], suffix: &[u16]) -> [u8; HASH_SIZE] {
    if list.is_empty() {
        return [b'0'; HASH_SIZE];
    }
    let mut hash = Sha256::new();
    hash_list(&mut hash, list);
    if !suffix.is_empty() {
        hash.update(b"_");
        hash_list(&mut hash, suffix);
    }
    let mut text = [b'0'; HASH_SIZE];
    let digits = hash.finalize();
    let digits = digits.iter().flat_map(|byte| [hex(byte >> 4), hex(byte & 0x0f)]);
    text.iter_mut().zip(digits).for_each(|(place, byte)| *place = byte);
    text
}

fn hash_list(hash: &mut Sha256, list: &[u16]) {
    for (place, number) in list.iter().enumerate() {
        let [high, low] = number.to_be_bytes();
        let text = [b',', hex(high >> 4), hex(high & 15), hex(low >> 4), hex(low & 15)];
        hash.update(text.get(usize::from(place == 0)..).unwrap_or_default());
    }
}
