//! Names of directories: filters with their arguments, classes, and names chosen by users. A name
//! contains no character that could be misread: `/` becomes `%2F`, `%` becomes `%25`, and a leading
//! dot, `#`, control characters and invisible characters are escaped the same way. A name therefore
//! cannot leave its directory, be hidden, or look like the suffix `#NUMBER`, which distinguishes
//! equal names and marks truncated names.

use std::fmt::Write as _;

/// Maximum length in bytes of an escaped name without the suffix `#NUMBER`. A directory entry has
/// at most 255 bytes (NAME_MAX).
const ESCAPED_NAME_MAX: usize = 200;

/// Escapes a text so that it can be the name of a directory entry.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for (at, letter) in text.char_indices() {
        if is_plain(letter) && !(at == 0 && letter == '.') {
            name.push(letter);
        } else {
            push_escaped(&mut name, letter);
        }
    }
    name
}

/// Decodes an escaped name. Returns `None` if the name is malformed.
#[must_use]
pub fn unescape(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find('%') {
        let (before, escaped) = rest.split_at(at);
        bytes.extend_from_slice(before.as_bytes());
        let digits = escaped.get(1..3)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = escaped.get(3..)?;
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).ok()
}

/// Returns true if a character needs no escape, except as a leading dot.
fn is_plain(letter: char) -> bool {
    let visible = letter.is_ascii_graphic() || letter == ' ';
    let other = !letter.is_ascii() && letter.is_alphanumeric();
    (visible || other) && !matches!(letter, '/' | '%' | '#' | '\\')
}

fn push_escaped(name: &mut String, letter: char) {
    for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
        let _ = write!(name, "%{byte:02X}");
    }
}

/// Returns the name of a filter with its arguments, such as `rx:eth0` or `bpf:tcp port 80`.
///
/// A single argument is not quoted. Several arguments are separated by spaces. An argument among
/// several is quoted if it is empty or contains a space or a quotation mark.
#[must_use]
pub fn filter_name(filter: &str, arguments: &[&str]) -> String {
    let quoted = |text: &&str| match text.is_empty() || text.contains([' ', '"']) {
        true => format!("\"{}\"", text.replace('"', "\\\"")),
        false => (*text).to_owned(),
    };
    match arguments {
        [] => escape(filter),
        [one] => escape(&format!("{filter}:{one}")),
        all => escape(&format!("{filter}:{}", Vec::from_iter(all.iter().map(quoted)).join(" "))),
    }
}

/// Returns a name for a new entry of a directory that no other entry has: the escaped name, if
/// possible. If this name is empty, too long, or taken according to `is_taken`, appends the number,
/// as in `count#7`.
pub fn unused_name(escaped: String, number: u64, is_taken: impl Fn(&str) -> bool) -> String {
    let mut name = escaped;
    if name.len() > ESCAPED_NAME_MAX {
        let end =
            (0..=ESCAPED_NAME_MAX).rev().find(|end| is_truncation_point(&name, *end)).unwrap_or(0);
        name = format!("{}#{number}", &name[..end]);
    }
    let mut again = number;
    while name.is_empty() || is_taken(&name) {
        let stem = name.split('#').next().unwrap_or_default().to_owned();
        name = format!("{stem}#{again}");
        // The numbers of nodes are unique, except in a reply of a malicious path.
        again = again.wrapping_add(1 << 32);
    }
    name
}

/// Returns true if a name can be truncated at this position: it is not inside a character or an
/// escape sequence.
fn is_truncation_point(name: &str, at: usize) -> bool {
    let bytes = name.as_bytes();
    let within = (1..=2).any(|back| at >= back && bytes.get(at - back) == Some(&b'%'));
    name.is_char_boundary(at) && !within
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn is_in(names: &[String], name: &str) -> bool {
        names.iter().any(|known| known == name)
    }

    #[test]
    fn b1_escaped_names_are_not_dots_hidden_or_numbered() {
        for (text, name) in [
            ("out/", "out%2F"),
            ("..", "%2E."),
            (".streams", "%2Estreams"),
            ("50%", "50%25"),
            ("web#2", "web%232"),
            ("a\nb", "a%0Ab"),
            ("x\u{202e}y", "x%E2%80%AEy"),
            ("tcp port 80", "tcp port 80"),
            ("größe", "größe"),
        ] {
            assert_eq!(escape(text), name);
            assert_eq!(unescape(name).as_deref(), Some(text));
        }
        assert_eq!(unescape("a%2"), None);
        assert_eq!(unescape("a%+1"), None);
        assert_eq!(unescape("%FF"), None);
    }

    #[test]
    fn b1_arguments_follow_the_name_of_the_filter() {
        assert_eq!(filter_name("rx", &["eth0"]), "rx:eth0");
        assert_eq!(filter_name("bpf", &["tcp port 80"]), "bpf:tcp port 80");
        assert_eq!(filter_name("replace", &["a b", "c"]), "replace:\"a b\" c");
        assert_eq!(filter_name("tcp", &[]), "tcp");
    }

    #[test]
    fn b1_equal_and_long_names_get_numbers() {
        let mut taken = vec!["all".to_owned()];
        let mut take = |escaped: &str, number| {
            let name = unused_name(escaped.to_owned(), number, |name| is_in(&taken, name));
            taken.push(name.clone());
            name
        };
        assert_eq!(take("count", 3), "count");
        assert_eq!(take("count", 4), "count#4");
        assert_eq!(take("all", 5), "all#5");
        let long = take(&"%2F".repeat(100), 6);
        assert!(long.len() < 255 && long.ends_with("%2F#6"), "{long}");
    }

    proptest! {
        #[test]
        fn b1_every_text_round_trips_as_one_safe_name(text in any::<String>()) {
            let name = escape(&text);
            prop_assert!(!name.contains(['/', '\0', '\n', '#']));
            prop_assert!(!name.starts_with('.'));
            prop_assert_eq!(unescape(&name), Some(text));
        }

        #[test]
        fn b1_names_in_a_directory_are_short_and_differ(
            texts in proptest::collection::vec("[ab/%é#.]{0,120}", 0..20),
        ) {
            let mut names: Vec<String> = Vec::new();
            for (number, text) in texts.iter().enumerate() {
                let is_taken = |name: &str| ["a", "all"].contains(&name) || is_in(&names, name);
                let name = unused_name(escape(text), number as u64, is_taken);
                names.push(name);
            }
            let unique: HashSet<&String> = names.iter().collect();
            prop_assert_eq!(unique.len(), names.len());
            for name in &names {
                prop_assert!(!name.is_empty() && name.len() <= 255 && name != "a" && name != "all");
            }
        }
    }
}
