//! Serialization of JSON objects in which invisible characters, such as terminal control sequences,
//! are escaped.

use super::buffered_output::BufferedOutputFile;
use crate::Failure;
use abi::text::EscapedJson;
use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::Serializer;
use serde_json::ser::Formatter;
use std::io;

/// Appends an object to the output as a line, and counts the line as an item.
pub(crate) fn write_line(
    out: &mut BufferedOutputFile,
    object: &impl Serialize,
) -> Result<(), Failure> {
    let written = append_line(out.buffer(), object);
    out.end_item();
    written.map_err(|error| Failure::new("write", out.name_for_messages(), error))
}

/// Appends an object as a line to a buffer.
pub(crate) fn append_line(buffer: &mut Vec<u8>, object: &impl Serialize) -> serde_json::Result<()> {
    let written =
        object.serialize(&mut Serializer::with_formatter(&mut *buffer, EscapingFormatter));
    buffer.push(b'\n');
    written
}

/// Adds a member with this name and value; does nothing if the value is `None`.
pub(crate) fn add_member<M: SerializeMap>(
    map: &mut M,
    name: &str,
    value: Option<impl Serialize>,
) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(name, &value))
}

/// A compact JSON formatter that writes invisible characters as `\u` escapes.
#[derive(Debug)]
struct EscapingFormatter;

impl Formatter for EscapingFormatter {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        write!(to, "{}", EscapedJson(fragment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn objects_equal_those_of_serde_with_escapes() {
        let text = "a\"\\\u{9b}31m\x1b\x7f\u{202e}é\n\u{e0041}";
        let object = serde_json::json!({ text: [text, 1, null] });
        let mut out = Vec::new();
        object.serialize(&mut Serializer::with_formatter(&mut out, EscapingFormatter)).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(!out.contains(abi::text::is_hidden), "{out:?}");
        assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), object);
        assert!(out.contains("\\u009b31m\\u001b\\u007f\\u202eé"), "{out}");
    }
}
