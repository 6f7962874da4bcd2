//! Interfaces that root has opened to users.
//!
//! ```toml
//! [[open]]
//! users = ["alice", 1002]       # by name or by number
//! groups = ["netadm"]           # who is in one of them
//! interfaces = ["eth0", "blue/eth0"]    # in the daemon's name space, or in that of this name; "*"
//! ```
//!
//! Who watches an interface sees the frames of everybody there. So nothing is open that is not
//! written here, but to root.

use abi::access::{Credentials, Grantees};
use member::rights::{ALL, is_named};
use serde::Deserialize;

/// Interfaces that are open to some.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Opened {
    grantees: Grantees,
    interfaces: Vec<String>,
}

/// The same as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Written {
    #[serde(default)]
    users: Vec<Who>,
    #[serde(default)]
    groups: Vec<Who>,
    interfaces: Vec<String>,
}

/// A user or a group: a number, or a name.
#[derive(Deserialize)]
#[serde(untagged)]
enum Who {
    Number(u32),
    Name(String),
}

/// Resolves names to numbers.
pub(super) type Numbers<'n> = &'n dyn Fn(&str) -> Option<u32>;

impl Opened {
    pub(super) fn read(
        written: Written,
        (users, groups): (Numbers<'_>, Numbers<'_>),
    ) -> Result<Self, String> {
        let Written { users: named, groups: in_groups, interfaces } = written;
        if named.is_empty() && in_groups.is_empty() {
            return Err("[[open]] opens to nobody: it needs `users` or `groups`".to_owned());
        }
        let wrong = |name: &&String| {
            let plain =
                |part: &str| !part.is_empty() && part.len() < 64 && !part.contains(['/', ' ', '*']);
            !(*name == ALL || name.split('/').all(plain) && name.split('/').count() <= 2)
        };
        if let Some(name) = interfaces.iter().find(wrong) {
            return Err(format!("`{name}` names no interface: write IF, NETNS/IF, or \"*\""));
        }
        let users = numbers(named, users, ("user", "/etc/passwd", "id -u"))?;
        let groups = numbers(in_groups, groups, ("group", "/etc/group", "id -g"))?;
        Ok(Self { grantees: Grantees { users, groups }, interfaces })
    }

    /// Returns true if the entry covers this peer.
    pub(super) fn is_to(&self, who: &Credentials) -> bool {
        self.grantees.include(who)
    }

    pub(super) fn interfaces(&self) -> &[String] {
        &self.interfaces
    }

    /// Returns true if the entry covers this interface.
    pub(super) fn is_of(&self, interface: &str, netns: Option<&str>) -> bool {
        is_named(&self.interfaces, interface, netns)
    }
}

fn numbers(
    all: Vec<Who>,
    number: Numbers<'_>,
    (what, file, command): (&str, &str, &str),
) -> Result<Vec<u32>, String> {
    let one = |who: Who| match who {
        Who::Number(number) => Ok(number),
        Who::Name(name) => name.parse().ok().or_else(|| number(&name)).ok_or_else(|| {
            format!("no {what} is called `{name}` in {file}: write the number (`{command}`)")
        }),
    };
    all.into_iter().map(one).collect()
}
