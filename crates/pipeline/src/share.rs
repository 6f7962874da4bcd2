//! The `--share` option: the users who may share a ring of frames from the kernel. [SL §8, CONTRACT
//! 21]

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use crate::graph::Graph;

/// The requests that may share a request's ring of arriving frames. A process that maps a ring can
/// read all of it, so sharing requires consent. The variants are the co-location rules of the
/// Streamline paper.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum RingSharing {
    /// The requests of the user who runs the request.
    #[default]
    User,
    /// The requests of all members of a group (a name or a number) that have the same
    /// `--share=group:` option.
    Group(Arc<str>),
    /// The requests of all users that have the option `--share=world`.
    World,
}

impl RingSharing {
    /// Parses the value of `--share`. Returns `None` if it is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
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

    /// Returns the value of `--share` in a request, or the default.
    #[must_use]
    pub fn from_graph(graph: &Graph) -> Self {
        graph.options.text("share").and_then(Self::parse).unwrap_or_default()
    }
}

/// Formats the value in the syntax of a request.
impl Display for RingSharing {
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
    fn valid_share_values_parse_and_others_fail() {
        for text in ["user", "world", "group:adm", "group:27", "group:a-b_c.d$"] {
            assert_eq!(RingSharing::parse(text).expect(text).to_string(), text);
        }
        let long = format!("group:{}", "x".repeat(33));
        for text in ["", "group", "group:", "group:a b", "group:a/b", "World", long.as_str()] {
            assert_eq!(RingSharing::parse(text), None, "{text}");
        }
    }
}
