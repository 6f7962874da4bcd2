//! The policy of a daemon: rights and quotas of users, read from a file that root writes.
//!
//! ```toml
//! others-see = "names"          # of another user's path: nothing, names or lines
//!
//! [quota]                       # of each user without an entry below
//! paths = 32
//! kernel-ns = 10_000_000        # per second
//!
//! [users.alice]                 # by name or by number
//! paths = 200
//!
//! [kernel]
//! filters = ["rx", "bpf", "dport", "count"]     # filters that users may run in the kernel
//!
//! [[open]]                      # interfaces that they may watch: see [`open`]
//! users = ["alice"]
//! interfaces = ["eth0"]
//! ```
//!
//! Missing keys have the built-in values. Root and the daemon's own user have all rights, and no
//! quota unless the file names them.

mod grants;

use crate::directory::check_trusted;
use abi::access::Credentials;
use engine::registry::MachineRegistry;
use grants::{InterfaceGrant, NumberLookup};
use member::protocol::Quota;
use member::rights::{self, POLICY_FILE};
use pipeline::Registry as _;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// Maximum size of a policy file in bytes.
const POLICY_FILE_BYTES_MAX: u64 = 1 << 20;

/// The rights and quotas of users, as read from a policy file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Properties of a path that users other than its owner can see.
    pub others_see: Visibility,
    /// Filters that users may run in the kernel.
    pub filters: Vec<String>,
    /// Path of the policy file, or `None` for the built-in policy.
    pub file: Option<PathBuf>,
    pub(crate) quota: Quota,
    pub(crate) users: BTreeMap<u32, Quota>,
    pub(crate) open: Vec<InterfaceGrant>,
}

/// Visibility of a path to users other than its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// Other users do not see the path at all.
    Nothing,
    /// Number, name and owner are visible.
    Names,
    /// Number, name, owner, start time and the text of the request are visible.
    Lines,
}

/// A policy file that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the policy {} is not valid: {why}", .file.display())]
pub struct PolicyError {
    /// Path of the policy file.
    pub file: PathBuf,
    /// Description of the mistake, with its line number if known.
    pub why: String,
}

/// The policy file as written, before names are resolved.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct PolicyFile {
    others_see: Option<Visibility>,
    quota: QuotaEntry,
    users: BTreeMap<String, QuotaEntry>,
    kernel: KernelEntry,
    open: Vec<grants::GrantEntry>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct QuotaEntry {
    paths: Option<u64>,
    connections: Option<u64>,
    rings: Option<u64>,
    bytes: Option<u64>,
    descriptors: Option<u64>,
    kernel_ns: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct KernelEntry {
    filters: Option<Vec<String>>,
}

/// Built-in quota, for users to whom the policy assigns no quota.
const QUOTA_DEFAULT: Quota = Quota {
    paths: Some(32),
    connections: Some(64),
    rings: Some(64),
    bytes: Some(256 << 20),
    descriptors: Some(256),
    kernel_ns: Some(50_000_000),
};

/// Returns the names of the filters that users may run in the kernel by default: all filters and
/// sources that have a twin or an attach point in the kernel and need no privilege.
fn default_kernel_filters() -> Vec<String> {
    let entries = MachineRegistry::descriptions().filter(|entry| {
        let in_kernel = entry.emit_twin.is_some()
            || MachineRegistry::Local.endpoint_facts(entry).attach_point.is_some();
        in_kernel && entry.twin_right.is_none()
    });
    entries.map(|entry| entry.name.to_owned()).collect()
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            others_see: Visibility::Names,
            filters: default_kernel_filters(),
            file: None,
            quota: QUOTA_DEFAULT,
            users: BTreeMap::new(),
            open: Vec::new(),
        }
    }
}

impl Policy {
    /// Reads the policy file. If the file is missing, returns the built-in policy, or fails if
    /// `required` is true, that is, if the user named the file.
    ///
    /// Also fails if the file is malformed, is not a regular file, or can be modified by a user
    /// other than root and this user.
    pub fn read(file: &Path, required: bool) -> Result<Self, PolicyError> {
        let wrong = |why: String| PolicyError { file: file.to_owned(), why };
        let reason = |error: std::io::Error| {
            wrong(error.to_string().split(" (os error").next().unwrap_or_default().to_lowercase())
        };
        let opened = match sys::open::RegularOpenOptions::read().open(file) {
            Err(error) if error.kind() == ErrorKind::NotFound && !required => {
                return Ok(Self::default());
            }
            opened => opened.map_err(reason)?,
        };
        check_trusted(&opened).map_err(wrong)?;
        let mut text = String::new();
        opened.take(POLICY_FILE_BYTES_MAX).read_to_string(&mut text).map_err(reason)?;
        let policy = Self::parse(&text, (&rights::look_up_user_id, &rights::look_up_group_id))
            .map_err(wrong)?;
        Ok(Self { file: Some(file.to_owned()), ..policy })
    }

