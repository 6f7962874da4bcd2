//! In whose memory frames come out of the kernel: `--share`. [SL §8, CONTRACT 21]

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use crate::graph::Graph;

/// With whom a line keeps its frames in one ring. Who maps a ring reads all of it, so a line says
/// with whom; those are the three co-location rules of the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Share {
    /// With the lines of its own user.
    #[default]
    User,
    /// With those of the members of a group, by name or number, who say so.
    Group(Arc<str>),
    /// With those of all who say so.
    World,
}

impl Share {
    /// Parses a word; `None` if it is no such word.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let plain = |name: &&str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "_-.$".contains(c);
            (1..=32).contains(&name.len()) && name.chars().all(known)
        };
        match text {
            "user" => Some(Self::User),
            "world" => Some(Self::World),
            _ => text.strip_prefix("group:").filter(plain).map(|name| Self::Group(name.into())),
        }
    }

    /// Reads the sharing that a request asks for.
    #[must_use]
    pub fn asked(graph: &Graph) -> Self {
        graph.options.text("share").and_then(Self::of).unwrap_or_default()
    }
}

/// As it is written.
impl Display for Share {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => f.write_str("user"),
            Self::Group(name) => write!(f, "group:{name}"),
            Self::World => f.write_str("world"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sharing_word_is_read_as_written_and_others_are_not() {
        for text in ["user", "world", "group:adm", "group:27", "group:a-b_c.d$"] {
            assert_eq!(Share::of(text).expect(text).to_string(), text);
        }
        let long = format!("group:{}", "x".repeat(33));
        for text in ["", "group", "group:", "group:a b", "group:a/b", "World", long.as_str()] {
            assert_eq!(Share::of(text), None, "{text}");
        }
    }
}
