//! JA4, a fingerprint of a TLS client computed from its hello (FoxIO, "JA4: TLS Client
//! Fingerprinting", a specification under the BSD license).
//!
//! Input: a ClientHello. Output: 36 characters. The readable part contains the transport, the
//! version, a flag for the presence of a server name, the counts of cipher suites and extensions,
//! and the first offered protocol. Two truncated hashes follow: one of the sorted cipher suites,
//! and one of the sorted extensions with the signature algorithms. GREASE values are ignored
//! everywhere.

use sha2::{Digest, Sha256};
use wire::tls::{ClientHello, Version, extension, is_grease};

/// Length of a JA4 fingerprint in characters.
const FINGERPRINT_LENGTH: usize = 36;
/// Length of a truncated hash in characters.
const HASH_LENGTH: usize = 12;

/// Returns the fingerprint of a TLS client over TCP. `numbers` is a scratch buffer for sorting.
pub(super) fn fingerprint(
    hello: &ClientHello<'_>,
    numbers: &mut Vec<u16>,
) -> [u8; FINGERPRINT_LENGTH] {
    let named = hello.extensions().find(extension::SERVER_NAME_EXTENSION).is_some();
    let extensions = || hello.extensions().map(|(number, _)| number).filter(|n| !is_grease(*n));
    let [first, last] =
        first_and_last_alpn_characters(hello.offered_protocols().next().unwrap_or_default());
    let [ciphers_tens, ciphers_ones] =
        format_two_digits(hello.offered_cipher_suites().without_grease().count());
    let [extensions_tens, extensions_ones] = format_two_digits(extensions().count());
    let [major, minor] = version_digits(hello);
    let sni = if named { b'd' } else { b'i' };

    collect_sorted(numbers, hello.offered_cipher_suites().without_grease());
    let ciphers = truncated_hash(numbers, &[]);
    let hashed =
        |n: &u16| !matches!(*n, extension::SERVER_NAME_EXTENSION | extension::ALPN_EXTENSION);
    collect_sorted(numbers, extensions().filter(hashed));
    let split = numbers.len();
    numbers.extend(hello.signature_algorithms().without_grease());
    let (extensions, algorithms) = numbers.split_at(split);
    let extensions = truncated_hash(extensions, algorithms);

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
    let highest = hello.offered_versions().and_then(|words| words.without_grease().max());
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
fn format_two_digits(number: usize) -> [u8; 2] {
    let number = number.min(99) as u8;
    [b'0' + number / 10, b'0' + number % 10]
}

/// Returns the first and last character of the first offered protocol name, or `00` if none is
/// offered. If either character is not alphanumeric, uses the hexadecimal form of the name for
/// both.
fn first_and_last_alpn_characters(protocol: &[u8]) -> [u8; 2] {
    let (Some(&first), Some(&last)) = (protocol.first(), protocol.last()) else { return *b"00" };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        return [first, last];
    }
    [hex_digit(first >> 4), hex_digit(last & 0x0f)]
}

fn hex_digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'a' - 10 + value }
}

fn collect_sorted(numbers: &mut Vec<u16>, values: impl Iterator<Item = u16>) {
    numbers.clear();
    numbers.extend(values);
    numbers.sort_unstable();
}

/// Returns the truncated hash of a text: the numbers in `list` and, unless `suffix` is empty, an
/// underscore and the numbers in `suffix`. Returns zeros if `list` is empty.
fn truncated_hash(list: &[u16], suffix: &[u16]) -> [u8; HASH_LENGTH] {
    if list.is_empty() {
        return [b'0'; HASH_LENGTH];
    }
    let mut hash = Sha256::new();
    hash_list(&mut hash, list);
    if !suffix.is_empty() {
        hash.update(b"_");
        hash_list(&mut hash, suffix);
    }
    let mut text = [b'0'; HASH_LENGTH];
    let digits = hash.finalize();
    let digits = digits.iter().flat_map(|byte| [hex_digit(byte >> 4), hex_digit(byte & 0x0f)]);
    text.iter_mut().zip(digits).for_each(|(place, byte)| *place = byte);
    text
}

fn hash_list(hash: &mut Sha256, list: &[u16]) {
    for (place, number) in list.iter().enumerate() {
        let [high, low] = number.to_be_bytes();
        let text = [
            b',',
            hex_digit(high >> 4),
            hex_digit(high & 15),
            hex_digit(low >> 4),
            hex_digit(low & 15),
        ];
        hash.update(text.get(usize::from(place == 0)..).unwrap_or_default());
    }
}
