//! The policy: the file in which root states the rights and quotas of users.
//!
//! ```toml
//! others-see = "names"          # of a path of another user: nothing, names or lines
//!
//! [quota]                       # of each user that is not named below
//! paths = 32
//! kernel-ns = 10_000_000        # of each second
//!
//! [users.alice]                 # by name or by number
//! paths = 200
//!
//! [kernel]
//! filters = ["rx", "bpf", "dport", "count"]     # what users may have run in the kernel
//!
//! [[open]]                      # which interfaces they may watch: see [`open`]
//! users = ["alice"]
//! interfaces = ["eth0"]
//! ```
//!
//! What the file does not say is as it is built in. Root and the user of the daemon have no bounds.

mod open;

use crate::directory::is_trusted;
use abi::access::Credentials;
use member::protocol::Quota;
use member::rights::{self, FILE};
use open::{Numbers, Opened};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// The longest file.
const FILE_MAX: u64 = 1 << 20;

/// The rights and quotas of users.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Visibility of paths to other users.
    pub others_see: Seen,
    /// The filters that users may have in the kernel.
    pub filters: Vec<String>,
    /// The file; `None` for the built-in policy.
    pub file: Option<PathBuf>,
    pub(crate) quota: Quota,
    pub(crate) users: BTreeMap<u32, Quota>,
    pub(crate) open: Vec<Opened>,
}

/// The visibility of a path to other users.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Seen {
    /// Not that it is there.
    Nothing,
    /// Its number, name and user.
    Names,
    /// Its line, too.
    Lines,
}

/// An invalid policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyError {
    /// The file.
    pub file: PathBuf,
    /// The mistake and its place.
    pub why: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the policy {} cannot be followed: {}", self.file.display(), self.why)
    }
}

impl std::error::Error for PolicyError {}

