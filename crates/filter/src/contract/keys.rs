//! Interface to a reader of secret keys from files that are named in a request.
//!
//! A request contains the path of a key file, never the key, so that the key appears in no process
//! list, explanation or record. Reading a file is I/O, which filters must not do, so the reader is
//! passed in with a filter's arguments. A process that checks or runs another user's request passes
//! no reader, so that only processes of the user who wrote the request read the keys.

use std::fmt;

/// A service that reads secret keys from files.
pub trait KeyReader: fmt::Debug + Send + Sync {
    /// Reads the key in this file. May block.
    ///
    /// # Errors
    ///
    /// Fails with the reason. The message never contains any part of the file.
    fn read_key(&self, file: &str) -> Result<Key, String>;
}

/// A key of 128 bits. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl Key {
    /// Parses a key of 32 hexadecimal digits, optionally surrounded by white space. Returns `None`
    /// for any other text.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let digits = text.trim_ascii();
        let (pairs, rest) = digits.as_chunks::<2>();
        let mut key = [0; 16];
        if pairs.len() != key.len() || !rest.is_empty() {
            return None;
        }
        for (byte, pair) in key.iter_mut().zip(pairs) {
            let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
            *byte = u8::try_from(high? << 4 | low?).ok()?;
        }
        Some(Self(key))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(not shown)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_has_32_digits_and_is_never_printed() {
        let key = Key::parse(b" 000102030405060708090a0b0C0D0e0f\n").unwrap();
        assert_eq!(key.0, *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f");
        assert_eq!(format!("{key:?}"), "Key(not shown)");
        let digits = "0".repeat(32);
        for wrong in ["", "00", &digits[1..], &format!("{digits}0"), &format!("{digits}00")] {
            assert_eq!(Key::parse(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(Key::parse(digits.replacen('0', "g", 1).as_bytes()), None);
        assert_eq!(Key::parse(digits.replacen("00", "0 ", 1).as_bytes()), None);
    }
}
