//! Types for the requests of clients that the daemon runs in the kernel, and for the daemon's
//! kernel programs.

use engine::kernel::delegation::OpenTaps;
use runtime::ledger::Amount;
use serde::{Deserialize, Serialize};

/// Parameters of `Attach`, which runs part of a request in the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachParameters {
    /// Text of the request.
    pub line: String,
    /// The nodes of the request that run in the kernel, in the form of
    /// [`engine::kernel::delegation::KernelPart::to_text`].
    pub part: String,
    /// Text that identifies the caller's network namespace, as returned by
    /// [`network_namespace_id`](crate::host::network_namespace_id).
    pub network: String,
    /// Version of the calling program.
    pub version: String,
    /// The running request that this one replaces when `Switch` is called, or `None` if this one
    /// replaces none; see [`AttachReply::switched`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<Replacement>,
}

/// A running kernel request that a new request replaces, and the filters whose state the new
/// request takes over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    /// Number of the running request, from [`AttachReply::line`].
    pub line: u64,
    /// Filters whose state the new request adopts.
    pub stays: Vec<CarriedStep>,
    /// Indices of the taps that are open in the new request from its start; `None` if no tap is
    /// open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taps: Option<Vec<u64>>,
}

/// Parameters of `SetTaps`, which opens and closes taps of a request in the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetTapsParameters {
    /// Indices of the taps to open: 0 for the source, then one index for each filter of the kernel
    /// program. All other taps are closed.
    pub open: Vec<u64>,
}

/// Parameters of `Count`, which requests the counters of a request in the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountParameters {
    /// Number of the call, if the caller has given it one; the reply repeats the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

/// A filter whose state passes from an old kernel request to the request that replaces it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CarriedStep {
    /// Index of the filter among the steps of the old kernel program.
    pub was: u64,
    /// Index of the filter among the steps of the new kernel program.
    pub is: u64,
}

/// Replies to `Attach`. The first reply transfers descriptors of shared memory, and contains the
/// layout of this memory. The last reply contains the final counters. The other replies are
/// responses to `Switch` and `Count`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AttachReply {
    /// Layout of the transferred memory, in the form of
    /// [`engine::kernel::delegation::DelegatedLayout::to_text`]; only in the first reply.
    pub layout: Option<String>,
    /// Number that the daemon assigned to the request; only in the first reply.
    pub line: Option<u64>,
    /// True in a reply to `Switch` if the request has replaced another request.
    pub switched: Option<bool>,
    /// The current counters, in the same form as `ended`; only in a reply to `Count`.
    #[serde(default)]
    pub counted: Option<String>,
    /// Number of the `Count` call to which this is the reply; `None` if the caller gave the call no
    /// number. The counters include the effect of all calls that the caller made before this call.
    #[serde(default)]
    pub number: Option<u64>,
    /// The final counters, in the form of [`engine::kernel::delegation::FinalCounters::to_text`];
    /// only in the last reply.
    pub ended: Option<String>,
    /// Reason why the daemon removed the request; `None` if the caller asked for the removal.
    pub why: Option<String>,
}

/// Reply to `Sharing`: the daemon's kernel programs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KernelPrograms {
    /// The kernel programs of the daemon, usually one per interface and direction. If a request
    /// does not fit into a program, another program runs the request.
    pub programs: Vec<KernelProgram>,
}

/// A kernel program, either at an interface and shared by the requests of all users, or at the
/// sockets of one user.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KernelProgram {
    /// Name of the interface, or `sockets of UID`.
    pub interface: String,
    /// Network namespace of the interface, or `None` for the daemon's namespace.
    pub netns: Option<String>,
    /// Direction of the frames: `received` or `sent`; `both` for sockets.
    pub side: String,
    /// Id of the program, assigned by the kernel.
    pub program: u32,
    /// Number of times the program was replaced.
    pub replaced: u64,
    /// Number of frames that the program processed. A frame counts once, even if several requests
    /// receive it.
    pub frames: u64,
    /// Requests that are visible to the caller.
    pub lines: Vec<KernelRequest>,
    /// Filters used by the caller's requests, or all filters if the caller is root or the user who
    /// runs the daemon.
    pub steps: Vec<KernelStep>,
    /// Rings to which the program copies frames. There is one ring for each size, and for each user
    /// or group that shares a ring.
    pub rings: Vec<KernelRing>,
}

/// A request that runs in a kernel program. The process, its name and all counts are `None` unless
/// the request belongs to the caller, or the caller is root or the user who runs the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KernelRequest {
    /// Number of the path that runs the request, or `None` if no registered path runs it.
    pub path: Option<u32>,
    /// User id of the request's owner.
    pub uid: u32,
    /// Id of the process that reads the request's frames.
    pub process: Option<u32>,
    /// Name of the process that reads the request's frames, at most 15 bytes (proc_pid_comm(5)).
    pub command: Option<String>,
    /// Number of frames processed since the request was attached.
    pub taken: Option<u64>,
    /// Blocks copied to the request's owner.
    pub given: Option<Amount>,
    /// Number of frames that could not be copied because the ring was full.
    pub lost: Option<u64>,
    /// Estimated kernel time that the request uses, in ns per second.
    pub kernel_ns: Option<u64>,
}

/// A filter in a kernel program.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KernelStep {
    /// Name of the filter.
    pub name: String,
    /// Number of requests that use the filter, which runs only once per frame.
    pub lines: usize,
    /// Number of blocks that reached the filter.
    pub blocks: u64,
}

/// A ring to which a kernel program copies the frames of requests.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KernelRing {
    /// User id of the ring's owner; `None` if several users may share the ring.
    pub uid: Option<u32>,
    /// Group whose requests share the ring (`--share=group:NAME`). If both `uid` and `group` are
    /// `None`, the ring is shared by the requests with `--share=world`.
    pub group: Option<String>,
    /// Capacity of the ring in bytes.
    pub bytes: u64,
    /// Number of requests whose frames are written to the ring.
    pub lines: usize,
}

impl SetTapsParameters {
    /// Creates the parameters of `SetTaps` that leave exactly these taps open.
    #[must_use]
    pub fn new(open: &OpenTaps) -> Self {
        Self { open: open.iter().map(|tap| u64::try_from(tap).unwrap_or(u64::MAX)).collect() }
    }

    /// Converts the indices of taps to a set of open taps.
    #[must_use]
    pub fn open_taps_from_indices(open: &[u64]) -> OpenTaps {
        let index = |tap: &u64| usize::try_from(*tap).unwrap_or(usize::MAX);
        OpenTaps::from_indices(open.iter().map(index))
    }
}