/// The file as it is written.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Written {
    others_see: Option<Seen>,
    quota: Bounds,
    users: BTreeMap<String, Bounds>,
    kernel: InKernel,
    open: Vec<open::Written>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Bounds {
    paths: Option<u64>,
    connections: Option<u64>,
    rings: Option<u64>,
    bytes: Option<u64>,
    descriptors: Option<u64>,
    kernel_ns: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct InKernel {
    filters: Option<Vec<String>>,
}

/// The quota of a user that is not named.
const QUOTA: Quota = Quota {
    paths: Some(32),
    connections: Some(64),
    rings: Some(64),
    bytes: Some(256 << 20),
    descriptors: Some(256),
    kernel_ns: Some(50_000_000),
};

/// Filters that users may have in the kernel: those that look at packets and neither change, send
/// nor take them.
const FILTERS: &[&str] = &[
    "rx",
    "bpf",
    "eth",
    "vlan",
    "strip",
    "ip",
    "ipproto",
    "udp",
    "sport",
    "dport",
    "match",
    "split",
    "shard",
    "sample",
    "ratelimit",
    "count",
    "hist",
    "drop",
    "discard",
];

impl Default for Policy {
    fn default() -> Self {
        Self {
            others_see: Seen::Names,
            filters: FILTERS.iter().map(|name| (*name).to_owned()).collect(),
            file: None,
            quota: QUOTA,
            users: BTreeMap::new(),
            open: Vec::new(),
        }
    }
}

impl Policy {
    /// The policy in this file; where there is none, and nobody asked for it, the one that is built
    /// in.
    pub fn read(file: &Path, asked: bool) -> Result<Self, PolicyError> {
        let wrong = |why: String| PolicyError { file: file.to_owned(), why };
        let reason = |error: std::io::Error| {
            wrong(error.to_string().split(" (os error").next().unwrap_or_default().to_lowercase())
        };
        let opened = match sys::open::OpenRegular::read().open(file) {
            Err(error) if error.kind() == ErrorKind::NotFound && !asked => {
                return Ok(Self::default());
            }
            opened => opened.map_err(reason)?,
        };
        is_trusted(&opened).map_err(wrong)?;
        let mut text = String::new();
        opened.take(FILE_MAX).read_to_string(&mut text).map_err(reason)?;
        let policy =
            Self::parse(&text, (&rights::user_number, &rights::group_number)).map_err(wrong)?;
        Ok(Self { file: Some(file.to_owned()), ..policy })
    }

    /// The policy in this text.
    fn parse(text: &str, numbers: (Numbers<'_>, Numbers<'_>)) -> Result<Self, String> {
        let written: Written = toml::from_str(text).map_err(|error| told(text, &error))?;
        let built_in = Self::default();
        let quota = written.quota.over(built_in.quota);
        let mut users = BTreeMap::new();
        for (name, bounds) in written.users {
            let number = name.parse().ok().or_else(|| numbers.0(&name)).ok_or_else(|| {
                format!("no user is called `{name}` in /etc/passwd: write the number (`id -u`)")
            })?;
            users.insert(number, bounds.over(quota));
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
                .map(|written| Opened::read(written, numbers))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Returns true if the user has no quota: root, and the daemon's own user.
    #[must_use]
    pub fn is_free(&self, uid: u32) -> bool {
        uid == 0 || uid == sys::process::identity().0
    }

    /// Returns true if the peer is a member of the group, given by name or number; `None` if there
    /// is no such group.
    pub(crate) fn is_in(&self, who: &Credentials, group: &str) -> Option<bool> {
        let number = group.parse().ok().or_else(|| rights::group_number(group))?;
        Some(self.is_free(who.uid) || who.is_in(number))
    }

    /// Returns true if the peer may watch an interface.
    pub(crate) fn opens(&self, who: &Credentials, interface: &str, netns: Option<&str>) -> bool {
        let mut open = self.open.iter();
        self.is_free(who.uid) || open.any(|open| open.is_to(who) && open.is_of(interface, netns))
    }

    /// The interfaces that somebody may watch.
    pub(crate) fn interfaces(&self, who: &Credentials) -> Vec<String> {
        if self.is_free(who.uid) {
            return vec![rights::ALL.to_owned()];
        }
        let open = self.open.iter().filter(|open| open.is_to(who));
        let mut all: Vec<String> = open.flat_map(|open| open.interfaces().to_vec()).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Returns true if the user may have a filter in the kernel.
    pub(crate) fn has(&self, uid: u32, filter: &str) -> bool {
        self.is_free(uid) || self.filters.iter().any(|known| known == filter)
    }

    /// Returns the path of the policy file, present or not.
    pub(crate) fn place(&self) -> String {
        let file = self.file.as_deref().unwrap_or_else(|| Path::new(FILE));
        file.display().to_string()
    }

    /// Returns the quota of a user.
    #[must_use]
    pub fn quota(&self, uid: u32) -> Quota {
        match self.users.get(&uid) {
            Some(named) => *named,
            None if self.is_free(uid) => Quota::default(),
            None => self.quota,
        }
    }
}

impl Bounds {
    /// Completes the quota with values from `otherwise`.
    fn over(self, otherwise: Quota) -> Quota {
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

/// A mistake of the file with its line.
fn told(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map(|before| before.matches('\n').count() + 1);
    let what = error.message().replace('\n', " ");
    line.map_or_else(|| what.clone(), |line| format!("line {line}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Policy, String> {
        let user = |name: &str| (name == "alice").then_some(1001);
        let group = |name: &str| (name == "netadm").then_some(77);
        Policy::parse(text, (&user, &group))
    }

    #[test]
    fn p5_nothing_is_open_but_what_is_written_and_to_whom() {
        let policy = parse(
            "[[open]]\nusers = [\"alice\", 1002]\ninterfaces = [\"eth0\", \"blue/eth1\"]\n\
             [[open]]\ngroups = [\"netadm\"]\ninterfaces = [\"*\"]\n",
        )
        .unwrap();
        let opens = |uid, gid, groups: &[u32], interface: &str, netns| {
            let who = Credentials { uid, gid, groups: groups.to_vec() };
            policy.opens(&who, interface, netns)
        };
        for uid in [1001, 1002] {
            assert!(opens(uid, 1, &[], "eth0", None) && opens(uid, 1, &[], "eth1", Some("blue")));
            assert!(!opens(uid, 1, &[], "eth1", None) && !opens(uid, 1, &[], "eth0", Some("blue")));
        }
        assert!(!opens(1003, 1, &[], "eth0", None));
        assert!(opens(1003, 77, &[], "lo", None) && opens(1003, 1, &[5, 77], "lo", None));
        assert!(!opens(1003, 77, &[], "lo", Some("red")), "all of its own name space alone");
        assert!(opens(0, 0, &[], "anything", Some("red")));
        let who = |uid, gid| Credentials { uid, gid, groups: vec![] };
        assert_eq!(policy.interfaces(&who(1001, 77)), ["*", "blue/eth1", "eth0"]);
        assert_eq!(policy.interfaces(&who(9, 9)), [""; 0]);
        let nobody = Policy::default();
        assert!(!nobody.opens(&who(1001, 1), "lo", None), "without a word nothing is open");
        assert!(nobody.has(1001, "dport") && !nobody.has(1001, "files") && nobody.has(0, "x"));
    }

    #[test]
    fn what_is_not_said_is_as_it_is_built_in() {
        assert_eq!(parse("").unwrap(), Policy::default());
        let policy = parse(
            "others-see = \"lines\"\n[quota]\npaths = 3\n[users.alice]\nbytes = 5\n\
             [users.1002]\npaths = 7\n[kernel]\nfilters = [\"bpf\"]\n",
        )
        .unwrap();
        assert_eq!(
            (policy.others_see, policy.filters.as_slice()),
            (Seen::Lines, &["bpf".into()][..])
        );
        let quota = |uid| policy.quota(uid);
        assert_eq!(quota(4242), Quota { paths: Some(3), ..QUOTA });
        assert_eq!(quota(1001), Quota { paths: Some(3), bytes: Some(5), ..QUOTA });
        assert_eq!(quota(1002).paths, Some(7));
        assert_eq!(quota(0), Quota::default(), "root has no bounds");
    }

    #[test]
    fn mistakes_say_where_they_are() {
        for (text, part) in [
            ("others-see = \"all\"", "line 1"),
            ("\n[quota]\npath = 3", "line 3"),
            ("\n\n[quota]\npaths = -1", "line 4"),
            ("[users.bob]\npaths = 1", "no user is called `bob`"),
            ("[quota", "line 1"),
            ("[[open]]\ninterfaces = [\"lo\"]", "opens to nobody"),
            ("[[open]]\ngroups = [\"x\"]\ninterfaces = [\"lo\"]", "no group is called `x`"),
            ("[[open]]\nusers = [1]\ninterfaces = [\"a/b/c\"]", "names no interface"),
            ("[[open]]\nusers = [1]\ninterface = [\"lo\"]", "line 3"),
        ] {
            let told = parse(text).unwrap_err();
            assert!(told.contains(part), "{text:?}: {told}");
        }
    }

    #[test]
    fn a_policy_that_others_may_write_is_not_followed() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = crate::testing::Folder::new();
        let file = folder.path().join("policy.toml");
        assert_eq!(Policy::read(&file, false).unwrap(), Policy::default());
        let missing = Policy::read(&file, true).unwrap_err();
        assert!(missing.to_string().contains("no such file"), "{missing}");
        std::fs::write(&file, "[quota]\npaths = 1\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(Policy::read(&file, true).unwrap().quota(4242).paths, Some(1));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        let refused = Policy::read(&file, true).unwrap_err();
        assert!(refused.to_string().contains("others may write"), "{refused}");
    }
}
