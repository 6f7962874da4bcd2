//! Display of untrusted text in a form that is safe for a terminal, a log or a JSON object.
//!
//! A terminal obeys control characters (C0, DEL and C1), and bidirectional or invisible characters
//! change how a line reads. Such characters occur in frames, file names, requests of other users
//! and the user's own request. [`is_hidden`] is the only list of these characters in all crates;
//! [`VisibleText`] and [`VisibleLines`] write text for people, [`EscapedJson`] writes JSON.

use core::fmt::{self, Display, Formatter, Write as _};

/// Character displayed in place of each character that [`is_hidden`]: one column wide, so that
/// tables and carets stay aligned.
pub const PLACEHOLDER: char = '·';

/// Returns true if a terminal interprets the character or does not display it. Such characters are
/// control characters, direction marks, zero-width characters, line and paragraph separators, and
/// tags.
#[must_use]
pub const fn is_hidden(c: char) -> bool {
    matches!(c, '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{ad}' | '\u{34f}' | '\u{61c}'
        | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns the character, or [`PLACEHOLDER`] if the character [`is_hidden`].
#[must_use]
pub const fn visible_char(c: char) -> char {
    if is_hidden(c) { PLACEHOLDER } else { c }
}

/// Text on one line: each hidden character is displayed as one [`PLACEHOLDER`].
#[derive(Clone, Copy, Debug)]
pub struct VisibleText<'a>(pub &'a str);

impl Display for VisibleText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_replacing(f, self.0, is_hidden, |f, c| f.write_char(visible_char(c)))
    }
}

/// Text on several lines, displayed like [`VisibleText`] except that line feeds and tabs are kept.
#[derive(Clone, Copy, Debug)]
pub struct VisibleLines<'a>(pub &'a str);

impl Display for VisibleLines<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let is_replaced = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
        write_replacing(f, self.0, is_replaced, |f, c| f.write_char(visible_char(c)))
    }
}

/// Contents of a JSON string, or a complete JSON text, with hidden characters displayed as escapes.
/// An escape shows the UTF-16 units of the character, such as `\u202e` (RFC 8259 §7). Line breaks
/// and tabs are kept, because a JSON text has them only between tokens, never inside a string.
#[derive(Clone, Copy, Debug)]
pub struct EscapedJson<'a>(pub &'a str);

impl Display for EscapedJson<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let is_escaped = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t' | '\r');
        write_replacing(f, self.0, is_escaped, |f, c| {
            c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(f, "\\u{unit:04x}"))
        })
    }
}

/// Writes `text`, but calls `replace` in place of each character for which `is_replaced` returns
/// true.
fn write_replacing(
    f: &mut Formatter<'_>,
    text: &str,
    is_replaced: impl Fn(char) -> bool,
    replace: impl Fn(&mut Formatter<'_>, char) -> fmt::Result,
) -> fmt::Result {
    // Plain ASCII, the usual case, needs no decoding.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return f.write_str(text);
    }
    let mut rest = text;
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_replaced(*c)) {
        f.write_str(rest.get(..at).unwrap_or_default())?;
        replace(f, c)?;
        rest = rest.get(at + c.len_utf8()..).unwrap_or_default();
    }
    f.write_str(rest)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString as _;

    /// Hidden characters that are used to deceive readers or to control terminals, each with its
    /// name.
    const HIDDEN_CHARACTERS: &[(char, &str)] = &[
        ('\0', "nul"),
        ('\x1b', "escape"),
        ('\x7f', "delete"),
        ('\u{9b}', "C1 control sequence introducer"),
        ('\u{9d}', "C1 operating system command"),
        ('\u{85}', "next line"),
        ('\u{61c}', "arabic letter mark"),
        ('\u{200b}', "zero width space"),
        ('\u{200e}', "left-to-right mark"),
        ('\u{200f}', "right-to-left mark"),
        ('\u{2028}', "line separator"),
        ('\u{2029}', "paragraph separator"),
        ('\u{202a}', "left-to-right embedding"),
        ('\u{202e}', "right-to-left override"),
        ('\u{2066}', "left-to-right isolate"),
        ('\u{2069}', "pop directional isolate"),
        ('\u{feff}', "byte order mark"),
        ('\u{e0041}', "tag"),
    ];

    #[test]
    fn hidden_characters_are_always_replaced() {
        for (c, name) in HIDDEN_CHARACTERS {
            let text = std::format!("a{c}é{c}");
            assert_eq!(VisibleText(&text).to_string(), "a·é·", "{name}");
            assert_eq!(VisibleLines(&text).to_string(), "a·é·", "{name}");
            assert!(!EscapedJson(&text).to_string().contains(*c), "{name}");
        }
    }

    #[test]
    fn ordinary_text_of_any_language_is_unchanged() {
        for text in ["", "GET /index.html", "größer", "日本語", "שלום", "مرحبا", "🦀 ok"]
        {
            assert_eq!(VisibleText(text).to_string(), text);
            assert_eq!(EscapedJson(text).to_string(), text);
        }
        assert_eq!(VisibleLines("a\tb\nc\r").to_string(), "a\tb\nc·");
        assert_eq!(VisibleText("a\tb\nc").to_string(), "a·b·c");
    }

    #[test]
    fn escaped_text_with_hidden_characters_is_valid_json() {
        assert_eq!(EscapedJson("a\u{9b}\x7f\u{202e}").to_string(), "a\\u009b\\u007f\\u202e");
        assert_eq!(EscapedJson("\u{e0041}").to_string(), "\\udb40\\udc41");
        assert_eq!(EscapedJson("{\n\t\"a\": 1\r\n}").to_string(), "{\n\t\"a\": 1\r\n}");
    }
}
