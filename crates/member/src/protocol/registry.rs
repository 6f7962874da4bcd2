//! Paths in the daemon's registry, and the rights of users.

use serde::{Deserialize, Serialize};

/// A path in the registry. Fields that the caller may not see are `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Path {
    /// Number in the daemon's registry.
    pub number: u32,
    /// Name that the user chose for the path.
    pub name: Option<String>,
    /// User id of the owner.
    pub uid: u32,
    /// Process that runs the path.
    pub process: Option<i32>,
    /// Start time in seconds since 1970.
    pub started: Option<u64>,
    /// Text of the request that the path runs.
    pub line: Option<String>,
    /// Log file with the output of the path.
    pub log: Option<String>,
    /// True if the caller may connect to the path.
    pub yours: bool,
}

/// Reply to `List`: the paths visible to the caller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathList {
    /// Paths, sorted by number.
    pub paths: Vec<Path>,
}

/// Reply to `DbufIds`: a range of ids that no other process ever gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DbufIds {
    /// The first id.
    pub first: u32,
    /// Number of ids.
    pub count: u32,
}

/// Reply to `Watch`: a change in the set of visible paths.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Kind of the change: `present`, `came`, `changed` or `went`.
    pub event: String,
    /// The path that appeared, changed or ended.
    pub path: Path,
}

/// Parameters of `Register`, which adds a path to the registry.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// Name that the user chose for the path.
    pub name: Option<String>,
    /// Text of the request that the path runs.
    pub line: String,
    /// Log file with the output of the path.
    pub log: Option<String>,
    /// Number that a previous daemon assigned to the path.
    pub number: Option<u32>,
    /// Start time in seconds since 1970.
    pub started: Option<u64>,
    /// Identity of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
}

/// Reply to `Register`: the number of the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathNumber {
    /// Number in the daemon's registry.
    pub number: u32,
}

/// Parameters of `Changed`, with which a path reports to the daemon that it runs another request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestChange {
    /// Text of the request that runs now.
    pub line: String,
    /// Identity of the plan of the new request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
}

/// The kind of an event of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathEvent {
    /// The path runs another request, or runs it in another way.
    Changed,
    /// The path has changed itself, or has decided against a change.
    Adapted,
    /// Blocks were lost.
    Lost,
    /// An alarm was raised.
    Alarm,
    /// An alarm is over.
    Over,
    /// Blocks took longer than the request allows.
    Late,
    /// A change was refused.
    Unchanged,
    /// The path has ended.
    Ended,
}

/// Parameters of `Report`, with which a path reports an event for the log of the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathReport {
    /// Kind of the event.
    pub event: PathEvent,
    /// Sentence that describes the event.
    pub text: String,
    /// Exit status of a path that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u8>,
}

/// Parameters of `Connect`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connect {
    /// Name, number, or `UID/NAME` of the path.
    pub path: String,
}

/// Reply to `Connect`: the path that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectReply {
    /// Number of the path.
    pub number: u32,
    /// Owner of the path.
    pub uid: u32,
}

/// Parameters of `Admit`, with which the daemon passes a connection to a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admit {
    /// User id of the peer of the connection.
    pub uid: u32,
}

/// Reply to `About`: the identity of the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct About {
    /// Version of the daemon.
    pub version: String,
    /// Process of the daemon.
    pub process: u32,
    /// User as which the daemon runs.
    pub uid: u32,
    /// Start time in seconds since 1970.
    pub started: u64,
    /// Policy file of the daemon, or `None` for the built-in policy.
    pub policy: Option<String>,
}

/// Limits of a user, or the user's usage. As a limit, `None` means unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Number of paths running at the same time.
    pub paths: Option<u64>,
    /// Number of connections to the daemon.
    pub connections: Option<u64>,
    /// Number of rings that the daemon created.
    pub rings: Option<u64>,
    /// Total size of the rings that the daemon created, in bytes.
    pub bytes: Option<u64>,
    /// Number of descriptors that the daemon holds.
    pub descriptors: Option<u64>,
    /// Kernel time, in ns per second.
    pub kernel_ns: Option<u64>,
}

/// Reply to `Allowed`: the rights and limits of the caller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Permissions {
    /// True if the caller is root, who has all rights.
    pub everything: bool,
    /// Limits of the caller.
    pub quota: Quota,
    /// Usage of the caller.
    pub used: Quota,
    /// Filters that the caller may run in the kernel.
    pub filters: Vec<String>,
    /// Interfaces that the caller may observe in the kernel; `*` stands for all.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// Release of the kernel in which the daemon runs programs, or `None` if it cannot run any.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Reason why the daemon runs no kernel programs, or `None` if it does.
    #[serde(default)]
    pub closed: Option<String>,
}

/// Maximum length of a registered request, in bytes.
pub const LINE_MAX: usize = 16 << 10;