    /// Parses a policy. `numbers` is a pair of functions that resolve a user name and a group name,
    /// in this order, to a number. Fails with a description of the mistake.
    fn parse(text: &str, numbers: (NumberLookup<'_>, NumberLookup<'_>)) -> Result<Self, String> {
        let written: PolicyFile =
            toml::from_str(text).map_err(|error| format_mistake(text, &error))?;
        let built_in = Self::default();
        let quota = written.quota.with_defaults(built_in.quota);
        let mut users = BTreeMap::new();
        for (name, bounds) in written.users {
            let number = name.parse().ok().or_else(|| numbers.0(&name)).ok_or_else(|| {
                format!("no user is called `{name}` in /etc/passwd: write the number (`id -u`)")
            })?;
            users.insert(number, bounds.with_defaults(quota));
        }
        Ok(Self {
            others_see: written.others_see.unwrap_or(built_in.others_see),
            filters: written.kernel.filters.unwrap_or(built_in.filters),
            file: None,
            quota,
            users,
            open: written
                .open
                .into_iter()
                .map(|written| InterfaceGrant::from_entry(written, numbers))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Returns true for root and the daemon's own user, who have all rights, and no quota unless
    /// the policy names them.
    #[must_use]
    pub fn is_unrestricted(&self, uid: u32) -> bool {
        uid == 0 || uid == sys::process::effective_ids().0
    }

    /// Returns true if the peer has all rights or is a member of the group, which is given by name
    /// or by number. Returns `None` if no group has this name.
    pub(crate) fn has_group_rights(&self, who: &Credentials, group: &str) -> Option<bool> {
        let number = group.parse().ok().or_else(|| rights::look_up_group_id(group))?;
        Some(self.is_unrestricted(who.uid) || who.is_in(number))
    }

    /// Returns true if the peer may observe an interface.
    pub(crate) fn may_observe(
        &self,
        who: &Credentials,
        interface: &str,
        netns: Option<&str>,
    ) -> bool {
        let mut open = self.open.iter();
        self.is_unrestricted(who.uid)
            || open.any(|open| open.covers_peer(who) && open.has_interface(interface, netns))
    }

    /// Returns true if an `[[open]]` entry lets users other than root observe this interface of the
    /// daemon's network namespace.
    #[must_use]
    pub fn is_open_to_users(&self, interface: &str) -> bool {
        self.open.iter().any(|open| open.has_interface(interface, None))
    }

    /// Returns true if the peer may take flows from an interface, which withholds their frames from
    /// other receivers (see [`grants`]).
    pub(crate) fn may_take_flows(
        &self,
        who: &Credentials,
        interface: &str,
        netns: Option<&str>,
    ) -> bool {
        let mut open = self.open.iter().filter(|open| open.may_take_flows());
        self.is_unrestricted(who.uid)
            || open.any(|open| open.covers_peer(who) && open.has_interface(interface, netns))
    }

    /// Returns the patterns of the interfaces that a peer may observe, sorted.
    pub(crate) fn observable_interfaces(&self, who: &Credentials) -> Vec<String> {
        if self.is_unrestricted(who.uid) {
            return vec![rights::ALL_INTERFACES.to_owned()];
        }
        let open = self.open.iter().filter(|open| open.covers_peer(who));
        let mut all: Vec<String> = open.flat_map(|open| open.interfaces().to_vec()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Returns true if the user may run a filter in the kernel.
    pub(crate) fn may_run_filter(&self, uid: u32, filter: &str) -> bool {
        self.is_unrestricted(uid) || self.filters.iter().any(|known| known == filter)
    }

    /// Returns the path of the policy file, or the default path if the built-in policy is in use.
    pub(crate) fn file_path(&self) -> String {
        let file = self.file.as_deref().unwrap_or_else(|| Path::new(POLICY_FILE));
        file.display().to_string()
    }

    /// Returns the quota of a user.
    #[must_use]
    pub fn quota(&self, uid: u32) -> Quota {
        match self.users.get(&uid) {
            Some(named) => *named,
            None if self.is_unrestricted(uid) => Quota::default(),
            None => self.quota,
        }
    }
}

impl QuotaEntry {
    /// Returns the limits of this quota. A limit that is `None` here is taken from `otherwise`.
    fn with_defaults(self, otherwise: Quota) -> Quota {
        Quota {
            paths: self.paths.or(otherwise.paths),
            connections: self.connections.or(otherwise.connections),
            rings: self.rings.or(otherwise.rings),
            bytes: self.bytes.or(otherwise.bytes),
            descriptors: self.descriptors.or(otherwise.descriptors),
            kernel_ns: self.kernel_ns.or(otherwise.kernel_ns),
        }
    }
}

/// Formats a mistake with its line number, if known.
fn format_mistake(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map(|before| before.matches('\n').count() + 1);
    let what = error.message().replace('\n', " ");
    line.map_or_else(|| what.clone(), |line| format!("line {line}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_policy(text: &str) -> Result<Policy, String> {
        let user = |name: &str| (name == "alice").then_some(1001);
        let group = |name: &str| (name == "netadm").then_some(77);
        Policy::parse(text, (&user, &group))
    }

    #[test]
    fn example_policy_has_the_built_in_values() {
        let text = include_str!("../../../../dist/policy.toml");
        assert_eq!(parse_policy(text).unwrap(), Policy::default());
    }

    #[test]
    fn p5_only_listed_interfaces_are_open_to_listed_users() {
        let policy = parse_policy(
            "[[open]]\nusers = [\"alice\", 1002]\ninterfaces = [\"eth0\", \"blue/eth1\"]\n\
             [[open]]\ngroups = [\"netadm\"]\ninterfaces = [\"*\"]\n",
        )
        .unwrap();
        let opens = |uid, gid, groups: &[u32], interface: &str, netns| {
            let who = Credentials { uid, gid, groups: groups.to_vec() };
            policy.may_observe(&who, interface, netns)
        };
        for uid in [1001, 1002] {
            assert!(opens(uid, 1, &[], "eth0", None) && opens(uid, 1, &[], "eth1", Some("blue")));
            assert!(!opens(uid, 1, &[], "eth1", None) && !opens(uid, 1, &[], "eth0", Some("blue")));
        }
        assert!(!opens(1003, 1, &[], "eth0", None));
        assert!(opens(1003, 77, &[], "lo", None) && opens(1003, 1, &[5, 77], "lo", None));
        assert!(!opens(1003, 77, &[], "lo", Some("red")), "all of its own namespace alone");
        assert!(opens(0, 0, &[], "anything", Some("red")));
        let who = |uid, gid| Credentials { uid, gid, groups: vec![] };
        assert_eq!(policy.observable_interfaces(&who(1001, 77)), ["*", "blue/eth1", "eth0"]);
        assert_eq!(policy.observable_interfaces(&who(9, 9)), [""; 0]);
        let default_policy = Policy::default();
        assert!(
            !default_policy.may_observe(&who(1001, 1), "lo", None),
            "without a word nothing is open"
        );
        assert!(
            default_policy.may_run_filter(1001, "dport")
                && !default_policy.may_run_filter(1001, "files")
                && default_policy.may_run_filter(0, "x")
        );
    }

    #[test]
    fn users_may_observe_by_default_but_not_change_or_send() {
        let filters = Policy::default().filters;
        let has = |name: &str| filters.iter().any(|filter| filter == name);
        for name in ["rx", "bpf", "ip", "dport", "sample", "count", "drop", "discard"] {
            assert!(has(name), "{name}");
        }
        for name in ["rewrite", "token", "redirect", "tx", "tcp", "files"] {
            assert!(!has(name), "{name}");
        }
    }

    #[test]
    fn missing_keys_have_built_in_values() {
        assert_eq!(parse_policy("").unwrap(), Policy::default());
        let policy = parse_policy(
            "others-see = \"lines\"\n[quota]\npaths = 3\n[users.alice]\nbytes = 5\n\
             [users.1002]\npaths = 7\n[kernel]\nfilters = [\"bpf\"]\n",
        )
        .unwrap();
        assert_eq!(
            (policy.others_see, policy.filters.as_slice()),
            (Visibility::Lines, &["bpf".into()][..])
        );
        let quota = |uid| policy.quota(uid);
        assert_eq!(quota(4242), Quota { paths: Some(3), ..QUOTA_DEFAULT });
        assert_eq!(quota(1001), Quota { paths: Some(3), bytes: Some(5), ..QUOTA_DEFAULT });
        assert_eq!(quota(1002).paths, Some(7));
        assert_eq!(quota(0), Quota::default(), "root has no bounds");
    }

    #[test]
    fn policy_mistakes_name_their_line() {
        for (text, part) in [
            ("others-see = \"all\"", "line 1"),
            ("\n[quota]\npath = 3", "line 3"),
            ("\n\n[quota]\npaths = -1", "line 4"),
            ("[users.bob]\npaths = 1", "no user is called `bob`"),
            ("[quota", "line 1"),
            ("[[open]]\ninterfaces = [\"lo\"]", "grants nothing"),
            ("[[open]]\ngroups = [\"x\"]\ninterfaces = [\"lo\"]", "no group is called `x`"),
            ("[[open]]\nusers = [1]\ninterfaces = [\"a/b/c\"]", "is not an interface"),
            ("[[open]]\nusers = [1]\ninterface = [\"lo\"]", "line 3"),
        ] {
            let message = parse_policy(text).unwrap_err();
            assert!(message.contains(part), "{text:?}: {message}");
        }
    }

    #[test]
    fn policy_writable_by_others_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = crate::testing::TemporaryDirectory::new();
        let file = folder.path().join("policy.toml");
        assert_eq!(Policy::read(&file, false).unwrap(), Policy::default());
        let missing = Policy::read(&file, true).unwrap_err();
        assert!(missing.to_string().contains("no such file"), "{missing}");
        std::fs::write(&file, "[quota]\npaths = 1\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(Policy::read(&file, true).unwrap().quota(4242).paths, Some(1));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        let refused = Policy::read(&file, true).unwrap_err();
        assert!(refused.to_string().contains("other users can write"), "{refused}");
    }
}
