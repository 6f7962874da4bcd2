//! Paths in the daemon's registry, and the privileges of users.

use serde::{Deserialize, Serialize};

/// A path in the registry. The fields that the caller must not see are `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RegisteredPath {
    /// Number of the path in the daemon's registry.
    pub number: u32,
    /// Name that the user chose for the path, or `None` for an unnamed path.
    pub name: Option<String>,
    /// User id of the path's owner.
    pub uid: u32,
    /// Id of the process that runs the path.
    pub process: Option<i32>,
    /// Start time in seconds since 1970.
    pub started: Option<u64>,
    /// Text of the request that the path runs.
    pub line: Option<String>,
    /// Name of the log file that contains the path's output, or `None` if there is none.
    pub log: Option<String>,
    /// True if the caller may connect to the path.
    pub yours: bool,
}

/// Reply to `List`: the paths that are visible to the caller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathList {
    /// Paths, sorted by number.
    pub paths: Vec<RegisteredPath>,
}

/// Reply to `DbufIds`: a range of ids that are never assigned to another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DbufIds {
    /// The first id of the range.
    pub first: u32,
    /// Number of ids in the range.
    pub count: u32,
}

/// Reply to `Watch`: a change in the set of visible paths.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathListEvent {
    /// Kind of the change: `present`, `came`, `changed` or `went`.
    pub event: String,
    /// The path that appeared, changed or ended.
    pub path: RegisteredPath,
}

/// Parameters of `Register`, which adds a path to the registry.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisterParameters {
    /// Name that the user chose for the path, or `None` for an unnamed path.
    pub name: Option<String>,
    /// Text of the request that the path runs.
    pub line: String,
    /// Name of the log file that contains the path's output, or `None` if there is none.
    pub log: Option<String>,
    /// Number that a previous daemon assigned to the path, or `None` at the first registration.
    pub number: Option<u32>,
    /// Start time in seconds since 1970, or `None` for the time of the registration.
    pub started: Option<u64>,
    /// Id of the path's plan; `None` if the path has no plan, or if the parameter is omitted for an
    /// older daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
}

/// Reply to `Register`: the path's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathNumber {
    /// Number of the path in the daemon's registry.
    pub number: u32,
}

/// Parameters of `Changed`, with which a path reports to the daemon that it now runs a different
/// request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestChange {
    /// Text of the request that is now running.
    pub line: String,
    /// Id of the new request's plan; `None` if the path has no plan, or for an older daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
}

/// The kind of an event of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathEvent {
    /// The path now runs another request, or runs the same request with another plan.
    Changed,
    /// The path has adapted its plan to its load, or has decided not to adapt it.
    Adapted,
    /// Blocks were lost.
    Lost,
    /// A condition of the option `--alarm` began to hold.
    Alarm,
    /// A condition of the option `--alarm` no longer holds.
    Over,
    /// The latency of blocks exceeded the limit in the request.
    Late,
    /// A change of the path was refused, and the path runs as before.
    Unchanged,
    /// The path has ended.
    Ended,
}

/// Parameters of `Report`, with which a path reports an event for the daemon's log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathReport {
    /// Kind of the event.
    pub event: PathEvent,
    /// Sentence that describes the event.
    pub text: String,
    /// Exit status of the path, if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u8>,
}

/// Parameters of `Connect`, which requests a connection to a path's process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectParameters {
    /// Name, number, or `UID/NAME` of the path.
    pub path: String,
}

/// Reply to `Connect`: the path that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectReply {
    /// Number of the path.
    pub number: u32,
    /// User id of the path's owner.
    pub uid: u32,
}

/// Parameters of `Admit`, with which the daemon passes a client's connection to a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmitParameters {
    /// User id of the peer at the other end of the connection.
    pub uid: u32,
}

/// Reply to `About`: the version, process, user, start time and policy file of the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DaemonDescription {
    /// Version of the daemon.
    pub version: String,
    /// Id of the daemon's process.
    pub process: u32,
    /// User id under which the daemon runs.
    pub uid: u32,
    /// Start time in seconds since 1970.
    pub started: u64,
    /// Name of the daemon's policy file, or `None` for the built-in policy.
    pub policy: Option<String>,
}

/// Amounts of the resources that the daemon limits for each user: a user's limits (`None` means
/// unlimited), or a user's usage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Number of paths running at the same time.
    pub paths: Option<u64>,
    /// Number of connections to the daemon.
    pub connections: Option<u64>,
    /// Number of rings that the daemon has created.
    pub rings: Option<u64>,
    /// Total size, in bytes, of the rings that the daemon has created.
    pub bytes: Option<u64>,
    /// Number of descriptors that the daemon holds.
    pub descriptors: Option<u64>,
    /// Kernel time used by programs, in ns per second.
    pub kernel_ns: Option<u64>,
}

/// Reply to `Allowed`: the caller's privileges and limits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Permissions {
    /// True if the caller is root, who may do everything.
    pub everything: bool,
    /// Amounts of resources that the caller may use.
    pub quota: Quota,
    /// Amounts of the limited resources that the caller uses now.
    pub used: Quota,
    /// Filters that the caller may run in the kernel.
    pub filters: Vec<String>,
    /// Interfaces that the caller may observe in the kernel; `*` means all interfaces.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// Release of the kernel in which the daemon runs programs, or `None` if it cannot run
    /// programs.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Reason why the daemon runs no kernel programs, or `None` if it runs them.
    #[serde(default)]
    pub closed: Option<String>,
}

/// Maximum length of a registered request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 16 << 10;
