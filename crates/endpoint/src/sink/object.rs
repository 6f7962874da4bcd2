//! JSON objects of sinks: one per line, without characters that a terminal would obey.

use abi::text::Escaped;
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;
use std::io;

/// Appends an object to the text, without a line end.
pub(crate) fn write(to: &mut Vec<u8>, object: &impl Serialize) -> serde_json::Result<()> {
    object.serialize(&mut Serializer::with_formatter(to, Safe))
}

/// Compact objects whose strings have hidden characters as `\u` escapes.
#[derive(Debug)]
struct Safe;

impl Formatter for Safe {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        write!(to, "{}", Escaped(fragment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn objects_are_those_of_serde_without_hidden_characters() {
        let text = "a\"\\\u{9b}31m\x1b\x7f\u{202e}é\n\u{e0041}";
        let object = serde_json::json!({ text: [text, 1, null] });
        let mut out = Vec::new();
        write(&mut out, &object).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(!out.contains(abi::text::is_hidden), "{out:?}");
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), object);
        assert!(out.contains("\\u009b31m\\u001b\\u007f\\u202eé"), "{out}");
    }
}
