//! Key service: secrets that a request names and does not reveal.
//!
//! The service comes with a filter's arguments, as the compiler does: to read a file is I/O, and
//! this crate does none. A request gives the location of a key; the key itself stands in no
//! request, and so in no list of processes, no explanation and no record. A process that checks or
//! runs another user's request hands in no keys: a key is read by the process of its user alone.

use std::fmt;

/// A reader of keys.
pub trait Keys: fmt::Debug + Send + Sync {
    /// The key that lies in this file, or why it cannot be had; no word of what the file holds.
    fn key(&self, file: &str) -> Result<Key, String>;
}

/// A key of 128 bits. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl Key {
    /// The key that is written as 32 hexadecimal digits; nothing else may stand there but white
    /// space around them.
    #[must_use]
    pub fn read(text: &[u8]) -> Option<Self> {
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
    fn a_key_is_32_digits_and_is_never_shown() {
        let key = Key::read(b" 000102030405060708090a0b0C0D0e0f\n").unwrap();
        assert_eq!(key.0, *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f");
        assert_eq!(format!("{key:?}"), "Key(not shown)");
        let digits = "0".repeat(32);
        for wrong in ["", "00", &digits[1..], &format!("{digits}0"), &format!("{digits}00")] {
            assert_eq!(Key::read(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(Key::read(digits.replacen('0', "g", 1).as_bytes()), None);
        assert_eq!(Key::read(digits.replacen("00", "0 ", 1).as_bytes()), None);
    }
}
