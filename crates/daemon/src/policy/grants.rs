//! Interfaces that root has opened to users.
//!
//! ```toml
//! [[open]]
//! users = ["alice", 1002]       # by name or by number
//! groups = ["netadm"]           # their members, too
//! interfaces = ["eth0", "blue/eth0"]    # of the daemon's namespace ("*": all), or of `blue`
//! take = true                   # they may take flows there, too: `rx eth0 take "udp port 53"`
//! ```
//!
//! An observer of an interface sees the frames of all users of the interface. An interface is
//! therefore closed to all users except root, unless an entry opens it. Taking flows also withholds
//! frames from their receivers, so it is granted separately.

use abi::access::{Credentials, Grantees};
use member::rights::{ALL_INTERFACES, matches_interface};
use serde::Deserialize;

/// The interfaces that are open to a set of users.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct InterfaceGrant {
    grantees: Grantees,
    interfaces: Vec<String>,
    take: bool,
}

/// An `[[open]]` entry as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct GrantEntry {
    #[serde(default)]
    users: Vec<Principal>,
    #[serde(default)]
    groups: Vec<Principal>,
    interfaces: Vec<String>,
    #[serde(default)]
    take: bool,
}

/// A user or a group, by number or by name.
#[derive(Deserialize)]
#[serde(untagged)]
enum Principal {
    Number(u32),
    Name(String),
}

/// A function that resolves the name of a user or group to its id; returns `None` if the name is
/// unknown.
pub(super) type NumberLookup<'n> = &'n dyn Fn(&str) -> Option<u32>;

impl InterfaceGrant {
    pub(super) fn from_entry(
        written: GrantEntry,
        (users, groups): (NumberLookup<'_>, NumberLookup<'_>),
    ) -> Result<Self, String> {
        let GrantEntry { users: named, groups: in_groups, interfaces, take } = written;
        if named.is_empty() && in_groups.is_empty() {
            return Err("[[open]] grants nothing: it needs `users` or `groups`".to_owned());
        }
        let wrong = |name: &&String| {
            let plain =
                |part: &str| !part.is_empty() && part.len() < 64 && !part.contains(['/', ' ', '*']);
            !(*name == ALL_INTERFACES || name.split('/').all(plain) && name.split('/').count() <= 2)
        };
        if let Some(name) = interfaces.iter().find(wrong) {
            return Err(format!("`{name}` is not an interface: write IF, NETNS/IF, or \"*\""));
        }
        let users = resolve_principals(named, users, ("user", "/etc/passwd", "id -u"))?;
        let groups = resolve_principals(in_groups, groups, ("group", "/etc/group", "id -g"))?;
        Ok(Self { grantees: Grantees { users, groups }, interfaces, take })
    }

    /// Returns true if this `[[open]]` entry of the policy applies to the peer.
    pub(super) fn covers_peer(&self, who: &Credentials) -> bool {
        self.grantees.contains(who)
    }

    pub(super) fn interfaces(&self) -> &[String] {
        &self.interfaces
    }

    /// Returns true if the entry lets its users take flows from its interfaces, away from other
    /// receivers.
    pub(super) const fn may_take_flows(&self) -> bool {
        self.take
    }

    /// Returns true if this `[[open]]` entry of the policy applies to the interface.
    pub(super) fn has_interface(&self, interface: &str, netns: Option<&str>) -> bool {
        matches_interface(&self.interfaces, interface, netns)
    }
}

fn resolve_principals(
    all: Vec<Principal>,
    number: NumberLookup<'_>,
    (what, file, command): (&str, &str, &str),
) -> Result<Vec<u32>, String> {
    let one = |who: Principal| match who {
        Principal::Number(number) => Ok(number),
        Principal::Name(name) => name.parse().ok().or_else(|| number(&name)).ok_or_else(|| {
            format!("no {what} is called `{name}` in {file}: write the number (`{command}`)")
        }),
    };
    all.into_iter().map(one).collect()
}
